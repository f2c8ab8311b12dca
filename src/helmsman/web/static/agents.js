// The agents there are: which can be chosen, what each is called, and whether there is more than one to tell apart.

import { get } from "./api.js";
import { h } from "./dom.js";
import { hosts } from "./hosts.js";

class Agents extends EventTarget {
  all = [];
  #host;
  #reading = null;

  /** `host` is the name of another machine; without it, they are those of this one. */
  constructor(host) {
    super();
    this.#host = host;
  }

  /** Read them, once: which programs are installed changes seldom, and to find out takes a moment. */
  read() {
    this.#reading ??= get("agents", { host: this.#host })
      .then(({ agents }) => {
        this.all = this.#host ? agents.filter(isAgent) : agents;
        this.dispatchEvent(new Event("agents"));
      })
      .catch(() => {
        this.#reading = null; // the next call tries again
      });
    return this.#reading;
  }

  get installed() {
    return this.all.filter((agent) => agent.installed);
  }

  get(name) {
    return this.all.find(({ agent }) => agent === name);
  }

  title(name) {
    return this.get(name)?.title ?? name;
  }

  /** The name of an agent where there are several; with a single one it is not needed. */
  mark(name) {
    return name && (this.installed.length > 1 || name !== this.all[0]?.agent) && this.all.length ? h("span", { class: "agent" }, this.title(name)) : null;
  }
}

/** Whether this is an agent; another machine may send anything. */
function isAgent({ agent, title, can, cannot, lacks }) {
  return typeof agent === "string" && typeof title === "string" && Array.isArray(can) && cannot instanceof Object && lacks instanceof Object;
}

export const agents = new Agents();

const elsewhere = new Map();

/** Those of a machine. */
export function agentsOn(host) {
  if (host && !elsewhere.has(host)) elsewhere.set(host, new Agents(host));
  return host ? elsewhere.get(host) : agents;
}

/** Those of the machine on which the session with this id is. */
export function agentsOf(id) {
  return agentsOn(hosts.of(id));
}

/** A choice of one agent or all; hidden while there is nothing to choose. */
export function agentFilter(label, onchange) {
  const select = h("select", { "aria-label": label, hidden: true, onchange: () => onchange(select.value) });
  const fill = () => {
    const chosen = select.value;
    const offered = agents.all.filter(({ agent, installed }) => installed || agent === chosen);
    select.replaceChildren(h("option", { value: "" }, "All agents"), ...offered.map(({ agent, title }) => h("option", { value: agent }, title)));
    select.value = chosen;
    select.hidden = offered.length < 2 && !chosen;
  };
  agents.addEventListener("agents", fill);
  fill(); // read after the login: a refused request from before it would log the user out again
  return select;
}
