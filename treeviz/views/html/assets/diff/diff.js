// @ts-check
// Differences between trees: badges that filter by kind, what is the same folded with its count, histograms of both sides.
import { CH } from "../tree/columns.js";
import { h } from "../tree/dom.js";
import { runsOf } from "../tree/folds.js";
import { countText, wholeText } from "../tree/numbers.js";
import { additions, View } from "../tree/view.js";
import { barChart } from "../values/bar_chart.js";

const LEAST_SAME = 3; // siblings that are folded
const LONGEST_KIND = 7; // characters: missing
// The signs of kinds, in the place of the glyph of a row; of all others ≠.
const SIGNS_OF = { missing: "−", extra: "+" };
const signOf = (kind) => SIGNS_OF[kind] ?? "≠";

additions.push({
  name: "diff",
  start(view) {
    if (!view.tree.header.diff) return;
    readNotes(view.tree);
    foldSame(view);
    view.tree.changed ??= Uint8Array.from(view.tree.depth, (_, row) => +!!view.tree.header.notes[row]);
    const [headline] = view.root.children;
    // The badges say of which kinds they are.
    const fact = headline.children[1];
    fact.textContent = fact.textContent.replace(/(differences?):.*/, "$1");
    headline.after(kindBadges(view));
    wordOnPhones(view);
    const { moreDetail } = view;
    view.moreDetail = (row) => [...moreDetail(row), ...sides(view, row)];
  },
});

/** Let the tree write the notes of a row when they are asked for: note_payload.py sent a pattern of them. @param {View["tree"]} tree */
function readNotes(tree) {
  const [at, ...patterns] = tree.header.diff.texts;
  const codes = tree.buffers[at] ?? [];
  const columns = patterns.map(([, ...sent]) => sent.map((texts) => tree.buffers[texts] ?? texts.split(" ")));
  const counts = {};
  // Which of the rows of its pattern each is.
  const places = Array.from(codes, (code) => (counts[code] = (counts[code] ?? -1) + 1));
  const bare = tree.notes;
  tree.notes = (row) => {
    const code = codes[row];
    const write = (part, i) => (i % 2 ? columns[code - 1][part]?.[places[row]] ?? tree.column(part).text(row) : part);
    return code ? JSON.parse(patterns[code - 1][0].map(write).join("")) : bare.call(tree, row);
  };
}

/** Fold siblings that are the same in both trees, and open what differs. @param {View} view */
function foldSame(view) {
  const { tree, rows, grid } = view;
  const words = tree.columns.find(({ name }) => name === "diff");
  const leaves = tree.columns.find(({ name }) => name === "leaves");
  const isSame = (row) => words?.text(row) === "same";
  const isRun = (row) => isSame(row) && !!rows.folds?.runs.has(row);
  let isFolding = true;
  tree.header.diff.runs = () => {
    const same = isFolding ? sameRuns(tree, isSame) : [];
    for (const [first] of same) rows.open[first] = 0;
    return [...same, ...differingRuns(tree).filter((members) => !members.some(isSame))].sort(([a], [b]) => a - b);
  };
  const unfold = (row) => (rows.unfold(row), view.update(row));
  // The row of a run opens into the siblings that it stands for.
  const [hasChildren, isOpen, setOpen] = [rows.hasChildren.bind(rows), rows.isOpen.bind(rows), view.setOpen.bind(view)];
  rows.hasChildren = (row) => isRun(row) || hasChildren(row);
  rows.isOpen = (row) => !isRun(row) && isOpen(row);
  view.setOpen = (row, open) => (isRun(row) ? open && unfold(row) : setOpen(row, open));
  view.openTo = (depth) => {
    isFolding = !depth;
    rows.folds = null;
    View.prototype.openTo.call(view, depth);
  };
  view.on("paint", () => {
    const room = grid.layout.widths[1 + grid.columns.findIndex(({ format }) => format === "type")] / CH;
    for (const element of grid.pool) {
      const row = +(element.dataset.row ?? 0);
      element.classList.toggle("same", isSame(row));
      const cell = element.querySelector(".cell.type");
      const say = (texts, ...more) => {
        element.drawn = "";
        cell?.replaceChildren(h("span", { class: "what" }, texts.find(({ length }) => length <= room) ?? "the same"), ...more);
      };
      if (view.tree.header.notes[row]) {
        const note = view.tree.notes(row).find(([kind]) => kind === "differs");
        if (note) {
          element.dataset.severity = note[4];
          element.firstChild.dataset.glyph = signOf(note[4]);
        }
      }
      if (!isRun(row)) {
        const texts = Array.from(cell?.children ?? [], ({ textContent }) => textContent);
        if (isSame(row) && !isSame(tree.parent[row])) say([texts.join(" "), texts[0]].map((text) => `the same · ${text}`));
        continue;
      }
      const n = rows.folds.runs.get(row).rows.reduce((sum, each) => sum + leaves.values[each], 0);
      const text = `the same · ${countText(n)} ${n === 1 ? "leaf" : "leaves"}`;
      const badge = h("span", { class: "badge inside", "data-note": "info", title: "Show each", click: (event) => (event.stopPropagation(), unfold(row)) }, "unfold");
      say(text.length + 8 > room ? [] : [text], badge);
      element.ariaLabel = `${rows.label(row)}, ${text}`;
    }
  });
  view.on("detail", (row) => {
    const note = row >= 0 && isRun(row) && view.detailPlace.querySelector(".note");
    if (note) note.textContent = `${rows.label(row)} are the same in both trees; the details are those of the first`;
  });
  const { open } = tree.header.diff;
  if (open) {
    rows.open.fill(0);
    for (const row of open) rows.open[row] = 1;
  }
  rows.folds = null;
  rows.update();
}

