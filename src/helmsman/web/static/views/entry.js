// One thing done in a turn, by its type.

import { copyButton } from "../copy.js";
import { h } from "../dom.js";
import { count, duration, pathIn } from "../format.js";
import { diffLines, fileHeading } from "./diff.js";
import { prose } from "./prose.js";

const SHORT_OUTPUT = 14;
const SHORT_DIFF = 60;

const NAMES = {
  user_message: "You",
  agent_message: "Agent",
  reasoning: "Thinking",
  command_execution: "Command",
  file_change: "Files",
  mcp_tool_call: "MCP tool",
  dynamic_tool_call: "Tool",
  web_search: "Web search",
  todo_list: "Plan",
  plan: "Plan",
  collab_tool_call: "Sub-agent",
  image_view: "Image",
  context_compaction: "Context",
  review: "Review",
  decision: "Question",
  error: "Error",
};

/** An entry of the transcript as an article. Paths are relative to `directory`; `turnPlace` gives the address of a turn, `agentPlace` of a sub-agent;
 * `readWhole` reads the entry again, uncut. */
export function entryElement(entry, { directory, turnPlace, agentPlace, readWhole }) {
  const { item } = entry;
  const body = (BODIES[item.type] ?? unknown)(item, directory, agentPlace);
  const running = item.status === "started" || item.status === "in_progress";
  const name = entry.by === "helmsman" ? "Helmsman" : (NAMES[item.type] ?? (item.name || item.type));
  return h(
    "article",
    {
      class: `entry ${item.type}`,
      dataset: { index: entry.index, state: running ? "running" : item.status },
      "aria-label": name,
    },
    h(
      "div",
      { class: "who" },
      h("span", { class: "name" }, name),
      item.type === "user_message" ? h("a", { class: "turn", href: turnPlace(entry.turn), title: "Link to this turn" }, `Turn ${entry.turn}`) : null,
      item.type === "agent_message" && !running ? copyButton("answer", () => item.text) : null,
      running ? h("span", { class: "spinner", role: "img", "aria-label": "under way" }) : null,
    ),
    h("div", { class: "what" }, body, entry.cut ? cutNote(entry, readWhole) : null),
  );
}

function cutNote(entry, readWhole) {
  const button = h("button", { type: "button", class: "link" }, "Show all");
  button.addEventListener("click", async () => {
    button.disabled = true;
    await readWhole(entry.index).catch(() => (button.disabled = false));
  });
  return h("p", { class: "cut" }, `${count(entry.cut, "character is", "characters are")} left out here. `, button);
}

// As Codex calls the states of sub-agents. Each is a session of its own.
const AGENT_STATUS = { pending_init: "starting", pendingInit: "starting", running: "running", completed: "done", interrupted: "interrupted", errored: "failed", shutdown: "ended", not_found: "gone", notFound: "gone" };

const BODIES = {
  user_message: (item) => [
    h("p", { class: "said" }, item.text),
    item.status === "completed" ? null : h("p", { class: "quiet" }, item.status === "failed" ? "The turn ended before the agent read this." : "The agent reads this as soon as it can."),
    item.images?.length ? h("p", { class: "quiet" }, count(item.images.length, "image")) : null,
  ],
  agent_message: (item) => prose(item),
  reasoning: (item) => foldable(firstLine(item.text) || "…", item.text.includes("\n") ? prose(item) : null, false),
  command_execution: command,
  file_change: (item, directory) => [
    item.declined ? h("p", { class: "quiet" }, "Declined; nothing was changed.") : null,
    (item.changes ?? []).map((one) => change(one, directory)),
  ],
  mcp_tool_call: (item) => toolCall(`${item.server} · ${item.tool}`, item),
  dynamic_tool_call: (item) => toolCall(item.tool, item),
  web_search: (item) => h("p", {}, item.query || "…"),
  todo_list: (item) => [item.explanation ? h("p", {}, item.explanation) : null, steps(item.steps ?? [])],
  plan: (item) => prose(item),
  collab_tool_call: (item, _directory, agentPlace) => [
    h("p", {}, item.prompt ?? item.tool),
    h("ul", { class: "agents" }, (item.agents ?? []).map((agent) => h("li", {}, h("a", { href: agentPlace(agent.id), class: "mono" }, agent.id.slice(-8)), ` ${AGENT_STATUS[agent.status] ?? agent.status}`, agent.message ? `: ${agent.message}` : ""))),
  ],
  image_view: (item) => h("p", { class: "mono" }, item.path),
  context_compaction: () => h("p", { class: "quiet" }, "The conversation was summarised to make room."),
  review: (item) => (item.text ? prose(item) : h("p", { class: "quiet" }, "Review started.")),
  decision: (item) => [h("p", {}, item.question), h("p", { class: item.by === "deadline" ? "bad" : "quiet" }, item.outcome)],
  error: (item) => h("p", {}, item.message),
};

function unknown(item) {
  return foldable(item.summary || item.name || item.type, output(JSON.stringify(item.payload ?? item, null, 2)), false);
}

function command(item) {
  const text = (item.output ?? "").replace(/\s+$/, "");
  const lines = text ? text.split("\n").length : 0;
  const failed = item.exitCode !== undefined && item.exitCode !== 0;
  const running = item.status === "started" || item.status === "in_progress";
  const line = h(
    "div",
    { class: "command-line" },
    h("code", { class: "mono", title: item.command }, item.script),
    h(
      "span",
      { class: "facts" },
      item.declined ? h("span", { class: "pill quiet" }, "declined") : null,
      failed ? h("span", { class: "pill bad" }, `exit ${item.exitCode}`) : null,
      item.exitCode === 0 ? h("span", { class: "pill good" }, "exit 0") : null,
      copyButton("command", () => item.script),
      item.durationMs >= 1000 ? h("span", { class: "quiet" }, duration(item.durationMs / 1000)) : null,
    ),
  );
  if (!text) return line;
  return [line, foldable(`${running ? "At least " : ""}${count(lines, "line")} of output`, output(text), lines <= SHORT_OUTPUT || failed || running)];
}

function change(file, directory) {
  const heading = fileHeading(file, (path) => pathIn(directory, path));
  if (!file.lines.length) return h("div", { class: "change" }, heading);
  return foldable(heading, diffLines(file), file.lines.length <= SHORT_DIFF);
}

function toolCall(name, item) {
  const result = item.error ?? item.result;
  return [
    h("p", { class: "mono" }, name),
    given(item.arguments) ? foldable("Arguments", output(asText(item.arguments)), false) : null,
    given(result) ? foldable(item.error ? "Error" : "Result", output(asText(result)), Boolean(item.error)) : null,
  ];
}

function steps(all) {
  const words = { completed: "done", in_progress: "under way", pending: "to do" };
  return h(
    "ol",
    { class: "steps" },
    all.map((step) =>
      h("li", { class: step.status }, h("span", {}, step.text), h("span", { class: "visually-hidden" }, ` (${words[step.status]})`)),
    ),
  );
}

function foldable(summary, content, open) {
  if (content === null) return h("p", { class: "quiet" }, summary);
  return h("details", { open }, h("summary", {}, summary), content);
}

function output(text) {
  return h("pre", { class: "output", tabindex: "0" }, text);
}

function given(value) {
  return value !== undefined && value !== null && value !== "" && !(typeof value === "object" && !Object.keys(value).length);
}

function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function firstLine(text) {
  return text.trim().split("\n", 1)[0].replaceAll("**", "");
}
