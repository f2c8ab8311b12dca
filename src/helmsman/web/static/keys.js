// The keyboard. Letters do nothing while one writes, and nothing while a dialog is open.

import { openHelp } from "/views/help.js";
import { openNewSession } from "/views/new-session.js";

export function listenToKeys({ list, back, interrupt }) {
  const acts = {
    j: () => move(1),
    k: () => move(-1),
    a: () => answer(["approve", "accept"]),
    d: () => answer(["deny", "decline"]),
    x: interrupt,
    m: () => document.querySelector(".composer textarea")?.focus(),
    n: openNewSession,
    "/": () => search(list),
    "?": openHelp,
    Escape: () => leave(back),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]") || document.body.dataset.view === "login") return;
    if (isWriting(event.target) && event.key !== "Escape") return;
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
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

/** Give an answer to the question in view. Of several, the first one is only shown to be meant, and answered by the next press. */
function answer(wanted) {
  const cards = [...document.querySelectorAll(".question")].filter((card) => card.checkVisibility() && !card.inert);
  const focused = cards.find((card) => card.contains(document.activeElement));
  if (!focused && cards.length > 1) {
    cards[0].focus();
    return;
  }
  const card = focused ?? cards[0];
  const selector = wanted.map((name) => `[data-answer="${name}"]`).join(", ");
  card?.querySelector(selector)?.click();
}

function search(list) {
  if (!["home", "session"].includes(document.body.dataset.view)) location.hash = "#/";
  requestAnimationFrame(() => {
    list.field.focus();
    list.field.select();
  });
}

function leave(back) {
  if (isWriting(document.activeElement)) document.activeElement.blur();
  else back();
}
