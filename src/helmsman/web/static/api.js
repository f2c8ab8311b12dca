// The HTTP API (helmsman/web/api.py says what is where). Every failure is an ApiError with a sentence for people.

import { released } from "./press.js";

// A browser has six connections for all requests of the page, and one is the stream. Requests to other machines may take long, and never
// take them all: this machine is read at once, however slow the others are.
class Line {
  #asked = new Set(); // machines, one request each at a time: a slow one does not delay the others
  #waiting = [];

  /** At most `most` machines are asked at the same time, each for `seconds`. */
  constructor(most, seconds) {
    Object.assign(this, { most, seconds });
  }

  /** Resolves when it is the turn of this machine. */
  async turn(host) {
    if (this.#isFree(host)) this.#asked.add(host);
    else await new Promise((resolve) => this.#waiting.push({ host, resolve }));
  }

  done(host) {
    this.#asked.delete(host);
    const next = this.#waiting.findIndex((one) => this.#isFree(one.host));
    if (next < 0) return;
    const [waiting] = this.#waiting.splice(next, 1);
    this.#asked.add(waiting.host);
    waiting.resolve();
  }

  #isFree(host) {
    return this.#asked.size < this.most && !this.#asked.has(host);
  }
}

const LINES = { GET: new Line(2, 12), POST: new Line(2, 60) };

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
  return call(`api/${path}${tail}`, {});
}

/** The path for another machine; without its name, for this one. */
export function on(host, path) {
  return host ? `${path}?${new URLSearchParams({ host })}` : path;
}

export function post(path, body = {}, options = {}) {
  const headers = { "Content-Type": "application/json", "X-Helmsman": "1" };
  return call(`api/${path}`, { method: "POST", headers, body: JSON.stringify(body), ...options });
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

/** An address of these parts. They come from outside: none may become more than one part. A machine's name before an id stays readable. */
function place(...parts) {
  return `#/${parts.filter((one) => one !== undefined).map((one) => encodeURIComponent(one).replaceAll("%3A", ":")).join("/")}`;
}

function call(url, options) {
  const [path, query = ""] = url.split("?");
  const host = new URLSearchParams(query).get("host") ?? /([^/]+)%3A/.exec(path)?.[1];
  return host ? callElsewhere(host, url, options) : callHere(url, options);
}

/** Ask something about another machine, when it is its turn, with a time limit. */
async function callElsewhere(host, url, options) {
  const method = options.method ?? "GET";
  const line = LINES[method];
  await line.turn(host);
  const signal = AbortSignal.timeout(line.seconds * 1000);
  try {
    return await callHere(url, { ...options, signal });
  } catch (error) {
    if (!signal.aborted) throw error;
    const about = method === "GET" ? "It is asked again." : "It may have been done: look before you repeat it.";
    throw new ApiError("host_unreachable", `The other machine does not answer. ${about}`);
  } finally {
    line.done(host);
  }
}

async function callHere(url, options) {
  try {
    return await callOnce(url, options);
  } catch (error) {
    if (error.code !== "wrong_token") throw error;
    if (await window.helmsmanDevice.logInAgain()) return await callOnce(url, options); // safe to repeat: the server has refused it
    onLoggedOut();
    throw error;
  }
}

async function callOnce(url, options) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch {
    throw new ApiError("unreachable", "Helmsman does not answer. Check that it is still running, and try again.");
  }
  const content = await answer.json().catch(() => ({}));
  await released(); // every redraw follows an answer
  if (answer.ok) return content;
  throw new ApiError(content.code ?? "unknown", content.message ?? `The server said ${answer.status}.`, content);
}
