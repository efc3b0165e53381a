// @ts-check
// On paper each row has its own part of the canvases beside the rows, since a canvas breaks between pages where rows do not.
import { h } from "../tree/dom.js";

/** Put into each row what a canvas has beside it. @param {any[]} rows @param {HTMLCanvasElement} canvas @param {string} left @param {string} width */
export function addStrips(rows, canvas, left, width) {
  rows.forEach((row, i) => {
    const strip = h("canvas");
    const tall = canvas.height / rows.length;
    strip.width = canvas.width;
    strip.height = tall;
    strip.style.left = left;
    strip.style.width = width;
    strip.getContext("2d").drawImage(canvas, 0, -i * tall);
    row.append(strip);
  });
}
