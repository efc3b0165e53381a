// @ts-check
// One row over time: a line for each series, with the band from the least to the greatest value, and a table of the last values.
import { h } from "./dom.js";
import { countText } from "./numbers.js";

/** @typedef {import("./history.js").History} History */
/** @typedef {import("./series.js").Series} Series */

const WIDTH = 340;
const HEIGHT = 112;
const LEFT = 56;
const RIGHT = 8;
const TOP = 12;
const BOTTOM = 94;
const N_LAST = 8;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  element.append(...children);
  return element;
}

/** @param {History} history @param {number} row @returns {HTMLElement[]} */
export function charts(history, row) {
  const drawn = history.all.filter((series) => has_something(series, row));
  return drawn.length ? [h("div", { class: "charts" }, ...drawn.map((series) => line_chart(history, series, row))), table(drawn, row)] : [];
}

/** Draw them again where they stand. @param {History} history @param {number} row @param {HTMLElement} place */
export function refresh_charts(history, row, place) {
  const [drawings, values] = charts(history, row);
  const old = place.querySelector(".charts");
  const old_values = /** @type {HTMLDetailsElement | null} */ (place.querySelector(".last-values"));
  if (!old || !old_values || !drawings) return;
  old.replaceWith(drawings);
  if (!old_values.open) return void old_values.replaceWith(values);
  // It is open, and may be read.
  old_values.querySelector("table")?.replaceWith(/** @type {Node} */ (values.querySelector("table")));
}

function has_something(series, row) {
  for (let column = 0; column < series.n; column++) if (series.is_bad(row, column) || !Number.isNaN(series.place(row, column))) return true;
  return false;
}

/** @param {History} history @param {Series} series @param {number} row */
function line_chart(history, series, row) {
  const [from, shown] = history.span(series);
  const to = Math.min(shown, series.n);
  const x_of = (column) => LEFT + ((column - from + 0.5) / (to - from)) * (WIDTH - LEFT - RIGHT);
  const y_of = scale_of(history, series, row, from, to);
  const { line, band, zero } = paths(series, row, from, to, x_of, y_of.of_place);
  const bad = series.bad_runs(row, from, to).flatMap(([start, end]) => crosses(x_of(start), x_of(end - 1)));
  const marks = series.marks.filter((mark) => mark[0] === row && mark[1] >= from && mark[1] < to);
  const label = `${series.title} of ${history.view.tree.label(row)}: ${summary(series, row)}`;
  const drawing = svg(
    "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, class: "chart" },
    ...y_of.ticks.map(([y, text]) => svg("g", {}, svg("path", { class: "grid", d: `M${LEFT} ${y}H${WIDTH - RIGHT}` }), svg("text", { x: LEFT - 5, y: y + 3, "text-anchor": "end" }, text))),
    ...[from, Math.floor((from + to - 1) / 2), to - 1].filter((column, i, all) => all.indexOf(column) === i).map((column, i, all) =>
      svg("text", { x: x_of(column), y: HEIGHT - 5, "text-anchor": all.length < 2 ? "middle" : ["start", "middle", "end"][i] }, countText(i < all.length - 1 ? series.first[column] : series.last[column]))),
    svg("path", { class: "band", d: band }),
    svg("path", { class: "zero", d: zero }),
    svg("path", { class: "line", d: line }),
    svg("path", { class: "bad", d: bad.join("") }),
    ...marks.map(([, column, kind, text]) => svg("path", { class: "mark", d: `M${x_of(column) - 5} 0h10l-5 9z` }, svg("title", {}, `${kind}: ${text}`))),
    svg("path", { class: "at", d: "" }),
  );
  const at = /** @type {SVGElement} */ (drawing.lastChild);
  history.on_read.add((step) => {
    if (!drawing.isConnected) return false;
    const column = step === null ? -1 : series.column_at(step);
    at.setAttribute("d", column >= from && column < to ? `M${x_of(column)} ${TOP - 4}V${BOTTOM}` : "");
    return true;
  });
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const part = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    history.read(row, series.first[Math.max(from, Math.min(to - 1, from + Math.floor(part * (to - from))))], false, series);
  });
  return h("figure", { class: "over-time" }, h("figcaption", {}, series.title), drawing);
}

