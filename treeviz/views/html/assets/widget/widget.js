// @ts-check
// The explorer: shows the tree of an anywidget model, and connects the view to Python.
import { flash, match, transferState } from "./transfer.js";
import { h } from "../tree/dom.js";
import { forget, liveOf } from "../live/run.js";
import { LivePanel } from "../live/panel.js";
import { LogPane, Requests } from "./requests.js";
import { unpack } from "../tree/tree.js";
import { savePage } from "./saving.js";
import { TraitSync } from "./sync.js";
import { show } from "../tree/mount.js";
import "../load/page.js";

const FLASH_MS = 1800;

/** @typedef {import("../tree/view.js").View} View */
/** The model that anywidget passes; all views of a widget share its state.
 * @typedef {{get: (name: string) => any, set: (name: string, value: any) => void, save_changes: () => void,
 *   on: (event: string, callback: Function) => void, off: (event: string, callback: Function) => void,
 *   send: (content: any) => void}} Model */

/** A view and what belongs to it. @typedef {{view: View, sync: TraitSync, panel: LivePanel | null, stop: AbortController}} Shown */

/** @param {{model: Model, el: HTMLElement}} context @returns {() => void} */
function render({ model, el }) {
  const host = h("div", { class: "treeviz", "data-treeviz-widget": model.get("_token") });
  const logPane = new LogPane();
  const all = new AbortController();
  /** @type {Shown | null} */
  let shown = null;
  let asked = 0;
  el.replaceChildren(host);

  const showTree = async () => {
    const number = ++asked;
    // Some hosts send the event of one trait before they set the others.
    await null;
    const packed = model.get("_packed");
    if (!packed?.byteLength) return;
    try {
      const tree = await unpack(packed);
      // A newer tree came meanwhile, or the widget was removed.
      if (number !== asked || all.signal.aborted) return;
      // A paused view is not replaced; the event "resume" shows the new tree.
      if (shown?.panel?.paused) return;
      shown = replace(shown, host, tree, model, logPane, showTree);
      announce(model);
    } catch (error) {
      logPane.add(`The tree cannot be shown: ${/** @type {Error} */ (error).message}`);
      host.append(logPane.element);
    }
  };
  // The version changes with every tree; `_packed` may stay equal.
  model.on("change:_version", showTree);
  showTree();
  return () => {
    all.abort();
    shown?.stop.abort();
    model.off("change:_version", showTree);
    el.replaceChildren();
  };
}

/** Show a tree in place of another, with the state of its view. @param {Shown | null} old @param {HTMLElement} host @param {import("../tree/tree.js").Tree} tree @param {Model} model @param {LogPane} logPane @param {() => void} showTree @returns {Shown} */
function replace(old, host, tree, model, logPane, showTree) {
  const live = liveOf(model);
  const version = model.get("_version");
  if (live) tree.growing = live.standOn(tree, version);
  // The view that waits for the first step has no state to keep.
  const before = old?.view.root.classList.contains("waiting") ? null : old;
  const rows = before && match(before.view.tree, tree);
  const changes = rows && findChanges(tree, model, rows);
  const stop = new AbortController();
  /** @type {LivePanel | null} */
  let panel = null;
  const view = show(host, tree, stop.signal, (view) => {
    const requests = prepare(view, model, logPane, stop.signal);
    if (live) {
      // The tree of a run has no values that Python could send.
      view.request = null;
      panel = new LivePanel(view, live, requests, before && before.panel, rows);
      view.on("resume", () => model.get("_version") !== version && showTree());
    }
    if (before) Object.assign(view.rows, { isFolding: before.view.rows.isFolding, folds: null });
    if (before) transferState(before.view, view, /** @type {Int32Array} */ (rows));
  });
  const sync = new TraitSync(model, view, stop.signal);
  sync.begin(before && before.sync);
  old?.stop.abort();
  if (changes) showChanges(view, changes);
  return { view, sync, panel, stop };
}

/** Connect a view to the log and to Python, before it is shown. @param {View} view @param {Model} model @param {LogPane} logPane @param {AbortSignal} signal */
function prepare(view, model, logPane, signal) {
  view.on("log", (text) => logPane.add(text));
  const requests = new Requests(model, view, signal);
  view.request = (operation, numbers) => requests.ask(operation, numbers);
  if (!liveOf(model)) view.savePage = () => savePage(view);
  view.root.append(logPane.element);
  // What is open and selected is shared with Python, node by node: levels open together, and nothing is folded unless a reader asks, but what is the same
  // in a diff.
  const { rows, tree } = view;
  rows.isFolding = !!tree.header.diff;
  rows.folds = null;
  rows.openTo(tree.header.open ?? depthFor(tree, 30));
  rows.update();
  view.emit("change");
  return requests;
}

/** The largest depth at which at most `n` rows are visible; at least 1. @param {import("../tree/tree.js").Tree} tree @param {number} n */
function depthFor({ depth, maxDepth }, n) {
  const counts = new Uint32Array(maxDepth + 1);
  for (const d of depth) counts[d]++;
  let fits = 0;
  for (let shown = counts[0]; fits < maxDepth && (shown += counts[fits + 1]) <= n; ) fits++;
  return Math.max(1, fits);
}

/** Find the rows that a new tree changed or added, for marks and for is:changed. @param {import("../tree/tree.js").Tree} tree @param {Model} model @param {Int32Array} rows for each row of the old tree its row in the new one */
function findChanges(tree, model, rows) {
  const bytes = model.get("_changes");
  if (!bytes?.byteLength) return null;
  const numbers = new Uint32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  tree.changed = new Uint8Array(tree.n).fill(1);
  for (const row of rows) if (row >= 0) tree.changed[row] = 0;
  for (const row of numbers.subarray(3)) if (row < tree.n) tree.changed[row] = 1;
  return numbers;
}

/** Mark the rows that a new tree changed or added, and show how many leaves changed. @param {View} view @param {Uint32Array} numbers */
function showChanges(view, [nChanged, nAdded, nGone]) {
  flash(view, view.tree.changed, FLASH_MS);
  const parts = [[nChanged, "changed"], [nAdded, "added"], [nGone, "gone"]].filter(([n]) => n).map(([n, word]) => `${n.toLocaleString("en")} ${word}`);
  if (nChanged + nAdded) view.setStatus("", false, "is:changed", parts.join(", "));
  else view.setStatus(parts.join() || "nothing changed");
}

/** Called once for each model, so that a run is followed from its first message on. @param {{model: Model}} context */
function initialize({ model }) {
  liveOf(model);
  return () => forget(model);
}

/** Announce the widget, so that its fallback page (load/fallback.js) stays hidden. */
function announce(model) {
  document.dispatchEvent(new CustomEvent("treeviz-widget", { detail: model.get("_token") }));
}

export default { initialize, render };
