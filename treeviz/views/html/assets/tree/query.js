// @ts-check
// Parses and runs the queries of the search box, as treeviz/tree/query.py does in Python.
import { either, globTest, isGlob, onPath } from "./globs.js";
import { readKey } from "./tree.js";
import { byKey, inPath, wordPlace } from "./word_index.js";

/** @typedef {import("./tree.js").Tree} Tree */
/** @typedef {import("./word_index.js").WordIndex} WordIndex */
/** @typedef {{negated: boolean, field: string, value: string, quoted: boolean}} Term */

const NUMBER = "[+-]?(?:\\d+(?:\\.\\d+)?|\\.\\d+)(?:e[+-]?\\d+)?(?:[kmgt]i?)?b?";
const COLUMN = String.raw`([a-z_][\w.-]*)(?:\s*(:))?\s*(>=|<=|>|<|=)\s*(${NUMBER})(?=[\s|]|$)`;
const BARE = String.raw`(?:\['(?:[^'\\]|\\.)*'\]|\["(?:[^"\\]|\\.)*"\]|\[[^\][|"]*\]|[^\s|"])+`;
const TOKEN = new RegExp(String.raw`\s+|(\|)|(-*)(?:${COLUMN}|([a-z_][\w.-]*:)?(?:"([^"]*)"|(${BARE})))`, "y");
// 64x128, 64,128, (64,128), f32[64,128]: dimensions in a row, or a whole shape in brackets.
const SHAPE = /^((?:bf|[fiuc]|bfloat|float|u?int|complex)\d\w*|bool)?([[(]?)(\d+(?:[x×,]\d+)*|),?([\])]?)$/;
const COMPARISON = new RegExp(`^(>=|<=|>|<|=|)(${NUMBER})$`);
const RANGE = new RegExp(`^(${NUMBER})\\.\\.(${NUMBER})$`);
const DTYPES = { bf: "bfloat", f: "float", i: "int", u: "uint", c: "complex" };
const DTYPE_CLASSES = { float: /^b?float(?!0$)/, int: /^u?int\d/, complex: /^complex/, bool: /^bool/, f8: /^float8/ };
const STATISTICS = /^(min|max|mean|std|rms|zeros|nan|inf|posinf|neginf|histogram)$/;
const UNREAD = "needs values: render(tree, stats=True) reads them";
const FLAGS = { nan: ["nan"], inf: ["inf", "posinf", "neginf"], zeros: ["zeros"] };
/** @typedef {(field: string) => any} FactOf the facts of a row */
/** @type {Record<string, (of: FactOf) => boolean>} */
const IS = {
  leaf: (of) => of("is_leaf"),
  node: (of) => !of("is_leaf") && of("kind") !== "layer",
  opaque: (of) => of("kind") === "opaque",
  static: (of) => of("static")[0],
  weak: (of) => of("weak"),
  replicated: (of) => of("sharding")?.[1],
  error: (of) => NOTED.error.includes(of("kind")),
};
const NOTED = { error: ["error", "cycle"], cut: ["more"] };
const NOTES = ["shared", "cycle", "more", "hidden", "partial", "nonfinite", "differs", "warning", "info"];

/** @type {(query: string) => Term[][]} */
export function parse(query) {
  /** @type {Term[][]} */
  const alternatives = [[]];
  const text = query.toLowerCase();
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const token = TOKEN.exec(text);
    if (!token) throw Error("A quote is not closed.");
    const [, bar, minus, column, colon, compare, bound, field = "", quote, bare] = token;
    if (bar) alternatives.push([]);
    const negated = !!minus && minus.length % 2 === 1;
    const put = (field, value, quoted = false) => alternatives.at(-1).push({ negated, field, value, quoted });
    if (column) put(column, (colon ? compare.replace(/^=/, "") : compare) + bound);
    const value = quote ?? bare;
    if (!value && !field) continue;
    const quoted = quote !== undefined;
    if (!value || (!field && !quoted && /^[a-z_][\w.-]*:$/.test(value))) throw Error(`${field || value} needs a value.`);
    put(field.slice(0, -1), value, quoted);
  }
  return alternatives.filter((terms) => terms.length);
}

