// Which files of a session's changes were viewed as they are, and when its changes were last reviewed as a whole. It is known in
// this browser. A file that changes again is no longer viewed. Event: "changed".

import { recall, remember } from "./remembered.js";

export class Viewed extends EventTarget {
  #key;
  #kept;
  #now = {};

  constructor(sessionId) {
    super();
    this.#key = `helmsman-viewed:${sessionId}`;
    this.#kept = recall(this.#key) ?? { marks: {} };
  }

  /** What there is to view: a mark for each file, which differs once its change does; and the server's time. */
  show(marks, at) {
    this.#now = marks ?? {};
    this.at = at;
  }

  get total() {
    return Object.keys(this.#now).length;
  }

  get count() {
    return Object.keys(this.#now).filter((path) => this.has(path)).length;
  }

  has(path) {
    return this.#now[path] !== undefined && this.#kept.marks[path] === this.#now[path];
  }

  /** Whether a file was viewed and has changed since. */
  isStale(path) {
    return this.#kept.marks[path] !== undefined && !this.has(path);
  }

  set(path, viewed) {
    const marks = { ...this.#kept.marks };
    if (viewed) marks[path] = this.#now[path];
    else delete marks[path];
    this.#keep({ ...this.#kept, marks });
    if (this.count === this.total) this.finish();
  }

  /** When the last review ended, in the server's time. */
  get reviewedAt() {
    return this.#kept.at;
  }

  /** Take what is shown now as reviewed. */
  finish() {
    this.#keep({ ...this.#kept, at: this.at });
  }

  #keep(kept) {
    this.#kept = kept;
    remember(this.#key, kept);
    this.dispatchEvent(new Event("changed"));
  }
}
