// A question of an agent as a card: everything that is needed to decide, and a button for each answer.

import { ANSWER_KEYS } from "../answering.js";
import { post, sessionPath, sessionPlace } from "../api.js";
import { confirmed } from "../dialog.js";
import { countdown } from "../deadline.js";
import { freshId, h, toast } from "../dom.js";
import { hosts } from "../hosts.js";
import { store } from "../store.js";
import { diffLines, fileHeading } from "./diff.js";
import { ruleText } from "./rule.js";

// Options may be words of a model, such as "constructor": these tables must not inherit such names.
const LABELS = {
  __proto__: null,
  approve: "Approve",
  approve_session: "Approve for this session",
  approve_always: "Always approve",
  deny: "Deny…",
  abort: "Deny and stop",
  accept: "Accept",
  decline: "Decline",
  cancel: "Cancel",
  revise: "Revise…",
  stop: "Stop",
  wait: "Wait",
};

const YES = new Set(["approve", "accept"]);
const WITH_WORDS = { __proto__: null, deny: "Why not? The agent reads this and goes on. You may leave it empty.", revise: "What should be different?" };
const REFUSALS = ["decline", "cancel"];
const PROSE = new Set(["Reason given", "Plan", "Question", "Asks", "The tool says of itself"]);

/** A card that answers its question; `withSession` names its session where that is not obvious. */
export function questionCard(question, { withSession }) {
  const host = hosts.of(question.id);
  if (!host) return card(question, { withSession });
  try {
    return card(question, { withSession, host });
  } catch {
    // Another machine has sent invalid data, so the question cannot be answered here.
    return h("section", { class: "question unreadable", tabindex: "-1", dataset: { question: question.id } }, h("h2", {}, `A question on ${host} cannot be shown`), h("p", {}, `Answer it there: helmsman --host ${host} respond`));
  }
}

function card(question, { withSession, host }) {
  const title = freshId("question");
  const element = h("section", { class: "question", dataset: { question: question.id }, "aria-labelledby": title, tabindex: "-1" });
  const send = (answers) => answer(element, question, answers);
  element.append(
    h("h2", { id: title }, question.title),
    host ? h("p", { class: "where" }, "On the machine ", h("span", { class: "host" }, host)) : "",
    withSession
      ? h("p", { class: "whose" }, h("a", { href: sessionPlace(question.sessionId) }, question.summary ?? question.sessionId))
      : "",
    details(question),
    question.deadline ? countdown(question, element) : "",
    question.questions.length === 1 && question.questions[0].options.length
      ? choices(question, question.questions[0], send)
      : form(question, send),
  );
  return element;
}

async function answer(card, question, answers) {
  card.inert = true;
  const following = card.nextElementSibling; // the page may learn of the answer, and remove the card, before this function
  try {
    await post(sessionPath(question.sessionId, "questions", question.id), { answers });
  } catch (error) {
    card.inert = false;
    toast(error.message, error.code === "question_not_open" ? "info" : "error");
    if (error.code !== "question_not_open") return;
  }
  const next = following?.isConnected && following.matches(".question") ? following : document.getElementById("main");
  card.remove();
  next.focus({ preventScroll: true });
  store.refreshFor(question.id);
}

// --- what it is about ------------------------------------------------------------------------------------------------

/** Everything that a yes grants, as the server states it: a fixed label, and beside it the text of a model. */
function details(question) {
  const values = h("dl", { class: "granted" });
  let value = null;
  for (const { label, text } of question.lines) {
    if (label || !value) {
      value = h("dd", { class: PROSE.has(label) ? "prose" : "mono", dataset: { label } });
      values.append(h("dt", {}, label), value);
    }
    value.append(h("span", { class: "value-line" }, `${text || " "}\n`));
  }
  return h("div", { class: "about" }, question.lines.length ? values : null, (question.files ?? []).map(fileChange));
}

function fileChange(file) {
  return h("div", { class: "file" }, h("p", { class: "file-heading" }, fileHeading(file)), diffLines(file, { all: true }));
}

// --- one choice ------------------------------------------------------------------------------------------------------

