// @ts-check
// The rows on the screen: only they are in the document.
import { bar_chart, h } from "./dom.js";
import { wholeText } from "./numbers.js";

/** @typedef {import("./view.js").View} View */

export const ROW_HEIGHT = 22;
// Browsers give up on elements that are taller than some 17 million pixels.
const MAX_HEIGHT = 12e6;
// What the arrow and the sign of a row take, and what its key needs at least.
const SIGNS = 46;
const LABEL = 80;
const CH = 7.83;
const GAP = 1.5;
// In characters. The rest of a wide window stays empty: what belongs together is not torn apart.
const WIDTHS = { label: 16, count: 10, bytes: 9, number: 10, histogram: 12 };
const GLYPHS = {
  dict: "{}", list: "[]", tuple: "()", namedtuple: "(.)", none: "∅", node: "◇", module: "◆", static: "§", closure: "λ",
  array: "▦", numpy: "▤", scalar: "#", string: "“”", abstract: "▢", tracer: "~", key: "⌘", float0: "0", deleted: "✕",
  ref: "&", function: "ƒ", tensor: "▣", variable: "◈", opaque: "?", placeholder: "*", error: "!", cycle: "↻", repeat: "=", more: "…",
};
// A badge says where the other place is, if that is no long story.
const MAX_PATH = 12;

