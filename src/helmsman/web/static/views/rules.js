// The rules that decide without asking: list, test with a command, add, remove.

import { get, post } from "../api.js";
import { confirmed } from "../dialog.js";
import { actionButton, freshId, h, toast } from "../dom.js";
import { directoryInput, field, options, textInput } from "./forms.js";
import { Page } from "./page.js";
import { ruleText } from "./rule.js";

const TONE = { allow: "good", deny: "bad", ask: "waiting" };
const ADDS = { allow: "Always allow…", deny: "Always deny…", ask: "Always ask…" };
const WORDS = { allow: "Allowed", deny: "Denied", ask: "You are asked" };

export class RulesView extends Page {
  #directory = "";

  constructor() {
    super("Rules");
    const where = freshId("directory");
    const { input: place, known } = directoryInput("place", { required: true });
    Object.assign(this, { place, known });
    this.directory = textInput("directory", { id: where, list: known.id, placeholder: "everywhere" });
    const choose = h("form", { class: "ask-rules" }, h("label", { for: where }, "Rules for work in"), this.directory, h("button", { type: "submit" }, "Show"));
    choose.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#directory = this.directory.value.trim();
      this.place.value ||= this.#directory;
      this.read().catch((error) => toast(error.message, "error"));
    });
    this.command = textInput("command", { required: true, placeholder: "npm test" });
    this.inside = h("input", { type: "checkbox", name: "inside" });
    this.answer = h("div", { class: "decision", role: "status" });
    const explain = h(
      "form",
      { class: "explain" },
      field("Command", this.command),
      field("Directory", place),
      h("label", { class: "check" }, this.inside, h("span", {}, "Assume it stays inside the sandbox")),
      h("div", { class: "buttons" }, h("button", { type: "submit" }, "Which rule decides?"), Object.entries(ADDS).map(([effect, words]) => actionButton(words, { dataset: { add: effect } }, () => this.#add(effect)))),
      this.answer,
    );
    explain.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#explain().catch((error) => toast(error.message, "error"));
    });
    this.problem = h("p", { class: "note bad", hidden: true });
    this.list = h("div", { class: "rules" }, h("p", { class: "empty" }, "Reading…"));
    this.element.append(known, h("h2", {}, "A command"), explain, h("h2", {}, "All rules"), choose, this.problem, this.list);
  }

  async open() {
    const { directories } = await get("overview");
    this.known.append(...options(directories.map((one) => [one])));
    this.place.value ||= directories[0] ?? "";
    await super.open();
  }

  async read() {
    const { rules, ownFile, problem } = await get("rules", { directory: this.#directory });
    if (this.signal.aborted) return;
    this.problem.hidden = !problem;
    this.problem.textContent = problem ?? "";
    const files = Map.groupBy(rules, (rule) => rule.file);
    this.list.replaceChildren(
      ...[...files].map(([file, its]) =>
        h(
          "section",
          { class: "rules-file", "aria-label": file },
          h("h3", {}, h("code", { class: "mono" }, file), file === ownFile ? h("span", { class: "pill quiet" }, "made by answers") : null),
          h("ul", {}, its.map((rule) => h("li", {}, this.#rule(rule)))),
        ),
      ),
    );
    if (!rules.length) this.list.append(h("p", { class: "empty" }, "No rules. Every question goes to a person."));
    this.ready();
  }

  #rule(rule) {
    return h(
      "article",
      { class: "card rule-card", dataset: { rule: rule.id }, "aria-label": rule.description },
      h(
        "p",
        { class: "facts" },
        h("span", { class: `pill ${TONE[rule.effect]}` }, rule.effect),
        rule.outside ? h("span", { class: "pill bad" }, "outside the sandbox") : null,
        rule.ignored ? h("span", { class: "pill quiet" }, "does not count here") : null,
        rule.line ? h("span", { class: "quiet" }, `line ${rule.line}`) : null,
      ),
      ruleText(rule.toml),
      rule.ignored ? h("p", { class: "quiet" }, rule.ignored) : null,
      rule.removable
        ? h("div", { class: "buttons" }, rule.proposedBy ? actionButton("Confirm…", { "aria-label": `Confirm: ${rule.description}` }, () => this.#confirm(rule)) : null, actionButton("Take back…", { class: "danger", "aria-label": `Take back: ${rule.description}` }, () => this.#remove(rule)))
        : null,
    );
  }

  async #confirm(rule) {
    const sure = await confirmed({
      title: "Let this rule decide?",
      about: [ruleText(rule.toml), h("p", { class: "quiet" }, `Proposed by the model of ${rule.proposedBy}. From now on it decides in every session.`)],
      yes: "Confirm",
    });
    if (sure) await this.#do(rule, "confirm", "Rule confirmed.");
  }

  async #remove(rule) {
    const sure = await confirmed({
      title: rule.effect === "allow" ? "Take back this rule?" : "Take back this rule, which holds something off?",
      about: [ruleText(rule.toml), h("p", { class: "quiet" }, "It no longer decides, in any session.")],
      yes: "Take it back",
    });
    if (sure) await this.#do(rule, "remove", "Rule removed.");
  }

  async #do({ id }, verb, said) {
    await post(`rules/${encodeURIComponent(id)}/${verb}`);
    toast(said);
    await this.read();
  }

  /** Add a rule for the typed command, after the user has seen the rule as it would be written. */
  async #add(effect) {
    if (!this.command.reportValidity() || !this.place.reportValidity()) return;
    const wanted = { effect, command: this.command.value, directory: this.place.value.trim(), outside: !this.inside.checked };
    const { toml } = await post("rules/add", wanted);
    const about = [ruleText(toml), h("p", { class: "quiet" }, "From now on it decides in every session that works there.")];
    if (!(await confirmed({ title: "Add this rule?", about, yes: "Add", danger: effect === "allow" }))) return;
    const { added } = await post("rules/add", { ...wanted, toml });
    toast(added ? "Rule added." : "There is this rule already.");
    await this.read();
  }

  async #explain() {
    const given = { command: this.command.value, directory: this.place.value.trim(), inside: this.inside.checked };
    const { effect, reason, rule } = await post("rules/explain", given);
    this.answer.replaceChildren(
      h("p", {}, h("span", { class: `pill ${TONE[effect]}`, dataset: { effect } }, WORDS[effect]), " ", reason),
      ...(rule ? [ruleText(rule.toml), h("p", { class: "quiet" }, place(rule))] : []),
    );
  }
}

function place(rule) {
  return `${rule.file}${rule.line ? `, line ${rule.line}` : ""}`;
}
