// @ts-check
// Globs as analysis/query.py reads them: * ? [a-z] [!a-z], against a whole text in lower case.

/** @type {(text: string) => boolean} */
export const is_glob = (text) => /[*?[]/.test(text);

/** @type {(pattern: string) => (text: string) => boolean} */
export function glob_test(pattern) {
  if (!is_glob(pattern)) return (text) => text === pattern;
  const tokens = pattern.match(/\[[!^]?\]?[^\]]*\]|[^]/gu) ?? [];
  const parts = [""];
  for (const token of tokens) {
    if (token === "*") parts.push("");
    else parts[parts.length - 1] += token === "?" ? "." : token.length > 2 && token[0] === "[" ? set(token) : literal(token);
  }
  let source = parts[0];
  // Each part between stars is taken where it first fits and never tried again: no pattern is slow.
  parts.slice(1, -1).forEach((part, i) => (source += `(?=(.*?${part}))\\${i + 1}`));
  if (parts.length > 1) source += `.*${parts[parts.length - 1]}`;
  try {
    const whole = new RegExp(`^${source}$`, "su");
    return (text) => whole.test(text);
  } catch {
    // A range like [z-a] holds nothing.
    return () => false;
  }
}

const literal = (text) => text.replace(/[\\^$.*+?()[\]{}|/-]/gu, "\\$&");

function set(token) {
  const negated = "!^".includes(token[1]);
  const members = token.slice(negated ? 2 : 1, -1).replace(/[\\\][^]/g, "\\$&");
  return `[${negated ? "^" : ""}${members}]`;
}

/**
 * The rows at whose path's end the glob matches, segment by segment.
 * Bit i of a row's state says that the first i segments of the pattern end at that row.
 * @param {import("./payload.js").Tree} tree
 * @param {import("./words.js").Index} index
 * @param {string} glob
 */
export function on_path(tree, index, glob) {
  const from_root = glob[0] === "/";
  const pattern = glob.slice(from_root ? 1 : 0).replace(/\/$/, "").split("/");
  if (pattern.length > 30) throw new Error("a glob may have 30 keys");
  const tests = pattern.map(glob_test);
  let stay = 0;
  pattern.forEach((segment, i) => (stay |= +(segment === "**") << i));
  const closed = (state) => {
    for (let more; (more = state | ((state & stay) << 1)) !== state; ) state = more;
    return state;
  };
  const moves_of = (segment) =>
    segment.split("/").map((part) => tests.reduce((moves, test, i) => moves | (+test(part) << i), 0) & ~stay);
  const accept = 1 << pattern.length;
  const again = from_root ? 0 : closed(1);
  const { n, parent, key_codes, position } = tree;
  const states = new Int32Array(n);
  const found = new Uint8Array(n);
  const by_code = [];
  const by_position = [];
  states[0] = closed(1);
  found[0] = +!!(states[0] & accept);
  for (let row = 1; row < n; row++) {
    const code = key_codes[row];
    const moves = code
      ? (by_code[code] ??= moves_of(index.key(code).segment))
      : (by_position[position[row]] ??= moves_of(String(position[row])));
    let state = states[parent[row]];
    for (const move of moves) state = closed(((state & move) << 1) | (state & stay) | again);
    states[row] = state;
    found[row] = +!!(state & accept);
  }
  return found;
}
