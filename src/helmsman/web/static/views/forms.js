// Fields that several forms have.

import { agents } from "../agents.js";
import { get } from "../api.js";
import { freshId, h } from "../dom.js";
import { store } from "../store.js";

export const SANDBOXES = [
  ["", "as configured"],
  ["read-only", "read only"],
  ["workspace-write", "write in the directory"],
  ["danger-full-access", "everything (dangerous)"],
];
export const POLICIES = [
  ["", "as configured"],
  ["untrusted", "before nearly everything"],
  ["on-request", "when it wants more"],
  ["never", "never"],
];

export function field(label, input) {
  input.id = freshId("field");
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

export function textInput(name, props = {}) {
  return h("input", { name, autocomplete: "off", ...props });
}

export function options(values) {
  return values.map(([value, label]) => h("option", { value }, label));
}

export function select(name, values) {
  return h("select", { name }, options(values));
}

/** A switch, and what it means. */
export function check(name, label, meaning) {
  const id = freshId("meaning");
  const input = h("input", { type: "checkbox", name, ...(meaning ? { "aria-describedby": id } : {}) });
  return h("div", { class: "switch" }, h("label", { class: "check" }, input, h("span", {}, label)), meaning ? h("p", { id, class: "quiet" }, meaning) : null);
}

/** A choice of one of the installed agents; `none` says what no choice means. */
export function agentChoice(none) {
  const choice = select("agent", [["", none]]);
  agents.read().then(() => choice.append(...options(agents.installed.map(({ agent, title }) => [agent, title]))));
  return choice;
}

/** A directory, and the list of those that are offered: the recent ones. */
export function directoryInput(name = "workingDirectory", props = {}) {
  const known = h("datalist", { id: freshId("directories") });
  return { input: textInput(name, { list: known.id, ...props }), known };
}

/** Fill in the most recent directory, and offer the others. */
export async function suggest({ input, known }, host, isWanted = () => true) {
  const overview = (host ? store.overviewOf(host) : store.overview) ?? (await get("overview", { host }).catch(() => null));
  if (!overview || !isWanted()) return; // if empty, the server's own directory is used
  input.value ||= overview.directories?.[0] ?? overview.defaultDirectory ?? "";
  known.append(...(overview.directories ?? []).map((value) => h("option", { value })));
}

/** What was filled in; the rest is left to the configuration. Checked boxes are true. */
export function filledIn(form) {
  const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
  for (const box of form.querySelectorAll("input[type=checkbox]")) if (given[box.name]) given[box.name] = true;
  return given;
}
