// The dialog that starts a session.

import { agents } from "/agents.js";
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
  const agent = h("select", { name: "agent" });
  const about = h("div", { class: "about-agent" });
  const unenforced = check(
    "unenforced",
    "Without a sandbox, if need be",
    "Nothing then holds what you approve: a command can write anywhere you can. Without this it is not started where no sandbox can be put around it.",
  );
  const trust = check("trustRepository", "Trust the repository", "Its own settings, hooks, plugins and MCP servers take effect, and may run programs before anything is asked.");
  const form = h(
    "form",
    {},
    field("What is to be done?", prompt),
    h("div", { class: "fields" }, field("Agent", agent), field("Directory", directory)),
    about,
    known,
    h(
      "div",
      { class: "fields" },
      field("It may write", select("sandbox", SANDBOXES)),
      field("It asks", select("approvalPolicy", POLICIES)),
      field("Model", h("input", { name: "model", placeholder: "as configured", autocomplete: "off" })),
    ),
    h("div", { class: "checks" }, check("worktree", "In a git worktree of its own"), trust, unenforced),
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
  offerAgents(agent, () => {
    const chosen = agents.get(agent.value);
    about.replaceChildren(...aboutAgent(chosen));
    unenforced.hidden = !chosen || chosen.agent === "codex"; // which has a sandbox of its own
    if (unenforced.hidden) unenforced.querySelector("input").checked = false;
  });
}

/** The agents that are here, the usual one first; the others are shown, and cannot be chosen. */
async function offerAgents(select, chosen) {
  await agents.read();
  select.replaceChildren(
    ...agents.all.map(({ agent, title, installed }) => h("option", { value: agent, disabled: !installed }, installed ? title : `${title} (not installed)`)),
  );
  select.value = (agents.all.find(({ installed }) => installed) ?? agents.all[0])?.agent ?? "";
  select.addEventListener("change", chosen);
  chosen();
}

/** What an agent cannot do, in the words of its capabilities, and what to do instead. */
function aboutAgent(agent) {
  if (!agent) return [];
  if (!agent.installed) return [h("p", { class: "note bad" }, agent.problem)];
  const lacking = Object.entries(agent.lacks);
  if (agent.agent === "codex" || !lacking.length) return [];
  return [
    h(
      "details",
      {},
      h("summary", {}, `What ${agent.title} cannot do`),
      h("ul", {}, lacking.map(([word, text]) => h("li", {}, h("b", {}, text), `: ${agent.cannot[word]}`))),
    ),
  ];
}

/** A switch, and what it means. */
function check(name, label, meaning) {
  const id = freshId("meaning");
  const input = h("input", { type: "checkbox", name, ...(meaning ? { "aria-describedby": id } : {}) });
  return h("div", { class: "switch" }, h("label", { class: "check" }, input, h("span", {}, label)), meaning ? h("p", { id, class: "quiet" }, meaning) : null);
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
  for (const name of ["worktree", "unenforced", "trustRepository"]) if (given[name]) given[name] = true;
  return given;
}

export function field(label, input) {
  input.id = freshId("field");
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

export function select(name, options) {
  return h("select", { name }, options.map(([value, label]) => h("option", { value }, label)));
}
