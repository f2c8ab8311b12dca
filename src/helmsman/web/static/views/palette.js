// The command palette (Ctrl-K): every page, session and action by a few letters.

import { sessionPlace } from "../api.js";
import { showDialog } from "../dialog.js";
import { freshId, h } from "../dom.js";
import { statusWord } from "../format.js";
import { store } from "../store.js";

const MOST = 12;

/** `actions` are [title, function]. */
export function openPalette(actions) {
  const listId = freshId("list");
  const field = h("input", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": listId, "aria-label": "Search pages, sessions and actions", autocomplete: "off" });
  const list = h("ul", { id: listId, class: "palette-list", role: "listbox", "aria-label": "Matches" });
  const pages = [...document.querySelectorAll(".places a")].map((link) => [link.textContent, () => (location.hash = link.hash)]);
  const sessions = [...store.running, ...store.recent].map((one) => [one.name ?? one.summary ?? one.sessionId, () => (location.hash = sessionPlace(one.sessionId)), `${one.sessionId.slice(-8)} ${one.status ? statusWord(one.status) : ""}`]);
  const all = [...actions, ...pages, ...sessions];
  let found = [];
  let at = 0;
  const show = () => {
    found = matching(all, field.value).slice(0, MOST);
    at = Math.max(0, Math.min(at, found.length - 1));
    list.replaceChildren(...found.map(([name, act, remark], place) => h("li", { id: `${listId}-${place}`, role: "option", "aria-selected": String(place === at), onclick: () => choose(act) }, h("span", {}, name), remark ? h("span", { class: "quiet mono" }, remark) : null)));
    if (found.length) field.setAttribute("aria-activedescendant", `${listId}-${at}`);
    else field.removeAttribute("aria-activedescendant");
  };
  const choose = (act) => {
    dialog.close();
    act();
  };
  field.addEventListener("input", () => {
    at = 0;
    show();
  });
  field.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) at += step;
    else if (event.key === "Enter" && found.length) choose(found[at][1]);
    else return;
    event.preventDefault();
    if (step) show();
  });
  const dialog = showDialog("Go to", [field, list], { kind: "palette", focused: field, isTitleHidden: true });
  show();
}

/** Those with all typed words in their name or remark. */
function matching(all, typed) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  return all.filter(([name, , remark = ""]) => words.every((word) => `${name} ${remark}`.toLowerCase().includes(word)));
}
