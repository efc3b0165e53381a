// @ts-check
// Shows series in a view: the state of the selection, and the heat map, sparklines, charts and controls put together.
import { charts, refreshCharts } from "./chart.js";
import { ColorScale } from "./color_scale.js";
import { paletteOf, themeColors } from "./colors.js";
import { distributions } from "./distribution.js";
import { h } from "../tree/dom.js";
import { ROW_HEIGHT } from "../tree/grid.js";
import { HeatMap } from "./heat_map.js";
import { countText } from "../tree/numbers.js";
import { showFindings, SIGN_OF } from "../findings/findings.js";
import { controls, findingsList } from "./controls.js";
import { Scalars } from "./scalars.js";
import { Series } from "./series.js";
/** @typedef {import("./series.js").Timeline} Timeline */
import { Sparklines } from "./sparklines.js";
import { addStrips } from "./strips.js";
import { fillBanner } from "../tree/mount.js";
import { additions } from "../tree/view.js";

const MAX_CANVAS = 32000; // pixels
const MAX_KEYS = 12; // of a path

export class SeriesView {
  /** @param {import("../tree/view.js").View} view */
  constructor(view) {
    this.view = view;
    const { header, buffers, growing } = view.tree;
    const packed = header.series.slice(growing.length ? 1 : 0).map((spec) => new Series(spec, buffers));
    /** @type {Timeline[]} */
    this.all = [...growing, ...packed];
    /** The series that is shown. @type {Timeline} */
    this.series = this.all[0];
    this.isLog = this.series.isLog;
    /** The first and the last step that are shown. */
    this.from = -Infinity;
    this.to = Infinity;
    /** The step under the pointer. @type {number | null} */
    this.step = null;
    /** The notes of findings, with their rows, and how to go there. @type {import("../findings/findings.js").Found[]} */
    this.noted = [];
    this.colors = { text: "", background: "", dim: "", accent: "", bad: "", badGround: "" };
    /** Removes the listeners of the charts in the details. */
    this.chartStop = new AbortController();
    this.colorScale = new ColorScale(this);
    this.readout = h("output", { class: "readout" });
    this.heatMap = new HeatMap(this);
    this.sparklines = new Sparklines(this);
    this.scalars = new Scalars(this);
    this.controls = controls(this);
  }

  /** Canvas pixels per CSS pixel. Browsers do not draw canvases that are taller than MAX_CANVAS. */
  get scale() {
    return Math.min(devicePixelRatio || 1, MAX_CANVAS / (ROW_HEIGHT * (this.view.grid.n || 1)));
  }

  /** The colors of the heat map. */
  get palette() {
    return paletteOf(this.colorScale.isRelative && this.isLog, this.view.root.classList.contains("dark"));
  }

  /** The last keys of the path of a row. @param {number} row */
  path(row) {
    const { tree } = this.view;
    let text = "";
    let n = 0;
    for (; row > 0 && n < MAX_KEYS; row = tree.parent[row], n++) text = tree.key(row).keystr + text;
    return row > 0 ? `…${text}` : text || tree.name;
  }

  /** The buckets of a series that are shown: the first, and the end. The end is above `n` where there is room for more buckets. @param {Timeline} series @returns {[number, number]} */
  span(series) {
    const from = series.bucketAt(this.from);
    return [from, this.to === Infinity ? Math.max(series.n, series.nShown) : Math.max(from, series.bucketAt(this.to)) + 1];
  }

  /** What the readout says of a cell. @param {number} row @param {number} bucket */
  readoutText(row, bucket, series = this.series) {
    return `${this.path(row)} · ${series.title} ${series.text(row, bucket)} · ${series.stepsText(bucket)}`;
  }

