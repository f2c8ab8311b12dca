// How long a question may still be answered. The page tells the server which questions are on its screen: while they are,
// their clock stands still. It says so again and again, so that a closed laptop or a killed tab soon stops counting. It says
// so of the session that is shown, too: a person who sees its turn end needs no notification.

import { post } from "./api.js";
import { h } from "./dom.js";
import { duration } from "./format.js";
import { store } from "./store.js";

const EVERY = 5000; // milliseconds; the server forgets after 15 seconds
const FORGET = 60_000; // milliseconds, for a card that was removed from the page
const PAGE = crypto.getRandomValues(new Uint32Array(2)).join("-");

const countdowns = new Set();
const onScreen = new Set(); // cards that are at least partly visible
let told = new Set(); // ids in the last report to the server
let timer = 0;

const observer = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) onScreen[isIntersecting ? "add" : "delete"](target);
  report();
});

/** A countdown for a question with a deadline. It stops while its card is on screen. */
export function countdown(question, card) {
  const line = h("p", { class: "deadline quiet" });
  countdowns.add({ id: question.id, card, line, left: 0, paused: false, since: 0 });
  learn(question.id, question.deadline);
  observer.observe(card);
  return line;
}

/** How a session looks whose questions were not answered in time: unlike one that is done. */
export function timedOutPill(number) {
  const words = number === 1 ? "A question timed out" : `${number} questions timed out`;
  return h("span", { class: "pill waiting", dataset: { timedOut: String(number) } }, words);
}

function learn(id, deadline) {
  for (const known of countdowns) {
    if (known.id !== id) continue;
    Object.assign(known, { left: deadline.secondsLeft, paused: deadline.paused, since: performance.now() });
    show(known);
  }
}

function show({ line, left, paused, since }) {
  const seconds = paused ? left : Math.max(0, left - (performance.now() - since) / 1000);
  line.dataset.state = paused ? "paused" : "running";
  line.textContent = paused
    ? `${duration(seconds)} left to answer, paused while you look`
    : `Denied in ${duration(seconds)} unless answered`;
}

function visibleIds() {
  if (document.visibilityState !== "visible") return new Set();
  return new Set([...countdowns].filter(({ card }) => card.isConnected && !card.inert && onScreen.has(card)).map(({ id }) => id));
}

/** The session on this page, if a turn of it runs. */
function visibleSession() {
  const [place, id] = location.hash.slice(2).split("/");
  const isShown = document.visibilityState === "visible" && place === "s";
  return isShown ? store.running.filter(({ sessionId }) => sessionId === decodeURIComponent(id)).map(({ sessionId }) => sessionId) : [];
}

/** Report to the server what is on screen now, and what no longer is. */
async function report() {
  clearTimeout(timer);
  const visible = visibleIds();
  const sessions = visibleSession();
  const shown = new Set([...visible, ...sessions]);
  const hidden = [...told].filter((id) => !shown.has(id));
  told = shown;
  timer = setTimeout(report, EVERY);
  if (!shown.size && !hidden.length) return;
  try {
    const { questions } = await post("shown", { page: PAGE, questions: [...visible], sessions, hidden }, { keepalive: true });
    for (const { id, deadline } of questions) learn(id, deadline);
  } catch (error) {
    if (error.code === undefined) throw error; // the next report repeats it
  }
}

document.addEventListener("visibilitychange", report);
store.addEventListener("sessions", () => visibleSession().some((id) => !told.has(id)) && report());
window.addEventListener("pagehide", () => {
  onScreen.clear();
  report();
});

setInterval(() => {
  for (const known of countdowns) {
    if (known.card.isConnected || performance.now() - known.since < FORGET) show(known);
    else {
      observer.unobserve(known.card);
      onScreen.delete(known.card);
      countdowns.delete(known);
    }
  }
}, 1000);
