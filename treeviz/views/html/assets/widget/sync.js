// @ts-check
// Keeps the selection, the open nodes and the query equal in the view and in Python, with one message for each change.
import { showError } from "./requests.js";

/** @typedef {import("../tree/view.js").View} View */
/** @typedef {import("../tree/tree.js").Tree} Tree */
/** @typedef {import("./widget.js").Model} Model */

// In the order in which they are applied: each may depend on those before it.
const NAMES = ["expanded", "query", "selection", "value"];
const MAX_SELECTED = 10000;
const MAX_EXPANDED = 2000;
// For this many paths or more, the paths of all nodes are built once.
const MANY = 20;

export class TraitSync {
  /** @param {Model} model @param {View} view @param {AbortSignal} signal */
  constructor(model, view, signal) {
    this.model = model;
    /** The version of the tree whose rows these are. */
    this.version = model.get("_version");
    this.view = view;
    this.signal = signal;
    /** The state of the view at the last poll. @type {Record<string, any>} */
    this.shown = {};
    /** The state of the model at the last poll. @type {Record<string, any>} */
    this.held = {};
    this.waiting = 0;
  }

  /** @param {TraitSync | null} before of the tree that this one replaces */
  begin(before) {
    const { model, view, signal } = this;
    // transferState applied what did not change meanwhile.
    const news = NAMES.filter((name) => !before || !alike(model.get(name), before.held[name]));
    for (const name of NAMES) this.held[name] = model.get(name);
    this.shown = before ? {} : this.state();
    this.take(news);
    const onModelChange = () => this.onModelChange();
    for (const name of NAMES) model.on(`change:${name}`, onModelChange);
    signal.addEventListener("abort", () => {
      cancelAnimationFrame(this.waiting);
      for (const name of NAMES) model.off(`change:${name}`, onModelChange);
    });
    view.on("change", () => this.pollSoon());
    view.on("select", () => this.pollSoon());
    view.searchBox.addEventListener("input", () => this.pollSoon(), { signal });
    this.pollSoon();
  }

  /** The state of the view, in the form of the model. */
  state() {
    const { tree, rows, selected, active, searchBox } = this.view;
    // The active row comes last.
    const others = [...selected].filter((row) => row !== active);
    const selection = selected.has(active) ? [...others, active] : others;
    const expanded = [];
    for (let row = 0; row < tree.n && expanded.length < MAX_EXPANDED; row++)
      if (rows.open[row] && rows.hasChildren(row)) expanded.push(tree.keystr(row) || tree.name);
    const row = selection.at(-1);
    const value = row === undefined ? "" : tree.keystr(row) || tree.name;
    return { query: searchBox.value, expanded, selection: selection.slice(-MAX_SELECTED), value };
  }

  /** Send changes to the model in the next frame, so that quick key presses are one message and not fifty. */
  pollSoon() {
    this.waiting ||= requestAnimationFrame(() => this.poll());
  }

  poll() {
    this.waiting = 0;
    const state = this.state();
    let nChanged = 0;
    for (const name of NAMES) {
      if (alike(state[name], this.shown[name])) continue;
      this.shown[name] = state[name];
      this.held[name] = state[name];
      if (alike(state[name], this.model.get(name))) continue;
      this.model.set(name, state[name]);
      nChanged++;
    }
    try {
      if (nChanged) this.model.save_changes();
    } catch (error) {
      showError(this.view, `cannot send this to Python: ${/** @type {Error} */ (error).message}`);
    }
  }

  /** Apply changes of the model. The microtask runs when all traits of one message are set. */
  onModelChange() {
    queueMicrotask(() => {
      if (this.signal.aborted || this.model.get("_version") !== this.version) return;
      const news = NAMES.filter((name) => !alike(this.model.get(name), this.held[name]));
      if (news.length) this.take(news);
    });
  }

  /** Apply traits of the model to the view. @param {string[]} names */
  take(names) {
    const { model, view } = this;
    const { tree, rows } = view;
    for (const name of names) {
      const wanted = (this.held[name] = model.get(name));
      if (alike(wanted, this.state()[name])) continue;
      if (name === "query") {
        view.searchBox.value = wanted;
        view.search.run(wanted);
      } else if (name === "expanded") {
        if (!wanted) continue;
        const found = rowsOfPaths(tree, wanted);
        this.#unknown(wanted.filter((_, i) => found[i] < 0));
        rows.open.fill(0);
        for (const row of found) if (row >= 0) rows.open[row] = 1;
        if (rows.hits) rows.search(rows.hits);
        // Rows inside closed nodes stay selected, but cannot be active.
        rows.update();
        while (view.active > 0 && rows.index(view.active) < 0) view.active = tree.parent[view.active];
        view.update(view.active);
      } else if (name === "selection") {
        const known = wanted.filter((row) => Number.isInteger(row) && row >= 0 && row < tree.n);
        if (known.length < wanted.length) showError(view, `selection: rows are numbered 0 to ${tree.n - 1}`);
        select(view, known);
      } else if (wanted === "") {
        if (!names.includes("selection")) select(view, []);
      } else {
        const row = rowOfPath(tree, wanted);
        if (row < 0) this.#unknown([wanted]);
        else select(view, [row]);
      }
      this.shown[name] = this.state()[name];
    }
  }

  #unknown(paths) {
    if (!paths.length) return;
    const more = paths.length > 1 ? ` (and ${paths.length - 1} more)` : "";
    showError(this.view, `there is no ${String(paths[0]).slice(0, 200)} in ${this.view.tree.name}${more}`);
  }
}

/** @param {View} view @param {number[]} chosen the last one is gone to */
function select(view, chosen) {
  const last = chosen.at(-1);
  if (last === undefined) {
    view.selected = new Set();
    view.showDetail(-1);
    view.update();
  } else {
    view.goTo(last);
    view.selected = new Set(chosen);
    view.grid.paint(true);
  }
}

const alike = (a, b) => a === b || (Array.isArray(a) && Array.isArray(b) && a.length === b.length && a.every((one, i) => one === b[i]));

/** The first row with this keystr, or the root by its name; -1 if there is none. @param {Tree} tree @param {string} text */
export function rowOfPath(tree, text) {
  if (text === "" || text === tree.name) return 0;
  const waiting = [[0, 0]];
  for (let next; (next = waiting.pop()); ) {
    const [above, at] = next;
    const below = [];
    for (let row = above + 1; row < tree.end[above]; row = tree.end[row]) {
      const { keystr } = tree.key(row);
      if (!keystr || !text.startsWith(keystr, at)) continue;
      if (at + keystr.length === text.length) return row;
      below.push([row, at + keystr.length]);
    }
    waiting.push(...below.reverse());
  }
  return -1;
}

/** `rowOfPath` of many paths. @param {Tree} tree @param {string[]} paths @returns {number[]} */
export function rowsOfPaths(tree, paths) {
  if (paths.length < MANY) return paths.map((path) => rowOfPath(tree, path));
  const texts = [""];
  const rows = new Map([["", 0], [tree.name, 0]]);
  for (let row = 1; row < tree.n; row++) {
    if (!tree.nChildren[row]) continue;
    texts[row] = texts[tree.parent[row]] + tree.key(row).keystr;
    if (!rows.has(texts[row])) rows.set(texts[row], row);
  }
  return paths.map((path) => rows.get(path) ?? rowOfPath(tree, path));
}
