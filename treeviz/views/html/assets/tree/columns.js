// @ts-check
// The widths of the columns: names first, then types, then numbers. What does not fit is reached by scrolling sideways.
import { besideType, briefText, scalarText, whatText } from "./cells.js";
import { foldedText } from "./folds.js";

export const CH = 7.53;
export const GAP = 12;
/** Pixels that views have in a wide window, unless their columns need more: all views of a notebook have one width. */
export const FRAME = 1040;
const PADDING = 10;
// Pixels of the arrow and the glyph of a row, of a level, of a level where there is little room, and of a label where there is none.
export const SIGNS = 46;
const STEP = 16;
const SMALL_STEP = 8;
const LABEL = 60;
// The part of a view that names, and types, take at most if there are other columns.
const MOST_NAMES = 0.45;
const MOST_TYPES = 0.32;
// Rows that are measured.
const MAX_MEASURED = 1000;
// In characters.
const SIZES = 18; // · 12 · 144 leaves
const SIGN = 8; // ⚠1,234, unfold
const BRIEF = 14; // a badge in brief: hidden array
const BESIDE = 20; // of a type, for static fields, where there is room
const FULL = 3; // times as long, at most
export const CUT = 9; // least of a type that is cut: float32[…
const SHORT = 24; // a type that is never cut: bfloat16[128256,8192]
const MAX_RANGES = 200; // rows with ranges that are measured
const LONGEST_LABEL = 32;
const LONGEST_RANGE = 22;
const WIDTHS = { label: 8, count: 8, bytes: 9, number: 10, histogram: 12 };

export class Columns {
  /** @param {import("./view.js").View} view */
  constructor(view) {
    this.view = view;
    /** The widths that the reader has chosen, in pixels. @type {Map<any, number>} */
    this.chosen = new Map();
    /** The characters of a type, whole and in brief, by its facts. @type {number[][]} */
    this.types = [];
  }

  /**
   * The widths of the names and of some columns in a width, where each of them ends, and the pixels of a level; levels
   * deeper than `maxLevels` show their depth as a number.
   * @param {any[]} columns
   * @param {number} width
   * @param {number} [mostWords] of a column of words that the reader has not dragged
   * @param {number} [maxType] the most of the types
   */
  layOut(columns, width, mostWords = Infinity, maxType = Infinity) {
    const [wide, slim, brief, what] = this.#measure();
    const room = width - PADDING;
    const mostType = Math.min(maxType, Math.max(CH * SHORT, MOST_TYPES * width));
    const [least, wanted] = [Math.min(brief, mostType), Math.min(what, mostType)];
    const widths = [0, ...columns.map((column) => this.chosen.get(column) ?? (column.format === "type" ? least : Math.min(CH * widthOf(column, this.view.rows), column.labels ? mostWords : Infinity)))];
    // A narrow view shows curves in place of the heat map.
    const isNumber = (column) => (this.view.grid.isNarrow ? /count|bytes|number|histo/ : /count|bytes|number|histo|spark/).test(column?.format);
    // What all columns leave to the names, and what those do that are no numbers.
    let [left, most] = [room, room];
    columns.forEach((column, i) => {
      left -= widths[i + 1] + GAP;
      if (!isNumber(column)) most -= widths[i + 1] + GAP;
    });
    const [step, names] = wide <= MOST_NAMES * width ? [STEP, wide] : [SMALL_STEP, slim];
    // Columns of numbers go where that makes all names whole.
    const wish = this.chosen.get(this.view.keyColumn) ?? Math.min(Math.max(names, LABEL), Math.max(names > most ? left : most, MOST_NAMES * width));
    // Names stay where they are: beside them there is always room to scroll the others through.
    const name = (widths[0] = Math.min(wish, columns[0] ? Math.max(SIGNS + LABEL, width - 2 * LABEL) : wish));
    const type = columns.findIndex((column) => column.format === "type");
    const endsOf = () => {
      let end = -GAP;
      return widths.map((each) => (end += each + GAP));
    };
    let ends = endsOf();
    const spare = () => Math.max(0, Math.min(room, FRAME) - ends[columns.length]);
    if (type >= 0 && !this.chosen.has(columns[type])) {
      widths[type + 1] = wanted;
      ends = endsOf();
      const cut = ends.findIndex((end) => end > room);
      const over = ends[cut] - room;
      // What stands beside a type goes before a column does. A part of a number would be read as another one: it begins where the room ends.
      widths[type + 1] += cut < 0 ? Math.min(spare(), BESIDE * CH) : over <= wanted - (cut - 1 === type && type < 3 ? CUT * CH : least) ? -over : isNumber(columns[cut - 1]) ? width - GAP - ends[cut - 1] : 0;
      // Nor is a type shown in part that is cut to less.
      if (cut - 1 === type && over > wanted - CUT * CH && type) widths[type] += width - GAP - ends[type];
      ends = endsOf();
    }
    // The last words before the numbers have what is left of the frame, so that numbers end where the frame does.
    const number = columns.findIndex(isNumber);
    const last = number < 0 ? columns.length : number;
    if (last && !this.chosen.has(columns[last - 1])) widths[last] += spare();
    ends = endsOf();
    return { widths, least, ends, total: ends[columns.length] + PADDING, step, maxLevels: name >= names ? Infinity : Math.max(2, Math.floor((name - SIGNS - LABEL) / step)) };
  }

