// @ts-check
// What is looked at, and what can be done with it.
import { detail } from "./detail.js";
import { copy, h } from "./dom.js";
import { Grid } from "./grid.js";
import { wholeText } from "./numbers.js";
import { matches } from "./query.js";
import { Rows } from "./rows.js";
import { Index } from "./words.js";

/** @typedef {import("./payload.js").Tree} Tree */

/** What other modules add to every view when it has been put together. @type {{name: string, start: (view: View) => void}[]} */
export const additions = [];

export class View {
  /** @param {Tree} tree @param {HTMLElement} root @param {AbortSignal} signal */
  constructor(tree, root, signal) {
    this.tree = tree;
    this.root = root;
    this.signal = signal;
    this.rows = new Rows(tree);
    this.index = new Index(tree);
    this.key_column = { name: "key", title: "key", format: "key", help: "" };
    const type_column = { name: "type", title: "type", format: "type", help: "", hidden: false };
    /** @type {any[]} */
    this.columns = [type_column, ...tree.columns.filter((column) => column.name !== "type")];
    for (const column of tree.columns) column.hidden = !column.shown;
    this.sorting = { column: null, descending: false };
    this.active = 0;
    this.anchor = 0;
    this.selected = new Set();
    this.detailed = -1;
    /** @type {string | null} a query that waits for the next frame */
    this.asked = null;
    /** @type {(text: string, is_error?: boolean) => void} */
    this.say = () => {};
    /** @type {() => void} */
    this.on_change = () => {};
    /** @type {(row: number) => Node[]} what stands in a row's detail in addition */
    this.more_detail = () => [];
    /** What a closed node says of the rows inside it: its kind, in words, and the way there. @type {(row: number) => {kind: string, text: string, go: () => void} | null} */
    this.inside = () => null;
    /** @type {HTMLInputElement | null} */
    this.search_box = null;
    /** Ask Python, where there is one: an operation and integers. @type {((operation: string, numbers: number[]) => Promise<import("./requests.js").Answer | null>) | null} */
    this.request = null;
    /** What is done with the messages that Python sends by itself, by their operation. @type {Map<string, (message: any, buffers: DataView[]) => void>} */
    this.told = new Map();
    /** What there is over time. @type {import("./history.js").History | null} */
    this.history = null;
    /** Where what went wrong is kept for the reader. @type {{add: (text: string) => void} | null} */
    this.journal = null;
    this.when_shown = () => {};
    /** Rows that have just changed, and how many of them stand before each row. @type {{changed: Uint8Array, before: Int32Array} | null} */
    this.flashing = null;
    this.is_worried = false;
    this.detail_place = h("div", { class: "side", hidden: true });
    this.grid = new Grid(this);
    this.rows.open_to(tree.header.open ?? this.rows.depth_for(30));
    this.rows.update();
  }

  /** Show what has changed, with a row on the screen. @param {number} [row] */
  update(row = -1) {
    this.rows.update();
    const index = row < 0 ? -1 : this.rows.index(row);
    if (index >= 0) this.grid.scroll_to(index);
    else this.grid.paint(true);
    this.on_change();
  }

  /** @param {number} row @param {boolean} open */
  set_open(row, open) {
    if (!this.rows.has_children(row)) return;
    this.rows.opened[row] = +open;
    // The active row may have gone out of sight with what was closed.
    if (!open && this.active > row && this.active < this.tree.end[row]) this.active = row;
    this.update();
  }

  /** @param {number} row */
  toggle(row) {
    this.set_open(row, !this.rows.is_open(row));
  }

  /** @param {number} depth */
  open_to(depth) {
    this.rows.open_to(depth);
    while (this.tree.depth[this.active] > depth) this.active = this.tree.parent[this.active];
    this.update(this.active);
  }

  /** Make a row the active one, and select it: alone, in addition, or with all rows between. @param {number} row @param {"one" | "add" | "range" | "none"} [how] */
  go(row, how = "one") {
    this.active = row;
    if (how === "one") this.selected = new Set([row]);
    else if (how === "add" && !this.selected.delete(row)) this.selected.add(row);
    else if (how === "range") {
      const [from, to] = [this.rows.index(this.anchor), this.rows.index(row)].sort((a, b) => a - b);
      this.selected = new Set(this.rows.visible.subarray(Math.max(0, from), to + 1));
    }
    if (how !== "range") this.anchor = row;
    const index = this.rows.index(row);
    if (index >= 0) this.grid.scroll_to(index);
    if (how === "one" && this.detailed !== row) this.show_detail(row);
    if (how !== "none")
      /** @type {ShadowRoot} */ (this.root.getRootNode()).host.dispatchEvent(
        new CustomEvent("treeviz-select", { detail: { rows: [...this.selected] } }),
      );
  }

  /** Go to a row wherever it is. @param {number} row */
  go_to(row) {
    this.rows.reveal(row);
    this.update(row);
    this.go(row);
  }

  /** @param {number} row -1: none */
  show_detail(row) {
    const focused = /** @type {ShadowRoot} */ (this.root.getRootNode()).activeElement;
    this.detailed = row;
    if (this.detail_place.contains(focused)) this.grid.tree.focus({ preventScroll: true });
    this.detail_place.replaceChildren(...(row < 0 ? [] : [detail(this, row)]));
    if (this.detail_place.hidden !== row < 0) {
      this.detail_place.hidden = row < 0;
      this.grid.resize();
      this.grid.scroll_to(this.rows.index(this.active));
    }
  }

  /** Make the texts ready, and have the browser compile the search, while nobody waits for it. */
  warm_up() {
    this.index.warm();
    const rows = new Rows(this.tree);
    rows.search(matches(this.tree, this.index, "a"));
    rows.update();
  }

