// @ts-check
// The line above the rows.
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
    input: () => view.ask(search.value),
    focus: () => (window.requestIdleCallback ?? setTimeout)(() => view.warm_up()),
  });
  const status = h("output", { "aria-live": "polite" });
  const button = (text, label, click) => h("button", { class: text === "keystr" && text, "aria-label": label, title: label, click }, text);
  const filter = h("input", { type: "checkbox", checked: true, change: () => view.set_filtering(filter.checked) });
  const in_search = [
    button("↑", "Previous match (Shift-Enter)", () => view.next_hit(-1)),
    button("↓", "Next match (Enter)", () => view.next_hit(1)),
    h("label", { title: "hide the rows that do not match" }, filter, "filter"),
  ];

  const depths = Math.min(tree.max_depth, 9);
  const depth = h(
    "select",
    { "aria-label": "Expand to depth", title: "expand to depth", change: () => (view.open_to(+depth.value), (depth.value = "")) },
    h("option", { value: "", hidden: true }, "depth"),
    ...Array.from({ length: depths }, (_, i) => h("option", {}, String(i + 1))),
    h("option", { value: tree.max_depth }, "all"),
  );

  const choices = () =>
    view.columns.map((column) => {
      const box = h("input", { type: "checkbox", change: () => ((column.hidden = !box.checked), view.grid.resize()) });
      box.checked = !column.hidden;
      return h("label", { title: column.help || undefined }, box, column.title);
    });
  view.say = (text, is_error = false) => {
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("error", is_error);
    search.setAttribute("aria-invalid", String(is_error));
  };
  view.on_change = () => {
    for (const element of in_search) element.hidden = !rows.hits;
    filter.checked = rows.filtering;
  };
  view.on_change();

  const element = h(
    "div",
    { class: "tools" },
    search,
    ...in_search,
    status,
    h("span", { class: "gap" }),
    depth,
    button("⊞", "Expand all", () => view.open_to(tree.max_depth)),
    button("⊟", "Collapse all", () => view.open_to(0)),
    menu("columns", "Columns", choices),
    button("copy path", "Copy the path of the selected rows as Python (Ctrl-C)", () => view.copy_paths("expression")),
    button("keystr", "Copy the path of the selected rows as jax.tree_util.keystr writes it", () => view.copy_paths("keystr")),
  );
  return { element, search };
}
