// @ts-check
// A series that grows while it is looked at, in bounded memory.
import { Timeline } from "./series.js";

const MOST_COLUMNS = 512;
const MOST_CELLS = 4e6;
const NEWEST = 128; // columns of a series that scrolls
const LEAST_SHOWN = 32;
const SAMPLED = 3000; // cells, for the colours

/** Some columns, of all rows: what is added to a series.
 * @typedef {{n: number, first: Float64Array, last: Float64Array, steps: Float64Array, latest: Float32Array, low: Float32Array, high: Float32Array, bad: Uint8Array}} Columns
 * Cells stand row by row, `n` for each.
 */

export class LiveSeries extends Timeline {
  /** @param {{name: string, title: string, digits: number}} about @param {number} n_rows @param {boolean} scrolls whether old columns go, instead of being joined */
  constructor(about, n_rows, scrolls) {
    super();
    this.name = about.name;
    this.title = about.title;
    this.digits = about.digits;
    this.n_rows = n_rows;
    this.scrolls = scrolls;
    const most = Math.max(16, Math.min(scrolls ? NEWEST : MOST_COLUMNS, Math.floor(MOST_CELLS / Math.max(1, n_rows))));
    /** Cells of a row. */
    this.stride = most - (most % 2);
    this.first = new Float64Array(this.stride);
    this.last = new Float64Array(this.stride);
    /** How many steps were recorded in each column. */
    this.steps = new Float64Array(this.stride);
    /** So many steps are joined into a column. */
    this.width = 1;
    const cells = n_rows * this.stride;
    this.latest = new Float32Array(cells);
    this.low = new Float32Array(cells);
    this.high = new Float32Array(cells);
    this.bad = new Uint8Array(cells);
    this.has_band = true;
    /** What was found: row, step, kind, text. @type {[number, number, string, string][]} */
    this.found = [];
  }

  /** @param {Columns} columns */
  add(columns) {
    for (let i = 0; i < columns.n; i++) {
      const joins = !this.scrolls && this.n > 0 && this.steps[this.n - 1] + columns.steps[i] <= this.width;
      if (!joins && this.n === this.stride) this.#make_room();
      const column = joins ? this.n - 1 : this.n++;
      if (!joins) {
        this.first[column] = columns.first[i];
        this.steps[column] = 0;
      }
      this.last[column] = columns.last[i];
      this.steps[column] += columns.steps[i];
      for (let row = 0; row < this.n_rows; row++) {
        const at = row * this.stride + column;
        const from = row * columns.n + i;
        if (joins) this.#join(at, at, columns.latest[from], columns.low[from], columns.high[from], columns.bad[from]);
        else {
          this.latest[at] = columns.latest[from];
          this.low[at] = columns.low[from];
          this.high[at] = columns.high[from];
          this.bad[at] = columns.bad[from];
        }
      }
    }
    this.range = [];
    this.marks_now = null;
  }