  /** Search at the next frame: a quick hand is not slowed down. @param {string} query */
  ask(query) {
    if (this.asked === null) requestAnimationFrame(() => this.settle());
    this.asked = query;
  }

  /** Search for what was asked for, if that is still to be done. */
  settle() {
    const { asked } = this;
    this.asked = null;
    if (asked !== null) this.search(asked);
  }

  /** Search; a query that cannot be read leaves what is shown as it is. @param {string} query */
  search(query) {
    try {
      this.rows.search(query.trim() ? matches(this.tree, this.index, query) : null);
    } catch (error) {
      this.say(/** @type {Error} */ (error).message, true);
      return;
    }
    if (this.rows.hits && !this.rows.hits[this.active]) this.active = Math.max(0, this.rows.next_hit(0, 1));
    // What was gone to stays in sight when the search ends.
    else if (!this.rows.hits && this.selected.has(this.active)) this.rows.reveal(this.active);
    this.rows.update();
    if (this.rows.index(this.active) < 0) this.active = 0;
    this.update(this.active);
    this.say_count();
  }

  /** Lift the filter, or put it back. @param {boolean} filtering */
  set_filtering(filtering) {
    this.rows.filtering = filtering;
    if (this.rows.hits) this.rows.reveal(this.active);
    this.update(this.active);
  }

  say_count() {
    const { hits, n_hits } = this.rows;
    if (!hits) this.say("");
    else if (!n_hits) this.say("no match");
    else {
      const here = hits[this.active] ? `${wholeText(this.rows.hit_number(this.active))} of ` : "";
      this.say(`${here}${wholeText(n_hits)} ${n_hits === 1 ? "match" : "matches"}`);
    }
  }

  /** @param {1 | -1} step */
  next_hit(step) {
    this.settle();
    const row = this.rows.next_hit(this.active, step);
    if (row < 0) return;
    this.go_to(row);
    this.say_count();
  }

  /** Sort siblings: one way, the other way, then in the tree's order again. @param {any} column */
  sort_by(column) {
    const { sorting } = this;
    const first = column.is_number;
    if (sorting.column !== column) this.sort(column, !!first);
    else if (sorting.descending === !!first) this.sort(column, !first);
    else this.sort(null, false);
    this.grid.paint_head();
    this.update(this.active);
  }

  /** Put siblings in the order of a column; null: in the tree's own. @param {any} column @param {boolean} descending */
  sort(column, descending) {
    this.sorting = { column, descending };
    this.rows.sort(column && this.#ranks(column), descending);
  }

  /** A number for each row by which a column can be sorted. */
  #ranks(column) {
    const { tree } = this;
    if (column.is_number) return column.values;
    const { compare } = new Intl.Collator("en", { numeric: true });
    const ranks = (texts) => {
      const order = texts.map((_, i) => i).sort((a, b) => compare(texts[a], texts[b]));
      const rank = new Float64Array(texts.length);
      order.forEach((i, place) => (rank[i] = place && !compare(texts[order[place - 1]], texts[i]) ? rank[order[place - 1]] : place));
      return rank;
    };
    const of_rows = (rank_of) => Float64Array.from({ length: tree.n }, (_, row) => rank_of(row));
    if (column.format === "key") {
      const rank = ranks(tree.keys.map((_, code) => (code ? this.index.key(code).label : "")));
      return of_rows((row) => (tree.key_codes[row] ? tree.n + rank[tree.key_codes[row]] : tree.position[row]));
    }
    if (column.format === "type") {
      const rank = ranks(Array.from({ length: tree.n_facts }, (_, code) => tree.fact(code, "what")));
      return of_rows((row) => rank[tree.fact_codes[row]]);
    }
    if (column.format === "histogram") return of_rows((row) => column.bars(row).reduce((sum, height) => sum + height, 0));
    const rank = ranks(column.labels);
    return of_rows((row) => rank[column.levels[column.codes ? column.codes[row] : row]]);
  }

  /** Say what went wrong, and keep it. @param {string} text */
  complain(text) {
    this.is_worried = true;
    this.say(text);
    this.journal?.add(text);
  }

  /** What was complained of is over. */
  calm() {
    if (this.is_worried) this.say_count();
    this.is_worried = false;
  }

  /** @param {string} what @param {() => void} action */
  try_to(what, action) {
    try {
      action();
    } catch (error) {
      this.complain(`could not ${what}: ${/** @type {Error} */ (error).message}`);
    }
  }

  /** Show for a while which rows have changed. @param {Uint8Array} changed @param {number} duration_ms */
  flash(changed, duration_ms) {
    const before = new Int32Array(changed.length + 1);
    changed.forEach((is_changed, row) => (before[row + 1] = before[row] + is_changed));
    const flashing = (this.flashing = { changed, before });
    this.grid.paint(true);
    const end = () => {
      if (this.flashing !== flashing) return;
      this.flashing = null;
      this.grid.paint(true);
    };
    const timer = setTimeout(end, duration_ms);
    this.signal.addEventListener("abort", () => clearTimeout(timer));
  }

  /** A closed row stands for all that is in it. @param {number} row */
  is_flashing(row) {
    if (!this.flashing) return false;
    const { changed, before } = this.flashing;
    return this.rows.is_open(row) ? changed[row] === 1 : before[this.tree.end[row]] > before[row];
  }

  /** @param {string} text */
  async copy(text) {
    this.say((await copy(text, this.root)) ? "copied" : "this browser does not let us copy");
    setTimeout(() => this.say_count(), 1500);
  }

  /** Copy the paths of the selected rows. @param {"expression" | "keystr"} form */
  copy_paths(form) {
    const rows = this.selected.size ? [...this.selected].sort((a, b) => a - b) : [this.active];
    return this.copy(rows.map((row) => this.tree[form](row)).join("\n"));
  }
}
