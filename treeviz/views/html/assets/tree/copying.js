// @ts-check
// What can be copied of the selected rows and of the matches of a search, as text for Python.
import { h, menu } from "./dom.js";
import { countText } from "./numbers.js";

/** @param {import("./view.js").View} view */
export function copyMenu(view) {
  const element = menu("Copy", () => copyChoices(view, () => (element.open = false)), "Copy the selected paths (Ctrl-C: Python)");
  return element;
}

/** @param {import("./view.js").View} view @param {() => void} close closes the menu */
export function copyChoices(view, close) {
  const { tree, rows } = view;
  const choice = (name, what, text) => h("button", { class: "link", click: () => (close(), view.copy(text())) }, `${name}: ${what}`);
  // They are made when the menu has opened, and may be clicked before: the rows are asked for again by the click.
  const paths = (name, rowsNow, pathOf = (row) => tree.expression(row)) => {
    const [first, ...others] = rowsNow();
    const what = others.length ? `${countText(others.length + 1)} paths` : first >= 0 && pathOf(first);
    // The key path of the root is empty.
    return what ? [choice(name, what, () => rowsNow().map(pathOf).join("\n"))] : [];
  };
  const chosen = () => view.chosen;
  return [
    ...paths("Python", chosen),
    ...paths("key path", chosen, (row) => tree.keystr(row)),
    ...(tree.header.names ? paths("name in the file", chosen, (row) => tree.nameInFile(row)) : []),
    choice("mask", "True where selected", () => maskText(tree, chosen())),
    ...paths("all matches", () => rows.matches()),
  ];
}

/** A Python expression for a tree of bools that is True at the leaves of some rows. @param {import("./tree.js").Tree} tree @param {number[]} rows */
export function maskText(tree, rows) {
  const paths = `{${rows.map((row) => JSON.stringify(tree.keystr(row))).join(", ")}}`;
  const isIn = rows.every((row) => tree.of(row, "is_leaf"))
    ? `jax.tree_util.keystr(path) in ${paths}`
    : `any(jax.tree_util.keystr(path[:n]) in ${paths} for n in range(len(path) + 1))`;
  return `jax.tree_util.tree_map_with_path(lambda path, _: ${isIn}, ${tree.expression(0)})`;
}
