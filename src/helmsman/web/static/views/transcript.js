// A session's transcript: a window onto a list that may have ten thousand entries. A few hundred are in the page at a
// time; scrolling loads more at one end and removes those at the other.

import { get, sessionPath, sessionPlace } from "../api.js";
import { h, toast } from "../dom.js";
import { count } from "../format.js";
import { coalesced } from "../timing.js";
import { hosts } from "../hosts.js";
import { entryElement } from "./entry.js";

const PAGE = 100;
const MOST_SHOWN = 400;
const NEAR = 600; // pixels from an end at which more is read
const AT_END = 60;
const AT_TAIL = 8;

export class Transcript {
  directory = null;
  #path;
  #shown = new Map(); // index → {element, written}
  #first = 0;
  #next = 0;
  #total = 0;
  #reading = null;
  #following = true;
  #scrolledTo = 0;
  #settled = false;

  constructor(sessionId) {
    this.turnPlace = (number) => sessionPlace(sessionId, "turn", number);
    const host = hosts.of(sessionId);
    this.agentPlace = (id) => sessionPlace(host ? `${host}:${id}` : id);
    this.#path = (...rest) => sessionPath(sessionId, "transcript", ...rest);
    this.list = h("div", { class: "entries" });
    this.scroller = h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Transcript" }, this.list);
    this.toStart = h("button", { type: "button", class: "jump", hidden: true }, "↑ Beginning");
    this.toEnd = h("button", { type: "button", class: "jump", hidden: true }, "↓ Newest");
    this.position = h("span", { class: "position quiet" });
    this.element = h("div", { class: "transcript" }, this.scroller, h("div", { class: "jumps" }, this.position, this.toStart, this.toEnd));
    this.toStart.addEventListener("click", () => this.jumpTo(0));
    this.toEnd.addEventListener("click", () => this.open());
    this.scroller.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    // A question that appears or disappears changes the height: a reader at the end stays there.
    new ResizeObserver(() => this.#following && this.#scrollToEnd()).observe(this.scroller);
    this.refresh = coalesced(() => this.#refresh(), 120);
  }

  /** Show the end. */
  async open() {
    await this.#alone(async () => {
      this.#replace(await get(this.#path(), { limit: PAGE }));
      this.#following = true;
      this.#scrollToEnd();
    }, { asked: true });
  }

