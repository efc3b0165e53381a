// @ts-check
// Keeps what Python sends of a live run, once for all views of a widget.
import { bucketsOf, LiveSeries, RollUp } from "./series.js";
import { Series } from "../series/series.js";

/** @typedef {import("../widget/widget.js").Model} Model */
/** @typedef {import("../tree/tree.js").Tree} Tree */
/** The state of a run.
 * @typedef {{state: "waiting" | "running" | "still" | "done" | "stopped", why: string, sequence: number, dropped: number, total: number | null,
 *   scalars: string[], elapsed: number, step?: number, done?: number, rate?: number, written?: number}} Status, "written" of a file, in seconds since 1970 */

const MAX_KEPT = 256; // messages, while no view is open

/** By the token of the widget, since each view has a model object of its own. @type {Map<string, Live>} */
const followed = new Map();

/** The run of a model; null if it has none. @param {Model} model */
export function liveOf(model) {
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

export class Live extends EventTarget {
  /** @param {Model} model */
  constructor(model) {
    super();
    this.model = model;
    /** @type {Status} */
    this.status = model.get("_live");
    /** The scalars as they were last sent; null: as the tree has them. @type {Series[] | null} */
    this.curves = null;
    /** Two series that grow: the whole run and its newest steps. @type {LiveSeries[]} */
    this.series = [];
    /** @type {RollUp | null} */
    this.rollUp = null;
    /** The version of the tree that the series belong to. */
    this.version = -1;
    /** The number of the last message that was added to the series. */
    this.sequence = this.status.sequence;
    /** The number of the first message that is missing. @type {number | null} */
    this.gap = null;
    /** Messages that wait for their tree. @type {{content: any, buffers: DataView[]}[]} */
    this.later = [];
    this.isChanging = true;
    model.on("change:_version", () => (this.isChanging = true));
    model.on("change:_live", () => this.#onStatus(model.get("_live")));
    model.on("msg:custom", (content, buffers) => content?.op === "append" && this.onMessage(content, buffers ?? []));
  }

  /** @param {Status} status */
  #onStatus(status) {
    if (!status?.state) return;
    this.status = status;
    this.#notify(false);
  }

  /** @param {any} content @param {DataView[]} buffers */
  onMessage(content, buffers) {
    if (!(content.sequence > this.sequence)) return;
    this.status = content;
    if (this.isChanging) {
      this.later.push({ content, buffers });
      if (this.later.length > MAX_KEPT) this.later.shift();
    } else this.#take(content, buffers);
    this.#notify(!!content.findings);
  }

  #take(content, buffers) {
    if (content.sequence <= this.sequence) return;
    if (content.sequence > this.sequence + 1) this.gap ??= this.sequence + 1;
    this.sequence = content.sequence;
    const [whole] = this.series;
    if (!whole || !this.rollUp) return;
    try {
      const buckets = content.n ? this.rollUp.read(content.n, buffers) : null;
      if (buckets) for (const series of this.series) series.add(buckets);
    } catch {
      // The buckets are those of another tree: LivePanel asks Python for all of them.
      this.gap ??= content.sequence;
    }
    if (Array.isArray(content.findings)) whole.setFound(content.findings);
    if (content.curves) this.curves = content.curves.series.map((spec) => new Series(spec, content.curves.arrays));
  }

  /** The series that grow, started from the series of a tree; none if the run is over. @param {Tree} tree @param {number} version @returns {LiveSeries[]} */
  standOn(tree, version) {
    if (this.version === version) return this.series;
    const status = this.model.get("_live");
    this.version = version;
    this.status = status;
    this.isChanging = false;
    this.series = [];
    this.curves = null;
    this.gap = null;
    this.sequence = status.sequence;
    if (tree.header.series && status.state === "running") {
      const base = new Series(tree.header.series[0], tree.buffers);
      const buckets = bucketsOf(base);
      this.rollUp = new RollUp(tree);
      this.series = [new LiveSeries(base, tree.n, false), new LiveSeries({ name: `${base.name}.newest`, title: `${base.title}, newest steps`, digits: base.digits, inner: base.inner }, tree.n, true)];
      for (const series of this.series) series.add(buckets);
      this.series[0].setFound(base.marks.map(([row, bucket, ...rest]) => [row, base.first[bucket], ...rest]));
    }
    const { later } = this;
    this.later = [];
    for (const { content, buffers } of later) this.#take(content, buffers);
    return this.series;
  }

  #notify(hasNewFindings) {
    this.dispatchEvent(new CustomEvent("update", { detail: hasNewFindings }));
  }
}
