// The dialog that starts a session.

import { agentsOn } from "../agents.js";
import { get, on, post, sessionPlace } from "../api.js";
import { askAndDo } from "../dialog.js";
import { h } from "../dom.js";
import { keepDraft, keepsDraft } from "../drafts.js";
import { hosts } from "../hosts.js";
import { Pictures } from "../pictures.js";
import { expanded, promptsBelow } from "../prompts.js";
import { store } from "../store.js";
import { debounced } from "../timing.js";
import { check, directoryInput, field, filledIn, options, POLICIES, SANDBOXES, select, suggest, textInput } from "./forms.js";
import { Placing, placed } from "./placing.js";

const DRAFT = "new-session";
const PAUSE = 200; // milliseconds without typing before a directory is looked up

export function openNewSession() {
  const prompt = h("textarea", { name: "prompt", rows: 5, required: true, placeholder: "Fix the failing test in tests/test_parser.py" });
  keepsDraft(prompt, DRAFT);
  const directory = directoryInput();
  const machine = h("select", { "data-machine": "" }, options([["", "This machine"], ...hosts.all.map(({ name, status }) => [name, status === "away" ? `${name} (away)` : name])]));
  const where = field("Machine", machine);
  where.hidden = !hosts.all.length;
  const model = new ModelChoice();
  const configured = h("p", { class: "quiet configured", role: "status" });
  const agent = h("select", { name: "agent" });
  const about = h("div", { class: "about-agent" });
  const unenforced = check(
    "unenforced",
    "Allow running without a sandbox",
    "A command that you approve can then write anywhere you can. Otherwise the session does not start where no sandbox is available.",
  );
  const trust = check("trustRepository", "Trust the repository", "Its own settings, hooks, plugins and MCP servers take effect, and may run programs before anything is asked.");
  const form = h("form");
  const pictures = new Pictures(form, prompt, () => machine.value);
  const placing = new Placing();
  askAndDo({
    title: "New session",
    form,
    fields: [
      field("What should the agent do?", prompt),
      promptsBelow(prompt),
      h("div", { class: "fields" }, where, field("Agent", agent), field("Directory", directory.input)),
      about,
      directory.known,
      h("div", { class: "fields" }, field("It may write", select("sandbox", SANDBOXES)), field("It asks", select("approvalPolicy", POLICIES)), model.element),
      configured,
      placing.element,
      pictures.element,
      h("div", { class: "checks" }, check("worktree", "In its own git worktree"), trust, unenforced),
    ],
    yes: "Start",
    act: async () => {
      const images = pictures.paths;
      const { sessionId } = await post(on(machine.value, "sessions"), { ...placed(filledIn(form)), prompt: await expanded(prompt.value.trim()), ...(images.length ? { images } : {}) });
      keepDraft(DRAFT, "");
      location.hash = sessionPlace(sessionId);
    },
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  const showConfigured = () => tellConfigured(configured, agent.value, directory.input.value.trim(), machine.value);
  placing.offer();
  directory.input.addEventListener("input", debounced(() => complete(directory, machine.value).then(showConfigured), PAUSE));
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
    suggest(directory, host, () => host === machine.value).then(showConfigured);
    offerAgents(agent, host, () => host === machine.value).then(showAgent);
  };
  machine.addEventListener("change", () => {
    directory.input.value = ""; // each machine has its own directories and uploaded images
    pictures.clear();
    configured.textContent = "";
    directory.known.replaceChildren();
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
    this.named = textInput("model", { placeholder: "as configured" });
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
    this.effort.replaceChildren(h("option", { value: "" }, "as configured"), ...options(efforts.map((effort) => [effort, effort])));
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
async function complete({ input, known }, host) {
  const begins = input.value;
  const { directories } = await get("directories", { begins, host }).catch(() => ({ directories: [] }));
  if (begins !== input.value) return;
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