  /** Show an entry and what follows it. */
  async jumpTo(index) {
    await this.#alone(async () => {
      this.#following = false;
      this.#replace(await get(this.#path(), { after: index, limit: PAGE }));
      this.scroller.scrollTop = 0;
    }, { asked: true });
    if (this.#first > 0) await this.#older();
    this.#shown.get(index)?.element.scrollIntoView({ block: "start" });
    this.scroller.focus({ preventScroll: true });
  }

  // --- what changes ------------------------------------------------------------------------------------------------

  async #refresh() {
    await this.#alone(async () => {
      if (this.#next < this.#total) {
        const page = await get(this.#path(), { after: this.#next, limit: 1 }); // the end is out of view: only count
        this.#total = page.total;
        return;
      }
      const follow = this.#following;
      const page = await get(this.#path(), { after: this.#firstUnfinished(), limit: 500 });
      if (page.total < this.#next) {
        this.#replace(await get(this.#path(), { limit: PAGE })); // the session was rolled back
      } else {
        this.#total = page.total;
        this.#add(page);
        if (follow) this.#trim("start");
      }
      if (follow && this.#next < this.#total) this.#replace(await get(this.#path(), { limit: PAGE }));
      if (follow) this.#scrollToEnd();
    });
  }

  /** Where the next read starts: items under way may have changed, those before them have not. */
  #firstUnfinished() {
    const oldest = Math.max(this.#first, this.#next - PAGE);
    for (let index = oldest; index < this.#next; index += 1) {
      const state = this.#shown.get(index)?.element.dataset.state;
      if (state === "running" || index === this.#next - 1) return index;
    }
    return this.#next;
  }

  // --- scrolling ---------------------------------------------------------------------------------------------------

  #onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (this.#isAtEnd()) this.#following = this.#next >= this.#total;
    else if (scrollTop < this.#scrolledTo) this.#following = false; // only a person scrolls up
    this.#scrolledTo = scrollTop;
    if (scrollTop < NEAR && this.#first > 0) this.#older();
    else if (scrollHeight - scrollTop - clientHeight < NEAR && this.#next < this.#total) this.#newer();
    this.#showJumps();
  }

  async #older() {
    await this.#alone(async () => {
      const page = await get(this.#path(), { before: this.#first, limit: PAGE });
      this.#keepingPlace(() => {
        this.#add(page);
        this.#trim("end");
      });
    });
  }

  async #newer() {
    await this.#alone(async () => {
      const page = await get(this.#path(), { after: this.#next, limit: PAGE });
      this.#total = page.total;
      this.#keepingPlace(() => {
        this.#add(page);
        this.#trim("start");
      });
    });
  }

  /** Change the list without moving the visible entries. */
  #keepingPlace(change) {
    const top = this.scroller.getBoundingClientRect().top;
    const anchor = [...this.list.children].find((child) => child.getBoundingClientRect().bottom > top);
    const before = anchor?.getBoundingClientRect().top;
    change();
    if (anchor?.isConnected) this.scroller.scrollTop += anchor.getBoundingClientRect().top - before;
  }

  #isAtEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < AT_END;
  }

  #scrollToEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  #showJumps() {
    const long = this.#total > PAGE;
    this.toStart.hidden = !long || (this.#first === 0 && this.scroller.scrollTop < NEAR);
    this.toEnd.hidden = this.#next >= this.#total && this.#isAtEnd();
    this.position.textContent = long ? count(this.#total, "entry", "entries") : "";
  }

  // --- entries -----------------------------------------------------------------------------------------------------

  /** One reading at a time. A read that a person asked for waits for its turn; others come with the next change. */
  async #alone(work, { asked = false } = {}) {
    while (this.#reading) {
      if (!asked) return;
      await this.#reading;
    }
    let done;
    this.#reading = new Promise((resolve) => { done = resolve; });
    try {
      await work();
    } catch (error) {
      if (!this.#settled) toast(error.message, "error");
    } finally {
      this.#reading = null;
      this.#settled = true;
      this.element.dataset.ready = "yes";
      this.#showJumps();
      done();
    }
  }

  #replace(page) {
    this.#shown.clear();
    this.list.replaceChildren();
    [this.#first, this.#next, this.#total] = [page.first, page.first, page.total];
    this.#add(page);
    if (!page.entries.length) {
      this.list.append(h("p", { class: "empty" }, "Nothing to show yet. What the agent does appears here as it happens."));
    }
  }

  #add(page) {
    if (!page.entries.length) return;
    this.list.querySelector(":scope > .empty")?.remove();
    const before = [];
    const after = [];
    for (const entry of page.entries) {
      const known = this.#shown.get(entry.index);
      if (known) this.#update(known, entry);
      else (entry.index < this.#first ? before : after).push(this.#make(entry));
    }
    this.list.prepend(...before);
    this.list.append(...after);
    for (const element of after) followTails(element);
    this.#first = Math.min(this.#first, page.first);
    this.#next = Math.max(this.#next, page.next);
  }

  #make(entry) {
    const element = entryElement(entry, { directory: this.directory, turnPlace: this.turnPlace, agentPlace: this.agentPlace, readWhole: (index) => this.#showWhole(index) });
    this.#shown.set(entry.index, { element, written: JSON.stringify(entry) });
    return element;
  }

  #update(known, entry) {
    if (known.written === JSON.stringify(entry)) return;
    const element = this.#make(entry);
    const folds = [...known.element.querySelectorAll("details")];
    element.querySelectorAll("details").forEach((fold, place) => {
      if (folds[place]) fold.open = folds[place].open;
    });
    const tails = [...known.element.querySelectorAll("pre.output")].map(({ scrollTop, scrollHeight, clientHeight }) => (scrollHeight - scrollTop - clientHeight < AT_TAIL ? Infinity : scrollTop));
    known.element.replaceWith(element);
    followTails(element, tails);
  }

  async #showWhole(index) {
    const entry = await get(this.#path(String(index)));
    const known = this.#shown.get(index);
    if (known) this.#update(known, entry);
  }

  #trim(side) {
    while (this.#shown.size > MOST_SHOWN) {
      const index = side === "start" ? this.#first++ : --this.#next;
      this.#shown.get(index)?.element.remove();
      this.#shown.delete(index);
    }
  }
}

/** Output that is still being written shows its end, unless somebody has scrolled up in it. `places` are the previous scroll positions. */
function followTails(element, places = []) {
  if (element.dataset.state !== "running" && !places.length) return;
  element.querySelectorAll("pre.output").forEach((output, at) => {
    output.scrollTop = Math.min(places[at] ?? Infinity, output.scrollHeight);
  });
}
