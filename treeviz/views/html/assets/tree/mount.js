// @ts-check
// Puts the view of a packed table into an element. A page starts here.
//
// Modules tell each other what happens by events of the view: view.emit(event, detail) and view.on(event, listener).
// A listener ends with the view. A module that listens is not known to the one that sends.
//
//   event  | detail          | sent by                            | listened to by
//   change | -               | tree/view.js, widget/widget.js     | tree/toolbar.js, series/series_view.js, diff/diff.js, widget/sync.js
//   select | -               | tree/view.js                       | widget/sync.js
//   paint  | -               | tree/grid.js                       | series/series_view.js, diff/diff.js, live/panel.js, widget/transfer.js
//   detail | row, or -1      | tree/view.js                       | values/values.js, diff/diff.js, widget/details.js
//   status | {text, isError, query, name} | tree/view.js                       | tree/toolbar.js
//   log    | text            | widget/requests.js                 | widget/widget.js
//   shown  | -               | tree/mount.js                      | widget/transfer.js
//   read   | step, or null   | series/series_view.js              | series/series_view.js, series/chart.js
//   resume | -               | live/panel.js                      | widget/widget.js
//
// change: what is open, searched for or sorted. select: the selected rows. paint: rows were put into the document. detail: the
// details of a row are shown. status: a text for the line above the rows. log: an error to keep for the reader. shown: the view
// is in the document. read: the step under the pointer. resume: the reader ended a pause of a run.
//
// Where the sender needs an answer, one module sets a function: view.moreDetail (each adds to it), rows.outlierOf, and draw, rankOf
// and share of columns (values/values.js), their urgency (the greater ones come first where there is little room: curves 4, words 3,
// NaN 2, rms 1), view.inside (findings/findings.js), grid.reservedWidth (series/series_view.js) and view.request
// (widget/widget.js). A run outlives the views of it, so it has an event of its own: "update" of Live, sent by live/run.js,
// listened to by live/panel.js; its detail says whether there are new findings.
import { followTheme, h } from "./dom.js";
import { downloadPage } from "./exporting.js";
import { listenToKeys } from "./keyboard.js";
import { unpack } from "./tree.js";
// @ts-ignore bundle.py puts the style sheet there as a string.
import { STYLES } from "./tree.css";
import { toolbar } from "./toolbar.js";
import { additions, View } from "./view.js";

const MAX_PRINTED = 2000;
const PRINTED_WIDTH = 1040; // pixels: browsers shrink as much to a sheet of A4

/**
 * Show a packed table in `host`, in place of its content. An error is shown there as one line.
 * @param {HTMLElement} host
 * @param {BufferSource | Promise<BufferSource>} payload
 * @returns {() => void} removes the view and restores the content
 */
export function mount(host, payload) {
  const stop = new AbortController();
  const before = new DocumentFragment();
  Promise.resolve(payload)
    .then(unpack)
    .then((tree) => {
      if (stop.signal.aborted) return;
      const view = show(host, tree, stop.signal);
      const code = /** @type {any} */ (host.nextElementSibling);
      const loader = code?.nextElementSibling;
      // A page of its own needs no other one.
      if (loader?.text && !("page" in host.dataset))
        view.savePage = () => downloadPage(view, `<div class=treeviz data-page data-treeviz="${host.dataset.treeviz}">`, ["text/plain", "text/treeviz", "module"].map((type, i) => `<script type=${type}>${[host.querySelector("script"), code, loader][i].text}<\/script>`).join("</div>"));
      before.append(...[...host.children].filter((child) => child.localName !== "script"));
    })
    .catch((error) => host.append(h("p", {}, `The view cannot start: ${error.message}.`)));
  return () => {
    stop.abort();
    host.shadowRoot?.replaceChildren(h("slot"));
    host.prepend(before);
  };
}

/**
 * Show a tree in `host`, in place of its content, until the signal is aborted.
 * @param {HTMLElement} host
 * @param {import("./tree.js").Tree} tree
 * @param {AbortSignal} signal
 * @param {(view: View) => void} [prepare] is called with the view before it is shown
 * @returns {View}
 */
