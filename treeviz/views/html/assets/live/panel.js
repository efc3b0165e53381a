// @ts-check
// The bar above a live run: its state and progress, and the buttons to pause, to pin rows and to save a picture.
import { h } from "../tree/dom.js";
import { worstSeverity } from "../series/controls.js";
import { SeriesView } from "../series/series_view.js";
import { ROW_HEIGHT } from "../tree/grid.js";
import { countText, wholeText } from "../tree/numbers.js";
import { addLine, hatchBad, hatchTile } from "../series/sparklines.js";

/** @typedef {import("../tree/view.js").View} View */
/** @typedef {import("./run.js").Live} Live */
/** What the reader has chosen; it is kept when a view is replaced. @typedef {{paused: boolean, pins: number[]}} Choice */

const MAX_PINS = 8;
const PIN_WIDTH = 150;
const PIN_LABEL = 28; // characters
const SORT_MS = 2000;
const BUSY_MS = 2000;
const ALL_LATER = "the kernel is busy: earlier steps appear when the cell is done";
const NOTIFIED_LATER = "the kernel is busy: Python gets the selection when the cell is done";

export class LivePanel {
  /** @param {View} view @param {Live} live @param {import("../widget/requests.js").Requests} requests @param {LivePanel | null} before of the view that this one replaces @param {Int32Array | null} rows where its rows are now */
  constructor(view, live, requests, before, rows) {
    this.view = view;
    this.live = live;
    this.requests = requests;
    /** @type {SeriesView | null} */
    this.seriesView = view.seriesView;
    this.paused = before?.paused ?? false;
    this.pins = (before?.pins ?? []).map((row) => (rows ? rows[row] : row)).filter((row) => row >= 0);
    this.frame = 0;
    this.sortedAt = 0;
    this.isAsking = false;
    this.isShown = false;
    /** The scalars that are drawn, where they are newer than the tree. @type {import("../series/series.js").Series[] | null} */
    this.curves = null;
    /** The series that grow; while paused, the view shows copies of them. */
    this.growing = this.seriesView?.all ?? [];
    this.#build();
    if (this.paused && this.seriesView) this.#freeze();
    const { signal } = view;
    live.addEventListener("update", (event) => this.onUpdate(/** @type {CustomEvent} */ (event).detail), { signal });
    signal.addEventListener("abort", () => cancelAnimationFrame(this.frame));
    requests.isSilent = true;
    let chosen = view.selected;
    view.on("paint", () => {
      this.#showPins();
      if (chosen === view.selected) return;
      chosen = view.selected;
      if (live.status.state === "running" && this.isShown) this.#ask([0], NOTIFIED_LATER);
    });
    this.show();
    requestAnimationFrame(() => (this.isShown = true));
  }

