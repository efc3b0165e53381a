// @ts-check
// Histograms of the values of each row, in cells and in the details.
import { h } from "../tree/dom.js";
import { barChart } from "./bar_chart.js";

/** The bar heights, 0 to 255, of which fifths are sent, from the first bin to the last that any row uses. @param {any} column @param {number} row */
function barsOf({ tree, levels, spec: { n_bins: length } }, row) {
  return Uint8Array.from({ length }, (_, bin) => 5 * levels[bin * tree.n + row]);
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
  const { n_bins: nBins, first_bin: first } = column.spec;
  const ticks = [0, nBins >> 1, nBins].filter((bin, i, all) => bin !== all[i - 1]);
  return h("figure", {}, h("figcaption", {}, column.help || column.title), barChart(heights, column.title),
    h("div", { class: "ticks", "aria-hidden": "true" }, ...ticks.map((bin) => h("span", {}, `${first + bin}`))));
}
