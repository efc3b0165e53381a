// @ts-check
// What is selected, open and searched for, here and in Python. What one side does the other sees once.
import { row_of_path, rows_of_paths } from "./find_row.js";

/** @typedef {import("./view.js").View} View */
/** @typedef {import("./widget.js").Model} Model */

// In the order in which they are taken: each may depend on those before it.
const NAMES = ["expanded", "query", "selection", "value"];
const MOST_SELECTED = 10000;
const MOST_EXPANDED = 2000;

export class Traits {
  /** @param {Model} model @param {View} view @param {AbortSignal} signal */
  constructor(model, view, signal) {
    this.model = model;
    /** Rows are those of this tree. */
    this.version = model.get("_version");
    this.view = view;
    this.signal = signal;
    /** What the view showed when somebody last looked. @type {Record<string, any>} */
    this.shown = {};
    /** What the model held then. @type {Record<string, any>} */
    this.held = {};
    this.waiting = 0;
  }

  /** @param {Traits | null} before of the tree that this one replaces */
  begin(before) {
    const { model, view, signal } = this;
    // What nobody has touched meanwhile was carried over.
    const news = NAMES.filter((name) => !before || !alike(model.get(name), before.held[name]));
    for (const name of NAMES) this.held[name] = model.get(name);
    this.shown = before ? {} : this.state();
    this.take(news);
    const heard = () => this.hear();
    for (const name of NAMES) model.on(`change:${name}`, heard);
    signal.addEventListener("abort", () => {
      cancelAnimationFrame(this.waiting);
      for (const name of NAMES) model.off(`change:${name}`, heard);
    });
    const { on_change } = view;
    view.on_change = () => (on_change(), this.look_soon());
    const host = /** @type {ShadowRoot} */ (view.root.getRootNode()).host;
    host.addEventListener("treeviz-select", () => this.look_soon(), { signal });
    view.search_box.addEventListener("input", () => this.look_soon(), { signal });
    this.look_soon();
  }

  /** What the view shows, as the model says it. */
  state() {
    const { tree, rows, selected, active, search_box } = this.view;
    // The row that was gone to comes last.
    const others = [...selected].filter((row) => row !== active);
    const selection = selected.has(active) ? [...others, active] : others;
    const expanded = [];
    for (let row = 0; row < tree.n && expanded.length < MOST_EXPANDED; row++)
      if (rows.open[row] && rows.has_children(row)) expanded.push(tree.keystr(row) || tree.name);
    const row = selection.at(-1);
    const value = row === undefined ? "" : tree.keystr(row) || tree.name;
    return { query: search_box.value, expanded, selection: selection.slice(-MOST_SELECTED), value };
  }

  /** Tell the model what has changed, at the next frame: a quick hand sends one message, not fifty. */
  look_soon() {
    this.waiting ||= requestAnimationFrame(() => this.look());
  }

  look() {
    this.waiting = 0;
    const state = this.state();
    let n_changed = 0;
    for (const name of NAMES) {
      if (alike(state[name], this.shown[name])) continue;
      this.shown[name] = state[name];
      this.held[name] = state[name];
      if (alike(state[name], this.model.get(name))) continue;
      this.model.set(name, state[name]);
      n_changed++;
    }
    if (n_changed) this.view.try_to("tell Python of it", () => this.model.save_changes());
  }

  /** The model has changed, by us or by others: several of its traits may, one after the other. */
  hear() {
    queueMicrotask(() => {
      if (this.signal.aborted || this.model.get("_version") !== this.version) return;
      const news = NAMES.filter((name) => !alike(this.model.get(name), this.held[name]));
      if (news.length) this.take(news);
    });
  }

  /** Do in the view what the model says. @param {string[]} names */
  take(names) {
    const { model, view } = this;
    const { tree, rows } = view;
    for (const name of names) {
      const wanted = (this.held[name] = model.get(name));
      if (alike(wanted, this.state()[name])) continue;
      if (name === "query") {
        view.search_box.value = wanted;
        view.search(wanted);
      } else if (name === "expanded") {
        if (!wanted) continue;
        const found = rows_of_paths(tree, wanted);
        this.#unknown(wanted.filter((_, i) => found[i] < 0));
        rows.open.fill(0);
        for (const row of found) if (row >= 0) rows.open[row] = 1;
        if (rows.hits) rows.search(rows.hits);
        // What is selected inside of what closed is not gone, but nobody stands on it.
        rows.update();
        while (view.active > 0 && rows.index(view.active) < 0) view.active = tree.parent[view.active];
        view.update(view.active);
      } else if (name === "selection") {
        const known = wanted.filter((row) => Number.isInteger(row) && row >= 0 && row < tree.n);
        if (known.length < wanted.length) view.complain(`selection: there are rows 0 to ${tree.n - 1}`);
        select(view, known);
      } else if (wanted === "") {
        if (!names.includes("selection")) select(view, []);
      } else {
        const row = row_of_path(tree, wanted);
        if (row < 0) this.#unknown([wanted]);
        else select(view, [row]);
      }
      this.shown[name] = this.state()[name];
    }
  }

  #unknown(paths) {
    if (!paths.length) return;
    const more = paths.length > 1 ? ` (and ${paths.length - 1} more)` : "";
    this.view.complain(`there is no ${String(paths[0]).slice(0, 200)} in ${this.view.tree.name}${more}`);
  }
}

/** @param {View} view @param {number[]} chosen the last one is gone to */
function select(view, chosen) {
  const last = chosen.at(-1);
  if (last === undefined) {
    view.selected = new Set();
    view.show_detail(-1);
    view.update();
  } else {
    view.go_to(last);
    view.selected = new Set(chosen);
    view.grid.paint(true);
  }
}

const alike = (a, b) => a === b || (Array.isArray(a) && Array.isArray(b) && a.length === b.length && a.every((one, i) => one === b[i]));
