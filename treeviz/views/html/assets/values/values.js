// @ts-check
// What a view shows of the values of arrays, if any were read: pages without them do not carry these modules.
import { h } from "../tree/dom.js";
import { additions } from "../tree/view.js";
import { otherTrees, sideBySide } from "./beside.js";
import { drawHistograms, histogram } from "./histograms.js";
import { isNorm, outlierOf, shareOfNorm } from "./norms.js";

// After the findings it is the last of another part: see PARTS in bundle.py.
additions.push({ name: additions[0] ? "checked" : "values", start: addValues });

/** @param {import("../tree/view.js").View} view */
function addValues(view) {
  const { tree, rows } = view;
  const { columns, header } = tree;
  const others = otherTrees(tree);
  const stats = new Set(others.flatMap((other) => [...other.columns.keys()]));
  for (const other of others) for (const column of other.columns.values()) column.isApart = true;
  for (const column of columns) if (stats.has(column.name) && column.format === "number") column.isApart = true;
  for (const column of columns) if (isNorm(column) && column.format !== "bytes") column.share = shareOfNorm(column);
  for (const column of columns) if (column.isNumber) column.urgency = /NaN|Inf/.test(column.title) ? 2 : +column.title.includes("rms");
  const rms = tree.column("rms");
  // It is sent as the mean.
  if (rms?.spec) rms.levels = Float64Array.from(rms.levels, (mean, i) => Math.hypot(mean, tree.buffers[rms.spec][i]));
  const histograms = columns.filter((column) => column.format === "histogram");
  for (const column of histograms) {
    column.isApart = true;
    drawHistograms(column);
  }
  rows.outlierOf = (row) => outlierOf(rows.folds, row);
  const { moreDetail } = view;
  view.moreDetail = (row) => [...moreDetail(row), ...pageOf(header.values, row), ...sideBySide(view, row, others)];
  view.on("detail", (row) => row >= 0 && view.detailPlace.firstElementChild?.append(...histograms.map((column) => histogram(column, row))));
}

/** A page of values from the payload. The sandbox gives it an origin of its own, so that it cannot access the view. */
const pageOf = (documents, row) => {
  const own = documents?.rows[row];
  return own ? [h("iframe", { sandbox: "allow-scripts", srcdoc: documents.before[own[0]] + own[1], title: "values" })] : [];
};
