// @ts-check
// The front end: `mount` puts the view of a packed table into an element.
import { follow_theme, h } from "./dom.js";
import { listen_to_keys } from "./keys.js";
import { unpack } from "./payload.js";
// @ts-ignore The stylesheet as a string: front_end.py puts it there.
import { STYLES } from "./treeviz.css";
import { toolbar } from "./toolbar.js";
import { additions, View } from "./view.js";

const MAX_PRINTED = 2000;

/**
 * Show a packed table in `host`, in place of what stands there. What cannot be shown is said there, in one line.
 * @param {HTMLElement} host
 * @param {BufferSource | Promise<BufferSource>} payload
 * @returns {() => void} takes the view away, and puts back what stood there
 */
export function mount(host, payload) {
  const stop = new AbortController();
  const before = new DocumentFragment();
  Promise.resolve(payload)
    .then(unpack)
    .then((tree) => {
      if (stop.signal.aborted) return;
      show(host, tree, stop.signal);
      before.append(...[...host.children].filter((child) => child.localName !== "script"));
    })
    .catch((error) => host.append(h("p", {}, `The interactive view cannot start: ${error.message}.`)));
  return () => {
    stop.abort();
    host.shadowRoot?.replaceChildren(h("slot"));
    host.prepend(before);
  };
}

/**
 * The view of a tree in the place of what was shown in `host`, until the signal.
 * @param {HTMLElement} host
 * @param {import("./payload.js").Tree} tree
 * @param {AbortSignal} signal
 * @param {(view: View) => void} [prepare] is given the view before it is shown
 * @returns {View}
 */
export function show(host, tree, signal, prepare = () => {}) {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLES);
  const root = h("div", { class: "treeviz" });
  const in_page = "page" in host.dataset;
  root.classList.toggle("page", in_page);
  const view = new View(tree, root, signal);
  const { element, search } = toolbar(view);
  view.search_box = search;
  const [name, ...rest] = [tree.name, ...tree.header.headline];
  const heading = in_page ? { role: "heading", "aria-level": "1" } : {};
  root.append(
    h("div", { class: "headline", ...heading }, h("b", {}, name), ...rest.map((text) => ` · ${text}`)),
    element,
    h("div", { class: "body" }, view.grid.element, view.detail_place),
  );
  for (const { start } of additions) start(view);
  listen_to_mouse(view);
  listen_to_keys(view, search);
  listen_to_printing(view);

  host.dataset.lmSuppressShortcuts = "true";
  const shadow = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  shadow.adoptedStyleSheets = [sheet];
  prepare(view);
  shadow.replaceChildren(root);
  follow_theme(host, root, signal);
  view.when_shown();
  return view;
}

/** @param {View} view */
function listen_to_mouse(view) {
  const { grid } = view;
  grid.tree.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const { row, on_arrow } = grid.row_at(event);
    if (row < 0) return;
    if (on_arrow && view.rows.has_children(row)) {
      view.active = row;
      view.toggle(row);
    } else if (!getSelection()?.toString()) {
      view.go(row, event.shiftKey ? "range" : event.ctrlKey || event.metaKey ? "add" : "one");
    }
  });
  grid.tree.addEventListener("dblclick", (/** @type {MouseEvent} */ event) => {
    const { row, on_arrow } = grid.row_at(event);
    if (row >= 0 && !on_arrow) view.toggle(row);
  });
  // Shift selects rows, and not text.
  grid.tree.addEventListener("mousedown", (event) => event.shiftKey && event.preventDefault());
}

/** On paper there is no scrolling: all rows in sight, up to a bound. @param {View} view */
function listen_to_printing(view) {
  const { grid, rows, signal } = view;
  const print = (printing) => {
    grid.n_printed = printing ? Math.min(rows.count, MAX_PRINTED) : 0;
    grid.paint(true);
  };
  addEventListener("beforeprint", () => print(true), { signal });
  addEventListener("afterprint", () => print(false), { signal });
}
