// The HTTP API (helmsman/web/api.py says what is where). Every failure is an ApiError with a sentence for people.

import { released } from "/press.js";

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
  return `#/s/${[id, ...inside.filter((one) => one !== undefined)].map(encodeURIComponent).join("/")}`;
}

async function call(url, options) {
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
