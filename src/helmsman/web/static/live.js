// The stream of changes. It says only that something changed; the views that show it read it again.
//
// Events: "changes" (detail: the changes), "anew" (anything may have changed), "state" (detail: live, lost).

import { get } from "./api.js";

const RETRY = 3000;

class Live extends EventTarget {
  #source = null;
  #retry = 0;

  start() {
    this.stop();
    const source = (this.#source = new EventSource("api/live"));
    source.addEventListener("hello", (event) => {
      this.#tell("state", "live");
      if (!JSON.parse(event.data).resumed) this.#tell("anew");
    });
    source.addEventListener("changes", (event) => this.#tell("changes", JSON.parse(event.data).changes));
    source.addEventListener("error", () => {
      this.#tell("state", "lost");
      if (source.readyState === EventSource.CLOSED) this.#retry = setTimeout(() => this.#again(), RETRY);
    });
  }

  stop() {
    clearTimeout(this.#retry);
    this.#source?.close();
    this.#source = null;
  }

  async #again() {
    try {
      await get("overview"); // a browser that is logged out learns it here: a stream has no status
      this.start();
    } catch (error) {
      if (error.code !== "wrong_token") this.#retry = setTimeout(() => this.#again(), RETRY);
    }
  }

  #tell(type, detail = null) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

export const live = new Live();
