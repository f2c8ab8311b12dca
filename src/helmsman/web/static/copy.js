// Buttons that copy: code, a command, an answer, an id.

import { announce, h } from "./dom.js";

const SHOWN = 1500;

/** A button that copies what `text()` gives; none where the browser lets no page copy (plain HTTP from another machine). */
export function copyButton(what, text) {
  if (!navigator.clipboard) return null;
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy ${what}`, title: `Copy ${what}` }, "Copy");
  button.addEventListener("click", async (event) => {
    event.preventDefault(); // in a summary it would fold
    await navigator.clipboard.writeText(text()).then(() => say(button, "Copied"), () => say(button, "Not copied"));
  });
  return button;
}

function say(button, words) {
  button.textContent = words;
  announce(words);
  setTimeout(() => (button.textContent = "Copy"), SHOWN);
}
