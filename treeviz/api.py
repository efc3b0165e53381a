"""What people call: a few lines each, which put the stages together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treeviz.integrations.ipython import add_magic, remove_magic
from treeviz.preparing import AnyColumn, check_flag, other_trees, prepare, scanned
from treeviz.tree.table import TreeTable
from treeviz.views.tree_view import TreeView

if TYPE_CHECKING:
    from treeviz.views.widget import TreeWidget


def walk(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None, name: str = "tree") -> TreeTable:
    """Turn a pytree into a table with one row per node, depth first, as JAX sees it.

    Iterative: a tree may be 200,000 levels deep. A cycle, a flatten function that raises, keys that
    cannot be sorted and a budget that ran out become rows that say so. No value is read, and nothing
    of the tree stays alive because of the table. Costs some 3 µs a leaf.

    Args:
      tree: Any pytree: parameters, a model, an optimizer state, gradients, a tree of
        `jax.ShapeDtypeStruct`, tracers inside `jit`, or a bare `PyTreeDef`.
      is_leaf: As in `jax.tree.leaves`: nodes for which it is true are shown as leaves.
      name: What the root is called in key paths and expressions.
    """
    return scanned(tree, is_leaf, name)[0]


def render(
    tree: Any,
    *,
    name: str = "tree",
    columns: Sequence[AnyColumn] | None = None,
    stats: bool = False,
    values: bool = False,
    is_leaf: Callable[[Any], bool] | None = None,
    depth: int | None = None,
    beside: Mapping[str, Any] | None = None,
    **trees: Any,
) -> TreeView:
    """Show any pytree: structure, shapes, dtypes, sizes, sharding and static fields of every leaf and subtree.

    In a notebook the result displays itself; in a terminal `print` it; from a script `.save("x.html")`
    or `.show()` it. It is a snapshot that keeps no array alive. Nothing is computed, copied or fetched
    from a device, unless `stats`, `values` or a function in `columns` ask for it.

        tv.render(params, grads=grads, opt_state=opt_state, stats=True)   # side by side

    Args:
      tree: Any pytree; see `walk`.
      name: What the root is called in key paths and in the expressions that people copy.
      columns: The columns to show at first: names, of `view.table.columns`; functions of a leaf, also as
        `treeviz.column(function, rollup="sum")`; a `Column` of your own. The page lets the reader show the others.
      stats: Add min, max, mean, std, rms, the counts of zeros, NaN and infinities, and a histogram of
        magnitudes, for every array and every subtree. They are computed on the device that holds the
        array; only the numbers travel, in one transfer. About 3 ns an element on a CPU.
      values: Draw the values of the arrays too, with treescope's array visualiser, for the detail of
        a row. Copies a bounded part of every array to the host: see `treeviz.integrations.treescope`.
      is_leaf: As in `jax.tree.leaves`.
      depth: How many levels are open at first; by default as many as fit.
      beside: Other trees by name, for names that are options here.
      **trees: Other trees. Every subtree of theirs that has the structure of `tree` (the gradients, Adam's mu
        and nu, an average; with holes where a mask left leaves out) becomes a column: of dtypes, or with `stats`
        of root mean squares. More are in the page's menu of columns.

    Raises:
      TypeError: A keyword is neither an option nor a tree.
      ValueError: `columns` names a column that the table does not have.
    """
    check_flag("values", values)
    prepared = prepare(
        tree, name=name, columns=columns, stats=stats, is_leaf=is_leaf, trees=other_trees("render", beside, trees)
    )
    pictures = None
    if values:
        from treeviz.integrations.treescope import array_pictures

        pictures = array_pictures(prepared.table, prepared.nodes)
    return TreeView(prepared.table, prepared.columns, depth=depth, values=pictures)


def explore(
    tree: Any,
    *,
    name: str = "tree",
    columns: Sequence[AnyColumn] | None = None,
    stats: bool = False,
    is_leaf: Callable[[Any], bool] | None = None,
    depth: int | None = None,
    keep: bool = False,
    beside: Mapping[str, Any] | None = None,
    **trees: Any,
) -> TreeWidget:
    """Click through any pytree in a notebook, and hear of it in Python.

        widget = tv.explore(params)
        widget.value = "['layers'][0]['w']"        # go there; .query, .selection and .expanded likewise
        widget.observe(lambda change: print(change.new), "value")
        widget.selected                            # the very nodes that are selected
        widget.selected_paths                      # their key paths, for a mask: see `TreeWidget.selected_paths`
        widget.tree = new_params                   # what stayed keeps its place, what changed flashes

    Searching, sorting and folding go on while the kernel is busy. Where there is no kernel, as in a saved notebook,
    the page of `render` stands in its place. The widget keeps nothing of the tree alive.

    Args:
      tree: Any pytree; see `walk`.
      keep: Hold on to the tree, also when nothing else does.
      name, columns, stats, is_leaf, depth, beside, **trees: As for `render`.

    Raises:
      TypeError: A keyword is neither an option nor a tree.
      ValueError: `columns` names a column that the table does not have.
    """
    from treeviz.explorer import Explored
    from treeviz.views.widget import TreeWidget

    def look(tree: Any, trees: Mapping[str, Any]) -> tuple[TreeView, list[Any]]:
        prepared = prepare(tree, name=name, columns=columns, stats=stats, is_leaf=is_leaf, trees=trees)
        return TreeView(prepared.table, prepared.columns, depth=depth), prepared.nodes

    check_flag("keep", keep)
    return TreeWidget(Explored(tree, look, trees=other_trees("explore", beside, trees), keep=keep))


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext treeviz` calls: adds the magic `%tree expression`, and changes nothing else."""
    add_magic(shell, render)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext treeviz` calls: takes `%tree` away again."""
    remove_magic(shell)
