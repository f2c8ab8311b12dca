// One file under review: its lines unified or side by side, words and syntax in colours, comments where they belong. Lines are
// drawn in chunks, the first at once and the others when there is time; what is out of sight costs no layout.

import { get, sessionPath } from "../api.js";
import { copyButton } from "../copy.js";
import { editorLink } from "../editor.js";
import { actionButton, freshId, h } from "../dom.js";
import { draftsOf, keepDraft, keepsDraft } from "../drafts.js";
import { count } from "../format.js";
import { slowly } from "../slowly.js";
import { linesOf } from "../comments.js";
import { codePieces, fileHeading } from "./diff.js";

const CHUNK = 60;
const LARGE = 400;
const CODE = new Set(["add", "remove", "same"]);
const GAP = 40; // lines between two hunks that are shown at once; of a longer gap, half as many

export class ReviewFile {
  #chunks = []; // {element, rows, filled}
  #anchor = null;
  #whole = null; // all lines of the file, once somebody has asked for more of them

  /**
   * `split`: side by side. `commentable`: whether the agent can get comments. `parts` applies and discards files and hunks, if that can be
   * done; `digest` is of the changes, where more of the file can be shown.
   */
  constructor(file, { split, root, comments, commentable, viewed, parts = null, digest = null }) {
    Object.assign(this, { file, split, root, comments, commentable, viewed, parts, digest });
    this.lines = withHunks(file, digest !== null);
    const bodyId = freshId("file");
    this.toggle = h("button", { type: "button", class: "fold", "aria-expanded": "false", "aria-controls": bodyId, onclick: () => this.open(this.body.hidden) }, fileHeading(file));
    this.editor = h("a", { class: "editor", hidden: true }, "Open in editor");
    this.box = h("input", { type: "checkbox", onchange: () => this.view(this.box.checked) });
    this.stale = h("span", { class: "pill", hidden: true }, "changed since");
    this.head = h("header", { class: "file-head" }, this.toggle, this.editor, copyButton("path", () => file.path), this.#partButtons(file.path, null), this.stale, h("label", { class: "viewed" }, this.box, "Viewed"));
    this.body = h("div", { id: bodyId, class: "lines", role: "group", "aria-label": `Changes of ${file.path}`, hidden: true });
    this.element = h("section", { class: "review-file", dataset: { path: file.path } }, this.head, this.body);
    this.body.addEventListener("click", (event) => this.#onClick(event));
    this.body.addEventListener("keydown", (event) => this.#onKey(event));
    this.showEditor();
    this.showViewed();
    if (file.lines.length <= LARGE && file.kind !== "deleted") this.open(!viewed.has(file.path));
    else this.head.append(h("span", { class: "quiet folded" }, file.kind === "deleted" ? "folded: the file is removed" : `folded: ${count(file.lines.length, "line")}`));
  }

  /** Mark the file as viewed, and fold it. */
  view(viewed) {
    this.viewed.set(this.file.path, viewed);
    this.open(!viewed);
  }

  showViewed() {
    this.box.checked = this.viewed.has(this.file.path);
    this.stale.hidden = !this.viewed.isStale(this.file.path);
  }

  /** Apply and Discard for the file, or for a hunk of it. */
  #partButtons(path, hunk) {
    if (!this.parts) return null;
    const what = hunk === null ? path : `hunk ${hunk + 1} of ${path}`;
    const only = { [path]: hunk === null ? null : [hunk] };
    return h(
      "span",
      { class: "parts" },
      actionButton("Apply", { "aria-label": `Apply ${what}`, dataset: { applyPart: "" } }, () => this.parts.applyPart(only, what)),
      actionButton("Discard…", { "aria-label": `Discard ${what}`, dataset: { discardPart: "" } }, () => this.parts.discardPart(only, what)),
    );
  }

  open(opened) {
    this.body.hidden = !opened;
    this.toggle.setAttribute("aria-expanded", String(opened));
    if (!opened || this.#chunks.length) return;
    this.#draw();
  }

  showEditor() {
    const first = this.lines.find((line) => line[0] === "add")?.[3] ?? 1;
    const link = this.file.kind === "deleted" || this.root === null ? null : editorLink(this.root, this.file.path, first);
    this.editor.hidden = !link;
    if (link) this.editor.href = link;
  }

  /** The element of a line of the new file; of the file itself where there is none. */
  reveal(number) {
    this.open(true);
    const index = this.lines.findIndex((line) => line[3] === number);
    return index < 0 ? this.element : this.#row(index) ?? this.element;
  }

  /** The comments anew, each below its last line. A comment that no longer fits is only in the list of all. */
  showComments() {
    for (const shown of this.body.querySelectorAll(".comment.kept")) shown.remove();
    this.#showDrafts();
    for (const comment of this.comments.of(this.file.path)) {
      const index = this.lines.findIndex((line) => CODE.has(line[0]) && numberOn(line, comment.side) === comment.to && comment.quote.endsWith(line[1]));
      if (index >= 0) below(this.#row(index))?.after(this.#kept(comment));
    }
  }

  // --- lines -------------------------------------------------------------------------------------------------------

  #draw() {
    this.#chunks = [];
    this.body.replaceChildren();
    const rows = this.split ? pairs(this.lines) : this.lines.map((_, index) => [index]);
    for (let at = 0; at < rows.length; at += CHUNK) {
      const part = rows.slice(at, at + CHUNK);
      const element = h("div", { class: "chunk" });
      element.style.setProperty("--rows", part.length);
      this.#chunks.push({ element, rows: part, filled: false });
      this.body.append(element);
    }
    if (this.file.missing) this.body.append(h("p", { class: "missing" }, `${count(this.file.missing, "line is", "lines are")} not shown here, or not to the end.`));
    if (!this.#chunks.length) return;
    this.#fill(this.#chunks[0]);
    const first = this.body.querySelector(".no");
    if (first) first.tabIndex = 0;
    slowly([...this.#chunks.slice(1).map((chunk) => () => this.#fill(chunk)), () => this.showComments()]);
  }

  #fill(chunk) {
    if (chunk.filled) return;
    chunk.filled = true;
    const { lines } = this;
    chunk.element.append(
      ...chunk.rows.map((row) =>
        this.split && row.length > 1 ? h("div", { class: "two" }, row.map((index, side) => (index === null ? h("div", { class: "line none" }) : this.#line(lines[index], index, ["old", "new"][side])))) : this.#line(lines[row[0]], row[0]),
      ),
    );
  }

  #line(line, index, side = null) {
    const [kind, text, before, after, pieces] = line;
    if (kind === "hunk") return this.#hunk(line, index);
    if (!CODE.has(kind)) return h("div", { class: `line whole ${kind}` }, h("code", {}, text || " "));
    const numbers = side === "old" ? [before] : side === "new" ? [after] : [before, after];
    const number = h("button", { type: "button", class: "no", tabindex: "-1", disabled: !this.commentable, "aria-label": `Comment on ${linesOf(placeOf(line))}`, dataset: { number: String(numbers.findLast((one) => one != null) ?? "").padStart(4), numbers: numbers.map((one) => String(one ?? "").padStart(5)).join("") } });
    return h("div", { class: `line ${kind}`, dataset: { line: index } }, number, h("code", {}, text[0], ...codePieces(text.slice(1), pieces)));
  }

  #hunk(line, index) {
    const { text, hunk, hides } = line[5];
    const more = hides ? actionButton("↕", { class: "expand", "aria-label": `Show more lines ${text ? "before" : "after"} this`, title: "Show more lines" }, () => this.#expand(index)) : null;
    const parts = hunk !== null && this.file.kind === "modified" ? this.#partButtons(this.file.path, hunk) : null;
    return h("div", { class: "line whole hunk", tabindex: "-1", dataset: { hunk: hunk ?? "" } }, more, h("code", {}, text || " "), parts);
  }

  /** Show lines that the change leaves out, before a hunk or at the end. */
  async #expand(index) {
    const { path, oldPath } = this.file;
    this.#whole ??= (await get(sessionPath(this.comments.sessionId, "diff", "file"), { path, oldPath, digest: this.digest })).lines.filter((line) => CODE.has(line[0]));
    const [from, to] = [this.lines.slice(0, index).findLast((line) => line[3] !== null && line[3] !== undefined)?.[3] ?? 0, this.lines.slice(index).find((line) => line[3] !== null && line[3] !== undefined)?.[3] ?? Infinity];
    const hidden = this.#whole.filter((line) => line[0] === "same" && line[3] > from && line[3] < to);
    const shown = hidden.length <= GAP ? hidden : to === Infinity ? hidden.slice(0, GAP / 2) : hidden.slice(-GAP / 2);
    const [row, left] = [this.lines[index], hidden.length > shown.length];
    const kept = [...row.slice(0, 5), { ...row[5], hides: left }];
    if (to === Infinity) this.lines.splice(index, 1, ...shown, ...(left ? [kept] : []));
    else this.lines.splice(index, 1, ...(row[5].hunk === null && !left ? [] : [kept]), ...shown);
    this.#draw();
    this.showComments();
    this.toggle.focus({ preventScroll: true });
  }

  /** The element of a line, drawn now if it was to be drawn later. */
  #row(index) {
    const chunk = this.#chunks.find(({ rows }) => rows.some((row) => row.includes(index)));
    if (!chunk) return null;
    this.#fill(chunk);
    return [...chunk.element.querySelectorAll(`[data-line="${index}"]`)].at(-1);
  }

  // --- comments ----------------------------------------------------------------------------------------------------

  #onClick(event) {
    const number = event.target.closest(".no");
    if (!number) return;
    const index = Number(number.parentElement.dataset.line);
    const from = event.shiftKey && this.#anchor !== null ? this.#anchor : index;
    this.#anchor = from;
    this.#ask(Math.min(from, index), Math.max(from, index));
  }

  #onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches(".no")) return;
    const all = [...this.body.querySelectorAll(".no")];
    const next = all[all.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    if (this.#anchor === null || !event.shiftKey) this.#anchor = Number((event.shiftKey ? event.target : next).parentElement.dataset.line);
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  /** Comments that were begun, here or in another window, each open for editing. */
  #showDrafts() {
    if (!this.commentable) return;
    for (const place of draftsOf(`comment:${this.comments.sessionId}:${this.file.path}:`)) {
      const [from, to] = place.split("-").map((key) => this.lines.findIndex((line) => keyOf(line) === key));
      const isThere = 0 <= from && from <= to;
      if (isThere && !this.body.querySelector(`.comment.asked[data-place="${place}"]`)) this.#ask(from, to, { focus: false });
    }
  }

  #ask(from, to, { focus = true } = {}) {
    const at = `${keyOf(this.lines[from])}-${keyOf(this.lines[to])}`;
    const key = `comment:${this.comments.sessionId}:${this.file.path}:${at}`;
    const open = this.body.querySelector(`.comment.asked[data-place="${at}"] textarea`);
    if (open) {
      open.focus();
      return;
    }
    for (const asked of document.querySelectorAll(".comment.asked")) if (!asked.querySelector("textarea").value.trim()) asked.remove();
    const lines = this.lines.slice(from, to + 1).filter((line) => CODE.has(line[0]));
    const [first, last] = [placeOf(lines[0]), placeOf(lines.at(-1))];
    const side = first.side === last.side ? first.side : "new";
    const place = { path: this.file.path, side, from: numberOn(lines[0], side) ?? first.from, to: numberOn(lines.at(-1), side) ?? last.to, quote: lines.map((line) => line[1]).join("\n") };
    const id = freshId("comment");
    const field = h("textarea", { id, rows: 3, placeholder: "What should the agent change here?" });
    keepsDraft(field, key);
    const form = h(
      "form",
      { class: "comment asked", dataset: { place: at } },
      h("label", { for: id }, `Comment on ${linesOf(place)}`),
      field,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => close({ forget: true }) }, "Cancel"), h("button", { type: "submit", class: "primary" }, "Add comment")),
    );
    const number = this.#row(to).querySelector(".no");
    const close = ({ forget = false } = {}) => {
      if (forget) keepDraft(key, "");
      form.remove();
      number.focus();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) this.comments.add({ ...place, text: field.value.trim() });
      close({ forget: true });
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    below(this.#row(to)).after(form);
    if (focus) field.focus();
  }

  #kept(comment) {
    const about = linesOf(comment);
    const said = h("p", { class: "said" }, comment.text);
    const edit = () => {
      const field = h("textarea", { rows: 3, "aria-label": `Comment on ${about}` });
      field.value = comment.text;
      const done = () => this.comments.change(comment.id, { text: field.value.trim() || comment.text });
      said.replaceWith(h("div", { class: "editing" }, field, h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => this.showComments() }, "Cancel"), h("button", { type: "button", class: "primary", dataset: { keep: "" }, onclick: done }, "Save"))));
      field.focus();
    };
    return h("div", { class: "comment kept", dataset: { state: stateOf(comment) } }, h("p", { class: "quiet" }, `Comment on ${about}${STATES[stateOf(comment)]} `, comment.sent ? null : h("button", { type: "button", class: "link", "aria-label": `Edit the comment on ${about}`, onclick: edit }, "Edit"), " ", commentButtons(this.comments, comment, about)), said);
  }
}

