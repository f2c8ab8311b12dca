// The title of the window: where one is, and how many questions wait.

let place = "Helmsman";
let waiting = 0;

export function setPlace(words) {
  place = words ? `${words} · Helmsman` : "Helmsman";
  show();
}

export function setWaiting(questions) {
  waiting = questions;
  show();
}

function show() {
  document.title = waiting ? `(${waiting}) ${place}` : place;
}
