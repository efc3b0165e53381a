// @ts-check
// Unpacks a table (views/html/payload.py) and computes what was not sent: parents, paths and roll-ups.
import { bytesText, countText, numberText } from "./numbers.js";

export const FORMAT = 7;
const ARRAYS = [Uint8Array, Uint16Array, Uint32Array, Int32Array, Float32Array, Float64Array];
const WRITE = { count: countText, bytes: bytesText, number: numberText };
// Join two values.
const JOIN = { max: Math.max, min: Math.min, any: Math.max, sum: (a, b) => a + b, norm: Math.hypot };

/** @typedef {{label: string, keystr: string, segment: string, steps: (string | number | [string, number])[]}} Key */
/** @typedef {[kind: string, text: string, row: number, details: [string, string][], severity?: string, sign?: string]} Note */

/** @type {(bytes: BufferSource) => Promise<Tree>} */
export async function unpack(bytes) {
  const stream = /** @type {any} */ (new Response(bytes).body).pipeThrough(new DecompressionStream("deflate-raw"));
  // A browser says that it failed to fetch, though nothing is fetched.
  const damaged = () => Promise.reject(Error("its data is damaged"));
  return Object.assign(new Tree(await new Response(stream).arrayBuffer().catch(damaged)), { packed: bytes });
}

/** A column: one value for every row. */
export class Column {
  /** @type {Float64Array | undefined} */
  #values;

  /** @param {any[]} packed as in views/html/payload.py @param {any[]} buffers @param {Tree} tree */
  constructor([name, format, levels, codes, help = "", shown, title, rollup, blank, bad, spec], buffers, tree) {
    // Labels that are facts of the same name are not sent again.
    const [labels, own] = levels === null ? tree.facts[name] : [levels[0], buffers[levels[1] ?? levels]];
    Object.assign(this, { name, format, help, shown, rollup, blank, spec, tree, title: title || name, labels: labels?.map(shapeText), levels: own, codes: buffers[codes], bad: buffers[bad] });
    this.isNumber = format in WRITE;
    /** Whether it sums up facts: similar subtrees have the same values. */
    this.isOfFacts = rollup === "sum" && this.codes === tree.factCodes;
  }

  /** What was sent for a row. @param {number} row */
  level(row) {
    return this.levels[this.codes ? this.codes[row] : row];
  }

  /** The values, each rolled up over the subtree of its row; computed once. */
  get values() {
    if (this.#values) return this.#values;
    const { rollup, tree, codes } = this;
    // Of one type for all columns: compilers of JavaScript do not like loops over many.
    const levels = new Float64Array(this.levels);
    const isExact = rollup === "sum" && levels.every((level) => Number.isInteger(level) && Number.isSafeInteger(level * tree.n));
    return (this.#values = isExact ? sums(tree, levels, codes) : joined(tree, levels, codes, JOIN[rollup]));
  }

  /** @param {number} row */
  text(row) {
    if (this.labels) return this.labels[this.level(row)];
    if (this.isBad(row)) return "NaN/Inf";
    const value = this.values[row];
    return value !== value || value === this.blank ? "" : this.write(value);
  }

  /** A number as text. @param {number} value @returns {string} */
  write(value) {
    return WRITE[this.format](value);
  }

  /** Whether the value of a node is the sum of those of its leaves. @returns {boolean} */
  get addsUp() {
    const { tree, rollup, format, values } = this;
    return (this.isSum ??= rollup === "sum" || (format !== "number" && values[0] === tree.nChildren.reduce((sum, n, row) => sum + (n ? 0 : values[row] || 0), 0)));
  }

  /** Whether the value is not finite; other values that are NaN are missing. @param {number} row @returns {boolean} */
  isBad(row) {
    return !!this.bad?.[row];
  }
}

/** The rows in depth-first order. Only depths, keys and facts are sent; the rest is computed here. */
export class Tree {
  /** @param {ArrayBuffer} buffer */
  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const header = (this.header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))));
    let at = 4 + length;
    const buffers = (this.buffers = header.buffers.map(([type, size]) => {
      const array = new ARRAYS[type](buffer, at, size);
      at += Math.ceil(array.byteLength / 8) * 8;
      return array;
    }));
    // The notes by their codes, behind the index of the codes.
    const { notes = [] } = header;
    this.hasNotes = notes[0];
    header.notes = {};
    buffers[notes[0]]?.forEach((code, row) => code && (header.notes[row] = notes[code]));
    /** Which rows changed or are new, where this tree replaced another. @type {Uint8Array | null} */
    this.changed = null;
    /** The series of a live run, in place of the first packed one. @type {any[]} */
    this.growing = [];
    this.name = header.name;
    // Of each row whether its next sibling is similar, if there are such.
    [this.depth, this.keyCodes, this.factCodes, this.isLikeNext = new Uint8Array(this.depth.length)] = header.rows.map((at) => buffers[at]);
    this.n = this.depth.length;
    /** The rows that are None, which a line below the rows counts, and those that show the same as a sibling. @type {ArrayLike<number>} */
    this.blanks = buffers[header.blanks] ?? [];
    /** @type {number[]} */
    this.mirrors = header.mirrors ?? [];
    this.keys = header.keys;
    this.facts = header.facts;
    for (const field in this.facts) this.facts[field][1] = buffers[this.facts[field][1]];
    this.nFacts = this.facts.kind[1].length;
    Object.assign(this, link(this));
    this.columns = header.table.map((spec) => new Column(spec, buffers, this));
  }

  /** @param {number} row @returns {Key} */
  key(row) {
    return this.keyCodes[row] ? readKey(this.keys[this.keyCodes[row]]) : indexKey(this.position[row]);
  }

  /** @param {number} row */
  label(row) {
    return row ? this.key(row).label : this.name;
  }

  /** @param {string} wanted its name @returns {any} */
  column(wanted) {
    return this.columns.find(({ name }) => name === wanted);
  }

  /** The length of a label: a quick answer, for labels of thousands of rows. @param {number} row @returns {number} */
  labelLength(row) {
    if (!row) return this.name.length;
    const code = this.keyCodes[row];
    const key = this.keys[code];
    if (!code) return String(this.position[row]).length + 2;
    return typeof key === "string" ? key.length : key[0].length;
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

  /** What the file calls an array. @param {number} row */
  nameInFile(row) {
    return this.path(row).map((key) => key.segment).join(this.header.names);
  }

  /** A Python expression that evaluates to the node. @param {number} row */
  expression(row) {
    let text = this.name;
    // Some mappings give a dict in a wrapper.
    const isDict = /^(dict|OrderedDict|defaultdict)$/.test(this.of(row, "type")) || this.of(row, "kind") === "opaque";
    for (const steps of this.path(row).flatMap((key) => key.steps)) {
      const step = Array.isArray(steps) ? steps[+isDict] : steps;
      text = typeof step === "string" ? text + step : `treeviz.child(${text}, ${step})`;
    }
    return text;
  }

  /** A field of a record of facts. @param {number} code @param {string} field */
  fact(code, field) {
    const [levels, codes] = this.facts[field] ?? [[""]];
    return levels[codes?.[code] ?? 0];
  }

  /** The type, as in views/text/cells.py: of arrays what stands behind and before the dtype and the shape is sent. @param {number} code @returns {string} */
  what(code) {
    const what = this.fact(code, "what");
    return what.pop ? `${what[1] ?? ""}${this.fact(code, "dtype")}[${this.fact(code, "shape")}]${what[0]}` : what;
  }

  /** @param {number} row @param {string} field */
  of(row, field) {
    return this.fact(this.factCodes[row], field);
  }

  /** @param {number} row @returns {Note[]} */
  notes(row) {
    return this.header.notes[row] ?? [];
  }
}

