// @ts-check
// The pane with the details of one row.
import { barChart, h } from "./dom.js";
import { wholeText } from "./numbers.js";
import { shapeText } from "./word_index.js";

// Columns of labels that repeat what the pane shows anyway.
const SAID = ["type", "kind", "shape", "dtype", "sharding"];

// How many characters of a path are shown; the button copies all.
const LONG_PATH = 2000;

/** @typedef {import("./view.js").View} View */

/** @param {View} view @param {number} row @returns {HTMLElement} */
export function detail(view, row) {
  const { tree } = view;
  const of = (field) => tree.of(row, field);
  return h(
    "div",
    { class: "detail", role: "group", "aria-label": `Details of ${tree.label(row)}` },
    h("button", { class: "close", "aria-label": "Close the details", title: "close (Esc)", click: () => view.showDetail(-1) }, "×"),
    h("b", { class: "title" }, tree.label(row)),
    pathLine(view, "Python", tree.expression(row)),
    pathLine(view, "key path", tree.keystr(row)),
    ...tree.notes(row).map((note) => noteBox(view, note)),
    ...view.moreDetail(row),
    ...values(tree.header.values, row),
    pairs([
      ["type", of("module") ? `${of("module")}.${of("type")}` : of("type")],
      ["kind", of("kind") + (of("is_leaf") ? " (a leaf)" : of("kind") === "layer" ? "" : ` (a node, ${tree.nChildren[row]} children)`)],
      ["value", of("text")],
      ["shape", shapeText(of("shape"))],
      ["dtype", of("dtype") + (of("weak") ? " (weakly typed)" : "")],
      ...shardingPairs(of("sharding")),
      ...tree.columns.filter(({ name }) => !SAID.includes(name) && !(name === "devices" && of("sharding"))).map((column) => [column.title, exact(column, row), column.help]),
    ]),
    ...section("static fields", of("static")),
    // The explorer asks Python for all levels.
    ...section("inside (invisible to JAX)", view.request ? [] : of("inside")),
    ...tree.columns.filter((column) => column.format === "histogram").map((column) => histogram(column, row)),
  );
}

const pathLine = (view, name, text) =>
  h("div", { class: "path" }, h("code", { title: name }, text.length > LONG_PATH ? `…${text.slice(-LONG_PATH)}` : text || "(the root)"),
    h("button", { "aria-label": `Copy ${name}`, click: () => view.copy(text) }, "copy"));

/** @param {any[][]} entries */
export const pairs = (entries) =>
  h("dl", {}, ...entries.filter(([, text]) => text).flatMap(([name, text, title]) => [h("dt", { title: title || undefined }, name), h("dd", {}, text)]));

const section = (title, entries) => (entries.length ? [h("div", { class: "section" }, title), pairs(entries)] : []);

function exact(column, row) {
  if (!column.isNumber) return column.labels ? column.text(row) : "";
  const value = column.values[row];
  const text = column.text(row);
  if (Number.isNaN(value)) return text;
  const whole = column.format === "number" || !(Math.abs(value) < 1e21) ? text : wholeText(value);
  return column.format !== "bytes" || value < 1000 ? (column.format === "bytes" ? text : whole) : `${text} (${whole} bytes)`;
}

function shardingPairs(sharding) {
  if (!sharding) return [];
  const [text, nDevices, shardShape, replicated, committed, addressable, devices, memory] = sharding;
  const more = [replicated && `replicated ×${nDevices}`, committed === false && "not committed", !addressable && "partly in other processes"];
  return [
    ["sharding", [text, ...more].filter(Boolean).join(", ")],
    ["devices", devices === text ? "" : devices || String(nDevices)],
    ["shard shape", nDevices > 1 ? shapeText(shardShape) : ""],
    ["memory", memory],
  ];
}

/** @param {View} view @param {import("./tree.js").Note} note */
function noteBox(view, [kind, text, row, details, severity]) {
  const where = row >= 0 ? [h("button", { class: "link", click: () => view.goTo(row) }, `go to ${view.tree.name}${view.tree.keystr(row)}`)] : [];
  return h("div", { class: "note", "data-note": kind, "data-severity": severity }, h("b", {}, kind), ` ${text} `, ...where, ...(details.length ? [pairs(details)] : []));
}

function histogram(column, row) {
  const heights = column.bars(row);
  if (!heights.some(Boolean)) return "";
  return h("figure", {}, barChart(heights, column.title), h("figcaption", {}, column.help || column.title));
}

/** A page of values from the payload. The sandbox gives it an origin of its own, so that it cannot access the view. */
const values = ({ before, rows }, row) =>
  row in rows ? [h("iframe", { sandbox: "allow-scripts", srcdoc: before + rows[row], title: "values" })] : [];
