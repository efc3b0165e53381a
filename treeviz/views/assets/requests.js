// @ts-check
// What is asked of Python, and a place for what went wrong.
import { h } from "./dom.js";

/** @typedef {import("./view.js").View} View */
/** @typedef {import("./widget.js").Model} Model */
/** @typedef {{content: any, buffers: DataView[]}} Answer */

// After so long without an answer the reader is told.
const PATIENCE_MS = 4000;
const MOST_LINES = 100;

/** Requests are an operation and integers. Of each operation one is under way, and the latest one waits. */
export class Requests {
  /** @param {Model} model @param {View} view @param {AbortSignal} signal */
  constructor(model, view, signal) {
    this.model = model;
    this.view = view;
    this.signal = signal;
    this.version = model.get("_version");
    /** Somebody else says that no answer comes. */
    this.is_silent = false;
    this.n = Math.floor(Math.random() * 2 ** 31);
    /** @type {Map<string, any>} */
    this.under_way = new Map();
    /** @type {Map<string, any>} */
    this.next = new Map();
    const heard = (content, buffers) => this.hear(content, buffers ?? []);
    model.on("msg:custom", heard);
    signal.addEventListener("abort", () => {
      model.off("msg:custom", heard);
      for (const request of [...this.under_way.values(), ...this.next.values()]) drop(request);
      this.under_way.clear();
      this.next.clear();
    });
  }

  /** The answer, or null if a later request took this one's place, the tree was replaced or the row is gone. @param {string} operation @param {number[]} numbers @returns {Promise<Answer | null>} */
  ask(operation, numbers) {
    return new Promise((resolve) => {
      const request = { operation, numbers, resolve, id: 0, timer: 0 };
      if (this.signal.aborted) return drop(request);
      const under_way = this.under_way.get(operation);
      if (!under_way) return this.#send(request);
      const next = this.next.get(operation);
      if (next) drop(next);
      else this.#post({ op: "cancel", id: ++this.n, numbers: [under_way.id] });
      this.next.set(operation, request);
    });
  }

  #send(request) {
    request.id = ++this.n;
    this.under_way.set(request.operation, request);
    request.timer = setTimeout(() => this.is_silent || this.view.complain("no answer from the kernel: it is busy, or gone"), PATIENCE_MS);
    this.#post({ op: request.operation, id: request.id, numbers: request.numbers });
  }

  #post(message) {
    try {
      this.model.send({ ...message, version: this.version });
    } catch (error) {
      this.view.complain(`Python does not hear this: its kernel was restarted, or is gone (${/** @type {Error} */ (error).message})`);
    }
  }

  /** @param {any} content @param {DataView[]} buffers */
  hear(content, buffers) {
    if (content?.op === "log") return this.view.journal.add(String(content.text));
    if (content?.op !== "answer") return this.view.told.get(content?.op)?.(content, buffers);
    for (const [operation, request] of this.under_way) {
      if (request.id !== content.id) continue;
      clearTimeout(request.timer);
      this.under_way.delete(operation);
      const next = this.next.get(operation);
      this.next.delete(operation);
      if (next) this.#send(next);
      this.view.calm();
      // A stale answer, or one that nobody waits for.
      if (content.stale || content.cancelled || next) drop(request);
      else request.resolve({ content, buffers });
    }
  }
}

function drop(request) {
  clearTimeout(request.timer);
  request.resolve(null);
}

/** What went wrong, at the foot of the view; not there while there is nothing in it. */
export class Journal {
  constructor() {
    this.list = h("ol", {});
    this.title = h("summary", {}, "log");
    this.element = h("details", { class: "journal", hidden: true }, this.title, this.list);
  }

  /** @param {string} text */
  add(text) {
    const time = new Date().toLocaleTimeString("en-GB");
    this.list.append(h("li", {}, h("time", {}, time), ` ${text.slice(0, 2000)}`));
    if (this.list.children.length > MOST_LINES) this.list.firstChild.remove();
    this.title.textContent = `log (${this.list.children.length})`;
    this.element.hidden = false;
  }
}
