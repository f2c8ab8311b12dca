// Nothing may change under the pointer between the press of a mouse button and its release: the browser drops the click if
// the pressed element is gone, and gives it to another one if it has moved. So answers of the server wait until the release.

const LONGEST = 5000; // milliseconds; the page may never hear of a release outside of the window

let over = Promise.resolve();
let release = null;

/** Resolves when no button is pressed. */
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
