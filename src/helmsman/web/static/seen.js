// Which sessions have ended since somebody looked at them in this browser.

const KEY = "helmsman-seen";
const MOST = 500;

let seen = null;

function all() {
  if (seen) return seen;
  try {
    seen = JSON.parse(localStorage.getItem(KEY)) ?? null;
  } catch {
    seen = null;
  }
  if (!seen || typeof seen.since !== "number") seen = { since: Date.now(), at: {} }; // sessions from before the first visit are not new
  keep();
  return seen;
}

function keep() {
  try {
    localStorage.setItem(KEY, JSON.stringify(seen));
  } catch {
    // storage may be forbidden; then it is lost with the page
  }
}

/** Whether a session has ended since it was last looked at. */
export function isUnread(session) {
  if (!session.status || ["active", "awaiting_approval"].includes(session.status)) return false;
  const { since, at } = all();
  return Date.parse(session.timestamp) > (at[session.sessionId] ?? since);
}

export function markSeen(sessionId) {
  const known = all();
  known.at[sessionId] = Date.now();
  const newest = Object.entries(known.at).sort((one, other) => other[1] - one[1]);
  known.at = Object.fromEntries(newest.slice(0, MOST));
  keep();
}

all(); // the first visit begins now, and not when the first session is listed
