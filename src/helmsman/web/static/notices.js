// Telling of a new question at once: in the page, wherever in it one is, and by the browser if it may.
//
// A notice only leads to its question and answers nothing. It goes when the question is closed or stands on the page anyway.
// The browser's own notifications need its permission, which is asked for by a click and never by itself.

import { arrange, h } from "/dom.js";
import { store } from "/store.js";

const WANTED = "helmsman-notifications";
const MOST = 3;

const shown = new Map(); // question id → its notice
const told = new Map(); // question id → its notification
let known = null; // ids of the questions that were open when last looked

export function tellOfQuestions() {
  store.addEventListener("questions", () => {
    const open = new Map(store.questions.map((question) => [question.id, question]));
    const fresh = [...open.values()].filter((question) => known !== null && !known.has(question.id));
    known = new Set(open.keys());
    for (const [id, notification] of told) if (!open.has(id)) forgetNotification(id, notification);
    for (const question of fresh) notify(question);
    for (const [id] of shown) if (!open.has(id)) drop(id);
    for (const question of fresh) shown.set(question.id, notice(question));
    queueMicrotask(showNotices); // after the view has put the questions on the page that belong there
  });
}

/** The button that turns the browser's notifications on and off. It is not there where the browser has none. */
export function notificationButton(button) {
  button.hidden = !("Notification" in window) || !window.isSecureContext;
  const show = () => {
    const [words, pressed] =
      Notification.permission === "denied"
        ? ["The browser does not allow notifications for this page", false]
        : mayNotify()
          ? ["Notifications of new questions: on", true]
          : ["Notifications of new questions: off", false];
    button.title = words;
    button.setAttribute("aria-label", words);
    button.setAttribute("aria-pressed", String(pressed));
  };
  if (button.hidden) return;
  button.addEventListener("click", async () => {
    if (mayNotify()) localStorage.removeItem(WANTED);
    else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(WANTED, "yes");
    show();
  });
  show();
}

function mayNotify() {
  return Notification.permission === "granted" && localStorage.getItem(WANTED) === "yes";
}

function notify(question) {
  if (!("Notification" in window) || !mayNotify() || (document.visibilityState === "visible" && document.hasFocus())) return;
  const notification = new Notification("Codex asks you", { body: question.summary ?? "", tag: question.id, icon: "/icon-asking.svg" });
  notification.addEventListener("click", () => {
    window.focus();
    location.hash = `#/s/${question.sessionId}`;
    notification.close();
  });
  told.set(question.id, notification);
}

function forgetNotification(id, notification) {
  notification.close();
  told.delete(id);
}

// --- in the page -----------------------------------------------------------------------------------------------------

function notice(question) {
  return h(
    "div",
    { class: "notice", dataset: { notice: question.id } },
    h("a", { href: `#/s/${question.sessionId}` }, "Codex asks you: ", h("bdi", {}, question.summary ?? question.sessionId)),
    h("button", { type: "button", class: "icon-button", "aria-label": "Not now", title: "Not now", onclick: () => drop(question.id) }, "×"),
  );
}

/** Show the newest notices whose questions do not stand on the page themselves. */
export function showNotices() {
  const onPage = new Set([...document.querySelectorAll("main .question")].map((card) => card.dataset.question));
  for (const [id] of shown) if (onPage.has(id)) drop(id);
  arrange(document.getElementById("notices"), [...shown.values()].slice(-MOST));
}

function drop(id) {
  shown.get(id)?.remove();
  shown.delete(id);
}
