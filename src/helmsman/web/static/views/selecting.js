// Several sessions at once: archive them, give them labels or take labels from them.

import { on, post } from "../api.js";
import { askAndDo } from "../dialog.js";
import { actionButton, h, toast } from "../dom.js";
import { count } from "../format.js";
import { hosts } from "../hosts.js";
import { store } from "../store.js";
import { field } from "./forms.js";

export class Selecting {
  #chosen = new Set();

  constructor(pane) {
    this.pane = pane;
    this.toggle = h("button", { type: "button", class: "select", "aria-pressed": "false", onclick: () => this.#turn(!this.isOn) }, "Select");
    this.said = h("span", { role: "status" });
    this.bar = h(
      "div",
      { class: "selection", role: "group", "aria-label": "Selected sessions", hidden: true },
      this.said,
      actionButton("Archive", { dataset: { selected: "archive" } }, () => this.#archive()),
      h("button", { type: "button", dataset: { selected: "label" }, onclick: () => askForLabels([...this.#chosen], () => this.#turn(false)) }, "Labels…"),
      h("button", { type: "button", onclick: () => this.#turn(false) }, "Done"),
    );
    this.#show();
  }

  get isOn() {
    return this.pane.classList.contains("selecting");
  }

  /** The box that stands before a session in the list. */
  box(sessionId) {
    const box = h("input", { type: "checkbox", class: "selected", "aria-label": "Select this session" });
    box.addEventListener("change", () => {
      if (box.checked) this.#chosen.add(sessionId);
      else this.#chosen.delete(sessionId);
      this.#show();
    });
    return box;
  }

  #turn(isOn) {
    this.#chosen.clear();
    this.pane.classList.toggle("selecting", isOn);
    for (const box of this.pane.querySelectorAll("input.selected")) box.checked = false;
    this.toggle.setAttribute("aria-pressed", String(isOn));
    this.bar.hidden = !isOn;
    this.#show();
  }

  #show() {
    this.said.textContent = `${this.#chosen.size} selected`;
    for (const button of this.bar.querySelectorAll("[data-selected]")) button.disabled = !this.#chosen.size;
  }

  async #archive() {
    const done = await each([...this.#chosen], "archive", {});
    const refused = done.flatMap((one) => one.refused);
    toast(`${count(done.flatMap((one) => one.archived).length, "session")} archived.${refused.length ? ` ${refused.length} not: ${refused[0].message}` : ""}`, refused.length ? "error" : "info");
    this.#turn(false);
  }
}

/** Ask for labels of sessions. `known` are those that they have. */
export function askForLabels(sessionIds, done = () => {}, known = []) {
  const add = h("input", { name: "add", autocomplete: "off", maxlength: "300", placeholder: "bug, release" });
  const gone = known.map((label) => h("label", { class: "switch" }, h("input", { type: "checkbox", value: label }), `Take away “${label}”`));
  askAndDo({
    title: sessionIds.length === 1 ? "Labels of this session" : `Labels of ${count(sessionIds.length, "session")}`,
    fields: [field("Add (separated by commas)", add), ...gone],
    yes: "Save",
    act: async () => {
      const remove = gone.map((one) => one.querySelector("input")).filter((box) => box.checked).map((box) => box.value);
      await each(sessionIds, "labels", { add: add.value.split(",").map((one) => one.trim()).filter(Boolean), remove });
      done();
    },
  });
}

/** Do this with sessions, on each of their machines. */
async function each(sessionIds, path, fields) {
  const answers = await Promise.all(
    [...Map.groupBy(sessionIds, (id) => hosts.of(id) ?? "")].map(([host, ids]) =>
      post(on(host, path), { ...fields, sessions: host ? ids.map((id) => id.slice(host.length + 1)) : ids }),
    ),
  );
  store.refresh();
  return answers;
}
