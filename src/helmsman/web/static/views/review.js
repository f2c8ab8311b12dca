// The review of what a session changed: the files, their lines, comments that go back to the agent, and Apply or Discard.

import { get, sessionPath } from "../api.js";
import { Comments, linesOf } from "../comments.js";
import { actionButton, h, toast } from "../dom.js";
import { EDITORS, chooseEditor, chosenEditor, hasEditors } from "../editor.js";
import { count } from "../format.js";
import { hosts } from "../hosts.js";
import { recall, remember } from "../remembered.js";
import { coalesced } from "../timing.js";
import { Viewed } from "../viewed.js";
import { Applying } from "./applying.js";
import { stat } from "./diff.js";
import { fileTree } from "./file-tree.js";
import { segments } from "./page.js";
import { commentButtons, ReviewFile } from "./review-file.js";

const SPLIT_KEY = "helmsman-diff";
const PAUSE = 1500; // milliseconds between two looks at the changes while a turn runs

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
    this.viewed = new Viewed(sessionId);
    this.applying = new Applying(sessionId, { reread: () => this.read(), write: (text) => composer.write(text) });
    this.about = h("p", { class: "scope quiet" }, "Reading…");
    this.views = segments("How to show changes", "split", [["Unified", 0], ["Side by side", 1]], Number(isSplit()), (split) => this.#choose(split));
    this.spaces = h("button", { type: "button", "aria-pressed": "false", title: "Leave out changes of white space", dataset: { spaces: "" }, onclick: () => this.#lookAt(this.spaces) }, "Ignore white space");
    this.since = h("button", { type: "button", "aria-pressed": "false", hidden: true, dataset: { since: "" }, onclick: () => this.#lookAt(this.since) }, "Since my review");
    this.progress = h("span", { class: "viewed-count", role: "status" });
    this.editors = h("select", { "aria-label": "Open files in", hidden: !hasEditors(), onchange: () => this.#chooseEditor() }, Object.entries(EDITORS).map(([name, title]) => h("option", { value: name, selected: name === chosenEditor() }, title)));
    this.newer = h("p", { class: "newer", role: "status", hidden: true }, "The changes have moved on. ", actionButton("Show them", {}, () => this.read()));
    this.tree = h("div", { class: "tree" });
    this.list = h("div", { class: "files" });
    this.tray = h("div", { class: "tray", hidden: true, role: "region", "aria-label": "Comments to send" });
    this.element = h(
      "div",
      { class: "changes scroller", tabindex: "0", role: "region", "aria-label": "Changes" },
      h("div", { class: "review-bar" }, this.about, h("div", { class: "tools" }, this.progress, this.since, this.spaces, this.editors, this.views, this.applying.buttons)),
      this.applying.obstacle,
      this.newer,
      h("div", { class: "review" }, this.tree, this.list),
      this.tray,
    );
    this.comments.addEventListener("changed", () => this.#showComments());
    this.viewed.addEventListener("changed", () => this.#showViewed());
    this.refresh = coalesced(() => this.#read().catch((error) => this.#shown === null && this.#fail(error)), PAUSE);
  }

  /** Show the current changes, even if a comment on the previous ones is being written. */
  async read() {
    this.#shown = null;
    await this.#read().catch((error) => this.#fail(error));
  }

  /** Scroll to a file, and a line of it: now, or once it is loaded. */
  goTo(path, line) {
    this.#wanted = { path, line };
    if (this.#shown) this.#goThere();
  }

  async #read() {
    const [ignoreWhitespace, since] = [isPressed(this.spaces) ? 1 : undefined, isPressed(this.since) ? this.viewed.reviewedAt : undefined];
    const changes = await get(sessionPath(this.#id, "diff"), { unless: this.#shown?.digest, ignoreWhitespace, since });
    if (changes.unchanged) return;
    if (this.#shown && this.element.querySelector(".comment.asked")) {
      this.newer.hidden = false; // a comment that is being written keeps its line
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
    this.about.replaceChildren(...(files.length ? [`${count(files.length, "file")} `, stat(total("added"), total("removed")), ` ${about}`] : ["No changes."]));
    this.tree.replaceChildren(...(files.length > 1 ? [fileTree(files, this.place)] : []));
    this.applying.show(changes);
    this.viewed.show(changes.marks, changes.at);
    const ofWorktree = changes.scope === "worktree";
    const options = { split: isSplit(), root: hosts.of(this.#id) ? null : changes.root, comments: this.comments, commentable: true, viewed: this.viewed, parts: changes.canApply ? this.applying : null, digest: ofWorktree ? changes.digest : null };
    this.#files = new Map(files.map((file) => [file.path, new ReviewFile(file, options)]));
    this.spaces.hidden = !ofWorktree || (!files.length && !isPressed(this.spaces));
    this.list.replaceChildren(...[...this.#files.values()].map((file) => file.element));
    if (cut) this.list.append(h("p", { class: "quiet" }, `${count(cut, "character")} more are not shown.`));
    this.views.hidden = !files.length;
    this.editors.hidden = !files.length || !hasEditors() || Boolean(hosts.of(this.#id)); // its files are not here
    this.#showComments();
    this.#showViewed();
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

  #showViewed() {
    const { count: viewed, total, reviewedAt } = this.viewed;
    this.progress.hidden = !total || !this.#files.size;
    this.progress.textContent = `${viewed} of ${total} viewed`;
    this.since.hidden = !reviewedAt || this.#shown?.scope !== "worktree";
    for (const file of this.#files.values()) file.showViewed();
    for (const link of this.tree.querySelectorAll("a")) link.classList.toggle("viewed", this.viewed.has(link.title));
  }

  /** Change the view: without white space, or since the last review. */
  #lookAt(button) {
    button.setAttribute("aria-pressed", String(!isPressed(button)));
    this.read();
  }

  /** Go to the next or previous file or hunk, from where the page is. */
  step(selector, direction) {
    const places = [...this.list.querySelectorAll(selector)].filter((one) => one.checkVisibility());
    const top = this.#scroller.getBoundingClientRect().top + 60;
    const at = (one) => one.getBoundingClientRect().top - top;
    const next = direction > 0 ? places.find((one) => at(one) > 8) : places.findLast((one) => at(one) < -8);
    if (!next) return;
    next.scrollIntoView({ block: "start" });
    this.#scroller.scrollBy(0, -50);
    (next.querySelector(".fold") ?? next).focus({ preventScroll: true });
  }

  get #scroller() {
    return this.element.scrollHeight > this.element.clientHeight ? this.element : (this.element.closest(".page") ?? document.scrollingElement);
  }

  /** Mark the file with the focus as viewed, or else the first that is not; and go to the next. */
  toggleViewed() {
    const focused = document.activeElement?.closest(".review-file")?.dataset.path;
    const path = focused ?? [...this.#files.keys()].find((one) => !this.viewed.has(one));
    const file = this.#files.get(path);
    if (!file) return;
    file.view(!this.viewed.has(path));
    const next = [...this.#files.keys()].find((one) => !this.viewed.has(one));
    (this.#files.get(next) ?? file).element.scrollIntoView({ block: "nearest" });
    (this.#files.get(next) ?? file).toggle.focus({ preventScroll: true });
  }

  #choose(split) {
    remember(SPLIT_KEY, split ? "split" : "unified");
    if (this.#shown) this.#show(this.#shown);
  }

  #chooseEditor() {
    chooseEditor(this.editors.value);
    for (const file of this.#files.values()) file.showEditor();
  }

  // --- comments ----------------------------------------------------------------------------------------------------

  #showComments() {
    for (const file of this.#files.values()) file.showComments();
    const { all, unsent } = this.comments;
    this.tray.hidden = !all.length;
    if (!all.length) return;
    const row = (comment) => {
      const about = `${comment.path}, ${linesOf(comment)}`;
      return h("li", {}, h("a", { href: this.place(comment.path, comment.side === "new" ? comment.to : undefined), class: "mono" }, about), " ", h("span", {}, comment.text), " ", h("span", { class: "quiet" }, comment.addressed ? "addressed" : comment.sent ? "sent" : ""), " ", commentButtons(this.comments, comment, about));
    };
    const [open, addressed] = [all.filter((one) => one.sent && !one.addressed).length, all.filter((one) => one.addressed).length];
    const title = [unsent.length ? count(unsent.length, "comment") : null, open ? `${open} sent` : null, addressed ? `${addressed} addressed` : null].filter(Boolean).join(", ");
    const wasOpen = this.tray.querySelector("details")?.open ?? false;
    this.tray.replaceChildren(
      h("details", { open: wasOpen }, h("summary", {}, title), h("ul", {}, all.map(row)), addressed ? h("button", { type: "button", class: "link", onclick: () => this.comments.clearAddressed() }, "Delete addressed comments") : null),
      ...(unsent.length ? [actionButton(this.composer.verb(count(unsent.length, "comment")), { class: "primary", dataset: { send: "" } }, () => this.#send())] : []),
    );
  }

  /** What sending would do depends on whether a turn runs. */
  showVerb() {
    const button = this.tray.querySelector("[data-send]");
    if (button) button.textContent = this.composer.verb(count(this.comments.unsent.length, "comment"));
  }

  async #send() {
    await this.composer.deliver(this.comments.message);
    this.comments.markSent();
    this.viewed.finish();
    toast("The comments are with the agent.");
  }
}

function isPressed(button) {
  return button.getAttribute("aria-pressed") === "true";
}

function isSplit() {
  return recall(SPLIT_KEY) === "split" && !matchMedia("(max-width: 760px)").matches;
}
