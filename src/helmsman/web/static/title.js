// The title and the icon of the window: the current page, and the number of open questions.

const ICON = "icon.svg";
const ASKING_ICON = "icon-asking.svg";

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
  const icon = document.querySelector("link[rel=icon]");
  const wanted = waiting ? ASKING_ICON : ICON;
  if (icon.getAttribute("href") !== wanted) icon.setAttribute("href", wanted);
}
