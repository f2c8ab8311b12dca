// A rule as it is written, whole: no box to scroll in, and a line that is broken goes on further in, where no rule begins one.

import { h } from "../dom.js";

export function ruleText(toml) {
  const lines = toml.trim().split("\n");
  return h("pre", { class: "code rule", tabindex: "0" }, lines.map((line) => h("span", { class: "rule-line" }, line || " ")));
}