const STATES = { unsent: "", sent: ", sent", addressed: ", addressed" };

function stateOf({ sent, addressed }) {
  return addressed ? "addressed" : sent ? "sent" : "unsent";
}

/** Mark a comment that was sent as addressed, or delete it. */
export function commentButtons(comments, comment, about) {
  const mark = (words, addressed) => h("button", { type: "button", class: "link", "aria-label": `${words}: the comment on ${about}`, onclick: () => comments.change(comment.id, { addressed }) }, words);
  return [
    comment.sent ? (comment.addressed ? mark("Reopen", false) : mark("Mark as addressed", true)) : null,
    " ",
    h("button", { type: "button", class: "link", "aria-label": `Delete the comment on ${about}`, onclick: () => comments.remove(comment.id) }, "Delete"),
  ];
}

/** The lines of a file, each hunk's line with its number; and one behind the last, for what follows it. */
function withHunks(file, hides) {
  let hunk = -1;
  const lines = file.lines.map((line) => (line[0] === "hunk" ? [...line.slice(0, 4), null, { text: line[1], hunk: (hunk += 1), hides: hides && file.kind !== "added" && file.kind !== "deleted" }] : line));
  const ends = hides && hunk >= 0 && !file.missing && file.kind !== "added" && file.kind !== "deleted";
  return ends ? [...lines, ["hunk", "", null, null, null, { text: "", hunk: null, hides: true }]] : lines;
}

