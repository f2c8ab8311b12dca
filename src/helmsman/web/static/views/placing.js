// Machine and time for work in a fleet: shown only if there is one.

import { get } from "../api.js";
import { h } from "../dom.js";
import { field, select, textInput } from "./forms.js";

const LOSS = [
  ["", "ask, if it could reach out"],
  ["continue", "go on elsewhere"],
  ["ask", "ask first"],
  ["fail", "fail"],
];

export class Placing {
  constructor() {
    this.element = h("details", { class: "placing", hidden: true });
  }

  /** Offer the existing machines. */
  async offer() {
    const { fleet } = await get("engines").catch(() => ({}));
    if (!fleet) return;
    const names = fleet.machines.filter(({ isAlive, isDraining }) => isAlive && !isDraining).map(({ name }) => [name, name]);
    const number = (name, min, max) => h("input", { name, type: "number", min, max, step: name === "priority" ? 1 : "any", inputmode: "numeric" });
    this.element.append(
      h("summary", {}, "Where and when"),
      h(
        "div",
        { class: "fields" },
        field("Machine", select("machine", [["", "any that can"], ...names])),
        field("Labels it must have", textInput("labels", { placeholder: "gpu, linux" })),
        field("Priority (1 comes first)", Object.assign(number("priority", 1, 1000), { placeholder: "100" })),
        field("Begin in seconds", number("delaySec", 0)),
        field("Stop after seconds", number("deadlineSec", 1)),
        field("If its machine dies", select("onMachineLoss", LOSS)),
      ),
    );
    this.element.hidden = false;
  }
}

/** What was filled in, as the server takes it. */
export function placed(given) {
  const values = { ...given };
  for (const name of ["priority", "delaySec", "deadlineSec"]) if (values[name]) values[name] = Number(values[name]);
  if (values.labels) values.labels = values.labels.split(/[\s,]+/).filter(Boolean);
  return values;
}
