// Apply and Discard for the changes of a session in its own worktree; and the obstacles, with advice.

import { post, get, sessionPath } from "../api.js";
import { confirmed } from "../dialog.js";
import { actionButton, h, toast } from "../dom.js";
import { count } from "../format.js";
import { hosts } from "../hosts.js";
import { publishingButtons } from "./publishing.js";

export class Applying {
  #id;
  #changes = null;

  /** `reread` shows the current changes; `write` puts a draft into the field for the next message. */
  constructor(sessionId, { reread, write }) {
    this.#id = sessionId;
    Object.assign(this, { reread, write });
    this.apply = actionButton("Apply", { class: "primary", dataset: { apply: "" } }, () => this.#apply());
    this.discard = actionButton("Discard…", { class: "danger", dataset: { discard: "" } }, () => this.#discard());
    this.publishing = publishingButtons(sessionId);
    this.buttons = h("div", { class: "buttons", hidden: true }, this.discard, this.publishing, this.apply);
    this.obstacle = h("div", { class: "obstacle", role: "alert", hidden: true });
  }

  /** The changes to apply, as the server last reported. */
  show(changes) {
    if (changes.digest !== this.#changes?.digest) this.#clear();
    this.#changes = changes;
    this.buttons.hidden = !changes.canApply;
    for (const button of [this.apply, ...this.publishing]) button.hidden = !changes.files.length;
    this.apply.title = `Bring these changes into ${this.#there(changes.repository)}, unstaged`;
  }

  async #apply({ allowDirty = false, only, what } = {}) {
    this.#clear();
    try {
      const { files, repository, how } = await post(sessionPath(this.#id, "apply"), { digest: this.#changes.digest, allowDirty, only });
      this.#tell("good", h("p", {}, `Applied to ${this.#there(repository)}: ${what ?? count(files.length, "file")}, not staged${how === "three-way" ? ", merged with what is new there" : ""}.`));
    } catch (error) {
      this.#explain(error, { only, what });
    }
  }

  /** Apply files and hunks: `only` names them, `what` is their name for the user. */
  async applyPart(only, what) {
    await this.#apply({ only, what });
  }

  /** Take files and hunks back in the worktree, after a question. */
  async discardPart(only, what) {
    this.#clear();
    const about = h("p", {}, "The session's worktree loses this change, and it does not come back. The agent is not told.");
    if (!(await confirmed({ title: `Discard ${what}?`, about, yes: "Discard", no: "Keep it" }))) return;
    try {
      await post(sessionPath(this.#id, "discard-part"), { digest: this.#changes.digest, only });
      this.#tell("good", h("p", {}, `Discarded: ${what}.`));
      await this.reread();
    } catch (error) {
      this.#explain(error, { only, what });
    }
  }

  /** A place, with the machine it is on. */
  #there(place) {
    const host = hosts.of(this.#id);
    return host ? `${place} on ${host}` : place;
  }

  async #discard() {
    this.#clear();
    try {
      const losing = await get(sessionPath(this.#id, "unsaved"));
      const sure = await confirmed({ title: "Discard the worktree?", about: lost(losing), yes: "Discard", no: "Keep it" });
      if (!sure) return;
      await post(sessionPath(this.#id, "discard"), { losing: losing.key });
      toast("The worktree is gone. The session itself stays.");
      this.reread();
    } catch (error) {
      this.#explain(error);
    }
  }

  // --- what stands in the way --------------------------------------------------------------------------------------

  #explain(error, part = {}) {
    const { code, details } = error;
    const again = actionButton("Try again", {}, () => this.#apply(part));
    const all = Object.fromEntries(this.#changes.files.map(({ path }) => [path, null]));
    const more = {
      dirty_tree: () => [list(details.files), actionButton("Apply beside them", { dataset: { beside: "" } }, () => this.#apply({ allowDirty: true })), again],
      apply_conflict: () => [
        part.only ? null : actionButton("Merge with uncommitted changes", { dataset: { merge: "" } }, () => this.#apply({ only: all })),
        (details.conflicts ?? []).map((path) => [h("p", {}, h("code", { class: "mono" }, path), `: ${details.reasons?.[path] ?? "does not fit"}`), (details.hunks?.[path] ?? []).map((hunk) => h("pre", { class: "output", tabindex: "0" }, hunk))]),
        actionButton("Ask the agent to fit it in…", { dataset: { fit: "" } }, () => this.write(conflictMessage(details))),
        again,
      ],
      session_busy: () => [again],
      diff_changed: () => [actionButton("Show the changes as they are now", { dataset: { reread: "" } }, () => this.reread())],
    };
    this.#tell("bad", h("p", {}, error.message), ...(more[code]?.() ?? []));
  }

  #tell(tone, ...content) {
    this.obstacle.className = `obstacle ${tone}`;
    this.obstacle.replaceChildren(...content.flat(3).filter(Boolean));
    this.obstacle.hidden = false;
  }

  #clear() {
    this.obstacle.hidden = true;
    this.obstacle.replaceChildren();
  }
}

function lost({ commits, files, nested, unreadable }) {
  if (unreadable) return h("p", {}, "What is in it cannot be read, and does not come back.");
  const all = [...commits.map((one) => `commit ${one}`), ...files.map((one) => `${one.kind} ${one.path}`), ...nested.map((one) => `repository ${one}`)];
  if (!all.length) return h("p", {}, "Nothing in it would be lost: all of it is in the main tree.");
  return [h("p", {}, "This work is nowhere else and does not come back:"), list(all)];
}

function list(all) {
  return h("ul", { class: "evidence mono" }, (all ?? []).map((one) => h("li", {}, one)));
}

function conflictMessage({ conflicts, reasons, hunks }) {
  const places = (conflicts ?? []).map((path) => [`- ${path}: ${reasons?.[path] ?? "does not fit"}`, ...(hunks?.[path] ?? []).map((hunk) => `\n\`\`\`\n${hunk}\n\`\`\``)].join("\n"));
  return `The main tree has moved on, and your changes no longer fit into it:\n\n${places.join("\n")}\n\nChange your version so that it can be merged: keep what the main tree has now, and make your change on top of that.`;
}
