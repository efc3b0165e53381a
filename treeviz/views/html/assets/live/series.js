// @ts-check
// A series that grows in bounded memory.
import { Timeline } from "../series/series.js";

const MAX_BUCKETS = 512;
const MAX_CELLS = 4e6;
const NEWEST = 128; // buckets of a series that scrolls
const LEAST_SHOWN = 32;

/** Buckets of all rows, to be added to a series.
 * @typedef {{n: number, first: Float64Array, last: Float64Array, steps: Float64Array, latest: Float32Array, low: Float32Array, high: Float32Array, bad: Uint8Array}} Buckets
 * Cells are stored row by row, `n` for each row.
 */

export class LiveSeries extends Timeline {
  /** @param {{name: string, title: string, digits: number, inner: [number, string]}} about @param {number} nRows @param {boolean} scrolls whether old buckets go, instead of being joined */
  constructor(about, nRows, scrolls) {
    super();
    this.name = about.name;
    this.title = about.title;
    this.inner = about.inner;
    this.digits = about.digits;
    this.nRows = nRows;
    this.scrolls = scrolls;
    const most = Math.max(16, Math.min(scrolls ? NEWEST : MAX_BUCKETS, Math.floor(MAX_CELLS / Math.max(1, nRows))));
    /** How many cells each row has room for. */
    this.stride = most - (most % 2);
    this.first = new Float64Array(this.stride);
    this.last = new Float64Array(this.stride);
    /** How many steps were recorded in each bucket. */
    this.steps = new Float64Array(this.stride);
    /** How many steps are joined into a bucket. */
    this.width = 1;
    const cells = nRows * this.stride;
    this.latest = new Float32Array(cells);
    this.low = new Float32Array(cells);
    this.high = new Float32Array(cells);
    this.bad = new Uint8Array(cells);
    this.hasBand = true;
    /** The findings: row, step, kind, text, severity. @type {[number, number, string, string, string][]} */
    this.found = [];
    /** The same with buckets in place of steps; null: not computed since the buckets or the findings changed. @type {import("../series/series.js").FindingMark[] | null} */
    this.marksNow = null;
  }

  /** @param {Buckets} buckets */
  add(buckets) {
    for (let i = 0; i < buckets.n; i++) {
      const joins = !this.scrolls && this.n > 0 && this.steps[this.n - 1] + buckets.steps[i] <= this.width;
      if (!joins && this.n === this.stride) this.#makeRoom();
      const bucket = joins ? this.n - 1 : this.n++;
      if (!joins) {
        this.first[bucket] = buckets.first[i];
        this.steps[bucket] = 0;
      }
      this.last[bucket] = buckets.last[i];
      this.steps[bucket] += buckets.steps[i];
      for (let row = 0; row < this.nRows; row++) {
        const at = row * this.stride + bucket;
        const from = row * buckets.n + i;
        if (joins) this.#join(at, at, buckets.latest[from], buckets.low[from], buckets.high[from], buckets.bad[from]);
        else {
          this.latest[at] = buckets.latest[from];
          this.low[at] = buckets.low[from];
          this.high[at] = buckets.high[from];
          this.bad[at] = buckets.bad[from];
        }
      }
    }
    this.marksNow = null;
  }

