// A rule as it is written, in full: without a scroll box. A wrapped line is indented, so that it does not look like another rule.

import { h } from "../dom.js";

export function ruleText(toml) {
  const lines = toml.trim().split("\n");
  return h("pre", { class: "code rule", tabindex: "0" }, lines.map((line) => h("span", { class: "rule-line" }, line || " ")));
}
