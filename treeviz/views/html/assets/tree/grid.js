// @ts-check
// Draws the rows that are on the screen; only they are in the document.
import { barChart, h } from "./dom.js";
import { wholeText } from "./numbers.js";

/** @typedef {import("./view.js").View} View */

export const ROW_HEIGHT = 22;
// Browsers limit the height of an element to about 17 million pixels.
const MAX_HEIGHT = 12e6;
// Pixels of the arrow and the glyph of a row, and the least width of its key.
const SIGNS = 46;
const LABEL = 80;
const CH = 7.83;
const GAP = 1.5;
// In characters. The rest of a wide window stays empty, so that the columns of a row stay close together.
const WIDTHS = { label: 16, count: 10, bytes: 9, number: 10, histogram: 12 };
const GLYPHS = {
  dict: "{}", list: "[]", tuple: "()", namedtuple: "(.)", none: "∅", node: "◇", module: "◆", static: "§", closure: "λ",
  array: "▦", numpy: "▤", scalar: "#", string: "“”", abstract: "▢", tracer: "~", key: "⌘", float0: "0", deleted: "✕",
  ref: "&", function: "ƒ", tensor: "▣", variable: "◈", opaque: "?", placeholder: "*", layer: "▪", error: "!", cycle: "↻", repeat: "=", more: "…",
};
// A badge shows the path of the other place up to this many keys.
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
    /** Pixels by which rows are drawn higher than index * ROW_HEIGHT, where the tree is taller than MAX_HEIGHT. */
    this.shift = 0;
    this.lastTop = 0;
    this.columns = [];
    this.nPrinted = 0;
    /** How many pixels of a width are reserved for the heat map. @type {(width: number) => number} */
    this.reservedWidth = () => 0;
    this.step = 16;
    this.maxLevels = 9;
    const observer = new ResizeObserver(() => this.resize());
    observer.observe(this.element);
    view.signal.addEventListener("abort", () => observer.disconnect());
  }

  get nInSight() {
    return Math.max(1, Math.floor((this.element.clientHeight - this.head.offsetHeight) / ROW_HEIGHT));
  }

  /** Choose the columns that fit: urgent ones first, then bytes, then in their order. */
  resize() {
    const width = this.element.clientWidth - this.reservedWidth(this.element.clientWidth);
    const isSmall = width < 560;
    const wanted = this.view.columns.filter((column) => !column.hidden);
    const [key, type] = !isSmall ? [24, 22] : wanted.some((column) => column.isUrgent) ? [14, 8] : [17, 12];
    let room = width / CH - key - type - 2 * GAP;
    const fitting = [...wanted].sort((a, b) => urgency(b) - urgency(a));
    const kept = new Set(fitting.filter((column) => column.format === "type" || (room -= widthOf(column) + GAP) >= 0));
    const before = this.columns;
    this.columns = wanted.filter((column) => kept.has(column));
    const tracks = this.columns.map((c) => (c.format === "type" ? `minmax(${type}ch, 52ch)` : `${widthOf(c)}ch`));
    this.element.style.setProperty("--tracks", [`minmax(${key}ch, 40ch)`, ...tracks, "1fr"].join(" "));
    this.step = isSmall ? 10 : 16;
    this.view.root.classList.toggle("narrow", this.view.root.clientWidth < 940);
    // Keep the elements of the rows: replacing one between mouse down and mouse up would lose the click.
    if (before.length !== this.columns.length || before.some((column, i) => column !== this.columns[i])) {
      this.pool = [];
      this.window.replaceChildren();
    }
    this.paintHead();
    // Deeper levels are not indented further; they show their depth as a number.
    this.maxLevels = Math.max(2, Math.floor((this.head.firstChild.offsetWidth - SIGNS - LABEL) / this.step));
    this.paint(true);
  }

  paintHead() {
    const { sorting } = this.view;
    const title = (column) => {
      const order = sorting.column === column ? (sorting.descending ? "descending" : "ascending") : "";
      const arrow = order && h("span", { class: "arrow", "aria-hidden": "true" }, sorting.descending ? "▼" : "▲");
      const label = order && `${column.title}, sorted ${order}`;
      return h("button", { class: `cell ${column.format}`, title: column.help || `sort by ${column.title}`, "aria-label": label || undefined,
        click: () => this.view.sortBy(column) }, column.title, arrow);
    };
    const focused = [...this.head.children].indexOf(this.head.getRootNode().activeElement);
    this.head.replaceChildren(...[this.view.keyColumn, ...this.columns].map(title));
    this.head.children[focused]?.focus();
  }

  /** Put the rows on the screen into the document. @param {boolean} [all] also if only their content has changed */
  paint(all = false) {
    const { rows } = this.view;
    const { clientHeight, scrollTop } = this.element;
    const total = rows.count * ROW_HEIGHT;
    const height = Math.min(total, MAX_HEIGHT);
    const sight = clientHeight - this.head.offsetHeight;
    this.tree.style.height = `${height}px`;
    if (total === height || scrollTop <= 0) this.shift = 0;
    else if (scrollTop >= height - sight - 1) this.shift = total - height;
    else if (Math.abs(scrollTop - this.lastTop) > sight) this.shift = Math.round((scrollTop / (height - sight)) * (total - sight)) - scrollTop;
    this.lastTop = scrollTop;
    const top = Math.max(0, Math.min(scrollTop + this.shift, total - sight));
    const first = this.nPrinted ? 0 : Math.floor(top / ROW_HEIGHT);
    const n = this.nPrinted || Math.min(rows.count - first, Math.ceil(sight / ROW_HEIGHT) + 1);
    if (!all && first === this.first && n === this.n) return;
    this.first = first;
    this.n = n;
    while (this.pool.length < n) this.pool.push(this.window.appendChild(this.#newRow()));
    while (this.pool.length > n) this.pool.pop()?.remove();
    this.pool.forEach((element, i) => this.#fill(element, rows.visible[first + i]));
    this.window.style.transform = `translateY(${first * ROW_HEIGHT - this.shift}px)`;
    this.#pointToActive();
    this.view.emit("paint");
  }

  /** Scroll until a visible row, given by its index among them, is on the screen. @param {number} index */
  scrollTo(index) {
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
    this.lastTop = this.element.scrollTop;
    this.shift = total === height ? 0 : Math.round(goal - this.lastTop);
    this.paint(true);
  }

  /** Scroll until a visible row is `offset` pixels above the upper edge. @param {number} index @param {number} offset */
  scrollSo(index, offset) {
    const total = this.view.rows.count * ROW_HEIGHT;
    if (total > MAX_HEIGHT) return this.scrollTo(index);
    this.tree.style.height = `${total}px`;
    this.element.scrollTop = index * ROW_HEIGHT + offset;
    this.paint(true);
  }

  #pointToActive() {
    const element = this.pool.find((element) => element.id === `row${this.view.active}`);
    if (element) this.tree.setAttribute("aria-activedescendant", element.id);
    else this.tree.removeAttribute("aria-activedescendant");
  }

  #newRow() {
    const cell = (name) => h("span", { class: `cell ${name}` });
    return h("div", { class: "row", role: "treeitem" }, cell("key"), ...this.columns.map((column) => cell(column.format)));
  }

  /** @param {HTMLElement} element @param {number} row */
  #fill(element, row) {
    const { tree, rows, selected, active } = this.view;
    const kind = tree.of(row, "kind");
    const open = rows.hasChildren(row) ? rows.isOpen(row) : undefined;
    const what = tree.of(row, "what");
    const notes = tree.notes(row);
    const inside = open === false ? this.view.inside(row) : null;
    const parent = tree.parent[row];
    const attributes = {
      id: `row${row}`,
      "data-kind": kind,
      "data-style": styleOf(tree, row, kind),
      "aria-level": tree.depth[row] + 1,
      "aria-setsize": rows.nSeen[parent + 1],
      "aria-posinset": rows.placeAmong[row],
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
    const depth = tree.depth[row];
    element.style.setProperty("--indent", `${Math.min(depth, this.maxLevels) * (this.step)}px`);
    const [key, ...cells] = /** @type {HTMLElement[]} */ ([...element.children]);
    key.dataset.glyph = GLYPHS[kind] ?? "·";
    key.textContent = depth > this.maxLevels ? `⋯${depth} ${tree.label(row)}` : tree.label(row);
    key.title = tree.label(row);
    this.columns.forEach((column, i) => {
      if (column.format === "type") fillType(cells[i], tree, row, what, notes, inside);
      else if (column.format === "histogram") cells[i].replaceChildren(barChart(column.bars(row).subarray(...column.used), column.title));
      else cells[i].textContent = column.text(row);
      cells[i].classList.toggle("bad", !!column.isBad?.(row));
      if (column.format === "bytes") cells[i].style.setProperty("--share", `${(100 * column.values[row]) / column.values[0] || 0}%`);
    });
  }

  /** The row at the position of a mouse event, and whether the position is on its arrow. @param {MouseEvent} event */
  rowAt(event) {
    const element = /** @type {Element} */ (event.target).closest(".row");
    if (!element) return { row: -1, onArrow: false };
    const indent = parseFloat(/** @type {HTMLElement} */ (element).style.getPropertyValue("--indent"));
    return { row: +element.id.slice(3), onArrow: event.clientX - element.getBoundingClientRect().left < indent + 20 };
  }
}

