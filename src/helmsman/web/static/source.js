// Data of one machine: the sessions that were read, its open questions, its state.
//
// Another machine may send anything, and any amount of it: entries without an id, and those that were not asked for, are left out.

import { get } from "./api.js";

const PAGE = 100;
const MOST = 500; // of what comes in one page

export class Source {
  overview = null;
  questions = [];
  hasRead = false; // whether its questions are known
  running = [];
  #recent = new Map();
  #nextCursor = null;
  #readAll = false;
  #filter = {};
  #reading = null;

  /** `host` is the name of another machine; without it, it is this one. */
  constructor(host) {
    this.host = host;
  }

  /** List only some sessions: of an agent, of a project, in a state. */
  only(filter) {
    this.#filter = filter;
    this.running = [];
    this.#recent = new Map();
    this.#nextCursor = null;
    this.#readAll = false;
  }

  /** The sessions that were read and do not run, newest first. */
  get recent() {
    const running = new Set(this.running.map((session) => session.sessionId));
    return [...this.#recent.values()].filter((session) => !running.has(session.sessionId));
  }

  find(sessionId) {
    return this.running.find((session) => session.sessionId === sessionId) ?? this.#recent.get(sessionId);
  }

  /** Whether its sessions are known, as filtered now. */
  get hasListed() {
    return this.#readAll;
  }

  get hasMore() {
    return this.#nextCursor !== null;
  }

  /** Read the next page of older sessions, once at a time; whether there was one. */
  more() {
    this.#reading ??= this.#readMore().finally(() => (this.#reading = null));
    return this.#reading;
  }

  async #readMore() {
    const cursor = this.#nextCursor;
    if (cursor === null) return false;
    const page = await this.#sessions({ limit: PAGE, cursor });
    if (cursor !== this.#nextCursor) return false;
    for (const session of page.sessions) this.#recent.set(session.sessionId, session);
    this.#nextCursor = page.nextCursor ?? null;
    return true;
  }

  async readQuestions() {
    const { questions } = await get("questions", { host: this.host });
    this.questions = questions.filter(({ id, sessionId, title, lines }) => [id, sessionId, title].every(isText) && Array.isArray(lines)).slice(0, MOST);
    this.hasRead = true;
  }

  /** Read what runs and the newest of the rest; whether that is what is still wanted. */
  async readSessions() {
    const filter = this.#filter;
    const [running, page] = await Promise.all([this.#sessions({ running: 1 }), this.#sessions({ limit: PAGE })]);
    if (filter !== this.#filter) return false; // another filter was chosen during the read
    this.running = running.sessions;
    const newest = new Map(page.sessions.map((session) => [session.sessionId, session]));
    if (!this.#readAll) this.#nextCursor = page.nextCursor ?? null;
    this.#readAll = true; // from now on the cursor is that of the oldest page that was read
    const last = page.nextCursor ? page.sessions.at(-1)?.timestamp : ""; // what is newer and not on the page is gone
    const older = [...this.#recent].filter(([id, { timestamp }]) => !newest.has(id) && timestamp <= last);
    this.#recent = new Map([...newest, ...older]);
    return true;
  }

  async readOverview() {
    const overview = await get("overview", { host: this.host });
    this.overview = { ...overview, directories: overview.directories.filter(isText).slice(0, MOST) };
  }

  async #sessions(wanted) {
    const { sessions, nextCursor } = await get("sessions", { ...wanted, ...this.#filter, host: this.host });
    return { sessions: sessions.filter(({ sessionId }) => isText(sessionId)).slice(0, MOST), nextCursor };
  }
}

function isText(value) {
  return typeof value === "string";
}
