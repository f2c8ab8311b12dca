// The dialog that asks for an outcome, which Helmsman then verifies.

import { agents } from "../agents.js";
import { jobPlace, post } from "../api.js";
import { freshId, h } from "../dom.js";
import { field, select, suggest } from "./new-session.js";

const KINDS = [
  ["debug", "Debug: a failure is found and fixed"],
  ["review", "Review: what is wrong with a change"],
  ["plan", "Plan: steps, approved and carried out"],
  ["refactor", "Refactor: better code that does the same"],
  ["test", "Test: tests that can fail"],
];
const APPLY = [
  ["ask", "ask me"],
  ["never", "never"],
  ["verified", "when it is verified"],
];
/** The fields of each kind, beside the common ones. */
const OWN = {
  debug: ["check", "apply", "candidates"],
  review: ["branch"],
  plan: ["check", "apply", "candidates"],
  refactor: ["check", "apply", "candidates", "scope"],
  test: ["check", "apply", "candidates", "base"],
};

export function openNewJob() {
  const directories = freshId("directories");
  const kind = select("kind", KINDS);
  const request = h("textarea", { name: "request", rows: 4, placeholder: "test_parse fails: KeyError 'port'" });
  const directory = h("input", { name: "workingDirectory", list: directories, autocomplete: "off" });
  const known = h("datalist", { id: directories });
  const agent = h("select", { name: "agent" }, h("option", { value: "" }, "whoever can"));
  const input = (name, placeholder) => h("input", { name, placeholder, autocomplete: "off" });
  const own = {
    check: field("Check", input("check", "as the repository has it")),
    apply: field("Apply it", select("apply", APPLY)),
    candidates: field("Candidates", h("input", { name: "candidates", type: "number", min: 1, max: 5, value: "1" })),
    scope: field("Only in", input("scope", "everywhere; else paths, by commas")),
    branch: field("Against branch", input("branch", "none: what is not committed")),
    base: field("Fails with the code of", input("base", "no commit in particular")),
  };
  const problem = h("p", { class: "note bad", role: "alert", hidden: true });
  const start = h("button", { type: "submit", class: "primary" }, "Start");
  const form = h(
    "form",
    {},
    field("Outcome", kind),
    field("What is wanted?", request),
    h("div", { class: "fields" }, field("Agent", agent), field("Directory", directory)),
    known,
    h("div", { class: "fields" }, Object.values(own)),
    problem,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), start),
  );
  const title = freshId("title");
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": title }, h("h2", { id: title }, "Ask for an outcome"), form);
  const offer = () => {
    for (const [name, one] of Object.entries(own)) one.hidden = !OWN[kind.value].includes(name);
    request.required = kind.value !== "review";
  };
  kind.addEventListener("change", offer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    start.disabled = true;
    try {
      const { taskId } = await post(`jobs/${kind.value}`, values(form, OWN[kind.value]));
      dialog.close();
      location.hash = jobPlace(taskId);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    } finally {
      start.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  offer();
  dialog.showModal();
  request.focus();
  suggest(directory, known);
  agents.read().then(() => agent.append(...agents.all.filter((one) => one.installed).map((one) => h("option", { value: one.agent }, one.title))));
}

/** The filled-in fields that this kind has. */
function values(form, own) {
  const given = Object.fromEntries([...new FormData(form)].filter(([name, value]) => value.trim() && (own.includes(name) || ["request", "workingDirectory", "agent"].includes(name))));
  if (given.candidates) given.candidates = Number(given.candidates);
  if (given.scope) given.scope = given.scope.split(",").map((one) => one.trim()).filter(Boolean);
  return given;
}
