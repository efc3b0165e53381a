// @ts-check
// What can be copied of the selected rows and of the matches of a search, as text for Python.
import { h, menu } from "./dom.js";
import { countText } from "./numbers.js";

/** @param {import("./view.js").View} view */
export function copyMenu(view) {
  const { tree, rows } = view;
  const choice = (name, what, text) => h("button", { class: "link", click: () => ((element.open = false), view.copy(text())) }, `${name}: ${what}`);
  // They are made when the menu has opened, and may be clicked before: what is copied is asked for by the click.
  const choices = () => {
    const chosen = view.chosen;
    const one = (form) => (chosen.length > 1 ? `${countText(chosen.length)} paths` : tree[form](chosen[0]));
    const matches = rows.matches();
    return [
      choice("Python", one("expression"), () => view.paths(view.chosen, "expression")),
      choice("key path", one("keystr"), () => view.paths(view.chosen, "keystr")),
      ...(tree.header.names ? [choice("name in the file", one("stored"), () => view.paths(view.chosen, "stored"))] : []),
      choice("mask", "True at what is selected", () => maskText(tree, view.chosen)),
      ...(matches.length ? [choice("all matches", `${countText(matches.length)} paths`, () => view.paths(rows.matches(), "expression"))] : []),
    ];
  };
  const element = menu("copy", "Copy the selected paths (Ctrl-C: Python)", choices);
  return element;
}

/** A Python expression for a tree of bools that is True at the leaves of some rows. @param {import("./tree.js").Tree} tree @param {number[]} rows */
export function maskText(tree, rows) {
  const paths = `{${rows.map((row) => JSON.stringify(tree.keystr(row))).join(", ")}}`;
  const isIn = rows.every((row) => tree.of(row, "is_leaf"))
    ? `jax.tree_util.keystr(path) in ${paths}`
    : `any(jax.tree_util.keystr(path[:n]) in ${paths} for n in range(len(path) + 1))`;
  return `jax.tree_util.tree_map_with_path(lambda path, _: ${isIn}, ${tree.expression(0)})`;
}
