// The page: the current view, and the parts that all views share.

import { agents } from "./agents.js";
import { guardAnswers } from "./answering.js";
import { whenLoggedOut } from "./api.js";
import { toast } from "./dom.js";
import { listenToKeys } from "./keys.js";
import { live } from "./live.js";
import { notificationButton, showNotices, tellOfNotices, tellOfQuestions } from "./notices.js";
import { store } from "./store.js";
import { setWaiting } from "./title.js";
import { EnginesView } from "./views/engines.js";
import { openHelp } from "./views/help.js";
import { HomeView } from "./views/home.js";
import { JobView } from "./views/job.js";
import { SessionList } from "./views/list.js";
import { LoginView, takeCode } from "./views/login.js";
import { openNewSession } from "./views/new-session.js";
import { RulesView } from "./views/rules.js";
import { SchedulesView } from "./views/schedules.js";
import { SessionView } from "./views/session.js";
import { TasksView } from "./views/tasks.js";
import { UsageView } from "./views/usage.js";

const main = document.getElementById("main");
const pane = document.getElementById("list");
const list = new SessionList(pane);
let view = null;
let loggedOut = false;

const PLACES = {
  "": ["home", () => new HomeView()],
  tasks: ["tasks", () => new TasksView()],
  schedules: ["schedules", () => new SchedulesView()],
  usage: ["usage", () => new UsageView()],
  rules: ["rules", () => new RulesView()],
  engines: ["engines", () => new EnginesView(logOut)],
};

function show(name, made) {
  const first = view === null;
  view?.close();
  view = made;
  document.body.dataset.view = name;
  pane.hidden = !["home", "session"].includes(name);
  main.replaceChildren(view.element);
  for (const link of document.querySelectorAll(".places a")) {
    const isHere = link.hash === (name === "session" || name === "home" ? "#/" : `#/${name}`);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!first) view.heading.focus({ preventScroll: true }); // the next key and the screen reader start here
  view.open().catch((error) => toast(error.message, "error"));
  showNotices();
}

function route() {
  if (loggedOut || (location.hash && !location.hash.startsWith("#/"))) return; // "#main" is a place in the page
  const [place, id, ...inside] = location.hash.slice(2).split("/").map(decoded);
  if (place === "s" && id) {
    list.mark(id);
    if (view instanceof SessionView && view.id === id) view.goTo(inside);
    else show("session", new SessionView(id, inside));
    return;
  }
  list.mark(null);
  if (place === "" || place.startsWith("?")) {
    const [name, make] = PLACES[""];
    if (document.body.dataset.view !== name) show(name, make());
    list.place(location.hash);
    return;
  }
  if (place === "j" && id) {
    show("tasks", new JobView(id));
    return;
  }
  const [name, make] = PLACES[Object.hasOwn(PLACES, place) ? place : ""];
  show(name, make());
}

/** A part of an address; one that was typed by hand may be invalid. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** To the overview, at once: a change of the address alone would be seen only after the next keys. */
function home() {
  if (document.body.dataset.view === "home") return;
  history.pushState(null, "", "#/");
  route();
}

// --- in and out ------------------------------------------------------------------------------------------------------

function logOut() {
  if (!loggedOut) askForCode();
}

function askForCode(code) {
  loggedOut = true;
  live.stop();
  show("login", new LoginView(logIn, code));
}

function logIn() {
  loggedOut = false;
  live.start();
  agents.read();
  route();
}

whenLoggedOut(logOut);

// --- the header ------------------------------------------------------------------------------------------------------

const themeButton = document.getElementById("theme");
const THEMES = { "": ["◐", "Theme: system"], light: ["☀", "Theme: light"], dark: ["☾", "Theme: dark"] };

function showTheme() {
  const [sign, words] = THEMES[window.helmsmanTheme.get()];
  themeButton.textContent = sign;
  themeButton.title = words;
  themeButton.setAttribute("aria-label", words);
}

themeButton.addEventListener("click", () => {
  const order = Object.keys(THEMES);
  window.helmsmanTheme.set(order[(order.indexOf(window.helmsmanTheme.get()) + 1) % order.length]);
  showTheme();
});
document.getElementById("help").addEventListener("click", openHelp);
document.getElementById("new").addEventListener("click", openNewSession);

const sign = document.getElementById("live");
live.addEventListener("state", (event) => {
  sign.dataset.state = event.detail;
  sign.querySelector(".words").textContent = event.detail === "live" ? "Live" : "No connection";
});

store.addEventListener("questions", () => setWaiting(store.questions.length));
notificationButton(document.getElementById("notify"));
tellOfQuestions();
tellOfNotices();

guardAnswers();
listenToKeys({
  list,
  home,
  interrupt: () => view?.interrupt?.checkVisibility() && view.interrupt.click(),
  review: () => (view?.review?.element.checkVisibility() ? view.review : null),
});
window.addEventListener("hashchange", enter);
showTheme();
enter();

/** With a code: log in. Without: show the place that the address names. */
function enter() {
  const code = takeCode();
  if (code) askForCode(code);
  else route();
}

if (!loggedOut) {
  store.refresh(); // a browser that was logged out finds out here
  agents.read();
  live.start();
}
