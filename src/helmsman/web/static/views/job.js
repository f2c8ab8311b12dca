// A job: the request, its state, and the findings of Helmsman: the verdict, the evidence, the check before
// and after, the change, the candidates.

import { agents } from "../agents.js";
import { get, post, sessionPlace } from "../api.js";
import { confirmed } from "../dialog.js";
import { actionButton, h, redraw, toast } from "../dom.js";
import { duration, money, shortPath, statusPill, taskStatus, timeAgo, tokens } from "../format.js";
import { diffLines, fileHeading, stat } from "./diff.js";
import { Page, table } from "./page.js";

const APPLIED = {
  applied: "It is in the main tree, unstaged.",
  not_asked: "Not applied: that was not requested. The change is in its worktree.",
  refused: "Not applied: it was not approved. The change is in its worktree.",
  failed: "It could not be applied.",
};

export class JobView extends Page {
  #id;

  constructor(id) {
    super("Job");
    this.#id = id;
    this.body = h("div", { class: "job" });
    this.element.append(this.body);
    this.follow();
  }

  async read() {
    const shown = await get(`tasks/${encodeURIComponent(this.#id)}/report`);
    this.heading.textContent = shown.task.instruction;
    redraw(this.body, shown, () => parts(shown, this.refresh));
    this.ready();
  }
}

function parts({ task, sessions, report, files }, refresh) {
  return [
    h("div", { class: "facts quiet" }, statusPill(taskStatus(task)), agents.mark(task.agent), h("span", { class: "mono" }, task.taskId), shortPath(task.directory ?? ""), timeAgo(task.updatedAt)),
    running(task) ? working(task, refresh) : null,
    running(task) && task.progress?.steps ? h("section", { dataset: { steps: "" } }, h("h2", {}, "Steps"), h("ol", { class: "evidence" }, task.progress.steps.map(step))) : null,
    sessions.length ? h("p", {}, task.inputRequired ? "One of its sessions waits for an answer: " : "Its sessions: ", sessions.map((id) => [h("a", { href: sessionPlace(id), class: "mono" }, id.slice(-8)), " "])) : null,
    report ? verdict(report) : task.error ? h("p", { class: "outcome bad" }, task.error.message) : null,
    report?.rootCause ? h("section", {}, h("h2", {}, "Root cause"), h("p", {}, report.rootCause.summary), list(report.rootCause.places.map(place))) : null,
    report?.judgement ? judgement(report.judgement) : null,
    report?.mutants ? mutants(report.mutants) : null,
    report?.comparison ? comparison(report.comparison) : null,
    report?.interfaces ? interfaces(report.interfaces) : null,
    report?.before || report?.after ? checks(report) : null,
    report?.evidence?.length ? h("section", {}, h("h2", {}, "Evidence"), h("ul", { class: "evidence" }, report.evidence.map(evidence))) : null,
    report?.checkChanges?.length ? section("Changes to the check, left out when it ran", report.checkChanges.map((one) => one.what)) : null,
    report?.notes?.length ? section("For you to look at: the check cannot tell", report.notes) : null,
    ...["findings", "refuted", "rejected"].map((word) => (report?.[word]?.length ? findings(word, report[word]) : null)),
    report?.steps?.length ? steps(report) : null,
    report?.candidates?.length > 1 ? candidates(report) : null,
    files?.length ? h("section", {}, h("h2", {}, "Change"), reviewed(report), files.map((file) => [h("p", { class: "file" }, fileHeading(file)), diffLines(file)])) : null,
  ];
}

function section(title, lines) {
  return h("section", {}, h("h2", {}, title), list(lines));
}

function running(task) {
  return task.status === "pending" || task.status === "working";
}

function working(task, refresh) {
  const cancel = async () => {
    const sure = await confirmed({ title: "Stop this job?", about: [h("p", {}, task.instruction)], yes: "Stop it", no: "Let it work" });
    if (!sure) return;
    const { message } = await post(`tasks/${encodeURIComponent(task.taskId)}/cancel`);
    toast(message);
    refresh();
  };
  return h("div", { class: "task-more" }, h("p", { class: "outcome quiet" }, task.progress?.text ?? "Started."), actionButton("Stop…", {}, cancel));
}

function verdict(report) {
  const [mark, tone] = report.verified ? ["✓ Verified", "good"] : ["✗ Not verified", "bad"];
  const applied = report.verified || report.applied !== "nothing" ? APPLIED[report.applied] : null;
  return h(
    "section",
    { class: `verdict ${tone}` },
    h("h2", {}, mark),
    h("p", {}, report.says),
    h("p", { class: "quiet" }, [applied, report.applyError].filter(Boolean).join(" ")),
    h("p", { class: "quiet" }, spent(report)),
  );
}

