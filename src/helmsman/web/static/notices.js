// Notifies of a new question at once, and of everything else that `[notify]` sends to browsers: on every view of the page,
// and by the browser if that is allowed, also while the page is in the background.
//
// A notice is only a link: it answers nothing. It disappears when its subject is closed, or is shown on the page anyway.
// The browser's own notifications need its permission, which is asked for by a click and never by itself.

import { get, post, sessionPlace } from "./api.js";
import { arrange, h, toast } from "./dom.js";
import { hostMark, hosts } from "./hosts.js";
import { live } from "./live.js";
import { recall, remember } from "./remembered.js";
import { store } from "./store.js";
import { coalesced } from "./timing.js";

const WANTED = "helmsman-notifications";
const MOST = 3;

const shown = new Map(); // id of a question, or of a notice of the server's → what stands in the page
const told = new Map(); // the same → its notification
const handled = new Set(); // ids of the server's notices that this page has dealt with
let known = new Set(); // ids of the questions that were open at the last look
let asked = new Set(); // the machines whose questions were known then
let leftToServer = false; // whether the server decides when the user is notified of a question
let timer = 0;

export function tellOfQuestions() {
  store.addEventListener("questions", () => {
    const open = new Map(store.questions.map((question) => [question.id, question]));
    const fresh = [...open.values()].filter((question) => asked.has(hosts.of(question.id)) && !known.has(question.id));
    known = new Set(open.keys());
    asked = store.asked;
    for (const [id, notification] of told) if (!open.has(id) && !handled.has(id)) forgetNotification(id, notification);
    for (const question of fresh) if (!leftToServer || hosts.of(question.id)) notify(question.id, question.title, question.summary, question.sessionId);
    for (const [id] of shown) if (!open.has(id) && !handled.has(id)) drop(id);
    for (const question of fresh) shown.set(question.id, notice(question.id, question.title, question.summary, question.sessionId));
    queueMicrotask(showNotices); // after the view has added its questions to the page
  });
}

/** Show the notices that the server has for pages. */
export function tellOfNotices() {
  const look = coalesced(readNotices, 300);
  live.addEventListener("anew", look);
  live.addEventListener("changes", ({ detail }) => detail.some(({ kinds }) => kinds.includes("notices")) && look());
  document.addEventListener("visibilitychange", look);
  window.addEventListener("focus", look);

  async function readNotices() {
    try {
      const { notices, tellsOfQuestions, nextInSec } = await get("notices");
      leftToServer = tellsOfQuestions;
      clearTimeout(timer);
      if (nextInSec !== undefined) timer = setTimeout(look, nextInSec * 1000 + 500);
      for (const one of notices) await tellOf(one);
      showNotices();
    } catch (error) {
      if (error.name !== "ApiError" && error.code === undefined) throw error; // the next change reads it again
    }
  }
}

async function tellOf({ id, title, text, sessionId, questionId }) {
  if (!handled.has(id)) {
    if (isLookedAt()) {
      if (questionId === undefined) shown.set(id, notice(id, title, undefined, sessionId)); // a question has its own
    } else if (mayNotify()) notify(questionId ?? id, title, text, sessionId);
    else return; // another page shows it, or this one once it is visible
    handled.add(id);
  }
  await post(`notices/${encodeURIComponent(id)}/shown`, {});
}

function isLookedAt() {
  return document.visibilityState === "visible" && document.hasFocus();
}

/** The button that turns the browser's notifications on and off. It is missing if the browser has none. */
export function notificationButton(button) {
  button.hidden = !("Notification" in window) || !window.isSecureContext;
  const show = () => {
    const [words, pressed] =
      Notification.permission === "denied"
        ? ["The browser does not allow notifications for this page", false]
        : mayNotify()
          ? ["Notifications for new questions: on", true]
          : ["Notifications for new questions: off", false];
    button.title = words;
    button.setAttribute("aria-label", words);
    button.setAttribute("aria-pressed", String(pressed));
  };
  if (button.hidden) return;
  button.addEventListener("click", async () => {
    if (mayNotify()) remember(WANTED, null);
    else if ((await Notification.requestPermission()) === "granted") remember(WANTED, true);
    show();
    await push(mayNotify()).catch((error) => toast(`No notifications while this page is closed: ${error.message}`, "error"));
  });
  show();
}

/** Turn notifications to this browser on or off, also for the time when no page is open. */
export async function push(wanted, approves = false) {
  if (!("serviceWorker" in navigator) || !("PushManager" in window)) return;
  if (!wanted) {
    const known = await (await navigator.serviceWorker.getRegistration())?.pushManager.getSubscription();
    await known?.unsubscribe();
    await post("push", {});
    return;
  }
  const { key } = await get("push");
  const worker = await navigator.serviceWorker.register("sw.js");
  await navigator.serviceWorker.ready;
  const { endpoint, keys } = (await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key })).toJSON();
  await post("push", { endpoint, keys, approves });
}

function mayNotify() {
  return "Notification" in window && Notification.permission === "granted" && recall(WANTED) === true;
}

function notify(id, title, text, sessionId) {
  if (!mayNotify() || isLookedAt()) return;
  const notification = new Notification(title, { body: text ?? "", tag: id, icon: "icon-asking.svg" });
  notification.addEventListener("click", () => {
    window.focus();
    if (sessionId !== undefined) location.hash = sessionPlace(sessionId);
    notification.close();
  });
  told.set(id, notification);
}

function forgetNotification(id, notification) {
  notification.close();
  told.delete(id);
}

// --- in the page -----------------------------------------------------------------------------------------------------

function notice(id, title, text, sessionId) {
  const about = text ?? sessionId;
  return h(
    "div",
    { class: "notice", dataset: { notice: id, session: sessionId ?? "" } },
    hostMark(sessionId),
    h("a", { href: sessionId === undefined ? "#/" : sessionPlace(sessionId) }, about === undefined ? title : `${title}: `, h("bdi", {}, about ?? "")),
    h("button", { type: "button", class: "icon-button", "aria-label": "Not now", title: "Not now", onclick: () => drop(id) }, "×"),
  );
}

/** Show the newest notices whose subject is not on the page itself. */
export function showNotices() {
  const onPage = new Set([...document.querySelectorAll("main .question")].map((card) => card.dataset.question));
  for (const [id, element] of shown) if (handled.has(id) && location.hash === sessionPlace(element.dataset.session)) onPage.add(id);
  for (const [id] of shown) if (onPage.has(id)) drop(id);
  const questions = [...shown].filter(([id]) => !handled.has(id));
  const others = [...shown].filter(([id]) => handled.has(id)).map(([, element]) => element);
  const banner = questions.length > 1 ? [allQuestions(questions.map(([id]) => id))] : questions.map(([, element]) => element);
  arrange(document.getElementById("notices"), [...others.slice(-MOST), ...banner]);
}

const many = h("div", { class: "notice", dataset: { notice: "questions" } });

/** One banner for several questions. */
function allQuestions(ids) {
  const text = `${ids.length} questions wait for you`;
  if (many.textContent.startsWith(text)) return many;
  const drops = () => {
    for (const id of ids) drop(id);
    showNotices();
  };
  many.replaceChildren(h("a", { href: "#/" }, text), h("button", { type: "button", class: "icon-button", "aria-label": "Not now", title: "Not now", onclick: drops }, "×"));
  return many;
}

function drop(id) {
  shown.get(id)?.remove();
  shown.delete(id);
}