export class Grid {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    this.head = h("div", { class: "head", role: "group", "aria-label": "Sort by" });
    this.window = h("div", { class: "window", role: "none" });
    this.tree = h(
      "div",
      { class: "tree", role: "tree", tabindex: "0", "aria-label": view.tree.name, "aria-multiselectable": "true" },
      this.window,
    );
    this.element = h("div", { class: "scroller", scroll: () => this.paint() }, this.head, this.tree);
    /** @type {HTMLElement[]} */
    this.pool = [];
    /** How far the rows are above where their numbers say, when the tree is too tall for an element. */
    this.shift = 0;
    this.last_top = 0;
    this.columns = [];
    this.n_printed = 0;
    /** What of its width belongs to something beside the rows, and what follows the rows. @type {(width: number) => number} */
    this.beside = () => 0;
    this.on_paint = () => {};
    this.step = 16;
    this.max_levels = 9;
    const observer = new ResizeObserver(() => this.resize());
    observer.observe(this.element);
    view.signal.addEventListener("abort", () => observer.disconnect());
  }

  get n_in_sight() {
    return Math.max(1, Math.floor((this.element.clientHeight - this.head.offsetHeight) / ROW_HEIGHT));
  }

  /** Choose the columns that have room; bytes stay longest, then the order counts. */
  resize() {
    const width = this.element.clientWidth - this.beside(this.element.clientWidth);
    const is_small = width < 560;
    const wanted = this.view.columns.filter((column) => !column.hidden);
    const [key, type] = !is_small ? [24, 22] : wanted.some((column) => column.is_urgent) ? [14, 8] : [17, 12];
    let room = width / CH - key - type - 2 * GAP;
    const fitting = [...wanted].sort((a, b) => urgency(b) - urgency(a));
    const kept = new Set(fitting.filter((column) => column.format === "type" || (room -= width_of(column) + GAP) >= 0));
    const before = this.columns;
    this.columns = wanted.filter((column) => kept.has(column));
    const tracks = this.columns.map((c) => (c.format === "type" ? `minmax(${type}ch, 52ch)` : `${width_of(c)}ch`));
    this.element.style.setProperty("--tracks", [`minmax(${key}ch, 40ch)`, ...tracks, "1fr"].join(" "));
    this.step = is_small ? 10 : 16;
    this.view.root.classList.toggle("narrow", this.view.root.clientWidth < 1000);
    // A row that a button is pressed on must still be there when it is let go, or that is no click.
    if (before.length !== this.columns.length || before.some((column, i) => column !== this.columns[i])) {
      this.pool = [];
      this.window.replaceChildren();
    }
    this.paint_head();
    // Deeper levels are not indented further, but say their depth.
    this.max_levels = Math.max(2, Math.floor((this.head.firstChild.offsetWidth - SIGNS - LABEL) / this.step));
    this.paint(true);
  }

  paint_head() {
    const { sorting } = this.view;
    const title = (column) => {
      const order = sorting.column === column ? (sorting.descending ? "descending" : "ascending") : "";
      const arrow = order && h("span", { class: "arrow", "aria-hidden": "true" }, sorting.descending ? "▼" : "▲");
      const label = order && `${column.title}, sorted ${order}`;
      return h("button", { class: `cell ${column.format}`, title: column.help || `sort by ${column.title}`, "aria-label": label || undefined,
        click: () => this.view.sort_by(column) }, column.title, arrow);
    };
    const focused = [...this.head.children].indexOf(this.head.getRootNode().activeElement);
    this.head.replaceChildren(...[this.view.key_column, ...this.columns].map(title));
    this.head.children[focused]?.focus();
  }

  /** Put the rows in sight into the document. @param {boolean} [all] what they show has changed, too */
  paint(all = false) {
    const { rows } = this.view;
    const { clientHeight, scrollTop } = this.element;
    const total = rows.count * ROW_HEIGHT;
    const height = Math.min(total, MAX_HEIGHT);
    const sight = clientHeight - this.head.offsetHeight;
    this.tree.style.height = `${height}px`;
    if (total === height || scrollTop <= 0) this.shift = 0;
    else if (scrollTop >= height - sight - 1) this.shift = total - height;
    else if (Math.abs(scrollTop - this.last_top) > sight) this.shift = Math.round((scrollTop / (height - sight)) * (total - sight)) - scrollTop;
    this.last_top = scrollTop;
    const top = Math.max(0, Math.min(scrollTop + this.shift, total - sight));
    const first = this.n_printed ? 0 : Math.floor(top / ROW_HEIGHT);
    const n = this.n_printed || Math.min(rows.count - first, Math.ceil(sight / ROW_HEIGHT) + 1);
    if (!all && first === this.first && n === this.n) return;
    this.first = first;
    this.n = n;
    while (this.pool.length < n) this.pool.push(this.window.appendChild(this.#new_row()));
    while (this.pool.length > n) this.pool.pop()?.remove();
    this.pool.forEach((element, i) => this.#fill(element, rows.visible[first + i]));
    this.window.style.transform = `translateY(${first * ROW_HEIGHT - this.shift}px)`;
    this.#point_to_active();
    this.on_paint();
  }

  /** Bring a place in sight onto the screen. @param {number} index */
  scroll_to(index) {
    const total = this.view.rows.count * ROW_HEIGHT;
    const sight = this.element.clientHeight - this.head.offsetHeight;
    const top = this.element.scrollTop + this.shift;
    const wanted = index * ROW_HEIGHT;
    if (wanted >= top && wanted + ROW_HEIGHT <= top + sight) return this.paint(true);
    const far = Math.abs(wanted - top) > 2 * sight;
    const goal = Math.max(0, Math.min(total - sight, far ? wanted - sight / 2 : wanted < top ? wanted : wanted + ROW_HEIGHT - sight));
    const height = Math.min(total, MAX_HEIGHT);
    this.tree.style.height = `${height}px`;
    this.element.scrollTop = total === height ? goal : (goal / (total - sight)) * (height - sight);
    this.last_top = this.element.scrollTop;
    this.shift = total === height ? 0 : Math.round(goal - this.last_top);
    this.paint(true);
  }

  /** Bring a place in sight to so many pixels above the upper edge. @param {number} index @param {number} offset */
  scroll_so(index, offset) {
    const total = this.view.rows.count * ROW_HEIGHT;
    if (total > MAX_HEIGHT) return this.scroll_to(index);
    this.tree.style.height = `${total}px`;
    this.element.scrollTop = index * ROW_HEIGHT + offset;
    this.paint(true);
  }

  #point_to_active() {
    const element = this.pool.find((element) => element.id === `row${this.view.active}`);
    if (element) this.tree.setAttribute("aria-activedescendant", element.id);
    else this.tree.removeAttribute("aria-activedescendant");
  }

  #new_row() {
    const cell = (name) => h("span", { class: `cell ${name}` });
    return h("div", { class: "row", role: "treeitem" }, cell("key"), ...this.columns.map((column) => cell(column.format)));
  }

  /** @param {HTMLElement} element @param {number} row */
  #fill(element, row) {
    const { tree, rows, selected, active } = this.view;
    const kind = tree.of(row, "kind");
    const open = rows.has_children(row) ? rows.is_open(row) : undefined;
    const what = tree.of(row, "what");
    const notes = tree.notes(row);
    const inside = open === false ? this.view.inside(row) : null;
    const parent = tree.parent[row];
    const attributes = {
      id: `row${row}`,
      "data-kind": kind,
      "data-look": look_of(tree, row, kind),
      "aria-level": tree.depth[row] + 1,
      "aria-setsize": rows.n_seen[parent + 1],
      "aria-posinset": rows.place_among[row],
      "aria-selected": selected.has(row),
      "aria-expanded": open,
      "aria-label": [tree.label(row), what, ...notes.map((note) => note[0]), inside?.text].filter(Boolean).join(", "),
    };
    for (const name in attributes) {
      if (attributes[name] === undefined) element.removeAttribute(name);
      else element.setAttribute(name, attributes[name]);
    }
    element.classList.toggle("active", row === active);
    element.classList.toggle("hit", rows.hits?.[row] === 1);
    element.classList.toggle("changed", this.view.is_flashing(row));
    const depth = tree.depth[row];
    element.style.setProperty("--indent", `${Math.min(depth, this.max_levels) * (this.step)}px`);
    const [key, ...cells] = /** @type {HTMLElement[]} */ ([...element.children]);
    key.dataset.glyph = GLYPHS[kind] ?? "·";
    key.textContent = depth > this.max_levels ? `⋯${depth} ${tree.label(row)}` : tree.label(row);
    key.title = tree.label(row);
    this.columns.forEach((column, i) => {
      if (column.format === "type") fill_type(cells[i], tree, row, what, notes, inside);
      else if (column.format === "histogram") cells[i].replaceChildren(bar_chart(column.bars(row).subarray(...column.used), column.title));
      else cells[i].textContent = column.text(row);
      if (column.format === "bytes") cells[i].style.setProperty("--share", `${(100 * column.values[row]) / column.values[0] || 0}%`);
    });
  }

  /** The row on the screen at an event's place, and whether the place is that of the arrow. @param {MouseEvent} event */
  row_at(event) {
    const element = /** @type {Element} */ (event.target).closest(".row");
    if (!element) return { row: -1, on_arrow: false };
    const indent = parseFloat(/** @type {HTMLElement} */ (element).style.getPropertyValue("--indent"));
    return { row: +element.id.slice(3), on_arrow: event.clientX - element.getBoundingClientRect().left < indent + 20 };
  }
}