/** Who did it and why, how long it took, and what it used. */
function spent({ agent, why, seconds, tokens: used, costUsd }) {
  return [
    agent ? `${agent} (${why})` : null,
    seconds === undefined ? null : duration(seconds),
    used ? `${tokens(used)} tokens` : null,
    typeof costUsd === "number" ? money(costUsd) : null,
  ]
    .filter(Boolean)
    .join(", ");
}

/** The remarks of another agent on the change, with the lines that it quotes. */
function judgement(one) {
  const finding = (each) => h("li", { class: "bad" }, h("b", {}, each.why), " ", h("code", { class: "mono" }, `${each.file}: ${each.quote.trim()}`));
  return h(
    "section",
    { dataset: { judgement: one.state } },
    h("h2", {}, "Judgement"),
    h("p", {}, one.says),
    one.findings.length ? h("ul", { class: "evidence" }, one.findings.map(finding)) : null,
    one.rejected.length ? h("p", { class: "quiet" }, `${one.rejected.length} more quote lines that are not in the change, and do not count.`) : null,
  );
}

/** The check before and after, side by side. */
function checks(report) {
  const side = (name, run) =>
    h(
      "div",
      { dataset: { side: name } },
      h("h3", {}, name, " ", run ? h("span", { class: run.passed ? "pill good" : "pill bad" }, run.passed ? "passes" : "fails") : null),
      run ? h("pre", { class: "output", tabindex: "0", role: "group", "aria-label": `What the check said ${name}` }, run.output || "It said nothing.") : h("p", { class: "quiet" }, "It was not run."),
    );
  const command = report.check?.command ?? (report.before ?? report.after).command;
  return h(
    "section",
    {},
    h("h2", {}, "Check"),
    h("p", {}, h("code", { class: "mono" }, command), report.check?.folder ? ` in ${report.check.folder} ` : " ", h("span", { class: "quiet" }, report.check?.why ?? "")),
    h("div", { class: "sides" }, side("before", report.before), side("after", report.after)),
  );
}

function evidence(one) {
  const detail = one.detail ? h("details", {}, h("summary", {}, "What was seen"), h("pre", { class: "output", tabindex: "0" }, one.detail)) : null;
  return h("li", { class: one.ok ? "good" : "bad" }, `${one.ok ? "✓" : "✗"} ${one.what}`, detail);
}

function findings(word, all) {
  return h(
    "section",
    { dataset: { findings: word } },
    h("h2", {}, word[0].toUpperCase() + word.slice(1)),
    h(
      "ul",
      { class: "evidence" },
      all.map((one) =>
        h(
          "li",
          {},
          h("b", {}, one.priority === null || one.priority === undefined ? "" : `P${one.priority} `, one.title),
          " ",
          place(one),
          h("p", {}, one.body),
          h("p", { class: "quiet" }, [one.by.join(", "), one.secondLook ? `${one.secondLook.by}, second look: ${one.secondLook.why}` : null, one.verified ? null : one.evidence.what].filter(Boolean).join("; ")),
        ),
      ),
    ),
  );
}

/** A step of a plan or loop: its state, attempts and check. */
function step({ title, status, attempts, check, details }) {
  const tone = { done: "good", failed: "bad" }[status] ?? "";
  const tries = attempts > 1 ? `, ${attempts} attempts` : "";
  return h("li", { class: tone, dataset: { step: status } }, h("b", {}, title), ` (${status.replace("_", " ")}${tries}) `, details ?? "", check ? h("code", { class: "mono" }, ` ${check}`) : null);
}

function steps(report) {
  return h(
    "section",
    { dataset: { steps: "" } },
    h("h2", {}, "Steps"),
    h("ol", { class: "evidence" }, report.steps.map(step)),
    ...[["Risks", report.risks], ["Open questions", report.openQuestions]].map(([title, all]) => (all?.length ? [h("h3", {}, title), list(all)] : null)),
  );
}