  /** What is in one cell and what followed it, in another cell. */
  #join(to, at, latest, low, high, bad) {
    this.latest[to] = latest === latest ? latest : this.latest[at];
    this.low[to] = low < this.low[at] || this.low[at] !== this.low[at] ? low : this.low[at];
    this.high[to] = high > this.high[at] || this.high[at] !== this.high[at] ? high : this.high[at];
    this.bad[to] = this.bad[at] | bad;
  }

  #make_room() {
    const { stride, n_rows } = this;
    if (this.scrolls) {
      const kept = stride / 2;
      for (const part of [this.first, this.last, this.steps]) part.copyWithin(0, kept);
      for (const part of [this.latest, this.low, this.high, this.bad])
        for (let row = 0; row < n_rows; row++) part.copyWithin(row * stride, row * stride + kept, (row + 1) * stride);
      this.n = kept;
      return;
    }
    // Columns of as many steps each: time runs evenly.
    let total = 0;
    for (let column = 0; column < this.n; column++) total += this.steps[column];
    /** @type {number[]} where each column begins */
    let groups = [];
    for (this.width = (2 * total) / stride; !groups.length || groups.length > 0.75 * stride; this.width *= 1.5) groups = this.#groups();
    this.width /= 1.5;
    groups.forEach((from, column) => {
      const end = groups[column + 1] ?? this.n;
      this.first[column] = this.first[from];
      this.last[column] = this.last[end - 1];
      let steps = 0;
      for (let i = from; i < end; i++) steps += this.steps[i];
      this.steps[column] = steps;
      for (let row = 0; row < n_rows; row++) {
        const to = row * stride + column;
        for (const part of [this.latest, this.low, this.high, this.bad]) part[to] = part[row * stride + from];
        for (let at = row * stride + from + 1; at < row * stride + end; at++) this.#join(to, to, this.latest[at], this.low[at], this.high[at], this.bad[at]);
      }
    });
    this.n = groups.length;
  }

  /** Neighbours that have no more steps than a column may have. */
  #groups() {
    const groups = [];
    let steps = Infinity;
    for (let column = 0; column < this.n; column++) {
      if (steps + this.steps[column] > this.width) {
        groups.push(column);
        steps = 0;
      }
      steps += this.steps[column];
    }
    return groups;
  }

  /** @param {number} row @param {number} column */
  place(row, column) {
    return Math.log10(this.latest[row * this.stride + column]);
  }

  /** @param {number} row @param {number} column */
  is_bad(row, column) {
    return this.bad[row * this.stride + column] === 1;
  }

  /** @param {number} row @param {number} column @returns {[number, number]} */
  band(row, column) {
    const at = row * this.stride + column;
    const low = Math.log10(this.low[at]);
    return [low === -Infinity ? this.place(row, column) : low, Math.log10(this.high[at])];
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

  /** To the fences of a box plot, as for packed series. @returns {[number, number][]} */
  get range() {
    if (this.ranges.length) return this.ranges;
    const sampled = [];
    const n_cells = this.n_rows * this.n;
    const step = Math.max(1, Math.floor(n_cells / SAMPLED));
    for (let i = 0; i < n_cells; i += step) {
      const value = this.latest[Math.floor(i / this.n) * this.stride + (i % this.n)];
      if (value >= 0) sampled.push(value);
    }
    sampled.sort((a, b) => a - b);
    const positive = sampled.filter((value) => value > 0).map(Math.log10);
    this.ranges = [fences(positive), fences(sampled)];
    return this.ranges;
  }

  set range(ranges) {
    /** @type {[number, number][]} */
    this.ranges = ranges;
  }

  /** @returns {import("./series.js").Mark[]} */
  get marks() {
    const of = ([row, step, kind, text]) => /** @type {import("./series.js").Mark} */ ([row, this.column_at(step), kind, text]);
    this.marks_now ??= this.scrolls || !this.n ? [] : (this.found ?? []).map(of);
    return this.marks_now;
  }

  set marks(marks) {
    /** @type {import("./series.js").Mark[] | null} */
    this.marks_now = null;
  }

  get n_marks() {
    return this.marks.length;
  }

  set n_marks(n) {}

  /** At first the columns take only a part of the room, so that they do not shrink with every step. */
  get n_shown() {
    return Math.max(this.n, Math.min(this.stride, this.scrolls ? this.stride : LEAST_SHOWN));
  }

  /** As it is now. */
  frozen() {
    const still = Object.assign(Object.create(LiveSeries.prototype), this);
    for (const name of ["first", "last", "steps", "latest", "low", "high", "bad"]) still[name] = this[name].slice();
    still.ranges = this.range;
    still.found = [...this.found];
    return still;
  }

  /** The newest values; NaN where they are not finite. */
  get newest() {
    return Float64Array.from({ length: this.n_rows }, (_, row) => (this.n && !this.is_bad(row, this.n - 1) ? this.latest[row * this.stride + this.n - 1] : NaN));
  }
}

