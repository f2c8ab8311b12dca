// The page on which the user grants a program access over OAuth. It asks the server what the program wants, shows that, and sends the
// browser back to the program with the answer. Its name is shown as text only: the program chose it itself.

import { post, whenLoggedOut } from "./api.js";
import { h } from "./dom.js";
import { setPlace } from "./title.js";
import { LoginView } from "./views/login.js";

const SETTLED = 1000; // milliseconds that the request is on screen before a click counts
const main = document.getElementById("main");
const query = Object.fromEntries(new URLSearchParams(location.search));

function show(...children) {
  main.replaceChildren(h("div", { class: "login" }, ...children));
}

function tell(title, text, ...more) {
  show(h("h1", { tabindex: "-1" }, title), h("p", { role: "alert" }, text), ...more);
}

function row(label, text) {
  return [h("dt", {}, label), h("dd", { class: "mono" }, h("bdi", {}, text))];
}

function back(redirect) {
  location.replace(redirect);
}

function ask({ request, name, clientHost, clientId, redirectUri, isLocal, resource }) {
  const problem = h("p", { class: "note bad", role: "alert", hidden: true });
  const buttons = [
    ["Do not allow", false],
    ["Allow", true],
  ].map(([label, allow]) => h("button", { type: "button", disabled: true, class: allow ? "primary" : "", onclick: () => decide(allow) }, label));

  async function decide(allow) {
    for (const button of buttons) button.disabled = true;
    try {
      back((await post("oauth/decision", { request, allow })).redirect);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
  }

  show(
    h("h1", { tabindex: "-1" }, "Allow a program to use Helmsman?"),
    h("p", {}, h("strong", {}, h("bdi", {}, name)), " is what the program calls itself. Only its address is proved:"),
    h("dl", { class: "pairs" }, ...row("Program of", clientHost), ...row("Described at", clientId), ...row("Answer goes to", redirectUri), ...row("Access to", resource)),
    h("p", {}, "It may call all tools that this server offers to MCP clients: it can start coding agents, answer for sessions that it started, and so run programs as you."),
    isLocal ? h("p", { class: "note" }, "The answer goes to a program on the computer of this browser. Any program there can pretend to be this one: allow it only if you have just started it yourself.") : null,
    h("p", {}, "You can take this back at any time: Engines, Programs with access."),
    problem,
    h("p", { class: "buttons" }, ...buttons),
  );
  setTimeout(() => buttons.forEach((button) => (button.disabled = false)), SETTLED);
}

async function open() {
  setPlace("Allow a program");
  try {
    const asked = await post("oauth/request", { query });
    if (asked.redirect) tell("This cannot be allowed", asked.problem, h("button", { type: "button", onclick: () => back(asked.redirect) }, "Back to the program"));
    else ask(asked);
  } catch (error) {
    if (error.code !== "wrong_token") tell("This cannot be allowed", error.message);
  }
}

whenLoggedOut(() => {
  const login = new LoginView(open);
  main.replaceChildren(login.element);
  login.open();
});
open();
