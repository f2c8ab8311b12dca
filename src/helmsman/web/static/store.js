// Data of several parts of the page: sessions, open questions, overview; of this machine and of the user's other ones.
//
// Each machine is read separately: one that is slow or offline does not delay the others, and its last known data stay.
//
// Events: "sessions", "questions", "overview", each after a new read.

import { announce } from "./dom.js";
import { HERE, hosts, newestFirst } from "./hosts.js";
import { live } from "./live.js";
import { Source } from "./source.js";
import { coalesced } from "./timing.js";

const LISTED_KINDS = new Set(["status", "question", "details", "sessions", "tasks"]);
const AGAIN = 5000; // milliseconds until a machine that failed to answer is asked again

class Store extends EventTarget {
  #here = new Source();
  #others = new Map(); // name of another machine → what is known of it, and how to read it anew
  #filter = {};
  #announced = new Set(); // ids of questions

  constructor() {
    super();
    this.refreshQuestions = coalesced(() => this.#read("questions", () => this.#here.readQuestions()), 150);
    this.refreshSessions = coalesced(() => this.#read("sessions", () => this.#here.readSessions()), 800);
    this.refreshOverview = coalesced(() => this.#read("overview", () => this.#here.readOverview()), 2000);
    live.addEventListener("anew", () => this.refresh());
    live.addEventListener("changes", (event) => this.#onChanges(event.detail));
    hosts.addEventListener("hosts", () => this.#onHosts());
  }

  refresh() {
    this.refreshQuestions();
    this.refreshSessions();
    this.refreshOverview();
    for (const { refresh } of this.#others.values()) refresh();
  }

  /** Read the session or task with this id again, after an action on it. */
  refreshFor(id) {
    const other = this.#others.get(hosts.of(id));
    if (other) other.refresh();
    else {
      this.refreshQuestions();
      this.refreshSessions();
    }
  }

  /** The machines whose questions are known. */
  get asked() {
    return new Set(this.#sources.filter(({ hasRead }) => hasRead).map(({ host }) => host));
  }

  /** The other machines that cannot be reached, or do not answer, and why. */
  get away() {
    return hosts.all.map(({ name, status, problem }) => ({ name, problem: status === "away" ? problem : this.#others.get(name)?.problem })).filter(({ problem }) => problem);
  }

  /** List only some sessions: of a machine, of an agent, of a project, in a state. */
  only(filter) {
    this.#filter = filter;
    for (const source of this.#sources) source.only(asked(filter));
    this.refreshSessions();
    for (const { refresh } of this.#others.values()) refresh();
  }

  /** Whether the sessions of this machine are known. */
  get hasListed() {
    return this.#here.hasListed;
  }

  get overview() {
    return this.#here.overview;
  }

  /** The last known state of another machine. */
  overviewOf(host) {
    return this.#others.get(host)?.source.overview ?? null;
  }

  get questions() {
    return this.#sources.flatMap(({ questions }) => questions);
  }

  get running() {
    return this.#listed.flatMap(({ running }) => running);
  }

  /** The sessions that were read and do not run, newest first. */
  get recent() {
    const listed = this.#listed;
    return listed.length === 1 ? listed[0].recent : listed.flatMap(({ recent }) => recent).sort(newestFirst);
  }

  /** The projects lately worked in, on the machines that are listed. */
  get projects() {
    return this.#listed.flatMap(({ overview }) => overview?.directories ?? []);
  }

  /** The title of a session, as in the list. */
  summary(sessionId) {
    return this.#sources.map((source) => source.find(sessionId)).find(Boolean)?.summary;
  }

  get hasMore() {
    return this.#listed.some(({ hasMore }) => hasMore);
  }

  /** Read the next page of older sessions of every machine; resolves with that of this machine. */
  async more() {
    const pages = this.#listed.filter(({ hasMore }) => hasMore).map((source) => source.more().then((read) => read && this.#tell("sessions")));
    if (pages.length) await Promise.any(pages).catch(({ errors: [error] }) => Promise.reject(error));
  }

  get #sources() {
    return [this.#here, ...[...this.#others.values()].map(({ source }) => source)];
  }

  get #listed() {
    const { host } = this.#filter;
    return host ? this.#sources.filter((source) => (source.host ?? HERE) === host) : this.#sources;
  }

  #onChanges(changes) {
    const ofHosts = changes.filter((change) => this.#hostOf(change));
    for (const name of new Set(ofHosts.filter(({ kinds }) => isListed(kinds)).map((change) => this.#hostOf(change)))) this.#others.get(name)?.refresh();
    const kinds = new Set(changes.filter((change) => !ofHosts.includes(change)).flatMap((change) => change.kinds));
    if (kinds.has("question") || kinds.has("status")) this.refreshQuestions();
    if (isListed([...kinds])) {
      this.refreshSessions();
      this.refreshOverview();
    }
  }

  #hostOf({ host, sessionId }) {
    return host ?? hosts.of(sessionId);
  }

  /** Other machines were added, removed, lost or found again. */
  #onHosts() {
    for (const name of this.#others.keys()) if (!hosts.get(name)) this.#forget(name);
    for (const { name, status } of hosts.all) {
      if (!this.#others.has(name)) this.#others.set(name, this.#other(name));
      const other = this.#others.get(name);
      if (status === "connected" && other.status !== status) other.refresh();
      other.status = status;
    }
    for (const type of ["sessions", "questions", "overview"]) this.#tell(type);
  }

  #forget(name) {
    clearTimeout(this.#others.get(name).timer);
    this.#others.delete(name);
  }

  #other(name) {
    const source = new Source(name);
    source.only(asked(this.#filter));
    const other = { source, status: null, problem: undefined, timer: 0 };
    // One request after the other: a slow machine takes only one connection of the browser.
    other.refresh = coalesced(async () => {
      clearTimeout(other.timer);
      if (hosts.get(name)?.status !== "connected") return;
      const before = other.problem;
      try {
        await this.#take("questions", () => source.readQuestions());
        await this.#take("sessions", () => source.readSessions());
        await this.#take("overview", () => source.readOverview());
        other.problem = undefined;
      } catch (error) {
        other.problem = error.code ? error.message : `${name} gives an answer that is not valid.`; // nor is it believed to
        if (this.#others.get(name) === other) other.timer = setTimeout(other.refresh, AGAIN);
      }
      if (before !== other.problem) this.#tell("overview");
    }, 500);
    return other;
  }

  /** Ignore a failure of a read that the next change repeats: the header shows whether the hub is there. */
  async #read(type, work) {
    try {
      await this.#take(type, work);
    } catch (error) {
      if (error.name !== "ApiError" && error.code === undefined) throw error;
    }
  }

  /** Read something, and send its event. */
  async #take(type, work) {
    if ((await work()) === false) return;
    const fresh = this.questions.filter((question) => !this.#announced.has(question.id));
    this.#announced = new Set(this.questions.map((question) => question.id));
    if (fresh.length) announce(fresh.map(spoken).join(" "));
    this.#tell(type);
  }

  #tell(type) {
    this.dispatchEvent(new Event(type));
  }
}

function asked({ host, ...filter }) {
  return filter;
}

function isListed(kinds) {
  return kinds.some((kind) => LISTED_KINDS.has(kind));
}

/** A question as it is announced: what is asked, about what, and on which machine. */
function spoken({ id, title, lines }) {
  const [first] = lines;
  const host = hosts.of(id);
  const where = host ? `On ${host}: ` : "";
  return first?.text ? `${where}${title}. ${first.label}: ${first.text}` : `${where}${title}.`;
}

export const store = new Store();
