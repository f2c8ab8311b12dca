// The dialog that starts a session.

import { agentsOn } from "../agents.js";
import { get, on, post, sessionPlace } from "../api.js";
import { freshId, h } from "../dom.js";
import { keepDraft, keepsDraft } from "../drafts.js";
import { hosts } from "../hosts.js";
import { Pictures } from "../pictures.js";
import { expanded, promptsBelow } from "../prompts.js";
import { store } from "../store.js";
import { debounced } from "../timing.js";
import { Placing, placed } from "./placing.js";

const DRAFT = "new-session";
const PAUSE = 200; // milliseconds without typing before a directory is looked up

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
  keepsDraft(prompt, DRAFT);
  const problem = h("p", { class: "note bad", role: "alert", hidden: true });
  const directory = h("input", { name: "workingDirectory", list: directories, autocomplete: "off" });
  const known = h("datalist", { id: directories });
  const start = h("button", { type: "submit", class: "primary" }, "Start");
  const machine = h("select", { "data-machine": "" }, h("option", { value: "" }, "This machine"), hosts.all.map(({ name, status }) => h("option", { value: name }, status === "away" ? `${name} (away)` : name)));
  const where = field("Machine", machine);
  where.hidden = !hosts.all.length;
  const model = new ModelChoice();
  const configured = h("p", { class: "quiet configured", role: "status" });
  const agent = h("select", { name: "agent" });
  const about = h("div", { class: "about-agent" });
  const unenforced = check(
    "unenforced",
    "Without a sandbox, if need be",
    "Nothing then holds what you approve: a command can write anywhere you can. Without this it is not started where no sandbox can be put around it.",
  );
  const trust = check("trustRepository", "Trust the repository", "Its own settings, hooks, plugins and MCP servers take effect, and may run programs before anything is asked.");
  const form = h("form", {});
  const pictures = new Pictures(form, prompt, () => machine.value);
  const placing = new Placing();
  form.append(
    field("What should the agent do?", prompt),
    promptsBelow(prompt),
    h("div", { class: "fields" }, where, field("Agent", agent), field("Directory", directory)),
    about,
    known,
    h(
      "div",
      { class: "fields" },
      field("It may write", select("sandbox", SANDBOXES)),
      field("It asks", select("approvalPolicy", POLICIES)),
      model.element,
    ),
    configured,
    placing.element,
    pictures.element,
    h("div", { class: "checks" }, check("worktree", "In its own git worktree"), trust, unenforced),
    problem,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), start),
  );
  const title = freshId("title");
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": title }, h("h2", { id: title }, "New session"), form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    start.disabled = true;
    try {
      const images = pictures.paths;
      const { sessionId } = await post(on(machine.value, "sessions"), { ...values(form), prompt: await expanded(prompt.value.trim()), ...(images.length ? { images } : {}) });
      keepDraft(DRAFT, "");
      dialog.close();
      location.hash = sessionPlace(sessionId);
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
  const showConfigured = () => tellConfigured(configured, agent.value, directory.value.trim(), machine.value);
  placing.offer();
  directory.addEventListener("input", debounced(() => complete(directory, known, machine.value).then(showConfigured), PAUSE));
  const showAgent = () => {
    const chosen = agentsOn(machine.value).get(agent.value);
    about.replaceChildren(...aboutAgent(chosen));
    unenforced.hidden = !chosen || chosen.agent === "codex"; // Codex has a sandbox of its own
    if (unenforced.hidden) unenforced.querySelector("input").checked = false;
    pictures.element.hidden = !chosen?.can.includes("images");
    model.offer(chosen, machine.value);
    showConfigured();
  };
  agent.addEventListener("change", showAgent);
  const showMachine = () => {
    const host = machine.value;
    suggest(directory, known, host, () => host === machine.value).then(showConfigured);
    offerAgents(agent, host, () => host === machine.value).then(showAgent);
  };
  machine.addEventListener("change", () => {
    directory.value = ""; // each machine has its own directories and uploaded images
    pictures.clear();
    configured.textContent = "";
    known.replaceChildren();
    agent.replaceChildren();
    showAgent();
    showMachine();
  });
  showMachine();
}

/** The models and efforts that an agent offers; if it does not report any, a name can be typed. */
class ModelChoice {
  #models = [];
  #agent = null;

