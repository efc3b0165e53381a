// @ts-check
// Searches for a word in key paths and in facts.
import { indexKey, readKey } from "./tree.js";

/** The texts that are searched, in lower case. Each is built at its first use. */
export class WordIndex {
  /** @param {import("./tree.js").Tree} tree */
  constructor(tree) {
    this.tree = tree;
    this.name = tree.name.toLowerCase();
    this.keys = [];
    this.texts = [];
  }

  /** Build all texts. */
  warm() {
    for (let code = 1; code < this.tree.keys.length; code++) this.key(code);
    for (let code = 0; code < this.tree.nFacts; code++) this.text(code);
  }

  /** @param {number} code */
  key(code) {
    return (this.keys[code] ??= lower(readKey(this.tree.keys[code])));
  }

  /** The text of a record of facts. Its parts are separated by NUL, which no text contains. @param {number} code */
  text(code) {
    return (this.texts[code] ??= ownText(this.tree, code));
  }
}

/** "(3, 4)", "(3,)", "" @type {(shape: number[] | null) => string} */
export const shapeText = (shape) => (shape ? `(${shape.join(", ")}${shape.length === 1 ? "," : ""})` : "");

const lower = ({ label, keystr, segment }) => ({
  label: label.toLowerCase(),
  keystr: keystr.toLowerCase(),
  segment: segment.toLowerCase(),
});

function ownText(tree, code) {
  const of = (field) => tree.fact(code, field);
  return [of("type"), of("kind"), of("dtype"), shapeText(of("shape")), of("text"), ...of("static").flat(), ...of("inside").flat()].join("\0").toLowerCase();
}

/**
 * The result of a function of the key of each row; it is called once for each different key.
 * @template {Uint8Array | Int32Array} T
 * @param {import("./tree.js").Tree} tree
 * @param {WordIndex} index
 * @param {T} result
 * @param {(key: {label: string, keystr: string, segment: string}) => number} ask
 * @returns {T}
 */
export function byKey(tree, index, result, ask) {
  const { n, keyCodes, position } = tree;
  const byCode = Array.from(tree.keys, (_, code) => (code ? ask(index.key(code)) : 0));
  const byPosition = [];
  for (let row = 1; row < n; row++)
    result[row] = keyCodes[row] ? byCode[keyCodes[row]] : (byPosition[position[row]] ??= ask(indexKey(position[row])));
  return result;
}

/**
 * The rows whose key path contains the word: in one key, or across keys as written by keystr or with slashes.
 * @param {import("./tree.js").Tree} tree
 * @param {WordIndex} index
 * @param {string} word
 */
export function inPath(tree, index, word) {
  const { n, parent } = tree;
  const advance = automaton(word);
  const keystr = (key) => key.keystr;
  const segment = (key) => `/${key.segment}`;
  // Few words start at the end of a key, so a search across keys is needed only if one does.
  const spanning = new Set();
  const search = (textOf, key) => advance(0, textOf(key)) % word.length && spanning.add(textOf);
  const inKey = (key) => {
    search(keystr, key);
    search(segment, key);
    return +(key.label.includes(word) || key.keystr.includes(word) || key.segment.includes(word));
  };
  const found = byKey(tree, index, new Uint8Array(n), inKey);
  found[0] = +index.name.includes(word);
  if (advance(0, index.name)) spanning.add(keystr).add(segment);
  for (const textOf of spanning) if (textOf === keystr || word.includes("/")) addSpanning(tree, index, word, advance, textOf, found);
  for (let row = 1; row < n; row++) if (found[parent[row]]) found[row] = 1;
  return found;
}

/** The automaton of Knuth, Morris and Pratt: a state is how many letters of the word match so far. @type {(word: string) => (state: number, text: string) => number} */
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

/** Find the word across keys: run the automaton along every path. */
function addSpanning(tree, index, word, advance, textOf, found) {
  const { n, parent, keyCodes, position } = tree;
  const whole = word.length;
  // Compute the states from the start state first: nearly every key begins in it.
  const states = byKey(tree, index, new Int32Array(n), (key) => advance(0, textOf(key)));
  states[0] = advance(0, index.name);
  for (let row = 1; row < n; row++) {
    const before = states[parent[row]];
    if (before === whole) states[row] = whole;
    else if (before) states[row] = advance(before, textOf(keyCodes[row] ? index.key(keyCodes[row]) : indexKey(position[row])));
    if (states[row] === whole) found[row] = 1;
  }
}
