// @ts-check
// The explorer: the view of the page on a model that Python has, too.
import { carry, match } from "./carry.js";
import { h } from "./dom.js";
import { forget, live_of } from "./live.js";
import { LivePanel } from "./live_panel.js";
import { Journal, Requests } from "./requests.js";
import { unpack } from "./payload.js";
import { Traits } from "./traits.js";
import { show } from "./treeviz.js";

const FLASH_MS = 1800;

/** @typedef {import("./view.js").View} View */
/** What anywidget gives: a model that is shared by all views of one widget.
 * @typedef {{get: (name: string) => any, set: (name: string, value: any) => void, save_changes: () => void,
 *   on: (event: string, callback: Function) => void, off: (event: string, callback: Function) => void,
 *   send: (content: any) => void}} Model */

/** @param {{model: Model, el: HTMLElement}} context @returns {() => void} */
function render({ model, el }) {
  const host = h("div", { class: "treeviz", "data-treeviz-widget": model.get("_token") });
  const journal = new Journal();
  const all = new AbortController();
  /** Of the tree that is shown. */
  let stop = new AbortController();
  /** @type {View | null} */
  let view = null;
  /** @type {Traits | null} */
  let traits = null;
  /** @type {LivePanel | null} */
  let panel = null;
  let asked = 0;
  el.replaceChildren(host);

  const look = async () => {
    const number = ++asked;
    // Not every host has set all of it when it says that one part is new.
    await null;
    const packed = model.get("_packed");
    if (!packed?.byteLength) return;
    try {
      const tree = await unpack(packed);
      // A newer one is under way, or nobody looks any more.
      if (number !== asked || all.signal.aborted) return;
      const live = live_of(model);
      // What a reader has paused stands still.
      if (panel?.paused) return;
      if (live) tree.growing = live.stand_on(tree, model.get("_version"));
      // The line that waits for the first step is no tree.
      const before = view?.root.classList.contains("waiting") ? null : view;
      const panel_before = before && panel;
      const stop_before = stop;
      const rows = before && match(before.tree, tree);
      stop = new AbortController();
      const traits_before = before && traits;
      view = show(host, tree, stop.signal, (view) => {
        const requests = prepare(view, model, journal, stop.signal);
        if (live) {
          // It has no values that Python could be asked for.
          view.request = null;
          panel = new LivePanel(view, live, requests, panel_before, rows);
          const version = model.get("_version");
          panel.resume = () => model.get("_version") !== version && look();
        }
        if (before) carry(before, view, rows);
      });
      traits = new Traits(model, view, stop.signal);
      traits.begin(traits_before);
      stop_before.abort();
      if (rows) tell_changes(view, model, rows);
      announce(model);
    } catch (error) {
      journal.add(`The tree cannot be shown: ${/** @type {Error} */ (error).message}`);
      host.append(journal.element);
    }
  };
  // A new tree may be packed as the old one was: another version it is.
  model.on("change:_version", look);
  look();
  return () => {
    all.abort();
    stop.abort();
    model.off("change:_version", look);
    el.replaceChildren();
  };
}

/** What a view is given before anything is shown in it. @param {View} view @param {Model} model @param {Journal} journal @param {AbortSignal} signal */
function prepare(view, model, journal, signal) {
  view.journal = journal;
  const requests = new Requests(model, view, signal);
  view.request = (operation, numbers) => requests.ask(operation, numbers);
  view.root.append(journal.element);
  return requests;
}

/** Flash what a new tree changed or added, and count the leaves. @param {View} view @param {Model} model @param {Int32Array} rows where the rows before are now */
function tell_changes(view, model, rows) {
  const bytes = model.get("_changes");
  if (!bytes?.byteLength) return;
  const numbers = new Uint32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  const [n_changed, n_added, n_gone] = numbers;
  const changed = new Uint8Array(view.tree.n).fill(1);
  for (const row of rows) if (row >= 0) changed[row] = 0;
  for (const row of numbers.subarray(3)) if (row < view.tree.n) changed[row] = 1;
  view.flash(changed, FLASH_MS);
  const parts = [[n_changed, "changed"], [n_added, "added"], [n_gone, "gone"]].filter(([n]) => n).map(([n, word]) => `${n.toLocaleString("en")} ${word}`);
  view.say(parts.join(", ") || "nothing changed");
}

/** Called once for each model: what comes before a view is there is kept. @param {{model: Model}} context */
function initialize({ model }) {
  live_of(model);
  return () => forget(model);
}

/** The page that stands in for the widget, if the notebook has one, hears that it is not needed. */
function announce(model) {
  document.dispatchEvent(new CustomEvent("treeviz-widget", { detail: model.get("_token") }));
}

export default { initialize, render };
