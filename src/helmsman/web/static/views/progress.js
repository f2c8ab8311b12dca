// Progress of the running turn: a bar if the agent has a plan, the current step, and the running time.

import { h } from "../dom.js";
import { duration } from "../format.js";

export class Progress {
  #began = null;

  constructor() {
    this.bar = h("progress", { "aria-label": "Steps done", hidden: true });
    this.words = h("span", {});
    this.time = h("span", { class: "elapsed" });
    this.element = h("div", { class: "progress quiet", hidden: true }, this.bar, this.words, this.time);
    this.clock = setInterval(() => this.#tick(), 1000);
  }

  close() {
    clearInterval(this.clock);
  }

  show({ status, progress, turnSeconds }) {
    const running = status === "active" || status === "awaiting_approval";
    this.element.hidden = !running;
    this.#began = running && turnSeconds !== undefined ? Date.now() - turnSeconds * 1000 : null;
    this.bar.hidden = !progress?.total;
    if (progress?.total) [this.bar.max, this.bar.value] = [progress.total, progress.done ?? 0];
    const left = progress?.etaSeconds === undefined ? "" : `, about ${duration(progress.etaSeconds)} left`;
    this.words.textContent = progress?.text ? `${progress.text}${left}` : "";
    this.#tick();
  }

  #tick() {
    this.time.textContent = this.#began === null ? "" : `running for ${duration((Date.now() - this.#began) / 1000)}`;
  }
}
