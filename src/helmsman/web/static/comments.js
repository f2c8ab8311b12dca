// Comments on the lines of a change, collected until they go to the agent as one message. They outlive the page, and stay
// until they are marked as addressed and deleted.
//
// A comment is {id, path, side: "old" | "new", from, to, quote, text, sent?, addressed?}: lines `from` to `to` of the file
// before or after the change, and what stands there, with its signs. Event: "changed".

import { recall, remember } from "./remembered.js";

let ids = 0;

export class Comments extends EventTarget {
  #key;

  constructor(sessionId) {
    super();
    this.sessionId = sessionId;
    this.#key = `helmsman-comments:${sessionId}`;
    this.all = recall(this.#key) ?? [];
  }

  of(path) {
    return this.all.filter((comment) => comment.path === path);
  }

  add(comment) {
    this.#keep([...this.all, { ...comment, id: `${Date.now()}-${(ids += 1)}` }]);
  }

  remove(id) {
    this.#keep(this.all.filter((comment) => comment.id !== id));
  }

  change(id, fields) {
    this.#keep(this.all.map((comment) => (comment.id === id ? { ...comment, ...fields } : comment)));
  }

  /** Those that the agent has not been sent. */
  get unsent() {
    return this.all.filter((comment) => !comment.sent);
  }

  markSent() {
    this.#keep(this.all.map((comment) => ({ ...comment, sent: true })));
  }

  clearAddressed() {
    this.#keep(this.all.filter((comment) => !comment.addressed));
  }

  /** Those that were not sent, as a message: file, line, the code and what was said of it. */
  get message() {
    const { unsent } = this;
    const places = unsent.map((comment, at) => `${at + 1}. \`${comment.path}\`, ${linesOf(comment)}:\n\n${quoted(comment.quote)}\n\n${comment.text}`);
    const [what, which] = unsent.length === 1 ? ["a comment", "it"] : [`${unsent.length} comments`, "each of them"];
    return `I have reviewed your changes and have ${what}. Address ${which}.\n\n${places.join("\n\n")}`;
  }

  #keep(all) {
    this.all = all;
    remember(this.#key, all.length ? all : null);
    this.dispatchEvent(new Event("changed"));
  }
}

export function linesOf({ side, from, to }) {
  const lines = from === to ? `line ${from}` : `lines ${from}–${to}`;
  return side === "old" ? `${lines} before the change` : lines;
}

/** The code in a fence that nothing in it can end. */
function quoted(code) {
  const longest = Math.max(2, ...[...code.matchAll(/`+/g)].map(([ticks]) => ticks.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}diff\n${code}\n${fence}`;
}