  constructor() {
    this.model = h("select", { name: "model" });
    this.effort = h("select", { name: "effort" });
    this.named = h("input", { name: "model", placeholder: "as configured", autocomplete: "off" });
    this.choice = field("Model", this.model);
    this.efforts = field("Effort", this.effort);
    this.free = field("Model", this.named);
    this.element = [this.choice, this.free, this.efforts];
    this.model.addEventListener("change", () => this.#showEfforts());
    this.#show([]);
  }

  async offer(agent, host) {
    this.#agent = agent;
    const tells = agent?.installed && agent.can.includes("models");
    const { models } = tells ? await get("models", { agent: agent.agent, host }).catch(() => ({ models: [] })) : { models: [] };
    if (agent === this.#agent) this.#show(Array.isArray(models) ? models : []);
  }

  #show(models) {
    this.#models = models;
    const isTold = models.length > 0;
    for (const [part, input, shown] of [[this.choice, this.model, isTold], [this.free, this.named, !isTold]]) {
      part.hidden = !shown;
      input.disabled = !shown; // disabled fields are not sent
    }
    this.model.replaceChildren(h("option", { value: "" }, "as configured"), ...models.map(({ id, name, description }) => h("option", { value: id, title: description }, name)));
    this.#showEfforts();
  }

  #showEfforts() {
    const chosen = this.#models.find(({ id }) => id === this.model.value) ?? this.#models.find(({ isDefault }) => isDefault);
    const efforts = chosen?.efforts ?? [];
    this.efforts.hidden = !efforts.length;
    this.effort.disabled = !efforts.length;
    this.effort.replaceChildren(h("option", { value: "" }, "as configured"), ...efforts.map((effort) => h("option", { value: effort }, effort)));
  }
}

/** The meaning of "as configured" in this directory, or a note that only the agent knows it. */
async function tellConfigured(line, agent, directory, host) {
  const asked = (line.dataset.asked = `${host} ${agent} ${directory}`);
  if (!agent || !directory) return;
  const found = await get("in-force", { agent, directory, host }).catch((error) => error);
  if (line.dataset.asked !== asked) return;
  if (found instanceof Error) {
    line.textContent = found.code === "unsupported" ? `"As configured" is as ${agentsOn(host).title(agent)} itself is configured.` : found.message;
    return;
  }
  const sandbox = SANDBOXES.find(([value]) => value === found.sandbox)?.[1] ?? found.sandbox;
  const policy = POLICIES.find(([value]) => value === found.approvalPolicy)?.[1] ?? found.approvalPolicy;
  const parts = [`model ${found.model ?? "of its own choice"}`, found.effort ? `effort ${found.effort}` : "", `sandbox: ${sandbox}`, `it asks: ${policy}`];
  line.textContent = `As configured ${host ? `on ${host}` : "here"}: ${parts.filter(Boolean).join("; ")}.`;
}

/** Offer completions of the directory, after the recent ones. */
async function complete(directory, known, host) {
  const begins = directory.value;
  const { directories } = await get("directories", { begins, host }).catch(() => ({ directories: [] }));
  if (begins !== directory.value) return;
  const recent = (host ? store.overviewOf(host) : store.overview)?.directories ?? [];
  known.replaceChildren(...[...new Set([...recent, ...(Array.isArray(directories) ? directories : [])])].map((value) => h("option", { value })));
}

/** The agents that are installed, the usual one first; the others are shown, and cannot be chosen. */
async function offerAgents(select, host, isWanted) {
  const agents = agentsOn(host);
  await agents.read();
  if (!isWanted()) return;
  select.replaceChildren(
    ...agents.all.map(({ agent, title, installed }) => h("option", { value: agent, disabled: !installed }, installed ? title : `${title} (not installed)`)),
  );
  select.value = (agents.all.find(({ installed }) => installed) ?? agents.all[0])?.agent ?? "";
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

/** Fill in the most recent directory, and offer the others. */
export async function suggest(directory, known, host, isWanted = () => true) {
  const overview = (host ? store.overviewOf(host) : store.overview) ?? (await get("overview", { host }).catch(() => null));
  if (!overview || !isWanted()) return; // if empty, the server's own directory is used
  directory.value ||= overview.directories?.[0] ?? overview.defaultDirectory ?? "";
  known.append(...(overview.directories ?? []).map((value) => h("option", { value })));
}

/** What was filled in; the rest is left to the agent's configuration. */
function values(form) {
  const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
  for (const name of ["worktree", "unenforced", "trustRepository"]) if (given[name]) given[name] = true;
  return placed(given);
}

export function field(label, input) {
  input.id = freshId("field");
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

export function select(name, options) {
  return h("select", { name }, options.map(([value, label]) => h("option", { value }, label)));
}
