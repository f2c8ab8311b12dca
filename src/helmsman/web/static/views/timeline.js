// A session's turns over time: duration, outcome and actions of each.

import { h, redraw, svg } from "../dom.js";
import { count, duration, statusPill, statusTone, timeAgo, tokens } from "../format.js";

const KINDS = {
  command_execution: ["command", "commands"],
  file_change: ["change", "changes"],
  mcp_tool_call: ["MCP call", "MCP calls"],
  web_search: ["search", "searches"],
  agent_message: ["message", "messages"],
};

/** Shows the turns as a list in `place`; each leads to its place in the transcript, and has the button made by `more`. */
export function showTimeline(place, turns, open, more) {
  if (!turns.length) return place.replaceChildren(h("p", { class: "empty" }, "No turn yet. The first message begins one."));
  const timed = turns.filter((turn) => turn.startedAt && turn.seconds !== undefined);
  const begin = Math.min(...timed.map((turn) => Date.parse(turn.startedAt)));
  const end = Math.max(...timed.map((turn) => Date.parse(turn.startedAt) + turn.seconds * 1000));
  let list = place.querySelector("ol.timeline");
  if (!list) place.replaceChildren((list = h("ol", { class: "timeline" })));
  while (list.children.length > turns.length) list.lastChild.remove();
  for (const [index, turn] of turns.entries()) {
    if (!list.children[index]) list.append(h("li", {}, h("button", { type: "button", class: "turn-row", dataset: { row: "" } }), more(turn)));
    const button = list.children[index].firstChild;
    button.onclick = () => open(turn);
    redraw(button, [turn, begin, end], () => parts(turn, begin, Math.max(1, end - begin)));
  }
}

function parts(turn, begin, span) {
  return [
    h("span", { class: "number" }, `Turn ${turn.number}`),
    h("span", { class: "prompt" }, turn.prompt ?? "…"),
    statusPill(turn.status),
    bar(turn, begin, span),
    h("span", { class: "facts quiet" }, facts(turn)),
  ];
}

/** Where the turn lies between the first one's beginning and the last one's end. */
function bar(turn, begin, span) {
  const drawn = svg("svg", { class: "bar", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  drawn.append(svg("rect", { class: "track", width: 1000, height: 10, rx: 2 }));
  if (turn.startedAt && turn.seconds !== undefined) {
    const x = ((Date.parse(turn.startedAt) - begin) / span) * 1000;
    const width = Math.max(8, ((turn.seconds * 1000) / span) * 1000);
    drawn.append(svg("rect", { class: statusTone(turn.status === "active" ? "active" : turn.status), x: Math.min(x, 992), width, height: 10, rx: 2 }));
  }
  return drawn;
}

function facts(turn) {
  const shown = [];
  if (turn.seconds !== undefined) shown.push(duration(turn.seconds));
  for (const [kind, [one, many]] of Object.entries(KINDS)) {
    if (turn.kinds[kind]) shown.push(count(turn.kinds[kind], one, many));
  }
  if (turn.usage) shown.push(`${tokens(turn.usage.inputTokens + turn.usage.outputTokens)} tokens`);
  const joined = shown.join(" · ");
  return turn.startedAt ? [joined, joined ? " · " : "", timeAgo(turn.startedAt)] : joined;
}
