// Numbers, times and places as people read them.

import { h } from "./dom.js";

const STATUS = {
  active: "Running",
  awaiting_approval: "Waiting for you",
  done: "Done",
  error: "Failed",
  interrupted: "Interrupted",
  pending: "Pending",
  working: "Running",
  completed: "Done",
  failed: "Failed",
  canceled: "Cancelled",
  unknown: "Unknown",
  waits: "Waits for its limit",
  denied: "Denied: no answer",
};

const TONE = {
  active: "active",
  working: "active",
  awaiting_approval: "waiting",
  pending: "quiet",
  waits: "waiting",
  done: "good",
  completed: "good",
  error: "bad",
  failed: "bad",
};

// A session without an enforced sandbox is marked in every list.
export function unenforcedPill(one) {
  return one.enforced === false ? h("span", { class: "pill bad", title: "Nothing holds what is approved to a sandbox" }, "not enforced") : null;
}

export function statusPill(status) {
  return h("span", { class: `pill ${TONE[status] ?? "quiet"}`, dataset: { status } }, STATUS[status] ?? status);
}

/** How a task stands, in one word: asking or waiting has precedence over working. */
export function taskStatus(task) {
  return task.inputRequired ? "awaiting_approval" : task.waitingFor ? "waits" : task.status;
}

export function statusTone(status) {
  return TONE[status] ?? "quiet";
}

export function statusWord(status) {
  return STATUS[status] ?? status;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function tokens(number) {
  if (number < 1000) return String(number);
  if (number < 99_950) return `${(number / 1000).toFixed(1)}k`;
  if (number < 999_500) return `${Math.round(number / 1000)}k`;
  return `${(number / 1e6).toFixed(number < 99.5e6 ? 1 : 0)}M`;
}

export function money(usd) {
  if (usd > 0 && usd < 0.005) return "< $0.01";
  return `$${usd < 10 ? usd.toFixed(2) : Math.round(usd).toLocaleString("en")}`;
}

export function duration(seconds) {
  if (seconds < 1) return "under 1 s";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  const [large, small] = minutes < 60 ? [minutes, Math.floor(seconds % 60)] : [Math.floor(minutes / 60), minutes % 60];
  const [one, other] = minutes < 60 ? ["min", "s"] : ["h", "min"];
  return small ? `${large} ${one} ${small} ${other}` : `${large} ${one}`;
}

/** The end of a path, which tells places apart; the whole path belongs in a title. */
export function shortPath(path) {
  const parts = path.split(/[\\/]/).filter(Boolean);
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : path;
}

/** A path as seen from a directory, if it is in there. */
export function pathIn(directory, path) {
  return directory && path.startsWith(`${directory}/`) ? path.slice(directory.length + 1) : path;
}

/** A local date and time as the terminal writes them: 2026-11-18 07:00. */
export function dateTime(when) {
  const date = new Date(when);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

function ago(then) {
  const seconds = Math.max(0, (Date.now() - then) / 1000);
  if (seconds < 45) return "now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 7 * 86_400) return count(Math.round(seconds / 86_400), "day") + " ago";
  return dateTime(then).slice(0, 10);
}

/** A time told by how long ago it was; it is updated by itself. */
export function timeAgo(iso) {
  const then = Date.parse(iso);
  if (Number.isNaN(then)) return null;
  return h("time", { datetime: iso, title: dateTime(then) }, ago(then));
}

setInterval(() => {
  for (const element of document.querySelectorAll("time[datetime]")) {
    const text = ago(Date.parse(element.getAttribute("datetime")));
    if (element.textContent !== text) element.textContent = text;
  }
}, 20_000);
