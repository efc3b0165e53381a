// @ts-check
// The packed table (views/payload.py) as the tree that the view stands on.
import { bytesText, countText, numberText } from "./numbers.js";

export const FORMAT = 1;
const ARRAYS = [Uint8Array, Uint16Array, Uint32Array, Int32Array, Float32Array, Float64Array];
const WRITE = { count: countText, bytes: bytesText, number: numberText };
// How two values become one; what is not a number is no value.
const JOIN = {
  max: (a, b) => (a >= b || b !== b ? a : b),
  min: (a, b) => (a <= b || b !== b ? a : b),
  any: (a, b) => +!!(a || b),
  norm: (a, b) => (b !== b ? a : a !== a ? b : a + b),
};

/** @typedef {{label: string, keystr: string, segment: string, steps: (string | number)[]}} Key */
/** @typedef {[kind: string, text: string, row: number, details: [string, string][]]} Note */

/** @type {(bytes: BufferSource) => Promise<Tree>} */
export async function unpack(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Tree(await new Response(stream).arrayBuffer());
}

/** One value for every row. */
export class Column {
  /** @param {any} spec @param {any[]} buffers @param {Tree} tree */
  constructor(spec, buffers, tree) {
    this.name = spec.name;
    this.title = spec.title;
    this.format = spec.format;
    this.help = spec.help;
    this.shown = spec.shown;
    this.labels = spec.labels;
    this.n_bins = spec.n_bins;
    /** From which bin to which the histograms of all rows reach. */
    this.used = spec.used;
    this.blank = spec.blank;
    this.is_number = spec.format in WRITE;
    this.levels = buffers[spec.labels ? spec.label_codes : spec.levels];
    this.codes = buffers[spec.codes];
    this.rollup = spec.rollup;
    this.tree = tree;
  }

  /** Rolled up over each row's subtree. */
  get values() {
    const { n, parent } = this.tree;
    const { levels, codes, rollup } = this;
    const values = new Float64Array(n);
    for (let row = 0; row < n; row++) values[row] = levels[codes ? codes[row] : row];
    if (rollup === "sum") {
      for (let row = 0; row < n; row++) values[row] ||= 0;
      for (let row = n - 1; row > 0; row--) values[parent[row]] += values[row];
    } else if (rollup in JOIN) {
      const join = JOIN[rollup];
      if (rollup === "norm") values.forEach((value, row) => (values[row] = value ** 2));
      for (let row = n - 1; row > 0; row--) values[parent[row]] = join(values[parent[row]], values[row]);
      if (rollup === "norm") values.forEach((value, row) => (values[row] = Math.sqrt(value)));
    }
    Object.defineProperty(this, "values", { value: values, configurable: true });
    return values;
  }

  /** @param {number} row */
  text(row) {
    if (this.labels) return this.labels[this.levels[this.codes ? this.codes[row] : row]];
    const value = this.values[row];
    return value !== value || value === this.blank ? "" : WRITE[this.format](value);
  }

  /** The heights of a histogram's bars, up to 255. @param {number} row @returns {Uint8Array} */
  bars(row) {
    const level = this.codes ? this.codes[row] : row;
    return this.levels.subarray(level * this.n_bins, (level + 1) * this.n_bins);
  }
}

/** The rows in depth-first order. Everything but the depths, the keys and the facts is worked out here. */
export class Tree {
  /** @param {ArrayBuffer} buffer */
  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    if (header.format !== FORMAT) throw new Error("it was made by another version of treeviz");
    let at = 4 + length;
    const buffers = header.buffers.map(([type, size]) => {
      const array = new ARRAYS[type](buffer, at, size);
      at += Math.ceil(array.byteLength / 8) * 8;
      return array;
    });
    this.header = header;
    this.buffers = buffers;
    /** Series that grow, in the place of the first one. @type {any[]} */
    this.growing = [];
    this.name = header.name;
    this.depth = buffers[header.depth];
    this.n = this.depth.length;
    this.keys = header.keys;
    this.key_codes = buffers[header.key_codes];
    this.fact_codes = buffers[header.fact_codes];
    this.facts = header.facts;
    for (const field in this.facts) this.facts[field][1] = buffers[this.facts[field][1]];
    this.n_facts = this.facts.kind[1].length;
    const { parent, end, position, n_children } = link(this.depth);
    this.parent = parent;
    this.end = end;
    this.position = position;
    this.n_children = n_children;
    this.max_depth = this.depth.reduce(larger, 0);
    this.columns = header.columns.map((spec) => new Column(spec, buffers, this));
  }

  /** @param {number} row @returns {Key} */
  key(row) {
    return this.key_codes[row] ? read_key(this.keys[this.key_codes[row]]) : index_key(this.position[row]);
  }

  /** @param {number} row */
  label(row) {
    return row ? this.key(row).label : this.name;
  }

  /** @param {number} row @returns {Key[]} */
  path(row) {
    const keys = [];
    for (; row > 0; row = this.parent[row]) keys.push(this.key(row));
    return keys.reverse();
  }

  /** @param {number} row */
  keystr(row) {
    return this.path(row).map((key) => key.keystr).join("");
  }

  /** Python that evaluates to the node. @param {number} row */
  expression(row) {
    let text = this.name;
    for (const step of this.path(row).flatMap((key) => key.steps))
      text = typeof step === "string" ? text + step : `treeviz.child(${text}, ${step})`;
    return text;
  }

  /** A field of one of the facts. @param {number} code @param {string} field */
  fact(code, field) {
    const [levels, codes] = this.facts[field];
    return levels[codes[code]];
  }

  /** @param {number} row @param {string} field */
  of(row, field) {
    return this.fact(this.fact_codes[row], field);
  }

  /** @param {number} row @returns {Note[]} */
  notes(row) {
    return this.header.notes[row] ?? [];
  }
}

const larger = (a, b) => (a > b ? a : b);

/** What follows from the depths. @param {ArrayLike<number>} depth */
function link(depth) {
  const n = depth.length;
  const parent = new Int32Array(n).fill(-1);
  const position = new Int32Array(n);
  const n_children = new Int32Array(n);
  const end = new Int32Array(n).fill(1);
  const last = [0];
  for (let row = 1; row < n; row++) {
    parent[row] = last[depth[row] - 1];
    position[row] = n_children[parent[row]]++;
    last[depth[row]] = row;
  }
  for (let row = n - 1; row > 0; row--) end[parent[row]] += end[row];
  for (let row = 0; row < n; row++) end[row] += row;
  return { parent, end, position, n_children };
}

/** @type {(position: number) => Key} */
export function index_key(position) {
  const text = `[${position}]`;
  return { label: text, keystr: text, segment: String(position), steps: [text] };
}

/** @type {(packed: any) => Key} */
export function read_key(packed) {
  if (typeof packed === "string") {
    const keystr = `['${packed}']`;
    return { label: packed, keystr, segment: packed, steps: [keystr] };
  }
  const [label, keystr, segment, steps] = packed || ["", "", "", []];
  if (keystr !== undefined) return { label, keystr, segment, steps };
  return { label: `.${label}`, keystr: `.${label}`, segment: label, steps: [`.${label}`] };
}
