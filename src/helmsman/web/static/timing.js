// Scheduling: not everything at once, and nothing more often than needed.

/** A function that runs `work` soon, never twice at a time and at most every `pause` milliseconds. */
export function coalesced(work, pause) {
  let running = false;
  let again = false;
  return async function request() {
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      do {
        again = false;
        await work();
        await wait(pause);
      } while (again);
    } finally {
      running = false;
    }
  };
}

export function debounced(work, pause) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), pause);
  };
}

/** Resolves when the current content of the page has been drawn, and its observers have run. */
export function nextFrame() {
  return new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
}

export function wait(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