  #build() {
    const button = (text, title, click) => h("button", { title, click }, text);
    this.state = h("b", { class: "state" });
    this.text = h("span", { class: "text" });
    this.progress = h("progress", { "aria-label": "Steps", max: 1, value: 0 });
    this.notice = h("span", { class: "notice", role: "status" });
    this.pause = button("pause", "Freeze the view; new steps are kept", () => this.setPaused(!this.paused));
    this.pause.setAttribute("aria-pressed", "false");
    this.pin = button("pin row", "Pin the selected row above the tree", () => this.togglePin(this.view.active));
    this.pinList = h("div", { class: "pins", role: "group", "aria-label": "Pinned rows", hidden: true });
    this.element = h("div", { class: "live", role: "group", "aria-label": "The run" }, this.state, this.progress, this.text, this.notice, h("span", { class: "gap" }), this.pause, this.pin);
    const { root } = this.view;
    root.classList.toggle("waiting", !this.seriesView);
    // In place of the facts of the last whole tree, which it repeats.
    root.querySelector(".headline")?.append(this.element);
    (this.seriesView?.controls.element ?? this.element).after(this.pinList);
    for (const element of [this.pause, this.pin]) element.hidden = !this.seriesView;
  }

  /** Redraw in the next frame. @param {boolean} hasNewFindings */
  onUpdate(hasNewFindings) {
    this.hasNewFindings ||= hasNewFindings;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.show();
      if (this.seriesView && !this.paused && this.live.series.length) this.draw();
    });
    if (this.live.gap !== null) this.#ask([], ALL_LATER);
  }

  /** Ask Python for the messages that this page missed; with a number, only whether Python answers. @param {number[]} numbers @param {string} busy the notice that is shown while there is no answer */
  async #ask(numbers, busy) {
    if (this.isAsking) return;
    this.isAsking = true;
    const timer = setTimeout(() => setText(this.notice, busy), BUSY_MS);
    await this.requests.ask("whole", numbers);
    clearTimeout(timer);
    setText(this.notice, "");
    this.isAsking = false;
  }

  /** Show the state, the progress and the speed of the run. */
  show() {
    const { status } = this.live;
    const { state, step, done, total, rate, elapsed, dropped, scalars, why, written } = status;
    const isRunning = state === "running";
    this.element.dataset.state = this.paused && isRunning ? "paused" : state;
    const severity = (this.element.dataset.severity = worstSeverity(this.seriesView));
    const finished = severity === "error" ? "finished with errors" : "finished";
    const title = { waiting: "waiting", running: this.paused ? "paused" : "running", still: written ? `written ${new Date(1000 * written).toLocaleString()}` : "no step for 5 s", done: finished, stopped: `stopped by ${why}` }[state];
    setText(this.state, title ?? state);
    const parts = [];
    if (state === "waiting") parts.push("for the first step");
    if (step !== undefined) parts.push(total ? `step ${countText(done ?? 0)} of ${countText(total)}` : `step ${countText(step)}`);
    if (rate) parts.push(speedText(rate));
    if (isRunning && rate && total && done !== undefined && done < total) parts.push(`${timeText((total - done) / rate)} left`);
    else if (step !== undefined && elapsed) parts.push(`in ${timeText(elapsed)}`);
    parts.push(...scalars);
    if (dropped) parts.push(`${countText(dropped)} steps not shown`);
    setText(this.text, parts.join(" · "));
    this.progress.hidden = !total || state === "waiting";
    if (total) this.progress.value = Math.min(1, (done ?? 0) / total);
    setText(this.pause, this.paused ? "resume" : "pause");
    this.pause.setAttribute("aria-pressed", String(this.paused));
    this.pause.hidden = !this.seriesView || (!isRunning && !this.paused);
  }

  /** Draw the new buckets. */
  draw() {
    const { view, seriesView } = this;
    if (!seriesView) return;
    const [whole] = this.live.series;
    const column = view.tree.columns.find(({ name }) => name === whole.name.replace(/\.norm$/, "_norm"));
    if (column) {
      Object.defineProperty(column, "values", { configurable: true, value: whole.newest });
      column.isBad = (row) => whole.isBad(row, whole.n - 1);
    }
    const { curves } = this.live;
    if (curves && curves !== this.curves) {
      const nBefore = seriesView.scalars.lines.length;
      seriesView.scalars.take((this.curves = curves));
      if (nBefore !== seriesView.scalars.lines.length) view.grid.resize();
    }
    if (this.hasNewFindings) seriesView.takeFindings();
    this.hasNewFindings = false;
    const { sorting } = view;
    const isSortedByIt = sorting.column && (sorting.column === column || sorting.column === seriesView.sparklines.column);
    if (isSortedByIt && performance.now() - this.sortedAt > SORT_MS) {
      this.sortedAt = performance.now();
      view.sort(sorting.column, sorting.descending);
      view.rows.update();
    }
    seriesView.refresh();
    if (column && view.detailed >= 0) this.#renewNumber(column);
  }

  /** Update the value of a column in the details. */
  #renewNumber(column) {
    for (const term of this.view.detailPlace.querySelectorAll("dt"))
      if (term.textContent === column.title && term.nextElementSibling) setText(term.nextElementSibling, column.text(this.view.detailed));
  }

  /** @param {boolean} paused */
  setPaused(paused) {
    this.paused = paused;
    if (paused) this.#freeze();
    else {
      this.seriesView?.replaceSeries(this.growing);
      this.view.emit("resume");
      if (this.live.series.length) this.draw();
    }
    this.show();
  }

  #freeze() {
    if (!this.seriesView) return;
    this.seriesView.replaceSeries(this.growing.map((series) => ("frozen" in series ? /** @type {any} */ (series).frozen() : series)));
  }

  /** @param {number} row */
  togglePin(row) {
    if (this.pins.includes(row)) this.pins = this.pins.filter((pin) => pin !== row);
    else this.pins = [...this.pins, row].slice(-MAX_PINS);
    this.#showPins();
    if (this.pins.length === 0) this.view.grid.tree.focus({ preventScroll: true });
  }

  #showPins() {
    const { seriesView, view } = this;
    const isPinned = this.pins.includes(view.active);
    setText(this.pin, isPinned ? "unpin row" : "pin row");
    if (!seriesView) return;
    if (this.pinList.hidden !== !this.pins.length) {
      this.pinList.hidden = !this.pins.length;
      view.grid.resize();
    }
    const shown = [...this.pinList.children].map((element) => +element.dataset.row);
    if (shown.join() !== this.pins.join()) this.pinList.replaceChildren(...this.pins.map((row) => this.#newPin(row)));
    // The colors can be read only when the view is in the document.
    if (seriesView.colors.text) for (const element of this.pinList.children) this.#drawPin(element);
  }

  /** @param {number} row */
  #newPin(row) {
    const path = this.seriesView?.path(row) ?? "";
    const end = path.length > PIN_LABEL ? `…${path.slice(1 - PIN_LABEL)}` : path;
    return h("div", { class: "pin", "data-row": row },
      h("button", { class: "where", title: `Go to ${path}`, click: () => this.view.goTo(row) }, end),
      h("canvas", { "aria-hidden": "true" }), h("span", { class: "value" }),
      h("button", { class: "away", title: "Unpin", "aria-label": `unpin ${path}`, click: () => this.togglePin(row) }, "×"));
  }

  #drawPin(element) {
    const { seriesView } = this;
    if (!seriesView) return;
    const { series, scale, colors } = seriesView;
    const row = +element.dataset.row;
    const [, canvas, value] = element.children;
    setText(value, series.n ? series.text(row, series.n - 1).replace(/(, about | \().*/, "") : "");
    const [width, height] = [Math.round(PIN_WIDTH * scale), Math.round(ROW_HEIGHT * scale)];
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const ctx = canvas.getContext("2d");
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, PIN_WIDTH, ROW_HEIGHT);
    ctx.strokeStyle = colors.accent;
    ctx.lineWidth = 1.3;
    ctx.beginPath();
    addLine(ctx, series, row, 0, PIN_WIDTH);
    ctx.stroke();
    ctx.fillStyle = ctx.createPattern(hatchTile(h("canvas"), colors, 1), "repeat");
    hatchBad(ctx, series, row, 0, PIN_WIDTH);
  }
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {number} rate steps in a second */
function speedText(rate) {
  if (rate >= 10) return `${wholeText(Math.round(rate))} steps/s`;
  return rate >= 1 ? `${rate.toFixed(1)} steps/s` : `${(1 / rate).toFixed(1)} s/step`;
}

/** @param {number} seconds "0:38", "1:02:03" */
function timeText(seconds) {
  const whole = Math.round(seconds);
  const two = (n) => String(n).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${wholeText(hours)}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}
