// Spending: tokens by day, agent, model and directory; cost if the agent reports it or a price is known.

import { agentFilter, agents } from "../agents.js";
import { get } from "../api.js";
import { h, toast } from "../dom.js";
import { count, dateTime, duration, money, shortPath, tokens } from "../format.js";
import { bars, columns, PARTS, responsive, sum } from "./chart.js";
import { Page, segments, table, tile } from "./page.js";

const RANGES = [
  ["7 days", "7d"],
  ["30 days", "30d"],
  ["90 days", "90d"],
  ["All", "all"],
];
const MOST_BARS = 8;
const DAY = 86_400_000;

export class UsageView extends Page {
  #since = "30d";
  #agent = "";

  constructor() {
    super("Usage");
    this.head.append(
      agentFilter("Filter by agent", (agent) => this.#choose(this.#since, agent)),
      segments("Since when", "since", RANGES, this.#since, (since) => this.#choose(since)),
    );
    this.limits = h("section", { class: "limits", "aria-label": "Rate limits" });
    this.budgets = h("section", { class: "limits", "aria-label": "Budgets" });
    this.body = h("div", { class: "usage" }, h("p", { class: "empty" }, "Reading…"));
    this.element.append(this.limits, this.budgets, this.body);
  }

  async open() {
    this.#readLimits(); // not awaited: Codex may have to be started for it
    await super.open();
  }

  #choose(since, agent = this.#agent) {
    this.#since = since;
    this.#agent = agent;
    this.read().catch((error) => toast(error.message, "error"));
  }

  async #readLimits() {
    try {
      this.limits.replaceChildren(...limits(await get("account")));
    } catch (error) {
      this.limits.replaceChildren(h("p", { class: "quiet" }, `Rate limits are not known: ${error.message}`));
    }
  }

