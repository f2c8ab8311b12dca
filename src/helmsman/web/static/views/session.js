// One session: how it stands, its transcript, what it changed, its turns, its questions, and what one can say to it.

import { get, post, sessionPath } from "/api.js";
import { confirmed } from "/confirm.js";
import { timedOutPill } from "/deadline.js";
import { actionButton, arrange, freshId, h, redraw } from "/dom.js";
import { count, duration, money, shortPath, statusPill, timeAgo, tokens, unenforcedPill } from "/format.js";
import { live } from "/live.js";
import { store } from "/store.js";
import { coalesced } from "/timing.js";
import { setPlace } from "/title.js";
import { openActions } from "/views/actions.js";
import { Composer } from "/views/composer.js";
import { diffLines, fileHeading } from "/views/diff.js";
import { questionCard } from "/views/question.js";
import { showTimeline } from "/views/timeline.js";
import { Transcript } from "/views/transcript.js";

const OPEN_DIFFS = 20;

export class SessionView {
  #session = null;
  #cards = new Map();
  #closed = new AbortController();

  constructor(sessionId) {
    this.id = sessionId;
    this.transcript = new Transcript(sessionId);
    this.composer = new Composer(sessionId);
    this.heading = h("h1", { tabindex: "-1" }, "…");
    this.state = h("div", { class: "state" });
    this.facts = h("p", { class: "facts quiet" });
    this.note = h("p", { class: "note", hidden: true });
    this.interrupt = actionButton("Interrupt…", { class: "danger", title: "Interrupt the turn (x)", hidden: true }, () => this.#interrupt());
    this.more = h("button", { type: "button", dataset: { part: "actions" }, onclick: () => this.#session && openActions(this.#session) }, "Actions…");
    this.questions = h("div", { class: "questions" });
    this.changes = h("div", { class: "changes scroller", tabindex: "0" });
    this.turns = h("div", { class: "turns scroller", tabindex: "0" });
    this.element = h(
      "div",
      { class: "session" },
      h(
        "header",
        { class: "session-head" },
        h("a", { class: "back", href: "#/", "aria-label": "Back to the sessions" }, "‹"),
        h("div", { class: "title" }, this.heading, this.facts),
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
    store.addEventListener("questions", () => this.#showQuestions(), { signal });
    store.addEventListener("sessions", () => this.#showTitle(), { signal });
  }

  async open() {
    this.#showQuestions();
    await this.#read();
    this.transcript.open();
    store.refreshQuestions(); // to look at a session may attach to it, and so bring questions to light
  }

  close() {
    this.#closed.abort();
  }

  // --- tabs --------------------------------------------------------------------------------------------------------

  #tabs() {
    const panels = [
      ["Transcript", this.transcript.element, () => {}],
      ["Changes", this.changes, () => this.#readChanges()],
      ["Turns", this.turns, () => this.#readTurns()],
    ];
    const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the session" });
    const shown = [];
    this.tabs = panels.map(([name, content, fill], place) => {
      const [tabId, panelId] = [freshId("tab"), freshId("panel")];
      const panel = h("div", { id: panelId, class: "panel", role: "tabpanel", "aria-labelledby": tabId, hidden: place > 0 }, content);
      const tab = h("button", { type: "button", id: tabId, role: "tab", "aria-controls": panelId }, name);
      const select = () => {
        for (const [other, one] of this.tabs.entries()) {
          const chosen = one.tab === tab;
          one.tab.setAttribute("aria-selected", String(chosen));
          one.tab.tabIndex = chosen ? 0 : -1;
          shown[other].hidden = !chosen;
        }
        this.current = place;
        fill();
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
      return { tab, select, fill };
    });
    this.tabs[0].tab.setAttribute("aria-selected", "true");
    this.tabs.slice(1).forEach(({ tab }) => {
      tab.setAttribute("aria-selected", "false");
      tab.tabIndex = -1;
    });
    this.current = 0;
    return [list, ...shown];
  }

  async #readChanges() {
    const { files, cut } = await get(sessionPath(this.id, "diff"));
    this.changes.replaceChildren(
      ...(files.length
        ? files.map((file, place) => changedFile(file, place < OPEN_DIFFS))
        : [h("p", { class: "empty" }, "No changes are known of the current or last turn.")]),
    );
    if (cut) this.changes.append(h("p", { class: "quiet" }, `${count(cut, "character")} more are not shown.`));
  }

  async #readTurns() {
    const { turns } = await get(sessionPath(this.id, "turns"));
    const open = (index) => {
      this.tabs[0].select();
      this.transcript.jumpTo(index);
    };
    showTimeline(this.turns, turns, open);
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
    const error = session.resumesAt ? undefined : session.error;
    const waits = session.resumesInSec === undefined ? undefined : `It waits for the usage limit, and goes on in ${duration(session.resumesInSec)}.`;
    const note = [waits, error?.message ?? session.note].filter(Boolean).join(" ");
    this.note.hidden = !note;
    this.note.textContent = note;
    this.note.classList.toggle("bad", Boolean(error));
    this.composer.show(session);
    if (before && before.status !== session.status) this.transcript.refresh();
    if (this.current > 0) this.tabs[this.current].fill();
  }

  async #interrupt() {
    const sure = await confirmed({
      title: "Interrupt this turn?",
      about: h("p", {}, "The agent and the commands it runs are stopped where they are. What was changed until then stays changed."),
      yes: "Interrupt",
      no: "Let it work",
    });
    if (sure) await post(sessionPath(this.id, "interrupt"));
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

function changedFile(file, open) {
  const fold = h("details", { open: false }, h("summary", {}, fileHeading(file)));
  fold.addEventListener("toggle", () => fold.childElementCount === 1 && fold.append(diffLines(file)), { once: true });
  fold.open = open;
  return fold;
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
  if (session.progress?.text) add(session.progress.text);
  if (session.queued) add(`${count(session.queued, "message")} queued`);
  if (session.turnSeconds && session.status === "active") add(`running for ${duration(session.turnSeconds)}`);
  else if (session.changedAt) add(timeAgo(session.changedAt));
  return shown;
}
