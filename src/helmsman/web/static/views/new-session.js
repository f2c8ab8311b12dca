// The dialog that starts a session.

import { get, post } from "/api.js";
import { freshId, h } from "/dom.js";
import { store } from "/store.js";

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

export function openNewSession() {
  const directories = freshId("directories");
  const prompt = h("textarea", { name: "prompt", rows: 5, required: true, placeholder: "Fix the failing test in tests/test_parser.py" });
  const problem = h("p", { class: "note bad", role: "alert", hidden: true });
  const directory = h("input", { name: "workingDirectory", list: directories, autocomplete: "off" });
  const known = h("datalist", { id: directories });
  const start = h("button", { type: "submit", class: "primary" }, "Start");
  const form = h(
    "form",
    {},
    field("What is to be done?", prompt),
    field("Directory", directory),
    known,
    h(
      "div",
      { class: "fields" },
      field("It may write", select("sandbox", SANDBOXES)),
      field("It asks", select("approvalPolicy", POLICIES)),
      field("Model", h("input", { name: "model", placeholder: "as configured", autocomplete: "off" })),
    ),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "worktree" }), h("span", {}, "In a git worktree of its own")),
    problem,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), start),
  );
  const title = freshId("title");
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": title }, h("h2", { id: title }, "New session"), form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    start.disabled = true;
    try {
      const { sessionId } = await post("sessions", values(form));
      dialog.close();
      location.hash = `#/s/${sessionId}`;
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    } finally {
      start.disabled = false;
    }
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  prompt.focus();
  suggest(directory, known);
}

/** Fill in the directory lately worked in, and offer the others. */
export async function suggest(directory, known) {
  const overview = store.overview ?? (await get("overview").catch(() => null));
  if (!overview) return; // left empty, it is the server's own directory
  directory.value ||= overview.directories[0] ?? overview.defaultDirectory;
  known.append(...overview.directories.map((value) => h("option", { value })));
}

/** What was filled in; the rest is left to the agent's configuration. */
function values(form) {
  const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
  if (given.worktree) given.worktree = true;
  return given;
}

export function field(label, input) {
  input.id = freshId("field");
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

export function select(name, options) {
  return h("select", { name }, options.map(([value, label]) => h("option", { value }, label)));
}
