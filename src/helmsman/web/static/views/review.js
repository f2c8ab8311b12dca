// The review of what a session changed: the files, their lines, comments that go back to the agent, and Apply or Discard.

import { get, sessionPath } from "../api.js";
import { Comments, linesOf } from "../comments.js";
import { actionButton, h, toast } from "../dom.js";
import { EDITORS, chooseEditor, chosenEditor, hasEditors } from "../editor.js";
import { count } from "../format.js";
import { hosts } from "../hosts.js";
import { coalesced } from "../timing.js";
import { Applying } from "./applying.js";
import { stat } from "./diff.js";
import { fileTree } from "./file-tree.js";
import { ReviewFile } from "./review-file.js";

const SPLIT_KEY = "helmsman-diff";
const PAUSE = 1500; // while a turn runs, what it has changed is looked at again after so many milliseconds

export class Review {
  #id;
  #shown = null; // what is on the page
  #files = new Map();
  #wanted = null;

  /** `composer` sends: into the turn that runs, after it, or as the next one. `place` tells the address of a file. */
  constructor(sessionId, { composer, place }) {
    this.#id = sessionId;
    this.composer = composer;
    this.place = place;
    this.comments = new Comments(sessionId);
    this.applying = new Applying(sessionId, { reread: () => this.read(), write: (text) => composer.write(text) });
    this.about = h("p", { class: "scope quiet" }, "Reading…");
    this.views = h("div", { class: "segments", role: "group", "aria-label": "How to show changes" }, ["Unified", "Side by side"].map((name, at) => h("button", { type: "button", "aria-pressed": String(isSplit() === Boolean(at)), dataset: { split: at }, onclick: () => this.#choose(Boolean(at)) }, name)));
    this.editors = h("select", { "aria-label": "Open files in", hidden: !hasEditors(), onchange: () => this.#chooseEditor() }, Object.entries(EDITORS).map(([name, title]) => h("option", { value: name, selected: name === chosenEditor() }, title)));
    this.newer = h("p", { class: "newer", role: "status", hidden: true }, "The changes have moved on. ", actionButton("Show them", {}, () => this.read()));
    this.tree = h("div", { class: "tree" });
    this.list = h("div", { class: "files" });
    this.tray = h("div", { class: "tray", hidden: true, role: "region", "aria-label": "Comments to send" });
    this.element = h(
      "div",
      { class: "changes scroller", tabindex: "0", role: "region", "aria-label": "Changes" },
      h("div", { class: "review-bar" }, this.about, h("div", { class: "tools" }, this.editors, this.views, this.applying.buttons)),
      this.applying.obstacle,
      this.newer,
      h("div", { class: "review" }, this.tree, this.list),
      this.tray,
    );
    this.comments.addEventListener("changed", () => this.#showComments());
    this.refresh = coalesced(() => this.#read().catch((error) => this.#shown === null && this.#fail(error)), PAUSE);
  }

  /** Show the changes as they are now, whatever was being written about others. */
  async read() {
    this.#shown = null;
    await this.#read().catch((error) => this.#fail(error));
  }

  /** Bring a file, and a line of it, into view: now, or as soon as it is here. */
  goTo(path, line) {
    this.#wanted = { path, line };
    if (this.#shown) this.#goThere();
  }

  async #read() {
    const changes = await get(sessionPath(this.#id, "diff"), { unless: this.#shown?.digest });
    if (changes.unchanged) return;
    if (this.#shown && this.element.querySelector(".comment.asked")) {
      this.newer.hidden = false; // who writes about a line keeps it
      return;
    }
    this.#show(changes);
  }

  #show(changes) {
    const { scrollTop } = this.element;
    this.#shown = changes;
    this.newer.hidden = true;
    const { files, about, cut } = changes;
    const total = (of) => files.reduce((sum, file) => sum + (file[of] ?? 0), 0);
    this.about.replaceChildren(...(files.length ? [`${count(files.length, "file")} `, stat(total("added"), total("removed")), ` ${about}`] : [`No changes. ${about}`]));
    this.tree.replaceChildren(...(files.length > 1 ? [fileTree(files, this.place)] : []));
    this.applying.show(changes);
    this.#files = new Map(files.map((file) => [file.path, new ReviewFile(file, { split: isSplit(), root: hosts.of(this.#id) ? null : changes.root, comments: this.comments, commentable: true })]));
    this.list.replaceChildren(...[...this.#files.values()].map((file) => file.element));
    if (cut) this.list.append(h("p", { class: "quiet" }, `${count(cut, "character")} more are not shown.`));
    this.views.hidden = !files.length;
    this.editors.hidden = !files.length || !hasEditors() || Boolean(hosts.of(this.#id)); // its files are not here
    this.#showComments();
    this.element.scrollTop = scrollTop;
    this.element.dataset.ready = "yes";
    if (this.#wanted) this.#goThere();
  }

  #goThere() {
    const { path, line } = this.#wanted;
    this.#wanted = null;
    const file = this.#files.get(path);
    if (!file) return toast(`${path} is not among these changes.`, "error");
    const found = file.reveal(line);
    for (const one of this.list.querySelectorAll(".found")) one.classList.remove("found");
    if (found !== file.element) found.classList.add("found");
    found.scrollIntoView({ block: found === file.element ? "start" : "center" });
    (found.querySelector(".no") ?? file.toggle).focus({ preventScroll: true });
  }

  #fail(error) {
    this.#show({ files: [], about: error.message });
  }

  #choose(split) {
    keep(SPLIT_KEY, split ? "split" : "unified");
    for (const button of this.views.children) button.setAttribute("aria-pressed", String(Boolean(Number(button.dataset.split)) === split));
    if (this.#shown) this.#show(this.#shown);
  }

  #chooseEditor() {
    chooseEditor(this.editors.value);
    for (const file of this.#files.values()) file.showEditor();
  }

  // --- comments ----------------------------------------------------------------------------------------------------

  #showComments() {
    for (const file of this.#files.values()) file.showComments();
    const { all } = this.comments;
    this.tray.hidden = !all.length;
    if (!all.length) return;
    const row = (comment) => h("li", {}, h("a", { href: this.place(comment.path, comment.side === "new" ? comment.to : undefined), class: "mono" }, `${comment.path}, ${linesOf(comment)}`), " ", h("span", {}, comment.text), " ", h("button", { type: "button", class: "link", "aria-label": `Remove the comment on ${comment.path}, ${linesOf(comment)}`, onclick: () => this.comments.remove(comment.id) }, "Remove"));
    this.tray.replaceChildren(
      h("details", {}, h("summary", {}, count(all.length, "comment")), h("ul", {}, all.map(row))),
      actionButton(this.composer.verb(count(all.length, "comment")), { class: "primary", dataset: { send: "" } }, () => this.#send()),
    );
  }

  /** What sending would do depends on whether a turn runs. */
  showVerb() {
    const button = this.tray.querySelector("[data-send]");
    if (button) button.textContent = this.composer.verb(count(this.comments.all.length, "comment"));
  }

  async #send() {
    await this.composer.deliver(this.comments.message);
    this.comments.clear();
    toast("The comments are with the agent.");
  }
}

function isSplit() {
  try {
    return localStorage.getItem(SPLIT_KEY) === "split" && !matchMedia("(max-width: 760px)").matches;
  } catch {
    return false;
  }
}

function keep(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // storage may be forbidden; then a choice lasts as long as the page
  }
}
