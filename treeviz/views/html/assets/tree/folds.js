// @ts-check
// Similar siblings, such as the layers of a model, collapse into one row. treeviz/tree/repeats.py has the rule.
import { countText, numberText, wholeText } from "./numbers.js";

const LEAST = 3; // members of a folded run
const MOST_OUT = 3; // members that stand out of a run
const LONG = 12; // characters of a key whose start is not repeated

/** @typedef {import("./tree.js").Tree} Tree */
/** @typedef {{rows: number[], label: string, start: number, outlier?: {row: number, text: string} | null}} Run the siblings that are folded into the row of the first; `start` is the first of the run, which may stand out of it */

export class Folds {
  /** @param {{tree: Tree, unfolded: Set<number>, isFolding: boolean}} rows those of a view: the first rows of runs that are not to be folded, and of the rows that are None; and whether to fold runs @param {number[]} wrong the rows with a finding or an error, worst first @param {number[]} nan */
  constructor({ tree, unfolded, isFolding }, wrong, nan) {
    const { n, end } = tree;
    this.tree = tree;
    /** The folded runs, by their first row. @type {Map<number, Run>} */
    this.runs = new Map();
    /** What foldedNotes has found, by row, and foldedText, by column and row. @type {Record<string, any>} */
    this.found = {};
    /** The rows that another row stands for. */
    this.isHidden = new Uint8Array(n);
    if (!unfolded.has(tree.blanks[0])) for (const row of tree.blanks) this.isHidden[row] = 1;
    /** What `of` has found, by row. The root is the one child of row -1. @type {Record<number, number[]>} */
    this.rows = { [-1]: [-1] };
    const ranks = new Map([...wrong, ...nan].map((row, rank) => [row, rank]).reverse());
    for (const members of isFolding ? tree.header.diff?.runs?.() ?? runsOf(tree) : []) {
      if (this.isHidden[members[0]] || unfolded.has(members[0])) continue;
      const out = ranks.size ? standingOut(members.map((row) => least(ranks, row, end[row])), wrong.length) : [];
      const rows = members.filter((_, i) => !out.includes(i));
      if (rows.length < LEAST) continue;
      const [first, ...others] = rows;
      for (const row of others) this.isHidden.fill(1, row, end[row]);
      this.runs.set(first, { rows, label: labelOf(tree, rows), start: members[0] });
    }
  }

  /** All rows for which one stands. @param {number} row */
  of(row) {
    const { rows, runs, tree: { parent } } = this;
    const path = [];
    for (let at = row; !rows[at]; at = parent[at]) path.push(at);
    for (const at of path.reverse()) {
      const above = parent[at];
      const run = runs.get(at);
      rows[at] = run ? rows[above].flatMap((each) => run.rows.map((member) => member - above + each)) : rows[above].map((each) => at - above + each);
    }
    return rows[row];
  }

  /** The row that stands for a row. @param {number} row */
  standsFor(row) {
    const { end } = this.tree;
    for (const { rows } of this.runs.values()) {
      const member = rows.find((each) => each <= row && row < end[each]);
      if (member) row = Math.min(rows[0] + row - member, end[rows[0]] - 1);
    }
    return row;
  }
}

/** The notes of all rows that one stands for: of each kind, and of each kind of difference, the first, with how many rows have one. @param {Folds | null} folds @param {Tree} tree @param {number} row @returns {import("./tree.js").Note[]} */
export function foldedNotes(folds, tree, row) {
  const rows = tree.hasNotes && folds?.of(row);
  if (!rows?.[1]) return tree.notes(row);
  if (folds.found[row]) return folds.found[row];
  /** @type {Record<string, [import("./tree.js").Note, Set<number>]>} the first one of each kind, and the rows that have one */
  const found = {};
  for (const each of rows) for (const note of tree.notes(each)) (found[note[tree.header.diff ? 5 : 0]] ??= [note, new Set()])[1].add(each);
  return (folds.found[row] = Object.values(found).map(([[kind, text, , , severity, sign], { size }]) =>
    [kind, size < rows.length ? `${countText(size)} of ${countText(rows.length)}: ${text}` : text, -1, [], severity, sign, size]));
}

