// One session: how it stands, its transcript, what it changed, its turns, its questions, and what one can say to it.

import { agents } from "/agents.js";
import { get, sessionPath, sessionPlace } from "/api.js";
import { copyButton } from "/copy.js";
import { timedOutPill } from "/deadline.js";
import { actionButton, arrange, freshId, h, redraw, toast } from "/dom.js";
import { count, duration, money, shortPath, statusPill, timeAgo, tokens, unenforcedPill } from "/format.js";
import { live } from "/live.js";
import { store } from "/store.js";
import { coalesced } from "/timing.js";
import { setPlace } from "/title.js";
import { interrupt, openActions } from "/views/actions.js";
import { Composer } from "/views/composer.js";
import { Progress } from "/views/progress.js";
import { questionCard } from "/views/question.js";
import { Review } from "/views/review.js";
import { rewindButton } from "/views/rewind.js";
import { showTimeline } from "/views/timeline.js";
import { Transcript } from "/views/transcript.js";

export class SessionView {
  #session = null;
  #cards = new Map();
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
    this.note = h("p", { class: "note", hidden: true });
    this.interrupt = actionButton("Interrupt…", { class: "danger", title: "Interrupt the turn (x)", hidden: true }, () => interrupt(sessionId));
    this.more = h("button", { type: "button", dataset: { part: "actions" }, onclick: () => this.#session && openActions(this.#session) }, "Actions…");
    this.questions = h("div", { class: "questions" });
    this.turns = h("div", { class: "turns scroller", tabindex: "0" });
    this.element = h(
      "div",
      { class: "session" },
      h(
        "header",
        { class: "session-head" },
        h("a", { class: "back", href: "#/", "aria-label": "Back to the sessions" }, "‹"),
        h("div", { class: "title" }, this.heading, this.facts, this.progress.element),
        h("div", { class: "actions" }, this.state, this.interrupt, this.more),
      ),
      this.note,
      this.#tabs(),
      this.questions,
      this.composer.element,
    );
    this.refresh = coalesced(() => this.#read(), 300);
    const { signal } = this.#closed;
    live.addEventListener("changes", (event) => this.#onChanges(event.detail), { signal });
    live.addEventListener("anew", () => this.#everything(), { signal });
    agents.addEventListener("agents", () => this.#session && this.composer.show(this.#session), { signal });
    store.addEventListener("questions", () => this.#showQuestions(), { signal });
    store.addEventListener("sessions", () => this.#showTitle(), { signal });
  }

  async open() {
    this.#showQuestions();
    await this.#read();
    this.transcript.open();
    if (this.inside.length) this.goTo(this.inside);
    store.refreshQuestions(); // to look at a session may attach to it, and so bring questions to light
  }

  close() {
    this.#closed.abort();
    this.progress.close();
  }

  /** A place in the session: nothing (the transcript), `changes`, `changes/FILE`, `changes/FILE/LINE`, `turns`, `turn/NUMBER`. */
  goTo([part, ...more]) {
    const tab = { changes: 1, turns: 2 }[part] ?? 0;
    if (this.current !== tab) this.tabs[tab].show();
    if (part === "changes" && more.length) this.review.goTo(more[0], more[1] === undefined ? undefined : Number(more[1]));
    if (part === "turn") this.#openTurn(Number(more[0])).catch((error) => toast(error.message, "error"));
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
    ];
    const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the session" });
    const shown = [];
    this.tabs = panels.map(([name, content, fill, address], place) => {
      const [tabId, panelId] = [freshId("tab"), freshId("panel")];
      const panel = h("div", { id: panelId, class: "panel", role: "tabpanel", "aria-labelledby": tabId, hidden: place > 0 }, content);
      const tab = h("button", { type: "button", id: tabId, role: "tab", "aria-controls": panelId }, name);
      const show = () => {
        for (const [other, one] of this.tabs.entries()) {
          const chosen = one.tab === tab;
          one.tab.setAttribute("aria-selected", String(chosen));
          one.tab.tabIndex = chosen ? 0 : -1;
          shown[other].hidden = !chosen;
        }
        this.current = place;
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
        const next = this.tabs[(place + step + panels.length) % panels.length];
        next.select();
        next.tab.focus();
      });
      list.append(tab);
      shown.push(panel);
      return { tab, show, select, fill };
    });
    this.tabs[0].tab.setAttribute("aria-selected", "true");
    this.tabs.slice(1).forEach(({ tab }) => {
      tab.setAttribute("aria-selected", "false");
      tab.tabIndex = -1;
    });
    this.current = 0;
    return [list, ...shown];
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

  #everything() {
    this.transcript.refresh();
    this.refresh();
  }

  async #read() {
    try {
      this.#show(await get(sessionPath(this.id)));
    } catch (error) {
      if (this.#session) return; // the last that was known stays
      this.heading.textContent = error.code === "session_not_found" ? "There is no such session" : "This session cannot be read";
      this.facts.textContent = error.message;
    }
  }

  #show(session) {
    const before = this.#session;
    this.#session = session;
    this.transcript.directory = session.workingDirectory;
    this.#showTitle();
    const status = session.resumesAt ? "waits" : session.status;
    redraw(this.state, [status, session.timedOut], () => [
      statusPill(status),
      session.timedOut ? timedOutPill(session.timedOut.length) : null,
    ]);
    this.interrupt.hidden = !["active", "awaiting_approval"].includes(session.status) || Boolean(session.elsewhere);
    redraw(this.facts, session, () => facts(session));
    this.progress.show(session);
    const error = session.resumesAt ? undefined : session.error;
    const waits = session.resumesInSec === undefined ? undefined : `It waits for the usage limit, and goes on in ${duration(session.resumesInSec)}.`;
    const note = [waits, error?.message ?? session.note].filter(Boolean).join(" ");
    this.note.hidden = !note;
    this.note.textContent = note;
    this.note.classList.toggle("bad", Boolean(error));
    this.composer.show(session);
    this.review.showVerb();
    if (before && before.status !== session.status) this.transcript.refresh();
    if (this.current > 0) this.tabs[this.current].fill();
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
    for (const question of mine) {
      if (!this.#cards.has(question.id)) this.#cards.set(question.id, questionCard(question, { withSession: false }));
    }
    arrange(this.questions, mine.map((question) => this.#cards.get(question.id)));
  }
}

function facts(session) {
  const shown = [];
  const add = (...parts) => shown.push(h("span", {}, ...parts));
  if (session.agentTitle) add(h("span", { class: "agent" }, session.agentTitle));
  if (session.workingDirectory) add(h("span", { title: session.workingDirectory }, shortPath(session.workingDirectory)));
  if (session.model) add(session.model);
  if (session.sandbox) add(session.sandbox);
  if (session.enforced === false) add(unenforcedPill(session));
  if (session.worktree) add(`worktree ${session.worktree.branch}`);
  add(count(session.turnCount, "turn"));
  if (session.usage) {
    add(`${tokens(session.usage.inputTokens + session.usage.outputTokens)} tokens`);
    add(session.costUsd === undefined ? "cost unknown" : money(session.costUsd));
  }
  if (session.queued) add(`${count(session.queued, "message")} queued`);
  if (!["active", "awaiting_approval"].includes(session.status) && session.changedAt) add(timeAgo(session.changedAt));
  add(h("span", { class: "mono", title: session.sessionId }, session.sessionId.slice(0, 8)), copyButton("session id", () => session.sessionId));
  return shown;
}
