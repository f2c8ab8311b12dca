// Which sessions are listed: of a machine, of a project, of an agent, in a state. Each filter is in the address, so that it can be kept.

import { agentFilter } from "../agents.js";
import { h } from "../dom.js";
import { hostFilter } from "../hosts.js";
import { shortPath, statusWord } from "../format.js";
import { store } from "../store.js";

const STATES = ["awaiting_approval", "active", "done", "error", "interrupted", "denied"];
const NAMES = ["host", "project", "agent", "state", "label"];

export class Filters {
  /** `onchange` is called when another choice was made. */
  constructor(onchange) {
    const changed = () => {
      this.#told();
      onchange();
    };
    this.project = h("select", { "aria-label": "Filter by project", onchange: changed });
    this.agent = agentFilter("Filter by agent", changed);
    this.state = h("select", { "aria-label": "Filter by state", onchange: changed }, h("option", { value: "" }, "All states"), STATES.map((state) => h("option", { value: state }, statusWord(state))));
    this.host = hostFilter(changed);
    this.label = h("select", { "aria-label": "Filter by label", onchange: changed });
    this.element = h("div", { class: "filters" }, this.project, this.state, this.label, this.agent, this.host);
    this.#showKnown();
    store.addEventListener("overview", () => this.#showKnown());
  }

  get chosen() {
    return Object.fromEntries(NAMES.map((name) => [name, this[name].value]).filter(([, value]) => value));
  }

  /** The address of the overview with the current filters. */
  get address() {
    const query = new URLSearchParams(this.chosen);
    return query.size ? `#/?${query}` : "#/";
  }

  /** Choose as in an address. Returns whether the choice has changed. */
  take(hash) {
    const given = new URLSearchParams(hash.split("?")[1] ?? "");
    const before = JSON.stringify(this.chosen);
    for (const name of NAMES) {
      const value = given.get(name) ?? "";
      if (value && ![...this[name].options].some((option) => option.value === value)) this[name].append(h("option", { value }, name === "project" ? shortPath(value) : value));
      this[name].value = value;
      if (value) this[name].hidden = false;
    }
    if (JSON.stringify(this.chosen) === before) return false;
    this.#told();
    return true;
  }

  #told() {
    store.only(this.chosen);
  }

  #showKnown() {
    this.#showProjects();
    const chosen = this.label.value;
    const labels = new Set([...(store.overview?.labels ?? []), ...(chosen ? [chosen] : [])]);
    this.label.replaceChildren(h("option", { value: "" }, "All labels"), ...[...labels].map((value) => h("option", { value }, value)));
    this.label.value = chosen;
    this.label.hidden = !labels.size;
  }

  #showProjects() {
    const chosen = this.project.value;
    const projects = new Set([...store.projects, ...(chosen ? [chosen] : [])]);
    this.project.replaceChildren(h("option", { value: "" }, "All projects"), ...[...projects].map((value) => h("option", { value, title: value }, shortPath(value))));
    this.project.value = chosen;
  }
}
