// @ts-check
// What the cells of a row show.
import { h } from "./dom.js";
import { total } from "./folds.js";
import { countText, wholeText } from "./numbers.js";

/** @typedef {import("./tree.js").Tree} Tree */

// A badge shows the path of the other place up to this many keys.
const MAX_PATH = 12;

/** The beginning of a name and its end, by which those of one prefix differ, or else all from where its neighbor differs: the cell cuts it. @param {string} label @param {string} other the label of the neighbor @param {number} room in characters */
export function cutName(label, other, room) {
  const end = (room * 2) / 3 - 1;
  let at = 0;
  while (label[at] && label[at] === other[at]) at++;
  return `${label.slice(0, room / 3)}…${label.slice(at < room / 3 || at > label.length - end ? -end : at - end / 4)}`;
}

/** The type of a row and, if it is short, its value. @param {Tree} tree @param {number} code of its facts */
export function whatText(tree, code) {
  const [what, text] = [tree.what(code), tree.fact(code, "text")];
  return text && !what.endsWith(text) ? `${what} ${text}` : what;
}

/** The type without the words that may go: where a function is, and what else an array is. @param {string} what */
export const briefText = (what) => what.replace(/(?<=^[^[]*\S*]|^function .*) .*/, "");

/** What follows the type of an array of one number: " 0.25"; not where the row stands for several. @param {import("./view.js").View} view @param {number} row */
export function scalarText({ tree, rows }, row) {
  const text = !(rows.folds?.of(row).length > 1) && tree.column("scalar")?.text(row);
  return text ? ` ${text}` : "";
}

/** The static fields of a row. @param {Tree} tree @param {number} code of its facts @returns {string[]} */
export const fieldTexts = (tree, code) => [...tree.fact(code, "static")].map(pairText);

const insideTexts = (tree, code) => [...tree.fact(code, "inside")].map(pairText);

const pairText = ([name, value]) => (name === "…" ? `… ${value}` : `${name}=${value}`);

/** Texts in one, as many as fit. @param {string[]} texts @param {number} room in characters @returns {string} */
export function fitting(texts, room) {
  const text = texts.join(" · ");
  return texts[0] && text.length > room ? fitting(texts.slice(0, -1), room) : text;
}

/** The notes that stand beside the type: not those with a sign, which have a column of their own. @param {any[]} notes */
export const besideType = (notes) => notes.filter(([kind, , , , , sign]) => !sign || kind === "differs");

/** Show the type, and beside it what fits: whole words. @param {HTMLElement} cell @param {import("./view.js").View} view @param {number} row @param {any[]} notes @param {number} room in characters */
export function fillType(cell, view, row, notes, room) {
  const { tree, rows } = view;
  const code = tree.factCodes[row];
  let [all, fields] = [whatText(tree, code), fieldTexts(tree, code)];
  const type = tree.what(code);
  all += scalarText(view, row);
  // What differs from row to row is not said of all.
  if ((fields[0] || all !== type) && rows.folds?.of(row).some((each) => tree.factCodes[each] !== code)) [all, fields] = [type, []];
  const what = all.length > room ? briefText(all) : all;
  const within = insideTexts(tree, code);
  cell.title = [all, ...fields, within[0] && "inside (invisible to JAX)", ...within].filter(Boolean).join("\n");
  const parts = [h("span", { class: "what" }, what)];
  const add = (text, attributes) => {
    room -= text.length + 2;
    parts.push(h("span", attributes, text));
  };
  const addBadge = (text, attributes) => add(text.length + 2 > room ? text.split(": ")[0] : text, { class: "badge", ...attributes });
  room -= what.length;
  for (const note of besideType(notes)) addBadge(note[5] || badgeText(tree, note), { "data-note": note[0], "data-severity": note[4], title: `${note[1]} ${placeOf(tree, note[2])}` });
  if (rows.folds?.runs.has(row)) {
    const outlier = rows.outlierOf(row);
    const link = (text, title, act) => addBadge(text, { class: "badge inside", "data-note": "info", title, click: (event) => (event.stopPropagation(), act()) });
    link("unfold", "Show each", () => (rows.unfold(row), view.update(row)));
    if (outlier) link(outlier.text, outlier.text, () => view.goTo(outlier.row));
  }
  const addThose = (name, texts) => {
    const text = fitting(texts, room - 3);
    if (text) add((what && "· ") + text, { class: name });
  };
  addThose("dim", [...sizesOf(tree, row), ...eachText(view, row), ...fields]);
  addThose("dim within", within);
  cell.replaceChildren(...parts);
}

/** How many children and leaves a node has, as in views/text/brief.py. */
function sizesOf(tree, row) {
  const n = tree.nChildren[row];
  const leaves = n && tree.column("leaves")?.values[row];
  const isCounted = leaves != null && /^(list|tuple)$/.test(tree.of(row, "kind")) && leaves !== n;
  return [isCounted && n && wholeText(n), leaves > 1 && `${countText(leaves)} leaves`].filter(Boolean);
}

/** The bytes of each member of a run. @param {import("./view.js").View} view @param {number} row */
export function eachText({ tree, rows }, row) {
  const bytes = rows.folds?.runs.has(row) && tree.nChildren[row] && tree.column("bytes");
  return bytes && bytes.values[row] ? [`${bytes.text(row)} each`] : [];
}

/** The path of a related row; "": there is none. @param {Tree} tree @param {number} row */
const placeOf = (tree, row) => (row < 0 ? "" : tree.keystr(row) || tree.name);

function badgeText(tree, [kind, sentence, row, details]) {
  if (row >= 0 && tree.depth[row] <= MAX_PATH) return `${kind}: ${placeOf(tree, row)}`;
  // "2 hidden arrays: .buffer float32[100,100]"
  if (kind === "hidden" && details[0]) return `${sentence.replace(/^(T\d+: )?(1 )?/, "").split(/ \(|[:,] /)[0]}: ${details[0].join(" ")}`;
  return kind === "info" ? sentence.split(" (")[0] : /nonf|hidden|diff/.test(kind) ? sentence : `${kind}: ${sentence}`;
}

/** Whether a bar compares the numbers of a column. */
export const hasBar = ({ format, share }) => format === "bytes" || !!share;

/** How much of its cell the bar of a value takes, in percent: of bytes the share of the whole. @param {any} column @param {number} row @param {import("./folds.js").Folds | null} folds */
export const shareOf = (column, row, folds) =>
  column.share ? column.share(row, folds) : (100 * total(column, folds?.runs.get(row)?.rows ?? [row])) / column.values[0] || 0;
