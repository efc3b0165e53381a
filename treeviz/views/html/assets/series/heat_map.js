// @ts-check
// The heat map at the right of the rows: a strip of color for each row on the screen, steps from left to right.
import { h } from "../tree/dom.js";
import { ROW_HEIGHT } from "../tree/grid.js";
import { hatchTile } from "./sparklines.js";

/** @typedef {import("./series_view.js").SeriesView} SeriesView */

const MIN_WIDTH = 700; // of the view, for a heat map to be shown
const ROWS = 600; // pixels that the rows need
const MAX_ROWS = 1100; // pixels that the rows can use
const TICK = 76;
const STRIP = 460; // the most pixels of a strip in the details
const LEAST_BAD = 7; // pixels of what is not finite

export class HeatMap {
  /** @param {SeriesView} seriesView */
  constructor(seriesView) {
    this.seriesView = seriesView;
    this.width = 0;
    /** Its entry in the menu of columns. */
    this.panel = { title: "heat map", hidden: false };
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.line = h("div", { class: "at-step", hidden: true });
    /** The steps between the press of a button and the pointer. */
    this.band = h("div", { class: "band", hidden: true });
    this.element = h("div", { class: "heat-map", role: "slider", tabindex: "0", "aria-valuemin": "0" }, this.canvas, this.band, this.line);
    this.axis = h("div", { class: "axis", "aria-hidden": "true" });
    this.cells = h("canvas");
    this.hatch = h("canvas");
    this.#listen();
  }

  /** Set the width of the heat map for a width of the view. @param {number} width */
  take(width) {
    const wanted = this.panel.hidden || width < MIN_WIDTH ? 0 : Math.max(Math.min(width - ROWS, width / 2), width - MAX_ROWS);
    this.width = Math.floor(wanted);
    this.element.hidden = this.axis.hidden = !this.width;
    this.seriesView.view.root.classList.toggle("alone", !this.width);
    this.seriesView.view.grid.element.style.setProperty("--reserved", `${this.width}px`);
    return this.width;
  }

  /** Draw the strips of all rows on the screen. */
  paint() {
    const { view, scale } = this.seriesView;
    const { first = 0, n = 0 } = view.grid;
    if (!this.width || !n) return;
    this.#draw(this.canvas, view.rows.visible.subarray(first, first + n), Math.round((this.width - 1) * scale));
    this.element.style.height = this.canvas.style.height = `${n * ROW_HEIGHT}px`;
    this.element.style.transform = view.grid.window.style.transform;
    this.point();
  }

  /** The strip of a row for its details, where there is no heat map. @param {number} row @returns {HTMLElement[]} */
  strip(row) {
    const { series, scale } = this.seriesView;
    if (this.width || this.panel.hidden) return [];
    const canvas = h("canvas", { "aria-hidden": "true" });
    this.#draw(canvas, [row], Math.round(STRIP * scale));
    const [from, to] = this.seriesView.span(series);
    return [h("figure", { class: "over-time strip-of-row" }, canvas, h("span", {}, `step ${countText(series.first[from])}`), h("span", {}, countText(series.last[Math.min(to, series.n) - 1])))];
  }

