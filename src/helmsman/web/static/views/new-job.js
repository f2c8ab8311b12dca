// The dialog that asks for an outcome, which Helmsman then verifies.

import { jobPlace, post } from "../api.js";
import { askAndDo } from "../dialog.js";
import { h } from "../dom.js";
import { agentChoice, directoryInput, field, filledIn, select, suggest, textInput } from "./forms.js";

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
  const kind = select("kind", KINDS);
  const request = h("textarea", { name: "request", rows: 4, placeholder: "test_parse fails: KeyError 'port'" });
  const directory = directoryInput();
  const own = {
    check: field("Check", textInput("check", { placeholder: "as the repository has it" })),
    apply: field("Apply it", select("apply", APPLY)),
    candidates: field("Candidates", h("input", { name: "candidates", type: "number", min: 1, max: 5, value: "1" })),
    scope: field("Only in", textInput("scope", { placeholder: "everywhere; else paths, by commas" })),
    branch: field("Against branch", textInput("branch", { placeholder: "none: what is not committed" })),
    base: field("Fails with the code of", textInput("base", { placeholder: "no commit in particular" })),
  };
  const offer = () => {
    for (const [name, one] of Object.entries(own)) one.hidden = !OWN[kind.value].includes(name);
    request.required = kind.value !== "review";
  };
  kind.addEventListener("change", offer);
  offer();
  askAndDo({
    title: "Ask for an outcome",
    fields: [
      field("Outcome", kind),
      field("What is wanted?", request),
      h("div", { class: "fields" }, field("Agent", agentChoice("whoever can")), field("Directory", directory.input)),
      directory.known,
      h("div", { class: "fields" }, Object.values(own)),
    ],
    yes: "Start",
    act: async (form) => {
      const { taskId } = await post(`jobs/${kind.value}`, values(form, OWN[kind.value]));
      location.hash = jobPlace(taskId);
    },
  });
  request.focus();
  suggest(directory);
}

/** The filled-in fields that this kind has. */
function values(form, own) {
  const all = [...own, "request", "workingDirectory", "agent"];
  const given = Object.fromEntries(Object.entries(filledIn(form)).filter(([name]) => all.includes(name)));
  if (given.candidates) given.candidates = Number(given.candidates);
  if (given.scope) given.scope = given.scope.split(",").map((one) => one.trim()).filter(Boolean);
  return given;
}
