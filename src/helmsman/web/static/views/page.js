// What pages beside the sessions share: a heading, choices in the head, and contents that are read again when something has changed.

import { h } from "../dom.js";
import { live } from "../live.js";
import { coalesced } from "../timing.js";
import { setPlace } from "../title.js";

const PAUSE = 800; // milliseconds between two readings

/** A page with a `read` that shows what there is. */
export class Page {
  #closed = new AbortController();

  constructor(name) {
    this.name = name;
    this.heading = h("h1", { tabindex: "-1" }, name);
    this.head = h("div", { class: "page-head" }, this.heading);
    this.element = h("div", { class: "wide scroller", tabindex: "0", role: "region", "aria-label": name }, this.head);
    this.refresh = coalesced(() => this.read().catch(() => {}), PAUSE);
  }

  /** Aborted when the page is left. */
  get signal() {
    return this.#closed.signal;
  }

  /** Read again when one of these kinds of changes happens; without kinds, when anything does. */
  follow(...kinds) {
    const { signal } = this;
    const isOne = (change) => !kinds.length || change.kinds.some((kind) => kinds.includes(kind));
    live.addEventListener("changes", ({ detail }) => detail.some(isOne) && this.refresh(), { signal });
    live.addEventListener("anew", () => this.refresh(), { signal });
  }

  async open() {
    setPlace(this.name);
    await this.read();
  }

  close() {
    this.#closed.abort();
  }

  /** The page shows what it is about. */
  ready() {
    this.element.dataset.ready = "yes";
  }
}

/** Buttons of which one is pressed. `choices` are [words, value], and `name` the data attribute that has the value. */
export function segments(label, name, choices, chosen, choose) {
  const button = ([words, value]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), dataset: { [name]: value }, onclick: () => press(value) }, words);
  const element = h("div", { class: "segments", role: "group", "aria-label": label }, choices.map(button));
  const press = (value) => {
    for (const one of element.children) one.setAttribute("aria-pressed", String(one.dataset[name] === String(value)));
    choose(value);
  };
  return element;
}

/** A number with its name and a note. */
export function tile(name, value, note) {
  return h("div", { class: "tile" }, h("dt", {}, name), h("dd", { class: "value" }, value), h("dd", { class: "quiet" }, note));
}

/** A table with a name for each column. */
export function table(heads, rows, props = {}) {
  return h(
    "table",
    props,
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells))),
  );
}

/** A card of a list: its name for screen readers, and its contents. */
export function card(label, ...content) {
  return h("article", { class: "card", "aria-label": label }, content);
}

/** Names and values, side by side. */
export function pairs(values) {
  return h("dl", { class: "pairs" }, pairsIn(values));
}

/** The same, as the contents of a list that there is. */
export function pairsIn(values) {
  return Object.entries(values).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
}
