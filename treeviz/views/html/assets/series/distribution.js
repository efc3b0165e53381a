// @ts-check
// Histograms of the values of one row over time: steps to the right, bins upwards, lighter is more.
import { PALETTE } from "./colors.js";
import { h } from "../tree/dom.js";
import { countText, numberText } from "../tree/numbers.js";

/** @param {import("./series_view.js").SeriesView} seriesView @param {number} row @returns {HTMLElement[]} */
export function distributions(seriesView, row) {
  const { header, buffers } = seriesView.view.tree;
  return header.histograms.flatMap((spec) => {
    const heights = buffers[spec.heights].subarray(row * spec.n * spec.n_bins, (row + 1) * spec.n * spec.n_bins);
    return heights.some(Boolean) ? [distribution(spec, heights, buffers)] : [];
  });
}

function distribution(spec, heights, buffers) {
  const { n, n_bins: nBins, levels, edges, title } = spec;
  const [low, high] = edges.map((edge) => numberText(+edge.toPrecision(2)));
  const [first, last] = [buffers[spec.first][0], buffers[spec.last][n - 1]].map(countText);
  const label = `${title}: ${low} (below) to ${high} (above), steps ${first} to ${last}; lighter is more`;
  const canvas = h("canvas", { width: n, height: nBins, role: "img", "aria-label": label });
  const ctx = canvas.getContext("2d");
  const image = ctx.createImageData(n, nBins);
  const pixels = new Uint32Array(image.data.buffer);
  for (let bucket = 0; bucket < n; bucket++)
    for (let bin = 0; bin < nBins; bin++) {
      const height = heights[bucket * nBins + bin];
      if (height) pixels[(nBins - 1 - bin) * n + bucket] = PALETTE[Math.round((255 * height) / levels)];
    }
  ctx.putImageData(image, 0, 0);
  return h("figure", { class: "over-time distribution" }, h("figcaption", {}, title),
    h("span", {}, high), canvas, h("span", {}, low), h("span", { class: "steps" }, first), h("span", { class: "steps end" }, last));
}
