// Elements from values. Strings become text nodes, and nothing here parses markup: output of an agent stays text.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("p", {class: "x", onclick: f, dataset: {id}}, "text", child, null, [more])`. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) set(element, name, value);
  element.append(...nodes(children));
  return element;
}

/** An SVG element; its properties are attributes. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...nodes(children));
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "dataset") Object.assign(element.dataset, value);
  else if (name in element && typeof value !== "string") element[name] = value;
  else element.setAttribute(name, value === true ? "" : String(value));
}

function nodes(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== "");
}

/** Replaces an element's children, and touches only those that are new, gone or moved: focus and scroll position stay. */
export function arrange(parent, children) {
  const focused = document.activeElement;
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let place = parent.firstElementChild;
  for (const child of children) {
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

/** Draws the inside of an element anew, but only if what it shows has changed: otherwise focus and selection would be lost. */
export function redraw(element, shown, draw) {
  const written = JSON.stringify(shown);
  if (element.written === written) return;
  element.written = written;
  element.replaceChildren(...nodes(draw()));
}

let ids = 0;

/** An id for a label and what it belongs to. */
export function freshId(what) {
  ids += 1;
  return `${what}-${ids}`;
}

/** Announce something to screen readers. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Show an outcome for a few seconds. */
export function toast(text, kind = "info") {
  const shown = h("p", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), kind === "error" ? 9000 : 5000);
}

/** A button that cannot be pressed again while its action runs; a failure is shown as a toast. */
export function actionButton(label, props, act) {
  const button = h("button", { type: "button", ...props }, label);
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await act();
    } catch (error) {
      toast(error.message, "error");
    } finally {
      button.disabled = false;
    }
  });
  return button;
}