function candidates(report) {
  const row = (one) =>
    [
      `${one.number}${one.winner ? " (winner)" : ""}`,
      one.agent,
      one.verified ? "✓" : `✗ ${one.error ?? ""}`,
      String(one.attempts),
      one.diff ? reviewLink(one.sessionId, stat(one.diff.added, one.diff.removed)) : "",
      one.checkSeconds === null || one.checkSeconds === undefined ? "" : `${one.checkSeconds.toFixed(1)} s`,
      one.sessionId ? h("a", { href: sessionPlace(one.sessionId), class: "mono" }, one.sessionId.slice(-8)) : "",
    ].map((value) => h("td", {}, value));
  const head = ["Candidate", "Agent", "Verified", "Attempts", "Lines", "Check", "Session"];
  return h(
    "section",
    {},
    h("h2", {}, "Candidates"),
    table(head, report.candidates.map(row), { class: "numbers" }),
    report.matrix?.length ? [h("h3", {}, "Which candidate passes the tests that each wrote"), matrix(report.matrix)] : null,
    report.compared ? h("p", {}, report.compared) : null,
  );
}

/** Which candidate passes the tests that each other one wrote. */
function matrix(entries) {
  const numbers = [...new Set(entries.flatMap((one) => [one.on, one.testsOf]))].sort((a, b) => a - b);
  const cell = (row, column) => {
    const one = entries.find((each) => each.testsOf === row && each.on === column);
    return h("td", { title: one?.what ?? "" }, one ? (one.passed ? "✓" : "✗") : "");
  };
  const rows = [...new Set(entries.map((one) => one.testsOf))].sort((a, b) => a - b);
  const cells = rows.map((row) => [h("th", { scope: "row" }, String(row)), numbers.map((column) => cell(row, column))]);
  return table(["Tests of", ...numbers.map((number) => `on ${number}`)], cells, { class: "numbers", dataset: { matrix: "" } });
}

/** A line for each function: a call that differs, how many calls do not, or why it was not compared. */
function comparison({ counterexamples, functions, notCompared }) {
  const differing = new Set(counterexamples.map((one) => one.function));
  const lines = [
    ...counterexamples.map((one) => h("li", { class: "bad" }, "✗ ", h("code", { class: "mono" }, one.call), ` ${one.before} before the change, and ${one.after} after it.`)),
    ...Object.entries(functions).filter(([name]) => !differing.has(name)).map(([name, calls]) => h("li", { class: "good" }, "✓ ", h("code", { class: "mono" }, name), `: the same for ${calls} calls.`)),
    ...Object.entries(notCompared).map(([name, why]) => h("li", { class: "quiet" }, h("code", { class: "mono" }, name), `: not compared, as ${why}.`)),
  ];
  return lines.length ? h("section", { dataset: { comparison: "" } }, h("h2", {}, "Functions before and after"), h("ul", { class: "evidence" }, lines)) : null;
}

/** Names of the public interface that a refactoring added, removed or changed. */
function interfaces(one) {
  const named = (word) => Object.keys(one[word]).map((name) => h("li", {}, `${word}: `, h("code", { class: "mono" }, name)));
  const lines = ["added", "removed", "changed"].flatMap(named);
  const others = one.unknown.length ? ` Not compared, as only Python can be read: ${one.unknown.join(", ")}.` : "";
  const same = others ? `No change was found.${others}` : "It is the same.";
  return h("section", { dataset: { interfaces: "" } }, h("h2", {}, "Public interface"), lines.length ? h("ul", { class: "evidence" }, lines) : h("p", {}, same));
}

/** How many mutants of the code the new tests noticed, and which one made each test fail. */
function mutants(one) {
  return h(
    "section",
    { dataset: { mutants: "" } },
    h("h2", {}, "Mutants"),
    h("p", {}, `The new tests killed ${one.killed} of ${one.tried} mutants of the code.`),
    h("ul", { class: "evidence" }, Object.entries(one.tests).map(([test, how]) => h("li", {}, h("b", {}, test), ` fails against ${how}`))),
  );
}

/** A link to the change in the session that made it, to comment on lines, apply or discard. */
function reviewed(report) {
  const made = report?.candidates?.find((one) => one.winner) ?? report?.candidates?.[0];
  return made?.sessionId ? h("p", {}, reviewLink(made.sessionId, "Review it, send comments back, apply or discard it")) : null;
}

function reviewLink(sessionId, words) {
  return sessionId ? h("a", { href: sessionPlace(sessionId, "changes") }, words) : words;
}

function list(all) {
  return h("ul", { class: "evidence" }, all.map((one) => h("li", {}, one)));
}

function place({ file, startLine, endLine }) {
  const lines = !startLine ? "" : endLine && endLine !== startLine ? `:${startLine}-${endLine}` : `:${startLine}`;
  return h("code", { class: "mono" }, `${file ?? ""}${lines}`);
}
