// @ts-check
// What the colors of the heat map mean: the level of a cell, and the levels that the scale reaches from and to.

const SAMPLED = 2000; // cells, for the ends of the scale
const OF_A_ROW = 64; // cells, for its median

/** The colors of what a SeriesView shows. A level is a value, or its decimal logarithm on a logarithmic scale. */
export class ColorScale {
  /** @param {import("./series_view.js").SeriesView} seriesView */
  constructor(seriesView) {
    this.seriesView = seriesView;
    /** Whether a value is divided by the median of its row. */
    this.isRelative = false;
    this.key = "";
    /** @type {Map<number, number>} */
    this.medians = new Map();
    /** The levels of the first and the last color. */
    this.low = 0;
    this.high = 1;
    /** The least and the greatest level among the cells that were read. */
    this.least = 0;
    this.most = 1;
  }

  get isLog() {
    return this.seriesView.isLog;
  }

  /** The level of a cell; NaN if it has no value, -Infinity for the logarithm of zero. @param {number} row @param {number} bucket */
  level(row, bucket) {
    const { series } = this.seriesView;
    const place = series.place(row, bucket);
    if (!this.isLog) return series.valueAt(place);
    return this.isRelative ? place - this.#median(row) : place;
  }

  /** The median place of a row over all its steps; of every so many where it has many. @param {number} row */
  #median(row) {
    const known = this.medians.get(row);
    if (known !== undefined) return known;
    const { series } = this.seriesView;
    const places = [];
    for (let bucket = 0; bucket < series.n; bucket += Math.ceil(series.n / OF_A_ROW)) {
      const place = series.place(row, bucket);
      if (Number.isFinite(place) && !series.isBad(row, bucket)) places.push(place);
    }
    const median = places.length ? places.sort((a, b) => a - b)[places.length >> 1] : 0;
    this.medians.set(row, median);
    return median;
  }

  /** Fit the scale to the open rows and the steps that are shown, if they have changed: the fences of a box plot (Tukey 1977), so that outliers do not stretch it. */
  fit() {
    const { series, view, isLog } = this.seriesView;
    const { rows } = view;
    const [from, shown] = this.seriesView.span(series);
    const width = Math.min(shown, series.n) - from;
    const key = [rows.version, series.name, series.n, series.last[series.n - 1], from, width, isLog, this.isRelative].join();
    if (key === this.key) return;
    this.key = key;
    this.medians.clear();
    const n = rows.count * width;
    let step = 1 + Math.floor(n / SAMPLED);
    if (step % width === 0) step++; // else all cells would be of one step
    const levels = [];
    for (let at = 0; at < n; at += step) {
      const level = this.level(rows.visible[Math.floor(at / width)], from + (at % width));
      if (Number.isFinite(level)) levels.push(level);
    }
    levels.sort((a, b) => a - b);
    const at = (part) => levels[Math.round(part * (levels.length - 1))] ?? part;
    [this.least, this.most] = [at(0), at(1)];
    let reach = 1.5 * (at(0.75) - at(0.25));
    if (reach < (this.most - this.least) / 1000) reach = Infinity; // most cells are nearly equal: the others need the scale
    this.low = Math.max(this.least, at(0.25) - reach);
    this.high = Math.min(this.most, at(0.75) + reach);
    if (this.isRelative && isLog) this.low = -(this.high = Math.max(Math.abs(this.low), Math.abs(this.high)));
    if (!(this.high - this.low > 1e-9 * Math.max(Math.abs(this.low), Math.abs(this.high), 1e-30))) {
      this.low -= 0.5;
      this.high += 0.5;
    }
  }

  /** The ends as text, with a sign where values beyond them share their color. @returns {[string, string]} */
  get ends() {
    const { series } = this.seriesView;
    const text = (level) => (this.isRelative && this.isLog ? "×" : "") + series.number(this.isLog ? 10 ** level : level, 2);
    return [(this.least < this.low ? "≤ " : "") + text(this.low), (this.most > this.high ? "≥ " : "") + text(this.high)];
  }
}