const urgency = (column) => (column.is_urgent ? 2 : +(column.format === "bytes"));
const width_of = (column) => column.width ?? Math.max(WIDTHS[column.format], Math.min(column.title.length, 14));

/** Absent and empty things are ghosts; troubles stand out. */
function look_of(tree, row, kind) {
  if (["error", "cycle", "deleted"].includes(kind)) return "trouble";
  if (tree.of(row, "is_leaf")) return kind === "abstract" || kind === "tracer" || kind === "placeholder" ? "abstract" : "leaf";
  return tree.n_children[row] ? "node" : "ghost";
}

function fill_type(cell, tree, row, what, notes, inside) {
  const n = tree.n_children[row];
  const text = what.endsWith(tree.of(row, "text")) ? "" : tree.of(row, "text");
  const fields = tree.of(row, "static").map(([name, value]) => `${name}=${value}`);
  const dim = [...(n ? [`${wholeText(n)} ${n === 1 ? "child" : "children"}`] : []), ...fields].join(" · ");
  const words = h("span", { class: "what" }, text ? `${what} ${text}` : what);
  const badges = notes.map((note) => h("span", { class: "badge", "data-note": note[0], title: note[1] }, badge_text(tree, note)));
  if (inside) {
    // The row itself would be chosen by the same click.
    const go = (event) => (event.stopPropagation(), inside.go());
    badges.push(h("span", { class: "badge inside", "data-note": inside.kind, title: "go to the first", click: go }, inside.text));
  }
  cell.replaceChildren(words, ...badges, ...(dim ? [h("span", { class: "dim" }, dim)] : []));
  cell.title = [what, text, ...fields].filter(Boolean).join("\n");
}

function badge_text(tree, [kind, sentence, row]) {
  if (row >= 0 && tree.depth[row] <= MAX_PATH) return `${kind}: ${tree.keystr(row) || tree.name}`;
  return kind === "info" ? sentence : `${kind}: ${sentence}`;
}
