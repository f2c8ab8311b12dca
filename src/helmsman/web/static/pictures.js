// Images that go with a message: dropped, pasted or chosen, checked, kept by the server until they are sent.

import { on, post } from "./api.js";
import { h } from "./dom.js";

const TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const MOST_BYTES = 8 * 1024 * 1024; // as helmsman/web/acting.py says
const MOST = 10;

export class Pictures {
  #paths = new Map();

  #host;

  /** `form` is what they are dropped on; `field` is what they are pasted into; `host` gives the machine that gets them. */
  constructor(form, field, host) {
    this.#host = host;
    this.list = h("ul", { class: "pictures", "aria-label": "Images" });
    this.problem = h("p", { class: "note bad", role: "alert", hidden: true });
    const chooser = h("input", { type: "file", accept: TYPES.join(","), multiple: true, class: "visually-hidden", tabindex: "-1", "aria-label": "Images" });
    chooser.addEventListener("change", () => this.#take([...chooser.files]).then(() => { chooser.value = ""; }));
    this.element = h(
      "div",
      { class: "pictures-part" },
      h("button", { type: "button", onclick: () => chooser.click() }, "Add images…"),
      h("span", { class: "quiet" }, " or drop or paste them here"),
      chooser,
      this.list,
      this.problem,
    );
    form.addEventListener("dragover", (event) => !this.element.hidden && event.dataTransfer.types.includes("Files") && event.preventDefault());
    form.addEventListener("drop", (event) => this.#given(event, event.dataTransfer));
    field.addEventListener("paste", (event) => this.#given(event, event.clipboardData));
  }

  get paths() {
    return [...this.#paths.values()];
  }

  /** They were sent. */
  clear() {
    this.#paths.clear();
    this.list.replaceChildren();
    this.problem.hidden = true;
  }

  #given(event, { files }) {
    if (!files.length || this.element.hidden) return;
    event.preventDefault();
    this.#take([...files]);
  }

  async #take(files) {
    this.problem.hidden = true;
    for (const file of files) {
      try {
        await this.#add(file);
      } catch (error) {
        this.problem.textContent = `${file.name}: ${error.message}`;
        this.problem.hidden = false;
      }
    }
  }

  async #add(file) {
    if (!TYPES.includes(file.type)) throw new Error("this is no PNG, JPEG, GIF or WebP.");
    if (file.size > MOST_BYTES) throw new Error("it is larger than 8 MiB. Send a smaller one.");
    if (this.#paths.size >= MOST) throw new Error(`there are ${MOST} already.`);
    const address = await read(file);
    const { path } = await post(on(this.#host(), "images"), { data: address.slice(address.indexOf(",") + 1) });
    const item = h(
      "li",
      {},
      h("img", { src: address, alt: file.name }),
      h("button", { type: "button", "aria-label": `Remove ${file.name}`, onclick: () => (this.#paths.delete(item), item.remove()) }, "×"),
    );
    this.#paths.set(item, path);
    this.list.append(item);
  }
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error("it cannot be read.")));
    reader.readAsDataURL(file);
  });
}