function choices(question, part, send) {
  const area = h("div", { class: "answers" });
  const row = h("div", { class: "buttons" });
  const descriptions = { __proto__: null, ...part.descriptions };
  for (const option of part.options) {
    const isYes = YES.has(option);
    const button = h(
      "button",
      { type: "button", class: isYes ? "primary" : "", dataset: { answer: option }, title: descriptions[option] },
      LABELS[option] ?? part.labels[option],
      ANSWER_KEYS[option] ? h("kbd", { "aria-hidden": "true" }, ANSWER_KEYS[option]) : null,
    );
    button.addEventListener("click", async () => {
      if (option in WITH_WORDS) askWords(area, row, option, send);
      else if (option !== "approve_always" || (await wantsRule(question))) send([option]);
    });
    row.append(button);
  }
  area.append(row);
  if (part.freeText) area.append(freeAnswer(part, send));
  return area;
}

/** Ask whether the rule of "always" is wanted: it outlives the question, the session and this server. */
function wantsRule(question) {
  const rule = ruleText(question.alwaysRule ?? "");
  const host = hosts.of(question.id);
  return confirmed({
    title: "Always approve this?",
    about: [h("p", {}, "This rule would be kept, and decide from now on without asking:"), rule, h("p", { class: "quiet" }, host ? `It is kept on ${host}. You can take it back there: helmsman --host ${host} config rules` : "You can take it back on the Rules page.")],
    yes: "Keep the rule and approve",
  });
}

/** Ask for the text of an answer, in place of the buttons. */
function askWords(area, row, option, send) {
  const id = freshId("words");
  const field = h("textarea", { id, rows: 2 });
  const back = () => {
    words.replaceWith(row);
    row.querySelector(`[data-answer="${option}"]`).focus();
  };
  const words = h(
    "form",
    { class: "words" },
    h("label", { for: id }, WITH_WORDS[option]),
    field,
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "submit", class: option === "deny" ? "danger" : "primary" }, LABELS[option].replace("…", "")),
      h("button", { type: "button", onclick: back }, "Back"),
    ),
  );
  words.addEventListener("submit", (event) => {
    event.preventDefault();
    const reason = field.value.trim();
    send([reason ? `${option}: ${reason}` : option]);
  });
  words.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      back();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === field) {
      event.preventDefault();
      words.requestSubmit();
    }
  });
  row.replaceWith(words);
  field.focus();
}

function freeAnswer(part, send) {
  const id = freshId("answer");
  const field = h("input", { id, type: part.secret ? "password" : "text", autocomplete: "off", required: true });
  const own = h("form", { class: "own" }, h("label", { for: id }, "Or in your own words"), field, h("button", { type: "submit" }, "Send"));
  own.addEventListener("submit", (event) => {
    event.preventDefault();
    send([field.value]);
  });
  return own;
}

// --- several parts ---------------------------------------------------------------------------------------------------

function form(question, send) {
  const isForm = question.type === "mcp_elicitation";
  const fields = question.questions.map((part) => (isForm && part.options.includes("accept") ? null : partField(part)));
  const buttons = h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, isForm ? "Accept" : "Send"));
  if (isForm) {
    for (const option of REFUSALS.filter((name) => question.questions[0].options.includes(name))) {
      buttons.append(h("button", { type: "button", onclick: () => send([option]) }, LABELS[option]));
    }
  }
  const whole = h("form", { class: "parts" }, fields.map((field) => field?.element ?? null), buttons);
  whole.addEventListener("submit", (event) => {
    event.preventDefault();
    send(fields.map((field) => field?.value() ?? "accept"));
  });
  return whole;
}

function partField(part) {
  const id = freshId("part");
  if (!part.options.length) {
    const field = h("input", { id, type: part.secret ? "password" : "text", autocomplete: "off" });
    return { element: h("div", { class: "part" }, h("label", { for: id }, part.question), field), value: () => field.value };
  }
  const descriptions = { __proto__: null, ...part.descriptions };
  const own = part.freeText ? h("input", { type: "text", "aria-label": "Another answer", placeholder: "Another answer" }) : null;
  const options = part.options.map((option) =>
    h(
      "label",
      { class: "option" },
      h("input", { type: "radio", name: id, value: option, required: !own }),
      h("span", {}, part.labels[option], descriptions[option] ? h("span", { class: "quiet" }, ` ${descriptions[option]}`) : null),
    ),
  );
  const element = h("fieldset", { class: "part" }, h("legend", {}, part.question), options, own);
  return { element, value: () => own?.value || element.querySelector("input:checked")?.value || "" };
}
