// Dialogs: an action with its fields and its errors; a question before an action that cannot be undone; anything else to read.

import { freshId, h } from "./dom.js";

/** Show a dialog until it is closed. `kind` is its class, `focused` gets the focus. */
export function showDialog(title, content, { kind = "", focused = null, isTitleHidden = false } = {}) {
  const id = freshId("title");
  const heading = h("h2", { id, class: isTitleHidden ? "visually-hidden" : null }, title);
  const dialog = h("dialog", { class: `dialog ${kind}`.trim(), "aria-labelledby": id }, heading, content);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  focused?.focus({ preventScroll: true });
  return dialog;
}

/**
 * Ask, then do. `act` is given the form; a failure is said in the dialog, which stays open, and so is a sentence that it returns.
 * An action that loses something (`danger`) is guarded against a click or a key that was meant for something else.
 */
export function askAndDo({ title, about = [], fields = [], yes, danger = false, act, form = h("form") }) {
  const problem = h("p", { class: "note bad", role: "alert", hidden: true });
  const refuse = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const agree = h("button", { type: "submit", class: danger ? "danger" : "primary", dataset: { yes: "" } }, yes);
  const described = [about].flat();
  form.append(...(described.length ? [h("div", { class: "about" }, described)] : []), ...[fields].flat(Infinity).filter(Boolean), problem, h("div", { class: "buttons" }, refuse, agree));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    agree.disabled = true;
    problem.hidden = true;
    try {
      const remark = await act(form);
      if (!remark) dialog.close();
      else show(remark, false);
    } catch (error) {
      show(error.message, true);
    } finally {
      agree.disabled = false;
    }
  });
  const show = (text, isBad) => {
    problem.textContent = text;
    problem.classList.toggle("bad", isBad);
    problem.hidden = false;
  };
  const dialog = showDialog(title, form, { kind: danger ? "confirm" : "", focused: form.querySelector("input, textarea, select") ?? refuse });
  return dialog;
}

/** Ask; whether the answer was yes. `about` are nodes or texts to judge by. The default answer is no. */
export function confirmed({ title, about, yes, no = "Cancel", danger = true }) {
  return new Promise((resolve) => {
    // The focus is here, so that Enter, pressed by habit, says no.
    const refuse = h("button", { type: "button", onclick: () => dialog.close() }, no);
    const agree = h("button", { type: "button", class: danger ? "danger" : "primary", dataset: { yes: "" }, onclick: () => dialog.close("yes") }, yes);
    const dialog = showDialog(title, [h("div", { class: "about" }, about), h("div", { class: "buttons" }, refuse, agree)], { kind: "confirm", focused: refuse });
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"));
    dialog.scrollTop = 0; // shows the beginning, also of a long text
  });
}
