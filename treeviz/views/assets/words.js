// @ts-check
// Words in key paths and in facts.
import { index_key, read_key } from "./payload.js";

/** The texts that a search looks through, in lower case, each made when it is first asked for. */
export class Index {
  /** @param {import("./payload.js").Tree} tree */
  constructor(tree) {
    this.tree = tree;
    this.name = tree.name.toLowerCase();
    this.keys = [];
    this.texts = [];
  }

  /** Make them all. */
  warm() {
    for (let code = 1; code < this.tree.keys.length; code++) this.key(code);
    for (let code = 0; code < this.tree.n_facts; code++) this.text(code);
  }

  /** @param {number} code */
  key(code) {
    return (this.keys[code] ??= lower(read_key(this.tree.keys[code])));
  }

  /** What a fact says of itself. A NUL, which is in no text, keeps the parts apart. @param {number} code */
  text(code) {
    return (this.texts[code] ??= own_text(this.tree, code));
  }
}

/** "(3, 4)", "(3,)", "" @type {(shape: number[] | null) => string} */
export const shape_text = (shape) => (shape ? `(${shape.join(", ")}${shape.length === 1 ? "," : ""})` : "");

const lower = ({ label, keystr, segment }) => ({
  label: label.toLowerCase(),
  keystr: keystr.toLowerCase(),
  segment: segment.toLowerCase(),
});

function own_text(tree, code) {
  const of = (field) => tree.fact(code, field);
  return [of("type"), of("kind"), of("dtype"), shape_text(of("shape")), of("text"), ...of("static").flat()].join("\0").toLowerCase();
}

/**
 * What a function says of each row's own key; every different key is asked for once.
 * @template {Uint8Array | Int32Array} T
 * @param {import("./payload.js").Tree} tree
 * @param {Index} index
 * @param {T} result
 * @param {(key: {label: string, keystr: string, segment: string}) => number} ask
 * @returns {T}
 */
export function by_key(tree, index, result, ask) {
  const { n, key_codes, position } = tree;
  const by_code = Array.from(tree.keys, (_, code) => (code ? ask(index.key(code)) : 0));
  const by_position = [];
  for (let row = 1; row < n; row++)
    result[row] = key_codes[row] ? by_code[key_codes[row]] : (by_position[position[row]] ??= ask(index_key(position[row])));
  return result;
}

/**
 * The rows whose key path contains the word: in one key, or across keys as keystr or slashes write them.
 * @param {import("./payload.js").Tree} tree
 * @param {Index} index
 * @param {string} word
 */
export function in_path(tree, index, word) {
  const { n, parent } = tree;
  const advance = automaton(word);
  const keystr = (key) => key.keystr;
  const segment = (key) => `/${key.segment}`;
  // Few words begin where a key ends, so that is asked before looking across keys.
  const spanning = new Set();
  const look = (text_of, key) => advance(0, text_of(key)) % word.length && spanning.add(text_of);
  const in_key = (key) => {
    look(keystr, key);
    look(segment, key);
    return +(key.label.includes(word) || key.keystr.includes(word) || key.segment.includes(word));
  };
  const found = by_key(tree, index, new Uint8Array(n), in_key);
  found[0] = +index.name.includes(word);
  if (advance(0, index.name)) spanning.add(keystr).add(segment);
  for (const text_of of spanning) if (text_of === keystr || word.includes("/")) add_spanning(tree, index, word, advance, text_of, found);
  for (let row = 1; row < n; row++) if (found[parent[row]]) found[row] = 1;
  return found;
}

/** Knuth, Morris and Pratt's: a state is how much of the word ends here. @type {(word: string) => (state: number, text: string) => number} */
function automaton(word) {
  const whole = word.length;
  const fallback = new Int32Array(whole + 1);
  const advance = (state, text) => {
    for (let i = 0; i < text.length && state < whole; i++) {
      while (state && word[state] !== text[i]) state = fallback[state];
      if (word[state] === text[i]) state++;
    }
    return state;
  };
  for (let i = 1; i < whole; i++) fallback[i + 1] = advance(fallback[i], word[i]);
  return advance;
}

/** One automaton goes along every path. */
function add_spanning(tree, index, word, advance, text_of, found) {
  const { n, parent, key_codes, position } = tree;
  const whole = word.length;
  // Nearly every key is come to with nothing of the word behind it.
  const states = by_key(tree, index, new Int32Array(n), (key) => advance(0, text_of(key)));
  states[0] = advance(0, index.name);
  for (let row = 1; row < n; row++) {
    const before = states[parent[row]];
    if (before === whole) states[row] = whole;
    else if (before) states[row] = advance(before, text_of(key_codes[row] ? index.key(key_codes[row]) : index_key(position[row])));
    if (states[row] === whole) found[row] = 1;
  }
}
