// @ts-check
// From the view of one tree to that of the tree that replaces it: rows that stayed keep their state.
import { ROW_HEIGHT } from "./grid.js";

/** @typedef {import("./payload.js").Tree} Tree */
/** @typedef {import("./view.js").View} View */

/** For each row of one tree its row in another, matched by key path; -1: it is gone. @param {Tree} one @param {Tree} other */
export function match(one, other) {
  const rows = new Int32Array(one.n).fill(-1);
  if (one.n === other.n && equal(one.depth, other.depth) && equal(one.key_codes, other.key_codes) && JSON.stringify(one.keys) === JSON.stringify(other.keys))
    return rows.map((_, row) => row);
  rows[0] = 0;
  for (let row = 0; row < one.n; row++) {
    const there = rows[row];
    if (there < 0 || !one.n_children[row]) continue;
    /** Keys may repeat: the first goes with the first. @type {Map<string, number[]>} */
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

/** Called before anything of the new view is on the screen. @param {View} before @param {View} view @param {Int32Array} rows */
export function carry(before, view, rows) {
  /** A row that is gone gives its place to what it was in. */
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
    if (old) column.hidden = old.hidden;
  }
  const { column, descending } = before.sorting;
  const sorted = column && [view.key_column, ...view.columns].find(({ name }) => name === column.name);
  if (sorted) view.sort(sorted, descending);
  if (before.history && view.history) view.history.take_over(before.history);

  const was_in = /** @type {ShadowRoot} */ (before.root.getRootNode()).activeElement;
  const in_search = was_in === before.search_box;
  const in_tree = was_in === before.grid.tree;
  const query = before.search_box.value;
  const { filtering } = before.rows;
  const { scrollTop } = before.grid.element;
  const first = before.rows.count ? before.rows.visible[before.grid.first ?? 0] : 0;
  const offset = scrollTop + before.grid.shift - (before.grid.first ?? 0) * ROW_HEIGHT;
  const detailed = before.detailed < 0 ? -1 : rows[before.detailed];
  view.when_shown = () => {
    if (query) {
      view.search_box.value = query;
      view.search(query);
      if (!filtering && view.rows.hits) view.set_filtering(false);
    }
    view.rows.update();
    if (detailed >= 0) view.show_detail(detailed);
    view.grid.paint(true);
    view.grid.scroll_so(view.rows.index(stay(first)), offset);
    if (in_search) view.search_box.focus();
    else if (in_tree) view.grid.tree.focus({ preventScroll: true });
  };
}
