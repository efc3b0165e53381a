"""Prepare a tree for a view: its table with all requested columns, and checks of the options of `render`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treeviz import integrations
from treeviz.analysis.facts import (
    common_mesh,
    device_columns,
    fact_columns,
    headline,
    insertion_column,
    is_cut,
    is_number,
    mesh_text,
    scalar_column,
    size_columns,
    with_scalars,
)
from treeviz.tree import walk as walking
from treeviz.tree.annotations import with_named_axes
from treeviz.tree.describers import DISPLAY, WHOLE, Budget
from treeviz.tree.facts import Column, Note
from treeviz.tree.layers import Stacked, open_stacks, stacked_axes, stacks_in
from treeviz.tree.stored import Stored, with_metadata
from treeviz.tree.table import TreeTable
from treeviz.tree.text import class_name, counted, is_any, is_function, number_text, value_text

if TYPE_CHECKING:
    from treeviz.analysis.user_columns import LeafFunction

    AnyColumn = str | Column | LeafFunction | Callable[[Any], Any]

SIZES = ("elements", "bytes", "leaves")
STATISTICS = ("nan", "inf", "zeros", "min", "max", "mean", "std", "rms", "histogram")
_OPTIONS = ("name", "columns", "stats", "stacked", "is_leaf", "depth", "whole", "check", "beside")
_MORE_OPTIONS = {"render": ("values",), "explore": ("keep",)}
_MOST_NOT_READ = 1_000  # unread leaves with their own note


class Prepared(NamedTuple):
    """A table with all requested columns."""

    table: TreeTable
    nodes: list[Any]  # the node or leaf of each row
    columns: tuple[Column, ...]  # to show first


def scanned(
    tree: Any,
    is_leaf: Callable[[Any], bool] | None,
    name: str,
    budget: Budget = WHOLE,
    stacked: Stacked = (),
) -> tuple[TreeTable, list[Any]]:
    """The table with facts and sizes, and the node or leaf of each row. The row of a layer has its array."""
    integrations.load()
    tree, name = integrations.opened(tree, name)
    table, nodes = walking.scan(tree, is_leaf=is_leaf, name=name, budget=budget)
    table, shape_only = with_named_axes(table, nodes), []
    if "stored" in {facts.kind for facts in table.facts}:
        table = with_metadata(table, nodes)
        table = replace(table, separator=_separator(table, nodes))
    if stacked:
        axes = stacks_in(table, stacked)
        table, rows = open_stacks(table, axes, max_rows=budget.max_rows)
        nodes = [nodes[row] for row in rows.tolist()]
    arrays = [facts.kind for facts in table.facts if facts.is_leaf and facts.shape is not None]
    if len(table) > 1 and {*arrays} == {"shape only"}:
        # Then the headline says it, instead of each row.
        shape_only = ["shape only"]
        table = replace(table, facts=tuple([f._replace(is_as_all=f.kind == "shape only") for f in table.facts]))
    on_devices, placement = device_columns(table)
    mesh = common_mesh(table)
    table = table.with_columns(*fact_columns(table, mesh), *on_devices, *size_columns(table))
    return table.with_headline(*headline(table), *shape_only, *placement, *([mesh_text(mesh)] if mesh else [])), nodes


def _separator(table: TreeTable, nodes: list[Any]) -> str:
    """The separator that joins the keys of a path to the name of an array in a file; "" if there is none."""
    first, name = next(((row, node.name) for row, node in enumerate(nodes) if type(node) is Stored), (0, ""))
    return next((sign for sign in "./" if name == sign.join(key.segment for key in table.path(first))), "")


def prepare(
    tree: Any,
    *,
    name: str = "tree",
    columns: Sequence[AnyColumn] | None = None,
    stats: bool = False,
    stacked: Stacked = (),
    is_leaf: Callable[[Any], bool] | None = None,
    trees: Mapping[str, Any] | None = None,
    whole: bool = False,
) -> Prepared:
    """Walk the tree and add columns for statistics, other trees and the user's functions.

    Args:
      trees: Other trees by name; see `other_trees`. For the other arguments, see `treeviz.render`.

    Raises:
      TypeError: A tree was given as `stats`.
      ValueError: `columns` has a name that is not in the table, or a `Column` of another length.
    """
    check_flag("stats", stats)
    check_flag("whole", whole)
    budget = WHOLE if whole else DISPLAY
    table, nodes = scanned(tree, is_leaf, name, budget, stacked)
    table = table.with_columns(*scalar_column(table, nodes), *insertion_column(table, nodes))
    if stats:
        table = _with_statistics(table, nodes, budget, bool(trees))
    names_of_others: tuple[str, ...] = ()
    if trees:
        from treeviz.analysis.side_by_side import other_tree_columns

        other_columns = other_tree_columns(table, nodes, trees, stats=stats, is_leaf=is_leaf, budget=budget)
        table = table.with_columns(*other_columns.columns).with_notes(other_columns.notes)
        table = table.with_headline(*table.headline, *other_columns.headline)
        names_of_others = other_columns.shown
    names: Sequence[str]
    if columns is not None:
        table, names = _with_own(table, nodes, columns)
        names += [name for name in names_of_others if name not in names]
    elif not trees:
        names = (*SIZES, *_placement(table), *(_without_uniform(table, STATISTICS) if stats else ()))
    elif stats:  # `rms` stays even if equal in every row, since it is compared with the columns next to it
        names = ("rms", *names_of_others, *_without_uniform(table, ("nan",)), "bytes")
    else:  # the page's menu has the others
        names = (*names_of_others, "bytes")
    return Prepared(table, nodes, table.chosen(names))


def _with_statistics(table: TreeTable, nodes: list[Any], budget: Budget, others: bool) -> TreeTable:
    from treeviz.analysis.stats import NOT_READ, not_finite, value_statistics

    added, reasons = value_statistics(table, nodes, budget=budget)
    left_out = [row for row, text in reasons.items() if text.startswith(NOT_READ)]
    table = table.with_columns(*added)
    parts, notes = not_finite(table, is_whole=not left_out and not is_cut(table), others=others)
    if left_out:
        parts.append(f"statistics without {counted(len(left_out), 'leaf', 'leaves')}")
        for row in left_out[_MOST_NOT_READ:]:  # the headline counts them
            del reasons[row]
    mean = table.columns["mean"].values
    read = {row: number_text(mean[row]) for row in np.flatnonzero(is_number(table) & np.isfinite(mean)).tolist()}
    table = table.with_columns(*with_scalars(table, read))
    # A type that says "shape only" says why there are no values.
    kinds = {row: table.facts[table.fact_codes[row]].kind for row in reasons}
    said = {row: (Note("info", text),) for row, text in reasons.items() if kinds[row] != "shape only"}
    table = table.with_notes(said).with_notes(notes)
    return table.with_headline(*table.headline, *parts)


def _without_uniform(table: TreeTable, names: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns without those that are equal in every row, which the headline reports."""
    from treeviz.analysis.stats import uniform_statistics

    words = {} if is_cut(table) else uniform_statistics(table)
    return tuple(name for name in names if name not in words)