  /** Show the value at a row and a step, next to the pointer or to the cell. @param {number} row -1: nothing @param {number | null} step @param {{event?: MouseEvent | null, series?: Timeline, figure?: HTMLElement | null}} [where] without an event the keyboard asks, and nothing is said where no heat map is; without a figure it is in the heat map */
  read(row, step, { event = null, series = this.series, figure = null } = {}) {
    const { readout } = this;
    const { grid, rows } = this.view;
    this.step = step;
    this.heatMap.point();
    // A screen reader announces the value of the slider already.
    readout.setAttribute("aria-live", event ? "polite" : "off");
    readout.textContent = row < 0 || step === null || !(event || this.heatMap.width) ? "" : this.readoutText(row, series.bucketAt(step), series);
    const place = figure ?? grid.element;
    if (readout.parentNode !== place) place.append(readout);
    const box = place.getBoundingClientRect();
    const x = event ? event.clientX - box.left : this.heatMap.lineAt(box.left);
    const y = figure && event ? event.clientY - box.top : rows.index(row) * ROW_HEIGHT - grid.shift + ROW_HEIGHT;
    // Below and to the right, or else above and to the left.
    const isLow = !figure && y + 3 * ROW_HEIGHT > grid.element.scrollTop + grid.element.clientHeight;
    readout.style.left = `${x + place.scrollLeft}px`;
    readout.style.top = `${y + ROW_HEIGHT + 2}px`;
    readout.style.maxWidth = `min(44ch, ${Math.max(x, box.width - x) - 16}px)`;
    readout.style.transform = `translate(${x > box.width / 2 ? "calc(-100% - 12px)" : "12px"}, ${isLow ? `calc(-100% - ${ROW_HEIGHT + 4}px)` : 0})`;
    this.view.emit("read", step);
  }

  /** Show only some steps. @param {number} from @param {number} to */
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
    this.isLog = series.isLog;
    this.show();
  }

  /** Paint everything again. */
  show() {
    this.view.grid.paintHead();
    this.view.grid.paint(true);
    this.heatMap.paintAxis();
    this.controls.show();
    if (this.view.detailed >= 0) this.view.showDetail(this.view.detailed);
  }

  /** Go to the row and the step of a finding. @param {Timeline} series @param {import("./series.js").FindingMark} mark */
  goTo(series, [row, bucket]) {
    if (series !== this.series) this.choose(series);
    const [from, to] = this.span(series);
    if (bucket < from || bucket >= to) this.zoom(-Infinity, Infinity);
    this.view.goTo(row);
    this.read(row, series.first[bucket]);
    (this.heatMap.width ? this.heatMap.element : this.view.grid.tree).focus({ preventScroll: true });
  }

  /** Draw the new values of series that grow. Scroll position, focus and open tables stay. */
  refresh() {
    this.view.grid.paint(true);
    this.heatMap.paintAxis();
    this.controls.show(true);
    if (this.view.detailed >= 0) refreshCharts(this, this.view.detailed, this.view.detailPlace);
  }

  /** Show other series in place of these, each in place of the one with its index. @param {Timeline[]} all */
  replaceSeries(all) {
    this.series = all[this.all.indexOf(this.series)] ?? all[0];
    this.all = all;
    this.refresh();
  }

  /** Take over what was chosen in the view that this one replaces. @param {SeriesView} before */
  takeOver(before) {
    const chosen = this.all.find(({ name }) => name === before.series.name) ?? this.all[0];
    this.series = chosen;
    this.isLog = chosen.isLog && (before.isLog || !before.series.isLog);
    this.from = before.from;
    this.to = before.to;
    this.controls.show();
  }

  /** Put the findings into the notes of their rows. */
  takeFindings() {
    const { view } = this;
    for (const [row, note] of this.noted) view.tree.header.notes[row] = view.tree.header.notes[row].filter((each) => each !== note);
    this.noted = [];
    for (const series of this.all)
      for (const mark of series.marks) {
        const [row, bucket, kind, text, severity] = mark;
        const note = [kind, `${text} (${series.stepsText(bucket)})`, -1, [], severity, `${SIGN_OF[severity]}${series.stepText(series.first[bucket])}`];
        view.tree.header.notes[row] = [...view.tree.notes(row), note];
        view.tree.hasNotes = true;
        this.noted.push([row, note, () => this.goTo(series, mark)]);
      }
    showFindings(view, this.noted);
    this.#fillBanner();
  }

  /** What is wrong, with the way there. */
  #fillBanner() {
    const found = this.all.flatMap((series) => series.marks.map((mark) => ({ series, mark })));
    const worst = ["error", "warning"].flatMap((severity) => found.find(({ mark }) => mark[4] === severity) ?? [])[0];
    if (!worst) return;
    const { series, mark } = worst;
    const known = this.view.tree.header.headline.find((text) => /^(error|warning): /.test(text));
    const n = this.all.reduce((sum, series) => sum + series.nMarks, 0) - 1;
    const link = (text, click) => h("button", { class: "link", click }, text);
    fillBanner(this.view, known ?? `${mark[4]}: ${mark[3]}`, link(`Go to ${series.stepsText(mark[1])}`, () => this.goTo(series, mark)),
      ...(n ? [link(`${countText(n)} more finding${n > 1 ? "s" : ""}`, () => ((this.controls.findings.open = true), this.controls.findings.firstChild.focus()))] : []));
  }

  useTheme() {
    this.colors = themeColors(this.view.root);
    this.heatMap.useColors();
  }
}

