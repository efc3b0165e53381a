// @ts-check
// A small line in every row: how it went, on the row's own scale.

/** @typedef {import("./history.js").History} History */

const SPARK_HEIGHT = 21;

/** The column of sparklines. @param {History} history */
export function spark_column(history) {
  return {
    name: "series",
    get title() {
      return history.series.title;
    },
    format: "spark",
    tag: "canvas",
    help: "how it went from the first step to the last, on the row's own scale; × is not finite. Sorts by the last value",
    is_number: true,
    hidden: false,
    get values() {
      return history.series.last_values;
    },
    get width() {
      return history.is_narrow ? 9 : 16;
    },
    /** @param {HTMLCanvasElement} cell @param {number} row */
    fill: (cell, row) => draw(history, cell, row),
  };
}

/** @param {History} history @param {HTMLCanvasElement} canvas @param {number} row */
function draw(history, canvas, row) {
  const { series, colours, scale } = history;
  const width = history.spark_width;
  if (canvas.width !== Math.round(width * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(SPARK_HEIGHT * scale);
  }
  const paper = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  paper.setTransform(scale, 0, 0, scale, 0, 0);
  paper.clearRect(0, 0, width, SPARK_HEIGHT);
  const { n, codes, n_codes } = series;
  const x_of = (column) => 1 + ((column + 0.5) / n) * (width - 2);
  const is_flat = !(series.step[row] > 0);
  const y_of = (code) => (code < 2 ? SPARK_HEIGHT - 2 : is_flat ? SPARK_HEIGHT / 2 : 3 + (1 - (code - 2) / (n_codes - 3)) * (SPARK_HEIGHT - 6));
  paper.beginPath();
  const per_pixel = Math.max(1, Math.floor((2 * n) / width));
  let pen_is_down = false;
  for (let from = 0; from < n; from += per_pixel) {
    let least = n_codes;
    let most = 0;
    for (let at = row * n + from; at < row * n + Math.min(n, from + per_pixel); at++) {
      const code = codes[at];
      if (code === 0) continue;
      if (code < least) least = code;
      if (code > most) most = code;
    }
    if (most === 0) pen_is_down = false;
    else {
      const x = x_of(from + (per_pixel - 1) / 2);
      if (pen_is_down) paper.lineTo(x, y_of(least));
      else paper.moveTo(x - 0.5, y_of(least));
      paper.lineTo(x, y_of(most));
      pen_is_down = true;
    }
  }
  paper.strokeStyle = colours.accent;
  paper.lineWidth = 1.1;
  paper.stroke();
  const bad = series.bad_runs(row, 0, n);
  if (bad.length) {
    paper.strokeStyle = colours.bad;
    paper.lineWidth = 1.4;
    paper.beginPath();
    let last = -9;
    for (const [from, to] of bad)
      for (let x = Math.max(4, x_of(from)); x <= Math.max(x_of(from), Math.min(x_of(to - 1), width - 3)) + 0.01; x += 7)
        if (x >= last + 7) cross(paper, (last = Math.min(x, width - 4)), SPARK_HEIGHT / 2, 2.5);
    paper.stroke();
  }
}

/** @param {CanvasRenderingContext2D} paper @param {number} x @param {number} y @param {number} size */
export function cross(paper, x, y, size) {
  paper.moveTo(x - size, y - size);
  paper.lineTo(x + size, y + size);
  paper.moveTo(x + size, y - size);
  paper.lineTo(x - size, y + size);
}
