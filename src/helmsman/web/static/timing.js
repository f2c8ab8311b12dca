// When things are done: not all at once, and not more often than they are worth.

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

/** When what is in the page now has been drawn, and those who observe it have been told. */
export function nextFrame() {
  return new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
}

export function wait(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
