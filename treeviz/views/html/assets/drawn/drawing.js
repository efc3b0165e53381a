// @ts-check
// Draws the values of a part of an array, where treescope cannot: a cell for each, and a legend of the colors and signs.
import { GRADIENT, PALETTE } from "../series/colors.js";
import { h } from "../tree/dom.js";
import { numberText, wholeText } from "../tree/numbers.js";
import { additions } from "../tree/view.js";

/** @typedef {{columns: number, cells: string, elsewhere: string, range: [number, number], axes: number[], starts: number[], caption: string, why: string}} Drawing as in analysis/details.py */

// Around zero, which is white: blue and orange differ with color blindness, too. Red is for NaN.
const [BLUE, ORANGE] = [[11, 79, 191], [179, 79, 0]];
const AROUND_ZERO = `linear-gradient(90deg,rgb(${BLUE}),#fff,rgb(${ORANGE}))`;
const CELL = 7; // pixels in the canvas; a sign has 5
const LONGEST = 448; // of the longer side on the screen: 64 cells
const [WHITE, RED, GRAY, PALE] = [0xffffffff, 0xff1e26b3, 0xff8a7f78, 0xffd0c9c4]; // ABGR

// The signs: rows of 5 pixels.
const CROSSED = "10001 01010 00100 01010 10001";
const UP = "00000 00100 01110 11111 00000";
const DOWN = "00000 11111 01110 00100 00000";
const PLUS = "00100 00100 11111 00100 00100";
const MINUS = "00000 00000 11111 00000 00000";
const DOTS = "00000 01010 00000 01010 00000";

additions.push({
  name: "drawn",
  start(view) {
    const { drawn } = view.tree.header;
    const { moreDetail } = view;
    if (drawn) view.moreDetail = (row) => [...(drawn[row] ? [drawing(drawn[row])] : []), ...moreDetail(row)];
  },
});

/** @param {Drawing} drawing @returns {HTMLElement} */
export function drawing({ columns, cells, elsewhere, range, axes, starts, caption, why }) {
  const values = new Float32Array(bytesOf(cells).buffer);
  const isElsewhere = bytesOf(elsewhere);
  const [low, high] = range;
  /** How often each sign is drawn. @type {Map<string, number>} */
  const counts = new Map();
  const kinds = [
    ["NaN", CROSSED],
    ["+Inf", UP],
    ["-Inf", DOWN],
    [`above ${numberText(high)}`, PLUS],
    [`below ${numberText(low)}`, MINUS],
    ["in another process", DOTS],
  ];
  /** The color of a cell, the sign in it and the color of that. @returns {[number, string, number]} */
  const look = (value, isGone) => {
    if (isGone) return [GRAY, DOTS, PALE];
    if (value !== value) return [RED, CROSSED, WHITE];
    const place = Math.max(0, Math.min(1, (value - low) / (high - low)));
    const color = low < 0 ? aroundZero(2 * place - 1) : PALETTE[Math.round(255 * place)];
    const sign = value === Infinity ? UP : value === -Infinity ? DOWN : value > high ? PLUS : value < low ? MINUS : "";
    return [color, sign, (color & 255) + 2 * ((color >> 8) & 255) > 384 ? 0xff000000 : WHITE];
  };
  const looks = Array.from(values, (value, i) => look(value, isElsewhere[i]));
  for (const [, sign] of looks) if (sign) counts.set(sign, (counts.get(sign) ?? 0) + 1);

  const nRows = Math.ceil(values.length / columns);
  const width = columns * Math.max(4, Math.min(24, Math.floor(LONGEST / Math.max(columns, nRows))));
  const bar = h("i", { class: "colors" });
  bar.style.background = low < 0 ? AROUND_ZERO : GRADIENT;
  const found = kinds.filter(([, sign]) => counts.has(sign));
  const shown = found.map(([name, sign]) => `${wholeText(counts.get(sign))} ${name}`);
  const picture = paint(looks, columns);
  picture.style.width = `${width}px`;
  picture.role = "img";
  picture.ariaLabel = [`${caption}: colors from ${numberText(low)} to ${numberText(high)}`, ...shown].join(", ");
  const readout = h("span", { class: "at" });
  const sample = (sign) => paint([looks.find((each) => each[1] === sign)], 1);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const row = Math.floor((nRows * (event.clientY - box.top)) / box.height);
    const column = Math.floor((columns * (event.clientX - box.left)) / box.width);
    const i = row * columns + column;
    // The index of the element: a vector goes on in the next row.
    const place = starts.map((start, axis) => start + (axis === axes[0] ? row : axis !== axes[1] ? 0 : axes[0] < 0 ? i : column));
    if (i in values) readout.textContent = `[${place}] ${isElsewhere[i] ? "?" : numberText(values[i])}`;
  });
  picture.addEventListener("pointerleave", () => (readout.textContent = ""));
  return h(
    "figure", { class: low < 0 ? "drawn signed" : "drawn" },
    h("figcaption", {}, caption),
    picture,
    h("div", { class: "legend" }, numberText(low), bar, numberText(high), ...found.map(([, sign], i) => h("span", {}, sample(sign), ` ${shown[i]}`)), readout),
    h("p", { class: "why" }, why),
  );
}

/** The color of a part of the range, little-endian RGBA. @param {number} part from -1 to 1 */
function aroundZero(part) {
  const [red, green, blue] = (part < 0 ? BLUE : ORANGE).map((end) => Math.round(255 + (end - 255) * Math.abs(part)));
  return 0xff000000 | (blue << 16) | (green << 8) | red;
}

/** A canvas with a cell for each look. */
function paint(looks, columns) {
  const canvas = h("canvas");
  canvas.width = CELL * columns;
  canvas.height = CELL * Math.ceil(looks.length / columns);
  const ctx = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = ctx.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  looks.forEach(([color, sign, ink], i) => {
    const from = CELL * (canvas.width * Math.floor(i / columns) + (i % columns));
    for (let y = 0; y < CELL; y++)
      for (let x = 0; x < CELL; x++) pixels[from + canvas.width * y + x] = x && x < 6 && y && sign[6 * (y - 1) + x - 1] === "1" ? ink : color;
  });
  ctx.putImageData(image, 0, 0);
  return canvas;
}

/** @param {string} text base64 */
const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
