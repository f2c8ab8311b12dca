// Texts of agents. The server has turned them into HTML, with harmless elements only (web/markdown.py).

import { copyButton } from "../copy.js";
import { h } from "../dom.js";

/** Markdown, from an item's `text` and `html`. Without HTML, the plain text. */
export function prose({ text, html }) {
  const shown = h("div", { class: "prose" });
  if (html === undefined) {
    shown.append(h("p", {}, text));
    return shown;
  }
  const made = document.createElement("template");
  made.innerHTML = html;
  for (const block of made.content.querySelectorAll("pre")) {
    block.tabIndex = 0;
    block.className = "code";
    const frame = h("div", { class: "code-frame" });
    block.replaceWith(frame);
    frame.append(...[block, copyButton("code", () => block.textContent.replace(/\n$/, ""))].filter(Boolean));
  }
  for (const table of made.content.querySelectorAll("table")) {
    const frame = h("div", { class: "table-frame", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  shown.append(made.content);
  return shown;
}
