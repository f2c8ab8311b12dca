// When an answer counts: only after its question has been on screen for a moment.
//
// A key or a click that was meant for something else must never answer. So a press reaches an answer only if the answer
// was on screen for MOMENT, in a window that had the focus and with nothing over it. A click also needs it to have stayed in its
// place (nobody aims at what slides under the pointer). A key needs the question to have had the focus, and to come alone:
// a person who types is not answering.
//
// This file needs no help of the cards: every `.question` is guarded, whatever it contains.

import { h } from "./dom.js";

export const MOMENT = 600; // milliseconds

/** The key of each answer, as in the terminal. */
export const ANSWER_KEYS = { __proto__: null, approve: "y", accept: "y", approve_session: "s", approve_always: "a", deny: "n", decline: "n" };

const LOOK_EVERY = 100;
const HINT_STAYS = 5000;

const GUARDED = ".question, dialog.confirm";
const ANSWERS = ".question button, dialog.confirm [data-yes]";
const TOO_EARLY = "That came too soon to be meant for this, so nothing was done. Try again.";

const clocks = new WeakMap();
let lastKey = { time: -Infinity, before: -Infinity };

export function guardAnswers() {
  let asked = false;
  // In a frame, so that what has not been drawn yet does not count as seen; a hidden page has none.
  setInterval(() => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      look(performance.now());
    });
  }, LOOK_EVERY);
  for (const type of ["blur", "focus"]) window.addEventListener(type, forget);
  document.addEventListener("visibilitychange", forget);
  document.addEventListener("keydown", noteKey, { capture: true });
  document.addEventListener("click", guard, { capture: true });
}

/** Whether this key press may answer with this button. If not, the card says so and comes into view. */
export function mayPress(button, event) {
  const card = button.closest(GUARDED);
  if (cameAlone(event) && hasBeen("focused", card, event)) return true;
  button.scrollIntoView({ block: "nearest" });
  hint(card, TOO_EARLY);
  return false;
}

/** A remark at the end of a card. */
export function hint(card, words) {
  card.querySelector(":scope > .hint-early")?.remove();
  const shown = h("p", { class: "hint-early quiet", role: "status" }, words);
  card.append(shown);
  setTimeout(() => shown.remove(), HINT_STAYS);
}

function look(now) {
  for (const card of document.querySelectorAll(GUARDED)) {
    const clock = clocks.get(card) ?? { seen: Infinity, placed: now, focused: Infinity, place: "" };
    const box = firstAnswer(card)?.getBoundingClientRect();
    const place = box ? `${Math.round(box.x)} ${Math.round(box.y)}` : "";
    if (place !== clock.place) Object.assign(clock, { place, placed: now });
    clock.seen = isOnScreen(card, box) ? Math.min(clock.seen, now) : Infinity;
    clock.focused = card.contains(document.activeElement) ? Math.min(clock.focused, now) : Infinity;
    clocks.set(card, clock);
    card.dataset.settled = now - Math.max(clock.seen, clock.placed) >= MOMENT ? "yes" : "no";
  }
}

function firstAnswer(card) {
  return card.querySelector(card.matches("dialog") ? "[data-yes]" : "button");
}

/** Whether a click in the middle of the first answer would reach it: it is in view, and nothing covers it. */
function isOnScreen(card, box) {
  if (!box?.width || document.visibilityState !== "visible" || !document.hasFocus()) return false;
  return card.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2));
}

function forget() {
  for (const card of document.querySelectorAll(GUARDED)) {
    clocks.delete(card);
    card.dataset.settled = "no";
  }
}

function noteKey(event) {
  if (["Shift", "Control", "Alt", "Meta", "AltGraph", "CapsLock"].includes(event.key)) return;
  lastKey = { time: event.timeStamp, before: lastKey.time };
  // A held Enter presses a button again and again.
  if (event.repeat && ["Enter", " "].includes(event.key) && event.target.closest?.(ANSWERS)) event.preventDefault();
}

function guard(event) {
  const button = event.target.closest?.(ANSWERS);
  if (!button || !event.isTrusted) return; // a click of the page itself: its key was checked before
  const card = button.closest(GUARDED);
  const active = document.activeElement;
  const byKey = event.detail === 0 && card.contains(active); // on the button, or Enter in a field of the same form
  const writes = byKey && active.matches("input, textarea, select");
  if (byKey ? (writes || cameAlone(event)) && hasBeen("focused", card, event) : hasBeen("placed", card, event)) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  button.scrollIntoView({ block: "nearest" }); // Enter in a field sends a form whose button may be out of view
  hint(card, TOO_EARLY);
}

/** Whether the card has been on screen, and focused or in its place, for long enough when this happened. */
function hasBeen(what, card, event) {
  look(event.timeStamp);
  const clock = clocks.get(card);
  return event.timeStamp - Math.max(clock.seen, clock[what]) >= MOMENT;
}

function cameAlone(event) {
  return event.timeStamp - lastKey.before >= MOMENT;
}
