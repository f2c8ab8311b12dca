// The registered tasks, local and in the cloud.

import { agentFilter, agents } from "../agents.js";
import { get, jobPlace, sessionPlace } from "../api.js";
import { actionButton, arrange, h, redraw, toast } from "../dom.js";
import { duration, money, shortPath, statusPill, taskStatus, timeAgo, unenforcedPill } from "../format.js";
import { believed, HERE, hostFilter, hostMark, hosts, newestFirst } from "../hosts.js";
import { cancelTask, resumeTask } from "./actions.js";
import { openNewJob } from "./new-job.js";
import { Page, segments } from "./page.js";

const PAGE = 100;
const WAITING = "waiting"; // of those under way
const FILTERS = [
  ["All", ""],
  ["Waiting for you", "waiting"],
  ["Running", "pending,working"],
  ["Done", "completed"],
  ["Failed", "failed,unknown"],
  ["Cancelled", "canceled"],
];

export class TasksView extends Page {
  #status = "";
  #agent = "";
  #rows = new Map();
  #host = "";
  #asked = new Set(); // other machines with a pending request
  #pages = new Map(); // of each machine: its newest tasks, the older ones that were read, and the cursor for more

  constructor() {
    super("Tasks");
    this.agent = agentFilter("Filter by agent", (agent) => this.#filter(this.#status, agent));
    this.host = hostFilter((host) => this.#filter(this.#status, this.#agent, host));
    this.list = h("ul", { class: "tasks" });
    this.further = actionButton("Show older tasks", { class: "more", hidden: true }, () => this.#readMore());
    this.empty = h("p", { class: "empty", hidden: true }, "No such tasks. Every turn that Helmsman starts becomes one.");
    this.head.append(
      this.agent,
      this.host,
      segments("Which tasks", "status", FILTERS, "", (status) => this.#filter(status)),
      h("button", { type: "button", dataset: { outcome: "" }, onclick: openNewJob }, "Ask for an outcome…"),
    );
    this.element.append(this.list, this.empty, this.further);
    this.follow("tasks", "status", "question");
    const { signal } = this;
    agents.addEventListener("agents", () => this.refresh(), { signal });
    hosts.addEventListener("hosts", () => this.refresh(), { signal });
  }

  #filter(status, agent = this.#agent, host = this.#host) {
    this.#status = status;
    this.#agent = agent;
    this.#host = host;
    this.#pages = new Map();
    this.read().catch((error) => toast(error.message, "error"));
  }

  get #wanted() {
    return this.#status === WAITING ? "pending,working" : this.#status;
  }

  /** Read the tasks of every machine. Only those of this machine are awaited. */
  async read() {
    const pages = this.#pages;
    const others = hosts.names.filter((name) => !this.#host || this.#host === name);
    for (const name of pages.keys()) if (name !== HERE && !others.includes(name)) pages.delete(name);
    for (const name of others.filter((one) => !this.#asked.has(one))) {
      this.#asked.add(name);
      this.#readOf(name, name, pages).catch(() => {}).finally(() => this.#asked.delete(name)); // the list of sessions shows which machines are offline
    }
    if (!this.#host || this.#host === HERE) await this.#readOf(HERE, undefined, pages);
    else this.#show();
  }

  async #readOf(name, host, pages) {
    const page = await get("tasks", { limit: PAGE, status: this.#wanted, agent: this.#agent, host });
    if (pages !== this.#pages) return void this.refresh(); // another filter was chosen in the meantime
    const before = pages.get(name) ?? { more: [], nextCursor: page.nextCursor ?? null };
    const newest = page.tasks.filter(({ taskId }) => typeof taskId === "string").slice(0, PAGE);
    pages.set(name, { ...before, newest, nextCursor: before.more.length ? before.nextCursor : (page.nextCursor ?? null) });
    this.#show();
  }

  async #readMore() {
    const pages = this.#pages;
    const reading = [...pages].filter(([, { nextCursor }]) => nextCursor !== null).map(async ([name, page]) => {
      const further = await get("tasks", { limit: PAGE, status: this.#wanted, agent: this.#agent, cursor: page.nextCursor, host: name === HERE ? undefined : name });
      pages.set(name, { newest: pages.get(name).newest, more: [...page.more, ...further.tasks.slice(0, PAGE)], nextCursor: further.nextCursor ?? null });
      if (pages === this.#pages) this.#show();
    });
    await Promise.any(reading).catch(({ errors: [error] }) => Promise.reject(error));
  }

  #show() {
    const pages = [...this.#pages.values()];
    const all = new Map(pages.flatMap(({ newest, more }) => [...newest, ...more]).map((task) => [task.taskId, task]));
    const shown = [...all.values()].filter((task) => this.#status !== WAITING || task.inputRequired);
    const tasks = pages.length > 1 ? shown.sort(newestFirst) : shown;
    arrange(this.list, tasks.map((task) => believed(task.taskId, () => this.#row(task))).filter(Boolean));
    this.empty.hidden = tasks.length > 0;
    this.further.hidden = pages.every(({ nextCursor }) => nextCursor === null);
    this.ready();
  }

  #row(task) {
    const row = this.#rows.get(task.taskId) ?? h("li", { dataset: { task: task.taskId } });
    const focused = row.contains(document.activeElement);
    redraw(row, [task, agents.all.length, hosts.all.length], () => taskParts(task, this.refresh));
    if (focused && !row.contains(document.activeElement)) row.querySelector("[data-row]")?.focus();
    this.#rows.set(task.taskId, row);
    return row;
  }
}

function taskParts(task, refresh) {
  const running = task.status === "pending" || task.status === "working";
  const cancel = () => cancelTask(task).then(refresh);
  const resume = () => resumeTask(task).then(refresh);
  const place = task.job ? jobPlace(task.taskId) : task.sessionId ? sessionPlace(task.sessionId) : null;
  const title = place
    ? h("a", { href: place, dataset: { row: "" } }, task.instruction)
    : h("span", { dataset: { row: "" }, tabindex: "0" }, task.instruction);
  const facts = [
    hostMark(task.taskId),
    agents.mark(task.agent),
    unenforcedPill(task),
    h("span", { class: "mono" }, task.alias ?? task.taskId),
    task.mode === "cloud" ? h("span", {}, "cloud") : null,
    task.model ? h("span", {}, task.model) : null,
    task.usage?.costUsd === undefined ? null : h("span", {}, money(task.usage.costUsd)),
    task.directory ? h("span", { title: task.directory }, shortPath(task.directory)) : null,
    timeAgo(task.updatedAt),
  ];
  const left = task.resumesInSec === undefined ? "" : ` That is in ${duration(task.resumesInSec)}.`;
  const outcome = task.error?.message ?? (task.note ? task.note + left : task.progress?.text);
  return [
    h("div", { class: "task-title" }, title, statusPill(taskStatus(task))),
    h(
      "div",
      { class: "task-more" },
      h(
        "div",
        {},
        h("div", { class: "facts quiet" }, facts),
        outcome ? h("p", { class: task.error ? "outcome bad" : "outcome quiet" }, String(outcome)) : null,
      ),
      task.sessionId && !task.job && !running && !task.unchanged ? h("a", { class: "button", href: sessionPlace(task.sessionId, "changes"), "aria-label": `Changes of ${task.alias ?? task.taskId}` }, "Changes") : null,
      safeLink(task.url) ? h("a", { class: "button", href: task.url, rel: "noopener noreferrer", target: "_blank" }, "Open in the cloud") : null,
      task.waitingFor === "quota" ? actionButton("Go on now", { "aria-label": `Go on now with ${task.alias ?? task.taskId}` }, resume) : null,
      running && !task.elsewhere && task.origin !== "cloud" ? actionButton("Cancel…", { "aria-label": `Cancel ${task.alias ?? task.taskId}` }, cancel) : null,
    ),
  ];
}

function safeLink(url) {
  return typeof url === "string" && url.startsWith("https://");
}
