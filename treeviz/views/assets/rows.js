// @ts-check
// Which rows are in sight, and in which order.

/** @typedef {import("./payload.js").Tree} Tree */

export class Rows {
  /** @param {Tree} tree */
  constructor(tree) {
    const { n } = tree;
    this.tree = tree;
    /** The rows in sight: the first `count`. */
    this.visible = new Int32Array(n);
    this.count = 0;
    /** Which nodes are open; while a filter is on, `open_filtered` counts. */
    this.open = new Uint8Array(n);
    this.open_filtered = new Uint8Array(n);
    /** The rows in the order of the sort, and each row's place in it; null: the tree's order. @type {Int32Array | null} */
    this.order = null;
    /** @type {Int32Array | null} */
    this.place = null;
    /** Search: the rows that match, what is kept with them, and whole subtrees that match. @type {Uint8Array | null} */
    this.hits = null;
    this.kept = new Uint8Array(n);
    this.whole = new Uint8Array(n);
    this.n_hits = 0;
    this.filtering = true;
    /** For ARIA: the place of each row in sight among its siblings, and how many children are in sight. */
    this.place_among = new Int32Array(n);
    this.n_seen = new Int32Array(n + 1);
  }

  get filtered() {
    return this.filtering && this.hits !== null;
  }

  get opened() {
    return this.filtered ? this.open_filtered : this.open;
  }

  /** Also with a filter: a kept node has kept children. @param {number} row */
  has_children(row) {
    return this.tree.end[row] > row + 1;
  }

  /** @param {number} row */
  is_open(row) {
    return this.opened[row] === 1 && this.has_children(row);
  }

  /** Work out again what is in sight. Linear in it. */
  update() {
    const { tree, visible, order, place_among, n_seen } = this;
    const { n, end, parent } = tree;
    const kept = this.filtered ? this.kept : null;
    const open = this.opened;
    let count = 0;
    n_seen.fill(0);
    for (let at = 0; at < n; ) {
      const row = order ? order[at] : at;
      const size = end[row] - row;
      if (kept && !kept[row]) {
        at += size;
        continue;
      }
      visible[count++] = row;
      place_among[row] = ++n_seen[parent[row] + 1];
      at += open[row] ? 1 : size;
    }
    this.count = count;
  }

  /** The place in sight of a row, or -1. @param {number} row */
  index(row) {
    return this.visible.subarray(0, this.count).indexOf(row);
  }

  /** Open the levels above `depth`. @param {number} depth */
  open_to(depth) {
    const { n, depth: depths } = this.tree;
    for (let row = 0; row < n; row++) this.opened[row] = +(depths[row] < depth);
  }

  /** The largest depth that shows at most `n` rows, and at least the root's children. @param {number} n */
  depth_for(n) {
    const { depth, max_depth } = this.tree;
    const counts = new Uint32Array(max_depth + 1);
    for (const d of depth) counts[d]++;
    let fits = 0;
    for (let shown = counts[0]; fits < max_depth && (shown += counts[fits + 1]) <= n; ) fits++;
    return Math.max(1, fits);
  }

  /** Open what is above a row; the filter is lifted if it hides it. @param {number} row */
  reveal(row) {
    if (this.filtered && !this.kept[row]) this.filtering = false;
    for (let above = this.tree.parent[row]; above >= 0; above = this.tree.parent[above]) this.opened[above] = 1;
  }

  /** Take the rows that match a search (null: none is asked for). @param {Uint8Array | null} hits */
  search(hits) {
    this.hits = hits;
    this.n_hits = 0;
    if (!hits) return;
    const { n, parent, end } = this.tree;
    const { kept, whole, open, open_filtered } = this;
    const n_inside = new Int32Array(n);
    for (let row = n - 1; row >= 0; row--) {
      n_inside[row] += hits[row];
      if (row) n_inside[parent[row]] += n_inside[row];
    }
    this.n_hits = n_inside[0];
    for (let row = 0; row < n; row++) {
      const above = parent[row];
      // What is inside a hit can be looked into, unless hits below it say what of it is wanted.
      const in_hit = row > 0 && kept[above] && n_inside[above] === hits[above];
      kept[row] = +(n_inside[row] > 0 || in_hit);
      whole[row] = +(n_inside[row] === end[row] - row);
      open_filtered[row] = whole[row] ? open[row] : +(n_inside[row] > hits[row]);
    }
  }

  /** The next row that matches, or the one before; -1 if there is none. Goes round at the ends. @param {number} row @param {1 | -1} step */
  next_hit(row, step) {
    const { hits, order, place, whole } = this;
    const { n, end } = this.tree;
    if (!hits || !this.n_hits) return -1;
    let at = row < 0 ? -1 : place ? place[row] : row;
    // A subtree that matches as a whole is one step while it is closed.
    if (step > 0 && row >= 0 && whole[row] && !this.opened[row]) at += end[row] - row - 1;
    for (let tried = 0; tried <= n; tried++) {
      at = (at + step + n) % n;
      let next = order ? order[at] : at;
      if (!hits[next]) continue;
      for (let above = this.tree.parent[next]; above >= 0 && whole[above]; above = this.tree.parent[above])
        if (!this.opened[above]) next = above;
      return next;
    }
    return -1;
  }

  /** How many hits stand before a row. @param {number} row */
  hit_number(row) {
    const { hits, order, place } = this;
    let count = 0;
    for (let at = place ? place[row] : row; hits && at >= 0; at--) count += hits[order ? order[at] : at];
    return count;
  }

  /** Order siblings by a number each; what has none comes last. @param {ArrayLike<number> | null} values @param {boolean} descending */
  sort(values, descending) {
    if (!values) {
      this.order = this.place = null;
      return;
    }
    const { n, end } = this.tree;
    const place = new Int32Array(n);
    const order = new Int32Array(n);
    const sign = descending ? -1 : 1;
    const compare = (a, b) => {
      const x = values[a];
      const y = values[b];
      if (x === y) return a - b;
      return x !== x ? (y !== y ? a - b : 1) : y !== y ? -1 : sign * (x - y);
    };
    for (let row = 0; row < n; row++) {
      order[place[row]] = row;
      const children = [];
      for (let child = row + 1; child < end[row]; child = end[child]) children.push(child);
      let at = place[row] + 1;
      for (const child of children.length > 1 ? children.sort(compare) : children) {
        place[child] = at;
        at += end[child] - child;
      }
    }
    this.order = order;
    this.place = place;
  }
}
