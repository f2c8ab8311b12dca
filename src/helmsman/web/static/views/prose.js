// What agents write to people: paragraphs, with code where it is marked as such. Only text nodes are made.

import { h } from "/dom.js";

const FENCE = /^[ \t]*```[^\n]*\n([\s\S]*?)(?:^[ \t]*```[ \t]*$|(?![\s\S]))/gm;
const MARKS = /`([^`\n]+)`|\*\*([^*\n]+)\*\*/g;

export function prose(text) {
  const shown = h("div", { class: "prose" });
  let end = 0;
  for (const match of text.matchAll(FENCE)) {
    addWords(shown, text.slice(end, match.index));
    shown.append(h("pre", { class: "code", tabindex: "0" }, match[1].replace(/\n$/, "")));
    end = match.index + match[0].length;
  }
  addWords(shown, text.slice(end));
  return shown;
}

function addWords(shown, text) {
  const words = text.replace(/^\n+|\s+$/g, "");
  if (!words) return;
  const paragraph = h("p");
  let end = 0;
  for (const match of words.matchAll(MARKS)) {
    paragraph.append(words.slice(end, match.index));
    paragraph.append(match[1] === undefined ? h("strong", {}, match[2]) : h("code", {}, match[1]));
    end = match.index + match[0].length;
  }
  paragraph.append(words.slice(end));
  shown.append(paragraph);
}
