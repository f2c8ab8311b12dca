// Saved prompts: files of the user, which `/name` stands for. `$ARGUMENTS` in one is what is typed after its name.

import { get } from "./api.js";
import { h } from "./dom.js";

let known = null;

async function all() {
  known ??= get("prompts").then(({ prompts }) => prompts, () => []);
  return known;
}

/** What a typed text stands for: a saved prompt, or itself. */
export async function expanded(text) {
  const [, name, rest] = /^\/([\w.-]+)\s*([^]*)$/.exec(text) ?? [];
  const found = name && (await all()).find((one) => one.name === name);
  if (!found) return text;
  if (found.text.includes("$ARGUMENTS")) return found.text.replaceAll("$ARGUMENTS", () => rest);
  return rest ? `${found.text}\n\n${rest}` : found.text;
}

/** Offer the prompts whose names begin with what is typed; Tab completes the first. The element belongs below the field. */
export function promptsBelow(field) {
  const element = h("p", { class: "quiet offered", role: "status", hidden: true });
  let offered = [];
  field.addEventListener("input", async () => {
    const [, typed] = /^\/([\w.-]*)$/.exec(field.value) ?? [];
    offered = typed === undefined ? [] : (await all()).filter((one) => one.name.startsWith(typed));
    element.hidden = !offered.length;
    element.textContent = offered.map((one) => `/${one.name} ${one.title}`).join(" · ");
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Tab" || event.shiftKey || element.hidden) return;
    event.preventDefault();
    field.value = `/${offered[0].name} `;
    field.dispatchEvent(new Event("input"));
  });
  return element;
}
