// @ts-check
// The line above a run that is followed: how it goes, and what can be done with the picture.
import { h } from "./dom.js";
import { History } from "./history.js";
import { ROW_HEIGHT } from "./grid.js";
import { countText, wholeText } from "./numbers.js";
import { picture_of } from "./live_picture.js";
import { add_crosses, add_line } from "./sparks.js";

/** @typedef {import("./view.js").View} View */
/** @typedef {import("./live.js").Live} Live */
/** What a reader has chosen, which stays when a view is replaced. @typedef {{paused: boolean, pins: number[]}} Choice */

const MOST_PINS = 8;
const PIN_WIDTH = 150;
const PIN_LABEL = 28; // characters
const SORT_MS = 2000;
const BUSY_MS = 2000;
const ALL_LATER = "the kernel is busy: earlier steps come when the cell has run";
const HEARD_LATER = "the kernel is busy: Python hears of this when the cell has run";

export class LivePanel {
  /** @param {View} view @param {Live} live @param {import("./requests.js").Requests} requests @param {LivePanel | null} before of the view that this one replaces @param {Int32Array | null} rows where its rows are now */
  constructor(view, live, requests, before, rows) {
    this.view = view;
    this.live = live;
    this.requests = requests;
    /** @type {History | null} */
    this.history = view.history;
    this.paused = before?.paused ?? false;
    this.pins = (before?.pins ?? []).map((row) => (rows ? rows[row] : row)).filter((row) => row >= 0);
    this.frame = 0;
    this.sorted_at = 0;
    this.is_asking = false;
    this.is_shown = false;
    /** What the view shows while the store goes on. */
    this.growing = this.history?.all ?? [];
    this.#build();
    if (this.paused && this.history) this.#freeze();
    const heard = (has_new_findings) => this.hear(has_new_findings);
    live.listeners.add(heard);
    view.signal.addEventListener("abort", () => {
      live.listeners.delete(heard);
      cancelAnimationFrame(this.frame);
    });
    requests.is_silent = true;
    const { on_paint } = view.grid;
    let chosen = view.selected;
    view.grid.on_paint = () => {
      on_paint();
      this.#show_pins();
      if (chosen === view.selected) return;
      chosen = view.selected;
      if (live.status.state === "running" && this.is_shown) this.#ask([0], HEARD_LATER);
    };
    this.show();
    requestAnimationFrame(() => (this.is_shown = true));
  }

