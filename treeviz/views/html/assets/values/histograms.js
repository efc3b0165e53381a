// @ts-check
// Histograms of the values of each row, in cells and in the details.
import { h } from "../tree/dom.js";
import { barChart } from "./bar_chart.js";

/** The bar heights, 0 to 255, from the first bin to the last that any row uses. @param {any} column @param {number} row @returns {Uint8Array} */
function barsOf({ codes, levels, spec: { n_bins: nBins, used } }, row) {
  const start = (codes ? codes[row] : row) * nBins;
  return levels.subarray(start + used[0], start + used[1]);
}

/** Let the cells of a column show histograms. @param {any} column */
export function drawHistograms(column) {
  column.draw = (row) => barChart(barsOf(column, row), column.title);
  column.rankOf = (row) => barsOf(column, row).reduce((sum, height) => sum + height, 0);
}

/** @param {any} column @param {number} row @returns {Node | string} */
export function histogram(column, row) {
  const heights = barsOf(column, row);
  if (!heights.some(Boolean)) return "";
  const { used: [first, end], first_bin: firstBin } = column.spec;
  const ticks = [first, (first + end) >> 1, end].filter((bin, i, all) => bin !== all[i - 1]);
  return h("figure", {}, h("figcaption", {}, column.help || column.title), barChart(heights, column.title),
    h("div", { class: "ticks", "aria-hidden": "true" }, ...ticks.map((bin) => h("span", {}, String(firstBin + bin)))));
}
