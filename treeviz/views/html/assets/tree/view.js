// @ts-check
// The state of a view and what a reader can do: open, select, sort, search, copy, show details.
import { detail } from "./detail.js";
import { copy, h } from "./dom.js";
import { Grid } from "./grid.js";
import { Rows } from "./rows.js";
import { Search } from "./search.js";
import { sortRanks } from "./sorting.js";
import { WordIndex } from "./word_index.js";

/** @typedef {import("./tree.js").Tree} Tree */

/**
 * What other modules add to every view, in the order of the bundle. It is a list and no event: modules register when they are
 * loaded, before there is a view to listen to, and page.js takes the name of the last to know which pages this script shows.
 * @type {{name: string, start: (view: View) => void}[]}
 */
export const additions = [];

/** One tree on the screen: what is active, selected, sorted and open. Its events are listed in mount.js. */
export class View extends EventTarget {
  /** What a closed node says of the findings inside it; "": there are none. @type {((row: number) => string) | undefined} */
  inside;
  /** The search box, once mount.js has built the toolbar. @type {any} */
  searchBox;
  /** What is wrong, above all else; mount.js makes it. @type {any} */
  banner;
  /** Sends a request to Python; undefined: there is no Python. @type {import("../widget/requests.js").Request | undefined} */
  request;
  /** Saves the view as a page; undefined: it is one, or its scripts are not beside it. @type {(() => void) | undefined} */
  savePage;
  /** The view of the series, if the tree has any. @type {import("../series/series_view.js").SeriesView | undefined} */
  seriesView;

  /** @param {Tree} tree @param {HTMLElement} root @param {AbortSignal} signal */
  constructor(tree, root, signal) {
    super();
    this.tree = tree;
    this.root = root;
    this.signal = signal;
    this.rows = new Rows(tree);
    this.wordIndex = new WordIndex(tree);
    this.keyColumn = { name: "key", title: "name", format: "key" };
    const typeColumn = { name: "type", title: "type", format: "type" };
    /** @type {any[]} */
    this.columns = [typeColumn, ...tree.columns.filter(({ name }) => !/^(type|scalar|insertion)$/.test(name))];
    for (const column of tree.columns) if (!column.shown) column.hidden = true;
    /** @type {{column: any, descending: boolean}} */
    this.sorting = { column: null, descending: false };
    this.active = 0;
    this.anchor = 0;
    this.selected = new Set();
    this.detailed = -1;
    this.search = new Search(this);
    /** What else the menu of columns shows and hides. @type {{title: string, hidden: boolean, help?: string}[]} */
    this.panels = [];
    /** Additional parts of the details of a row. @type {(row: number) => Node[]} */
    this.moreDetail = () => [];
    this.detailPlace = h("div", { class: "side", hidden: true });
    this.grid = new Grid(this);
    // A strip of colors is of one row, not of all that it could stand for.
    this.rows.isFolding = !tree.header.series;
    this.rows.outliers = tree.header.outliers ?? [[], []];
    if (tree.header.open == null) this.rows.openFirst(weightsOf(tree));
    else this.rows.openTo(tree.header.open);
    this.rows.update();
  }

  /** Send an event to the modules that listen. @param {string} type @param {any} [detail] */
  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  /** Listen to an event until the view ends, or another signal. @param {string} type @param {(detail: any) => void} listener */
  on(type, listener, signal = this.signal) {
    this.addEventListener(type, (event) => listener(/** @type {CustomEvent} */ (event).detail), { signal });
  }

  /** Show changed state; scroll to a row if one is given. @param {number} [row] */
  update(row = -1) {
    this.rows.update();
    this.grid.layOut();
    const index = row < 0 ? -1 : this.rows.index(row);
    if (index >= 0) this.grid.scrollTo(index);
    else this.grid.paint(false);
    this.emit("change");
  }

  /** @param {number} row @param {boolean} open */
  setOpen(row, open) {
    if (!this.rows.hasChildren(row)) return;
    this.rows.opened[row] = +open;
    // The active row may be inside the node that was closed.
    if (!open && this.active > row && this.active < this.tree.end[row]) this.active = row;
    this.update();
  }

  /** @param {number} row */
  toggle(row) {
    this.setOpen(row, !this.rows.isOpen(row));
  }

  /** @param {number} depth */
  openTo(depth) {
    this.rows.openTo(depth);
    while (this.tree.depth[this.active] > depth) this.active = this.tree.parent[this.active];
    this.update(this.active);
  }