/** The sum of whole numbers over each subtree. It is a range of rows: what all numbers from its start on add up to, without those from its end on. @param {Tree} tree @param {Float64Array} levels @param {ArrayLike<number>} [codes] */
function sums({ n, end }, levels, codes) {
  const sum = new Float64Array(n + 1);
  for (let row = n; row--; ) sum[row] = sum[row + 1] + levels[codes ? codes[row] : row];
  for (let row = 0; row < n; row++) sum[row] -= sum[end[row]];
  return sum.subarray(0, n);
}

/** What joins the values in each subtree; NaN means that there is none. @param {Tree} tree @param {Float64Array} levels @param {ArrayLike<number> | undefined} codes @param {((a: number, b: number) => number) | undefined} join */
function joined({ n, parent }, levels, codes, join) {
  const values = new Float64Array(n).fill(NaN);
  for (let row = n; row--; ) {
    const own = levels[codes ? codes[row] : row];
    const inside = values[row];
    const value = (values[row] = inside !== inside ? own : own === own ? join(inside, own) : inside);
    if (!join || !row || value !== value) continue;
    const beside = values[parent[row]];
    values[parent[row]] = beside !== beside ? value : join(beside, value);
  }
  return values;
}

/** "(3, 4)", "(3,)", ""; texts stay as they are. @type {(shape: any) => string} */
export const shapeText = (shape) => (shape?.join ? `(${shape.join(", ")}${shape.length === 1 ? "," : ""})` : shape ?? "");

/** Compute parents, subtree ends, positions and numbers of children. @param {Tree} tree */
function link({ depth, n }) {
  const parent = new Int32Array(n).fill(-1);
  const position = new Int32Array(n);
  const nChildren = new Int32Array(n);
  const end = new Int32Array(n).fill(n);
  const last = [0];
  for (let row = 1, before = 0; row < n; row++) {
    const level = depth[row];
    for (; before >= level; before--) end[last[before]] = row;
    const above = (parent[row] = last[before]);
    position[row] = nChildren[above]++;
    last[(before = level)] = row;
  }
  return { parent, end, position, nChildren, maxDepth: last.length - 1 };
}

/** @type {(position: number) => Key} */
export function indexKey(position) {
  const text = `[${position}]`;
  return { label: text, keystr: text, segment: String(position), steps: [text] };
}

/** @type {(packed: any) => Key} */
export function readKey(packed) {
  if (typeof packed === "string") {
    const keystr = `['${packed}']`;
    return { label: packed, keystr, segment: packed, steps: [keystr] };
  }
  const [label, steps = [label], keystr = label, segment = label.replace(/^\.|[[\]']/g, "")] = packed || [""];
  return { label, keystr, segment, steps };
}
