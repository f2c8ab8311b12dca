// Charts drawn by hand: columns along days, bars by name. Each is an image with a sentence; the table beside it has the numbers.

import { h, svg } from "../dom.js";
import { tokens } from "../format.js";

export const PARTS = [
  ["fresh", "Input"],
  ["cached", "Cached input"],
  ["output", "Output"],
];

const HEIGHT = 220;
const LEFT = 52;
const BOTTOM = 24;
const TOP = 10;

/** A row of usage as the parts that are drawn. */
export function parts(row) {
  return { fresh: row.inputTokens - row.cachedInputTokens, cached: row.cachedInputTokens, output: row.outputTokens };
}

export function sum(row) {
  return row.inputTokens + row.outputTokens;
}

/** A place for a chart that is drawn again when its width changes. */
export function responsive(draw, label) {
  const place = h("div", { class: "chart" });
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now === width || now < 80) return;
    width = now;
    const drawing = draw(width);
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", label);
    place.replaceChildren(drawing);
  }).observe(place);
  return place;
}

/** Columns, one a day, with the parts on top of each other. */
export function columns(rows, width) {
  const drawing = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` });
  const top = niceTop(Math.max(...rows.map(sum), 1));
  const scale = (HEIGHT - TOP - BOTTOM) / top;
  const base = HEIGHT - BOTTOM;
  for (const share of [0, 0.5, 1]) {
    const y = base - share * top * scale;
    drawing.append(svg("line", { class: "grid", x1: LEFT, x2: width, y1: y, y2: y }));
    drawing.append(svg("text", { class: "tick", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, tokens(share * top)));
  }
  const step = (width - LEFT) / rows.length;
  const thick = Math.max(1, Math.min(44, step * 0.72));
  const every = Math.ceil(rows.length / Math.max(2, Math.floor((width - LEFT) / 64)));
  rows.forEach((row, place) => {
    const middle = LEFT + step * (place + 0.5);
    const column = svg("g", {}, svg("title", {}, `${row.key}: ${tokens(sum(row))} tokens`));
    let y = base;
    for (const [name] of PARTS) {
      const height = parts(row)[name] * scale;
      y -= height;
      if (height > 0) column.append(svg("rect", { class: name, x: middle - thick / 2, y, width: thick, height }));
    }
    drawing.append(column);
    if ((rows.length - 1 - place) % every === 0) {
      drawing.append(svg("text", { class: "tick", x: middle, y: HEIGHT - 6, "text-anchor": "middle" }, shortDay(row.key)));
    }
  });
  return drawing;
}

/** Bars, one a row, each under its name. */
export function bars(rows, width, name) {
  const tall = 40;
  const drawing = svg("svg", { width, height: rows.length * tall, viewBox: `0 0 ${width} ${rows.length * tall}` });
  const most = Math.max(...rows.map(sum), 1);
  rows.forEach((row, place) => {
    const y = place * tall;
    const value = tokens(sum(row));
    drawing.append(svg("text", { class: "label", x: 0, y: y + 14 }, fitted(name(row), width - 60)));
    drawing.append(svg("text", { class: "tick", x: width, y: y + 14, "text-anchor": "end" }, value));
    drawing.append(svg("rect", { class: "track", x: 0, y: y + 21, width, height: 8, rx: 4 }));
    let x = 0;
    for (const [part] of PARTS) {
      const long = (parts(row)[part] / most) * width;
      if (long > 0) drawing.append(svg("rect", { class: part, x, y: y + 21, width: long, height: 8 }));
      x += long;
    }
  });
  return drawing;
}

function niceTop(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 5, 10].map((factor) => factor * power).find((top) => top >= most);
}

function shortDay(key) {
  const [, month, day] = key.split("-");
  return `${month}-${day}`;
}

function fitted(text, width) {
  const room = Math.floor(width / 7.2);
  return text.length > room ? `…${text.slice(-room + 1)}` : text;
}
