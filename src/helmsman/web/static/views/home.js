// The overview: open questions, then the state of everything else.

import { agents } from "../agents.js";
import { arrange, h, redraw } from "../dom.js";
import { count } from "../format.js";
import { hosts } from "../hosts.js";
import { store } from "../store.js";
import { setPlace } from "../title.js";
import { openNewSession } from "./new-session.js";
import { tile } from "./page.js";
import { questionCard } from "./question.js";

export class HomeView {
  #cards = new Map();
  #closed = new AbortController();

  constructor() {
    this.heading = h("h1", { tabindex: "-1" }, "Overview");
    this.questions = h("div", { class: "questions" });
    this.problem = h("p", { class: "note bad" });
    this.tiles = h("dl", { class: "tiles" });
    this.machines = h("ul", { class: "machines", "aria-label": "Machines" });
    const hint = h(
      "p",
      { class: "hint quiet" },
      "Choose a session, or ",
      h("button", { type: "button", class: "link", onclick: openNewSession }, "start a new one"),
      ". Keys: ",
      keys("j", "k"),
      " move, ",
      keys("Enter"),
      " open, ",
      keys("/"),
      " search, ",
      keys("?"),
      " all keys.",
    );
    this.standing = h("div", { class: "standing", hidden: true }, this.problem, this.tiles, this.machines, hint);
    this.element = h("div", { class: "home scroller", tabindex: "0", role: "region", "aria-label": "Overview" }, this.heading, this.questions, this.standing);
    const { signal } = this.#closed;
    store.addEventListener("questions", () => this.#showQuestions(), { signal });
    store.addEventListener("overview", () => this.#showStanding(), { signal });
    agents.addEventListener("agents", () => this.#showStanding(), { signal });
  }

  async open() {
    setPlace("");
    this.#showQuestions();
    this.#showStanding();
  }

  close() {
    this.#closed.abort();
  }

  #showQuestions() {
    for (const question of store.questions) {
      if (!this.#cards.has(question.id)) this.#cards.set(question.id, questionCard(question, { withSession: true }));
    }
    arrange(this.questions, store.questions.map((question) => this.#cards.get(question.id)));
    this.element.dataset.questions = String(store.questions.length);
    this.heading.textContent = store.questions.length
      ? `${count(store.questions.length, "question waits", "questions wait")} for you`
      : "Nothing is waiting for you";
    this.#showStanding();
  }

  #showStanding() {
    const { overview } = store;
    if (!overview) return;
    const { codex, codexError } = overview;
    const open = store.questions.length > 0;
    this.standing.hidden = false;
    this.problem.hidden = !codexError;
    this.problem.textContent = codexError?.message ?? "";
    redraw(this.tiles, [overview, open, agents.all.length], () => [
      tile("Running", String(overview.running), `${overview.atOnce} of ${overview.maxSessions} at once`),
      tile("Waiting for you", String(overview.awaitingApproval), open ? "see above" : "no open question"),
      agentTile(codex, overview),
    ]);
    this.machines.hidden = !hosts.all.length;
    const away = new Map(store.away.map(({ name, problem }) => [name, problem]));
    const others = hosts.all.map(({ name, address, status }) => ({ name, address, status: away.has(name) ? "away" : status, problem: away.get(name), overview: store.overviewOf(name) }));
    redraw(this.machines, [overview, others], () => (hosts.all.length ? [machine({ name: "This machine", status: "connected", overview }), ...others.map(machine)] : []));
  }
}

const STATES = { connected: ["good", "connected"], connecting: ["quiet", "connecting"], away: ["bad", "away"] };

/** A machine, its state and its work. */
function machine({ name, address, status, problem, overview }) {
  const [tone, word] = STATES[status];
  const about = overview ? `${count(Number(overview.running) || 0, "turn")} running, ${count(Number(overview.questions) || 0, "question")} open, Helmsman ${String(overview.version).slice(0, 30)}` : "";
  return h(
    "li",
    { dataset: { machine: name, state: status } },
    h("span", { class: "host", title: address }, name),
    h("span", { class: `pill ${tone}` }, word),
    h("span", { class: "quiet" }, problem ?? about),
  );
}

/** The default agent, and the number of others. */
function agentTile(codex, overview) {
  const usual = agents.get(overview.defaultAgent) ?? { title: "Codex", version: codex?.version, installed: Boolean(codex) };
  const others = agents.installed.filter(({ agent }) => agent !== overview.defaultAgent).length;
  const more = others ? `, and ${count(others, "other agent")}` : "";
  return tile(usual.title, usual.installed ? (usual.version ?? "here") : "none", usual.installed ? `Helmsman ${overview.version}${more}` : "not found");
}

function keys(...names) {
  return names.map((name) => h("kbd", {}, name));
}
