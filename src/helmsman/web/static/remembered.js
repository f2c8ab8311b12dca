// What this browser remembers. Storage may be forbidden: then nothing outlives the page.

/** The remembered value; null without one. */
export function recall(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

/** Remember a value; null forgets it. */
export function remember(key, value) {
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // see above
  }
}

/** The keys with this beginning, without it. */
export function remembered(beginning) {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(beginning)).map((key) => key.slice(beginning.length));
  } catch {
    return [];
  }
}