  /** Merge the later values into the cell `at`, and store the result in the cell `to`. */
  #join(to, at, latest, low, high, bad) {
    this.latest[to] = latest === latest ? latest : this.latest[at];
    this.low[to] = low < this.low[at] || this.low[at] !== this.low[at] ? low : this.low[at];
    this.high[to] = high > this.high[at] || this.high[at] !== this.high[at] ? high : this.high[at];
    this.bad[to] = this.bad[at] | bad;
  }

  #makeRoom() {
    const { stride, nRows } = this;
    if (this.scrolls) {
      const kept = stride / 2;
      for (const part of [this.first, this.last, this.steps]) part.copyWithin(0, kept);
      for (const part of [this.latest, this.low, this.high, this.bad])
        for (let row = 0; row < nRows; row++) part.copyWithin(row * stride, row * stride + kept, (row + 1) * stride);
      this.n = kept;
      return;
    }
    // All buckets get about the same number of steps, so that the time axis is even.
    let total = 0;
    for (let bucket = 0; bucket < this.n; bucket++) total += this.steps[bucket];
    /** @type {number[]} where each bucket begins */
    let groups = [];
    for (this.width = (2 * total) / stride; !groups.length || groups.length > 0.75 * stride; this.width *= 1.5) groups = this.#groups();
    this.width /= 1.5;
    groups.forEach((from, bucket) => {
      const end = groups[bucket + 1] ?? this.n;
      this.first[bucket] = this.first[from];
      this.last[bucket] = this.last[end - 1];
      let steps = 0;
      for (let i = from; i < end; i++) steps += this.steps[i];
      this.steps[bucket] = steps;
      for (let row = 0; row < nRows; row++) {
        const to = row * stride + bucket;
        for (const part of [this.latest, this.low, this.high, this.bad]) part[to] = part[row * stride + from];
        for (let at = row * stride + from + 1; at < row * stride + end; at++) this.#join(to, to, this.latest[at], this.low[at], this.high[at], this.bad[at]);
      }
    });
    this.n = groups.length;
  }

  /** The first bucket of each group of neighbours that together fit into one bucket. */
  #groups() {
    const groups = [];
    let steps = Infinity;
    for (let bucket = 0; bucket < this.n; bucket++) {
      if (steps + this.steps[bucket] > this.width) {
        groups.push(bucket);
        steps = 0;
      }
      steps += this.steps[bucket];
    }
    return groups;
  }

  /** @param {number} row @param {number} bucket */
  place(row, bucket) {
    return Math.log10(this.latest[row * this.stride + bucket]);
  }

  /** @param {number} row @param {number} bucket */
  isBad(row, bucket) {
    return this.bad[row * this.stride + bucket] === 1;
  }

  /** @param {number} row @param {number} bucket @returns {[number, number]} */
  band(row, bucket) {
    const at = row * this.stride + bucket;
    const low = Math.log10(this.low[at]);
    return [low === -Infinity ? this.place(row, bucket) : low, Math.log10(this.high[at])];
  }

  /** @param {number} row @returns {[number, number]} */
  extent(row) {
    let [low, high] = [Infinity, -Infinity];
    for (let at = row * this.stride; at < row * this.stride + this.n; at++) {
      if (this.bad[at]) continue;
      if (this.low[at] > 0 && this.low[at] < low) low = this.low[at];
      if (this.latest[at] > 0 && this.latest[at] < low) low = this.latest[at];
      if (this.high[at] > high) high = this.high[at];
    }
    return low <= high ? [Math.log10(low), Math.log10(high)] : [0, 0];
  }

  /** @returns {import("../series/series.js").FindingMark[]} */
  get marks() {
    const of = ([row, step, ...rest]) => /** @type {import("../series/series.js").FindingMark} */ ([row, this.bucketAt(step), ...rest]);
    this.marksNow ??= this.scrolls || !this.n ? [] : (this.found ?? []).map(of);
    return this.marksNow;
  }

  /** @param {[number, number, string, string, string][]} found */
  setFound(found) {
    this.found = found;
    this.marksNow = null;
  }

  /** A new run leaves room on the right, so that its buckets do not shrink with every step. */
  get nShown() {
    return Math.max(this.n, Math.min(this.stride, this.scrolls ? this.stride : LEAST_SHOWN));
  }

  /** A copy that does not grow. */
  frozen() {
    const still = Object.assign(Object.create(LiveSeries.prototype), this);
    for (const name of ["first", "last", "steps", "latest", "low", "high", "bad"]) still[name] = this[name].slice();
    still.found = [...this.found];
    return still;
  }

  /** The newest value of each row; NaN where it is not finite. */
  get newest() {
    return Float64Array.from({ length: this.nRows }, (_, row) => (this.n && !this.isBad(row, this.n - 1) ? this.latest[row * this.stride + this.n - 1] : NaN));
  }
}

