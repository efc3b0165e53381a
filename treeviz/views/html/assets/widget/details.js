// @ts-check
// Asks Python for more details of a row, and draws the answer below those that the page has.
import { drawing } from "../drawn/drawing.js";
import { pairs } from "../tree/detail.js";
import { h } from "../tree/dom.js";
import { additions } from "../tree/view.js";
import { barChart } from "../values/bar_chart.js";

// After so long the pane says that it waits, and that Python does not answer.
const WAIT_MS = 300;
const LONG_MS = 4000;

/** @typedef {import("../tree/view.js").View} View */
/** @typedef {(operation: string, ...numbers: number[]) => Promise<any>} Ask sends a request about this row; the answer is null if it is no longer needed */

additions.push({
  name: "details",
  start(view) {
    view.on("detail", (row) => row >= 0 && view.request && showDetails(view, row, view.request));
  },
});

/** @param {View} view @param {number} row @param {import("./requests.js").Request} request */
function showDetails(view, row, request) {
  const place = h("div", { class: "details" });
  const isHere = () => place.isConnected && !view.signal.aborted;
  /** @type {Ask} */
  const ask = async (operation, ...numbers) => {
    const answer = await request(operation, [row, ...numbers]);
    return isHere() && answer ? answer.content : null;
  };
  view.detailPlace.firstElementChild.append(place);
  fill(place, ask, "detail");
}

/** Ask Python, and put the answer in place of the content. @param {HTMLElement} place @param {Ask} ask @param {string} operation @param {...number} numbers */
async function fill(place, ask, operation, ...numbers) {
  const line = h("p", { role: "status" });
  const setLine = (text) => (line.textContent = text);
  const timers = [setTimeout(() => (setLine("reading…"), place.replaceChildren(line)), WAIT_MS)];
  timers.push(setTimeout(() => setLine("the kernel is busy or stopped"), LONG_MS));
  const answer = await ask(operation, ...numbers);
  timers.forEach(clearTimeout);
  if (!answer) return place.replaceChildren();
  const sections = answer.error ? [{ kind: "text", tone: "bad", text: answer.error }] : answer.sections ?? [];
  place.replaceChildren(...sections.flatMap((section) => draw(section, ask)));
}

/** @param {any} section @param {Ask} ask @returns {(Node | string)[]} */
function draw(section, ask) {
  const { kind, title } = section;
  if (!Object.hasOwn(PAINTERS, kind)) return [];
  return [title ? h("div", { class: "section" }, title) : "", PAINTERS[kind](section, ask)];
}

/** @type {Record<string, (section: any, ask: Ask) => Node>} */
const PAINTERS = {
  text: ({ text, tone }) => h("p", { "data-tone": tone }, text),
  pairs: (section) => pairs(section.pairs),
  numbers: (section) => h("div", { class: "numbers" }, pairs(section.pairs)),
  code: ({ text, title }) => h("pre", { tabindex: "0", role: "region", "aria-label": title }, text),
  outline: ({ lines, title }) =>
    h("ul", { class: "outline", tabindex: "0", "aria-label": title }, ...lines.map(([depth, name, text, isArray]) =>
      h("li", { style: `--depth:${depth}` }, h("span", { class: "name" }, name), h("span", { class: isArray && "array" }, text)))),
  bars: ({ heights, edges, title }) =>
    h("figure", { style: `max-width:${4 * heights.length}ch` }, barChart(heights, `${title}: from ${edges[0]} to ${edges[1]}`), h("div", { class: "edges" }, ...edges.map((edge) => h("span", {}, edge)))),
  grid({ columns, cells, n_more: nMore }) {
    const names = [...new Set(cells.map(([name]) => name))];
    const hue = (name) => Math.round((360 * names.indexOf(name)) / names.length + 210);
    const drawn = cells.map(([name, range]) => h("div", { style: `--hue:${hue(name)}` }, name, h("small", {}, range)));
    const more = nMore ? [h("div", {}, `… ${nMore.toLocaleString("en")} more`)] : [];
    return h("div", { class: "shards", style: `grid-template-columns:repeat(${columns}, minmax(9ch, 1fr))` }, ...drawn, ...more);
  },
  button({ label, operation, arguments: numbers = [] }, ask) {
    const place = h("div", {}, h("button", { click: () => fill(place, ask, operation, ...numbers) }, label));
    return place;
  },
  window: (section, ask) => new Part(section, ask).element,
};