  /** Pixels that the names of the visible rows need, with wide and with slim steps, and their types, in brief and with their sizes; as long as the same rows are visible. */
  #measure() {
    const { tree, rows } = this.view;
    if (this.version === rows.version) return this.measured;
    this.version = rows.version;
    const { depth, factCodes, nChildren } = tree;
    const { visible, isFlat, folds } = rows;
    const { notes } = tree.header;
    const n = Math.min(rows.count, MAX_MEASURED);
    let [wide, slim, brief, what] = [0, 0, 8, 8];
    for (let i = 0; i < n; i++) {
      const row = visible[i];
      const isRun = folds?.runs.has(row);
      const label = CH * (isRun || isFlat ? rows.label(row).length : tree.labelLength(row));
      const level = isFlat ? 0 : depth[row];
      wide = Math.max(wide, label + STEP * level);
      slim = Math.max(slim, label + SMALL_STEP * level);
      const code = factCodes[row];
      const lengths = (this.types[code] ??= [whatText(tree, code), briefText(whatText(tree, code))].map(({ length }) => length));
      const sizes = nChildren[row] && SIZES;
      let beside = isRun ? SIGN + (rows.outlierOf(row) ? BRIEF : 0) : 0;
      if (notes[row]) for (const note of besideType(notes[row])) {
        beside += note[5] ? SIGN : BRIEF;
        // What is wrong comes before numbers.
        if (/error|warn|hidden/.test(note)) brief = Math.max(brief, lengths[1] + FULL * BRIEF);
      }
      brief = Math.max(brief, lengths[1] + beside);
      what = Math.max(what, brief, lengths[0] + sizes + scalarText(this.view, row).length);
    }
    return (this.measured = [wide + SIGNS + GAP, slim + SIGNS + GAP, CH * brief, CH * what]);
  }

  /** Make a column as wide as the reader has dragged it, or as what its cells show. @param {any} column @param {number} width NaN: as its cells @param {HTMLElement[]} cells */
  choose(column, width, cells = []) {
    const needed = Math.max(0, ...cells.map((cell) => CH * (cell.textContent.length + 2 * cell.childElementCount)));
    const wanted = width === width ? width : column.format === "key" ? this.#measure()[0] : needed && needed + GAP;
    if (wanted) this.chosen.set(column, Math.max(4 * CH, wanted));
    else this.chosen.delete(column);
  }
}

/** How many characters a column needs for its title and for the labels, or the ranges in folded rows, of what is open: no scrolling changes it. @param {any} column @param {import("./rows.js").Rows} rows */
function widthOf(column, { folds, visible, count }) {
  const { format, labels, title, width } = column;
  let longest = 0;
  if (labels ? !width : folds?.runs.size && format === "number")
    for (let i = 0, n = 0; i < Math.min(count, MAX_MEASURED) && n < MAX_RANGES; i++)
      if (labels || folds.of(visible[i]).length > 1) {
        longest = Math.max(longest, foldedText(folds, column, visible[i]).length);
        n += +!labels;
      }
  return Math.max(width ?? Math.max(WIDTHS[format], Math.min(title.length, 16)), Math.min(longest, labels ? LONGEST_LABEL : LONGEST_RANGE));
}
