// @ts-check
// Norms of rows: bars that compare them, and the members that stand out of a run of similar rows.
import { numberText } from "../tree/numbers.js";

/** @typedef {import("../tree/folds.js").Folds} Folds */

// The bar of a norm is empty at this many powers of ten below the largest.
const DECADES = 5;

export const isNorm = (column) => /(norm|rms)$/.test(column.name);

/** How much of its cell the bar of a norm takes, in percent, on a logarithmic scale: a function of a row. @param {any} column */
export function shareOfNorm(column) {
  let scaled, low, high;
  /** @param {number} row @param {Folds | null} folds */
  return (row, folds) => {
    const { values } = column;
    if (scaled !== values) {
      [scaled, low, high] = [values, Infinity, -Infinity];
      for (const value of values) if (value > 0 && value < Infinity) [low, high] = [Math.min(low, value), Math.max(high, value)];
      [low, high] = [low, high].map(Math.log10);
    }
    const least = Math.max(low, high - DECADES) - 0.1;
    let value = 0; // the greatest of the rows that this one stands for
    for (const each of folds?.of(row) ?? [row]) if (values[each] > value) value = values[each];
    return Math.max(0, (100 * (Math.log10(value) - least)) / (high - least));
  };
}

/** The member of a run whose norm or rms is farthest from the median, tenfold at least; as in views/text/folded.py. @param {Folds | null} folds @param {number} row @returns {{row: number, text: string} | null} */
export function outlierOf(folds, row) {
  const run = folds?.runs.get(row);
  if (!run || run.outlier !== undefined) return run?.outlier ?? null;
  const { tree } = /** @type {Folds} */ (folds);
  run.outlier = null;
  let most = 2.302; // log 10
  for (const { title, values } of tree.columns.filter((column) => !column.hidden && isNorm(column))) {
    const known = run.rows.map((each) => values[each]).filter(Number.isFinite).sort((a, b) => a - b);
    const median = (known[(known.length - 1) >> 1] + known[known.length >> 1]) / 2;
    for (const each of median > 0 ? run.rows : []) {
      const ratio = values[each] / median;
      const distance = Math.abs(Math.log(ratio));
      if (!(distance > most) || ratio === Infinity) continue;
      most = distance;
      run.outlier = { row: each, text: `${tree.label(each)} ${title}: ${ratio ? `${numberText(+ratio.toPrecision(2))} × the median` : 0}` };
    }
  }
  return run.outlier;
}
