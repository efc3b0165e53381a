// @ts-check
// A value of every row over time, as views/html/series_payload.py packs it.
import { countText, numberText } from "../tree/numbers.js";

const NONE = 0;
const ZERO = 1;
const FIRST = 2;

/** @typedef {[row: number, bucket: number, kind: string, text: string, severity: string]} FindingMark */

/**
 * A value of every row over the steps. Neighbouring steps share a bucket; a cell is a row and a bucket.
 * The place of a cell is where its value lies on the scale: its decimal logarithm on a logarithmic scale, else the value.
 */
export class Timeline {
  constructor() {
    this.name = "";
    this.title = "";
    /** Whether the scale is logarithmic. */
    this.isLog = true;
    /** How many buckets there are. */
    this.n = 0;
    /** How many inner steps a step has, such as micro-batches, and what they are: "" for what a step has once. @type {[number, string]} */
    this.inner = [1, ""];
    /** The positions of the first and the last step of each bucket: steps, or where these have inner steps `step * n + inner step`. @type {ArrayLike<number>} */
    this.first = [];
    /** @type {ArrayLike<number>} */
    this.last = [];
    /** How many significant digits of a value are known. */
    this.digits = 4;
    /** Whether the cells know their least and greatest value. */
    this.hasBand = false;
    this.nRows = 0;
  }

  /** The place of a cell; NaN if it has no value, -Infinity for the logarithm of zero. @param {number} row @param {number} bucket @returns {number} */
  place(row, bucket) {
    return NaN;
  }

  /** The places of the least and the greatest value in a cell. @param {number} row @param {number} bucket @returns {[number, number]} */
  band(row, bucket) {
    const place = this.place(row, bucket);
    return [place, place];
  }

  /** The least and the greatest place of a row. @param {number} row @returns {[number, number]} */
  extent(row) {
    return [0, 0];
  }

  /** @param {number} row @param {number} bucket @returns {boolean} */
  isBad(row, bucket) {
    return false;
  }

  /** @param {number} place */
  valueAt(place) {
    return this.isLog ? 10 ** place : place;
  }

  /** The value of a cell; NaN if it has none. @param {number} row @param {number} bucket */
  value(row, bucket) {
    return this.valueAt(this.place(row, bucket));
  }

  /** The findings, the worst first. @returns {FindingMark[]} */
  get marks() {
    return [];
  }

  /** How many findings there are; `marks` may hold fewer. */
  get nMarks() {
    return this.marks.length;
  }

  /** How many buckets fit into the width of the view. */
  get nShown() {
    return this.n;
  }

  /** The value of a cell as text. @param {number} row @param {number} bucket */
  text(row, bucket) {
    const value = this.value(row, bucket);
    if (this.isBad(row, bucket)) return value === value ? `not finite (${this.number(value)} without it)` : "not finite";
    if (value !== value) return "no value";
    const [low, high] = this.band(row, bucket);
    const range = low < high ? `, about ${this.number(this.valueAt(low), 2)} to ${this.number(this.valueAt(high), 2)}` : "";
    return this.number(value) + range;
  }

  /** A value as text, with as many digits as are known. @param {number} value */
  number(value, digits = this.digits) {
    return numberText(+value.toPrecision(digits));
  }

  /** The bucket that holds a step. @param {number} step */
  bucketAt(step) {
    let low = 0;
    let high = this.n - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.first[middle] <= step) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** "step 12", "steps 10 to 19"; "call 9, micro-batch 6" @param {number} bucket */
  stepsText(bucket) {
    return this.spanText(this.first[bucket], this.last[bucket]);
  }

  /** @param {number} first @param {number} last positions */
  spanText(first, last) {
    const [n, noun] = this.inner;
    const word = n > 1 ? "call" : "step";
    const [from, to] = [first, last].map((position) => this.stepText(position, `, ${noun} `));
    return first === last ? `${word} ${from}` : noun ? `${word} ${from} to ${word} ${to}` : `${word}s ${from} to ${to}`;
  }

