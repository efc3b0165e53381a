// @ts-check
// The rows on the screen as a picture to keep: their names, and the heat map or the lines beside them.
import { h } from "./dom.js";
import { ROW_HEIGHT } from "./grid.js";
import { countText } from "./numbers.js";

const LABELS = 260; // pixels
const MARGIN = 10;
const TITLE = 46;
const FOOT = 26;
const INDENT = 12;

/** Download it; no request leaves the page. @param {import("./live_panel.js").LivePanel} panel */
export function picture_of(panel) {
  const { view, history } = panel;
  if (!history) return;
  const name = `${view.tree.name}-step-${panel.live.status.step ?? 0}`.replace(/[^\w.-]+/g, "_").slice(0, 80);
  const link = h("a", { download: `${name}.png`, href: paint(view, history).toDataURL("image/png") });
  view.root.append(link);
  link.click();
  link.remove();
}

/** @param {import("./view.js").View} view @param {import("./history.js").History} history */
function paint(view, history) {
  const { grid, tree, rows } = view;
  const { heat, sparks, series, colours, scale } = history;
  const drawn = heat.width ? heat.canvas : sparks.canvas;
  const wide = drawn.width / scale;
  const n = grid.n ?? 0;
  const width = MARGIN + LABELS + wide + MARGIN;
  const canvas = h("canvas", { width: Math.round(width * scale), height: Math.round((TITLE + n * ROW_HEIGHT + FOOT) * scale) });
  const paper = canvas.getContext("2d");
  paper.scale(scale, scale);
  paper.fillStyle = getComputedStyle(view.root).backgroundColor;
  paper.fillRect(0, 0, width, TITLE + n * ROW_HEIGHT + FOOT);
  const font = getComputedStyle(view.root).fontFamily;
  const write = (text, x, y, colour, weight = "400", most = width - 2 * MARGIN) => {
    paper.font = `${weight} 13px ${font}`;
    paper.fillStyle = colour;
    while (text.length > 1 && paper.measureText(text).width > most) text = `${text.slice(0, -2)}…`;
    paper.fillText(text, x, y);
  };
  write(`${tree.name} · ${series.title}`, MARGIN, 19, colours.ink, "700");
  const [low, high] = series.range[history.is_log ? 0 : 1].map((place) => series.number(history.is_log ? 10 ** place : place, 2));
  write(heat.width ? `dark ≤ ${low}, light ≥ ${high} · × not finite · ─ zero` : "each on a scale of its own · × not finite", MARGIN, 37, colours.dim);
  for (let i = 0; i < n; i++) {
    const row = rows.visible[(grid.first ?? 0) + i];
    const indent = Math.min(tree.depth[row], 9) * INDENT;
    write(tree.label(row), MARGIN + indent, TITLE + (i + 0.7) * ROW_HEIGHT, colours.ink, "400", LABELS - indent - MARGIN);
  }
  paper.drawImage(drawn, MARGIN + LABELS, TITLE, wide, drawn.height / scale);
  const [from, to] = heat.width ? history.span(series) : [0, series.n];
  const last = countText(series.last[Math.min(to, series.n) - 1]);
  const y = TITLE + n * ROW_HEIGHT + 17;
  write(`step ${countText(series.first[from])}`, MARGIN + LABELS, y, colours.dim);
  paper.textAlign = "right";
  write(last, width - MARGIN, y, colours.dim);
  return canvas;
}
