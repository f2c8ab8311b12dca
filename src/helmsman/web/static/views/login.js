// The login, for a browser that the server does not know.

import { post } from "../api.js";
import { freshId, h } from "../dom.js";
import { setPlace } from "../title.js";

const CODE = "#login=";
const mono = (text) => h("code", { class: "mono" }, text);

/** The code that this page was opened with. It is taken out of the address, so that no history keeps it. */
export function takeCode() {
  if (!location.hash.startsWith(CODE)) return "";
  const code = decodeURIComponent(location.hash.slice(CODE.length));
  history.replaceState(null, "", "/");
  return code;
}

export class LoginView {
  #code;

  constructor(loggedIn, code = "") {
    const id = freshId("code");
    this.#code = code;
    this.heading = h("h1", { tabindex: "-1" }, "Log in");
    this.field = h("input", { id, type: "text", autocomplete: "off", autocapitalize: "characters", spellcheck: "false", required: true });
    this.problem = h("p", { class: "note bad", role: "alert", hidden: true });
    this.form = h("form", {}, h("label", { for: id }, "Code"), this.field, h("button", { type: "submit", class: "primary" }, "Log in"));
    this.element = h(
      "div",
      { class: "login" },
      h("img", { src: "icon.svg", alt: "", width: 56, height: 56 }),
      this.heading,
      h("p", {}, "Type the code that ", mono("helmsman dashboard"), " printed. Where Helmsman runs, this prints a new one:"),
      h("p", {}, mono(`helmsman dashboard --server ${new URL(".", document.baseURI).href.replace(/\/$/, "")}`)),
      this.problem,
      this.form,
    );
    this.form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        const made = await window.helmsmanDevice.make();
        const { device } = await post("login", { code: this.field.value.trim().slice(0, 200), ...(made && { device: made.device }) });
        if (device) await window.helmsmanDevice.remember(device, made.own);
        loggedIn();
      } catch (error) {
        this.problem.textContent = error.message;
        this.problem.hidden = false;
        this.field.select();
      }
    });
  }

  async open() {
    setPlace("Log in");
    if (!this.#code) return;
    this.field.value = this.#code;
    this.form.requestSubmit();
  }

  close() {}
}
