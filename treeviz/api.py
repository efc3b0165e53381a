"""What people call: a few lines each, which put the stages together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treeviz import integrations
from treeviz.analysis.facts import fact_columns
from treeviz.analysis.sizes import headline, size_columns
from treeviz.integrations.ipython import add_magic, remove_magic
from treeviz.tree import walk as walking
from treeviz.tree.table import Note, TreeTable
from treeviz.views.tree_view import TreeView

SIZES = ("parameters", "bytes", "leaves")
STATISTICS = ("nan", "inf", "zeros", "min", "max", "mean", "std", "rms", "histogram")


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
    return _scan(tree, is_leaf, name)[0]


def _scan(tree: Any, is_leaf: Callable[[Any], bool] | None, name: str) -> tuple[TreeTable, list[Any]]:
    integrations.load()
    table, things = walking.scan(tree, is_leaf=is_leaf, name=name)
    return table.with_columns(*fact_columns(table), *size_columns(table)).with_headline(*headline(table)), things


def render(
    tree: Any,
    *,
    name: str = "tree",
    columns: Sequence[str] | None = None,
    stats: bool = False,
    values: bool = False,
    is_leaf: Callable[[Any], bool] | None = None,
    depth: int | None = None,
) -> TreeView:
    """Show any pytree: structure, shapes, dtypes, sizes, sharding and static fields of every leaf and subtree.

    In a notebook the result displays itself; in a terminal `print` it; from a script `.save("x.html")`
    or `.show()` it. It is a snapshot that keeps no array alive. Nothing is computed, copied or fetched
    from a device, unless `stats` or `values` ask for it.

    Args:
      tree: Any pytree; see `walk`.
      name: What the root is called in key paths and in the expressions that people copy.
      columns: The names of the columns to show at first, of `view.table.columns`; the page lets the
        reader show the others.
      stats: Add min, max, mean, std, rms, the counts of zeros, NaN and infinities, and a histogram of
        magnitudes, for every array and every subtree. They are computed on the device that holds the
        array; only the numbers travel, in one transfer. About 3 ns an element on a CPU.
      values: Draw the values of the arrays too, with treescope's array visualiser, for the detail of
        a row. Copies a bounded part of every array to the host: see `treeviz.integrations.treescope`.
      is_leaf: As in `jax.tree.leaves`.
      depth: How many levels are open at first; by default as many as fit.

    Raises:
      ValueError: `columns` names a column that the table does not have.
    """
    table, things = _scan(tree, is_leaf, name)
    if stats:
        from treeviz.analysis.stats import value_statistics

        added, reasons = value_statistics(table, things)
        table = table.with_columns(*added).with_notes({row: (Note("info", text),) for row, text in reasons.items()})
    pictures = None
    if values:
        from treeviz.integrations.treescope import array_pictures

        pictures = array_pictures(table, things)
    return TreeView(table, table.chosen(columns or _default_columns(table, stats)), depth=depth, values=pictures)


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext treeviz` calls: adds the magic `%tree expression`, and changes nothing else."""
    add_magic(shell, render)


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext treeviz` calls: takes `%tree` away again."""
    remove_magic(shell)


def _default_columns(table: TreeTable, stats: bool) -> tuple[str, ...]:
    sharded = any(facts.sharding is not None and facts.sharding.n_devices != 1 for facts in table.facts)
    return (*SIZES, *(("sharding", "device_bytes") if sharded else ()), *(STATISTICS if stats else ()))
