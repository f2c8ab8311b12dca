// The keys, in a dialog.

import { showDialog } from "../dialog.js";
import { h } from "../dom.js";

const KEYS = [
  ["j, k", "to the next, the previous row"],
  ["Enter", "open the row"],
  ["y", "approve the question that has the focus; the first press gives it the focus"],
  ["s, a", "approve it for this session, always"],
  ["n", "deny it, with a reason; without a question on the page, start a new session"],
  ["x", "interrupt the turn, after a question"],
  ["f, F", "in changes: to the next, the previous file"],
  ["h, H", "in changes: to the next, the previous hunk"],
  ["v", "in changes: mark the file as viewed"],
  ["m", "write a message to the session"],
  ["/", "search"],
  ["Ctrl-K", "go to any page or session"],
  ["Esc", "back"],
  ["?", "this help"],
];

export function openHelp() {
  const close = h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close");
  const content = [
    h("dl", { class: "keys" }, KEYS.map(([keys, what]) => [h("dt", {}, keys.split(", ").map((key) => h("kbd", {}, key))), h("dd", {}, what)])),
    h("p", { class: "quiet" }, "If a question is open in several places, the first answer wins."),
    h("div", { class: "buttons" }, close),
  ];
  const dialog = showDialog("Keys", content, { focused: close });
}
