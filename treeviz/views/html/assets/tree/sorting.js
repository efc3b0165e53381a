// @ts-check
// A number for each row, by which the rows can be sorted.
import { readKey } from "./tree.js";

/** @typedef {import("./tree.js").Tree} Tree */

/**
 * The ranks of all rows in a column: its numbers, or the alphabetical order of its texts.
 * @param {Tree} tree
 * @param {any} column
 * @returns {ArrayLike<number>}
 */
export function sortRanks(tree, column) {
  if (column.isNumber) return column.bad || tree.header.series ? column.values.map((value, row) => (column.isBad?.(row) ? Infinity : value)) : column.values;
  const ofRows = (rankOf) => new Float64Array(tree.n).map((_, row) => rankOf(row));
  if (column.format === "key") {
    const rank = textRanks(tree.keys.map((key) => readKey(key).label));
    return ofRows((row) => (tree.keyCodes[row] ? tree.n + rank[tree.keyCodes[row]] : tree.position[row]));
  }
  if (column.format === "type") {
    const rank = textRanks(Array.from({ length: tree.nFacts }, (_, code) => tree.what(code)));
    return ofRows((row) => rank[tree.factCodes[row]]);
  }
  if (column.rankOf) return ofRows(column.rankOf);
  const rank = textRanks(column.labels);
  return ofRows((row) => rank[column.level(row)]);
}

/** The places of texts in alphabetical order; equal texts have equal places. @param {string[]} texts */
function textRanks(texts) {
  const { compare } = new Intl.Collator("en", { numeric: true });
  const order = texts.map((_, i) => i).sort((a, b) => compare(texts[a], texts[b]));
  const rank = new Float64Array(texts.length);
  order.forEach((i, place) => (rank[i] = place && texts[order[place - 1]] === texts[i] ? rank[order[place - 1]] : place));
  return rank;
}
