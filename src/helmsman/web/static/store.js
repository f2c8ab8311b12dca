// What several parts of the page show: the list of sessions, the open questions, the overview.
//
// Events: "sessions", "questions", "overview", each when what it names was read anew.

import { get } from "/api.js";
import { announce } from "/dom.js";
import { live } from "/live.js";
import { coalesced } from "/timing.js";

const PAGE = 100;
const LISTED_KINDS = new Set(["status", "question", "details", "sessions", "tasks"]);

class Store extends EventTarget {
  overview = null;
  questions = [];
  running = [];
  #recent = new Map();
  #nextCursor = null;
  #readAll = false;
  #filter = {};

  constructor() {
    super();
    this.refreshQuestions = coalesced(() => this.#readQuestions(), 150);
    this.refreshSessions = coalesced(() => this.#readSessions(), 800);
    this.refreshOverview = coalesced(() => this.#readOverview(), 2000);
    live.addEventListener("anew", () => this.refresh());
    live.addEventListener("changes", (event) => this.#onChanges(event.detail));
  }

  refresh() {
    this.refreshQuestions();
    this.refreshSessions();
    this.refreshOverview();
  }

  /** List only some sessions: of an agent, of a project, in a state. */
  only(filter) {
    this.#filter = filter;
    this.running = [];
    this.#recent = new Map();
    this.#nextCursor = null;
    this.#readAll = false;
    this.refreshSessions();
  }

  /** Sessions that do not run, newest first, as far as they were read. */
  get recent() {
    const running = new Set(this.running.map((session) => session.sessionId));
    return [...this.#recent.values()].filter((session) => !running.has(session.sessionId));
  }

  /** What a session is about, as the list says it. */
  summary(sessionId) {
    return (this.running.find((session) => session.sessionId === sessionId) ?? this.#recent.get(sessionId))?.summary;
  }

  get hasMore() {
    return this.#nextCursor !== null;
  }

  /** Read the next page of older sessions. */
  async more() {
    const cursor = this.#nextCursor;
    if (cursor === null) return;
    const page = await get("sessions", { limit: PAGE, cursor, ...this.#filter });
    if (cursor !== this.#nextCursor) return;
    for (const session of page.sessions) this.#recent.set(session.sessionId, session);
    this.#nextCursor = page.nextCursor ?? null;
    this.#tell("sessions");
  }

  #onChanges(changes) {
    const kinds = new Set(changes.flatMap((change) => change.kinds));
    if (kinds.has("question") || kinds.has("status")) this.refreshQuestions();
    if ([...kinds].some((kind) => LISTED_KINDS.has(kind))) {
      this.refreshSessions();
      this.refreshOverview();
    }
  }

  async #readQuestions() {
    const known = new Set(this.questions.map((question) => question.id));
    await quietly(async () => {
      this.questions = (await get("questions")).questions;
      const fresh = this.questions.filter((question) => !known.has(question.id));
      if (fresh.length) announce(fresh.map(spoken).join(" "));
      this.#tell("questions");
    });
  }

  async #readSessions() {
    await quietly(async () => {
      const filter = this.#filter;
      const [running, page] = await Promise.all([get("sessions", { running: 1, ...filter }), get("sessions", { limit: PAGE, ...filter })]);
      if (filter !== this.#filter) return; // another was chosen meanwhile
      this.running = running.sessions;
      const newest = new Map(page.sessions.map((session) => [session.sessionId, session]));
      if (!this.#readAll) this.#nextCursor = page.nextCursor ?? null;
      this.#readAll = true; // from now on the cursor is that of the oldest page that was read
      const last = page.nextCursor ? page.sessions.at(-1)?.timestamp : ""; // what is newer and not on the page is gone
      const older = [...this.#recent].filter(([id, { timestamp }]) => !newest.has(id) && timestamp <= last);
      this.#recent = new Map([...newest, ...older]);
      this.#tell("sessions");
    });
  }

  async #readOverview() {
    await quietly(async () => {
      this.overview = await get("overview");
      this.#tell("overview");
    });
  }

  #tell(type) {
    this.dispatchEvent(new Event(type));
  }
}

/** A question as it is announced: what is asked, and about what. */
function spoken({ title, lines }) {
  const [first] = lines;
  return first ? `${title}. ${first.label}: ${first.text}` : `${title}.`;
}

/** What is read again at the next change need not be complained about: the sign of life in the header tells of it. */
async function quietly(work) {
  try {
    await work();
  } catch (error) {
    if (error.name !== "ApiError" && error.code === undefined) throw error;
  }
}

export const store = new Store();
