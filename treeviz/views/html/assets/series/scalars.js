// @ts-check
// The user's scalars above the heat map: a line for each, over the same steps, and its value at the step under the pointer.
import { paths, scaleOf, svg } from "./chart.js";
import { h } from "../tree/dom.js";
import { Series } from "./series.js";

/** @typedef {import("./series_view.js").SeriesView} SeriesView */

const LINE_HEIGHT = 26;
const MOST_LINES = 6;
const [SPAN, ROOF, FLOOR] = [1000, 6, 92]; // of a drawing; scaleOf takes 12 to 86

export class Scalars {
  /** @param {SeriesView} seriesView */
  constructor(seriesView) {
    this.seriesView = seriesView;
    const { header, buffers } = seriesView.view.tree;
    this.element = h("div", { class: "scalars", role: "group", "aria-label": "Scalars" });
    /** Above the ticks of the heat map. */
    this.strip = h("div", { class: "strip" });
    this.take((header.scalars ?? []).map((spec) => new Series(spec, buffers)));
  }

  /** Show these in place of those before. @param {Series[]} all */
  take(all) {
    this.lines = all.slice(0, MOST_LINES).map((series) => {
      const value = h("b");
      const range = h("span", { class: "range" });
      const place = h("div", { class: "plot" });
      return { series, value, range, place, label: h("div", { class: "scalar" }, h("span", { class: "name" }, series.title), value, range) };
    });
    this.element.hidden = !all.length;
    this.element.replaceChildren(...this.lines.map(({ label }) => label));
    this.strip.replaceChildren();
    this.seriesView.view.grid.element.style.setProperty("--strip", `${LINE_HEIGHT * this.lines.length}px`);
  }

  /** Draw the lines, over the steps of the heat map. */
  paint() {
    const { seriesView } = this;
    const { width } = seriesView.heatMap;
    this.element.style.width = `${seriesView.view.grid.element.clientWidth - width}px`;
    for (const { series, range, place, label } of this.lines) {
      (width ? this.strip : label).append(place);
      const [start, shown] = seriesView.span(series);
      const from = Math.max(start, series.bucketAt(seriesView.series.first[0]));
      const to = Math.min(shown, series.n);
      const { ofPlace, ticks, scale } = scaleOf(seriesView, series, 0, from, to);
      const xOf = (bucket) => this.#x((series.first[bucket] + series.last[bucket]) / 2);
      const { line, band, zero } = paths(series, 0, from, to, xOf, ofPlace);
      const bad = series.badRuns(0, from, to).map(([start, end]) => `M${xOf(start)} ${ROOF}V${FLOOR}H${xOf(end - 1)}V${ROOF}z`);
      const marks = series.marks.map(([, bucket]) => `M${xOf(bucket)} ${ROOF}V${FLOOR}`);
      place.replaceChildren(svg("svg", { viewBox: `0 ${ROOF} ${SPAN} ${FLOOR - ROOF}`, preserveAspectRatio: "none", class: "chart" },
        ...Object.entries({ band, mark: marks.join(""), zero, line, bad: bad.join("") }).map(([name, d]) => svg("path", { class: name, d }))));
      range.textContent = ticks.length > 1 ? `${ticks[0][1]} to ${ticks[ticks.length - 1][1]}${scale}` : "";
    }
    this.show(seriesView.step);
  }

  /** Where a step is in the heat map: 0 to SPAN. @param {number} step */
  #x(step) {
    const { series } = this.seriesView;
    const [from, to] = this.seriesView.span(series);
    const bucket = series.bucketAt(step);
    const part = (step + 0.5 - series.first[bucket]) / (series.last[bucket] - series.first[bucket] + 1);
    return (SPAN * (bucket - from + Math.max(0, Math.min(1, part)))) / (to - from);
  }

  /** Show the values at a step; null: the last ones. @param {number | null} step */
  show(step) {
    for (const { series, value, label } of this.lines) {
      const bucket = step === null ? series.n - 1 : series.bucketAt(step);
      const bad = series.isBad(0, bucket);
      value.textContent = bad ? "NaN/Inf" : series.number(series.value(0, bucket));
      value.className = bad ? "bad" : "";
      label.title = `${series.title}: ${series.text(0, bucket)} · ${series.stepsText(bucket)}`;
    }
  }
}
