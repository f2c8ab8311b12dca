// The form for messages to a session: the next message while it is idle; steering, or a message for later, while it runs.

import { agentsOf } from "../agents.js";
import { post, sessionPath } from "../api.js";
import { actionButton, freshId, h, toast } from "../dom.js";
import { keepDraft, keepsDraft } from "../drafts.js";
import { hosts } from "../hosts.js";
import { Pictures } from "../pictures.js";
import { expanded, promptsBelow } from "../prompts.js";

export class Composer {
  #whenBusy = "error";
  #sending = false;

  constructor(sessionId) {
    this.sessionId = sessionId;
    const id = freshId("message");
    this.label = h("label", { for: id, class: "visually-hidden" });
    this.field = h("textarea", { id, rows: 2 });
    keepsDraft(this.field, `message:${sessionId}`);
    this.send = h("button", { type: "submit", class: "primary" });
    this.queue = actionButton("After this turn", { title: "The message becomes the next turn" }, () => this.#say("queue"));
    this.element = h("form", { class: "composer", dataset: { part: "composer" } });
    this.pictures = new Pictures(this.element, this.field, () => hosts.of(sessionId));
    this.element.append(this.label, this.field, promptsBelow(this.field), this.pictures.element, h("div", { class: "buttons" }, this.queue, this.send));
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#say(this.#whenBusy).catch((error) => toast(error.message, "error"));
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.element.requestSubmit();
      }
    });
    this.show({ status: "done" });
  }

  // What the session's engine can do (`can`) is not known before it has one. A turn of another process takes no messages from here.
  show({ status, can, elsewhere, agent }) {
    this.element.hidden = Boolean(elsewhere);
    this.pictures.element.hidden = !(can ?? agentsOf(this.sessionId).get(agent)?.can)?.includes("images");
    const running = status === "active" || status === "awaiting_approval";
    const steers = running && (!can || can.includes("steer"));
    this.#whenBusy = steers ? "steer" : running ? "queue" : "error";
    this.label.textContent = steers ? "Steer the running turn" : "Next message";
    this.field.placeholder = steers ? "Steer: the agent reads this in the middle of its turn" : running ? "For the next turn" : "What next?";
    this.send.textContent = steers ? "Steer" : running ? "After this turn" : "Send";
    this.queue.hidden = !steers;
  }

  /** Send another text than that of the field: into the running turn, after it, or as the next one. */
  async deliver(message, whenBusy = this.#whenBusy) {
    await this.#post({ message, whenBusy });
  }

  #post(body) {
    return post(sessionPath(this.sessionId, "say"), body);
  }

  /** What `deliver` would do, as a button says it. */
  verb(what) {
    return { steer: `Steer with ${what}`, queue: `Send ${what} after this turn`, error: `Send ${what}` }[this.#whenBusy];
  }

  /** Put a draft into the field, to be changed and sent by the user. */
  write(text) {
    this.field.value = text;
    keepDraft(`message:${this.sessionId}`, text);
    this.field.focus();
  }

  async #say(whenBusy) {
    const message = this.field.value.trim();
    if (!message || this.#sending) return;
    const images = this.pictures.paths;
    if (images.length && whenBusy === "steer") throw new Error("A running turn takes no images. Send the message after this turn, or without them.");
    this.#sending = true;
    try {
      await this.#post({ message: await expanded(message), whenBusy, images });
      if (this.field.value.trim() === message) this.write(""); // text typed in the meantime stays
      this.pictures.clear();
      if (whenBusy === "queue") toast("Kept for the next turn.");
    } finally {
      this.#sending = false;
    }
  }
}
