// Which sessions have ended since somebody looked at them in this browser.

import { recall, remember } from "./remembered.js";

const KEY = "helmsman-seen";
const MOST = 500;

// Sessions from before the first visit are not new. Codex tells times in whole seconds: one that ends in this second is.
const known = recall(KEY)?.since ? recall(KEY) : { since: Math.floor(Date.now() / 1000) * 1000 - 1, at: {} };
remember(KEY, known);

/** Whether a session has ended since it was last looked at. */
export function isUnread(session) {
  if (!session.status || ["active", "awaiting_approval"].includes(session.status)) return false;
  return Date.parse(session.timestamp) > (known.at[session.sessionId] ?? known.since);
}

export function markSeen(sessionId) {
  known.at[sessionId] = Date.now();
  const newest = Object.entries(known.at).sort((one, other) => other[1] - one[1]);
  known.at = Object.fromEntries(newest.slice(0, MOST));
  remember(KEY, known);
}
