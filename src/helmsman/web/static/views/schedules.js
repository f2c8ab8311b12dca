// Scheduled work: what it does, when it is due, how it ended.

import { agents } from "../agents.js";
import { get, post, sessionPlace } from "../api.js";
import { confirmed } from "../confirm.js";
import { actionButton, arrange, freshId, h, toast } from "../dom.js";
import { dateTime, shortPath, statusPill, taskStatus, timeAgo } from "../format.js";
import { live } from "../live.js";
import { coalesced } from "../timing.js";
import { setPlace } from "../title.js";
import { field, POLICIES, SANDBOXES, select, suggest } from "./new-session.js";

const TONE = { active: "good", paused: "waiting", proposed: "waiting", over: "quiet" };
const WAYS = [
  ["cron", "by a cron line", "0 7 * * 1-5"],
  ["every", "every", "2h"],
  ["at", "once, at", "tomorrow 6:00"],
];

export class SchedulesView {
  #closed = new AbortController();
  #rows = new Map();

  constructor() {
    this.heading = h("h1", { tabindex: "-1" }, "Schedules");
    this.list = h("ul", { class: "schedules" });
    this.empty = h("p", { class: "empty", hidden: true }, "No schedules yet.");
    const add = h("button", { type: "button", onclick: () => openNewSchedule(() => this.#read()) }, "Add a schedule…");
    this.element = h(
      "div",
      { class: "wide scroller", tabindex: "0", role: "region", "aria-label": "Schedules" },
      h("div", { class: "page-head" }, this.heading, h("div", { class: "buttons" }, add)),
      this.list,
      this.empty,
    );
    this.refresh = coalesced(() => this.#read().catch(() => {}), 800);
    const { signal } = this.#closed;
    live.addEventListener("changes", (event) => this.#onChanges(event.detail), { signal });
    live.addEventListener("anew", () => this.refresh(), { signal });
  }

  async open() {
    setPlace("Schedules");
    await this.#read();
  }

  close() {
    this.#closed.abort();
  }

  #onChanges(changes) {
    if (changes.some((change) => change.kinds.some((kind) => ["tasks", "status", "question"].includes(kind)))) this.refresh();
  }

  async #read() {
    const { schedules } = await get("schedules");
    const shown = await Promise.all(schedules.map((one) => get(`schedules/${encodeURIComponent(one.scheduleId)}`).catch(() => one)));
    if (this.#closed.signal.aborted) return;
    arrange(this.list, shown.map((schedule) => this.#row(schedule)));
    this.empty.hidden = shown.length > 0;
    this.element.dataset.ready = "yes";
  }

  #row(schedule) {
    const written = JSON.stringify(schedule);
    const known = this.#rows.get(schedule.scheduleId);
    if (known?.written === written) return known.element;
    const element = known?.element ?? h("li", { dataset: { schedule: schedule.scheduleId } });
    const label = element.contains(document.activeElement) ? document.activeElement.textContent : null;
    element.replaceChildren(this.#card(schedule));
    if (label) [...element.querySelectorAll("button")].find((button) => button.textContent === label)?.focus();
    this.#rows.set(schedule.scheduleId, { element, written });
    return element;
  }

  #card(schedule) {
    const act = (verb, said) => async () => {
      await post(`schedules/${encodeURIComponent(schedule.scheduleId)}/${verb}`);
      toast(said);
      await this.#read();
    };
    const isProposed = schedule.status === "proposed";
    const paused = schedule.status === "paused";
    return h(
      "article",
      { class: "card schedule", "aria-label": schedule.prompt },
      h(
        "p",
        { class: "facts" },
        h("span", { class: `pill ${TONE[schedule.status]}` }, schedule.status),
        schedule.proposedBy ? h("span", {}, `by ${schedule.proposedBy}; begins nothing until you confirm it`) : null,
        schedule.scheduleId.startsWith("S-fleet-") ? h("span", { class: "pill quiet" }, "fleet") : null,
        h("code", { class: "mono" }, schedule.when),
        schedule.nextAt ? h("span", {}, `next ${dateTime(schedule.nextAt)}`) : null,
        h("span", { class: "quiet" }, schedule.agent),
        schedule.sandbox ? h("span", { class: "quiet" }, schedule.sandbox) : null,
        h("span", { class: "quiet", title: schedule.cwd }, shortPath(schedule.cwd)),
      ),
      h("p", { class: "prompt" }, schedule.prompt),
      h("ul", { class: "runs", "aria-label": "Runs" }, (schedule.runs ?? []).slice(0, 5).map(run)),
      h(
        "div",
        { class: "buttons" },
        isProposed ? actionButton("Confirm…", {}, () => this.#confirm(schedule)) : actionButton("Run now", {}, act("run", "Started.")),
        isProposed || schedule.status === "over" ? null : paused ? actionButton("Resume", {}, act("resume", "Resumed.")) : actionButton("Pause", {}, act("pause", "Paused.")),
        actionButton("Remove…", { class: "danger" }, () => this.#remove(schedule)),
      ),
    );
  }

  /** The dialog shows everything that a yes grants, and is guarded against clicks that were meant for something else. */
  async #confirm(schedule) {
    const terms = {
      When: schedule.when,
      Directory: schedule.cwd,
      Agent: [schedule.agent, schedule.model].filter(Boolean).join(", "),
      "It may write": schedule.enforced === false ? `${schedule.sandbox ?? "anything"}, without a sandbox that holds it` : (schedule.sandbox ?? "as configured"),
      "It asks": schedule.approvalPolicy ?? "as configured",
    };
    const sure = await confirmed({
      title: `Confirm this schedule of ${schedule.proposedBy}?`,
      about: [
        h("p", { class: "prompt" }, schedule.prompt),
        h("ul", {}, Object.entries(terms).map(([name, value]) => h("li", {}, `${name}: ${value}`))),
      ],
      yes: "Confirm",
    });
    if (!sure) return;
    await post(`schedules/${encodeURIComponent(schedule.scheduleId)}/confirm`);
    toast("Confirmed.");
    await this.#read();
  }

  async #remove(schedule) {
    const sure = await confirmed({
      title: "Remove this schedule?",
      about: [h("p", {}, schedule.prompt), h("p", { class: "quiet" }, "Runs already started continue, and stay in the list of tasks.")],
      yes: "Remove it",
    });
    if (!sure) return;
    await post(`schedules/${encodeURIComponent(schedule.scheduleId)}/remove`);
    toast("Schedule removed.");
    await this.#read();
  }
}

function run({ dueAt, task, taskId, note }) {
  const what = task?.sessionId ? h("a", { href: sessionPlace(task.sessionId) }, task.alias) : h("span", {}, task?.alias ?? taskId ?? note);
  return h("li", {}, timeAgo(dueAt), " ", task ? statusPill(taskStatus(task)) : h("span", { class: "pill quiet" }, taskId ? "gone" : "left out"), " ", what);
}

function openNewSchedule(added) {
  const directories = freshId("directories");
  const prompt = h("textarea", { name: "prompt", rows: 4, required: true, placeholder: "Look at last night\u2019s failures" });
  const way = select("way", WAYS);
  const when = h("input", { name: "when", required: true, autocomplete: "off", placeholder: WAYS[0][2] });
  way.addEventListener("change", () => (when.placeholder = WAYS.find(([name]) => name === way.value)[2]));
  const agent = h("select", { name: "agent" }, h("option", { value: "" }, "as configured"));
  const directory = h("input", { name: "workingDirectory", list: directories, autocomplete: "off" });
  const known = h("datalist", { id: directories });
  const zone = h("input", { name: "timezone", autocomplete: "off", placeholder: "the machine\u2019s" });
  const problem = h("p", { class: "note bad", role: "alert", hidden: true });
  const submit = h("button", { type: "submit", class: "primary" }, "Add");
  const form = h(
    "form",
    {},
    field("What should the agent do?", prompt),
    h("div", { class: "fields" }, field("It begins", way), field("When", when), field("Time zone", zone)),
    h("div", { class: "fields" }, field("Agent", agent), field("Directory", directory)),
    known,
    h("div", { class: "fields" }, field("It may write", select("sandbox", SANDBOXES)), field("It asks", select("approvalPolicy", POLICIES))),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "worktree" }), h("span", {}, "Each run in its own git worktree")),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "unenforced" }), h("span", {}, "Without a sandbox, if need be: nothing then holds what you approve")),
    h("p", { class: "quiet" }, "Questions stay open until you answer them."),
    problem,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit),
  );
  const title = freshId("title");
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": title }, h("h2", { id: title }, "New schedule"), form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      await post("schedules", values(form));
      dialog.close();
      await added();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    } finally {
      submit.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  prompt.focus();
  suggest(directory, known);
  agents.read().then(() => agent.append(...agents.all.filter((one) => one.installed).map((one) => h("option", { value: one.agent }, one.title))));
}

function values(form) {
  const { way, when, ...given } = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
  for (const name of ["worktree", "unenforced"]) if (given[name]) given[name] = true;
  return { ...given, [way]: when };
}
