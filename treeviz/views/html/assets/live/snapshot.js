// @ts-check
// Saves the rows on the screen as a PNG file: their names, with the heat map or the sparklines next to them.
import { h } from "../tree/dom.js";
import { ROW_HEIGHT } from "../tree/grid.js";
import { countText } from "../tree/numbers.js";

const LABELS = 260; // pixels
const MARGIN = 10;
const TITLE = 46;
const FOOT = 26;
const INDENT = 12;

/** Download the picture; no request leaves the page. @param {import("./panel.js").LivePanel} panel */
export function savePicture(panel) {
  const { view, seriesView } = panel;
  if (!seriesView) return;
  const name = `${view.tree.name}-step-${panel.live.status.step ?? 0}`.replace(/[^\w.-]+/g, "_").slice(0, 80);
  const link = h("a", { download: `${name}.png`, href: paint(view, seriesView).toDataURL("image/png") });
  view.root.append(link);
  link.click();
  link.remove();
}

/** @param {import("../tree/view.js").View} view @param {import("../series/series_view.js").SeriesView} seriesView */
function paint(view, seriesView) {
  const { grid, tree, rows } = view;
  const { heatMap, sparklines, series, colors, scale } = seriesView;
  const drawn = heatMap.width ? heatMap.canvas : sparklines.canvas;
  const wide = drawn.width / scale;
  const n = grid.n ?? 0;
  const width = MARGIN + LABELS + wide + MARGIN;
  const canvas = h("canvas", { width: Math.round(width * scale), height: Math.round((TITLE + n * ROW_HEIGHT + FOOT) * scale) });
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  ctx.fillStyle = getComputedStyle(view.root).backgroundColor;
  ctx.fillRect(0, 0, width, TITLE + n * ROW_HEIGHT + FOOT);
  const font = getComputedStyle(view.root).fontFamily;
  const write = (text, x, y, color, weight = "400", most = width - 2 * MARGIN) => {
    ctx.font = `${weight} 13px ${font}`;
    ctx.fillStyle = color;
    while (text.length > 1 && ctx.measureText(text).width > most) text = `${text.slice(0, -2)}…`;
    ctx.fillText(text, x, y);
  };
  write(`${tree.name} · ${series.title}`, MARGIN, 19, colors.text, "700");
  const [low, high] = series.range[seriesView.isLog ? 0 : 1].map((place) => series.number(seriesView.isLog ? 10 ** place : place, 2));
  write(heatMap.width ? `dark ≤ ${low}, light ≥ ${high} · × not finite · ─ zero` : "each on a scale of its own · × not finite", MARGIN, 37, colors.dim);
  for (let i = 0; i < n; i++) {
    const row = rows.visible[(grid.first ?? 0) + i];
    const indent = Math.min(tree.depth[row], 9) * INDENT;
    write(tree.label(row), MARGIN + indent, TITLE + (i + 0.7) * ROW_HEIGHT, colors.text, "400", LABELS - indent - MARGIN);
  }
  ctx.drawImage(drawn, MARGIN + LABELS, TITLE, wide, drawn.height / scale);
  const [from, to] = heatMap.width ? seriesView.span(series) : [0, series.n];
  const last = countText(series.last[Math.min(to, series.n) - 1]);
  const y = TITLE + n * ROW_HEIGHT + 17;
  write(`step ${countText(series.first[from])}`, MARGIN + LABELS, y, colors.dim);
  ctx.textAlign = "right";
  write(last, width - MARGIN, y, colors.dim);
  return canvas;
}
