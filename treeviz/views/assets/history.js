// @ts-check
// The view of series: what of them is looked at, and its parts put together.
import { charts, refresh_charts } from "./chart.js";
import { theme_colours } from "./colours.js";
import { distributions } from "./distribution.js";
import { ROW_HEIGHT } from "./grid.js";
import { Heat } from "./heat.js";
import { countText } from "./numbers.js";
import { panel } from "./panel.js";
import { Series } from "./series.js";
/** @typedef {import("./series.js").Timeline} Timeline */
import { Sparks } from "./sparks.js";
import { additions } from "./view.js";

const MAX_CANVAS = 32000; // pixels
const MAX_KEYS = 12; // of a path

export class History {
  /** @param {import("./view.js").View} view */
  constructor(view) {
    this.view = view;
    const { header, buffers, growing } = view.tree;
    const packed = header.series.slice(growing.length ? 1 : 0).map((spec) => new Series(spec, buffers));
    /** @type {Timeline[]} */
    this.all = [...growing, ...packed];
    /** @type {Timeline} the one that is looked at */
    this.series = this.all[0];
    this.is_log = this.series.is_log;
    /** The steps that are looked at. */
    this.from = -Infinity;
    this.to = Infinity;
    /** The step that is read. @type {number | null} */
    this.step = null;
    /** The notes that say what was found, and their rows. @type {[number, any][]} */
    this.noted = [];
    this.colours = { ink: "", paper: "", dim: "", accent: "", bad: "" };
    /** Who wants to know of the step that is read, until it says false. @type {Set<(step: number | null) => boolean>} */
    this.on_read = new Set();
    this.heat = new Heat(this);
    this.sparks = new Sparks(this);
    this.panel = panel(this);
  }

  /** Pixels of a canvas for one of the page. Browsers give up on canvases that are too tall. */
  get scale() {
    return Math.min(devicePixelRatio || 1, MAX_CANVAS / (ROW_HEIGHT * (this.view.grid.n || 1)));
  }

  /** The end of a row's path, for people. @param {number} row */
  path(row) {
    const { tree } = this.view;
    let text = "";
    let n = 0;
    for (; row > 0 && n < MAX_KEYS; row = tree.parent[row], n++) text = tree.key(row).keystr + text;
    return row > 0 ? `…${text}` : text || tree.name;
  }

  /** From which column to which a series is looked at. There may be room for more than there are. @param {Timeline} series @returns {[number, number]} */
  span(series) {
    const from = series.column_at(this.from);
    return [from, this.to === Infinity ? Math.max(series.n, series.n_shown) : Math.max(from, series.column_at(this.to)) + 1];
  }

  /** A cell in words. @param {number} row @param {number} column */
  words(row, column, series = this.series) {
    return `${series.title} ${series.text(row, column)} · ${series.steps_text(column)} · ${this.path(row)}`;
  }

  /** Say what is at a row and a step. @param {number} row -1: nothing @param {number | null} step */
  read(row, step, by_key = false, series = this.series) {
    this.step = step;
    this.panel.say(row < 0 || step === null ? "" : this.words(row, series.column_at(step), series), by_key);
    this.heat.point();
    for (const listen of this.on_read) if (!listen(step)) this.on_read.delete(listen);
  }

  /** Look at some steps only. @param {number} from @param {number} to */
  zoom(from, to) {
    const { first, last, n } = this.all[0];
    [this.from, this.to] = from <= to ? [from, to] : [to, from];
    if (this.from <= first[0]) this.from = -Infinity;
    if (this.to >= last[n - 1]) this.to = Infinity;
    this.show();
  }

  /** @param {Timeline} series */
  choose(series) {
    this.series = series;
    this.is_log = series.is_log;
    this.view.grid.paint_head();
    this.show();
  }

  /** Paint all of it again. */
  show() {
    this.view.grid.paint(true);
    this.heat.paint_axis();
    this.panel.show();
    if (this.view.detailed >= 0) this.view.show_detail(this.view.detailed);
  }