/** On a phone both sides leave no room for the type, nor for the badge beside it: what differs is a word before them. @param {View} view */
function wordOnPhones({ columns, grid }) {
  const at = columns.findIndex(({ name }) => name === "diff");
  if (!columns.some(({ name }) => name === "left") || at < 0) return;
  const [words] = columns.splice(at, 1);
  columns.unshift(words);
  let hidden;
  Object.defineProperty(words, "hidden", { get: () => hidden ?? !grid.isSlim, set: (value) => (hidden = value) });
  words.width = LONGEST_KIND;
}

/** Each run of siblings that are the same, outer ones first. @param {View["tree"]} tree @param {(row: number) => boolean} isSame @returns {number[][]} */
function sameRuns(tree, isSame) {
  const { n, end, parent } = tree;
  const runs = [];
  for (let row = 1; row < n; ) {
    if (!isSame(row)) {
      row++;
      continue;
    }
    const members = [];
    const above = parent[row];
    for (; row < end[above] && isSame(row); row = end[row]) members.push(row);
    if (members.length >= LEAST_SAME) runs.push(members);
  }
  return runs;
}

/** The members of each run that differ in the same way. @param {View["tree"]} tree @returns {number[][]} */
export function differingRuns(tree) {
  const { end, factCodes } = tree;
  return runsOf(tree).flatMap((members) => {
    /** @type {Record<string, number[]>} */
    const groups = {};
    for (const row of members) (groups[String(Array.from(factCodes.subarray(row, end[row]), (code) => tree.fact(code, "differs")))] ??= []).push(row);
    return Object.values(groups);
  });
}

/** A badge for each kind of difference, with its count; those that are pressed filter the rows. @param {View} view */
function kindBadges(view) {
  const { kinds } = view.tree.header.diff;
  const query = (kind) => `diff:"${kind.toLowerCase()}"`;
  const parts = () => view.searchBox.value.split(" | ");
  const buttons = kinds.map(([kind, n, about]) => {
    const press = () => {
      const before = parts().filter((part) => /^diff:"[^"]*"$/.test(part));
      const other = before.includes(query(kind)) ? before.filter((part) => part !== query(kind)) : [...before, query(kind)];
      view.searchBox.value = other.join(" | ");
      view.search.run(view.searchBox.value);
    };
    return h("button", { class: "badge", "data-note": "differs", "data-severity": kind, title: `${about}: show only these`, click: press }, `${signOf(kind)} ${kind} ${wholeText(n)}`);
  });
  const show = () => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(parts().includes(query(kinds[i][0])))));
  view.on("change", show);
  show();
  return h("div", { class: "kinds", role: "group", "aria-label": "kinds of difference" }, ...buttons);
}

/** The magnitudes of both sides of a row, one above the other. @param {View} view @param {number} row */
function sides(view, row) {
  const { tree, request } = view;
  const { bars: [at, first, bins], names } = tree.header.diff;
  const [rows, heights] = [tree.buffers[at], tree.buffers[bins]];
  const place = rows.indexOf(row);
  if (request || place < 0) return [];
  const both = [0, 1].map((side) => heights.filter((_, i) => i % (2 * rows.length) === side * rows.length + place));
  const edges = [first, first + both[0].length].map((exponent) => h("span", {}, `${exponent}`));
  return [h("figure", { class: "sides" }, h("figcaption", {}, `log₂|x|: ${names[0]} above, ${names[1]} below`),
    ...both.map((side, i) => barChart(side.map((height) => 5 * height), `in the ${names[i]}`)), h("div", { class: "ticks", "aria-hidden": "true" }, ...edges))];
}