  async read() {
    const [since, agent] = [this.#since, this.#agent];
    const [day, model, directory, byAgent] = await Promise.all(
      ["day", "model", "directory", "agent"].map((by) => get("usage", { by, since, agent })),
    );
    if (since !== this.#since || agent !== this.#agent) return;
    this.budgets.replaceChildren(budgets(day.budgets));
    if (!day.total.turns) {
      this.body.replaceChildren(h("p", { class: "empty" }, "No tokens were spent in this time. Choose a longer one."));
      return;
    }
    this.body.replaceChildren(
      totals(day.total),
      figure("Tokens per day", "Day", everyDay(day.rows), (rows, width) => columns(rows, width), (row) => row.key),
      byAgent.rows.length > 1 ? figure("By agent", "Agent", byAgent.rows, named((row) => agents.title(row.key)), (row) => agents.title(row.key)) : "",
      h(
        "div",
        { class: "pair" },
        figure("By model", "Model", model.rows, named((row) => row.key ?? "unknown"), (row) => row.key ?? "unknown"),
        figure("By directory", "Directory", directory.rows, named((row) => shortPath(row.key ?? "unknown")), (row) => row.key ?? "unknown"),
      ),
      day.unpricedModels.length
        ? h("p", { class: "quiet" }, `Without a price, and so not in the cost: ${day.unpricedModels.join(", ")}.`)
        : "",
    );
  }
}

function named(name) {
  return (rows, width) => bars(rows.slice(0, MOST_BARS), width, name);
}

/** The rest of each limit of the account, and the time of its reset. */
function limits(account) {
  const tiles = account.limits.map((limit) => {
    const left = limit.resetsAt === undefined ? "" : `reset in ${duration(Math.max(0, (Date.parse(limit.resetsAt) - Date.now()) / 1000))}`;
    const when = limit.resetsAt === undefined ? {} : { title: dateTime(limit.resetsAt) };
    const length = limit.windowMinutes === undefined ? limit.name : `${limit.name}, ${duration(limit.windowMinutes * 60)}`;
    return tile(`Limit ${length}`, `${Math.round(limit.remainingPercent)} % left`, h("time", { datetime: limit.resetsAt ?? "", ...when }, left));
  });
  return [tiles.length ? h("dl", { class: "tiles" }, tiles) : "", h("p", { class: "quiet" }, tiles.length ? account.advice : `${account.login} ${account.advice}`)];
}

/** What is used today of each budget that is set. */
function budgets(states) {
  if (!states.length) return "";
  const shown = (state, amount) => (state.unit === "USD" ? money(amount) : tokens(amount));
  const tiles = states.map((state) =>
    tile(
      [state.project ? `Budget of ${shortPath(state.project)}` : "Budget of all work", state.fleet ? " of the fleet" : "", ", today"],
      `${shown(state, state.used)} of ${shown(state, state.budget)}`,
      state.isUsedUp ? "used up" : state.granted === undefined ? "" : `up to ${shown(state, state.granted)} was granted`,
    ),
  );
  return h("dl", { class: "tiles" }, tiles);
}

function totals(total) {
  const cached = total.inputTokens ? Math.round((100 * total.cachedInputTokens) / total.inputTokens) : 0;
  return h(
    "dl",
    { class: "tiles" },
    tile("Tokens", tokens(sum(total)), `in ${count(total.turns, "turn")}`),
    tile("Input", tokens(total.inputTokens), `${cached} % from the cache`),
    tile("Output", tokens(total.outputTokens), `${tokens(total.reasoningOutputTokens)} of it reasoning`),
    tile("Sessions", total.sessions.toLocaleString("en"), "with turns in this time"),
    total.costUsd === undefined
      ? tile("Cost", "unknown", "no model with a known price")
      : tile("Cost", money(total.costUsd), total.unpricedTokens ? "of what is known" : "as told by the agent, or by list price"),
  );
}

function figure(title, column, rows, draw, name) {
  const most = rows.reduce((best, row) => (sum(row) > sum(best) ? row : best), rows[0]);
  const sentence = `${title}. The most: ${name(most)} with ${tokens(sum(most))} tokens. The table below has every number.`;
  return h(
    "figure",
    {},
    h("figcaption", {}, h("h2", {}, title), legend()),
    responsive((width) => draw(rows, width), sentence),
    h("details", {}, h("summary", {}, "As a table"), tableOf(column, rows, name)),
  );
}

function legend() {
  return h("ul", { class: "legend", "aria-hidden": "true" }, PARTS.map(([part, label]) => h("li", { class: part }, label)));
}

function tableOf(column, rows, name) {
  const cells = (row) => [
    h("th", { scope: "row" }, name(row)),
    [row.inputTokens, row.cachedInputTokens, row.outputTokens, row.turns].map((value) => h("td", {}, value.toLocaleString("en"))),
    h("td", {}, row.costUsd === undefined ? "unknown" : `${money(row.costUsd)}${row.unpricedTokens ? "+" : ""}`),
  ];
  const heads = [column, "Input", "Cached", "Output", "Turns", "Cost"];
  const shown = table(heads, rows.filter((row) => row.turns).map(cells));
  return h("div", { class: "table-box", tabindex: "0", role: "group", "aria-label": `By ${column.toLowerCase()}` }, shown);
}

/** The rows with the days between them on which nothing was spent. */
function everyDay(rows) {
  const known = new Map(rows.map((row) => [row.key, row]));
  const nothing = { inputTokens: 0, cachedInputTokens: 0, outputTokens: 0, reasoningOutputTokens: 0, turns: 0, sessions: 0 };
  const first = Date.parse(`${rows[0].key}T12:00Z`);
  const days = Math.round((Date.parse(`${rows.at(-1).key}T12:00Z`) - first) / DAY) + 1;
  return Array.from({ length: days }, (_, place) => {
    const key = new Date(first + place * DAY).toISOString().slice(0, 10);
    return known.get(key) ?? { key, ...nothing };
  });
}