  /** Go to where something was found. @param {Timeline} series @param {import("./series.js").Mark} mark */
  go_to(series, [row, column]) {
    if (series !== this.series) this.choose(series);
    const [from, to] = this.span(series);
    if (column < from || column >= to) this.zoom(-Infinity, Infinity);
    this.view.go_to(row);
    this.read(row, series.first[column], true);
    (this.heat.width ? this.heat.element : this.view.grid.tree).focus({ preventScroll: true });
  }

  /** Draw what has come to series that grow. What a reader is at stays. */
  refresh() {
    this.view.grid.paint(true);
    this.heat.paint_axis();
    this.panel.show(true);
    if (this.view.detailed >= 0) refresh_charts(this, this.view.detailed, this.view.detail_place);
  }

  /** Look at others in the place of these. @param {Timeline[]} all */
  look_at(all) {
    this.series = all[this.all.indexOf(this.series)] ?? all[0];
    this.all = all;
    this.refresh();
  }

  /** What was chosen in the view that this one replaces. @param {History} before */
  take_over(before) {
    const chosen = this.all.find(({ name }) => name === before.series.name) ?? this.all[0];
    this.series = chosen;
    this.is_log = chosen.is_log && (before.is_log || !before.series.is_log);
    this.from = before.from;
    this.to = before.to;
    this.panel.show();
  }

  /** Say in the rows what was found. */
  take_findings() {
    const { view } = this;
    for (const [row, note] of this.noted) view.tree.header.notes[row] = view.tree.header.notes[row].filter((each) => each !== note);
    this.noted = [];
    for (const series of this.all)
      for (const [row, column, kind, text] of series.marks) {
        const note = [kind, `${text} (${series.steps_text(column)})`, -1, []];
        (view.tree.header.notes[row] ??= []).push(note);
        this.noted.push([row, note]);
      }
    view.inside = findings_inside(this);
  }

  use_theme() {
    this.colours = theme_colours(this.view.root);
    this.heat.use_colours();
  }
}

/** How many findings are inside a closed node, and the way to the worst of them. @param {History} history */
function findings_inside(history) {
  const { end, n } = history.view.tree;
  const found = history.all.flatMap((series) => series.marks.map((mark) => ({ series, mark })));
  const before = new Int32Array(n + 1);
  for (const { mark } of found) before[mark[0] + 1]++;
  for (let row = 0; row < n; row++) before[row + 1] += before[row];
  return (row) => {
    const count = before[end[row]] - before[row + 1];
    if (!count) return null;
    const { series, mark } = /** @type {any} */ (found.find(({ mark: [at] }) => at > row && at < end[row]));
    const text = `${countText(count)} ${count === 1 ? "finding" : "findings"} inside`;
    return { kind: mark[2], text, go: () => history.go_to(series, mark) };
  };
}

/** @param {import("./view.js").View} view */
function add_series(view) {
  const { root, grid, signal } = view;
  const history = new History(view);
  view.history = history;
  view.columns.splice(1, 0, history.sparks.column);
  history.take_findings();
  view.more_detail = (row) => [...charts(history, row), ...distributions(history, row)];
  grid.element.append(history.sparks.canvas, history.heat.element);
  grid.head.after(history.heat.axis);
  root.querySelector(".body")?.before(history.panel.element);
  grid.beside = (width) => {
    const taken = history.heat.take(width);
    history.sparks.is_slim = width - taken < 560;
    history.heat.paint_axis();
    if (!history.colours.ink) history.use_theme();
    return taken;
  };
  grid.on_paint = () => {
    history.sparks.paint();
    history.heat.paint();
  };
  // The theme is known when the view is in the page, and may change.
  const observer = new MutationObserver(() => (history.use_theme(), grid.paint(true)));
  observer.observe(root, { attributeFilter: ["class"] });
  signal.addEventListener("abort", () => observer.disconnect());
  matchMedia("(forced-colors: active)").addEventListener("change", () => (history.use_theme(), grid.paint(true)), { signal });
}

// The explorer has these modules whether or not there are series.
additions.push({ name: "series", start: (view) => view.tree.header.series && add_series(view) });
