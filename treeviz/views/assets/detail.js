// @ts-check
// Everything that is known of one row.
import { bar_chart, h } from "./dom.js";
import { wholeText } from "./numbers.js";
import { shape_text } from "./words.js";

// Columns of labels that say what the facts say.
const SAID = ["type", "kind", "shape", "dtype", "sharding"];

// Characters of a path that are shown; all are copied.
const LONG_PATH = 2000;

/** @typedef {import("./view.js").View} View */

/** @param {View} view @param {number} row @returns {HTMLElement} */
export function detail(view, row) {
  const { tree } = view;
  const of = (field) => tree.of(row, field);
  return h(
    "div",
    { class: "detail", role: "group", "aria-label": `Details of ${tree.label(row)}` },
    h("button", { class: "close", "aria-label": "Close the details", title: "close (Esc)", click: () => view.show_detail(-1) }, "×"),
    h("b", { class: "title" }, tree.label(row)),
    path_line(view, "path", tree.expression(row)),
    path_line(view, "keystr", tree.keystr(row)),
    ...tree.notes(row).map((note) => note_box(view, note)),
    ...view.more_detail(row),
    ...values(tree.header.values, row),
    pairs([
      ["type", of("module") ? `${of("module")}.${of("type")}` : of("type")],
      ["kind", of("kind") + (of("is_leaf") ? " (a leaf)" : ` (a node, ${tree.n_children[row]} children)`)],
      ["value", of("text")],
      ["shape", shape_text(of("shape"))],
      ["dtype", of("dtype") + (of("weak") ? " (weakly typed)" : "")],
      ...sharding_pairs(of("sharding")),
      ...tree.columns.filter(({ name }) => !SAID.includes(name)).map((column) => [column.title, exact(column, row), column.help]),
    ]),
    ...section("static fields", of("static")),
    ...tree.columns.filter((column) => column.format === "histogram").map((column) => histogram(column, row)),
  );
}

const path_line = (view, name, text) =>
  h("div", { class: "path" }, h("code", { title: name }, text.length > LONG_PATH ? `…${text.slice(-LONG_PATH)}` : text || "(the root)"),
    h("button", { "aria-label": `Copy ${name}`, click: () => view.copy(text) }, "copy"));

/** @param {any[][]} entries */
export const pairs = (entries) =>
  h("dl", {}, ...entries.filter(([, text]) => text).flatMap(([name, text, title]) => [h("dt", { title: title || undefined }, name), h("dd", {}, text)]));

const section = (title, entries) => (entries.length ? [h("div", { class: "section" }, title), pairs(entries)] : []);

function exact(column, row) {
  if (!column.is_number) return column.labels ? column.text(row) : "";
  const value = column.values[row];
  const text = column.text(row);
  const whole = column.format === "number" || Number.isNaN(value) ? text : wholeText(value);
  return column.format !== "bytes" || value < 1000 ? (column.format === "bytes" ? text : whole) : `${text} (${whole} bytes)`;
}

function sharding_pairs(sharding) {
  if (!sharding) return [];
  const [text, n_devices, shard_shape, replicated, committed, addressable, devices] = sharding;
  const words = [replicated && "replicated", committed === false && "uncommitted", !addressable && "partly in other processes"];
  return [
    ["sharding", [text, ...words].filter(Boolean).join(", ")],
    ["devices", devices === text ? "" : devices || String(n_devices)],
    ["shard shape", n_devices > 1 ? shape_text(shard_shape) : ""],
  ];
}

function note_box(view, [kind, text, row, details]) {
  const where = row >= 0 ? [h("button", { class: "link", click: () => view.go_to(row) }, `go to ${view.tree.name}${view.tree.keystr(row)}`)] : [];
  return h("div", { class: "note", "data-note": kind }, h("b", {}, kind), ` ${text} `, ...where, ...(details.length ? [pairs(details)] : []));
}

function histogram(column, row) {
  const heights = column.bars(row);
  if (!heights.some(Boolean)) return "";
  return h("figure", {}, bar_chart(heights, column.title), h("figcaption", {}, column.help || column.title));
}

/** A page that came with the payload. It runs in an origin of its own and reaches nothing of ours. */
const values = ({ before, rows }, row) =>
  row in rows ? [h("iframe", { sandbox: "allow-scripts", srcdoc: before + rows[row], title: "values" })] : [];
