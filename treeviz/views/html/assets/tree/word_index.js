// @ts-check
// Searches for a word in key paths and in facts.
import { indexKey, readKey, shapeText } from "./tree.js";

/** The texts that are searched, in lower case. Each is built at its first use. */
export class WordIndex {
  /** @param {import("./tree.js").Tree} tree */
  constructor(tree) {
    this.tree = tree;
    this.texts = [];
  }

  /**
   * The different keys by number, and the numbers of all rows: that of a key is its code, of an index one after the last code, of
   * the root 0. `text` has all of them, since a browser searches one text faster than many; `starts` says where each begins in it,
   * and `firsts` the letters that keys begin with.
   */
  get words() {
    return (this.built ??= this.#build());
  }

  #build() {
    const { name, keys: codes, keyCodes, position } = this.tree;
    const numbers = position.map((place, row) => keyCodes[row] || (row && codes.length + place));
    const starts = [0];
    const firsts = new Set();
    let text = "";
    const keys = Array.from({ length: numbers.reduce((a, b) => Math.max(a, b)) + 1 }, (_, number) => {
      const key = lower(!number ? { label: name, keystr: name, segment: name } : number < codes.length ? readKey(codes[number]) : indexKey(number - codes.length));
      if (number) firsts.add(key.keystr[0]);
      text += `\0${key.keystr}\0${key.label}\0${key.segment}`;
      starts.push(text.length);
      return key;
    });
    return { keys, numbers, text, starts, firsts };
  }

  /** The text of a record of facts. Its parts are separated by NUL, which no text contains. @param {number} code */
  text(code) {
    return (this.texts[code] ??= ownText(this.tree, code));
  }
}

const lower = ({ label, keystr, segment, steps = [] }) => ({
  steps,
  label: label.toLowerCase(),
  keystr: keystr.toLowerCase(),
  segment: segment.toLowerCase(),
});

function ownText(tree, code) {
  const of = (field) => tree.fact(code, field);
  const pairs = [...of("static"), ...of("inside")].map((pair) => pair.join("="));
  return [of("type"), of("kind"), of("dtype"), shapeText(of("shape")), of("text"), ...(tree.facts.axes ? of("axes") : []), ...pairs].join("\0").toLowerCase();
}

/**
 * The result of a function of the key of each row; it is called once for each different key.
 * @template {number[] | Uint8Array | Int32Array} T
 * @param {WordIndex} index
 * @param {T} result
 * @param {(key: {label: string, keystr: string, segment: string, steps: any[]}) => any} ask
 * @returns {T}
 */
export function byKey({ words: { keys, numbers } }, result, ask) {
  const answers = keys.map(ask);
  for (let row = 0; row < numbers.length; row++) result[row] = answers[numbers[row]];
  return result;
}

/**
 * The place of the word in a text, or -1. Unless quoted, a number is a whole one: 3 is not in w32.
 * @type {(text: string, word: string, quoted: boolean, from?: number) => number}
 */
export function wordPlace(text, word, quoted, from = 0) {
  const isInNumber = (place, step) => /\d\d/.test((text[place + step] ?? "") + text[place]);
  let at = text.indexOf(word, from);
  while (!quoted && at >= 0 && (isInNumber(at, -1) || isInNumber(at + word.length - 1, 1))) at = text.indexOf(word, at + 1);
  return at;
}

/**
 * The rows whose key path contains the word: in one key, or across keys as written by keystr, with slashes or with dots.
 * @param {import("./tree.js").Tree} tree
 * @param {WordIndex} index
 * @param {string} word
 * @param {boolean} quoted
 */
export function inPath(tree, index, word, quoted) {
  const { n, parent } = tree;
  const { keys, text, starts, numbers, firsts } = index.words;
  const inKey = new Uint8Array(starts.length);
  for (let at = wordPlace(text, word, quoted), number = 0; at >= 0; at = wordPlace(text, word, quoted, starts[number])) {
    while (starts[number] <= at) number++;
    inKey[number - 1] = 1;
  }
  const found = new Uint8Array(n);
  for (let row = 0; row < n; row++) found[row] = inKey[numbers[row]] | found[parent[row]];
  // A word across keys has the start of one inside it. So much of the path above is enough as the word is long.
  const textsOf = [..."/."].filter((letter) => word.includes(letter)).map((letter) => (key) => letter + key.segment.replaceAll("/", letter));
  if ([...word].some((letter) => firsts.has(letter))) textsOf.push((key) => key.keystr);
  for (const textOf of textsOf) {
    const tails = [keys[0].label];
    for (let row = 1; row < n; row++) {
      const path = tails[parent[row]] + textOf(keys[numbers[row]]);
      found[row] |= +(found[parent[row]] || wordPlace(path, word, quoted) >= 0);
      tails.push(path.slice(-word.length));
    }
  }
  return found;
}