/** An array with 1 for each row that matches a query. @type {(tree: Tree, index: WordIndex, query: string) => Uint8Array} */
export function matches(tree, index, query) {
  const { n } = tree;
  const foundBy = (term) => {
    const found = rowsOf(tree, index, term);
    if (term.negated) for (let row = 0; row < n; row++) found[row] ^= 1;
    return found;
  };
  const all = (rows, found) => rows.map((matched, row) => matched & found[row]);
  const alternatives = parse(query).map((terms) => {
    const found = terms.map(foundBy).reduce(all);
    // A node does not match for what matches below it. Rows are in depth-first order: the next one is below it, or beside it.
    if (terms.some((term) => !term.negated && rollsUp(tree, term)))
      for (let row = n - 1, next = n; row >= 0; row--) if (found[row]) next < tree.end[row] ? (found[row] = 0) : (next = row);
    return found;
  });
  return alternatives.length ? alternatives.reduce(either) : new Uint8Array(n);
}

/** @type {(term: Term) => boolean} */
const isFlag = ({ field, quoted, value }) => !field && !quoted && Object.hasOwn(FLAGS, value);

/** Whether a node may match only for what is below it. @type {(tree: Tree, term: Term) => boolean} */
const rollsUp = (tree, term) => isFlag(term) || (term.field !== "depth" && (columnOf(tree, term.field)?.rollup ?? "none") !== "none");

/** @type {(tree: Tree, index: WordIndex, term: Term) => Uint8Array} */
function rowsOf(tree, index, term) {
  const { field, value, quoted } = term;
  // Static fields are printed as n=3.
  if (!field || (value[0] === "=" && !isField(tree, field))) return rowsOfWord(tree, index, { ...term, field: "", value: field + value });
  const glob = isGlob(value) && !quoted ? globTest(value) : null;
  const equals = glob ?? ((text) => text === value);
  const contains = glob ?? ((text) => wordPlace(text, value, quoted) >= 0);
  const isDtype = glob ?? dtypeTest(value);
  if (field === "key") return byKey(index, new Uint8Array(tree.n), (key) => contains(key.segment) || key.keystr === value);
  if (field === "kind" && value === "leaf") return flagged(tree, value);
  if (field === "shape") {
    const fits = shapeTest(value);
    return byFacts(tree, (of) => of("shape") && fits(of("shape")));
  }
  const test = { kind: equals, type: contains, dtype: isDtype, sharding: contains }[field];
  if (test) return byFacts(tree, (of) => test(`${field === "sharding" ? (of(field)?.[0] ?? "\0") : of(field)}`.toLowerCase()));
  if (field === "is") return flagged(tree, value);
  const words = wordsOf(tree, field);
  // In quotes it is all that stands between two commas. A dtype is written with a mark and a shape.
  const inWords = (text) => (quoted ? equals : contains)(text) || (field.endsWith(".dtype") && isDtype(text.split(" ")[0].replace(/^~/, "")));
  if (words) return byRow(tree, (row) => words.text(row).toLowerCase().split(", ").some(inWords));
  const numbers = numbersOf(tree, field, value);
  const passes = numberTest(field, value);
  return byRow(tree, (row) => passes(numbers[row]));
}

