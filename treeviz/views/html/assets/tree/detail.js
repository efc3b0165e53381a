// @ts-check
// The pane with the details of one row.
import { copyMenu } from "./copying.js";
import { h } from "./dom.js";
import { foldedText } from "./folds.js";
import { LONG_PATH } from "./grid.js";
import { wholeText } from "./numbers.js";
import { shapeText } from "./tree.js";

// Columns of labels that repeat what the pane shows anyway.
const SAID = ["type", "kind", "shape", "dtype", "sharding", "insertion"];

const MAX_CRUMBS = 16;

/** @typedef {import("./view.js").View} View */

/** @param {View} view @param {number} row @returns {HTMLElement} */
export function detail(view, row) {
  const { tree } = view;
  const of = (field) => tree.of(row, field);
  return h(
    "div",
    { class: "detail", role: "group", "aria-label": `Details of ${tree.label(row)}` },
    h("button", { class: "close", "aria-label": "Close the details", title: "Close (Esc)", click: () => view.showDetail(-1) }, "×"),
    crumbs(view, row),
    h("div", { class: "path" }, h("code", { title: "Python" }, shortened(tree.expression(row))), copyMenu(view)),
    ...foldNote(view, row),
    ...tree.notes(row).map((note) => noteBox(view, note)),
    ...view.moreDetail(row),
    pairs([
      ["type", of("module") ? `${of("module")}.${of("type")}` : of("type")],
      ["kind", of("kind") + (of("is_leaf") ? " (a leaf)" : of("kind") === "layer" ? "" : ` (children: ${tree.nChildren[row]})`)],
      ["value", of("text")],
      ["shape", shapeText(of("shape"))],
      ["dtype", of("dtype") + (of("weak") ? " (weakly typed)" : "")],
      ...(of("sharding")?.slice(2) ?? []),
      ...tree.columns.filter((column) => !column.isApart && saysMore(column, row)).map((column) => [column.title, exact(view, column, row), column.help]),
    ]),
    ...section(["dict", "list"].includes(of("kind")) ? "metadata of the file" : "static fields", of("static")),
    // The explorer asks Python for all levels.
    ...section("inside (invisible to JAX)", view.request ? [] : of("inside")),
  );
}

/** What a folded row stands for. @param {View} view @param {number} row */
function foldNote({ rows, tree }, row) {
  const n = rows.folds?.of(row).length ?? 1;
  const label = rows.folds?.runs.get(row)?.label;
  return n > 1 ? [h("div", { class: "note", "data-note": "info" }, `${label ?? `${wholeText(n)} siblings`} have the same structure: the numbers cover all, the rest describes the first`)] : [];
}

const shortened = (text) => (text.length > LONG_PATH ? `…${text.slice(-LONG_PATH)}` : text);

/** The way from the root to the row; a click on a part goes there. @param {View} view @param {number} row */
function crumbs(view, row) {
  const { tree } = view;
  const above = [];
  for (let at = tree.parent[row]; at >= 0; at = tree.parent[at]) above.push(at);
  const left = above.length > MAX_CRUMBS ? above.splice(MAX_CRUMBS / 2, above.length - MAX_CRUMBS).length : 0;
  const links = above.map((at) => h("button", { class: "link", click: () => view.goTo(at) }, tree.label(at)));
  if (left) links.splice(MAX_CRUMBS / 2, 0, h("span", { title: `${left} more` }, "…"));
  return h("div", { class: "crumbs" }, ...links.reverse().flatMap((link) => [link, " › "]), h("b", { class: "title" }, tree.label(row)));
}

/** Whether a column says something of a row that the pane does not say otherwise: no count of nothing, or of the row itself. */
function saysMore(column, row) {
  const { name, format, tree } = column;
  if (SAID.includes(name)) return false;
  if (name === "devices" && (tree.of(row, "sharding") || column.values?.[row] === 1)) return false;
  if (name === "leaves" && !tree.nChildren[row]) return false;
  if (name === "device_bytes" && column.values[row] === tree.column("bytes")?.values[row]) return false;
  return format !== "count" || column.values[row] !== 0;
}

/** @param {any[][]} entries */
export const pairs = (entries) =>
  h("dl", {}, ...entries.filter(([, text]) => text).flatMap(([name, text, title]) => [h("dt", { title }, name), h("dd", {}, text)]));

const section = (title, entries) => (entries.length ? [h("div", { class: "section" }, title), pairs(entries)] : []);

function exact({ rows: { folds } }, column, row) {
  if (folds?.of(row).length > 1) return foldedText(folds, column, row);
  if (!column.isNumber) return column.labels ? column.text(row) : "";
  const value = column.values[row];
  const text = column.text(row);
  if (value !== value) return text;
  const whole = column.format === "number" ? text : wholeText(value);
  return column.format !== "bytes" ? whole : value < 1000 ? text : `${text} (${whole} bytes)`;
}

/** @param {View} view @param {import("./tree.js").Note} note */
function noteBox(view, [kind, text, row, details, severity]) {
  const where = row >= 0 ? [h("button", { class: "link", click: () => view.goTo(row) }, `go to ${view.tree.name}${view.tree.keystr(row)}`)] : [];
  return h("div", { class: "note", "data-note": kind, "data-severity": severity }, h("b", {}, kind), ` ${text} `, ...where, ...(details.length ? [pairs(details)] : []));
}
