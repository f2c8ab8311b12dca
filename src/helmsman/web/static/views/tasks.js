// The registered tasks, local and in the cloud.

import { agentFilter, agents } from "/agents.js";
import { get, post, sessionPlace } from "/api.js";
import { confirmed } from "/confirm.js";
import { actionButton, arrange, h, redraw, toast } from "/dom.js";
import { duration, money, shortPath, statusPill, taskStatus, timeAgo, unenforcedPill } from "/format.js";
import { live } from "/live.js";
import { coalesced } from "/timing.js";
import { setPlace } from "/title.js";
import { openNewJob } from "/views/new-job.js";

const PAGE = 100;
const FILTERS = [
  ["All", ""],
  ["Running", "pending,working"],
  ["Done", "completed"],
  ["Failed", "failed,unknown"],
  ["Cancelled", "canceled"],
];

export class TasksView {
  #closed = new AbortController();
  #status = "";
  #agent = "";
  #rows = new Map();
  #more = [];
  #nextCursor = null;

  constructor() {
    this.heading = h("h1", { tabindex: "-1" }, "Tasks");
    this.filters = h(
      "div",
      { class: "segments", role: "group", "aria-label": "Which tasks" },
      FILTERS.map(([name, status]) =>
        h("button", { type: "button", "aria-pressed": String(status === ""), dataset: { status }, onclick: () => this.#filter(status) }, name),
      ),
    );
    this.agent = agentFilter("Filter by agent", (agent) => this.#filter(this.#status, agent));
    this.list = h("ul", { class: "tasks" });
    this.further = actionButton("Show older tasks", { class: "more", hidden: true }, () => this.#readMore());
    this.empty = h("p", { class: "empty", hidden: true }, "No such tasks. Every turn that Helmsman starts becomes one.");
    this.element = h(
      "div",
      { class: "wide scroller", tabindex: "0", role: "region", "aria-label": "Tasks" },
      h("div", { class: "page-head" }, this.heading, this.agent, this.filters, h("button", { type: "button", dataset: { outcome: "" }, onclick: openNewJob }, "Ask for an outcome…")),
      this.list,
      this.empty,
      this.further,
    );
    this.refresh = coalesced(() => this.#read().catch(() => {}), 800);
    const { signal } = this.#closed;
    live.addEventListener("changes", (event) => this.#onChanges(event.detail), { signal });
    live.addEventListener("anew", () => this.refresh(), { signal });
    agents.addEventListener("agents", () => this.refresh(), { signal });
  }

  async open() {
    setPlace("Tasks");
    await this.#read();
  }

  close() {
    this.#closed.abort();
  }

  #onChanges(changes) {
    if (changes.some((change) => change.kinds.some((kind) => ["tasks", "status", "question"].includes(kind)))) this.refresh();
  }

  #filter(status, agent = this.#agent) {
    this.#status = status;
    this.#agent = agent;
    this.#more = [];
    for (const button of this.filters.children) button.setAttribute("aria-pressed", String(button.dataset.status === status));
    this.#read().catch((error) => toast(error.message, "error"));
  }

  async #read() {
    const [status, agent] = [this.#status, this.#agent];
    const page = await get("tasks", { limit: PAGE, status, agent });
    if (status !== this.#status || agent !== this.#agent) return;
    if (!this.#more.length) this.#nextCursor = page.nextCursor ?? null;
    this.#show([...page.tasks, ...this.#more]);
  }

  async #readMore() {
    const page = await get("tasks", { limit: PAGE, status: this.#status, agent: this.#agent, cursor: this.#nextCursor });
    this.#more.push(...page.tasks);
    this.#nextCursor = page.nextCursor ?? null;
    await this.#read();
  }

  #show(tasks) {
    const all = new Map(tasks.map((task) => [task.taskId, task]));
    arrange(this.list, [...all.values()].map((task) => this.#row(task)));
    this.empty.hidden = all.size > 0;
    this.further.hidden = this.#nextCursor === null;
    this.element.dataset.ready = "yes";
  }

  #row(task) {
    const row = this.#rows.get(task.taskId) ?? h("li", { dataset: { task: task.taskId } });
    const focused = row.contains(document.activeElement);
    redraw(row, [task, agents.all.length], () => taskParts(task, this.refresh));
    if (focused && !row.contains(document.activeElement)) row.querySelector("[data-row]")?.focus();
    this.#rows.set(task.taskId, row);
    return row;
  }
}

function taskParts(task, refresh) {
  const running = task.status === "pending" || task.status === "working";
  const cancel = async () => {
    const sure = await confirmed({
      title: "Cancel this task?",
      about: [h("p", {}, task.instruction), h("p", { class: "quiet" }, "It is stopped where it is. What was changed until then stays changed.")],
      yes: "Cancel the task",
      no: "Let it work",
    });
    if (!sure) return;
    const { message } = await post(`tasks/${encodeURIComponent(task.taskId)}/cancel`);
    toast(message);
    refresh();
  };
  const resume = async () => {
    await post(`tasks/${encodeURIComponent(task.taskId)}/resume`);
    toast("Resumed.");
    refresh();
  };
  const place = task.job ? `#/j/${task.taskId}` : task.sessionId ? `#/s/${task.sessionId}` : null;
  const title = place
    ? h("a", { href: place, dataset: { row: "" } }, task.instruction)
    : h("span", { dataset: { row: "" }, tabindex: "0" }, task.instruction);
  const facts = [
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
      task.sessionId && !task.job && !running ? h("a", { class: "button", href: sessionPlace(task.sessionId, "changes"), "aria-label": `Changes of ${task.alias ?? task.taskId}` }, "Changes") : null,
      safeLink(task.url) ? h("a", { class: "button", href: task.url, rel: "noopener noreferrer", target: "_blank" }, "Open in the cloud") : null,
      task.waitingFor === "quota" ? actionButton("Go on now", { "aria-label": `Go on with ${task.alias ?? task.taskId}` }, resume) : null,
      running && !task.elsewhere ? actionButton("Cancel…", { "aria-label": `Cancel ${task.alias ?? task.taskId}` }, cancel) : null,
    ),
  ];
}

function safeLink(url) {
  return typeof url === "string" && url.startsWith("https://");
}