  /** "12"; "9:6" for inner step 6 of call 9 @param {number} position */
  stepText(position, between = "") {
    const [n, noun] = this.inner;
    const inner = position % n;
    return countText((position - inner) / n) + (noun && (between || inner) ? (between || ":") + countText(inner) : "");
  }

  /** The last value of each row, for sorting; Infinity where it is not finite. */
  get lastValues() {
    const values = new Float64Array(this.nRows);
    for (let row = 0; row < values.length; row++) values[row] = this.isBad(row, this.n - 1) ? Infinity : this.value(row, this.n - 1);
    return values;
  }

  /** The runs of buckets in which a row is not finite: pairs of start and end. @param {number} row @param {number} from @param {number} to */
  badRuns(row, from, to) {
    return runs((bucket) => this.isBad(row, bucket), from, to);
  }

  /** The runs of buckets in which a row is zero. @param {number} row @param {number} from @param {number} to */
  zeroRuns(row, from, to) {
    return runs((bucket) => this.place(row, bucket) === -Infinity, from, to);
  }
}

/** A packed series: each row has a scale of its own, and each cell a code on it. */
export class Series extends Timeline {
  /** @param {any} spec @param {any[]} buffers */
  constructor(spec, buffers) {
    super();
    this.spec = spec;
    this.name = spec.name;
    this.title = spec.title;
    this.isLog = spec.log;
    this.inner = spec.inner;
    this.n = spec.n;
    this.first = buffers[spec.first];
    this.last = buffers[spec.last];
    this.start = buffers[spec.start];
    this.step = buffers[spec.step];
    this.nRows = this.start.length;
    this.nCodes = spec.fine ? 65536 : 256;
    this.codes = summed(buffers[spec.codes], spec.n, spec.fine);
    this.low = buffers[spec.low];
    this.high = buffers[spec.high];
    this.hasBand = !!this.low;
    this.bandStep = spec.band_step;
    this.bad = buffers[spec.bad];
    this.digits = spec.fine ? 4 : 2;
  }

  /** @param {number} row @param {number} bucket */
  place(row, bucket) {
    return this.#placeOf(row, this.codes[row * this.n + bucket]);
  }

  #placeOf(row, code) {
    return code === NONE ? NaN : code === ZERO ? -Infinity : this.start[row] + (code - FIRST) * this.step[row];
  }

  /** @param {number} row @param {number} bucket */
  isBad(row, bucket) {
    return this.bad[row * this.n + bucket] === 1;
  }

  /** @param {number} row @param {number} bucket @returns {[number, number]} */
  band(row, bucket) {
    const at = row * this.n + bucket;
    const code = this.codes[at];
    const reach = (distance) => this.#placeOf(row, Math.max(FIRST, Math.min(this.nCodes - 1, code + distance * this.bandStep)));
    return this.low && code >= FIRST ? [reach(-this.low[at]), reach(this.high[at])] : super.band(row, bucket);
  }

  /** @param {number} row @returns {[number, number]} */
  extent(row) {
    return [this.start[row], this.start[row] + (this.nCodes - 1 - FIRST) * this.step[row]];
  }

  get marks() {
    return this.spec.marks;
  }

  get nMarks() {
    return this.spec.n_marks;
  }

  get lastValues() {
    const values = super.lastValues;
    Object.defineProperty(this, "lastValues", { value: values });
    return values;
  }
}

/** @param {(at: number) => boolean} isWanted @param {number} from @param {number} to @returns {[number, number][]} */
function runs(isWanted, from, to) {
  /** @type {[number, number][]} */
  const found = [];
  for (let at = from; at < to; at++) {
    if (!isWanted(at)) continue;
    const start = at;
    while (at < to && isWanted(at)) at++;
    found.push([start, at]);
  }
  return found;
}

/** The codes of cells, from their differences along time. */
function summed(differences, n, fine) {
  const codes = new (fine ? Uint16Array : Uint8Array)(differences);
  for (let row = 0; row < codes.length; row += n) for (let at = row + 1; at < row + n; at++) codes[at] += codes[at - 1];
  return codes;
}
