// The HTTP API (helmsman/web/api.py says what is where). Every failure is an ApiError with a sentence for people.

import { released } from "/press.js";

// A browser has six connections for all that the page asks, and one is the stream. What another machine is asked may take long, and never
// takes them all: what is of this one is read at once, however slow the others are.
const ELSEWHERE = { GET: { most: 2, seconds: 12 }, POST: { most: 2, seconds: 60 } };
const lines = { GET: { used: 0, waiting: [] }, POST: { used: 0, waiting: [] } };

export class ApiError extends Error {
  constructor(code, message, details = {}) {
    super(message);
    this.code = code;
    this.details = details;
  }
}

let onLoggedOut = () => {};

/** What to do when the server no longer knows this browser. */
export function whenLoggedOut(act) {
  onLoggedOut = act;
}

export function get(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  }
  const tail = query.size ? `?${query}` : "";
  return call(`/api/${path}${tail}`, {});
}

/** The path for another machine; without its name, for this one. */
export function on(host, path) {
  return host ? `${path}?${new URLSearchParams({ host })}` : path;
}

export function post(path, body = {}, options = {}) {
  const headers = { "Content-Type": "application/json", "X-Helmsman": "1" };
  return call(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body), ...options });
}

/** The path of a session's routes. */
export function sessionPath(id, ...rest) {
  return ["sessions", id, ...rest].map(encodeURIComponent).join("/");
}

/** The address of a place in a session, in this page. */
export function sessionPlace(id, ...inside) {
  return place("s", id, ...inside);
}

/** The address of a job, in this page. */
export function jobPlace(id) {
  return place("j", id);
}

/** An address of these parts. They are somebody's words: none is more than one part. A machine's name before an id stays readable. */
function place(...parts) {
  return `#/${parts.filter((one) => one !== undefined).map((one) => encodeURIComponent(one).replaceAll("%3A", ":")).join("/")}`;
}

function call(url, options) {
  const [path, query = ""] = url.split("?");
  return path.includes("%3A") || new URLSearchParams(query).has("host") ? callElsewhere(url, options) : callHere(url, options);
}

/** Ask something about another machine, when it is its turn, and not for ever. */
async function callElsewhere(url, options) {
  const method = options.method ?? "GET";
  const { most, seconds } = ELSEWHERE[method];
  const line = lines[method];
  if (line.used < most) line.used += 1;
  else await new Promise((resolve) => line.waiting.push(resolve));
  const signal = AbortSignal.timeout(seconds * 1000);
  try {
    return await callHere(url, { ...options, signal });
  } catch (error) {
    if (!signal.aborted) throw error;
    const about = method === "GET" ? "It is asked again." : "It may have been done: look before you repeat it.";
    throw new ApiError("host_unreachable", `The other machine does not answer. ${about}`);
  } finally {
    if (line.waiting.length) line.waiting.shift()();
    else line.used -= 1;
  }
}

async function callHere(url, options) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch {
    throw new ApiError("unreachable", "Helmsman does not answer. Check that it is still running, and try again.");
  }
  const content = await answer.json().catch(() => ({}));
  await released(); // all that is drawn anew is drawn because of an answer
  if (answer.ok) return content;
  const error = new ApiError(content.code ?? "unknown", content.message ?? `The server said ${answer.status}.`, content);
  if (error.code === "wrong_token") onLoggedOut();
  throw error;
}
