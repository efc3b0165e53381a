// @ts-check
// Draws the rows that are on the screen; only they are in the document.
import { cutName, fieldTexts, fillType, hasBar, scalarText, shareOf } from "./cells.js";
import { CH, Columns, CUT, FRAME, GAP, SIGNS } from "./columns.js";
import { h } from "./dom.js";
import { foldedNotes, foldedText } from "./folds.js";

/** @typedef {import("./view.js").View} View */

export const ROW_HEIGHT = 24;
// Browsers limit the height of an element to about 17 million pixels.
export const MAX_HEIGHT = 12e6;
// Characters of a path that are shown; what is copied has all.
export const LONG_PATH = 2000;
// The formats and names of columns that many trees have, and the names of those that any has.
const USUAL = /^(type|bytes|count|labelsharding$)/;
const OF_SIZES = /^(elements|leaves|devices|(\w+_)?bytes)$/;
// Pixels of a column of words, the least where several share a narrow view.
const LEAST_WORDS = 9 * CH;
// Rows that are kept when they are no longer on the screen.
const MAX_DRAWN = 200;
// Ancestors that stay in sight.
const MAX_ABOVE = 5;

/** @param {Element} element @param {string} name @param {any} value undefined: none */
const setAttribute = (element, name, value) => (value === undefined ? element.removeAttribute(name) : element.setAttribute(name, value));

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
    /** The ancestors of the first row on the screen. */
    this.above = h("div", { class: "above", "aria-hidden": "true", click: (event) => view.go(this.rowAt(event).row) });
    this.more = h("button", { class: "slot", click: () => this.element.scrollBy(this.width / 2, 0) });
    this.copier = h("span", { class: "copier", title: "Copy the path", click: (event) => (event.stopPropagation(), view.copy(view.tree.expression(this.rowAt(event).row))) });
    this.element = h("div", { class: "scroller", mouseover: (event) => this.#hover(event), scroll: () => this.paint() }, this.head, this.above, this.tree);
    /** The rows in the document. @type {any[]} */
    this.pool = [];
    /** The elements of all rows that were drawn, by place and row: one that is shown again, or that others moved, is not drawn anew. @type {Record<string, any>} */
    this.drawn = {};
    /** A row without texts. @type {any} */
    this.template = null;
    /** The widths and the like, for the style sheet, as they are and as the browser knows them. @type {string[]} */
    this.style = this.styleBefore = [];
    /** Counts how often data may have changed. */
    this.edition = 0;
    /** Pixels by which rows are drawn higher than index * ROW_HEIGHT, where the tree is taller than MAX_HEIGHT. */
    this.shift = 0;
    this.lastTop = 0;
    this.height = 0;
    /** The height that it may grow to: that of the style sheet, or in a page to its lower end. */
    this.most = 0;
    /** @type {any[]} */
    this.columns = [];
    this.widths = new Columns(view);
    this.width = 0;
    this.layout = this.widths.layOut([], 0);
    this.nPrinted = 0;
    /** How many pixels of a width are reserved for the heat map. @type {(width: number) => number} */
    this.reservedWidth = () => 0;
    /** mount.js adds the host: a view that is as wide as its columns does not grow with it. */
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.element);
    view.signal.addEventListener("abort", () => this.observer.disconnect());
  }

  get nInSight() {
    return Math.max(1, Math.floor((this.element.clientHeight - this.head.offsetHeight) / ROW_HEIGHT));
  }

  /** Lay out anew if there is other room. */
  fit() {
    const { view } = this;
    const { clientHeight, clientWidth, offsetWidth } = this.element;
    // A view whose columns have changed, as in a search, has another width, but no other room.
    const room = [offsetWidth - clientWidth, view.detailPlace.hidden, view.root.parentNode.host?.clientWidth].join();
    const isAsWide = room === this.room;
    if (isAsWide && clientHeight === this.height) return;
    this.room = room;
    this.height = clientHeight;
    const isSeen = this.pool.some((row) => +row.dataset.row === view.active);
    if (!isAsWide) this.resize();
    // Details that open, or grow, do not hide their row.
    if (isSeen) this.scrollTo(view.rows.index(view.active), null);
    else this.paint();
  }

  resize() {
    const { root } = this.view;
    if (this.styleBefore[0]) root.style.setProperty("--most", "9999px"); // all that there is
    this.styleBefore = [];
    const { clientWidth } = this.element;
    this.most = parseFloat(getComputedStyle(this.element).maxHeight) || innerHeight - 9 - this.element.getBoundingClientRect().top;
    this.isNarrow = root.classList.toggle("narrow", root.clientWidth < 940);
    this.isSlim = root.classList.toggle("slim", root.clientWidth < 600);
    this.reserved = this.reservedWidth(clientWidth);
    this.width = clientWidth - this.reserved;
    this.layOut() || this.paintHead();
    this.paint(true);
  }

  /** Give the columns their widths, by what is open. @returns {boolean | void} whether other columns stand there now */
  layOut() {
    const before = this.columns;
    // On a phone the shape says how many elements there are, unless the reader wants the column.
    this.columns = this.view.columns.filter(({ hidden, name }) => !(hidden ?? (this.isSlim && name === "elements")));
    // No column moves while an edge is dragged.
    const stays = this.isNarrow && this.widths.chosen.size && before.length === this.columns.length && this.columns.every((column) => before.includes(column));
    if (stays) this.columns = before;
    const fit = (mostWords, maxType) => (this.layout = this.widths.layOut(this.columns, this.width, mostWords, maxType));
    fit();
    if (this.isNarrow && !stays && this.layout.total > this.width) {
      // What is urgent stands before the type: two columns of words or curves, curves first, and those like the second, cut
      // as far as it takes; and after it the numbers that were asked for, where it fits, too.
      const { widths, least } = this.layout;
      const room = this.width - widths[0];
      const width = (column) => widths[this.columns.indexOf(column) + 1];
      const rank = ({ labels, urgency = labels ? 3 : 0 }) => urgency;
      const asked = this.columns.filter((column) => column.urgency || column.hidden === false || !USUAL.test(column.format + column.name)).sort((a, b) => rank(b) - rank(a));
      const first = asked.filter((column) => rank(column) > 2).filter((column, i, all) => i < 2 || column.help === all[1].help);
      const needed = (most) => first.reduce((sum, column) => sum + GAP + (column.labels ? Math.min(most, width(column)) : width(column)), 0);
      let mostWords = Math.max(...widths);
      while (needed(mostWords) >= room && mostWords > LEAST_WORDS) mostWords -= CH;
      fit(mostWords);
      let left = this.width - this.layout.widths[0];
      const before = asked.filter((column) => (left -= this.layout.widths[this.columns.indexOf(column) + 1] + GAP) > (first.includes(column) ? 0 : least + 2 * GAP));
      const place = (column) => (first.includes(column) ? 0 : column.format === "type" ? 1 : before.includes(column) ? 2 : 3);
      this.columns.sort((a, b) => place(a) - place(b));
      fit(mostWords);
      // Types are cut rather than that the number beside them is out of sight, if the view is about it.
      const at = 1 + this.columns.findIndex(({ format }) => format === "type");
      const over = this.layout.ends[at + 1] - this.width + GAP;
      if (over > 0 && this.columns[at].isNumber && !OF_SIZES.test(this.columns[at].name)) fit(mostWords, Math.max(CUT * CH, this.layout.widths[at] - over));
    }
    if (this.nPrinted) {
      this.columns = this.columns.filter((_, i) => this.layout.ends[i + 1] <= this.width);
      fit();
    }
    const { widths, total, step } = this.layout;
    // paint sets it when it has asked where the reader is, or the browser would lay out the old rows before the new ones.
    this.style = [`--tracks:${widths.map((width) => `${width}px`).join(" ")}`, `--total:${total}px`, `--step:${step}px`, `--most:${this.reserved ? 9999 : Math.max(FRAME, total) + 20}px`];
    // Keep the elements of the rows: replacing one between mouse down and mouse up would lose the click.
    if (before.length === this.columns.length && !before.some((column, i) => column !== this.columns[i])) return;
    this.drawn = {};
    this.template = null;
    this.paintHead();
    return true;
  }

  #setStyle() {
    // The browser computes the style of all that is inside anew, so what is for rows is not set around the tools.
    this.style.forEach((each, i) => each !== this.styleBefore[i] && (i > 2 ? this.view.root : this.element).style.setProperty(...each.split(":")));
    this.styleBefore = this.style;
    // Each sticky cell costs the browser something.
    this.element.classList.toggle("sliding", this.layout.total > this.width);
  }

  paintHead() {
    const { sorting } = this.view;
    const focused = [...this.head.children].indexOf(this.head.getRootNode().activeElement);
    const title = (column, i) => {
      const order = sorting.column === column ? (sorting.descending ? "descending" : "ascending") : "";
      const arrow = order && h("span", { class: "arrow", "aria-hidden": "true" }, sorting.descending ? "▼" : "▲");
      return h("button", { class: `cell ${column.format}`, title: `${column.help ? `${column.help}\n` : ""}Sort by ${column.title} (Shift: leaves only)`, "aria-label": order ? `${column.title}, sorted ${order}` : undefined,
        tabindex: i === Math.max(0, focused) ? "0" : "-1", click: ({ shiftKey }) => (shiftKey ? this.view.setFlat(true, column) : this.view.sortBy(column)) }, column.title, arrow, this.#edge(column, i));
    };
    this.head.replaceChildren(...[this.view.keyColumn, ...this.columns].map(title));
    this.head.children[focused]?.focus();
  }

  /** The right edge of a title: dragging it changes the width of its column, a double click fits it. */
  #edge(column, i) {
    const set = (width, cells) => {
      this.widths.choose(column, width, cells);
      this.layOut();
      this.paint(true);
    };
    return h("i", {
      "aria-hidden": "true",
      click: (event) => event.stopPropagation(),
      dblclick: () => set(NaN, this.pool.map((row) => row.children[i])),
      pointerdown: ({ target, pointerId, clientX }) => {
        target.setPointerCapture(pointerId);
        target.beside = this.layout.widths[i] - clientX; // the pointer is not on the edge itself
      },
      pointermove: ({ target, pointerId, clientX }) => target.hasPointerCapture(pointerId) && set(clientX + target.beside),
    });
  }

  /** Say how many columns are to the right. */
  #tellMore() {
    const right = this.element.scrollLeft + this.width;
    const n = this.layout.ends.filter((end) => end > right + 1).length;
    if (this.nMore === n) return;
    this.nMore = n;
    this.more.hidden = !n;
    this.more.textContent = `+${n} ›`;
    this.more.title = `More columns to the right: ${n}`;
  }

  /** Put the rows on the screen into the document. @param {boolean | null} [all] also if the same ones are there: true if the data may have changed, false if only what is open, active, selected, sorted or found */
  paint(all) {
    const { rows } = this.view;
    const { clientHeight, scrollTop } = this.element;
    const total = rows.count * ROW_HEIGHT;
    const height = Math.min(total, MAX_HEIGHT);
    const sight = clientHeight - this.head.offsetHeight;
    this.#tellMore();
    if (total === height || scrollTop <= 0) this.shift = 0;
    else if (scrollTop >= height - sight - 1) this.shift = total - height;
    else if (Math.abs(scrollTop - this.lastTop) > sight) this.shift = Math.round((scrollTop / (height - sight)) * (total - sight)) - scrollTop;
    this.lastTop = scrollTop;
    const top = Math.max(0, Math.min(scrollTop + this.shift, total - sight));
    const first = this.nPrinted ? 0 : Math.floor(top / ROW_HEIGHT);
    // A view of few rows grows when more are open: they are there before.
    const n = this.nPrinted || Math.min(rows.count - first, Math.ceil((sight + Math.max(0, this.most - clientHeight)) / ROW_HEIGHT) + 1);
    // Rows that are cut by the upper edge are below their ancestors.
    const below = this.nPrinted ? 0 : Math.ceil(top / ROW_HEIGHT);
    if (all == null && first === this.first && n === this.n && below === this.below) return;
    this.#setStyle();
    this.tree.style.height = `${height}px`;
    if (all) {
      this.edition++;
      if (rows.folds) rows.folds.found = {};
    }
    if (Object.keys(this.drawn).length > MAX_DRAWN) this.drawn = {};
    this.below = below;
    this.first = first;
    this.n = n;
    this.pool = this.#put(this.window, rows.visible.subarray(first, first + n));
    this.#paintAbove();
    this.window.style.transform = `translateY(${first * ROW_HEIGHT - this.shift}px)`;
    setAttribute(this.tree, "aria-activedescendant", this.window.querySelector(".active")?.id);
    this.view.emit("paint");
  }

  /** Show the ancestors, but the root, of the first rows on the screen above them. */
  #paintAbove() {
    const { tree, rows } = this.view;
    const at = (i) => rows.visible[this.below + i];
    const skip = Math.max(0, tree.depth[at(0)] - 1 - MAX_ABOVE);
    const shown = [];
    while (this.below && !rows.isFlat && shown.length < MAX_ABOVE && this.below + shown.length < rows.count) {
      const depth = skip + shown.length + 1;
      let row = at(shown.length);
      if (tree.depth[row] <= depth) break;
      while (tree.depth[row] > depth) row = tree.parent[row];
      shown.push(row);
    }
    this.#put(this.above, shown);
  }

  /** Show rows in a place. @param {HTMLElement} place @param {Iterable<number>} rows */
  #put(place, rows) {
    const shown = Array.from(rows, (row) => this.#fill(place, row));
    for (const element of place.querySelectorAll(".row")) if (!shown.includes(element)) element.remove();
    // One that stays where it is keeps its layout.
    shown.reduceRight((next, element) => (element.parentNode && element.nextSibling === next ? element : place.insertBefore(element, next)), null);
    return shown;
  }

  /** Say the whole path and the static fields of the name under the pointer, and offer to copy it. @param {any} event */
  #hover({ target }) {
    const key = target.closest(".row .key");
    if (!key || key.contains(this.copier)) return;
    const { tree, rows } = this.view;
    const row = +key.parentElement.dataset.row;
    const name = rows.label(row);
    // A path may lead to a key by its place: treeviz.child(tree, 1).
    key.title = [...(key.textContent === name ? [] : [name]), tree.expression(row).slice(-LONG_PATH), ...fieldTexts(tree, tree.factCodes[row])].join("\n");
    key.append(this.copier);
  }

  /** Scroll until a visible row, given by its index among them, is on the screen. @param {number} index @param {boolean | null} [all] of paint */
  scrollTo(index, all = false) {
    const { rows } = this.view;
    const total = rows.count * ROW_HEIGHT;
    const sight = this.element.clientHeight - this.head.offsetHeight;
    const top = this.element.scrollTop + this.shift;
    const wanted = index * ROW_HEIGHT;
    // The ancestors of the row cover as much.
    const free = wanted - ROW_HEIGHT * Math.max(0, Math.min(MAX_ABOVE, rows.depth(rows.visible[index]) - 1));
    if ((free >= top || !top) && wanted + ROW_HEIGHT <= top + sight) return this.paint(all);
    const far = Math.abs(wanted - top) > 2 * sight;
    const goal = Math.max(0, Math.min(total - sight, far ? wanted - sight / 2 : free < top ? free : wanted + ROW_HEIGHT - sight));
    const height = Math.min(total, MAX_HEIGHT);
    this.tree.style.height = `${height}px`;
    this.element.scrollTop = total === height ? goal : (goal / (total - sight)) * (height - sight);
    this.lastTop = this.element.scrollTop;
    this.shift = total === height ? 0 : Math.round(goal - this.lastTop);
    this.paint(false);
  }

  #newRow() {
    const cell = (name) => h("span", { class: `cell ${name}` });
    return h("div", { role: "treeitem" }, cell("key"), ...this.columns.map((column) => cell(column.format + (hasBar(column) ? " bar" : ""))));
  }

  /** The element of a row in a place; it is drawn, unless it shows all that there is now. @param {HTMLElement} place @param {number} row */
  #fill(place, row) {
    const element = (this.drawn[place.className + row] ??= (this.template ??= this.#newRow()).cloneNode(true));
    const { tree, rows, selected, active } = this.view;
    const { end, parent } = tree;
    const open = rows.hasChildren(row) ? rows.isOpen(row) : undefined;
    const { step, maxLevels, widths } = this.layout;
    const [glyph, look] = tree.of(row, "sign").split(" ");
    const isLeaf = tree.of(row, "is_leaf");
    const notes = foldedNotes(rows.folds, tree, row);
    const name = rows.label(row);
    const depth = rows.depth(row);
    const texts = this.columns.map((column) => (column.isNumber || column.labels ? foldedText(rows.folds, column, row) : ""));
    const attributes = {
      class: `row ${row === active ? "active" : ""} ${rows.hits?.[row] ? "hit" : ""}`,
      id: place === this.above ? undefined : `row${row}`,
      "data-row": row,
      "data-look": look ?? (isLeaf ? "leaf" : undefined),
      "data-ghost": isLeaf || tree.nChildren[row] || look === "bad" ? undefined : "",
      "aria-level": depth + 1,
      "aria-setsize": rows.isFlat ? rows.count : rows.nSeen[tree.parent[row] + 1],
      "aria-posinset": rows.placeAmong[row],
      "aria-selected": selected.has(row),
      "aria-expanded": open,
      "aria-label": [name, tree.what(tree.factCodes[row]) + scalarText(this.view, row), ...notes.map((note) => note[0]), open === false && this.view.inside?.(row),
        ...this.columns.map(({ title }, i) => texts[i] && `${title} ${texts[i]}`)].filter(Boolean).join(", "),
    };
    const shown = attributes["aria-label"] + maxLevels + this.style + this.edition;
    const drawn = Object.values(attributes) + shown;
    if (element.drawn === drawn) return element;
    // Others may have changed one that they give no text.
    const before = element.drawn ? element.before : {};
    for (const name in attributes) if (attributes[name] !== before[name]) setAttribute(element, name, attributes[name]);
    element.drawn = drawn;
    element.before = { ...attributes, shown };
    if (shown === before.shown) return element;
    const indent = Math.min(depth, maxLevels) * step;
    const [key, ...cells] = /** @type {HTMLElement[]} */ ([...element.children]);
    key.dataset.glyph = glyph;
    key.style.setProperty("--indent", `${indent}px`);
    const label = depth > maxLevels ? `⋯${depth} ${name}` : name;
    const room = (widths[0] - SIGNS - indent) / CH;
    key.textContent = room > 3 && label.length > Math.max(room, 12) ? cutName(label, tree.label(end[row] < end[parent[row]] ? end[row] : parent[row] + 1), room) : label;
    this.columns.forEach((column, i) => {
      if (column.format === "type") fillType(cells[i], this.view, row, notes, widths[i + 1] / CH);
      else if (column.draw) cells[i].replaceChildren(column.draw(row));
      else cells[i].textContent = texts[i];
      const [spec, origin] = texts[i].split(" ← ");
      cells[i].classList.toggle("dim", !!origin);
      // Each spec of an overlay has a hue; the first labels are "" and that of no spec.
      const number = column.help?.includes("←") ? column.labels.indexOf(spec) : 0;
      cells[i].classList.toggle("edge", number > 1);
      if (number > 1) cells[i].style.setProperty("--edge", `oklch(.65 .17 ${number * 137})`);
      cells[i].classList.toggle("bad", /NaN|Inf/.test(texts[i] !== "0" && texts[i] && column.title + texts[i]));
      if (hasBar(column)) cells[i].style.backgroundSize = `${shareOf(column, row, rows.folds)}% 3px, 100% 3px`;
    });
    return element;
  }

  /** The row at the position of a mouse event, and whether the position is on its arrow. @param {MouseEvent} event */
  rowAt(event) {
    const element = /** @type {any} */ (event.target).closest(".row");
    if (!element) return { row: -1 };
    const key = element.firstChild;
    return { row: +element.dataset.row, onArrow: event.clientX - key.getBoundingClientRect().left < parseFloat(key.style.getPropertyValue("--indent")) + 20 };
  }
}
