// Diffs with line numbers. The server has parsed them: a line is [kind, text, number before, number after]. The signs
// stay in the text, so that the difference does not depend on colour alone.

import { h } from "../dom.js";
import { count } from "../format.js";

const LINES_AT_ONCE = 400;
const VERBS = { added: "new", deleted: "removed", renamed: "moved", copied: "copied", mode: "mode", modified: "changed" };

/** What happened to a file, in a heading; `shorten` may make its path relative. */
export function fileHeading(file, shorten = (path) => path) {
  const [path, oldPath] = [file.path, file.oldPath].map((each) => each && shorten(each));
  return [
    h("code", { class: "mono path", title: file.path }, oldPath ? `${oldPath} → ${path}` : path || "changes"),
    h("span", { class: `kind ${file.kind}` }, VERBS[file.kind] ?? file.kind),
    stat(file.added, file.removed),
  ];
}

export function stat(added, removed) {
  return h(
    "span",
    { class: "stat" },
    added ? h("span", { class: "added" }, `+${added}`) : null,
    removed ? h("span", { class: "removed" }, `−${removed}`) : null,
  );
}

/** One file's lines; a long one is shortened at first, unless the user must see all of it. */
export function diffLines(file, { all = false } = {}) {
  const shown = h("pre", { class: "diff", tabindex: "0", role: "group", "aria-label": `Changes of ${file.path}` });
  const add = (from, to) => shown.append(...file.lines.slice(from, to).map(lineElement));
  add(0, all ? file.lines.length : LINES_AT_ONCE);
  const missing = file.missing ? h("p", { class: "missing" }, `${count(file.missing, "line is", "lines are")} not shown here, or not to the end.`) : null;
  if (all || file.lines.length <= LINES_AT_ONCE) return missing ? h("div", {}, shown, missing) : shown;
  const more = h("button", { type: "button", class: "more" }, `Show all ${count(file.lines.length, "line")}`);
  more.addEventListener("click", () => {
    more.remove();
    add(LINES_AT_ONCE, file.lines.length);
  });
  return h("div", {}, shown, more, missing);
}

/** A line's text behind its sign, in the pieces of the server: [[length, class], …]. */
export function codePieces(text, pieces) {
  if (!pieces) return [text];
  let at = 0;
  const shown = pieces.map(([length, kind]) => {
    const piece = text.slice(at, (at += length));
    return kind ? h("span", { class: kind }, piece) : piece;
  });
  return [...shown, text.slice(at)];
}

function lineElement([kind, text, before, after, pieces]) {
  const [old, now] = [before, after].map((number) => String(number ?? "").padStart(4));
  const dataset = { numbers: `${old} ${now}`, number: now.trim() ? now : old }; // both, and one where there is little room
  return h("span", { class: `line ${kind}`, dataset }, text.slice(0, 1) || " ", codePieces(text.slice(1), pieces), "\n");
}
