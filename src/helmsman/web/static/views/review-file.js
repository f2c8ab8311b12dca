// One file under review: its lines unified or side by side, words and syntax in colours, comments where they belong. Lines are
// drawn in chunks, the first at once and the others when there is time; what is out of sight costs no layout.

import { copyButton } from "../copy.js";
import { editorLink } from "../editor.js";
import { freshId, h } from "../dom.js";
import { draftsOf, keepDraft, keepsDraft } from "../drafts.js";
import { count } from "../format.js";
import { slowly } from "../slowly.js";
import { linesOf } from "../comments.js";
import { codePieces, fileHeading } from "./diff.js";

const CHUNK = 60;
const LARGE = 400;
const CODE = new Set(["add", "remove", "same"]);

export class ReviewFile {
  #chunks = []; // {element, rows, filled}
  #anchor = null;

  /** `split`: side by side. `commentable`: whether somebody can be told. */
  constructor(file, { split, root, comments, commentable }) {
    Object.assign(this, { file, split, root, comments, commentable });
    const bodyId = freshId("file");
    this.toggle = h("button", { type: "button", class: "fold", "aria-expanded": "false", "aria-controls": bodyId, onclick: () => this.open(this.body.hidden) }, fileHeading(file));
    this.editor = h("a", { class: "editor", hidden: true }, "Open in editor");
    this.head = h("header", { class: "file-head" }, this.toggle, this.editor, copyButton("path", () => file.path));
    this.body = h("div", { id: bodyId, class: "lines", role: "group", "aria-label": `Changes of ${file.path}`, hidden: true });
    this.element = h("section", { class: "review-file", dataset: { path: file.path } }, this.head, this.body);
    this.body.addEventListener("click", (event) => this.#onClick(event));
    this.body.addEventListener("keydown", (event) => this.#onKey(event));
    this.showEditor();
    if (file.lines.length <= LARGE && file.kind !== "deleted") this.open(true);
    else this.head.append(h("span", { class: "quiet folded" }, file.kind === "deleted" ? "folded: the file is removed" : `folded: ${count(file.lines.length, "line")}`));
  }

  open(opened) {
    this.body.hidden = !opened;
    this.toggle.setAttribute("aria-expanded", String(opened));
    if (!opened || this.#chunks.length) return;
    this.#draw();
  }

  showEditor() {
    const first = this.file.lines.find((line) => line[0] === "add")?.[3] ?? 1;
    const link = this.file.kind === "deleted" || this.root === null ? null : editorLink(this.root, this.file.path, first);
    this.editor.hidden = !link;
    if (link) this.editor.href = link;
  }

  /** The element of a line of the new file; of the file itself where there is none. */
  reveal(number) {
    this.open(true);
    const index = this.file.lines.findIndex((line) => line[3] === number);
    return index < 0 ? this.element : this.#row(index) ?? this.element;
  }

  /** The comments anew, each below its last line. What no longer fits any is only in the list of all. */
  showComments() {
    for (const shown of this.body.querySelectorAll(".comment.kept")) shown.remove();
    this.#showDrafts();
    for (const comment of this.comments.of(this.file.path)) {
      const index = this.file.lines.findIndex((line) => CODE.has(line[0]) && numberOn(line, comment.side) === comment.to && comment.quote.endsWith(line[1]));
      if (index >= 0) below(this.#row(index))?.after(this.#kept(comment));
    }
  }

  // --- lines -------------------------------------------------------------------------------------------------------

  #draw() {
    const rows = this.split ? pairs(this.file.lines) : this.file.lines.map((_, index) => [index]);
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
    const { lines } = this.file;
    chunk.element.append(
      ...chunk.rows.map((row) =>
        this.split && row.length > 1 ? h("div", { class: "two" }, row.map((index, side) => (index === null ? h("div", { class: "line none" }) : this.#line(lines[index], index, ["old", "new"][side])))) : this.#line(lines[row[0]], row[0]),
      ),
    );
  }

  #line(line, index, side = null) {
    const [kind, text, before, after, pieces] = line;
    if (!CODE.has(kind)) return h("div", { class: `line whole ${kind}` }, h("code", {}, text || " "));
    const numbers = side === "old" ? [before] : side === "new" ? [after] : [before, after];
    const number = h("button", { type: "button", class: "no", tabindex: "-1", disabled: !this.commentable, "aria-label": `Comment on ${linesOf(placeOf(line))}`, dataset: { number: String(numbers.findLast((one) => one != null) ?? "").padStart(4), numbers: numbers.map((one) => String(one ?? "").padStart(5)).join("") } });
    return h("div", { class: `line ${kind}`, dataset: { line: index } }, number, h("code", {}, text[0], ...codePieces(text.slice(1), pieces)));
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

  /** Comments that were begun, here or in another window, each open for going on. */
  #showDrafts() {
    if (!this.commentable) return;
    for (const place of draftsOf(`comment:${this.comments.sessionId}:${this.file.path}:`)) {
      const [from, to] = place.split("-").map(Number);
      const isThere = from <= to && this.file.lines[to] && CODE.has(this.file.lines[from][0]) && CODE.has(this.file.lines[to][0]);
      if (isThere && !this.body.querySelector(`.comment.asked[data-place="${place}"]`)) this.#ask(from, to, { focus: false });
    }
  }

  #ask(from, to, { focus = true } = {}) {
    const key = `comment:${this.comments.sessionId}:${this.file.path}:${from}-${to}`;
    const open = this.body.querySelector(`.comment.asked[data-place="${from}-${to}"] textarea`);
    if (open) {
      open.focus();
      return;
    }
    for (const asked of document.querySelectorAll(".comment.asked")) if (!asked.querySelector("textarea").value.trim()) asked.remove();
    const lines = this.file.lines.slice(from, to + 1).filter((line) => CODE.has(line[0]));
    const [first, last] = [placeOf(lines[0]), placeOf(lines.at(-1))];
    const side = first.side === last.side ? first.side : "new";
    const place = { path: this.file.path, side, from: numberOn(lines[0], side) ?? first.from, to: numberOn(lines.at(-1), side) ?? last.to, quote: lines.map((line) => line[1]).join("\n") };
    const id = freshId("comment");
    const field = h("textarea", { id, rows: 3, placeholder: "What should the agent change here?" });
    keepsDraft(field, key);
    const form = h(
      "form",
      { class: "comment asked", dataset: { place: `${from}-${to}` } },
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
    const remove = h("button", { type: "button", class: "link", "aria-label": `Remove the comment on ${linesOf(comment)}`, onclick: () => this.comments.remove(comment.id) }, "Remove");
    return h("div", { class: "comment kept" }, h("p", { class: "quiet" }, `Comment on ${linesOf(comment)} `, remove), h("p", { class: "said" }, comment.text));
  }
}

/** Where a line is: in the new file if it is there, else in the old one. */
function placeOf([, , before, after]) {
  const [side, number] = after === null ? ["old", before] : ["new", after];
  return { side, from: number, to: number };
}

/** What a comment on a line stands below: the line, or it and the one beside it. */
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