/** Where the places of a row lie in its chart, and what is written beside it. */
function scale_of(history, series, row, from, to) {
  const is_log = series.is_log && history.is_log;
  const part_of = (place) => (is_log ? place : series.value_at(place));
  let [low, high] = [Infinity, -Infinity];
  for (let column = from; column < to; column++) {
    if (!Number.isFinite(series.place(row, column)) || series.is_bad(row, column)) continue;
    const [least, most] = series.band(row, column);
    low = Math.min(low, part_of(least));
    high = Math.max(high, part_of(most));
  }
  if (low > high) return { of_place: () => BOTTOM, ticks: /** @type {[number, string][]} */ ([[BOTTOM, "0"]]) };
  const [start, end] = series.extent(row);
  const span = end > start ? high - low : 0;
  const at = (part) => TOP + (1 - part) * (BOTTOM - 8 - TOP);
  const value = (part) => (is_log ? series.value_at(low + part * span) : low + part * span);
  const parts = span ? [0, 0.5, 1] : [0.5];
  return {
    of_place: (place) => (span ? at((part_of(place) - low) / span) : at(0.5)),
    ticks: parts.map((part) => /** @type {[number, string]} */ ([at(part), series.number(value(span ? part : 0), 2)])),
  };
}

function paths(series, row, from, to, x_of, y_of) {
  let line = "";
  let zero = "";
  let band = "";
  let [above, below] = ["", ""];
  const close = () => {
    if (above) band += `M${above.slice(1)}${below}z`;
    above = below = "";
  };
  let pen = "M";
  for (let column = from; column < to; column++) {
    const place = series.place(row, column);
    const x = x_of(column).toFixed(1);
    if (!Number.isFinite(place) || series.is_bad(row, column)) {
      if (place === -Infinity && !series.is_bad(row, column)) zero += `M${x} ${BOTTOM}h2`;
      pen = "M";
      close();
      continue;
    }
    line += `${pen}${x} ${y_of(place).toFixed(1)}${pen === "M" ? "h.1" : ""}`;
    pen = "L";
    if (series.has_band) {
      const [least, most] = series.band(row, column);
      above += `L${x} ${y_of(most).toFixed(1)}`;
      below = `L${x} ${y_of(least).toFixed(1)}${below}`;
    }
  }
  close();
  return { line, band, zero };
}

/** Crosses from one place to another, not too many. */
function crosses(from, to) {
  const n = Math.floor((to - from) / 9) + 1;
  return Array.from({ length: n }, (_, i) => `M${(from + 9 * i - 3).toFixed(1)} ${TOP - 3}l6 6m0 -6l-6 6`);
}

function summary(series, row) {
  const runs = series.bad_runs(row, 0, series.n);
  const bad = runs.length ? `; not finite from ${series.steps_text(runs[0][0])} on` : "";
  return `${series.text(row, 0)} at ${series.steps_text(0)}, ${series.text(row, series.n - 1)} at ${series.steps_text(series.n - 1)}${bad}`;
}

/** @param {Series[]} all @param {number} row */
function table(all, row) {
  const [main] = all;
  const columns = Array.from({ length: Math.min(N_LAST, main.n) }, (_, i) => main.n - 1 - i);
  const line = (column) =>
    h("tr", {}, h("th", { scope: "row" }, main.steps_text(column)),
      ...all.map((series) => h("td", {}, series.text(row, series === main ? column : series.column_at(main.first[column])))));
  return h("details", { class: "last-values" }, h("summary", {}, "last values"),
    h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Last values" },
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "steps"), ...all.map((series) => h("th", { scope: "col" }, series.title)))),
        h("tbody", {}, ...columns.map(line)))));
}