/** @type {(tree: Tree, index: WordIndex, term: Term) => Uint8Array} */
function rowsOfWord(tree, index, term) {
  const { value, quoted } = term;
  if (isFlag(term)) return flaggedByValues(tree, value);
  const fits = quoted ? null : shapeIn(value);
  const glob = !quoted && !fits && (isGlob(value) || value.includes("/")) ? onPath(tree, index, value) : null;
  // ['layers'][0] can be a copied key path as well as a glob, so both are searched.
  if (glob && !/^[^*?]*\[[^*?]*$/.test(value)) return glob;
  const isDtype = dtypeTest(value);
  const isOwn = (of, code) => wordPlace(index.text(code), value, quoted) >= 0 || (!quoted && isDtype(of("dtype").toLowerCase())) || fits?.(of);
  const found = byFacts(tree, isOwn, inPath(tree, index, value, quoted));
  if (glob) either(found, glob);
  // "t101" finds the findings of that rule, whose notes begin so.
  return quoted ? found : byNotes(tree, ([, text]) => text[value.length] === ":" && text.toLowerCase().startsWith(value), found);
}

/** The test of a word that is a shape. @type {(word: string) => ((of: FactOf) => boolean) | null} */
function shapeIn(word) {
  const [, dtype, opening, dims, closing] = SHAPE.exec(word) ?? [];
  if (dims === undefined || !opening !== !closing || (dtype ? !opening : /^\d*$/.test(dims))) return null;
  const wanted = dims.replace(/[x×]/g, ",");
  const isDtype = dtypeTest(dtype ?? "");
  return (of) => {
    const shape = of("shape");
    if (!shape || (dtype && !isDtype(of("dtype").toLowerCase()))) return false;
    return opening ? `${shape}` === wanted : `,${shape},`.includes(`,${wanted},`);
  };
}

/** @type {(tree: Tree, test: (row: number) => boolean) => Uint8Array} */
function byRow(tree, test) {
  const found = new Uint8Array(tree.n);
  for (let row = 0; row < tree.n; row++) found[row] = +test(row);
  return found;
}

/** Mark the rows that have such a note. @type {(tree: Tree, test: (note: import("./tree.js").Note) => boolean, found: Uint8Array) => Uint8Array} */
function byNotes({ header: { notes } }, test, found) {
  for (const row in notes) if (notes[row].some(test)) found[row] = 1;
  return found;
}

/** Mark the rows with such facts. @type {(tree: Tree, test: (of: FactOf, code: number) => any, found?: Uint8Array) => Uint8Array} */
function byFacts(tree, test, found = new Uint8Array(tree.n)) {
  const { n, factCodes, nFacts } = tree;
  const passed = Uint8Array.from({ length: nFacts }, (_, code) => +!!test((field) => tree.fact(code, field), code));
  if (passed.includes(1)) for (let row = 0; row < n; row++) found[row] |= passed[factCodes[row]];
  return found;
}

/** @type {(value: string) => (text: string) => boolean} */
function dtypeTest(value) {
  if (Object.hasOwn(DTYPE_CLASSES, value)) return (text) => DTYPE_CLASSES[value].test(text);
  const [, letters, bits] = /^(bf|[fiuc])(\d+)$/.exec(value) ?? [];
  const name = letters ? DTYPES[letters] + bits : value;
  return (text) => text === name;
}

/** @type {(tree: Tree, value: string) => Uint8Array} */
function flagged(tree, value) {
  if (value === "changed") {
    if (tree.changed) return tree.changed.slice();
    throw Error("is:changed needs a diff, or a new widget.tree");
  }
  const test = Object.hasOwn(IS, value) && IS[value];
  if (!test && !NOTES.includes(value) && value !== "cut")
    throw unknown(`is:${value}`, value, [...new Set([...Object.keys(IS), "cut", ...NOTES])].sort());
  const kinds = NOTED[value] ?? (NOTES.includes(value) ? [value] : []);
  return byNotes(tree, ([kind]) => kinds.includes(kind), byFacts(tree, (of) => test && test(of)));
}

/** @type {(tree: Tree, word: string) => Uint8Array} */
function flaggedByValues(tree, word) {
  const named = (test) => tree.columns.filter(({ name }) => test(name));
  let columns = named((name) => FLAGS[word].includes(name));
  if (!columns.length && word !== "zeros") columns = named((name) => name.endsWith("_nonfinite"));
  const found = byRow(tree, (row) => columns.some(({ values }) => values[row] > 0));
  const isUnread = (row) => tree.of(row, "is_leaf") && columnOf(tree, "elements").values[row] > 0 && Number.isNaN(columns[0].values[row]);
  if (!columns.length) throw Error(`${word} ${UNREAD}. To search the word: "${word}".`);
  const nUnread = found.includes(1) ? 0 : byRow(tree, isUnread).reduce((n, unread) => n + unread);
  if (nUnread) throw Error(`No ${word} in what was read. Not read: ${nUnread} leaves.`);
  return found;
}

const ALIASES = new Map([
  ["params", "elements"], ["parameters", "elements"], ["nbytes", "bytes"], ["dead", "inputs_dead"],
]);
const columnOf = (tree, field) =>
  tree.columns.find(({ name, isNumber }) => isNumber && name.toLowerCase() === (ALIASES.get(field) ?? field));

const wordsOf = (tree, field) => tree.columns.find(({ name, labels }) => labels && name.toLowerCase() === field);

const FIELDS = ["key", "kind", "type", "dtype", "sharding", "shape", "is", "depth"];
// What others call a column.
const NEAR = new Map([["size", "bytes or elements"], ["memory", "bytes"], ["count", "elements"]]);

/** @type {(tree: Tree, field: string) => boolean} */
const isField = (tree, field) =>
  FIELDS.includes(field) || STATISTICS.test(field) || !!columnOf(tree, field) || !!wordsOf(tree, field);

/** @type {(tree: Tree, field: string, value: string) => ArrayLike<number>} */
function numbersOf(tree, field, value) {
  if (field === "depth") return tree.depth;
  const column = columnOf(tree, field);
  if (column) return column.values;
  if (STATISTICS.test(field)) throw Error(`${field}: ${UNREAD}.`);
  const named = (test) => tree.columns.filter(test).map(({ name }) => name.toLowerCase());
  const texts = named(({ name, labels }) => labels && !FIELDS.includes(name));
  const numbers = [...FIELDS, ...named(({ isNumber }) => isNumber)];
  throw unknown(`column ${field}`, field, COMPARISON.test(value) || RANGE.test(value) ? [...numbers, ...texts] : [...texts, ...numbers]);
}

/** That there is no such word, and what to write in its place. @param {string} what @param {string} word @param {string[]} names */
function unknown(what, word, names) {
  const near = names.filter((name) => name.split(/[._]/).includes(word)).slice(0, 3).join(" or ") || NEAR.get(word) || closest(word, names);
  return Error(`No ${what}. ${near ? `Did you mean ${near}?` : `There are: ${names.join(", ")}.`}`);
}

/** @type {(field: string, value: string) => (x: number) => boolean} */
function numberTest(field, value) {
  const [, compare, bound] = COMPARISON.exec(value) ?? [];
  const [, low, high] = RANGE.exec(value) ?? [];
  if (low) return (x) => x >= number(low) && x <= number(high);
  if (!bound) throw Error(`Write ${field}:>1M, ${field}:<=0.5, ${field}:1k..2k or ${field}:42.`);
  const limit = number(bound);
  return (x) => (compare || "=").includes(x > limit ? ">" : x < limit ? "<" : x === limit ? "=" : "!");
}

/** @type {(text: string) => number} */
function number(text) {
  const [, digits, prefix, binary] = /** @type {string[]} */ (/^(.*?)([kmgt]?)(i?)b?$/.exec(text));
  return +digits * (binary ? 1024 : 1000) ** " kmgt".indexOf(prefix);
}

/** @type {(value: string) => (shape: number[]) => boolean} */
function shapeTest(value) {
  const dims = value.replace(/^\((.*)\)$/, "$1").replace(/,$/, "");
  const tests = (dims ? dims.split(",") : []).map((dim) => {
    if (dim === "*") return () => true;
    if (dim === "...") return null;
    if (!COMPARISON.test(dim)) throw Error("Write dimensions as numbers, >64, <=8, * or ... : shape:...,>64,768");
    return numberTest("shape", dim);
  });
  const skip = (ends) => (tests.forEach((test, i) => !test && ends.has(i) && ends.add(i + 1)), ends);
  return (shape) => {
    let ends = skip(new Set([0]));
    for (const dim of shape)
      ends = skip(new Set([...ends].filter((i) => i < tests.length && tests[i]?.(dim) !== false).map((i) => i + +!!tests[i])));
    return ends.has(tests.length);
  };
}

/** The query with the first word that finds nothing replaced by the nearest dtype, type or key of the first 10,000, which are searched in a frame; "": there is none. @type {(tree: Tree, index: WordIndex, query: string) => string} */
export function nearest(tree, index, query) {
  const term = parse(query).flat().find((term) => /^(dtype|type|key|)$/.test(term.field) && !rowsOf(tree, index, term).includes(1));
  if (!term) return "";
  const dtypes = tree.facts.dtype[0].map((name) => name.replace(/^(bf|[fiuc])[a-z]+(?=\d)/, "$1"));
  const near = closest(term.value, [...dtypes, ...tree.facts.type[0], ...tree.keys.slice(1, 1e4).map((key) => readKey(key).segment)]);
  return near && query.toLowerCase().replace(term.value, near);
}

/** The text that shares most pairs of letters with a word, two fifths of them at least; "": there is none. @type {(word: string, texts: string[]) => string} */
function closest(word, texts) {
  const pairs = (text) => Array.from(text.slice(1), (letter, i) => text[i] + letter);
  const known = new Set(pairs(word));
  let best = "";
  let most = 0.39;
  for (const text of new Set(texts)) {
    const some = pairs(text.toLowerCase());
    const likeness = (2 * some.filter((pair) => known.has(pair)).length) / (known.size + some.length);
    if (likeness > most) [best, most] = [text, likeness];
  }
  return best;
}
