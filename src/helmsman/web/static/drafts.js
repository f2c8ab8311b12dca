// Typed text that was not sent yet. It outlives closing the form, another page, a reload and a crash of the hub.

import { recall, remember, remembered } from "./remembered.js";

const PREFIX = "helmsman-draft:";

export function draft(key) {
  return recall(PREFIX + key) ?? "";
}

export function keepDraft(key, text) {
  remember(PREFIX + key, text.trim() ? text : null);
}

/** The ends of the keys of all drafts that begin with a prefix. */
export function draftsOf(beginning) {
  return remembered(PREFIX + beginning);
}

/** Fill a field with its draft, and keep what is typed. */
export function keepsDraft(field, key) {
  field.value ||= draft(key);
  field.addEventListener("input", () => keepDraft(key, field.value));
}