  /** Draw the strips of rows into a canvas. @param {HTMLCanvasElement} canvas @param {ArrayLike<number>} visible @param {number} width */
  #draw(canvas, visible, width) {
    const { view, series, scale, colors } = this.seriesView;
    const rows = [...visible];
    const n = rows.length;
    const tall = ROW_HEIGHT * scale;
    // As in sparklines.js, no clearRect.
    canvas.width = width;
    canvas.height = Math.round(n * tall);
    const ctx = canvas.getContext("2d");
    const [from, to] = this.seriesView.span(series);
    const until = Math.min(to, series.n);
    this.#fillCells(rows, from, to, Math.min(to - from, width));
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(this.cells, 0, 0, this.cells.width, n, 0, 0, width, n * tall);
    const xOf = (bucket) => ((bucket - from) / (to - from)) * width;
    const gap = Math.max(1, Math.round(scale));
    rows.forEach((row, i) => {
      const top = Math.round(i * tall);
      ctx.fillStyle = colors.background;
      ctx.fillRect(0, top + Math.round(tall) - 2 * gap, width, 2 * gap);
      ctx.fillStyle = colors.dim;
      for (const [start, end] of series.zeroRuns(row, from, until))
        for (let x = xOf(start); x < Math.max(xOf(end), xOf(start) + 1); x += 4 * gap) ctx.fillRect(x, top + tall / 2 - 1.5 * gap, 1.5 * gap, 1.5 * gap);
      this.#markBad(ctx, row, top, tall - 2 * gap, xOf, from, until);
      if (row === view.active && canvas === this.canvas) {
        ctx.fillStyle = colors.accent;
        ctx.fillRect(0, top + Math.round(tall) - 2 * gap, width, gap);
      }
    });
    this.#markFindings(ctx, rows, tall, xOf, from, to);
  }

  /** Draw a pixel for each cell; where cells share a pixel, the greatest value. */
  #fillCells(rows, from, to, width) {
    const { series, colorScale } = this.seriesView;
    colorScale.fit();
    const { low, high } = colorScale;
    const perUnit = 255 / (high - low);
    const palette = this.seriesView.palette.pixels;
    const cells = this.cells;
    cells.width = width;
    cells.height = rows.length;
    const ctx = /** @type {CanvasRenderingContext2D} */ (cells.getContext("2d"));
    const image = ctx.createImageData(width, rows.length);
    const pixels = new Uint32Array(image.data.buffer);
    const bounds = Int32Array.from({ length: width + 1 }, (_, x) => from + Math.floor((x * (to - from)) / width));
    let at = 0;
    for (const row of rows) {
      for (let x = 0; x < width; x++, at++) {
        let most = -Infinity;
        for (let bucket = bounds[x]; bucket < Math.min(series.n, bounds[x + 1]); bucket++) {
          const level = colorScale.level(row, bucket);
          if (level > most) most = level;
        }
        if (most === -Infinity) continue;
        const color = (most - low) * perUnit;
        pixels[at] = palette[color <= 0 ? 0 : color >= 255 ? 255 : color | 0];
      }
    }
    ctx.putImageData(image, 0, 0);
  }

  /** Hatch what is not finite, wide enough to be seen. */
  #markBad(ctx, row, top, tall, xOf, from, to) {
    const { series, scale } = this.seriesView;
    const least = LEAST_BAD * scale;
    for (const [start, end] of series.badRuns(row, from, to)) {
      const width = Math.max(xOf(end) - xOf(start), least);
      const x = Math.max(0, Math.min(xOf(start), ctx.canvas.width - width));
      ctx.save();
      ctx.translate(x, top);
      ctx.fillStyle = this.pattern;
      ctx.fillRect(0, 0, width, tall);
      ctx.restore();
    }
  }

  /** Draw a small flag at each finding. */
  #markFindings(ctx, rows, tall, xOf, from, to) {
    const { series, scale, colors } = this.seriesView;
    const places = new Map();
    rows.forEach((row, i) => places.set(row, i));
    for (const [row, bucket, , , severity] of series.marks) {
      if (!places.has(row) || bucket < from || bucket >= to) continue;
      const x = Math.max(5 * scale, (xOf(bucket) + xOf(bucket + 1)) / 2);
      const y = Math.round(places.get(row) * tall);
      ctx.beginPath();
      ctx.moveTo(x - 5 * scale, y);
      ctx.lineTo(x + 5 * scale, y);
      ctx.lineTo(x, y + 8 * scale);
      ctx.closePath();
      ctx.fillStyle = colors.background;
      ctx.strokeStyle = severity === "info" ? colors.dim : colors.bad;
      ctx.lineWidth = 1.5 * scale;
      ctx.fill();
      ctx.stroke();
    }
  }

  useColors() {
    const { colors, scale } = this.seriesView;
    const ctx = /** @type {CanvasRenderingContext2D} */ (this.hatch.getContext("2d"));
    this.pattern = /** @type {CanvasPattern} */ (ctx.createPattern(hatchTile(this.hatch, colors, scale), "repeat"));
  }

  paintAxis() {
    const { series, scalars } = this.seriesView;
    scalars.paint();
    const [from, to] = this.seriesView.span(series);
    const n = Math.min(to, series.n) - from;
    const wide = this.width / (to - from); // pixels of a place
    const [start, end] = [series.first[from], series.last[from + n - 1]];
    const least = ((end - start + 1) * TICK) / Math.max(TICK, wide * n);
    const unit = least < series.inner[0] / 2 ? 1 : series.inner[0];
    const apart = unit * roundStep(least / unit);
    const first = Math.ceil(start / apart) * apart;
    // Counted, since adding 1 to a step of 1e16 is not another step.
    let steps = Array.from({ length: (end - first) / apart + 1 }, (_, i) => first + i * apart);
    // A round step may lie between two places, as of checkpoints: then the steps of places.
    if (steps.some((step) => step > series.last[series.bucketAt(step)])) {
      const places = Math.ceil(TICK / wide); // between the labels of two
      steps = Array.from({ length: Math.ceil(n / places) }, (_, i) => series.first[from + i * places]);
    }
    this.axis.replaceChildren(scalars.strip, ...steps.flatMap((step) => {
      const bucket = series.bucketAt(step);
      const left = wide * (bucket - from + (step - series.first[bucket]) / (series.last[bucket] - series.first[bucket] + 1));
      const label = h("span", {}, series.stepText(step));
      label.style.left = `${left}px`;
      return left + 8 * label.textContent.length < this.width ? [label] : [];
    }));
  }

  /** @param {number} first @param {number} last bucket */
  #showBand(first, last) {
    const { series, readout } = this.seriesView;
    const [from, to] = this.seriesView.span(series);
    readout.textContent = series.spanText(series.first[first], series.last[last]);
    this.band.hidden = false;
    this.band.style.left = `${(100 * (first - from)) / (to - from)}%`;
    this.band.style.width = `${(100 * (last + 1 - first)) / (to - from)}%`;
  }

  /** The pixels from `left` to the line. @param {number} left */
  lineAt(left) {
    return this.width ? this.line.getBoundingClientRect().left - left : 0;
  }

  /** Move the line to the step under the pointer, and describe the cell to screen readers. */
  point() {
    const { series, step, view } = this.seriesView;
    const [from, to] = this.seriesView.span(series);
    const bucket = step === null ? -1 : series.bucketAt(step);
    this.line.hidden = bucket < from || bucket >= Math.min(to, series.n);
    const part = (bucket + 0.5 - from) / (to - from);
    this.line.style.left = `${100 * part}%`;
    const { element } = this;
    element.ariaLabel = `Heat map of the ${series.title}, ${view.tree.label(view.active)}`;
    element.ariaValueMax = series.n - 1;
    element.ariaValueNow = Math.max(0, bucket);
    element.ariaValueText = this.seriesView.readoutText(view.active, Math.max(0, bucket));
  }

  /** The row and the bucket under the pointer. @param {MouseEvent} event */
  #place(event) {
    const { view, series } = this.seriesView;
    const box = this.element.getBoundingClientRect();
    const [from, to] = this.seriesView.span(series);
    const i = Math.floor((event.clientY - box.top) / ROW_HEIGHT);
    const part = (event.clientX - box.left) / box.width;
    const bucket = Math.max(from, Math.min(to - 1, series.n - 1, from + Math.floor(part * (to - from))));
    return { row: view.rows.visible[Math.min(view.rows.count - 1, Math.max(0, view.grid.first + i))], bucket };
  }

  #listen() {
    const { seriesView } = this;
    const { view } = seriesView;
    const on = (type, listen) => this.element.addEventListener(type, listen);
    let start = -1;
    let x = 0;
    const readAt = (/** @type {PointerEvent} */ event) => {
      const { row, bucket } = this.#place(event);
      seriesView.read(row, seriesView.series.first[bucket], { event });
      return bucket;
    };
    on("pointermove", (/** @type {PointerEvent} */ event) => {
      const bucket = readAt(event);
      if (start >= 0 && Math.abs(event.clientX - x) > 5) this.#showBand(Math.min(start, bucket), Math.max(start, bucket));
    });
    on("pointerdown", (/** @type {PointerEvent} */ event) => {
      if (event.button) return;
      start = this.#place(event).bucket;
      x = event.clientX;
      this.element.setPointerCapture(event.pointerId);
    });
    on("pointerup", (/** @type {PointerEvent} */ event) => {
      const { row, bucket } = this.#place(event);
      const { series } = seriesView;
      const wasDrag = start >= 0 && Math.abs(event.clientX - x) > 5;
      if (wasDrag) seriesView.zoom(series.first[Math.min(start, bucket)], series.last[Math.max(start, bucket)]);
      else if (start >= 0) view.go(row);
      start = -1;
      this.band.hidden = true;
      if (wasDrag) readAt(event); // another step is under the pointer now
    });
    on("pointerleave", () => seriesView.read(-1, seriesView.step));
    on("dblclick", () => seriesView.zoom(-Infinity, Infinity));
    on("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (this.#onKey(event.key)) (event.preventDefault(), event.stopPropagation());
    });
    on("focus", () => seriesView.read(view.active, seriesView.step ?? seriesView.series.last[seriesView.series.n - 1]));
    on("blur", () => seriesView.read(-1, seriesView.step));
  }

  /** @param {string} key */
  #onKey(key) {
    const { seriesView } = this;
    const { view, series } = seriesView;
    const [from, shown] = seriesView.span(series);
    const to = Math.min(shown, series.n);
    const here = seriesView.step === null ? to - 1 : series.bucketAt(seriesView.step);
    const page = Math.max(1, Math.round((to - from) / 10));
    const buckets = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: from, End: to - 1, PageUp: here - page, PageDown: here + page };
    const rows = { ArrowDown: 1, ArrowUp: -1 };
    if (key in rows) view.go(view.rows.visible[Math.max(0, Math.min(view.rows.count - 1, view.rows.index(view.active) + rows[key]))], "none");
    else if (key === "Enter") view.go(view.active);
    else if (key === "Escape") view.grid.tree.focus();
    else if (!(key in buckets)) return false;
    if (key !== "Escape") seriesView.read(view.active, series.first[Math.max(from, Math.min(to - 1, buckets[key] ?? here))]);
    return true;
  }
}

/** The least of 1, 2, 5, 10, 20 … that is at least so large. @param {number} least */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return power * (/** @type {number} */ ([1, 2, 5, 10].find((digit) => digit * power >= least)));
}
