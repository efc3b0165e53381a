// @ts-check
// How a value of every row went over time (views/series_payload.py).
import { countText, numberText } from "./numbers.js";

const NONE = 0;
const ZERO = 1;
const FIRST = 2;

/** @typedef {[row: number, column: number, kind: string, text: string]} Mark */

/** A value of every row over the steps. Where values lie on its scale are places: their decimal logarithms, or themselves. */
export class Timeline {
  constructor() {
    this.name = "";
    this.title = "";
    /** Whether places are logarithms. */
    this.is_log = true;
    /** How many columns there are. */
    this.n = 0;
    /** The first and the last step of each. @type {ArrayLike<number>} */
    this.first = [];
    /** @type {ArrayLike<number>} */
    this.last = [];
    /** From where to where the colours go: logarithms, plain. @type {[number, number][]} */
    this.range = [];
    /** How many digits of a value are known. */
    this.digits = 4;
    /** Whether cells have a least and a greatest value. */
    this.has_band = false;
    /** @type {Mark[]} */
    this.marks = [];
    this.n_marks = 0;
    this.n_rows = 0;
  }

  /** Where a cell lies; NaN: nowhere; -Infinity: at zero, which has no logarithm. @param {number} row @param {number} column @returns {number} */
  place(row, column) {
    return NaN;
  }

  /** The places of the least and the greatest value in a cell. @param {number} row @param {number} column @returns {[number, number]} */
  band(row, column) {
    const place = this.place(row, column);
    return [place, place];
  }

  /** From where to where a row's places go. @param {number} row @returns {[number, number]} */
  extent(row) {
    return [0, 0];
  }

  /** @param {number} row @param {number} column @returns {boolean} */
  is_bad(row, column) {
    return false;
  }

  /** @param {number} place */
  value_at(place) {
    return this.is_log ? 10 ** place : place;
  }

  /** What a cell holds; NaN where there is nothing. @param {number} row @param {number} column */
  value(row, column) {
    return this.value_at(this.place(row, column));
  }

  /** How many columns there is room for. */
  get n_shown() {
    return this.n;
  }

  /** A cell in words. @param {number} row @param {number} column */
  text(row, column) {
    const value = this.value(row, column);
    if (this.is_bad(row, column)) return value === value ? `not finite (${this.number(value)} without it)` : "not finite";
    if (value !== value) return "no value";
    const [low, high] = this.band(row, column);
    const range = low < high ? `, about ${this.number(this.value_at(low), 2)} to ${this.number(this.value_at(high), 2)}` : "";
    return this.number(value) + range;
  }

  /** As exact as the page knows it. @param {number} value */
  number(value, digits = this.digits) {
    return numberText(+value.toPrecision(digits));
  }

  /** The last column that has begun at a step. @param {number} step */
  column_at(step) {
    let low = 0;
    let high = this.n - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.first[middle] <= step) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** "step 12", "steps 10 to 19" @param {number} column */
  steps_text(column) {
    const [first, last] = [this.first[column], this.last[column]];
    return first === last ? `step ${countText(first)}` : `steps ${countText(first)} to ${countText(last)}`;
  }

  /** For sorting: the last value of each row; what is not finite is more than anything. */
  get last_values() {
    const values = new Float64Array(this.n_rows);
    for (let row = 0; row < values.length; row++) values[row] = this.is_bad(row, this.n - 1) ? Infinity : this.value(row, this.n - 1);
    return values;
  }

  /** Where it begins and ends not to be finite, in some columns. @param {number} row @param {number} from @param {number} to */
  bad_runs(row, from, to) {
    return runs((column) => this.is_bad(row, column), from, to);
  }

  /** Where it begins and ends to be zero. @param {number} row @param {number} from @param {number} to */
  zero_runs(row, from, to) {
    return runs((column) => this.place(row, column) === -Infinity, from, to);
  }
}

/** One that was packed: codes on a scale of each row's own. */
export class Series extends Timeline {
  /** @param {any} spec @param {any[]} buffers */
  constructor(spec, buffers) {
    super();
    this.name = spec.name;
    this.title = spec.title;
    this.is_log = spec.log;
    this.n = spec.n;
    this.first = buffers[spec.first];
    this.last = buffers[spec.last];
    this.start = buffers[spec.start];
    this.step = buffers[spec.step];
    this.n_rows = this.start.length;
    this.n_codes = spec.fine ? 65536 : 256;
    this.codes = summed(buffers[spec.codes], spec.n, spec.fine);
    this.low = buffers[spec.low];
    this.high = buffers[spec.high];
    this.has_band = !!this.low;
    this.band_step = spec.band_step;
    this.bad = buffers[spec.bad];
    this.range = spec.range;
    this.digits = spec.fine ? 4 : 2;
    this.marks = spec.marks;
    this.n_marks = spec.n_marks;
  }

  /** @param {number} row @param {number} column */
  place(row, column) {
    return this.#place_of(row, this.codes[row * this.n + column]);
  }

  #place_of(row, code) {
    return code === NONE ? NaN : code === ZERO ? -Infinity : this.start[row] + (code - FIRST) * this.step[row];
  }

  /** @param {number} row @param {number} column */
  is_bad(row, column) {
    return this.bad[row * this.n + column] === 1;
  }

  /** @param {number} row @param {number} column @returns {[number, number]} */
  band(row, column) {
    const at = row * this.n + column;
    const code = this.codes[at];
    const reach = (distance) => this.#place_of(row, Math.max(FIRST, Math.min(this.n_codes - 1, code + distance * this.band_step)));
    return this.low && code >= FIRST ? [reach(-this.low[at]), reach(this.high[at])] : super.band(row, column);
  }

  /** @param {number} row @returns {[number, number]} */
  extent(row) {
    return [this.start[row], this.start[row] + (this.n_codes - 1 - FIRST) * this.step[row]];
  }

  get last_values() {
    const values = super.last_values;
    Object.defineProperty(this, "last_values", { value: values });
    return values;
  }
}

/** @param {(at: number) => boolean} is_wanted @param {number} from @param {number} to @returns {[number, number][]} */
function runs(is_wanted, from, to) {
  /** @type {[number, number][]} */
  const found = [];
  for (let at = from; at < to; at++) {
    if (!is_wanted(at)) continue;
    const start = at;
    while (at < to && is_wanted(at)) at++;
    found.push([start, at]);
  }
  return found;
}

/** The codes, from their differences in time. */
function summed(differences, n, fine) {
  const codes = new (fine ? Uint16Array : Uint8Array)(differences);
  for (let row = 0; row < codes.length; row += n) for (let at = row + 1; at < row + n; at++) codes[at] += codes[at - 1];
  return codes;
}
