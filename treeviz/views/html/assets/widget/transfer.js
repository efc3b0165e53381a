// @ts-check
// Moves the state of a view to the view of the tree that replaces it, row by row.
import { MAX_HEIGHT, ROW_HEIGHT } from "../tree/grid.js";

/** @typedef {import("../tree/tree.js").Tree} Tree */
/** @typedef {import("../tree/view.js").View} View */

/** For each row of one tree its row in another, matched by key path; -1 if there is none. @param {Tree} one @param {Tree} other */
export function match(one, other) {
  const rows = new Int32Array(one.n).fill(-1);
  if (one.n === other.n && equal(one.depth, other.depth) && equal(one.keyCodes, other.keyCodes) && JSON.stringify(one.keys) === JSON.stringify(other.keys))
    return rows.map((_, row) => row);
  rows[0] = 0;
  for (let row = 0; row < one.n; row++) {
    const there = rows[row];
    if (there < 0 || !one.nChildren[row]) continue;
    /** Keys may repeat: the first is matched with the first. @type {Map<string, number[]>} */
    const children = new Map();
    for (let child = there + 1; child < other.end[there]; child = other.end[child]) {
      const { keystr } = other.key(child);
      children.get(keystr)?.push(child) ?? children.set(keystr, [child]);
    }
    for (let child = row + 1; child < one.end[row]; child = one.end[child]) rows[child] = children.get(one.key(child).keystr)?.shift() ?? -1;
  }
  return rows;
}

const equal = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);

/** Move the state; called before the new view is shown. @param {View} before @param {View} view @param {Int32Array} rows */
export function transferState(before, view, rows) {
  /** The row that stands for a row now: the same, or its nearest ancestor that still exists. */
  const stay = (row) => {
    while (rows[row] < 0) row = before.tree.parent[row];
    return rows[row];
  };
  view.rows.open.fill(0);
  rows.forEach((row, old) => row >= 0 && (view.rows.open[row] = before.rows.open[old]));
  view.selected = new Set([...before.selected].map((row) => rows[row]).filter((row) => row >= 0));
  view.active = stay(before.active);
  view.anchor = stay(before.anchor);
  for (const column of view.columns) {
    const old = before.columns.find(({ name }) => name === column.name);
    if (old && !!old.hidden === !!old.shown) column.hidden = old.hidden; // the reader's choice
  }
  const { column, descending } = before.sorting;
  const sorted = column && [view.keyColumn, ...view.columns].find(({ name }) => name === column.name);
  if (sorted) view.sort(sorted, descending);
  if (before.seriesView && view.seriesView) view.seriesView.takeOver(before.seriesView);

  const wasIn = /** @type {ShadowRoot} */ (before.root.getRootNode()).activeElement;
  const inSearch = wasIn === before.searchBox;
  const inTree = wasIn === before.grid.tree;
  const query = before.searchBox.value;
  const { filtering } = before.rows;
  const { scrollTop } = before.grid.element;
  const first = before.rows.count ? before.rows.visible[before.grid.first ?? 0] : 0;
  const offset = scrollTop + before.grid.shift - (before.grid.first ?? 0) * ROW_HEIGHT;
  const detailed = before.detailed < 0 ? -1 : rows[before.detailed];
  view.on("shown", () => {
    if (query) {
      view.searchBox.value = query;
      view.search.run(query);
      if (!filtering && view.rows.hits) view.search.setFiltering(false);
    }
    view.rows.update();
    if (detailed >= 0) view.showDetail(detailed);
    view.grid.paint(true);
    scrollSo(view, view.rows.index(stay(first)), offset);
    if (inSearch) view.searchBox.focus();
    else if (inTree) view.grid.tree.focus({ preventScroll: true });
  });
}

/** Scroll until a visible row is `offset` pixels above the upper edge. @param {View} view @param {number} index @param {number} offset */
function scrollSo({ grid, rows }, index, offset) {
  const total = rows.count * ROW_HEIGHT;
  if (total > MAX_HEIGHT) return grid.scrollTo(index);
  grid.tree.style.height = `${total}px`;
  grid.element.scrollTop = index * ROW_HEIGHT + offset;
  grid.paint(true);
}

/** Highlight and mark rows; a closed node is marked if any row inside it is. @param {import("../tree/view.js").View} view @param {Uint8Array} changed one for each row to highlight @param {number} durationMs */
export function flash(view, changed, durationMs) {
  const { grid, rows, tree } = view;
  // How many changed rows come before each row.
  const before = new Int32Array(changed.length + 1);
  changed.forEach((isChanged, row) => (before[row + 1] = before[row] + isChanged));
  const isMarked = (row) => (rows.isOpen(row) ? changed[row] === 1 : before[tree.end[row]] > before[row]);
  let isOver = false;
  const paint = () =>
    grid.pool.forEach((element, i) => {
      const is = isMarked(rows.visible[grid.first + i]);
      element.classList.toggle("changed", is && !isOver);
      element.classList.toggle("marked", is);
      if (!is) return;
      element.ariaLabel += ", changed";
      element.drawn = ""; // by the grid it is drawn without that
    });
  view.on("paint", paint);
  grid.paint(true);
  const timer = setTimeout(() => {
    isOver = true;
    grid.paint(true);
  }, durationMs);
  view.signal.addEventListener("abort", () => clearTimeout(timer));
}
