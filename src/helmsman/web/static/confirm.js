// A question of the page itself, before an action that cannot be undone. The default answer is no.

import { freshId, h } from "./dom.js";

/** Ask; whether the answer was yes. `about` are nodes or texts to judge by. */
export function confirmed({ title, about, yes, no = "Cancel", danger = true }) {
  return new Promise((resolve) => {
    const id = freshId("title");
    const refuse = h("button", { type: "button", onclick: () => dialog.close() }, no);
    const agree = h("button", { type: "button", class: danger ? "danger" : "primary", dataset: { yes: "" }, onclick: () => dialog.close("yes") }, yes);
    const dialog = h(
      "dialog",
      { class: "dialog confirm", "aria-labelledby": id },
      h("h2", { id }, title),
      h("div", { class: "about" }, about),
      h("div", { class: "buttons" }, refuse, agree),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    refuse.focus({ preventScroll: true }); // so that Enter, pressed by habit, says no
    dialog.scrollTop = 0; // shows the beginning, also of a long text
  });
}