/** A packed series as buckets. @param {import("../series/series.js").Series} series @returns {Buckets} */
export function bucketsOf(series) {
  const { n, nRows } = series;
  const cells = n * nRows;
  const buckets = {
    n, first: Float64Array.from(series.first), last: Float64Array.from(series.last), steps: new Float64Array(n),
    latest: new Float32Array(cells), low: new Float32Array(cells), high: new Float32Array(cells), bad: new Uint8Array(cells),
  };
  for (let bucket = 0; bucket < n; bucket++) buckets.steps[bucket] = series.last[bucket] - series.first[bucket] + 1;
  for (let row = 0; row < nRows; row++)
    for (let bucket = 0; bucket < n; bucket++) {
      const at = row * n + bucket;
      const [low, high] = series.band(row, bucket);
      buckets.latest[at] = series.value(row, bucket);
      buckets.low[at] = series.valueAt(low);
      buckets.high[at] = series.valueAt(high);
      buckets.bad[at] = +series.isBad(row, bucket);
    }
  return buckets;
}

/** Buckets of all rows from those of the leaves: the norm of a node is the root of the sum of squares of the known norms. */
export class RollUp {
  /** @param {import("../tree/tree.js").Tree} tree */
  constructor(tree) {
    this.parent = tree.parent;
    this.nRows = tree.n;
    /** The rows of the leaves, in the order in which Python sends them. */
    this.leaves = Int32Array.from(Array.from({ length: tree.n }, (_, row) => row).filter((row) => tree.end[row] === row + 1));
  }

  /** @param {number} n buckets @param {DataView[]} buffers steps, counts, bits and norms, bucket by bucket @returns {Buckets} */
  read(n, buffers) {
    const { nRows, leaves } = this;
    const nBytes = Math.ceil(leaves.length / 8);
    const sizes = [8 * n, 8 * n, 8 * n, n * nBytes, ...Array(buffers.length > 5 ? 3 : 1).fill(4 * n * leaves.length)];
    if (buffers.length !== sizes.length || buffers.some((buffer, i) => buffer.byteLength !== sizes[i])) throw new Error("buckets of another tree");
    const numbers = (buffer, Type) => new Type(buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength));
    const [first, last, steps] = buffers.slice(0, 3).map((buffer) => numbers(buffer, Float64Array));
    const bits = new Uint8Array(buffers[3].buffer, buffers[3].byteOffset, buffers[3].byteLength);
    const bad = new Uint8Array(nRows * n);
    for (let bucket = 0; bucket < n; bucket++)
      leaves.forEach((row, leaf) => (bad[row * n + bucket] = (bits[bucket * nBytes + (leaf >> 3)] >> (leaf & 7)) & 1));
    for (let row = nRows - 1; row > 0; row--)
      for (let bucket = 0; bucket < n; bucket++) bad[this.parent[row] * n + bucket] |= bad[row * n + bucket];
    const [latest, low = latest, high = latest] = buffers.slice(4).map((buffer) => this.#norms(n, numbers(buffer, Float32Array), bad));
    return { n, first, last, steps, latest, low, high, bad };
  }

  #norms(n, ofLeaves, bad) {
    const { nRows, leaves, parent } = this;
    const squares = new Float64Array(nRows * n).fill(NaN);
    for (let bucket = 0; bucket < n; bucket++) leaves.forEach((row, leaf) => (squares[row * n + bucket] = ofLeaves[bucket * leaves.length + leaf] ** 2));
    for (let row = nRows - 1; row > 0; row--)
      for (let bucket = 0; bucket < n; bucket++) {
        const square = squares[row * n + bucket];
        const above = parent[row] * n + bucket;
        if (square === square) squares[above] = squares[above] === squares[above] ? squares[above] + square : square;
      }
    // A norm covers finite values only: 0 in a bad row means that none was finite, so there is no norm.
    return Float32Array.from(squares, (square, at) => (bad[at] && square === 0 ? NaN : Math.sqrt(square)));
  }
}
