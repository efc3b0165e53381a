// @ts-check
// Runs the queries of the search box, shows how many rows match, and goes from match to match.
import { wholeText } from "./numbers.js";
import { matches, nearest } from "./query.js";
import { Rows } from "./rows.js";

export class Search {
  /** @param {import("./view.js").View} view */
  constructor(view) {
    this.view = view;
    /** @type {string | null} a query that waits for the next frame */
    this.asked = null;
    /** Whether the rows are those of an earlier query, since this one finds nothing. */
    this.isStale = false;
  }

  /** Build the texts, and let the browser compile the search, before the user types. */
  warmUp() {
    const { tree, wordIndex } = this.view;
    for (let code = 0; code < tree.nFacts; code++) wordIndex.text(code);
    const rows = new Rows(tree);
    rows.openTo(tree.maxDepth);
    // What is called once is not compiled.
    for (const word of "ae") {
      rows.search(matches(tree, wordIndex, word));
      rows.update();
    }
  }

  /** Run a query in the next frame, so that fast typing is not slowed down. @param {string} query */
  ask(query) {
    if (this.asked === null) requestAnimationFrame(() => this.settle());
    this.asked = query;
  }

  /** Run the query that waits, if there is one. */
  settle() {
    const { asked } = this;
    this.asked = null;
    if (asked !== null) this.run(asked);
  }

  /** Run a query. One that finds nothing or cannot be parsed says so, and changes nothing else. @param {string} query */
  run(query) {
    const { view } = this;
    const { rows } = view;
    this.isStale = true;
    try {
      const hits = query.trim() ? matches(view.tree, view.wordIndex, query) : null;
      if (hits && !hits.includes(1)) return view.setStatus(...nothing(view, query));
      rows.search(hits);
    } catch (error) {
      return view.setStatus(/** @type {Error} */ (error).message, true);
    }
    this.isStale = false;
    if (rows.hits && !rows.hits[view.active]) view.active = Math.max(0, rows.nextHit(0, 1));
    // When the search ends, a selected active row stays visible.
    else if (!rows.hits && view.selected.has(view.active)) rows.reveal(view.active);
    view.update(view.active);
    if (rows.index(view.active) < 0) view.update((view.active = 0));
    this.showCount();
  }

  /** Hide the rows that do not match, or show all. @param {boolean} filtering */
  setFiltering(filtering) {
    const { rows, active } = this.view;
    rows.filtering = filtering;
    if (rows.hits) rows.reveal(active);
    this.view.update(active);
  }

  /** Show the number of matches in the status. */
  showCount() {
    const { view } = this;
    const { hits, nHits } = view.rows;
    if (!hits) view.setStatus("");
    else if (!this.isStale) {
      const here = hits[view.active] ? `${wholeText(view.rows.hitNumber(view.active))} of ` : "";
      view.setStatus(`${here}${wholeText(nHits)} match${nHits === 1 ? "" : "es"}`);
    }
  }

  /** Go to the next or the previous match. @param {1 | -1} step */
  next(step) {
    this.settle();
    const row = this.view.rows.nextHit(this.view.active, step);
    if (row < 0 || this.isStale) return;
    this.view.goTo(row);
    this.showCount();
  }
}

/** What is said of a query that finds nothing, with one that does. @param {import("./view.js").View} view @param {string} query @returns {[text: string, isError: boolean, query?: string, name?: string]} */
function nothing({ tree, wordIndex }, query) {
  const near = nearest(tree, wordIndex, query);
  const text = `Nothing matches ${query}.`;
  if (!near) return [text, true];
  const n = matches(tree, wordIndex, near).reduce((sum, hit) => sum + hit, 0);
  return [`${text} Did you mean `, true, near, `${near} (${wholeText(n)})?`];
}
