// @ts-check
// The column of sparklines: a small line in every row, on the row's own scale, and the last value. One canvas covers the column.
import { LOG_SCALE } from "./chart.js";
import { h } from "../tree/dom.js";
import { CH, GAP } from "../tree/columns.js";
import { ROW_HEIGHT } from "../tree/grid.js";

/** @typedef {import("./series_view.js").SeriesView} SeriesView */

const [WIDE, SLIM, N_DIGITS] = [16, 9, 10]; // in characters
const STROKE = 1.2;
const TILE = 6; // pixels of the hatching

export class Sparklines {
  /** @param {SeriesView} seriesView */
  constructor(seriesView) {
    this.seriesView = seriesView;
    this.isSlim = false;
    this.canvas = h("canvas", { class: "sparklines", "aria-hidden": "true" });
    this.hatch = h("canvas");
    const sparklines = this;
    /** The column as the grid needs it. */
    this.column = {
      name: "series",
      format: "sparkline",
      help: "all steps, on the row's own scale; hatched: not finite; sorts by the last value",
      isNumber: true,
      urgency: 4,
      hidden: false,
      /** The last value: where the table has it, with all digits. @param {number} row */
      text: (row) => {
        const { series, view } = seriesView;
        const column = view.tree.columns.find(({ name }) => name === series.name.replace(/\.(\w+)$/, "_$1"));
        const value = series.value(row, series.n - 1);
        return column ? column.text(row) : this.column.isBad(row) ? "NaN/Inf" : value === value ? series.number(value) : "";
      },
      isBad: (row) => seriesView.series.isBad(row, seriesView.series.n - 1),
      get title() {
        return seriesView.series.title + (seriesView.isLog && !sparklines.isSlim ? LOG_SCALE : "");
      },
      get values() {
        return seriesView.series.lastValues;
      },
      get width() {
        return N_DIGITS + (sparklines.isSlim ? SLIM : WIDE);
      },
    };
  }

  /** Draw the sparklines of all rows on the screen. */
  paint() {
    const { seriesView, canvas } = this;
    const { grid, rows } = seriesView.view;
    const place = grid.columns.indexOf(this.column);
    canvas.hidden = place < 0;
    if (place < 0) return;
    const [width, height] = [Math.max(0, Math.floor(grid.layout.widths[place + 1] - N_DIGITS * CH)), grid.n * ROW_HEIGHT];
    const { scale, colors } = seriesView;
    // It is empty then. clearRect would clear a sheet of paper, too, of all that was printed there before.
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.style.left = `${grid.layout.ends[place] + GAP}px`;
    const ctx = canvas.getContext("2d");
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    const shown = rows.visible.subarray(grid.first, grid.first + grid.n);
    ctx.strokeStyle = colors.accent;
    ctx.lineWidth = STROKE;
    ctx.beginPath();
    shown.forEach((row, i) => addLine(ctx, seriesView.series, row, i * ROW_HEIGHT, width, seriesView.isLog));
    ctx.stroke();
    ctx.fillStyle = ctx.createPattern(hatchTile(this.hatch, colors, 1), "repeat");
    shown.forEach((row, i) => hatchBad(ctx, seriesView.series, row, i * ROW_HEIGHT, width));
  }
}

const xOf = (series, bucket, width) => 1 + ((bucket + 0.5) / series.n) * (width - 2);

/** Add a row's line to a canvas: from the last value of each bucket up to its greatest. Where buckets share a pixel, from their least value to their greatest. */
export function addLine(ctx, series, row, top, width, isLog = true) {
  const { n } = series;
  const at = (place) => (isLog ? place : series.valueAt(place));
  const [low, high] = series.extent(row).map(at);
  const isFlat = !(high > low);
  const yOf = (place) => top + (place === -Infinity ? ROW_HEIGHT - 4 : isFlat ? ROW_HEIGHT / 2 : 4 + (1 - (place - low) / (high - low)) * (ROW_HEIGHT - 9));
  const perPixel = Math.max(1, Math.floor((2 * n) / width));
  let penIsDown = false;
  for (let from = 0; from < n; from += perPixel) {
    let least = Infinity;
    let most = -Infinity;
    for (let bucket = from; bucket < Math.min(n, from + perPixel); bucket++) {
      const place = at(series.place(row, bucket));
      if (place !== place || series.isBad(row, bucket)) continue;
      if (place < least) least = place;
      most = Math.max(most, at(series.band(row, bucket)[1]));
    }
    const isAny = least < Infinity;
    if (isAny) {
      const x = xOf(series, from + (perPixel - 1) / 2, width);
      if (penIsDown) ctx.lineTo(x, yOf(least));
      else ctx.moveTo(x - 0.5, yOf(least));
      ctx.lineTo(x, yOf(most));
    }
    penIsDown = isAny;
  }
}

/** Fill the steps in which a row is not finite, wide enough to be seen. */
export function hatchBad(ctx, series, row, top, width) {
  for (const [from, to] of series.badRuns(row, 0, series.n)) {
    const x = Math.max(0, Math.min(xOf(series, from - 0.5, width), width - 5));
    ctx.fillRect(x, top + 3, Math.max(xOf(series, to - 0.5, width) - x, 5), ROW_HEIGHT - 6);
  }
}

/** A canvas with the hatching of what is not finite, to be repeated. @param {HTMLCanvasElement} tile @param {{bad: string, badGround: string}} colors @param {number} scale */
export function hatchTile(tile, colors, scale) {
  const size = (tile.width = tile.height = Math.round(TILE * scale));
  const ctx = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  ctx.fillStyle = colors.badGround;
  ctx.fillRect(0, 0, size, size);
  ctx.strokeStyle = colors.bad;
  ctx.lineWidth = size / 3.5;
  for (const at of [-size, 0, size]) {
    ctx.moveTo(at - 1, size + 1);
    ctx.lineTo(at + size + 1, -1);
  }
  ctx.stroke();
  return tile;
}