const urgency = (column) => (column.isUrgent ? 2 : +(column.format === "bytes"));
const widthOf = (column) => column.width ?? Math.max(WIDTHS[column.format], Math.min(column.title.length, 14));

/** The style of a row: None and empty containers are dimmed, errors are highlighted. */
function styleOf(tree, row, kind) {
  if (["error", "cycle", "deleted"].includes(kind)) return "trouble";
  if (tree.of(row, "is_leaf")) return kind === "abstract" || kind === "tracer" || kind === "placeholder" ? "abstract" : "leaf";
  return tree.nChildren[row] ? "node" : "ghost";
}

function fillType(cell, tree, row, what, notes, inside) {
  const n = tree.nChildren[row];
  const text = what.endsWith(tree.of(row, "text")) ? "" : tree.of(row, "text");
  const fields = tree.of(row, "static").map(pairText);
  const within = tree.of(row, "inside").map(pairText);
  const dim = [...(n ? [`${wholeText(n)} inside`] : []), ...fields].join(" · ");
  const main = h("span", { class: "what" }, text ? `${what} ${text}` : what);
  const badges = notes.map((note) => h("span", { class: "badge", "data-note": note[0], "data-severity": note[4], title: note[1] }, badgeText(tree, note)));
  if (inside) {
    // The same click would select the row.
    const go = (event) => (event.stopPropagation(), inside.go());
    badges.push(h("span", { class: "badge inside", "data-note": inside.kind, "data-severity": inside.severity, title: `${inside.text}: go to the worst`, click: go }, `⚠${inside.count}`));
  }
  cell.replaceChildren(main, ...badges, ...(dim ? [h("span", { class: "dim" }, dim)] : []),
    ...(within[0] ? [h("span", { class: "dim within" }, within.join(" · "))] : []));
  cell.title = [what, text, ...fields, within[0] && "inside (invisible to JAX)", ...within].filter(Boolean).join("\n");
}

const pairText = ([name, value]) => (name === "…" ? `… ${value}` : `${name}=${value}`);

function badgeText(tree, [kind, sentence, row]) {
  if (row >= 0 && tree.depth[row] <= MAX_PATH) return `${kind}: ${tree.keystr(row) || tree.name}`;
  return /info|nonf|hides/.test(kind) ? sentence : `${kind}: ${sentence}`;
}
