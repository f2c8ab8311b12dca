// The keyboard. Letters do nothing in a text field, and nothing while a dialog is open. A held key acts once.

import { ANSWER_KEYS, hint, mayPress } from "./answering.js";
import { openHelp } from "./views/help.js";
import { openNewSession } from "./views/new-session.js";
import { openPalette } from "./views/palette.js";

const MAY_REPEAT = new Set(["j", "k", "f", "F", "h", "H"]);

/** `review` gives the review that is on the page, if one is. */
export function listenToKeys({ list, home, interrupt, review }) {
  const acts = {
    j: () => move(1),
    k: () => move(-1),
    y: answer,
    s: answer,
    a: answer,
    n: (event) => answer(event, openNewSession),
    f: () => review()?.step(".review-file", 1),
    F: () => review()?.step(".review-file", -1),
    h: () => review()?.step(".line.hunk[data-hunk]:not([data-hunk=''])", 1),
    H: () => review()?.step(".line.hunk[data-hunk]:not([data-hunk=''])", -1),
    v: () => review()?.toggleViewed(),
    x: interrupt,
    m: () => document.querySelector(".composer textarea")?.focus(),
    "/": () => search(list, home),
    "?": openHelp,
    Escape: () => leave(home),
  };
  const held = new Set();
  document.addEventListener("keyup", (event) => held.delete(event.code || event.key));
  window.addEventListener("blur", () => held.clear()); // the keyup goes to another window
  document.addEventListener("keydown", (event) => {
    const again = event.repeat || held.has(event.code || event.key);
    held.add(event.code || event.key);
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key === "k") {
      event.preventDefault();
      if (!document.querySelector("dialog[open]") && document.body.dataset.view !== "login") openPalette([["New session", openNewSession], ["Keys and help", openHelp]]);
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]") || document.body.dataset.view === "login") return;
    if (isWriting(event.target) && event.key !== "Escape") return;
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    if (!again || MAY_REPEAT.has(event.key)) act(event);
  });
}

function isWriting(target) {
  return target.matches?.("input, textarea, select, [contenteditable]");
}

function move(step) {
  const rows = [...document.querySelectorAll("[data-row]")].filter((row) => row.checkVisibility());
  if (!rows.length) return;
  const at = rows.findIndex((row) => row === document.activeElement);
  const open = rows.findIndex((row) => row.getAttribute("aria-current") === "page");
  const from = at >= 0 ? at : open;
  const next = rows[Math.min(Math.max(from + step, 0), rows.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

/**
 * Give an answer to the question that has the focus. If none has it, the first one gets it, and the next press is the
 * answer. Without a question on the page, do `otherwise`.
 */
function answer(event, otherwise) {
  const cards = [...document.querySelectorAll(".question")].filter((card) => card.checkVisibility() && !card.inert);
  const wanted = Object.keys(ANSWER_KEYS).filter((name) => ANSWER_KEYS[name] === event.key);
  const selector = wanted.map((name) => `[data-answer="${name}"]`).join(", ");
  const focused = cards.find((card) => card.contains(document.activeElement));
  if (focused) {
    const button = focused.querySelector(selector);
    if (button && mayPress(button, event)) button.click();
  } else if (cards.length) {
    cards[0].focus();
    const isOffered = cards[0].querySelector(selector) !== null;
    hint(cards[0], isOffered ? `This question is selected. Press ${event.key} again to answer it.` : "This question is selected. Fill in its answer.");
  } else {
    otherwise?.();
  }
}

/** Take what is typed from now on: the field gets the focus before the next key is read. */
function search(list, home) {
  if (!list.field.checkVisibility()) home();
  list.field.focus();
  list.field.select();
}

function leave(home) {
  if (isWriting(document.activeElement)) document.activeElement.blur();
  else home();
}
