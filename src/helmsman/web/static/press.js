// Between the press of a mouse button and its release nothing may change under the pointer: the browser drops the click when
// what was pressed is no longer there, and gives it to something else when it has moved. So what the server says waits.

const LONGEST = 5000; // milliseconds; the page may never hear of a release outside of the window

let over = Promise.resolve();
let release = null;

/** When nothing is pressed any more. */
export function released() {
  return over;
}

document.addEventListener(
  "pointerdown",
  () => {
    release?.();
    over = new Promise((resolve) => { release = resolve; });
    setTimeout(release, LONGEST);
  },
  { capture: true },
);

for (const type of ["pointerup", "pointercancel", "pointermove"]) {
  document.addEventListener(
    type,
    ({ buttons }) => {
      if (buttons || !release) return;
      setTimeout(release); // the click comes first, in this same task
      release = null;
    },
    { capture: true },
  );
}
