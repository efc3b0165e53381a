// @ts-check
// How a value of every row went over time (views/series_payload.py).
import { countText, numberText } from "./numbers.js";

const NONE = 0;
const ZERO = 1;
const FIRST = 2;

/** @typedef {[row: number, column: number, kind: string, text: string]} Mark */

export class Series {
  /** @param {any} spec @param {any[]} buffers */
  constructor(spec, buffers) {
    this.name = spec.name;
    this.title = spec.title;
    /** Whether the codes are logarithms. */
    this.is_log = spec.log;
    /** How many columns there are. */
    this.n = spec.n;
    this.first = buffers[spec.first];
    this.last = buffers[spec.last];
    this.start = buffers[spec.start];
    this.step = buffers[spec.step];
    this.n_codes = spec.fine ? 65536 : 256;
    this.codes = summed(buffers[spec.codes], spec.n, spec.fine);
    this.low = buffers[spec.low];
    this.high = buffers[spec.high];
    this.band_step = spec.band_step;
    this.bad = buffers[spec.bad];
    /** From where to where the colours go: logarithms, plain. */
    this.range = spec.range;
    this.digits = spec.fine ? 4 : 2;
    /** @type {Mark[]} */
    this.marks = spec.marks;
    this.n_marks = spec.n_marks;
  }

  /** What a cell holds: a value, NaN where there is none. @param {number} row @param {number} column */
  value(row, column) {
    const code = this.codes[row * this.n + column];
    return code === NONE ? NaN : code === ZERO ? 0 : this.value_of(row, code);
  }

  /** @param {number} row @param {number} code */
  value_of(row, code) {
    const place = this.start[row] + (code - FIRST) * this.step[row];
    return this.is_log ? 10 ** place : place;
  }

  /** @param {number} row @param {number} column */
  is_bad(row, column) {
    return this.bad[row * this.n + column] === 1;
  }

  /** The codes of the least and the greatest value in a cell. @param {number} row @param {number} column */
  band(row, column) {
    const at = row * this.n + column;
    const code = this.codes[at];
    const reach = (distances, sign) => Math.max(FIRST, Math.min(this.n_codes - 1, code + sign * distances[at] * this.band_step));
    return this.low && code >= FIRST ? [reach(this.low, -1), reach(this.high, 1)] : [code, code];
  }

  /** A cell in words. @param {number} row @param {number} column */
  text(row, column) {
    const value = this.value(row, column);
    if (this.is_bad(row, column)) return value === value ? `not finite (${this.number(value)} without it)` : "not finite";
    if (value !== value) return "no value";
    const [low, high] = this.band(row, column);
    const range = low < high ? `, about ${this.number(this.value_of(row, low), 2)} to ${this.number(this.value_of(row, high), 2)}` : "";
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
    const values = new Float64Array(this.start.length);
    for (let row = 0; row < values.length; row++) values[row] = this.is_bad(row, this.n - 1) ? Infinity : this.value(row, this.n - 1);
    Object.defineProperty(this, "last_values", { value: values });
    return values;
  }

  /** Where it begins and ends not to be finite, in some columns. @param {number} row @param {number} from @param {number} to @returns {[number, number][]} */
  bad_runs(row, from, to) {
    return runs(this.bad.subarray(row * this.n, (row + 1) * this.n), 1, from, to);
  }

  /** @param {number} row @param {number} from @param {number} to */
  zero_runs(row, from, to) {
    return runs(this.codes.subarray(row * this.n, (row + 1) * this.n), ZERO, from, to);
  }
}

/** @param {ArrayLike<number>} cells @param {number} wanted @param {number} from @param {number} to @returns {[number, number][]} */
function runs(cells, wanted, from, to) {
  /** @type {[number, number][]} */
  const found = [];
  for (let at = from; at < to; at++) {
    if (cells[at] !== wanted) continue;
    const start = at;
    while (at < to && cells[at] === wanted) at++;
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
