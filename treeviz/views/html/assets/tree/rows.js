// @ts-check
// Which rows are visible (open and not filtered out), and in which order.
import { Folds } from "./folds.js";

/** @typedef {import("./tree.js").Tree} Tree */

const MAX_MEMBERS = 1000;
const FEW = 20;

export class Rows {
  /** @param {Tree} tree */
  constructor(tree) {
    const { n } = tree;
    this.tree = tree;
    /** The visible rows: the first `count` numbers. */
    this.visible = new Int32Array(n);
    /** Counts how often the visible rows were computed. */
    this.version = 0;
    this.count = 0;
    /** Which nodes are open, without and with a filter. */
    this.open = new Uint8Array(n);
    this.openFiltered = new Uint8Array(n);
    /** The rows in sorted order, and the index of each row in it; null: in the order of the tree. @type {Int32Array | null} */
    this.order = null;
    /** @type {Int32Array | null} */
    this.place = null;
    /** The rows that match the search (null: there is no search), the rows that the filter keeps, and the subtrees that match entirely. @type {Uint8Array | null} */
    this.hits = null;
    this.kept = new Uint8Array(n);
    this.whole = new Uint8Array(n);
    this.nHits = 0;
    this.filtering = true;
    /** Whether only leaves are visible, sorted over the whole tree. */
    this.isFlat = false;
    this.nLeaves = 0;
    /** The runs of similar siblings that one row stands for, while they are folded. @type {Folds | null} */
    this.folds = null;
    this.isFolding = true;
    this.hasRuns = false;
    /** Whether dicts are sorted as they were written. */
    this.isInserted = false;
    /** The first rows of runs that a reader has unfolded. @type {Set<number>} */
    this.unfolded = new Set();
    /** The rows that stand out of runs: with a finding or an error, worst first; with NaN. @type {[number[], number[]]} */
    this.outliers = [[], []];
    /** The member that stands out of the run of a row by its norm. @type {(row: number) => {row: number, text: string} | null} */
    this.outlierOf = () => null;
    /** For ARIA: the position of each visible row among its visible siblings, and the number of visible children. */
    this.placeAmong = new Int32Array(n);
    this.nSeen = new Int32Array(n + 1);
  }

  get filtered() {
    return this.filtering && this.hits !== null;
  }

  get opened() {
    return this.filtered ? this.openFiltered : this.open;
  }

  /** Also right with a filter, since a node that is kept has children that are kept. @param {number} row */
  hasChildren(row) {
    return !this.isFlat && this.tree.end[row] > row + 1;
  }

  /** @param {number} row */
  isOpen(row) {
    return this.opened[row] === 1 && this.hasChildren(row);
  }

  /** Fold the runs anew. In a list that is sorted or searched each member has a place of its own. */
  fold() {
    const folds = (this.isFolding || this.tree.blanks.length) && (!this.order || this.isInserted) && !this.filtered && !this.isFlat;
    if (folds && !this.folds) {
      this.folds = new Folds(this, ...this.outliers);
      this.hasRuns ||= this.folds.runs.size > 0;
    }
    if (!folds) this.folds = null;
  }

  /** Whether a line counts the rows that are None. */
  get hidesBlanks() {
    const [first] = this.tree.blanks;
    return !!this.folds?.isHidden[first];
  }

  /** Show the members of the run that a row is in, or in which it is hidden: the outermost one. @param {number} row */
  unfold(row) {
    let member = row;
    for (let above = row; above > 0; above = this.tree.parent[above]) if (this.folds?.isHidden[above]) member = above;
    for (const { rows, start } of this.folds?.runs.values() ?? []) if (rows.includes(member)) this.unfolded.add(start);
    if (this.tree.blanks.includes(member)) this.unfolded.add(this.tree.blanks[0]);
    this.folds = null;
    this.fold();
  }

  /** The rows that are selected with one: those that it stands for, if they are not too many. @param {number} row */
  membersOf(row) {
    const rows = this.folds?.of(row);
    return rows && rows.length <= MAX_MEMBERS ? rows : [row];
  }

  /** The name of a row where it is shown. @param {number} row */
  label(row) {
    return this.isFlat ? this.tree.keystr(row) || this.tree.name : this.folds?.runs.get(row)?.label ?? this.tree.label(row);
  }

  /** The level at which a row is shown. @param {number} row */
  depth(row) {
    return this.isFlat ? 0 : this.tree.depth[row];
  }

  /** Open the root, and then the closed node that weighs most, until so many rows are visible. @param {ArrayLike<number>} weights @param {number} nRows */
  openFirst(weights, nRows = 25) {
    this.fold();
    const { end } = this.tree;
    const closed = [0];
    for (let nVisible = 1; closed.length && nVisible < Math.max(2, nRows); ) {
      closed.sort((a, b) => weights[b] - weights[a] || a - b);
      const node = /** @type {number} */ (closed.shift());
      this.open[node] = 1;
      for (let child = node + 1; child < end[node]; child = end[child]) {
        if (this.folds?.isHidden[child]) continue;
        nVisible++;
        if (end[child] > child + 1 && !this.tree.mirrors.includes(child)) closed.push(child);
      }
    }
  }

