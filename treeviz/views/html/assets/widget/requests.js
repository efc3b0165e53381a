// @ts-check
// Sends requests to Python and receives the answers; shows the log of errors.
import { h } from "../tree/dom.js";

/** @typedef {import("../tree/view.js").View} View */
/** @typedef {import("./widget.js").Model} Model */
/** @typedef {{content: any, buffers: DataView[]}} Answer */
/** @typedef {(operation: string, numbers: number[]) => Promise<Answer | null>} Request */

// After so long without an answer the status shows an error.
const PATIENCE_MS = 4000;
const MAX_LINES = 100;

/** A request is an operation and integers. Of each operation at most one request is under way and one waits: the latest. */
export class Requests {
  /** @param {Model} model @param {View} view @param {AbortSignal} signal */
  constructor(model, view, signal) {
    this.model = model;
    this.view = view;
    this.signal = signal;
    this.version = model.get("_version");
    /** Whether another part of the view says that Python does not answer. */
    this.isSilent = false;
    this.n = Math.floor(Math.random() * 2 ** 31);
    /** @type {Map<string, any>} */
    this.underWay = new Map();
    /** @type {Map<string, any>} */
    this.next = new Map();
    const onMessage = (content, buffers) => this.onMessage(content, buffers ?? []);
    model.on("msg:custom", onMessage);
    signal.addEventListener("abort", () => {
      model.off("msg:custom", onMessage);
      for (const request of [...this.underWay.values(), ...this.next.values()]) drop(request);
      this.underWay.clear();
      this.next.clear();
    });
  }

  /** The answer; null if a later request replaced this one, the tree was replaced or the row no longer exists. @param {string} operation @param {number[]} numbers @returns {Promise<Answer | null>} */
  ask(operation, numbers) {
    return new Promise((resolve) => {
      const request = { operation, numbers, resolve, id: 0, timer: 0 };
      if (this.signal.aborted) return drop(request);
      const underWay = this.underWay.get(operation);
      if (!underWay) return this.#send(request);
      const next = this.next.get(operation);
      if (next) drop(next);
      else this.#post({ op: "cancel", id: ++this.n, numbers: [underWay.id] });
      this.next.set(operation, request);
    });
  }

  #send(request) {
    request.id = ++this.n;
    this.underWay.set(request.operation, request);
    request.timer = setTimeout(() => this.isSilent || showError(this.view, "the kernel is busy or stopped"), PATIENCE_MS);
    this.#post({ op: request.operation, id: request.id, numbers: request.numbers });
  }

  #post(message) {
    try {
      this.model.send({ ...message, version: this.version });
    } catch (error) {
      showError(this.view, `Python cannot receive this: its kernel was restarted or is gone (${/** @type {Error} */ (error).message})`);
    }
  }

  /** @param {any} content @param {DataView[]} buffers */
  onMessage(content, buffers) {
    if (content?.op === "log") return this.view.emit("log", String(content.text));
    if (content?.op !== "answer") return;
    for (const [operation, request] of this.underWay) {
      if (request.id !== content.id) continue;
      clearTimeout(request.timer);
      this.underWay.delete(operation);
      const next = this.next.get(operation);
      this.next.delete(operation);
      if (next) this.#send(next);
      clearError(this.view);
      // The answer is stale, or its request was replaced.
      if (content.stale || content.cancelled || next) drop(request);
      else request.resolve({ content, buffers });
    }
  }
}

/** The views whose status shows an error. @type {WeakSet<View>} */
const failing = new WeakSet();

/** Show an error in the status, and log it. @param {View} view @param {string} text */
export function showError(view, text) {
  failing.add(view);
  view.setStatus(text);
  view.emit("log", text);
}

/** Remove the error from the status: the cause is over. @param {View} view */
function clearError(view) {
  if (failing.delete(view)) view.search.showCount();
}

function drop(request) {
  clearTimeout(request.timer);
  request.resolve(null);
}

/** The log of errors at the bottom of the view; hidden while it is empty. */
export class LogPane {
  constructor() {
    this.list = h("ol", {});
    this.title = h("summary", {}, "log");
    this.element = h("details", { class: "log", hidden: true }, this.title, this.list);
  }

  /** @param {string} text */
  add(text) {
    const time = new Date().toLocaleTimeString("en-GB");
    this.list.append(h("li", {}, h("time", {}, time), ` ${text.slice(0, 2000)}`));
    if (this.list.children.length > MAX_LINES) this.list.firstChild.remove();
    this.title.textContent = `log (${this.list.children.length})`;
    this.element.hidden = false;
  }
}
