// The way in, for a browser that the server does not know.

import { post } from "/api.js";
import { freshId, h } from "/dom.js";
import { setPlace } from "/title.js";

export class LoginView {
  constructor(loggedIn) {
    const id = freshId("code");
    const failed = new URLSearchParams(location.search).get("login") === "failed";
    this.heading = h("h1", { tabindex: "-1" }, "Log in");
    this.field = h("input", { id, type: "password", autocomplete: "off", required: true });
    this.problem = h("p", { class: "note bad", role: "alert", hidden: !failed }, failed ? "This link was used or is too old. Make a new one." : "");
    this.form = h("form", {}, h("label", { for: id }, "Code or token"), this.field, h("button", { type: "submit", class: "primary" }, "Log in"));
    this.element = h(
      "div",
      { class: "login" },
      h("img", { src: "/icon.svg", alt: "", width: 56, height: 56 }),
      this.heading,
      h("p", {}, "Run ", h("code", { class: "mono" }, "helmsman dashboard"), " where Helmsman runs, and open the link that it prints."),
      this.problem,
      this.form,
    );
    this.form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const given = this.field.value.trim();
      try {
        await post("login", { code: given.slice(0, 200), token: given });
        history.replaceState(null, "", `/${location.hash}`);
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
  }

  close() {}
}
