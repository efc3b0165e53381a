// @ts-check
// Finds the row of a key path that is given as text.

/** @typedef {import("../tree/tree.js").Tree} Tree */

// For this many paths or more, the paths of all nodes are built once.
const MANY = 20;

/** The first row with this keystr, or the root by its name; -1 if there is none. @param {Tree} tree @param {string} text */
export function rowOfPath(tree, text) {
  if (text === "" || text === tree.name) return 0;
  const waiting = [[0, 0]];
  for (let next; (next = waiting.pop()); ) {
    const [above, at] = next;
    const below = [];
    for (let row = above + 1; row < tree.end[above]; row = tree.end[row]) {
      const { keystr } = tree.key(row);
      if (!keystr || !text.startsWith(keystr, at)) continue;
      if (at + keystr.length === text.length) return row;
      below.push([row, at + keystr.length]);
    }
    waiting.push(...below.reverse());
  }
  return -1;
}

/** `rowOfPath` of many paths. @param {Tree} tree @param {string[]} paths @returns {number[]} */
export function rowsOfPaths(tree, paths) {
  if (paths.length < MANY) return paths.map((path) => rowOfPath(tree, path));
  const texts = [""];
  const rows = new Map([["", 0], [tree.name, 0]]);
  for (let row = 1; row < tree.n; row++) {
    if (!tree.nChildren[row]) continue;
    texts[row] = texts[tree.parent[row]] + tree.key(row).keystr;
    if (!rows.has(texts[row])) rows.set(texts[row], row);
  }
  return paths.map((path) => rows.get(path) ?? rowOfPath(tree, path));
}