/** A key of a line, valid as long as the change is the same. */
function keyOf([kind, , before, after]) {
  return CODE.has(kind) ? (after === null ? `o${before}` : `n${after}`) : null;
}

/** Where a line is: in the new file if it is there, else in the old one. */
function placeOf([, , before, after]) {
  const [side, number] = after === null ? ["old", before] : ["new", after];
  return { side, from: number, to: number };
}

/** The element above a comment on a line: the line, or it and the one beside it. */
function below(line) {
  return line?.closest(".two") ?? line;
}

function numberOn([, , before, after], side) {
  return side === "old" ? before : after;
}

/** Side by side: what was removed beside what was added in its place. A pair is the index of each, or null. */
function pairs(lines) {
  const rows = [];
  let [removed, added] = [[], []];
  const flush = () => {
    for (let at = 0; at < Math.max(removed.length, added.length); at += 1) rows.push([removed[at] ?? null, added[at] ?? null]);
    [removed, added] = [[], []];
  };
  for (const [index, [kind]] of lines.entries()) {
    if (kind === "remove") {
      if (added.length) flush();
      removed.push(index);
    } else if (kind === "add") added.push(index);
    else {
      flush();
      rows.push(kind === "same" ? [index, index] : [index]);
    }
  }
  flush();
  return rows;
}