/** @param {import("../tree/view.js").View} view */
function addSeries(view) {
  const { root, grid, signal } = view;
  const seriesView = new SeriesView(view);
  view.seriesView = seriesView;
  view.columns.splice(1, 0, seriesView.sparklines.column);
  view.panels.push(seriesView.heatMap.panel);
  seriesView.takeFindings();
  const { moreDetail } = view;
  view.moreDetail = (row) => [...moreDetail(row), ...charts(seriesView, row), ...distributions(seriesView, row)];
  grid.window.append(seriesView.sparklines.canvas);
  grid.element.append(seriesView.heatMap.element);
  grid.head.after(seriesView.heatMap.axis, seriesView.scalars.element);
  view.on("read", (step) => seriesView.scalars.show(step));
  const printed = h("div", { class: "printed" });
  root.querySelector(".tools .gap")?.before(seriesView.controls.element);
  // On a phone the menu that has all has the scale, too, as long as it is open.
  const menu = /** @type {HTMLDetailsElement} */ (root.querySelector(".all"));
  menu.addEventListener("toggle", () => (menu.open ? menu.lastElementChild : seriesView.controls.element)?.prepend(seriesView.controls.scale));
  root.querySelector(".body")?.before(printed);
  root.append(seriesView.controls.footer);
  addEventListener("beforeprint", () => printed.replaceChildren(...findingsList(seriesView, () => {})), { signal });
  grid.reservedWidth = (width) => {
    const taken = seriesView.heatMap.take(width);
    seriesView.sparklines.isSlim = width - taken < 560;
    seriesView.heatMap.paintAxis();
    if (!seriesView.colors.text) seriesView.useTheme();
    return taken;
  };
  view.on("paint", () => {
    const { sparklines, heatMap } = seriesView;
    sparklines.paint();
    heatMap.paint();
    for (const strip of grid.window.querySelectorAll(".row canvas")) strip.remove();
    if (!grid.nPrinted) return;
    addStrips(grid.pool, sparklines.canvas, sparklines.canvas.style.left, sparklines.canvas.style.width);
    addStrips(grid.pool, heatMap.canvas, "100%", `${heatMap.width}px`);
  });
  // The theme can change, and can be read only when the view is in the document.
  // In the next frame: JupyterLab hides all that is shown for a moment, and there would be room for no row.
  const repaint = () => requestAnimationFrame(() => (seriesView.useTheme(), grid.paint(true)));
  const observer = new MutationObserver(repaint);
  observer.observe(root, { attributeFilter: ["class"] });
  view.on("change", () => seriesView.controls.showColors());
  signal.addEventListener("abort", () => observer.disconnect());
  matchMedia("(forced-colors: active)").addEventListener("change", repaint, { signal });
}

// The explorer contains these modules even if its tree has no series.
additions.push({ name: "series", start: (view) => view.tree.header.series && addSeries(view) });
