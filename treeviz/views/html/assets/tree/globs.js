// @ts-check
// Globs: * ? [a-z] [!a-z], matched against a whole text in lower case, as in treeviz/tree/query.py.
import { byKey } from "./word_index.js";

/** @type {(text: string) => boolean} */
export const isGlob = (text) => /[*?[]/.test(text);

/** @type {(pattern: string) => (text: string) => boolean} */
export function globTest(pattern) {
  if (!isGlob(pattern)) return (text) => text === pattern;
  const tokens = pattern.match(/\[[!^]?\]?[^\]]*\]|[^]/gu) ?? [];
  const parts = [""];
  for (const token of tokens) {
    if (token === "*") parts.push("");
    else parts[parts.length - 1] += token === "?" ? "." : token.length > 2 && token[0] === "[" ? set(token) : literal(token);
  }
  let source = parts[0];
  // Each part between stars matches at its first place and is never tried again, so that no pattern is slow.
  parts.slice(1, -1).forEach((part, i) => (source += `(?=(.*?${part}))\\${i + 1}`));
  if (parts.length > 1) source += `.*${parts.at(-1)}`;
  try {
    const whole = new RegExp(`^${source}$`, "su");
    return (text) => whole.test(text);
  } catch {
    // An empty range like [z-a] matches nothing.
    return () => false;
  }
}

const literal = (text) => text.replace(/[\\^$.*+?()[\]{}|/-]/gu, "\\$&");

function set(token) {
  const negated = "!^".includes(token[1]);
  const members = token.slice(negated ? 2 : 1, -1).replace(/[\\\][^]/g, "\\$&");
  return `[${negated ? "^" : ""}${members}]`;
}

// A key as keystr prints it, in quotes; an index, also of a layer along another axis, "[:, 3]"; what else is in brackets; a dot.
const PATH_STEP = /\[(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\]|\[(?:(?::, ?)*|<flat index )(-?\d+)>?\]|(\[[^\][]*\])|\./g;

/**
 * What a glob or a key path may mean: as it is written, and in steps, as `path_patterns` in Python says.
 * @type {(path: string, name: string, isKey: (text: string) => boolean) => [keys: string[], fromRoot: boolean][]}
 */
function pathPatterns(path, name, isKey) {
  const fromRoot = path[0] === "/";
  const glob = path.replace(/\/$/, "");
  let isLiteral = false;
  const inSteps = glob.replace(PATH_STEP, (text, single, double, index, brackets) => {
    if (brackets && !isKey(brackets)) return brackets;
    isLiteral ||= text !== "." && index === undefined;
    const key = (single || double || "").replace(/\\(['"\\])/g, "$1") || index || (brackets ?? "").slice(1, -1);
    return `/${key.replace(/[*?[]/g, "[$&]")}/`;
  });
  const steps = inSteps.split("/").filter((key) => key);
  // All that is printed with this path before it.
  if (glob.endsWith("]*") && steps[steps.length - 1] === "*") steps[steps.length - 1] = "**";
  const written = glob.split("/").slice(+fromRoot);
  if (inSteps === glob || !steps.length) return [[written, fromRoot]];
  /** @type {[string[], boolean][]} */
  const patterns = [[steps, fromRoot]];
  if (!isLiteral) patterns.push([written, fromRoot]);
  if (steps.length > 1 && steps[0] === name) patterns.push([steps.slice(1), true]);
  return patterns;
}

/**
 * The rows whose path ends with a match of the glob, or of a printed path.
 * @type {(tree: import("./tree.js").Tree, index: import("./word_index.js").WordIndex, glob: string) => Uint8Array}
 */
export function onPath(tree, index, glob) {
  const isKey = (text) => index.words.keys.some(({ keystr }) => keystr === text);
  return pathPatterns(glob, tree.name.toLowerCase(), isKey).map(([keys, fromRoot]) => onKeys(tree, index, keys, fromRoot)).reduce(either);
}

/** Add rows to those that were found. @type {(rows: Uint8Array, found: Uint8Array) => Uint8Array} */
export function either(rows, found) {
  for (let row = 0; row < rows.length; row++) rows[row] |= found[row];
  return rows;
}

/**
 * The rows whose path ends with a match of the pattern, key by key.
 * Bit i of the state of a row is set if the first i segments of the pattern match and end at that row.
 * @param {import("./tree.js").Tree} tree
 * @param {import("./word_index.js").WordIndex} index
 * @param {string[]} pattern
 * @param {boolean} fromRoot
 */
function onKeys(tree, index, pattern, fromRoot) {
  if (pattern.length > 30) throw Error("A glob may have 30 keys.");
  const tests = pattern.map(globTest);
  let stay = 0;
  pattern.forEach((segment, i) => (stay |= +(segment === "**") << i));
  const closed = (state) => {
    for (let more; (more = state | ((state & stay) << 1)) !== state; ) state = more;
    return state;
  };
  const movesOf = (segment) =>
    segment.split("/").map((part) => tests.reduce((moves, test, i) => moves | (+test(part) << i), 0) & ~stay);
  const accept = 1 << pattern.length;
  const again = fromRoot ? 0 : closed(1);
  const { n, parent } = tree;
  const moves = byKey(index, [], (key) => movesOf(key.segment));
  const chains = byKey(index, new Uint8Array(n), ({ segment, steps }) => +(steps.length > 1 && segment.includes("/")));
  // NNX prints the value of a variable, which is its row.
  const intoBox = pattern.reduce((moves, segment, i) => moves | (+/^(raw_)?value$/.test(segment) << i), 0);
  const boxes = intoBox ? byKey(index, new Uint8Array(n), (key) => +/.\.(raw_)?value$/.test(key.keystr)) : null;
  const states = new Int32Array(n);
  const found = new Uint8Array(n);
  states[0] = closed(1);
  found[0] = +!!(states[0] & accept);
  for (let row = 1; row < n; row++) {
    let state = states[parent[row]];
    let passed = 0;
    for (const move of moves[row]) {
      state = closed(((state & move) << 1) | (state & stay) | again);
      if (chains[row]) passed |= state; // a node and its only child are one row
    }
    if (boxes?.[row]) state |= closed((state & intoBox) << 1);
    states[row] = state;
    found[row] = +!!((state | passed) & accept);
  }
  return found;
}
