// @ts-check
// Charts of one row over time: a line for each series with a band from least to greatest value, and a table of the last values.
import { h } from "../tree/dom.js";

/** @typedef {import("./series_view.js").SeriesView} SeriesView */
/** @typedef {import("./series.js").Timeline} Timeline */

const WIDTH = 340;
const HEIGHT = 112;
const LEFT = 56;
const RIGHT = 8;
const TOP = 12;
const BOTTOM = 94;
const N_LAST = 8;
export const LOG_SCALE = ", log scale";

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  element.append(...children);
  return element;
}

/** @param {SeriesView} seriesView @param {number} row @returns {HTMLElement[]} */
export function charts(seriesView, row) {
  // The charts that these replace no longer follow the pointer.
  seriesView.chartStop.abort();
  seriesView.chartStop = new AbortController();
  const drawn = seriesView.all.filter((series) => hasSomething(series, row));
  return drawn.length ? [h("div", { class: "charts" }, ...seriesView.heatMap.strip(row), ...drawn.map((series) => lineChart(seriesView, series, row))), table(drawn, row)] : [];
}

/** Replace the charts in the details by new ones. @param {SeriesView} seriesView @param {number} row @param {HTMLElement} place */
export function refreshCharts(seriesView, row, place) {
  const [drawings, values] = charts(seriesView, row);
  const old = place.querySelector(".charts");
  const oldValues = /** @type {HTMLDetailsElement | null} */ (place.querySelector(".last-values"));
  if (!drawings) return;
  // The details were opened before the row had any value.
  if (!old || !oldValues) return seriesView.view.showDetail(row);
  old.replaceWith(drawings);
  if (!oldValues.open) return void oldValues.replaceWith(values);
  // The table is open: replace its content only, so that it stays open.
  oldValues.querySelector("table")?.replaceWith(/** @type {Node} */ (values.querySelector("table")));
}

function hasSomething(series, row) {
  for (let bucket = 0; bucket < series.n; bucket++) if (series.isBad(row, bucket) || series.place(row, bucket) <= Infinity) return true;
  return false;
}

/** @param {SeriesView} seriesView @param {Timeline} series @param {number} row */
function lineChart(seriesView, series, row) {
  const [from, shown] = seriesView.span(series);
  const to = Math.min(shown, series.n);
  const xOf = (bucket) => LEFT + ((bucket - from + 0.5) / (to - from)) * (WIDTH - LEFT - RIGHT);
  const yOf = scaleOf(seriesView, series, row, from, to);
  const { line, band, zero } = paths(series, row, from, to, xOf, yOf.ofPlace);
  const bad = series.badRuns(row, from, to).flatMap(([start, end]) => hatched(xOf(start - 0.5), xOf(end - 0.5)));
  const marks = series.marks.filter((mark) => mark[0] === row && mark[1] >= from && mark[1] < to);
  const label = `${series.title} of ${seriesView.view.tree.label(row)}: ${summary(series, row)}`;
  const drawing = svg(
    "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, class: "chart" },
    ...yOf.ticks.map(([y, text]) => svg("g", {}, svg("path", { class: "grid", d: `M${LEFT} ${y}H${WIDTH - RIGHT}` }), svg("text", { x: LEFT - 5, y: y + 3, "text-anchor": "end" }, text))),
    ...[from, Math.floor((from + to - 1) / 2), to - 1].filter((bucket, i, all) => all.indexOf(bucket) === i).map((bucket, i, all) =>
      svg("text", { x: xOf(bucket), y: HEIGHT - 5, "text-anchor": all.length < 2 ? "middle" : ["start", "middle", "end"][i] }, series.stepText(i < all.length - 1 ? series.first[bucket] : series.last[bucket]))),
    svg("path", { class: "band", d: band }),
    svg("path", { class: "zero", d: zero }),
    svg("path", { class: "line", d: line }),
    svg("path", { class: "bad", d: bad.join("") }),
    ...marks.map(([, bucket, kind, text, severity]) => svg("path", { class: severity === "info" ? "mark dim" : "mark", d: `M${xOf(bucket) - 5} 0h10l-5 9z` }, svg("title", {}, `${kind}: ${text}`))),
    svg("path", { class: "at", d: "" }),
  );
  const at = /** @type {SVGElement} */ (drawing.lastChild);
  const showStep = (step) => {
    const bucket = step === null ? -1 : series.bucketAt(step);
    at.setAttribute("d", bucket >= from && bucket < to ? `M${xOf(bucket)} ${TOP - 4}V${BOTTOM}` : "");
  };
  seriesView.view.on("read", showStep, seriesView.chartStop.signal);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const part = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    seriesView.read(row, series.first[Math.max(from, Math.min(to - 1, from + Math.floor(part * (to - from))))], { event, series, figure });
  });
  drawing.addEventListener("pointerleave", () => seriesView.read(-1, seriesView.step));
  const figure = h("figure", { class: "over-time" }, h("figcaption", {}, series.title + yOf.scale), drawing);
  return figure;
}

