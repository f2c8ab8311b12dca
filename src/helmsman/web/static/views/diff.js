// Unified diffs with line numbers. The signs stay in the text, so that colour is not the only thing that tells.

import { h } from "/dom.js";
import { count } from "/format.js";

const LINES_AT_ONCE = 400;
const HEADER = /^(diff --git|index |--- |\+\+\+ |new file|deleted file|old mode|new mode|similarity|rename )/;
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

/** A file's whole content as what was added or removed, for Codex does not say more of a new or a removed file. */
export function asDiff(kind, content) {
  if (!["add", "delete"].includes(kind) || /^(@@|diff |--- )/m.test(content)) return content;
  const lines = content.replace(/\n$/, "").split("\n");
  const sign = kind === "add" ? "+" : "-";
  const hunk = kind === "add" ? `@@ -0,0 +1,${lines.length} @@` : `@@ -1,${lines.length} +0,0 @@`;
  return [hunk, ...lines.map((line) => sign + line)].join("\n");
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
  const [old, now] = [before, after].map((number) => String(number ?? "").padStart(4));
  const dataset = { numbers: `${old} ${now}`, number: now.trim() ? now : old }; // both, and one where there is little room
  return h("span", { class: `line ${kind}`, dataset }, `${text || " "}\n`);
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
    } else if (before === null && HEADER.test(text)) {
      continue; // the heading has said it
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
