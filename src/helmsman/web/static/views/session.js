// One session: its state, transcript, changes, turns, questions, and the form for messages.

import { agents } from "../agents.js";
import { get, sessionPath, sessionPlace } from "../api.js";
import { copyButton } from "../copy.js";
import { timedOutPill } from "../deadline.js";
import { actionButton, arrange, freshId, h, redraw, toast } from "../dom.js";
import { count, dateTime, duration, money, shortPath, statusPill, timeAgo, tokens, unenforcedPill } from "../format.js";
import { hostMark, hosts } from "../hosts.js";
import { live } from "../live.js";
import { markSeen } from "../seen.js";
import { store } from "../store.js";
import { coalesced } from "../timing.js";
import { setPlace } from "../title.js";
import { cancelTask, interrupt, openActions, resumeTask } from "./actions.js";
import { Composer } from "./composer.js";
import { Progress } from "./progress.js";
import { questionCard } from "./question.js";
import { Review } from "./review.js";
import { rewindButton } from "./rewind.js";
import { showTimeline } from "./timeline.js";
import { Transcript } from "./transcript.js";

// There is room for one thing: an open question is a tab beside the others. Elsewhere it stands below them.
const narrow = matchMedia("(max-width: 760px)");
const REVIEW = 1;
const QUESTION = 3;

export class SessionView {
  #session = null;
  #host = undefined; // state of its machine, if that is another one
  #cards = new Map();
  #wanted = null; // the question to show, once it is loaded
  #behind = 0; // the tab to return to when no question is open any more
  #closed = new AbortController();