def other_trees(caller: str, others: Mapping[str, Any] | None, trees: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the other trees of a call: keywords that are not options, and `beside=`.

    Raises:
      TypeError: A keyword is a flag, a number or a string and thus not a tree, is a mistyped option, or is given twice.
    """
    for name, tree in trees.items():
        is_plain = is_any(type(tree), (bool, int, str))
        near = difflib.get_close_matches(name, (*_OPTIONS, *_MORE_OPTIONS[caller]), n=1)
        if is_plain or (near and _could_be_an_option(tree)):
            why = f"{value_text(tree)} is not one." if is_plain else f"beside={{{name!r}: …}} does so, too."
            raise TypeError(
                f"{caller}: there is no option {name!r}{f'; did you mean {near[0]!r}?' if near else '.'} "
                f"Any other keyword names a tree to compare with; {why}"
            )
    if others is None:
        return dict(trees)
    if not isinstance(others, Mapping):
        kind = class_name(type(others))
        raise TypeError(f"{caller}: beside= must be a dict of trees by name, not a {kind}: beside={{'grads': grads}}")
    twice = [name for name in others if name in trees]
    if twice:
        raise TypeError(f"{caller}: {twice[0]!r} is given twice, as a keyword and in beside=.")
    return {**trees, **{str(name): tree for name, tree in others.items()}}


def _could_be_an_option(value: Any) -> bool:
    """Whether it is a function, a list of names or functions, or what other options take, and no tree of arrays."""
    if is_any(type(value), (list, tuple, set, frozenset)):
        return bool(value) and _are_columns(value)
    if type(value) is dict:  # stacked=
        return bool(value) and all(type(axis) is int for axis in value.values())
    return type(value) is float or is_function(type(value))


def check_flag(name: str, value: Any) -> None:
    """Raise a TypeError if a tree was given for a boolean option."""
    if value is not False:
        _check(name, "True or False", is_any(type(value), (bool, int, type(None))))


def check_options(*, name: Any, columns: Any, is_leaf: Any, depth: Any, stacked: Any = ()) -> None:
    """Raise a TypeError if a tree was given for an option that is not a flag."""
    _check("name", "text", isinstance(name, str))
    _check("is_leaf", "a function", is_leaf is None or callable(is_leaf))
    _check("depth", "a number of levels", depth is None or isinstance(depth, int | np.integer))
    _check(
        "stacked",
        "globs of key paths, or a dict of globs and axes",
        (type(stacked) is tuple and not stacked) or _are_globs(stacked),
    )
    kind = "a list of names, functions of a leaf and treeviz.Column objects"
    _check("columns", kind, columns is None or _are_columns(columns))


def _are_globs(stacked: Any) -> bool:
    try:
        stacked_axes(stacked)
    except TypeError:
        return False
    return True


def _are_columns(columns: Any) -> bool:
    from treeviz.analysis.user_columns import LeafFunction

    if isinstance(columns, Mapping):  # table.columns
        return all(isinstance(column, Column) for column in columns.values())
    are_some = isinstance(columns, Sequence | Set)
    return are_some and all(isinstance(item, str | Column | LeafFunction) or callable(item) for item in columns)


def _check(name: str, kind: str, is_valid: bool) -> None:
    if not is_valid:
        raise TypeError(
            f"{name}= is an option, {kind}. To show a tree of that name beside the other, pass beside={{{name!r}: …}}."
        )


def _with_own(table: TreeTable, nodes: Sequence[object], columns: Sequence[AnyColumn]) -> tuple[TreeTable, list[str]]:
    """Add the columns given as `Column` or function. Returns the table and the names of all requested columns."""
    from treeviz.analysis.user_columns import LeafFunction, column, function_columns

    if isinstance(columns, str):
        raise ValueError(f"columns= must be a list: columns=[{columns!r}]")
    others = [item for item in columns if not isinstance(item, (str, Column))]
    functions = [item if isinstance(item, LeafFunction) else column(item) for item in others]
    given = [item for item in columns if isinstance(item, Column)]
    for own in given:
        n_values = len(own.levels if own.codes is None else own.codes)
        if n_values != len(table):
            raise ValueError(
                f"column {own.name!r} has {n_values:,} values, but {table.name} has {len(table):,} rows: "
                "one for each row, nodes included."
            )
    table = table.with_columns(*given)
    made = function_columns(table, nodes, functions, table.columns) if functions else []
    groups = iter(made)
    in_order = [[item] if isinstance(item, (str, Column)) else next(groups) for item in columns]
    names = [item if isinstance(item, str) else item.name for item in chain.from_iterable(in_order)]
    return table.with_columns(*chain.from_iterable(made)), names


def _placement(table: TreeTable) -> tuple[str, ...]:
    """The columns that show the devices of the arrays; none if all arrays are on one device."""
    shardings = [facts.sharding for facts in table.facts if facts.sharding is not None and facts.kind != "stored"]
    places = {(sharding.n_devices, sharding.memory, sharding.platform, sharding.device_ids) for sharding in shardings}
    if len(places) < 2 and all(n == 1 and not memory for n, memory, *_ in places):
        return ()
    n_devices = np.fmax.reduce(table.columns["devices"].values)  # the root has the most
    is_spread = n_devices > 1 or max([sharding.n_devices for sharding in shardings], default=0) > 1
    memories = dict.fromkeys([sharding.memory for sharding in shardings if sharding.memory])
    if not is_spread and not memories:
        return ()
    others = [name for name in (*(f"{memory}.bytes" for memory in memories), "host_bytes") if name in table.columns]
    return ("device_bytes", *(name for name in others if table.rolled(table.columns[name])[0] > 0), "sharding")