/** @param {number[]} sorted @returns {[number, number]} */
function fences(sorted) {
  if (!sorted.length) return [0, 1];
  const at = (part) => sorted[Math.round(part * (sorted.length - 1))];
  const reach = 1.5 * (at(0.75) - at(0.25));
  const [low, high] = [Math.max(at(0), at(0.25) - reach), Math.min(at(1), at(0.75) + reach)];
  return high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high), 1e-30) ? [low, high] : [low - 0.5, low + 0.5];
}

/** The columns of a packed series. @param {import("./series.js").Series} series @returns {Columns} */
export function columns_of(series) {
  const { n, n_rows } = series;
  const cells = n * n_rows;
  const columns = {
    n, first: Float64Array.from(series.first), last: Float64Array.from(series.last), steps: new Float64Array(n),
    latest: new Float32Array(cells), low: new Float32Array(cells), high: new Float32Array(cells), bad: new Uint8Array(cells),
  };
  for (let column = 0; column < n; column++) columns.steps[column] = series.last[column] - series.first[column] + 1;
  for (let row = 0; row < n_rows; row++)
    for (let column = 0; column < n; column++) {
      const at = row * n + column;
      const [low, high] = series.band(row, column);
      columns.latest[at] = series.value(row, column);
      columns.low[at] = series.value_at(low);
      columns.high[at] = series.value_at(high);
      columns.bad[at] = +series.is_bad(row, column);
    }
  return columns;
}

/** Columns of all rows from those of the leaves: the root of the sum of squares, of what is known. */
export class RollUp {
  /** @param {import("./payload.js").Tree} tree */
  constructor(tree) {
    this.parent = tree.parent;
    this.n_rows = tree.n;
    /** In the order in which Python has them. */
    this.leaves = Int32Array.from(Array.from({ length: tree.n }, (_, row) => row).filter((row) => tree.of(row, "is_leaf")));
  }

  /** @param {number} n columns @param {DataView[]} buffers steps, counts, bits and norms, column by column @returns {Columns} */
  read(n, buffers) {
    const { n_rows, leaves } = this;
    const n_bytes = Math.ceil(leaves.length / 8);
    const sizes = [8 * n, 8 * n, 8 * n, n * n_bytes, ...Array(buffers.length > 5 ? 3 : 1).fill(4 * n * leaves.length)];
    if (buffers.length !== sizes.length || buffers.some((buffer, i) => buffer.byteLength !== sizes[i])) throw new Error("columns of another tree");
    const numbers = (buffer, Type) => new Type(buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength));
    const [first, last, steps] = buffers.slice(0, 3).map((buffer) => numbers(buffer, Float64Array));
    const bits = new Uint8Array(buffers[3].buffer, buffers[3].byteOffset, buffers[3].byteLength);
    const bad = new Uint8Array(n_rows * n);
    for (let column = 0; column < n; column++)
      leaves.forEach((row, leaf) => (bad[row * n + column] = (bits[column * n_bytes + (leaf >> 3)] >> (leaf & 7)) & 1));
    for (let row = n_rows - 1; row > 0; row--)
      for (let column = 0; column < n; column++) bad[this.parent[row] * n + column] |= bad[row * n + column];
    const [latest, low = latest, high = latest] = buffers.slice(4).map((buffer) => this.#norms(n, numbers(buffer, Float32Array), bad));
    return { n, first, last, steps, latest, low, high, bad };
  }

  #norms(n, of_leaves, bad) {
    const { n_rows, leaves, parent } = this;
    const squares = new Float64Array(n_rows * n).fill(NaN);
    for (let column = 0; column < n; column++) leaves.forEach((row, leaf) => (squares[row * n + column] = of_leaves[column * leaves.length + leaf] ** 2));
    for (let row = n_rows - 1; row > 0; row--)
      for (let column = 0; column < n; column++) {
        const square = squares[row * n + column];
        const above = parent[row] * n + column;
        if (square === square) squares[above] = squares[above] === squares[above] ? squares[above] + square : square;
      }
    // What was measured is the norm of the finite numbers: where all are not, it is none.
    return Float32Array.from(squares, (square, at) => (bad[at] && square === 0 ? NaN : Math.sqrt(square)));
  }
}
