// Unified diffs with line numbers. The signs stay in the text, so that colour is not the only thing that tells.

import { h } from "/dom.js";
import { count } from "/format.js";

const LINES_AT_ONCE = 400;
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

/** The files of a diff, each with its own part of it. */
export function diffFiles(diff) {
  const parts = diff.split(/^(?=diff --git )/m).filter((part) => part.trim());
  return parts.map((part) => {
    const lines = part.split("\n");
    const named = /^diff --git (?:"?a\/(.*?)"?) (?:"?b\/(.*?)"?)$/.exec(lines[0]);
    const plus = /^\+\+\+ (?:b\/)?(.*)$/m.exec(part);
    const path = named?.[2] ?? (plus && plus[1] !== "/dev/null" ? plus[1] : /^--- (?:a\/)?(.*)$/m.exec(part)?.[1]);
    return { path: path ?? "changes", diff: part, ...tally(lines) };
  });
}

function tally(lines) {
  const changed = (sign) => lines.filter((line) => line.startsWith(sign) && !line.startsWith(sign.repeat(3))).length;
  return { added: changed("+"), removed: changed("-") };
}

export function stat(added, removed) {
  return h(
    "span",
    { class: "stat" },
    added ? h("span", { class: "added" }, `+${added}`) : null,
    removed ? h("span", { class: "removed" }, `−${removed}`) : null,
  );
}

/** One file's diff as lines; a long one shows its beginning first. */
export function diffLines(diff, label) {
  const lines = numbered(diff);
  const shown = h("pre", { class: "diff", tabindex: "0", role: "group", "aria-label": label });
  const add = (from, to) => shown.append(...lines.slice(from, to).map(lineElement));
  add(0, LINES_AT_ONCE);
  if (lines.length <= LINES_AT_ONCE) return shown;
  const more = h("button", { type: "button", class: "more" }, `Show all ${count(lines.length, "line")}`);
  more.addEventListener("click", () => {
    more.remove();
    add(LINES_AT_ONCE, lines.length);
  });
  return h("div", {}, shown, more);
}

function lineElement({ kind, text, before, after }) {
  return h("span", { class: `line ${kind}`, dataset: { before: before ?? "", after: after ?? "" } }, `${text || " "}\n`);
}

function numbered(diff) {
  const lines = [];
  let before = null;
  let after = null;
  for (const text of diff.replace(/\n$/, "").split("\n")) {
    const hunk = HUNK.exec(text);
    if (hunk) {
      [before, after] = [Number(hunk[1]), Number(hunk[2])];
      lines.push({ kind: "hunk", text });
    } else if (/^(diff --git|index |--- |\+\+\+ |new file|deleted file|similarity|rename )/.test(text) && !inHunk(before)) {
      continue; // the heading has said it
    } else if (text.startsWith("diff --git")) {
      before = after = null;
    } else if (text.startsWith("+")) {
      lines.push({ kind: "add", text, after: after === null ? null : after++ });
    } else if (text.startsWith("-")) {
      lines.push({ kind: "remove", text, before: before === null ? null : before++ });
    } else {
      const numbers = before === null ? {} : { before: before++, after: after++ };
      lines.push({ kind: text.startsWith("\\") ? "hunk" : "same", text, ...numbers });
    }
  }
  return lines;
}

function inHunk(before) {
  return before !== null;
}