/** The y coordinate of a place in the chart of a row, the ticks of its axis, and what its caption says of it. */
export function scaleOf(seriesView, series, row, from, to) {
  const isLog = series.isLog && seriesView.isLog;
  const scale = isLog ? LOG_SCALE : "";
  const partOf = (place) => (isLog ? place : series.valueAt(place));
  let [low, high] = [Infinity, -Infinity];
  for (let bucket = from; bucket < to; bucket++) {
    if (!Number.isFinite(series.place(row, bucket)) || series.isBad(row, bucket)) continue;
    const [least, most] = series.band(row, bucket);
    low = Math.min(low, partOf(least));
    high = Math.max(high, partOf(most));
  }
  if (low > high) return { scale, ofPlace: () => BOTTOM, ticks: /** @type {[number, string][]} */ ([[BOTTOM, "0"]]) };
  const [start, end] = series.extent(row);
  const span = end > start ? high - low : 0;
  const at = (part) => TOP + (1 - part) * (BOTTOM - 8 - TOP);
  const value = (part) => (isLog ? series.valueAt(low + part * span) : low + part * span);
  const parts = span ? [0, 0.5, 1] : [0.5];
  return {
    scale,
    ofPlace: (place) => (span ? at((partOf(place) - low) / span) : at(0.5)),
    ticks: parts.map((part) => /** @type {[number, string]} */ ([at(part), series.number(value(span ? part : 0), 2)])),
  };
}

export function paths(series, row, from, to, xOf, yOf) {
  let line = "";
  let zero = "";
  let band = "";
  let [above, below] = ["", ""];
  const close = () => {
    if (above) band += `M${above.slice(1)}${below}z`;
    above = below = "";
  };
  let pen = "M";
  for (let bucket = from; bucket < to; bucket++) {
    const place = series.place(row, bucket);
    const x = xOf(bucket).toFixed(1);
    if (!Number.isFinite(place) || series.isBad(row, bucket)) {
      if (place === -Infinity && !series.isBad(row, bucket)) zero += `M${x} ${BOTTOM}h2`;
      pen = "M";
      close();
      continue;
    }
    line += `${pen}${x} ${yOf(place).toFixed(1)}${pen === "M" ? "h.1" : ""}`;
    pen = "L";
    if (series.hasBand) {
      const [least, most] = series.band(row, bucket);
      above += `L${x} ${yOf(most).toFixed(1)}`;
      below = `L${x} ${yOf(least).toFixed(1)}${below}`;
    }
  }
  close();
  return { line, band, zero };
}

/** A hatched block between two x coordinates. */
function hatched(from, to) {
  const [width, height] = [Math.max(to - from, 5), BOTTOM - TOP];
  const side = Math.min(width, height);
  const lines = Array.from({ length: (width + height - 2 * side) / 5 + 1 }, (_, i) => (width > height ? `M${from + 5 * i} ${BOTTOM}` : `M${from} ${BOTTOM - 5 * i}`));
  return [`M${from} ${TOP}h${width}v${height}h${-width}z`, ...lines.map((start) => `${start}l${side} ${-side}`)];
}

function summary(series, row) {
  const runs = series.badRuns(row, 0, series.n);
  const bad = runs.length ? `; not finite from ${series.stepsText(runs[0][0])} on` : "";
  return `${series.text(row, 0)} at ${series.stepsText(0)}, ${series.text(row, series.n - 1)} at ${series.stepsText(series.n - 1)}${bad}`;
}

/** @param {Timeline[]} all @param {number} row */
function table(all, row) {
  const [main] = all;
  const buckets = Array.from({ length: Math.min(N_LAST, main.n) }, (_, i) => main.n - 1 - i);
  const line = (bucket) =>
    h("tr", {}, h("th", { scope: "row" }, main.stepsText(bucket)),
      ...all.map((series) => h("td", {}, series.text(row, series === main ? bucket : series.bucketAt(main.first[bucket])))));
  return h("details", { class: "last-values" }, h("summary", {}, "last values"),
    h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Last values" },
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "steps"), ...all.map((series) => h("th", { scope: "col" }, series.title)))),
        h("tbody", {}, ...buckets.map(line)))));
}
