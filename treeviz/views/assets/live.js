// @ts-check
// A run that is followed: what Python tells of it is kept here, once for all views of a widget.
import { columns_of, LiveSeries, RollUp } from "./live_series.js";
import { Series } from "./series.js";

/** @typedef {import("./widget.js").Model} Model */
/** @typedef {import("./payload.js").Tree} Tree */
/** How it goes.
 * @typedef {{state: "waiting" | "running" | "still" | "done" | "stopped", why: string, sequence: number, dropped: number, total: number | null,
 *   elapsed: number, step?: number, done?: number, rate?: number}} Status */

const MOST_KEPT = 256; // messages, while nobody looks

/** By the widgets' tokens: what stands for a model is another object in each view. @type {Map<string, Live>} */
const followed = new Map();

/** What is known of the run that a model follows; null: it follows none. @param {Model} model */
export function live_of(model) {
  if (!model.get("_live")?.state) return null;
  const token = model.get("_token");
  let live = followed.get(token);
  if (!live) followed.set(token, (live = new Live(model)));
  return live;
}

/** @param {Model} model */
export function forget(model) {
  followed.delete(model.get("_token"));
}

export class Live {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {Status} */
    this.status = model.get("_live");
    /** The series that grow: of the whole run, and of the newest steps. @type {LiveSeries[]} */
    this.series = [];
    /** @type {RollUp | null} */
    this.roll_up = null;
    /** Of the picture on which they stand. */
    this.version = -1;
    /** The number of the last message that is in them. */
    this.sequence = this.status.sequence;
    /** From where on messages are missing. @type {number | null} */
    this.gap = null;
    /** Messages that wait for a picture. @type {{content: any, buffers: DataView[]}[]} */
    this.later = [];
    this.is_changing = true;
    /** Who wants to know. @type {Set<(has_new_findings: boolean) => void>} */
    this.listeners = new Set();
    model.on("change:_version", () => (this.is_changing = true));
    model.on("change:_live", () => this.#hear_status(model.get("_live")));
    model.on("msg:custom", (content, buffers) => content?.op === "append" && this.hear(content, buffers ?? []));
  }

  /** @param {Status} status */
  #hear_status(status) {
    if (!status?.state) return;
    this.status = status;
    this.#tell(false);
  }

  /** @param {any} content @param {DataView[]} buffers */
  hear(content, buffers) {
    if (!(content.sequence > this.sequence)) return;
    this.status = content;
    if (this.is_changing) {
      this.later.push({ content, buffers });
      if (this.later.length > MOST_KEPT) this.later.shift();
    } else this.#take(content, buffers);
    this.#tell(!!content.findings);
  }

  #take(content, buffers) {
    if (content.sequence <= this.sequence) return;
    if (content.sequence > this.sequence + 1) this.gap ??= this.sequence + 1;
    this.sequence = content.sequence;
    const [whole] = this.series;
    if (!whole || !this.roll_up) return;
    try {
      const columns = content.n ? this.roll_up.read(content.n, buffers) : null;
      if (columns) for (const series of this.series) series.add(columns);
    } catch {
      // Columns of another tree: the whole is asked for.
      this.gap ??= content.sequence;
    }
    if (Array.isArray(content.findings)) whole.found = content.findings;
    whole.marks = [];
  }

  /** The series that grow from what a tree brought; none if the run is over. @param {Tree} tree @param {number} version @returns {LiveSeries[]} */
  stand_on(tree, version) {
    if (this.version === version) return this.series;
    const status = this.model.get("_live");
    this.version = version;
    this.status = status;
    this.is_changing = false;
    this.series = [];
    this.gap = null;
    this.sequence = status.sequence;
    if (tree.header.series && status.state === "running") {
      const base = new Series(tree.header.series[0], tree.buffers);
      const columns = columns_of(base);
      this.roll_up = new RollUp(tree);
      this.series = [new LiveSeries(base, tree.n, false), new LiveSeries({ name: `${base.name}.newest`, title: `${base.title}, newest steps`, digits: base.digits }, tree.n, true)];
      for (const series of this.series) series.add(columns);
      this.series[0].found = base.marks.map(([row, column, kind, text]) => [row, base.first[column], kind, text]);
    }
    const { later } = this;
    this.later = [];
    for (const { content, buffers } of later) this.#take(content, buffers);
    return this.series;
  }

  #tell(has_new_findings) {
    for (const listen of [...this.listeners]) listen(has_new_findings);
  }
}
