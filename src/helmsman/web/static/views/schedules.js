// Scheduled work: what it does, when it is due, how it ended.

import { get, post, sessionPlace } from "../api.js";
import { askAndDo, confirmed } from "../dialog.js";
import { actionButton, arrange, h, toast } from "../dom.js";
import { dateTime, shortPath, statusPill, taskStatus, timeAgo } from "../format.js";
import { agentChoice, check, directoryInput, field, filledIn, POLICIES, SANDBOXES, select, suggest, textInput } from "./forms.js";
import { Page } from "./page.js";

const TONE = { active: "good", paused: "waiting", proposed: "waiting", over: "quiet" };
const WAYS = [
  ["cron", "by a cron line", "0 7 * * 1-5"],
  ["every", "every", "2h"],
  ["at", "once, at", "tomorrow 6:00"],
];

export class SchedulesView extends Page {
  #rows = new Map();

  constructor() {
    super("Schedules");
    this.list = h("ul", { class: "schedules" });
    this.empty = h("p", { class: "empty", hidden: true }, "No schedules yet.");
    this.head.append(h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => openNewSchedule(this.refresh) }, "Add a schedule…")));
    this.element.append(this.list, this.empty);
    this.follow("tasks", "status", "question");
  }

  async read() {
    const { schedules } = await get("schedules");
    const shown = await Promise.all(schedules.map((one) => get(`schedules/${encodeURIComponent(one.scheduleId)}`).catch(() => one)));
    if (this.signal.aborted) return;
    arrange(this.list, shown.map((schedule) => this.#row(schedule)));
    this.empty.hidden = shown.length > 0;
    this.ready();
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
    const act = (verb, said) => () => this.#do(schedule, verb, said);
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
    if (sure) await this.#do(schedule, "confirm", "Confirmed.");
  }

  async #remove(schedule) {
    const sure = await confirmed({
      title: "Remove this schedule?",
      about: [h("p", {}, schedule.prompt), h("p", { class: "quiet" }, "Runs already started continue, and stay in the list of tasks.")],
      yes: "Remove it",
    });
    if (sure) await this.#do(schedule, "remove", "Schedule removed.");
  }

  async #do({ scheduleId }, verb, said) {
    await post(`schedules/${encodeURIComponent(scheduleId)}/${verb}`);
    toast(said);
    await this.read();
  }
}

function run({ dueAt, task, taskId, note }) {
  const what = task?.sessionId ? h("a", { href: sessionPlace(task.sessionId) }, task.alias) : h("span", {}, task?.alias ?? taskId ?? note);
  return h("li", {}, timeAgo(dueAt), " ", task ? statusPill(taskStatus(task)) : h("span", { class: "pill quiet" }, taskId ? "gone" : "left out"), " ", what);
}

function openNewSchedule(added) {
  const prompt = h("textarea", { name: "prompt", rows: 4, required: true, placeholder: "Look at last night\u2019s failures" });
  const way = select("way", WAYS);
  const when = textInput("when", { required: true, placeholder: WAYS[0][2] });
  way.addEventListener("change", () => (when.placeholder = WAYS.find(([name]) => name === way.value)[2]));
  const directory = directoryInput();
  askAndDo({
    title: "New schedule",
    fields: [
      field("What should the agent do?", prompt),
      h("div", { class: "fields" }, field("It begins", way), field("When", when), field("Time zone", textInput("timezone", { placeholder: "the machine\u2019s" }))),
      h("div", { class: "fields" }, field("Agent", agentChoice("as configured")), field("Directory", directory.input)),
      directory.known,
      h("div", { class: "fields" }, field("It may write", select("sandbox", SANDBOXES)), field("It asks", select("approvalPolicy", POLICIES))),
      check("worktree", "Each run in its own git worktree"),
      check("unenforced", "Allow running without a sandbox. What you approve can then write anywhere."),
      h("p", { class: "quiet" }, "Questions stay open until you answer them."),
    ],
    yes: "Add",
    act: async (form) => {
      const { way: kind, when: time, ...given } = filledIn(form);
      await post("schedules", { ...given, [kind]: time });
      added();
    },
  });
  suggest(directory);
}
