// Typed text that was not sent yet. It outlives closing the form, another page, a reload and a crash of the hub.

const PREFIX = "helmsman-draft:";

export function draft(key) {
  try {
    return localStorage.getItem(PREFIX + key) ?? "";
  } catch {
    return ""; // storage may be forbidden; then a draft lasts as long as its field
  }
}

export function keepDraft(key, text) {
  try {
    if (text.trim()) localStorage.setItem(PREFIX + key, text);
    else localStorage.removeItem(PREFIX + key);
  } catch {
    // see above
  }
}

/** The ends of the keys of all drafts that begin with a prefix. */
export function draftsOf(beginning) {
  try {
    return Object.keys(localStorage)
      .filter((key) => key.startsWith(PREFIX + beginning))
      .map((key) => key.slice(PREFIX.length + beginning.length));
  } catch {
    return [];
  }
}

/** Fill a field with its draft, and keep what is typed. */
export function keepsDraft(field, key) {
  field.value ||= draft(key);
  field.addEventListener("input", () => keepDraft(key, field.value));
}
