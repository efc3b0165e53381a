// @ts-check
// A small line in every row: how it went, on the row's own scale. One canvas lies over the column of all rows.
import { h } from "./dom.js";
import { ROW_HEIGHT } from "./grid.js";

/** @typedef {import("./history.js").History} History */

const [WIDE, SLIM] = [16, 9]; // in characters
const STROKE = 1.2;
const CROSS = 7; // pixels from one to the next

export class Sparks {
  /** @param {History} history */
  constructor(history) {
    this.history = history;
    this.is_slim = false;
    this.canvas = h("canvas", { class: "sparks", "aria-hidden": "true" });
    const sparks = this;
    /** The column, as the grid knows columns. */
    this.column = {
      name: "series",
      format: "spark",
      help: "how it went from the first step to the last, on the row's own scale; × is not finite. Sorts by the last value",
      is_number: true,
      is_urgent: true,
      hidden: false,
      text: () => "",
      get title() {
        return history.series.title;
      },
      get values() {
        return history.series.last_values;
      },
      get width() {
        return sparks.is_slim ? SLIM : WIDE;
      },
    };
  }

  /** Draw the lines of the rows on the screen. */
  paint() {
    const { history, canvas } = this;
    const { grid, rows } = history.view;
    const place = grid.columns.indexOf(this.column);
    canvas.hidden = place < 0;
    if (place < 0) return;
    const cell = /** @type {HTMLElement} */ (grid.head.children[place + 1]);
    const [width, height] = [cell.offsetWidth, grid.n * ROW_HEIGHT];
    const { scale, colours } = history;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.style.left = `${cell.offsetLeft}px`;
    canvas.style.transform = grid.window.style.transform;
    const paper = canvas.getContext("2d");
    paper.setTransform(scale, 0, 0, scale, 0, 0);
    paper.clearRect(0, 0, width, height);
    const shown = rows.visible.subarray(grid.first, grid.first + grid.n);
    paper.strokeStyle = colours.accent;
    paper.lineWidth = STROKE;
    paper.beginPath();
    shown.forEach((row, i) => add_line(paper, history.series, row, i * ROW_HEIGHT, width));
    paper.stroke();
    paper.strokeStyle = colours.bad;
    paper.lineWidth = STROKE + 0.2;
    paper.beginPath();
    shown.forEach((row, i) => add_crosses(paper, history.series, row, (i + 0.5) * ROW_HEIGHT, width));
    paper.stroke();
  }
}

const x_of = (series, column, width) => 1 + ((column + 0.5) / series.n) * (width - 2);

/** From the last value of each column to its greatest; where there are more columns than pixels, from the least of these to the greatest. */
export function add_line(paper, series, row, top, width) {
  const { n } = series;
  const [low, high] = series.extent(row);
  const is_flat = !(high > low);
  const y_of = (place) => top + (place === -Infinity ? ROW_HEIGHT - 4 : is_flat ? ROW_HEIGHT / 2 : 4 + (1 - (place - low) / (high - low)) * (ROW_HEIGHT - 9));
  const per_pixel = Math.max(1, Math.floor((2 * n) / width));
  let pen_is_down = false;
  for (let from = 0; from < n; from += per_pixel) {
    let least = Infinity;
    let most = -Infinity;
    for (let column = from; column < Math.min(n, from + per_pixel); column++) {
      const place = series.place(row, column);
      if (place !== place || series.is_bad(row, column)) continue;
      if (place < least) least = place;
      most = Math.max(most, series.band(row, column)[1]);
    }
    const is_any = least < Infinity;
    if (is_any) {
      const x = x_of(series, from + (per_pixel - 1) / 2, width);
      if (pen_is_down) paper.lineTo(x, y_of(least));
      else paper.moveTo(x - 0.5, y_of(least));
      paper.lineTo(x, y_of(most));
    }
    pen_is_down = is_any;
  }
}

export function add_crosses(paper, series, row, y, width) {
  let free = 3;
  for (const [from, to] of series.bad_runs(row, 0, series.n)) {
    const last = width - 3;
    let x = Math.max(free, Math.min(x_of(series, from, width), last));
    if (x > last) return;
    do {
      cross(paper, x, y, 2.5);
      x += CROSS;
    } while (x <= Math.min(x_of(series, to - 1, width), last));
    free = x;
  }
}

/** @param {CanvasRenderingContext2D} paper @param {number} x @param {number} y @param {number} size */
export function cross(paper, x, y, size) {
  paper.moveTo(x - size, y - size);
  paper.lineTo(x + size, y + size);
  paper.moveTo(x + size, y - size);
  paper.lineTo(x - size, y + size);
}
