// @ts-check
// The column of findings: in each row a sign with a step or a count; in a closed node how many are inside it.
import { h } from "../tree/dom.js";
import { foldedNotes } from "../tree/folds.js";
import { countText } from "../tree/numbers.js";
import { additions } from "../tree/view.js";

/** @typedef {import("../tree/tree.js").Note} Note */
/** @typedef {[number, Note, (() => void)?]} Found a row, the note of a finding, and how to go there, if not to the row alone */

// By severity, the worst first.
export const SIGN_OF = { error: "✕", warning: "⚠", info: "·" };
const NARROW = 4; // characters
const MAX_PRINTED_FINDINGS = 200;

additions.push({
  name: "findings",
  start(view) {
    const { tree, root, signal } = view;
    const found = Object.keys(tree.header.notes).flatMap((row) => worstFirst(tree.notes(+row)).map((note) => /** @type {Found} */ ([+row, note])));
    showFindings(view, found);
    // On paper nothing is under a pointer.
    const printed = h("div", { class: "printed" });
    root.querySelector(".body")?.before(printed);
    const lines = () => bySeverity(found).slice(0, MAX_PRINTED_FINDINGS).map(([row, note]) => h("p", {}, badge(note[0], note), ` ${tree.expression(row)}: ${sentence(tree, note)}`));
    addEventListener("beforeprint", () => printed.replaceChildren(...lines(), found.length > MAX_PRINTED_FINDINGS ? `… ${countText(found.length - MAX_PRINTED_FINDINGS)} more` : ""), { signal });
  },
});

/** Those of one severity together, the worst first. @param {Found[]} found */
const bySeverity = (found) => Object.keys(SIGN_OF).flatMap((severity) => found.filter(([, note]) => note[4] === severity));

/** @param {string} text @param {Note} note */
const badge = (text, note, title = "", more = {}) => h("span", { class: "badge", "data-note": note[0], "data-severity": note[4], title, ...more }, text);

/** What a note says, with the other place that it tells of. @param {import("../tree/tree.js").Tree} tree @param {Note} note */
const sentence = (tree, [, text, row]) => text + (row < 0 ? "" : ` ${tree.expression(row)}`);

/** @param {Note[]} notes */
const worstFirst = (notes) => Object.keys(SIGN_OF).flatMap((severity) => notes.filter((note) => note[4] === severity));

/** Show findings in a column of their own, if there are any. @param {import("../tree/view.js").View} view @param {Found[]} found */
export function showFindings(view, found) {
  const { tree, rows, columns } = view;
  const { n, end } = tree;
  const before = new Int32Array(n + 1);
  for (const [row] of found) before[row + 1]++;
  for (let row = 0; row < n; row++) before[row + 1] += before[row];
  const nInside = (row) => before[end[row]] - before[row + 1];
  const places = bySeverity(found);
  const signOf = (row) => {
    const notes = worstFirst(foldedNotes(rows.folds, tree, row));
    const [note] = notes;
    // A step says more than that there is one finding.
    const count = notes.reduce((sum, note) => sum + (note[6] ?? 1), 0);
    const text = note?.[5]?.length > 1 ? note[5] + (count > 1 ? ` +${count - 1}` : "") : note && SIGN_OF[note[4]] + countText(count);
    return note ? [badge(text, note, notes.map((note) => `${note[0]}: ${sentence(tree, note)}`).join("\n"))] : [];
  };
  const insideOf = (row) => {
    const count = rows.hasChildren(row) && !rows.isOpen(row) && nInside(row);
    if (!count) return [];
    const [to, note, go = () => view.goTo(to)] = /** @type {Found} */ (places.find(([at]) => at > row && at < end[row]));
    // The same click would select the row.
    const click = (event) => (event.stopPropagation(), go());
    return [badge(`${note[4] === "info" ? SIGN_OF.info : SIGN_OF.warning}${countText(count)}`, note, `${view.inside(row)}: go to the worst`, { class: "badge inside", click })];
  };
  view.inside = (row) => (nInside(row) ? `${countText(nInside(row))} finding${nInside(row) > 1 ? "s" : ""} inside` : "");
  // " +1" stands behind the step where a row has two.
  const isAlone = new Set(found.map(([row]) => row)).size === found.length;
  /** @type {Float64Array | undefined} */
  let ranks;
  const column = {
    name: "findings",
    title: "findings",
    format: "findings",
    urgency: 3,
    help: "Findings here or inside: a sign with a step or a count",
    width: 1 + Math.max(NARROW, 2 + String(found.length).length, ...found.map(([, note]) => (note[5]?.length ?? 0) + (isAlone ? 1 : 4))),
    text: () => "",
    draw: (row) => h("span", {}, ...signOf(row), ...insideOf(row)),
    // Sorted by it, the worst come first.
    rankOf: (row) => (ranks ??= ranksOf(tree, places))[row],
  };
  const known = columns.find(({ name }) => name === "findings");
  if (known) Object.assign(known, column);
  else if (found.length) columns.splice(1, 0, column); // a type is always second
  if (!known && found.length && view.grid.width) view.grid.resize();
}

/** The rank of the worst finding in each subtree; Infinity: there is none. */
function ranksOf({ n, parent }, places) {
  const ranks = new Float64Array(n).fill(Infinity);
  places.forEach(([row], rank) => {
    for (; row >= 0 && ranks[row] > rank; row = parent[row]) ranks[row] = rank;
  });
  return ranks;
}
