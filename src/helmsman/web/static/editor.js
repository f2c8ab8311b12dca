// Links that open a file in the reader's editor. Only if the page comes from the reader's own machine.

import { recall, remember } from "./remembered.js";

const KEY = "helmsman-editor";
const LOCAL = new Set(["localhost", "127.0.0.1", "[::1]"]);
const PLACES = {
  vscode: (path, line) => `vscode://file${path}:${line}`,
  cursor: (path, line) => `cursor://file${path}:${line}`,
  windsurf: (path, line) => `windsurf://file${path}:${line}`,
  zed: (path, line) => `zed://file${path}:${line}`,
  idea: (path, line) => `idea://open?file=${path}&line=${line}`,
};

export const EDITORS = { "": "No editor", vscode: "VS Code", cursor: "Cursor", windsurf: "Windsurf", zed: "Zed", idea: "IntelliJ IDEA" };

export function hasEditors() {
  return LOCAL.has(location.hostname);
}

export function chosenEditor() {
  return recall(KEY) ?? "";
}

export function chooseEditor(name) {
  remember(KEY, name);
}

/**
 * The target of a link to a line of a file; none unless an editor was chosen and the whole path is known. An agent chose the name: it
 * must not lead out of the tree or to another machine (`//host/share`), nor be more than a path to the editor (`&` of a query).
 */
export function editorLink(root, path, line = 1) {
  const place = hasEditors() && Object.hasOwn(PLACES, chosenEditor()) && PLACES[chosenEditor()];
  const whole = path.startsWith("/") ? path : root && `${root}/${path}`;
  const [first, ...parts] = whole ? whole.split("/") : [null];
  if (!place || first !== "" || parts.some((part) => ["", ".", ".."].includes(part))) return null;
  return place(`/${parts.map(encodeURIComponent).join("/")}`, line);
}