  #build() {
    const button = (text, title, click) => h("button", { title, click }, text);
    this.state = h("b", { class: "state" });
    this.words = h("span", { class: "words" });
    this.progress = h("progress", { "aria-label": "Steps", max: 1, value: 0 });
    this.notice = h("span", { class: "notice", role: "status" });
    this.pause = button("pause", "let the picture stand still; what comes is kept", () => this.set_paused(!this.paused));
    this.pause.setAttribute("aria-pressed", "false");
    this.pin = button("pin row", "keep the row that is selected in sight, above the tree", () => this.toggle_pin(this.view.active));
    this.save = button("save picture", "the rows on the screen, as a PNG file", () => this.view.try_to("save the picture", () => picture_of(this)));
    this.pin_list = h("div", { class: "pins", role: "group", "aria-label": "Pinned rows", hidden: true });
    this.element = h("div", { class: "tools live", role: "group", "aria-label": "The run" }, this.state, this.progress, this.words, this.notice, h("span", { class: "gap" }), this.pause, this.pin, this.save);
    const { root } = this.view;
    root.classList.toggle("waiting", !this.history);
    root.querySelector(".tools")?.before(this.element);
    (this.history?.panel.element ?? this.element).after(this.pin_list);
    for (const element of [this.pause, this.pin, this.save]) element.hidden = !this.history;
  }

  /** Something has come. @param {boolean} has_new_findings */
  hear(has_new_findings) {
    this.has_new_findings ||= has_new_findings;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.show();
      if (this.history && !this.paused && this.live.series.length) this.draw();
    });
    if (this.live.gap !== null) this.#ask([], ALL_LATER);
  }

  /** Ask Python for what did not reach this page; with a number only whether it listens. @param {number[]} numbers @param {string} busy what is said when no answer comes */
  async #ask(numbers, busy) {
    if (this.is_asking) return;
    this.is_asking = true;
    const timer = setTimeout(() => set_text(this.notice, busy), BUSY_MS);
    await this.requests.ask("whole", numbers);
    clearTimeout(timer);
    set_text(this.notice, "");
    this.is_asking = false;
  }

  /** How it goes, in words. */
  show() {
    const { status } = this.live;
    const { state, step, done, total, rate, elapsed, dropped, why } = status;
    const is_running = state === "running";
    this.element.dataset.state = this.paused && is_running ? "paused" : state;
    const title = { waiting: "waiting", running: this.paused ? "paused" : "running", still: "at rest", done: "finished", stopped: `stopped by ${why}` }[state];
    set_text(this.state, title ?? state);
    const parts = [];
    if (state === "waiting") parts.push("for the first step");
    if (step !== undefined) parts.push(total ? `step ${countText(done ?? 0)} of ${countText(total)}` : `step ${countText(step)}`);
    if (rate) parts.push(speed_text(rate));
    if (is_running && rate && total && done !== undefined && done < total) parts.push(`${time_text((total - done) / rate)} left`);
    else if (step !== undefined) parts.push(time_text(elapsed));
    if (dropped) parts.push(`${countText(dropped)} dropped`);
    set_text(this.words, parts.join(" · "));
    this.progress.hidden = !total || state === "waiting";
    if (total) this.progress.value = Math.min(1, (done ?? 0) / total);
    set_text(this.pause, this.paused ? "go on" : "pause");
    this.pause.setAttribute("aria-pressed", String(this.paused));
    this.pause.hidden = !this.history || (!is_running && !this.paused);
  }

  /** Draw what is new. */
  draw() {
    const { view, history } = this;
    if (!history) return;
    const [whole] = this.live.series;
    const column = view.tree.columns.find(({ name }) => name === whole.name.replace(/\.norm$/, "_norm"));
    if (column) Object.defineProperty(column, "values", { configurable: true, value: whole.newest });
    if (this.has_new_findings) history.take_findings();
    this.has_new_findings = false;
    const { sorting } = view;
    const is_sorted_by_it = sorting.column && (sorting.column === column || sorting.column === history.sparks.column);
    if (is_sorted_by_it && performance.now() - this.sorted_at > SORT_MS) {
      this.sorted_at = performance.now();
      view.sort(sorting.column, sorting.descending);
      view.rows.update();
    }
    history.refresh();
    if (column && view.detailed >= 0) this.#renew_number(column);
  }

  /** The newest value in the detail. */
  #renew_number(column) {
    for (const term of this.view.detail_place.querySelectorAll("dt"))
      if (term.textContent === column.title && term.nextElementSibling) set_text(term.nextElementSibling, column.text(this.view.detailed));
  }

  /** @param {boolean} paused */
  set_paused(paused) {
    this.paused = paused;
    if (paused) this.#freeze();
    else {
      this.history?.look_at(this.growing);
      this.resume();
      if (this.live.series.length) this.draw();
    }
    this.show();
  }

  /** Called when the picture goes on; a newer tree may wait. @type {() => void} */
  resume = () => {};

  #freeze() {
    if (!this.history) return;
    this.history.look_at(this.growing.map((series) => ("frozen" in series ? /** @type {any} */ (series).frozen() : series)));
  }

  /** @param {number} row */
  toggle_pin(row) {
    if (this.pins.includes(row)) this.pins = this.pins.filter((pin) => pin !== row);
    else this.pins = [...this.pins, row].slice(-MOST_PINS);
    this.#show_pins();
    if (this.pins.length === 0) this.view.grid.tree.focus({ preventScroll: true });
  }

  #show_pins() {
    const { history, view } = this;
    const is_pinned = this.pins.includes(view.active);
    set_text(this.pin, is_pinned ? "unpin row" : "pin row");
    if (!history) return;
    if (this.pin_list.hidden !== !this.pins.length) {
      this.pin_list.hidden = !this.pins.length;
      view.grid.resize();
    }
    const shown = [...this.pin_list.children].map((element) => +element.dataset.row);
    if (shown.join() !== this.pins.join()) this.pin_list.replaceChildren(...this.pins.map((row) => this.#new_pin(row)));
    // The colours are known when the view is in the page.
    if (history.colours.ink) for (const element of this.pin_list.children) this.#draw_pin(element);
  }

  /** @param {number} row */
  #new_pin(row) {
    const path = this.history?.path(row) ?? "";
    const end = path.length > PIN_LABEL ? `…${path.slice(1 - PIN_LABEL)}` : path;
    return h("div", { class: "pin", "data-row": row },
      h("button", { class: "where", title: `go to ${path}`, click: () => this.view.go_to(row) }, end),
      h("canvas", { "aria-hidden": "true" }), h("span", { class: "value" }),
      h("button", { class: "away", title: "unpin", "aria-label": `unpin ${path}`, click: () => this.toggle_pin(row) }, "×"));
  }

  #draw_pin(element) {
    const { history } = this;
    if (!history) return;
    const { series, scale, colours } = history;
    const row = +element.dataset.row;
    const [, canvas, value] = element.children;
    set_text(value, series.n ? series.text(row, series.n - 1).replace(/(, about | \().*/, "") : "");
    const [width, height] = [Math.round(PIN_WIDTH * scale), Math.round(ROW_HEIGHT * scale)];
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const paper = canvas.getContext("2d");
    paper.setTransform(scale, 0, 0, scale, 0, 0);
    paper.clearRect(0, 0, PIN_WIDTH, ROW_HEIGHT);
    for (const [colour, add] of [[colours.accent, () => add_line(paper, series, row, 0, PIN_WIDTH)], [colours.bad, () => add_crosses(paper, series, row, ROW_HEIGHT / 2, PIN_WIDTH)]]) {
      paper.strokeStyle = colour;
      paper.lineWidth = 1.3;
      paper.beginPath();
      add();
      paper.stroke();
    }
  }
}

function set_text(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {number} rate steps in a second */
function speed_text(rate) {
  if (rate >= 10) return `${wholeText(Math.round(rate))} steps/s`;
  return rate >= 1 ? `${rate.toFixed(1)} steps/s` : `${(1 / rate).toFixed(1)} s/step`;
}

/** @param {number} seconds "0:38", "1:02:03" */
function time_text(seconds) {
  const whole = Math.round(seconds);
  const two = (n) => String(n).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${wholeText(hours)}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}
