// Work that is not urgent, in slices between frames, so that scrolling and typing stay smooth.

const LONGEST_WAIT = 300;
const SLICE = 8; // milliseconds

const waiting = [];
let asked = false;

/** Run each of these jobs in its turn. */
export function slowly(jobs) {
  waiting.push(...jobs);
  if (!asked && waiting.length) ask();
}

function ask() {
  asked = true;
  if (window.requestIdleCallback) requestIdleCallback(work, { timeout: LONGEST_WAIT });
  else setTimeout(work, 16);
}

function work() {
  asked = false;
  const end = performance.now() + SLICE;
  while (waiting.length && performance.now() < end) waiting.shift()();
  if (waiting.length) ask();
}