  /** Compute the visible rows; the cost is linear in their number. */
  update() {
    this.fold();
    const isHidden = this.folds?.isHidden;
    const { tree, visible, order, placeAmong, nSeen } = this;
    const { n, end, parent } = tree;
    const kept = this.filtered ? this.kept : null;
    const open = this.opened;
    let count = 0;
    nSeen.fill(0);
    for (let at = 0; at < (this.isFlat ? this.nLeaves : n); ) {
      const row = order ? order[at] : at;
      const size = this.isFlat ? 1 : end[row] - row;
      if (isHidden?.[row] || (kept && !kept[row])) {
        at += size;
        continue;
      }
      visible[count++] = row;
      placeAmong[row] = ++nSeen[parent[row] + 1];
      at += open[row] ? 1 : size;
    }
    this.count = count;
    this.version++;
  }

  /** The index of a row among the visible rows, or -1. @param {number} row */
  index(row) {
    return this.visible.subarray(0, this.count).indexOf(row);
  }

  /** Open all nodes above a depth, and close the others. @param {number} depth */
  openTo(depth) {
    const { opened, tree: { n, depth: depths } } = this;
    for (let row = 0; row < n; row++) opened[row] = +(depths[row] < depth);
  }

  /** Open the ancestors of a row, and switch the filter off if it hides the row. @param {number} row */
  reveal(row) {
    if (this.filtered && !this.kept[row]) this.filtering = false;
    if (this.isFlat && !this.tree.of(row, "is_leaf")) {
      this.isFlat = false;
      this.order = this.place = null;
    }
    for (let above = this.tree.parent[row]; above >= 0; above = this.tree.parent[above]) this.opened[above] = 1;
    this.fold();
    while (this.folds?.isHidden[row]) this.unfold(row);
  }

  /** The rows that match the search. @returns {number[]} */
  matches() {
    const found = [];
    this.hits?.forEach((hit, row) => hit && found.push(row));
    return found;
  }

  /** Set the rows that match a search; null ends the search. @param {Uint8Array | null} hits */
  search(hits) {
    this.hits = hits;
    this.nHits = 0;
    if (!hits) return;
    const { n, parent, end } = this.tree;
    const { kept, whole, open, openFiltered } = this;
    const nInside = new Int32Array(hits);
    for (let row = n - 1; row > 0; row--) nInside[parent[row]] += nInside[row];
    this.nHits = nInside[0];
    whole.fill(0);
    openFiltered.fill(0);
    for (let row = 0; row < n; row++) {
      const inside = nInside[row];
      const above = parent[row];
      // All rows inside a hit are kept, unless there are hits below it.
      kept[row] = +(inside > 0 || (row > 0 && kept[above] && nInside[above] === hits[above]));
      if (!inside) continue;
      whole[row] = +(inside === end[row] - row);
      openFiltered[row] = whole[row] ? open[row] : +(inside > hits[row]);
    }
  }

  /** The next or previous row that matches, continuing at the other end; -1 if there is none. @param {number} row @param {1 | -1} step */
  nextHit(row, step) {
    const { hits, order, place, whole } = this;
    const { n, end } = this.tree;
    if (!hits || !this.nHits) return -1;
    let at = row < 0 ? -1 : place ? place[row] : row;
    // A closed subtree that matches entirely counts as one match.
    if (step > 0 && row >= 0 && whole[row] && !this.opened[row]) at += end[row] - row - 1;
    for (let tried = 0; tried <= n; tried++) {
      at = (at + step + n) % n;
      let next = order ? order[at] : at;
      if (!hits[next] || (this.isFlat && at >= this.nLeaves)) continue;
      for (let above = this.tree.parent[next]; above >= 0 && whole[above] && !this.isFlat; above = this.tree.parent[above])
        if (!this.opened[above]) next = above;
      return next;
    }
    return -1;
  }

  /** The number of a hit, counted in sorted order. @param {number} row */
  hitNumber(row) {
    const { hits, order, place } = this;
    let count = 0;
    for (let at = place ? place[row] : row; hits && at >= 0; at--) count += hits[order ? order[at] : at];
    return count;
  }

  /** Sort siblings, or all leaves, by their values; NaN comes last. @param {ArrayLike<number> | null} values @param {boolean} descending */
  sort(values, descending) {
    if (!values && !this.isFlat) {
      this.order = this.place = null;
      return;
    }
    const { n, end } = this.tree;
    const place = new Int32Array(n);
    const order = new Int32Array(n);
    const sign = descending ? -1 : 1;
    const keys = new Float64Array(n);
    if (values) for (let row = 0; row < n; row++) keys[row] = values[row] === values[row] ? sign * values[row] : Infinity;
    // Equal ones stay in the order of the tree.
    const compare = (a, b) => keys[a] - keys[b];
    if (this.isFlat) {
      const leaves = [];
      const nodes = [];
      for (let row = 0; row < n; row++) (this.tree.of(row, "is_leaf") ? leaves : nodes).push(row);
      this.nLeaves = leaves.length;
      order.set(leaves.sort(compare));
      order.set(nodes, leaves.length);
      order.forEach((row, at) => (place[row] = at));
    } else {
      const children = new Int32Array(n);
      for (let row = 0; row < n; row++) {
        order[place[row]] = row;
        if (end[row] === row + 1) continue;
        let count = 0;
        for (let child = row + 1; child < end[row]; child = end[child]) {
          let i = count++;
          // Most nodes have few children: these are in order before a call of sort would begin.
          if (i < FEW) for (; i && keys[children[i - 1]] > keys[child]; i--) children[i] = children[i - 1];
          children[i] = child;
        }
        if (count > FEW) children.subarray(0, count).sort(compare);
        let at = place[row] + 1;
        for (let i = 0; i < count; i++) {
          const child = children[i];
          place[child] = at;
          at += end[child] - child;
        }
      }
    }
    this.order = order;
    this.place = place;
  }
}