/** The values of a part of an array, with sliders and menus to choose another part. */
class Part {
  /** @param {any} section @param {Ask} ask */
  constructor(section, ask) {
    this.shape = section.shape;
    this.axes = section.axes;
    /** What its requests begin with. */
    this.numbers = section.arguments ?? [];
    this.ask = ask;
    this.frame = h("iframe", { sandbox: "allow-scripts", title: "values" });
    this.trouble = h("p", { "data-tone": "bad", hidden: true });
    this.choices = h("div", {});
    this.drawn = h("div", {});
    this.element = h("div", { class: "part", role: "group", "aria-label": "values" }, this.choices, this.trouble, this.drawn, this.frame);
    this.draw(section);
    this.offer(section.sizes);
  }

  draw({ html, height, drawn, starts }) {
    this.starts = starts;
    this.drawn.replaceChildren(...(drawn ? [drawing(drawn)] : []));
    this.frame.hidden = !html;
    if (!html) return;
    this.frame.srcdoc = html;
    this.frame.style.height = `${height}px`;
  }

  /** Offer a slider for each axis that is not shown entirely, and menus for the two axes of the grid. @param {number[]} sizes */
  offer(sizes) {
    const { shape, axes } = this;
    const sliders = shape.flatMap((size, axis) => (size > sizes[axis] ? [this.slider(axis, size - sizes[axis])] : []));
    const selects = shape.length > 2 ? [h("div", { class: "axes" }, this.select("rows", 0), "×", this.select("columns", 1))] : [];
    this.choices.replaceChildren(...selects, ...sliders);
  }

  select(name, which) {
    const options = this.shape.map((size, axis) => h("option", { value: axis, selected: axis === this.axes[which] }, `axis ${axis} (${size})`));
    const select = h("select", { "aria-label": name, change: () => {
      const axis = Number(select.value);
      // If it was the axis of the other menu, the two swap.
      const axes = this.axes.map((old, i) => (i === which ? axis : old === axis ? this.axes[which] : old));
      this.axes = axes;
      this.show(true);
    } }, ...options);
    return select;
  }

  slider(axis, max) {
    const name = this.axes.includes(axis) ? `axis ${axis} from` : `axis ${axis}`;
    const attributes = { min: 0, max, value: this.starts[axis], "aria-label": name };
    const move = (event) => {
      const start = Math.min(max, Math.max(0, Math.round(Number(event.target.value)) || 0));
      for (const input of inputs) if (input !== event.target) input.value = start;
      this.starts = this.starts.map((old, i) => (i === axis ? start : old));
      this.show(false);
    };
    const inputs = [h("input", { type: "range", ...attributes, input: move }), h("input", { type: "number", ...attributes, input: move })];
    return h("label", {}, h("span", {}, name), ...inputs);
  }

  /** @param {boolean} isOther whether other axes are shown */
  async show(isOther) {
    this.element.ariaBusy = "true";
    const answer = await this.ask("slice", ...this.numbers, ...this.axes, ...this.starts);
    if (!answer) return;
    this.element.ariaBusy = "false";
    const [section] = answer.sections ?? [];
    this.trouble.hidden = section?.kind === "window";
    this.drawn.hidden = this.frame.hidden = !this.trouble.hidden;
    if (!this.trouble.hidden) return (this.trouble.textContent = answer.error ?? section?.text ?? "it has no values");
    this.draw(section);
    if (isOther) {
      this.offer(section.sizes);
      this.choices.querySelector("select").focus();
    }
  }
}