  /** `inside` is a place in the session: a tab, a file of its changes, a turn (see `goTo`). */
  constructor(sessionId, inside = []) {
    this.id = sessionId;
    this.inside = inside;
    this.transcript = new Transcript(sessionId);
    this.composer = new Composer(sessionId);
    this.review = new Review(sessionId, { composer: this.composer, place: (...names) => sessionPlace(sessionId, "changes", ...names) });
    this.progress = new Progress();
    this.heading = h("h1", { tabindex: "-1" }, "…");
    this.state = h("div", { class: "state" });
    this.facts = h("p", { class: "facts quiet" });
    this.agents = h("ul", { class: "agents", "aria-label": "Sub-agents", hidden: true });
    this.note = h("p", { class: "note", hidden: true });
    this.interrupt = actionButton("Interrupt…", { class: "danger", title: "Interrupt the turn (x)", hidden: true }, () => interrupt(sessionId));
    this.goOn = actionButton("Go on now", { hidden: true }, () => resumeTask(this.#waiting).then(this.refresh));
    this.stopWaiting = actionButton("Stop waiting…", { hidden: true }, () => cancelTask(this.#waiting).then(this.refresh));
    this.more = h("button", { type: "button", dataset: { part: "actions" }, onclick: () => this.#session && openActions(this.#session) }, "Actions…");
    this.questions = h("div", { class: "questions", role: "group", "aria-label": "Open questions" });
    this.turns = h("div", { class: "turns scroller", tabindex: "0" });
    this.element = h(
      "div",
      { class: "session" },
      h(
        "header",
        { class: "session-head" },
        h("a", { class: "back", href: "#/", "aria-label": "Back to the sessions" }, "‹"),
        h("div", { class: "title" }, this.heading, this.facts, this.progress.element, this.agents),
        h("div", { class: "actions" }, this.state, this.goOn, this.stopWaiting, this.interrupt, this.more),
      ),
      this.note,
      this.#tabs(),
      this.composer.element,
    );
    this.refresh = coalesced(() => this.#read(), 300);
    const { signal } = this.#closed;
    live.addEventListener("changes", (event) => this.#onChanges(event.detail), { signal });
    live.addEventListener("anew", () => this.#everything(), { signal });
    agents.addEventListener("agents", () => this.#session && this.composer.show(this.#session), { signal });
    hosts.addEventListener("hosts", () => this.#onHosts(), { signal });
    store.addEventListener("questions", () => this.#showQuestions(), { signal });
    store.addEventListener("sessions", () => this.#showTitle(), { signal });
    narrow.addEventListener("change", () => this.#placeQuestions(true), { signal });
  }

  async open() {
    this.#showQuestions();
    await this.#read();
    this.transcript.open();
    if (this.inside.length) this.goTo(this.inside);
    store.refreshFor(this.id); // looking at a session may attach to it, and so reveal questions
  }

  close() {
    markSeen(this.id);
    this.#closed.abort();
    this.progress.close();
  }

  /** A place in the session: nothing (the transcript), `changes`, `changes/FILE`, `changes/FILE/LINE`, `turns`, `turn/NUMBER`, `question/ID`. */
  goTo([part, ...more]) {
    const tab = { changes: 1, turns: 2 }[part] ?? 0;
    if (part === "question") return this.#openQuestion(more[0]);
    if (this.current !== tab) this.tabs[tab].show();
    if (part === "changes" && more.length) this.review.goTo(more[0], more[1] === undefined ? undefined : Number(more[1]));
    if (part === "turn") this.#openTurn(Number(more[0])).catch((error) => toast(error.message, "error"));
  }

  /** A question that an MCP client has linked to. It may not be loaded yet. */
  #openQuestion(id) {
    const card = this.#cards.get(id);
    this.#wanted = card?.isConnected ? null : id;
    if (!card?.isConnected) return;
    card.scrollIntoView({ block: "start" });
    card.focus();
  }

  async #openTurn(number) {
    const { turns } = await get(sessionPath(this.id, "turns"));
    const turn = turns.find((one) => one.number === number);
    if (turn) await this.transcript.jumpTo(turn.firstIndex);
    else toast(`There is no turn ${number} in this session.`, "error");
  }

  // --- tabs --------------------------------------------------------------------------------------------------------

  #tabs() {
    const panels = [
      ["Transcript", this.transcript.element, () => {}, ""],
      ["Changes", this.review.element, () => this.review.refresh(), "changes"],
      ["Turns", this.turns, () => this.#readTurns(), "turns"],
      ["Question", this.questions, () => {}, ""],
    ];
    const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the session" });
    this.tabs = panels.map(([name, content, fill, address], place) => {
      const [tabId, panelId] = [freshId("tab"), freshId("panel")];
      const tab = h("button", { type: "button", id: tabId, role: "tab", "aria-controls": panelId }, name);
      const panel = place === QUESTION ? content : h("div", { class: "panel", role: "tabpanel", "aria-labelledby": tabId }, content);
      panel.id = panelId;
      const show = () => {
        this.current = place;
        if (place !== QUESTION) this.#behind = place;
        this.#showTab();
        fill();
      };
      const select = () => {
        show();
        history.replaceState(null, "", sessionPlace(this.id, ...[address].filter(Boolean)));
      };
      tab.addEventListener("click", select);
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const offered = this.tabs.filter((one) => !one.tab.hidden);
        const next = offered.at((offered.findIndex((one) => one.tab === tab) + step) % offered.length);
        next.select();
        next.tab.focus();
      });
      list.append(tab);
      return { tab, panel, show, select, fill };
    });
    this.current = 0;
    this.#showTab();
    return [list, ...this.tabs.map(({ panel }) => panel)];
  }

  get #hasQuestionTab() {
    return narrow.matches && this.questions.childElementCount > 0;
  }

  #showTab() {
    const asks = this.#hasQuestionTab;
    for (const [place, { tab, panel }] of this.tabs.entries()) {
      const chosen = place === this.current;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      tab.hidden = place === QUESTION && !asks;
      panel.hidden = !chosen && (place !== QUESTION || asks);
    }
    this.element?.classList.toggle("asks", asks && this.current === QUESTION);
    this.element?.classList.toggle("reviews", this.current === REVIEW);
  }

  /** Show questions where there is room. A new one comes to the front, unless the user is typing. */
  #placeQuestions(isNew) {
    const asks = this.#hasQuestionTab;
    const writes = this.composer.element.contains(document.activeElement);
    if (asks && isNew && !writes) this.tabs[QUESTION].show();
    else if (!asks && this.current === QUESTION) this.tabs[this.#behind].show();
    else this.#showTab();
  }

  async #readTurns() {
    const { turns } = await get(sessionPath(this.id, "turns"));
    const open = (turn) => (location.hash = sessionPlace(this.id, "turn", turn.number));
    showTimeline(this.turns, turns, open, (turn) => rewindButton(this.id, turn));
  }

  // --- what changes ------------------------------------------------------------------------------------------------

  #onChanges(changes) {
    const kinds = new Set(changes.filter((change) => change.sessionId === this.id).flatMap((change) => change.kinds));
    if (!kinds.size) return;
    this.transcript.refresh();
    if (kinds.size > 1 || !kinds.has("text")) this.refresh();
  }

  /** Its machine was lost or found again: read what was missed. */
  #onHosts() {
    const { status } = hosts.get(hosts.of(this.id)) ?? {};
    if (status === "connected" && this.#host !== status) this.#everything();
    this.#host = status;
    if (this.#session) this.#show(this.#session);
  }

  #everything() {
    this.transcript.refresh();
    this.refresh();
  }

  async #read() {
    const before = this.#session;
    try {
      this.#show(await get(sessionPath(this.id)));
    } catch (error) {
      if (error.code === undefined && !hosts.of(this.id)) throw error;
      this.#session = before;
      if (before) return; // the last known state stays
      this.heading.textContent = error.code === "session_not_found" ? "There is no such session" : "This session cannot be read";
      this.element.classList.add("unknown");
      this.facts.textContent = error.code ? error.message : `${hosts.of(this.id)} gives an answer that is not valid.`;
    }
  }

  #show(session) {
    const before = this.#session;
    this.#session = session;
    if (document.visibilityState === "visible") markSeen(this.id);
    this.transcript.directory = session.workingDirectory;
    this.#showTitle();
    const status = session.resumesAt ? "waits" : session.status;
    redraw(this.state, [status, session.timedOut], () => [
      statusPill(status),
      session.timedOut ? timedOutPill(session.timedOut.length) : null,
    ]);
    this.interrupt.hidden = !["active", "awaiting_approval"].includes(session.status) || Boolean(session.elsewhere);
    for (const button of [this.goOn, this.stopWaiting]) button.hidden = !session.waitingTaskId;
    redraw(this.facts, [session, hosts.names], () => facts(session));
    this.progress.show(session);
    this.agents.hidden = !session.subAgents;
    redraw(this.agents, [session.subAgents], () => subAgents(session.subAgents ?? [], hosts.of(this.id)));
    const error = session.resumesAt ? undefined : session.error;
    const waits = session.resumesInSec === undefined ? undefined : `Usage limit reached. Resumes at ${dateTime(session.resumesAt)} (in ${duration(session.resumesInSec)}).`;
    const away = store.away.find(({ name }) => name === hosts.of(this.id));
    const lost = away && `${away.name} is away: ${away.problem} This is what was last known.`;
    const note = [lost, waits, error?.message ?? session.note].filter(Boolean).join(" ");
    this.note.hidden = !note;
    this.note.textContent = note;
    this.note.classList.toggle("bad", Boolean(error));
    this.composer.show(session);
    this.review.showVerb();
    if (before && before.status !== session.status) this.transcript.refresh();
    if (this.current > 0) this.tabs[this.current].fill();
  }

  /** The task that waits for its usage limit. */
  get #waiting() {
    return { taskId: this.#session.waitingTaskId, instruction: this.#session.prompt ?? "" };
  }

  #showTitle() {
    if (!this.#session) return;
    const { name, prompt, sessionId } = this.#session;
    const title = name ?? store.summary(this.id) ?? prompt?.trim().split("\n", 1)[0] ?? sessionId;
    if (title === this.heading.textContent) return;
    this.heading.textContent = title;
    setPlace(title.slice(0, 60));
  }

  #showQuestions() {
    const mine = store.questions.filter((question) => question.sessionId === this.id);
    const isNew = mine.some(({ id }) => !this.#cards.has(id));
    for (const question of mine) {
      if (!this.#cards.has(question.id)) this.#cards.set(question.id, questionCard(question, { withSession: false }));
    }
    arrange(this.questions, mine.map((question) => this.#cards.get(question.id)));
    this.tabs[QUESTION].tab.textContent = mine.length > 1 ? `Questions (${mine.length})` : "Question";
    this.#placeQuestions(isNew);
    if (this.#wanted !== null) this.#openQuestion(this.#wanted);
  }
}

/** Sub-agents as a tree: those that a sub-agent started are a list in its entry. */
function subAgents(all, host) {
  const lists = [[]];
  for (const one of all) {
    lists.length = one.depth + 1;
    const entry = subAgent(one, host);
    lists[one.depth].push(entry);
    lists.push({ push: (child) => (entry.querySelector("ul") ?? entry.appendChild(h("ul"))).append(child) });
  }
  return lists[0];
}

/** A sub-agent as a link to its own transcript, with its request, state and usage. */
function subAgent(one, host) {
  const spent = one.tokens ? ` ${tokens(one.tokens)} tokens${one.costUsd === undefined ? "" : `, ${money(one.costUsd)}`}` : "";
  const name = one.name ?? one.id.slice(-8);
  return h("li", {}, h("a", { href: sessionPlace(host ? `${host}:${one.id}` : one.id) }, name), ` ${one.status}${spent}`);
}

function facts(session) {
  const shown = [];
  const add = (...parts) => shown.push(h("span", {}, ...parts));
  const host = hosts.of(session.sessionId);
  if (host) add(hostMark(session.sessionId));
  if (session.agentTitle) add(h("span", { class: "agent" }, session.agentTitle));
  if (session.workingDirectory) add(h("span", { title: session.workingDirectory }, shortPath(session.repository ?? session.workingDirectory)));
  if (session.model) add(session.model);
  if (session.sandbox) add(session.sandbox);
  if (session.enforced === false) add(unenforcedPill(session));
  if (session.client) add(`answered by ${session.client}`);
  if (session.worktree) add(`worktree ${session.worktree.branch}`);
  add(count(session.turnCount, "turn"));
  if (session.usage) {
    add(`${tokens(session.usage.inputTokens + session.usage.outputTokens)} tokens`);
    add(session.costUsd === undefined ? "cost unknown" : money(session.costUsd));
  }
  if (session.queued) add(`${count(session.queued, "message")} queued`);
  if (!["active", "awaiting_approval"].includes(session.status) && session.changedAt) add(timeAgo(session.changedAt));
  add(h("span", { class: "mono", title: session.sessionId }, session.sessionId.slice(-8)), copyButton("session id", () => session.sessionId));
  return shown;
}
