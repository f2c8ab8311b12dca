// Takes a session back to before a turn: shows what would be lost, and does exactly that after a yes.

import { get, post, sessionPath, sessionPlace } from "../api.js";
import { confirmed } from "../dialog.js";
import { actionButton, h, toast } from "../dom.js";

const PARTS = [
  ["", "Files and conversation"],
  ["files", "Only the files"],
  ["conversation", "Only the conversation"],
  ["undo", "Undo the last rewind"],
];

/** The button of a turn. */
export function rewindButton(sessionId, turn) {
  return actionButton("Rewind…", { class: "rewind", title: `Take the session back to before turn ${turn.number}` }, () => rewind(sessionId, turn.number));
}

async function rewind(sessionId, to) {
  const path = sessionPath(sessionId, "rewind");
  const choice = h("select", { "aria-label": "What is taken back" }, PARTS.map(([value, label]) => h("option", { value }, label)));
  const told = h("pre", { class: "rewind-preview", tabindex: "0", "aria-live": "polite" }, "…");
  const wanted = () => (choice.value === "undo" ? { undo: true } : { to, part: choice.value || null });
  let shown = null;
  const allow = (isAllowed) => {
    const yes = told.closest("dialog")?.querySelector("[data-yes]");
    if (yes) yes.disabled = !isAllowed;
  };
  const show = async () => {
    const asked = choice.value;
    shown = null;
    allow(false); // until the consequences are on screen
    const found = await get(path, wanted()).catch((error) => ({ lines: [error.message] }));
    if (choice.value !== asked) return; // another turn was chosen in the meantime
    told.textContent = found.lines.join("\n");
    shown = found.digest && !found.nothing ? found : null;
    allow(Boolean(shown));
  };
  choice.addEventListener("change", show);
  await show();
  const asking = confirmed({ title: `Rewind to before turn ${to}?`, about: [choice, told], yes: "Rewind" });
  allow(Boolean(shown));
  if (!(await asking) || !shown) return;
  const done = await post(path, { ...wanted(), digest: shown.digest });
  toast(done.lines[0]);
  if (done.undo && done.conversation) location.hash = sessionPlace(done.conversation);
}
