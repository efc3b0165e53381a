// @ts-check
// The toolbar of a view: search, folding, what is shown, copying and exporting.
import { copyChoices, copyMenu } from "./copying.js";
import { h, menu } from "./dom.js";
import { exportChoices } from "./exporting.js";
import { wholeText } from "./numbers.js";

const HELP = [
  "attn  bf16 — in path, type, dtype, shape or value",
  "layers/*/weight — a glob; ** any keys   layers.3.weight — a path",
  "dtype:float  64x128  shape:*,768  kind:opaque  key:w*",
  "bytes > 1M  elements:1k..2k — any column",
  "nan  inf  zeros  is:shared  is:error",
  'a b — both   a | b — either   -a — not   "a b" — literally',
];

const FLAT = "Leaves only, largest first";

/** @param {import("./view.js").View} view @returns {{element: HTMLElement, search: HTMLInputElement, blanks: HTMLElement}} the line, the box in it, and the line below the rows */
export function toolbar(view) {
  const { tree, rows } = view;
  const search = h("input", {
    type: "search", placeholder: "Search: attn, bf16, nan", "aria-label": "Search", title: "Press / to search",
    autocomplete: "off", spellcheck: "false",
    input: () => view.search.ask(search.value),
    focus: () => setTimeout(() => view.search.warmUp()),
  });
  const status = h("output", { "aria-live": "polite" });
  const help = menu("?", () => HELP.map((line) => h("div", {}, line)), "How to search");
  help.classList.add("help");
  const button = (text, label, click) => h("button", { "aria-label": label, title: label, click }, text);
  const filter = h("input", { type: "checkbox", checked: true, change: () => view.search.setFiltering(filter.checked) });
  const inSearch = h("span", { class: "found" },
    button("↑", "Previous match (Shift-Enter)", () => view.search.next(-1)),
    button("↓", "Next match (Enter)", () => view.search.next(1)),
    button("select all", "Select all matches", () => view.selectMatches()),
    h("label", {}, filter, "only matches"),
  );

  // JAX sorts the keys of dicts.
  const inserted = tree.column("insertion");
  const title = (text) => h("div", { class: "title" }, text);
  const check = (text, checked, set, help = "") => h("label", { title: help }, h("input", { type: "checkbox", checked, change: ({ target }) => set(target.checked) }), text);
  // A click ends in the tree, where the reader looks next.
  const act = (text, click, title = "") => h("button", { class: "link", title, click: () => (closeAll(), click()) }, text);
  const viewChoices = () => {
    const depth = h(
      "select",
      { "aria-label": "Expand to level", change: () => (closeAll(), view.openTo(+depth.value)) },
      h("option", { value: "", hidden: true }, "Expand to level …"),
      ...Array.from({ length: Math.min(tree.maxDepth, 9) }, (_, i) => h("option", {}, `${i + 1}`)),
      h("option", { value: tree.maxDepth }, "all"),
    );
    return [
      depth,
      act("Expand all", () => view.openTo(tree.maxDepth)),
      act("Collapse all", () => view.openTo(0)),
      ...(tree.blanks.length ? [check("None fields", !rows.hidesBlanks, (shown) => view.showBlanks(shown))] : []),
      ...(inserted ? [check("Insertion order", view.sorting.column === inserted, (on) => (view.sort(on ? inserted : null, false), view.grid.paintHead(), view.update(view.active)))] : []),
      title("Columns"),
      ...[...view.columns, ...view.panels].map((column) =>
        check(column.title, !(column.hidden ?? !view.grid.columns.includes(column)), (shown) => ((column.hidden = !shown), view.grid.resize()), column.help)),
    ];
  };
  const exports = () => exportChoices(view, act);
  view.on("status", ({ text, isError, query, name }) => {
    if (status.textContent !== text) status.textContent = text;
    if (query) status.append(h("button", { class: "link", click: () => view.search.run((search.value = query)) }, name));
    // What was found before stays, gray, until there is something else.
    view.root.classList.toggle("stale", isError);
    status.classList.toggle("error", isError);
    search.ariaInvalid = `${isError}`;
  });
  const flip = () => view.setFlat(!rows.isFlat);
  const flat = button("Flat", FLAT, flip);
  const fold = button("Fold", "Collapse identical siblings into one row", () => view.setFolding(!rows.isFolding));
  flat.classList.add("wide");
  const showSearch = () => {
    flat.ariaPressed = `${rows.isFlat}`;
    fold.ariaPressed = `${rows.isFolding}`;
    fold.hidden = !rows.hasRuns;
    filter.checked = rows.filtering;
    view.root.classList.toggle("searching", !!rows.hits);
  };
  // A few rows need no tools but when the reader comes to them: they take no room.
  view.root.classList.toggle("few", tree.n < 12 && !view.root.classList.contains("page") && !tree.header.series);
  const menus = [
    menu("View", viewChoices),
    copyMenu(view),
    menu("Export", exports),
    // On a phone one menu has all.
    menu("⋯", () => [
      act(rows.isFlat ? "Tree" : "Flat", flip, FLAT),
      ...viewChoices(), title("Copy"), ...copyChoices(view, closeAll), title("Export"), ...exports(),
    ], "More"),
  ];
  menus[3].classList.add("all");
  const closeAll = () => menus.forEach((each) => (each.open = false));
  const element = h(
    "div",
    { class: "tools" },
    search,
    help,
    inSearch,
    status,
    h("span", { class: "gap" }),
    h("span", { class: "shape" }, fold, flat),
    h("span", { class: "last" }, view.grid.more, ...menus),
  );
  const blanks = h("button", { class: "link blanks", click: () => view.showBlanks(true) }, `${wholeText(tree.blanks.length)} fields are None`);
  const showBlanks = () => (blanks.hidden = !rows.hidesBlanks);
  view.on("change", () => (showSearch(), showBlanks()));
  showSearch();
  showBlanks();
  return { element, search, blanks };
}
