// @ts-check
// The numbers of this tree and of others, such as gradients, side by side.
import { h } from "../tree/dom.js";
import { foldedText } from "../tree/folds.js";

/** @typedef {import("../tree/tree.js").Tree} Tree */

/**
 * The columns about other trees, such as gradients: those of each together, by their statistic: "rms" of "grads.rms".
 * @param {Tree} tree @returns {{title: string, columns: Map<string, any>}[]}
 */
export function otherTrees(tree) {
  const dtypes = tree.columns.filter(({ name }) => name.endsWith(".dtype"));
  return dtypes.map(({ name, title }) => {
    const group = name.slice(0, -"dtype".length);
    const own = tree.columns.filter((column) => column.name.startsWith(group) && !column.name.includes(".", group.length));
    return { title, columns: new Map(own.map((column) => [column.name.slice(group.length), column])) };
  });
}

/** A table of the numbers of this tree and of the others, a line for each statistic. @param {import("../tree/view.js").View} view @param {number} row */
export function sideBySide({ tree, rows: { folds } }, row, others) {
  const titles = new Map(others.flatMap(({ title, columns }) => [...columns].map(([stat, column]) => [stat, column.title.slice(title.length).trim() || stat])));
  const trees = [new Map(tree.columns.map((column) => [column.name, column])), ...others.map(({ columns }) => columns)];
  const lines = [...titles].map(([stat, title]) => [title, ...trees.map((columns) => (columns.has(stat) ? foldedText(folds, columns.get(stat), row) : ""))]);
  const shown = lines.filter(([, ...texts]) => texts.some((text) => text && text !== "0"));
  const line = (tag, texts) => h("tr", {}, ...texts.map((text, i) => h(text ? (i ? tag : "th") : "td", {}, text)));
  if (!shown.length) return [];
  return [h("table", { class: "beside" }, line("th", ["", tree.name, ...others.map(({ title }) => title)]), ...shown.map((texts) => line("td", texts)))];
}
