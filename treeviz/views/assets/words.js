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

const lower = ({ label, keystr, segment }) => ({
  label: label.toLowerCase(),
  keystr: keystr.toLowerCase(),
  segment: segment.toLowerCase(),
});

function own_text(tree, code) {
  const of = (field) => tree.fact(code, field);
  const shape = of("shape");
  const shape_text = shape ? `(${shape.join(", ")}${shape.length === 1 ? "," : ""})` : "";
  return [of("type"), of("kind"), of("dtype"), shape_text, of("text"), ...of("static").flat()].join("\0").toLowerCase();
}

/**
 * For each row, whether its own key passes; every different key is tried once.
 * @param {import("./payload.js").Tree} tree
 * @param {Index} index
 * @param {(key: {label: string, keystr: string, segment: string}) => boolean} test
 */
export function by_key(tree, index, test) {
  const by_code = tree.keys.map((_, code) => +(code > 0 && test(index.key(code))));
  const by_position = [];
  const found = new Uint8Array(tree.n);
  for (let row = 1; row < tree.n; row++) {
    const code = tree.key_codes[row];
    const position = tree.position[row];
    found[row] = code ? by_code[code] : (by_position[position] ??= +test(index_key(position)));
  }
  return found;
}

/**
 * The rows whose key path contains the word: in one key, or across keys as keystr or slashes write them.
 * @param {import("./payload.js").Tree} tree
 * @param {Index} index
 * @param {string} word
 */
export function in_path(tree, index, word) {
  const found = by_key(tree, index, (key) => key.label.includes(word) || key.keystr.includes(word) || key.segment.includes(word));
  found[0] = +index.name.includes(word);
  add_spanning(tree, index, word, "keystr", "", found);
  add_spanning(tree, index, word, "segment", "/", found);
  for (let row = 1; row < tree.n; row++) if (found[tree.parent[row]]) found[row] = 1;
  return found;
}

/** One automaton (Knuth, Morris and Pratt's) goes along every path; a row's state is how much of the word ends there. */
function add_spanning(tree, index, word, form, before, found) {
  const fallback = new Int32Array(word.length + 1);
  const advance = (state, text) => {
    for (let i = 0; i < text.length && state < word.length; i++) {
      while (state && word[state] !== text[i]) state = fallback[state];
      if (word[state] === text[i]) state++;
    }
    return state;
  };
  for (let i = 1; i < word.length; i++) fallback[i + 1] = advance(fallback[i], word[i]);
  // Nearly all keys are come to with nothing of the word behind them.
  const by_code = [];
  const by_position = [];
  const states = new Int32Array(tree.n);
  states[0] = advance(0, index.name);
  for (let row = 1; row < tree.n; row++) {
    const code = tree.key_codes[row];
    const position = tree.position[row];
    const text = () => before + (code ? index.key(code) : index_key(position))[form];
    const state = states[tree.parent[row]];
    if (state === word.length) states[row] = state;
    else if (state) states[row] = advance(state, text());
    else states[row] = code ? (by_code[code] ??= advance(0, text())) : (by_position[position] ??= advance(0, text()));
    if (states[row] === word.length) found[row] = 1;
  }
}
