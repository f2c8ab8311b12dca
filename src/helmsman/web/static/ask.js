// A dialog for an action: its meaning, its fields, and its errors.

import { freshId, h } from "./dom.js";

/**
 * Ask, then do. `act` is given the form; a failure is said in the dialog, which stays open, and so is a sentence that it returns.
 * An action that loses something (`danger`) is guarded against a click or a key that was meant for something else.
 */
export function askAndDo({ title, about = [], fields = [], yes, danger = false, act }) {
  const id = freshId("title");
  const problem = h("p", { class: "note bad", role: "alert", hidden: true });
  const refuse = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const agree = h("button", { type: "submit", class: danger ? "danger" : "primary", dataset: { yes: "" } }, yes);
  const form = h("form", {}, h("div", { class: "about" }, about), fields, problem, h("div", { class: "buttons" }, refuse, agree));
  const dialog = h("dialog", { class: danger ? "dialog confirm" : "dialog", "aria-labelledby": id }, h("h2", { id }, title), form);
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
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  (form.querySelector("input, textarea, select") ?? refuse).focus({ preventScroll: true });
  return dialog;
}
