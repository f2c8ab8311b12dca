// The sessions: waiting, running, ended. Or the results of a search, with tasks.

import { agents } from "../agents.js";
import { get, sessionPlace } from "../api.js";
import { timedOutPill } from "../deadline.js";
import { arrange, freshId, h, redraw } from "../dom.js";
import { believed, HERE, hostMark, hosts } from "../hosts.js";
import { count, duration, money, shortPath, statusPill, statusTone, statusWord, taskStatus, timeAgo, unenforcedPill } from "../format.js";
import { isUnread } from "../seen.js";
import { store } from "../store.js";
import { debounced, nextFrame } from "../timing.js";
import { Filters } from "./filters.js";
import { Selecting } from "./selecting.js";

const PAUSE = 150; // milliseconds without typing before a search begins
const MOST = 50; // results of a search on one machine
const AGAIN = 1000; // milliseconds until a search is repeated if not everything was indexed

export class SessionList {
  #rows = new Map();
  #groups = new Map();
  #found = null;
  #current = null;
  #endIsNear = false;
  #reading = false;
  #watching = null;
  #searched = null;

  constructor(pane) {
    const id = freshId("search");
    this.field = h("input", { id, type: "search", placeholder: "Search sessions and tasks", autocomplete: "off" });
    this.body = h("div", { class: "rows" });
    this.end = h("p", { class: "rows-end quiet", "aria-hidden": "true" });
    this.away = h("div", { class: "away", role: "status" });
    this.scroller = h("div", { class: "scroller" }, this.away, this.body, this.end);
    this.filters = new Filters(() => this.#filtered());
    this.selecting = new Selecting(pane);
    pane.append(
      h("div", { class: "search", role: "search" }, h("label", { for: id, class: "visually-hidden" }, "Search sessions and tasks"), this.field, h("kbd", { "aria-hidden": "true" }, "/"), this.filters.element, this.selecting.toggle, this.selecting.bar),
      this.scroller,
    );
    this.field.addEventListener("input", debounced(() => this.#search(), PAUSE));
    this.field.addEventListener("keydown", (event) => this.#onKey(event));
    store.addEventListener("sessions", () => this.#show());
    store.addEventListener("overview", () => this.#showAway());
    agents.addEventListener("agents", () => this.#show());
    const narrow = matchMedia("(max-width: 760px)"); // where the whole page scrolls, not the list
    narrow.addEventListener("change", () => this.#watchEnd(narrow.matches));
    this.#watchEnd(narrow.matches);
  }

  #watchEnd(isPage) {
    this.#watching?.disconnect();
    this.#watching = new IntersectionObserver(
      (seen) => {
        this.#endIsNear = seen.at(-1).isIntersecting;
        this.#more();
      },
      { root: isPage ? this.scroller.closest(".page") : this.scroller, rootMargin: "800px" },
    );
    this.#watching.observe(this.end);
  }

  /** Mark the session that is open. */
  mark(sessionId) {
    this.#current = sessionId;
    for (const [id, row] of this.#rows) {
      if (id === sessionId) row.setAttribute("aria-current", "page");
      else row.removeAttribute("aria-current");
    }
  }

  /** Apply the filters of the overview's address; without any there, the current ones stay and are added to it. */
  place(hash) {
    if (hash.includes("?") && this.filters.take(hash)) this.#search();
    else if (!hash.includes("?")) this.#keepAddress();
  }

  #filtered() {
    this.#keepAddress();
    this.#search();
  }

  #keepAddress() {
    if (document.body.dataset.view === "home" && (location.hash || "#/") !== this.filters.address) history.replaceState(null, "", this.filters.address);
  }

  clearSearch() {
    this.field.value = "";
    this.#found = null;
    this.#show();
  }

  #onKey(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.clearSearch();
      this.field.blur();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      this.body.querySelector("[data-row]")?.focus();
    }
  }

  /** Read older sessions until the end of the list is far away again. */
  async #more() {
    if (this.#reading) return;
    this.#reading = true;
    try {
      while (true) {
        await nextFrame(); // by then the observer has seen the added entries
        if (!this.#endIsNear || this.#found || !store.hasMore) return;
        await store.more();
      }
    } catch {
      // scrolling again asks again
    } finally {
      this.#reading = false;
    }
  }

  async #search() {
    const words = this.field.value.trim();
    if (!words) {
      this.clearSearch();
      return;
    }
    const { project: directory, agent, state, host } = this.filters.chosen;
    const search = (where) => get("search", { q: words, limit: MOST, directory, agent, host: where });
    const searched = (this.#searched = {}); // another search may begin in the meantime
    const others = hosts.names.filter((name) => !host || host === name).map((name) => search(name).catch(() => null));
    const nothing = { sessions: [], tasks: [] };
    const found = host && host !== HERE ? nothing : await search().catch((error) => ({ ...nothing, problem: error.message }));
    const show = () => {
      if (state) found.sessions = found.sessions.filter((session) => state === session.status || (state === "denied" && session.timedOut));
      this.#found = found;
      this.#show();
    };
    if (searched !== this.#searched || words !== this.field.value.trim()) return; // the user typed on
    show();
    if (found.unread !== undefined) setTimeout(() => searched === this.#searched && words === this.field.value.trim() && this.#search(), AGAIN);
    for (const other of others) {
      other.then((more) => {
        if (!more || searched !== this.#searched || this.#found !== found) return;
        for (const kind of ["sessions", "tasks"]) if (Array.isArray(more[kind])) found[kind] = [...found[kind], ...more[kind].filter((one) => typeof (one?.sessionId ?? one?.taskId) === "string").slice(0, MOST)];
        show();
      });
    }
  }

  #showAway() {
    redraw(this.away, store.away, () => store.away.map(({ name, problem }) => h("p", { class: "note", dataset: { away: name } }, h("span", { class: "host" }, name), " is away: ", problem)));
  }

  #show() {
    const groups = this.#found ? this.#foundGroups() : this.#sessionGroups();
    arrange(
      this.body,
      groups.map(([title, rows]) => this.#group(title, rows)),
    );
    if (!groups.length) this.body.replaceChildren(this.#nothing());
    this.end.textContent = this.#found?.unread ? `${count(this.#found.unread, "session is", "sessions are")} not indexed yet.` : !this.#found && store.hasMore ? "Reading older sessions…" : "";
    this.scroller.dataset.ready = "yes";
    this.#more();
  }

  #sessionGroups() {
    const waiting = store.running.filter((session) => session.status === "awaiting_approval");
    const running = store.running.filter((session) => session.status !== "awaiting_approval");
    return [
      ["Waiting for you", this.#rowsOf(waiting)],
      ["Running", this.#rowsOf(running)],
      ["Earlier", this.#rowsOf(store.recent)],
    ].filter(([, rows]) => rows.length);
  }

  #foundGroups() {
    return [
      ["Sessions", this.#rowsOf(this.#found.sessions)],
      ["Tasks", this.#found.tasks.map((task) => believed(task.taskId, () => taskRow(task))).filter(Boolean)],
    ].filter(([, rows]) => rows.length);
  }

  #nothing() {
    if (this.#found?.problem) return h("p", { class: "empty note bad", role: "alert" }, this.#found.problem);
    if (this.#found) return h("p", { class: "empty" }, "Nothing found. Every word has to be in what was said or done.");
    const { agent, ...others } = this.filters.chosen;
    if (Object.keys(others).length) return h("p", { class: "empty" }, "No sessions match these filters.");
    if (agent) return h("p", { class: "empty" }, `No sessions of ${agents.title(agent)}.`);
    return h("p", { class: "empty" }, store.hasListed ? "No sessions yet. Press n to start one." : "Reading…");
  }

  #group(title, rows) {
    if (!this.#groups.has(title)) {
      const id = freshId("group");
      const list = h("ul", { "aria-labelledby": id });
      this.#groups.set(title, { element: h("section", {}, h("h2", { id }, title), list), list });
    }
    const { element, list } = this.#groups.get(title);
    arrange(list, rows.map((row) => row.parentElement ?? h("li", {}, row)));
    return element;
  }

  #rowsOf(sessions) {
    return sessions.map((session) => believed(session.sessionId, () => this.#row(session))).filter(Boolean);
  }

  #row(session) {
    let row = this.#rows.get(session.sessionId);
    if (!row) {
      row = h("a", { class: "row", href: sessionPlace(session.sessionId), dataset: { row: "", session: session.sessionId } });
      h("li", {}, this.selecting.box(session.sessionId), row);
      if (session.sessionId === this.#current) row.setAttribute("aria-current", "page");
      this.#rows.set(session.sessionId, row);
    }
    const status = session.resumesAt ? "waits" : (session.status ?? "");
    const unread = session.sessionId !== this.#current && isUnread(session);
    row.classList.toggle("unread", unread);
    redraw(row, [session, unread, agents.all.length, hosts.all.length], () => [
      h("span", { class: `mark ${statusTone(status)}`, title: statusWord(status) }),
      h("span", { class: "summary" }, session.name ?? session.summary ?? "Without a prompt"),
      status ? h("span", { class: "visually-hidden" }, `(${statusWord(status)}${unread ? ", not looked at yet" : ""})`) : "",
      h(
        "span",
        { class: "under quiet" },
        hostMark(session.sessionId),
        agents.mark(session.agent),
        session.directory ? h("span", { class: "place", title: session.directory }, shortPath(session.repository ?? session.directory)) : null,
        (session.labels ?? []).map((label) => h("span", { class: "pill label" }, label)),
        unenforcedPill(session),
        session.timedOut ? timedOutPill(session.timedOut.length) : null,
        session.seconds ? h("span", { class: "spent", title: "Time at work" }, duration(session.seconds)) : null,
        session.costUsd === undefined ? null : h("span", { class: "spent", title: "Cost" }, money(session.costUsd)),
        timeAgo(session.timestamp),
      ),
      session.excerpt ? h("span", { class: "excerpt quiet" }, session.excerpt.map((part, place) => (place % 2 ? h("mark", {}, part) : part))) : null,
    ]);
    return row;
  }
}

function taskRow(task) {
  const place = task.sessionId ? sessionPlace(task.sessionId) : "#/tasks";
  const row = h(
    "a",
    { class: "row", href: place, dataset: { row: "", task: task.taskId } },
    h("span", { class: `mark ${statusTone(taskStatus(task))}` }),
    h("span", { class: "summary" }, task.instruction),
    h("span", { class: "under quiet" }, hostMark(task.taskId), agents.mark(task.agent), unenforcedPill(task), h("span", { class: "mono" }, task.alias ?? task.taskId), statusPill(taskStatus(task)), timeAgo(task.updatedAt)),
  );
  h("li", {}, row);
  return row;
}