/** The least rank of the rows of a subtree. */
function least(ranks, row, end) {
  let best = Infinity;
  for (let at = row; at < end; at++) best = Math.min(best, ranks.get(at) ?? Infinity);
  return best;
}

/** Which members stand out, by the best rank in each: below `nWrong` it is wrong, else it has NaN. @param {number[]} best @param {number} nWrong */
function standingOut(best, nWrong) {
  const limit = best.includes(Infinity) ? Infinity : nWrong;
  return best.map((_, i) => i).sort((a, b) => best[a] - best[b] || a - b).slice(0, MOST_OUT).filter((i) => best[i] < limit);
}

/** The members of each run of LEAST or more siblings, outer runs before those inside. @param {Tree} tree @returns {number[][]} */
export function runsOf({ n, end, isLikeNext }) {
  const runs = [];
  const continues = new Uint8Array(n);
  for (let row = 0; (row = isLikeNext.indexOf(1, row + 1)) > 0; ) {
    if (continues[row]) continue;
    const members = [row];
    for (let at = row; isLikeNext[at]; continues[at] = 1) members.push((at = end[at]));
    if (members.length >= LEAST) runs.push(members);
  }
  return runs;
}

/** "[0…79] ×80", "h_0…h_11 ×12". @param {Tree} tree @param {number[]} rows */
function labelOf(tree, rows) {
  const labels = (tree.keyCodes[rows[0]] ? rows : [rows[0], rows.at(-1)]).map((row) => tree.label(row));
  // Intl.Collator takes ten milliseconds to start.
  const rank = (label) => label.replace(/\d+/g, (digits) => digits.replace(/^0+/, "").padStart(40, "0"));
  if (tree.keyCodes[rows[0]]) labels.sort((a, b) => (rank(a) < rank(b) ? -1 : 1));
  const [first, last] = [labels[0], labels.at(-1)];
  let same = 0;
  while (same < first.length && first[same] === last[same]) same++;
  while (/\d/.test(first[same - 1])) same--;
  const isIndex = first[0] === "[" && first.endsWith("]");
  const end = isIndex || last.length > LONG ? last.slice(same) : last.replace(/^\./, "");
  return `${isIndex ? first.slice(0, -1) : first}…${end} ×${wholeText(rows.length)}`;
}

/** The value of a row in a column, for all rows that it stands for: their sum in the row of a run, if the column adds up, else their range; of texts the first two. @param {Folds | null} folds @param {any} column @param {number} row @returns {string} */
export function foldedText(folds, column, row) {
  const run = folds?.runs.get(row);
  if (!folds || (column.isOfFacts && !run)) return column.text(row);
  return (folds.found[`${column.name} ${row}`] ??= textOfAll(folds, column, row, run));
}

function textOfAll(folds, column, row, run) {
  if (column.labels) {
    const [first, second, third] = new Set(folds.of(row).map((each) => column.text(each)));
    return [first, second, third && "…"].filter(Boolean).join(", ");
  }
  if (run && column.addsUp) return run.rows.some((each) => column.text(each)) ? column.write(total(column, run.rows)) : "";
  let [low, high] = [Infinity, -Infinity];
  const { values } = column;
  for (const each of folds.of(row)) {
    if (column.isBad(each)) return column.text(each);
    const value = values[each]; // NaN is none
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low >= high) return column.text(row);
  const range = (shorten) => [...new Set([low, high].map((end) => column.write(column.format === "number" ? shorten(end) : end)))];
  const short = range((end) => +end.toPrecision(2));
  const ends = short.length > 1 ? short : range((end) => end);
  // A dash beside a sign is hard to read.
  return ends.join(ends.join("").includes("-") ? " to " : "–");
}

/** @param {any} column @param {number[]} rows */
export const total = (column, rows) => rows.reduce((sum, row) => sum + (column.values[row] || 0), 0);