  /** Make a row active, and select it alone, in addition, or with all rows from the anchor on. @param {number} row @param {"one" | "add" | "range" | "none"} [how] */
  go(row, how = "one") {
    this.active = row;
    const { rows, selected } = this;
    const members = rows.membersOf(row);
    if (how === "one") this.selected = new Set(members);
    else if (how === "add") members.forEach((each) => selected.delete(each) || selected.add(each));
    else if (how === "range") {
      const [from, to] = [rows.index(this.anchor), rows.index(row)].sort((a, b) => a - b);
      this.selected = new Set([...rows.visible.subarray(Math.max(0, from), to + 1)].flatMap((each) => rows.membersOf(each)));
    }
    if (how !== "range") this.anchor = row;
    const index = rows.index(row);
    if (index >= 0) this.grid.scrollTo(index);
    if (how === "one" && this.detailed !== row) this.showDetail(row);
    if (how !== "none") this.emit("select");
  }

  /** Go to a row, also if it is in a closed node or filtered out. @param {number} row */
  goTo(row) {
    this.rows.reveal(row);
    this.update(row);
    this.go(row);
  }

  /** @param {number} row -1: none */
  showDetail(row) {
    const focused = /** @type {ShadowRoot} */ (this.root.getRootNode()).activeElement;
    this.detailed = row;
    if (this.detailPlace.contains(focused)) this.grid.tree.focus({ preventScroll: true });
    this.detailPlace.replaceChildren(...(row < 0 ? [] : [detail(this, row)]));
    this.root.classList.toggle("detailed", !(this.detailPlace.hidden = row < 0));
    this.grid.fit();
    this.emit("detail", row);
  }

  /** Sort siblings by a column: first one way, then the other, then as in the tree. @param {any} column */
  sortBy(column) {
    const { sorting } = this;
    const first = !!column.isNumber;
    const isNew = sorting.column !== column;
    if (isNew || sorting.descending === first) this.sort(column, isNew === first);
    else this.sort(null, false);
    this.grid.paintHead();
    this.update(this.active);
  }

  /** Sort siblings by a column; null: as in the tree. @param {any} column @param {boolean} descending */
  sort(column, descending) {
    this.sorting = { column, descending };
    this.rows.isInserted = column?.name === "insertion";
    this.rows.sort(column && sortRanks(this.tree, column), descending);
  }

  /** Fold all runs of similar siblings, or none. @param {boolean} isFolding */
  setFolding(isFolding) {
    const { rows } = this;
    rows.isFolding = isFolding;
    rows.unfolded.clear();
    rows.folds = null;
    rows.fold();
    // The active row may be folded now.
    if (rows.folds) this.active = rows.folds.standsFor(this.active);
    this.update(this.active);
  }

  /** Show the rows that are None, or count them below the tree. @param {boolean} shown */
  showBlanks(shown) {
    const { rows, tree } = this;
    rows.unfolded[shown ? "add" : "delete"](tree.blanks[0]);
    rows.folds = null;
    rows.fold();
    if (rows.folds?.isHidden[this.active]) this.active = tree.parent[this.active];
    this.update(this.active);
  }

  /** Show only leaves, in one list: by a column, or that by which the tree is sorted, or the largest first. @param {boolean} isFlat @param {any} [by] */
  setFlat(isFlat, by) {
    if (by) this.sorting = { column: by, descending: by.isNumber };
    const { rows, sorting } = this;
    rows.isFlat = isFlat;
    const bytes = this.tree.column("bytes");
    if (isFlat && !sorting.column && bytes) this.sort(bytes, true);
    else if (!isFlat && sorting.column === bytes) this.sort(null, false);
    else this.sort(sorting.column, sorting.descending);
    if (isFlat && rows.place && rows.place[this.active] >= rows.nLeaves) this.active = rows.order?.[0] ?? 0;
    this.grid.paintHead();
    this.update(this.active);
  }

  /** Show a text in the line above the rows, and a query that can be chosen there. @param {string} text @param {string} [query] @param {string} [name] of the query */
  setStatus(text, isError = false, query, name = query) {
    this.emit("status", { text, isError, query, name });
  }

  /** @param {string} text */
  async copy(text) {
    this.setStatus((await copy(text, this.root)) ? "copied" : "this browser blocks copying");
    setTimeout(() => this.search.showCount(), 1500);
  }

  /** The selected rows, or else the active one. */
  get chosen() {
    return this.selected.size ? [...this.selected].sort((a, b) => a - b) : [this.active];
  }

  /** Select all rows that match the search. */
  selectMatches() {
    this.selected = new Set(this.rows.matches());
    this.grid.paint(false);
    this.emit("select");
  }
}

/** How much is in each subtree: bytes, or else leaves, or else children. @param {Tree} tree @returns {ArrayLike<number>} */
function weightsOf(tree) {
  const bytes = tree.column("bytes")?.values;
  return bytes?.[0] > 0 ? bytes : tree.column("leaves")?.values ?? tree.nChildren;
}
