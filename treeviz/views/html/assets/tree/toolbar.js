// @ts-check
// The toolbar of a view: search, status, depth, columns and copying.
import { h, menu } from "./dom.js";

const HELP = [
  "attn — in a key path, type, dtype, shape, value or static field",
  "layers/*/weight — a glob on the end of the path (** for any number of keys)",
  "dtype:bf16  shape:*,768  kind:opaque  type:Linear  key:w*",
  "bytes:>1M  params:1k..2k — any column of numbers",
  "nan  inf  is:shared  is:error  is:static",
  'terms are joined by "and", | is "or", - is "not"',
].join("\n");

/** @param {import("./view.js").View} view @returns {{element: HTMLElement, search: HTMLInputElement}} */
export function toolbar(view) {
  const { tree, rows } = view;
  const search = h("input", {
    type: "search", placeholder: "search: attn  layers/*/weight  dtype:bf16", "aria-label": "Search", title: HELP,
    autocomplete: "off", spellcheck: "false",
    input: () => view.search.ask(search.value),
    focus: () => (window.requestIdleCallback ?? setTimeout)(() => view.search.warmUp()),
  });
  const status = h("output", { "aria-live": "polite" });
  const button = (text, label, click) => h("button", { class: text === "keystr" && text, "aria-label": label, title: label, click }, text);
  const filter = h("input", { type: "checkbox", checked: true, change: () => view.search.setFiltering(filter.checked) });
  const inSearch = [
    button("↑", "Previous match (Shift-Enter)", () => view.search.next(-1)),
    button("↓", "Next match (Enter)", () => view.search.next(1)),
    h("label", { title: "hide the rows that do not match" }, filter, "filter"),
  ];

  const depths = Math.min(tree.maxDepth, 9);
  const depth = h(
    "select",
    { "aria-label": "Expand to depth", title: "expand to depth", change: () => (view.openTo(+depth.value), (depth.value = "")) },
    h("option", { value: "", hidden: true }, "depth"),
    ...Array.from({ length: depths }, (_, i) => h("option", {}, String(i + 1))),
    h("option", { value: tree.maxDepth }, "all"),
  );

  const choices = () =>
    view.columns.map((column) => {
      const box = h("input", { type: "checkbox", change: () => ((column.hidden = !box.checked), view.grid.resize()) });
      box.checked = !column.hidden;
      return h("label", { title: column.help || undefined }, box, column.title);
    });
  view.on("status", ({ text, isError }) => {
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("error", isError);
    search.setAttribute("aria-invalid", String(isError));
  });
  const showSearch = () => {
    for (const element of inSearch) element.hidden = !rows.hits;
    filter.checked = rows.filtering;
  };
  view.on("change", showSearch);
  showSearch();

  const element = h(
    "div",
    { class: "tools" },
    search,
    ...inSearch,
    status,
    h("span", { class: "gap" }),
    depth,
    button("⊞", "Expand all", () => view.openTo(tree.maxDepth)),
    button("⊟", "Collapse all", () => view.openTo(0)),
    menu("columns", "Columns", choices),
    button("copy path", "Copy the path of the selected rows as Python (Ctrl-C)", () => view.copyPaths("expression")),
    button("keystr", "Copy the path of the selected rows as jax.tree_util.keystr writes it", () => view.copyPaths("keystr")),
  );
  return { element, search };
}
