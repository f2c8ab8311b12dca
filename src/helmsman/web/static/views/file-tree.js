// The files of a change as a tree. Each is a link to its place in the review.

import { h } from "../dom.js";
import { stat } from "./diff.js";

/** `hrefOf` gives the address of a path. */
export function fileTree(files, hrefOf) {
  const root = { folders: new Map(), files: [] };
  for (const file of files) {
    const parts = file.path.split("/");
    let folder = root;
    for (const name of parts.slice(0, -1)) {
      if (!folder.folders.has(name)) folder.folders.set(name, { folders: new Map(), files: [] });
      folder = folder.folders.get(name);
    }
    folder.files.push([parts.at(-1), file]);
  }
  return h("nav", { class: "file-tree", "aria-label": "Changed files" }, level(root, hrefOf));
}

function level(folder, hrefOf) {
  const folders = [...folder.folders].map(([name, inside]) => {
    while (!inside.files.length && inside.folders.size === 1) {
      const [[next, deeper]] = inside.folders;
      [name, inside] = [`${name}/${next}`, deeper];
    }
    return h("li", {}, h("span", { class: "folder" }, `${name}/`), level(inside, hrefOf));
  });
  const files = folder.files.map(([name, file]) =>
    h("li", {}, h("a", { href: hrefOf(file.path), title: file.path, class: `kind-${file.kind}` }, h("span", { class: "name" }, name || "changes"), stat(file.added, file.removed))),
  );
  return h("ul", {}, folders, files);
}
