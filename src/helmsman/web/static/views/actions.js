// Actions on a session, beside messages. Those that its agent lacks are listed too, with the agents that have them.

import { agentsOf } from "../agents.js";
import { get, post, sessionPath, sessionPlace } from "../api.js";
import { askAndDo, confirmed, showDialog } from "../dialog.js";
import { freshId, h, toast } from "../dom.js";
import { count } from "../format.js";
import { store } from "../store.js";
import { field } from "./forms.js";
import { askForLabels } from "./selecting.js";

const ACTIONS = [
  { name: "interrupt", label: "Interrupt…", meaning: "The running turn is stopped where it is.", running: true, ask: ({ sessionId }) => interrupt(sessionId).catch((error) => toast(error.message, "error")) },
  { name: "rename", label: "Rename…", meaning: "Lists show the name.", needs: "rename", ask: rename },
  { name: "label", label: "Labels…", meaning: "To find it again in the list.", ask: ({ sessionId, labels }) => askForLabels([sessionId], () => store.refreshFor(sessionId), labels) },
  { name: "hand", label: "Hand to a client…", meaning: "The model of an MCP client may answer for it, or no longer.", ask: hand },
  { name: "review", label: "Review…", meaning: "A review of what it changed; its findings become part of the session.", ask: review },
  { name: "fork", label: "Fork…", meaning: "A new session that knows all this, up to now or to an earlier turn.", needs: "fork", ask: fork },
  { name: "compact", label: "Compact…", meaning: "The history becomes a summary, which makes room.", needs: "compact", idle: true, ask: compact },
  { name: "rollback", label: "Forget turns…", meaning: "The session no longer knows its last turns. Files stay as they are.", needs: "rollback", idle: true, ask: rollBack },
  { name: "archive", label: "Archive…", meaning: "It is hidden from lists until you bring it back.", needs: "archive", idle: true, ask: archive },
];
const BRING_BACK = { name: "unarchive", label: "Bring back", meaning: "It is archived: bring it back to continue.", needs: "archive", ask: bringBack };

/** The dialog with all actions. `session` is as in the API. */
export async function openActions(session) {
  const agents = agentsOf(session.sessionId);
  await agents.read();
  const agent = agents.get(session.agent);
  const running = ["active", "awaiting_approval"].includes(session.status);
  const canStop = running && !session.elsewhere;
  const offered = session.archived ? [BRING_BACK] : ACTIONS.filter((action) => canStop || !action.running);
  const content = [
    h("ul", { class: "action-list" }, offered.map((action) => h("li", {}, entry(action)))),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")),
  ];
  const dialog = showDialog("This session", content, { kind: "actions-dialog" });
  function entry({ name, label, meaning, needs, idle, ask }) {
    const can = !needs || (session.can ?? agent?.can ?? [needs]).includes(needs);
    const why = can ? (running && idle ? "While a turn runs this cannot be done. Wait for its end, or interrupt it." : "") : (agent?.cannot[needs] ?? "Its agent cannot do this.");
    const id = freshId("meaning");
    const press = () => {
      dialog.close();
      ask(session);
    };
    return [
      h("button", { type: "button", dataset: { action: name }, disabled: Boolean(why), "aria-describedby": id, onclick: press }, label),
      h("p", { id, class: "quiet" }, why || meaning),
    ];
  }
}

/** Stop the turn that runs, after a yes. */
export async function interrupt(sessionId) {
  const sure = await confirmed({
    title: "Interrupt this turn?",
    about: h("p", {}, "The agent and the commands it runs are stopped where they are. What was changed until then stays changed."),
    yes: "Interrupt",
    no: "Let it work",
  });
  if (sure) await post(sessionPath(sessionId, "interrupt"));
}

/** Start a task that waits for its usage limit. */
export async function resumeTask({ taskId }) {
  await post(`tasks/${encodeURIComponent(taskId)}/resume`);
  toast("Resumed.");
}

/** Stop a task, after a yes. */
export async function cancelTask({ taskId, instruction }) {
  const sure = await confirmed({
    title: "Cancel this task?",
    about: [h("p", {}, instruction), h("p", { class: "quiet" }, "It is stopped where it is. What was changed until then stays changed.")],
    yes: "Cancel the task",
    no: "Let it work",
  });
  if (!sure) return;
  const { message } = await post(`tasks/${encodeURIComponent(taskId)}/cancel`);
  toast(message);
}

function rename({ sessionId, name }) {
  const input = h("input", { name: "name", required: true, maxlength: "200", value: name ?? "", autocomplete: "off" });
  askAndDo({
    title: "Rename this session",
    fields: field("Name", input),
    yes: "Rename",
    act: async () => {
      await post(sessionPath(sessionId, "rename"), { name: input.value });
      store.refreshFor(sessionId);
    },
  });
}

