// @ts-check
// Beside the rows on the screen, for each of them a strip: leaves x steps.
import { PALETTE } from "./colours.js";
import { h } from "./dom.js";
import { ROW_HEIGHT } from "./grid.js";
import { countText } from "./numbers.js";
import { cross } from "./sparks.js";

/** @typedef {import("./history.js").History} History */

const MIN_WIDTH = 700; // of the view; below it there is no heat map
const ROWS = 600; // what the rows need
const MAX_ROWS = 1100; // and what they can use
const TICK = 76;
const HATCH = 9;

export class Heat {
  /** @param {History} history */
  constructor(history) {
    this.history = history;
    this.width = 0;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.line = h("div", { class: "at-step", hidden: true });
    this.element = h("div", { class: "heat", role: "slider", tabindex: "0", "aria-valuemin": "0" }, this.canvas, this.line);
    this.axis = h("div", { class: "axis", "aria-hidden": "true" });
    this.cells = document.createElement("canvas");
    this.hatch = document.createElement("canvas");
    this.#listen();
  }

  /** How much of the view it takes. @param {number} width */
  take(width) {
    const wanted = width < MIN_WIDTH ? 0 : Math.max(Math.min(width - ROWS, width / 2), width - MAX_ROWS);
    this.width = Math.floor(wanted);
    this.element.hidden = this.axis.hidden = !this.width;
    this.history.panel.element.classList.toggle("alone", !this.width);
    this.history.view.grid.element.style.setProperty("--beside", `${this.width}px`);
    return this.width;
  }

  /** Draw the strips of the rows on the screen. */
  paint() {
    const { view, series, scale, colours } = this.history;
    const { first = 0, n = 0 } = view.grid;
    if (!this.width || !n) return;
    const width = Math.round((this.width - 1) * scale);
    const tall = ROW_HEIGHT * scale;
    const { canvas } = this;
    if (canvas.width !== width || canvas.height !== Math.round(n * tall)) {
      canvas.width = width;
      canvas.height = Math.round(n * tall);
    }
    this.element.style.height = canvas.style.height = `${n * ROW_HEIGHT}px`;
    this.element.style.transform = view.grid.window.style.transform;
    const paper = canvas.getContext("2d");
    paper.clearRect(0, 0, width, canvas.height);
    const [from, to] = this.history.span(series);
    const until = Math.min(to, series.n);
    const rows = view.rows.visible.subarray(first, first + n);
    this.#fill_cells(rows, from, to, Math.min(to - from, width));
    paper.imageSmoothingEnabled = false;
    paper.drawImage(this.cells, 0, 0, this.cells.width, n, 0, 0, width, n * tall);
    const x_of = (column) => ((column - from) / (to - from)) * width;
    const gap = Math.max(1, Math.round(scale));
    rows.forEach((row, i) => {
      const top = Math.round(i * tall);
      paper.clearRect(0, top + Math.round(tall) - 2 * gap, width, 2 * gap);
      paper.fillStyle = colours.dim;
      for (const [start, end] of series.zero_runs(row, from, until))
        paper.fillRect(x_of(start), top + tall / 2 - gap, Math.max(x_of(end) - x_of(start), gap), gap);
      this.#mark_bad(paper, row, top, tall - 2 * gap, x_of, from, until);
      if (row === view.active) {
        paper.fillStyle = colours.accent;
        paper.fillRect(0, top + Math.round(tall) - 2 * gap, width, gap);
      }
    });
    this.#mark_findings(paper, rows, tall, x_of, from, to);
    this.point();
  }

