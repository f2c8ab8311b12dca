// The user's other machines and their states. Without other machines, nothing of this is visible.
//
// Ids of another machine begin with its name (`build:0199…`). The server adds the name, so no machine can pass off
// its data as data of this one.

import { get } from "./api.js";
import { h } from "./dom.js";
import { live } from "./live.js";
import { coalesced } from "./timing.js";

/** What a filter calls this machine; no other can have such a name. */
export const HERE = ".";

const NAMED = /^([A-Za-z0-9][\w.-]{0,62}):/;

class Hosts extends EventTarget {
  all = [];
  #isRead = false;

  constructor() {
    super();
    this.read = coalesced(() => this.#read(), 300);
    live.addEventListener("anew", this.read);
    live.addEventListener("changes", ({ detail }) => detail.some(({ kinds }) => kinds.includes("hosts")) && this.read());
  }

  get names() {
    return this.all.map(({ name }) => name);
  }

  get(name) {
    return this.all.find((one) => one.name === name);
  }

  /** The name of the machine that an id is of; nothing for this one. */
  of(id) {
    const name = NAMED.exec(id ?? "")?.[1];
    return name && (!this.#isRead || this.get(name)) ? name : undefined;
  }

  async #read() {
    const { hosts } = await get("hosts").catch(() => ({ hosts: this.all }));
    this.#isRead = true;
    if (JSON.stringify(hosts) === JSON.stringify(this.all)) return;
    this.all = hosts;
    this.dispatchEvent(new Event("hosts"));
  }
}

export const hosts = new Hosts();

/** The machine of what has this id, for where several are seen side by side. */
export function hostMark(id) {
  const name = hosts.of(id);
  return name ? h("span", { class: "host", dataset: { host: name }, title: `On the machine ${name}` }, name) : null;
}

/** A choice of one machine or all; hidden while there is nothing to choose. */
export function hostFilter(onchange) {
  const select = h("select", { "aria-label": "Filter by machine", hidden: true, onchange: () => onchange(select.value) });
  const fill = () => {
    const chosen = select.value;
    const names = new Set([...hosts.names, ...(chosen && chosen !== HERE ? [chosen] : [])]);
    select.replaceChildren(h("option", { value: "" }, "All machines"), h("option", { value: HERE }, "This machine"), ...[...names].map((name) => h("option", { value: name }, name)));
    select.value = chosen;
    select.hidden = !names.size && !chosen;
  };
  hosts.addEventListener("hosts", fill);
  fill();
  return select;
}

/** What is drawn of it; nothing, if another machine sends invalid data: that must not break the rest. */
export function believed(id, draw) {
  try {
    return draw();
  } catch (error) {
    if (!hosts.of(id)) throw error;
    return null;
  }
}

/** Entries of several machines, in order of time. */
export function newestFirst(one, other) {
  const time = ({ timestamp, updatedAt }) => Date.parse(timestamp ?? updatedAt) || 0;
  return time(other) - time(one);
}
