// @ts-check
// How the values inside one row were distributed over time: steps to the right, bins upwards, lighter is more.
import { PALETTE } from "./colours.js";
import { h } from "./dom.js";
import { countText, numberText } from "./numbers.js";

/** @param {import("./history.js").History} history @param {number} row @returns {HTMLElement[]} */
export function distributions(history, row) {
  const { header, buffers } = history.view.tree;
  return header.histograms.flatMap((spec) => {
    const heights = buffers[spec.heights].subarray(row * spec.n * spec.n_bins, (row + 1) * spec.n * spec.n_bins);
    return heights.some(Boolean) ? [distribution(spec, heights, buffers)] : [];
  });
}

function distribution(spec, heights, buffers) {
  const { n, n_bins, levels, edges, title } = spec;
  const [low, high] = edges.map((edge) => numberText(+edge.toPrecision(2)));
  const [first, last] = [buffers[spec.first][0], buffers[spec.last][n - 1]].map(countText);
  const label = `${title}: ${low} (below) to ${high} (above), steps ${first} to ${last}; lighter is more`;
  const canvas = h("canvas", { width: n, height: n_bins, role: "img", "aria-label": label });
  const paper = canvas.getContext("2d");
  const image = paper.createImageData(n, n_bins);
  const pixels = new Uint32Array(image.data.buffer);
  for (let column = 0; column < n; column++)
    for (let bin = 0; bin < n_bins; bin++) {
      const height = heights[column * n_bins + bin];
      if (height) pixels[(n_bins - 1 - bin) * n + column] = PALETTE[Math.round((255 * height) / levels)];
    }
  paper.putImageData(image, 0, 0);
  return h("figure", { class: "over-time distribution" }, h("figcaption", {}, title),
    h("span", {}, high), canvas, h("span", {}, low), h("span", { class: "steps" }, first), h("span", { class: "steps end" }, last));
}