  /** A pixel for each cell; where there are more cells than pixels, the greatest counts. */
  #fill_cells(rows, from, to, width) {
    const { series, is_log } = this.history;
    const [low, high] = series.range[is_log ? 0 : 1];
    const per_unit = 255 / (high - low);
    const cells = this.cells;
    cells.width = width;
    cells.height = rows.length;
    const paper = /** @type {CanvasRenderingContext2D} */ (cells.getContext("2d"));
    const image = paper.createImageData(width, rows.length);
    const pixels = new Uint32Array(image.data.buffer);
    const bounds = Int32Array.from({ length: width + 1 }, (_, x) => from + Math.floor((x * (to - from)) / width));
    const needs_power = series.is_log && !is_log;
    let at = 0;
    for (const row of rows) {
      for (let x = 0; x < width; x++, at++) {
        let most = -Infinity;
        for (let column = bounds[x]; column < Math.min(series.n, bounds[x + 1]); column++) {
          const place = series.place(row, column);
          if (place > most) most = place;
        }
        if (most === -Infinity) continue;
        const level = ((needs_power ? 10 ** most : most) - low) * per_unit;
        pixels[at] = PALETTE[level <= 0 ? 0 : level >= 255 ? 255 : level | 0];
      }
    }
    paper.putImageData(image, 0, 0);
  }

  /** Crosses, on ground of their own, however narrow a cell is. */
  #mark_bad(paper, row, top, tall, x_of, from, to) {
    const { series, scale } = this.history;
    const least = HATCH * scale;
    for (const [start, end] of series.bad_runs(row, from, to)) {
      const width = Math.max(x_of(end) - x_of(start), least);
      const x = Math.max(0, Math.min(x_of(start), paper.canvas.width - width));
      paper.save();
      paper.translate(x, top);
      paper.fillStyle = this.pattern;
      paper.fillRect(0, 0, width, tall);
      paper.restore();
    }
  }

  /** A small flag where something was found. */
  #mark_findings(paper, rows, tall, x_of, from, to) {
    const { series, scale, colours } = this.history;
    const places = new Map();
    rows.forEach((row, i) => places.set(row, i));
    for (const [row, column] of series.marks) {
      if (!places.has(row) || column < from || column >= to) continue;
      const x = Math.max(5 * scale, (x_of(column) + x_of(column + 1)) / 2);
      const y = Math.round(places.get(row) * tall);
      paper.beginPath();
      paper.moveTo(x - 5 * scale, y);
      paper.lineTo(x + 5 * scale, y);
      paper.lineTo(x, y + 8 * scale);
      paper.closePath();
      paper.fillStyle = colours.paper;
      paper.strokeStyle = colours.bad;
      paper.lineWidth = 1.5 * scale;
      paper.fill();
      paper.stroke();
    }
  }

  /** What depends on the theme. */
  use_colours() {
    const { colours, scale } = this.history;
    const tile = this.hatch;
    tile.width = Math.round(HATCH * scale);
    tile.height = Math.round(ROW_HEIGHT * scale);
    const paper = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
    paper.fillStyle = colours.paper;
    paper.fillRect(0, 0, tile.width, tile.height);
    paper.strokeStyle = colours.bad;
    paper.lineWidth = 1.5 * scale;
    cross(paper, tile.width / 2, tile.height / 2 - scale, 2.8 * scale);
    paper.stroke();
    this.pattern = /** @type {CanvasPattern} */ (paper.createPattern(tile, "repeat"));
  }

  paint_axis() {
    const { series } = this.history;
    const [from, to] = this.history.span(series);
    const n = Math.max(1, Math.min(to - from, Math.floor(this.width / TICK)));
    const columns = Array.from({ length: n }, (_, i) => from + Math.floor((i * (to - from)) / n)).filter((column) => column < series.n);
    const tick = (column) => {
      const label = h("span", {}, countText(series.first[column]));
      label.style.left = `${(100 * (column - from)) / (to - from)}%`;
      return label;
    };
    this.axis.replaceChildren(...columns.map(tick));
  }

  /** The line at the step that is read. */
  point() {
    const { series, step, view } = this.history;
    const [from, to] = this.history.span(series);
    const column = step === null ? -1 : series.column_at(step);
    this.line.hidden = column < from || column >= Math.min(to, series.n);
    const part = (column + 0.5 - from) / (to - from);
    this.line.style.left = `${100 * part}%`;
    const label = (text, value) => this.element.setAttribute(`aria-${text}`, value);
    label("label", `Heat map of the ${series.title}, ${view.tree.label(view.active)}`);
    label("valuemax", series.n - 1);
    label("valuenow", Math.max(0, column));
    label("valuetext", this.history.words(view.active, Math.max(0, column)));
  }

  /** The row and the column at a place. @param {MouseEvent} event */
  #place(event) {
    const { view, series } = this.history;
    const box = this.element.getBoundingClientRect();
    const [from, to] = this.history.span(series);
    const i = Math.floor((event.clientY - box.top) / ROW_HEIGHT);
    const part = (event.clientX - box.left) / box.width;
    const column = Math.max(from, Math.min(to - 1, series.n - 1, from + Math.floor(part * (to - from))));
    return { row: view.rows.visible[Math.min(view.rows.count - 1, Math.max(0, view.grid.first + i))], column };
  }

  #listen() {
    const { history } = this;
    const { view } = history;
    const on = (type, listen) => this.element.addEventListener(type, listen);
    let start = -1;
    let x = 0;
    on("pointermove", (/** @type {PointerEvent} */ event) => {
      const { row, column } = this.#place(event);
      history.read(row, history.series.first[column]);
      if (start >= 0 && Math.abs(event.clientX - x) > 5) this.element.classList.add("dragged");
    });
    on("pointerdown", (/** @type {PointerEvent} */ event) => {
      if (event.button) return;
      start = this.#place(event).column;
      x = event.clientX;
      this.element.setPointerCapture(event.pointerId);
    });
    on("pointerup", (/** @type {PointerEvent} */ event) => {
      const { row, column } = this.#place(event);
      const { series } = history;
      const was_drag = start >= 0 && Math.abs(event.clientX - x) > 5;
      if (was_drag) history.zoom(series.first[Math.min(start, column)], series.last[Math.max(start, column)]);
      else if (start >= 0) view.go(row);
      start = -1;
      this.element.classList.remove("dragged");
    });
    on("pointerleave", () => history.read(-1, history.step));
    on("dblclick", () => history.zoom(-Infinity, Infinity));
    on("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (this.#on_key(event.key)) (event.preventDefault(), event.stopPropagation());
    });
    on("focus", () => history.read(view.active, history.step ?? history.series.last[history.series.n - 1], true));
  }

  /** @param {string} key */
  #on_key(key) {
    const { history } = this;
    const { view, series } = history;
    const [from, shown] = history.span(series);
    const to = Math.min(shown, series.n);
    const here = history.step === null ? to - 1 : series.column_at(history.step);
    const page = Math.max(1, Math.round((to - from) / 10));
    const columns = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: from, End: to - 1, PageUp: here - page, PageDown: here + page };
    const rows = { ArrowDown: 1, ArrowUp: -1 };
    if (key in rows) view.go(view.rows.visible[Math.max(0, Math.min(view.rows.count - 1, view.rows.index(view.active) + rows[key]))], "none");
    else if (key === "Enter") view.go(view.active);
    else if (key === "Escape") view.grid.tree.focus();
    else if (!(key in columns)) return false;
    if (key !== "Escape") history.read(view.active, series.first[Math.max(from, Math.min(to - 1, columns[key] ?? here))], true);
    return true;
  }
}