function hand({ sessionId, client }) {
  const input = h("input", { name: "to", maxlength: "200", value: "", autocomplete: "off", placeholder: client ? "nobody" : "claude-code", required: !client });
  askAndDo({
    title: client ? `Hand this session on, or take it back from ${client}?` : "Hand this session to a client?",
    about: h("p", {}, "The model of every MCP client of this name may then answer its questions, apply its changes and rewind it, without asking you. Questions of your own sessions are otherwise answered by people."),
    fields: field(client ? "Name of the client (empty: take it back)" : "Name of the client", input),
    yes: client ? "Change" : "Hand over",
    danger: true,
    act: async () => {
      const to = input.value.trim();
      await post(sessionPath(sessionId, "hand"), to ? { to } : {});
    },
  });
}

function review({ sessionId }) {
  const words = h("textarea", { name: "instructions", rows: 3, placeholder: "Mind the error handling" });
  askAndDo({
    title: "Review what this session changed",
    about: h("p", {}, "The agent reads the change and says what it finds. Nothing is changed by it."),
    fields: field("What to look at besides (may be empty)", words),
    yes: "Review",
    act: async () => {
      const begun = await post(sessionPath(sessionId, "review"), { instructions: words.value });
      if (begun.nothing) return begun.nothing;
      location.hash = sessionPlace(begun.sessionId);
      return null;
    },
  });
}

async function fork({ sessionId, can, agent }) {
  const words = h("textarea", { name: "message", rows: 3 });
  const turns = await readTurns(sessionId);
  const atTurn = (can ?? agentsOf(sessionId).get(agent)?.can ?? []).includes("fork_at_turn");
  const place = h("select", { name: "fromTurn" }, h("option", { value: "" }, "all of it"), atTurn ? turns.slice(0, -1).map((turn) => h("option", { value: turn.number }, `up to turn ${turn.number}: ${turn.prompt ?? ""}`)) : null);
  askAndDo({
    title: "Fork this session",
    about: h("p", {}, "The new session works in the same directory. This one stays as it is."),
    fields: [field("Its first message (may be empty)", words), field("It knows", place)],
    yes: "Fork",
    act: async () => {
      const made = await post(sessionPath(sessionId, "fork"), { message: words.value.trim() || null, ...(place.value ? { fromTurn: Number(place.value) } : {}) });
      location.hash = sessionPlace(made.sessionId);
    },
  });
}

function compact({ sessionId }) {
  askAndDo({
    title: "Compact this session?",
    about: h("p", {}, "The agent goes on with a summary of what was said. The words themselves are lost to it; this cannot be undone."),
    yes: "Compact",
    danger: true,
    act: () => post(sessionPath(sessionId, "compact")).then(() => null),
  });
}

async function rollBack({ sessionId }) {
  const turns = await readTurns(sessionId);
  if (!turns.length) {
    toast("This session has no turns to forget.", "error");
    return;
  }
  const number = h("input", { name: "turns", type: "number", min: "1", max: String(turns.length), value: "1", required: true });
  const lost = h("ul", { class: "lost" });
  const show = () => lost.replaceChildren(...turns.slice(-Math.max(1, Number(number.value) || 1)).map((turn) => h("li", {}, `Turn ${turn.number}: ${turn.prompt ?? ""}`)));
  number.addEventListener("input", show);
  show();
  askAndDo({
    title: "Forget the last turns?",
    about: [h("p", {}, "The session no longer knows these turns. Files stay as the turns left them. This cannot be undone."), lost],
    fields: field(`How many (of ${count(turns.length, "turn")})`, number),
    yes: "Forget",
    danger: true,
    act: () => post(sessionPath(sessionId, "rollback"), { turns: Number(number.value) }).then(() => null),
  });
}

function archive({ sessionId }) {
  askAndDo({
    title: "Archive this session?",
    about: h("p", {}, "It is hidden from lists. You can bring it back, from its address or with `helmsman session unarchive`, but its files can no longer be rewound to the turns it had."),
    yes: "Archive",
    danger: true,
    act: async () => {
      await post(sessionPath(sessionId, "archive"));
      store.refreshFor(sessionId);
      location.hash = "#/";
      toast("Archived.");
    },
  });
}

async function bringBack({ sessionId }) {
  await post(sessionPath(sessionId, "unarchive")).catch((error) => toast(error.message, "error"));
  store.refreshFor(sessionId);
}

async function readTurns(sessionId) {
  const { turns } = await get(sessionPath(sessionId, "turns")).catch(() => ({ turns: [] }));
  return turns;
}
