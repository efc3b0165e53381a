// @ts-check
// Highlights for a moment the rows that a new tree changed.

/** Highlight rows; a closed node is highlighted if any row inside it is. @param {import("../tree/view.js").View} view @param {Uint8Array} changed one for each row to highlight @param {number} durationMs */
export function flash(view, changed, durationMs) {
  const { grid, rows, tree } = view;
  // How many changed rows come before each row.
  const before = new Int32Array(changed.length + 1);
  changed.forEach((isChanged, row) => (before[row + 1] = before[row] + isChanged));
  const isFlashing = (row) => (rows.isOpen(row) ? changed[row] === 1 : before[tree.end[row]] > before[row]);
  let isOver = false;
  const paint = () => grid.pool.forEach((element, i) => element.classList.toggle("changed", !isOver && isFlashing(rows.visible[grid.first + i])));
  const stop = new AbortController();
  view.on("paint", paint, stop.signal);
  paint();
  const timer = setTimeout(() => {
    stop.abort();
    isOver = true;
    paint();
  }, durationMs);
  view.signal.addEventListener("abort", () => (clearTimeout(timer), stop.abort()));
}
