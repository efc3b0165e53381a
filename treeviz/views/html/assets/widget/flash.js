// @ts-check
// Highlights the rows that a new tree changed for a moment, and marks them until the next one.

/** Highlight and mark rows; a closed node is marked if any row inside it is. @param {import("../tree/view.js").View} view @param {Uint8Array} changed one for each row to highlight @param {number} durationMs */
export function flash(view, changed, durationMs) {
  const { grid, rows, tree } = view;
  // How many changed rows come before each row.
  const before = new Int32Array(changed.length + 1);
  changed.forEach((isChanged, row) => (before[row + 1] = before[row] + isChanged));
  const isMarked = (row) => (rows.isOpen(row) ? changed[row] === 1 : before[tree.end[row]] > before[row]);
  let isOver = false;
  const paint = () =>
    grid.pool.forEach((element, i) => {
      const is = isMarked(rows.visible[grid.first + i]);
      element.classList.toggle("changed", is && !isOver);
      element.classList.toggle("marked", is);
      if (!is) return;
      element.ariaLabel += ", changed";
      element.drawn = ""; // by the grid it is drawn without that
    });
  view.on("paint", paint);
  grid.paint(true);
  const timer = setTimeout(() => {
    isOver = true;
    grid.paint(true);
  }, durationMs);
  view.signal.addEventListener("abort", () => clearTimeout(timer));
}