export function show(host, tree, signal, prepare = () => {}) {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLES);
  const root = h("div", { class: "treeviz" });
  const inPage = "page" in host.dataset;
  root.classList.toggle("page", inPage);
  const view = new View(tree, root, signal);
  const facts = tree.header.headline.filter((text) => !/^(error|warning): /.test(text));
  view.banner = h("div", { class: "banner", role: "status" });
  if (facts.length < tree.header.headline.length) fillBanner(view, tree.header.headline.find((text) => !facts.includes(text)));
  const { element, search, blanks } = toolbar(view);
  view.searchBox = search;
  root.append(
    h("div", { class: "headline", title: facts.join(" · "), ...(inPage && { role: "heading", "aria-level": "1" }) }, h("b", {}, tree.name), ...facts.map((text) => h("span", { class: /^all fin|^0 find/.test(text) ? "fine" : /NaN$|\d mism/.test(text) && "bad" }, text))),
    view.banner,
    element,
    h("div", { class: "body" }, view.grid.element, view.detailPlace),
    blanks,
  );
  for (const { start } of additions) start(view);
  listenToMouse(view);
  listenToKeys(view, search);
  listenToPrinting(view);

  host.dataset.lmSuppressShortcuts = "true";
  const shadow = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  shadow.adoptedStyleSheets = [sheet];
  prepare(view);
  // The theme first: the browser computes the style of all that is there when it is asked for that of the host.
  followTheme(host, root, signal);
  shadow.replaceChildren(root);
  view.grid.observer.observe(host);
  view.emit("shown");
  return view;
}

/** Say above all what is wrong: "error: a sentence. What else there is to say." @param {View} view @param {string} text @param {...Node} links */
export function fillBanner(view, text, ...links) {
  const [, severity, first, rest] = /** @type {string[]} */ (text.match(/^(\w+): (.*?[.!?]|.*)(?:\s+(.*))?$/s));
  view.banner.dataset.severity = severity;
  view.banner.replaceChildren(h("i", { "aria-hidden": "true" }, severity === "error" ? "✕" : "⚠"), h("p", {}, h("b", {}, first), rest ? h("span", {}, ` ${rest}`) : ""), ...links);
}

/** @param {View} view */
function listenToMouse(view) {
  const { grid } = view;
  grid.tree.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const { row, onArrow } = grid.rowAt(event);
    if (row < 0) return;
    if (onArrow && view.rows.hasChildren(row)) {
      view.active = row;
      view.toggle(row);
    } else if (!getSelection()?.toString()) {
      view.go(row, event.shiftKey ? "range" : event.ctrlKey || event.metaKey ? "add" : "one");
    }
  });
  grid.tree.addEventListener("dblclick", (/** @type {MouseEvent} */ event) => {
    const { row, onArrow } = grid.rowAt(event);
    // It selects a word, and a click in what is selected would not be one on the row.
    getSelection()?.removeAllRanges();
    if (row >= 0 && !onArrow) view.toggle(row);
  });
  // Shift-click selects rows, not text; a click on an arrow selects neither, and the browser looks for no place in a text.
  grid.tree.addEventListener("mousedown", (/** @type {MouseEvent} */ event) => {
    if (event.shiftKey || grid.rowAt(event).onArrow) {
      event.preventDefault();
      grid.tree.focus({ preventScroll: true });
    }
  });
}

/** A printed page cannot be scrolled, so all open rows are printed, up to MAX_PRINTED, and the columns that are whole. @param {View} view */
function listenToPrinting(view) {
  const { grid, rows, root, signal } = view;
  const print = (printing) => {
    grid.nPrinted = printing ? Math.min(rows.count, MAX_PRINTED) : 0;
    root.style.width = printing ? `${PRINTED_WIDTH}px` : "";
    grid.resize();
  };
  addEventListener("beforeprint", () => print(true), { signal });
  addEventListener("afterprint", () => print(false), { signal });
}
