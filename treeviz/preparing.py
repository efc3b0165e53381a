"""What is shown, before it is shown: the table with all its columns, and which of them come first."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from treeviz import integrations
from treeviz.analysis.facts import fact_columns
from treeviz.analysis.leaf_functions import LeafFunction, column, function_columns
from treeviz.analysis.sizes import headline, size_columns
from treeviz.tree import walk as walking
from treeviz.tree.column import Column
from treeviz.tree.quote import class_name, value_text
from treeviz.tree.table import Note, TreeTable

AnyColumn = str | Column | LeafFunction | Callable[[Any], Any]

SIZES = ("parameters", "bytes", "leaves")
STATISTICS = ("nan", "inf", "zeros", "min", "max", "mean", "std", "rms", "histogram")
_OPTIONS = ("name", "columns", "stats", "values", "is_leaf", "depth", "beside", "keep")


class Prepared(NamedTuple):
    """A table with everything that was asked for.

    Attributes:
      nodes: The node or leaf of each row.
      columns: Those that are shown at first.
    """

    table: TreeTable
    nodes: list[Any]
    columns: tuple[Column, ...]


def scanned(tree: Any, is_leaf: Callable[[Any], bool] | None, name: str) -> tuple[TreeTable, list[Any]]:
    """The table with its facts and sizes, and the node or leaf of each row."""
    integrations.load()
    table, nodes = walking.scan(tree, is_leaf=is_leaf, name=name)
    return table.with_columns(*fact_columns(table), *size_columns(table)).with_headline(*headline(table)), nodes


def prepare(
    tree: Any,
    *,
    name: str = "tree",
    columns: Sequence[AnyColumn] | None = None,
    stats: bool = False,
    is_leaf: Callable[[Any], bool] | None = None,
    trees: Mapping[str, Any] | None = None,
) -> Prepared:
    """Walk the tree and add the columns of statistics, of other trees, and of the user's functions.

    Args:
      trees: Other trees by name, see `other_trees`. The other arguments are those of `treeviz.render`.

    Raises:
      TypeError: A tree was given as `stats`.
      ValueError: `columns` has a name that the table does not have, or a `Column` of another length.
    """
    check_flag("stats", stats)
    table, nodes = scanned(tree, is_leaf, name)
    if stats:
        from treeviz.analysis.stats import value_statistics

        added, reasons = value_statistics(table, nodes)
        table = table.with_columns(*added).with_notes({row: (Note("info", text),) for row, text in reasons.items()})
    names_beside: tuple[str, ...] = ()
    if trees:
        from treeviz.analysis.beside import beside_columns

        found = beside_columns(table, nodes, trees, stats=stats, is_leaf=is_leaf)
        table = table.with_columns(*found.columns).with_notes(found.notes)
        names_beside = found.shown
    if columns is None:
        names = _default_columns(table, stats, names_beside) if trees else _alone(table, stats)
        return Prepared(table, nodes, table.chosen(names))
    table, names = _with_own(table, nodes, columns)
    names += [name for name in names_beside if name not in names]
    return Prepared(table, nodes, table.chosen(names))


def other_trees(caller: str, beside: Mapping[str, Any] | None, trees: Mapping[str, Any]) -> dict[str, Any]:
    """The other trees of a call: keywords that are no options, and those of `beside=`.

    Raises:
      TypeError: A keyword is a flag, a number or a text and so no tree, or stands in both.
    """
    for name, tree in trees.items():
        if type(tree) in (bool, int, str):
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            raise TypeError(
                f"{caller}: there is no option {name!r}{f'; did you mean {near[0]!r}?' if near else ''} "
                f"A keyword that is no option names another tree, and {value_text(tree)} is none."
            )
    beside = {} if beside is None else beside
    if not isinstance(beside, Mapping):
        raise TypeError(
            f"{caller}: beside= is to be a dict of trees by name, and not a {class_name(type(beside))}: "
            "beside={'grads': grads}"
        )
    twice = [name for name in beside if name in trees]
    if twice:
        raise TypeError(f"{caller}: {twice[0]!r} is given twice, as a keyword and in beside=.")
    return {**trees, **{str(name): tree for name, tree in beside.items()}}


def check_flag(name: str, value: Any) -> None:
    """Raise a TypeError where a tree was given for an option that is yes or no."""
    if type(value) not in (bool, int, type(None)):
        raise TypeError(
            f"{name}= is an option, True or False. To show a tree of that name beside the other, "
            f"pass beside={{{name!r}: …}}."
        )


def _with_own(table: TreeTable, nodes: Sequence[object], columns: Sequence[AnyColumn]) -> tuple[TreeTable, list[str]]:
    """The table with the columns that are given and not named, and the names of all that are asked for."""
    if isinstance(columns, str):
        raise ValueError(f"columns= is to be a list: columns=[{columns!r}]")
    functions = [
        each if isinstance(each, LeafFunction) else column(each)
        for each in columns
        if not isinstance(each, (str, Column))
    ]
    given = [each for each in columns if isinstance(each, Column)]
    for each in given:
        n_values = len(each.levels if each.codes is None else each.codes)
        if n_values != len(table):
            raise ValueError(
                f"column {each.name!r} has {n_values:,} values, but {table.name} has {len(table):,} rows: "
                "one for each row, nodes included."
            )
    table = table.with_columns(*given)
    made = function_columns(table, nodes, functions, table.columns) if functions else []
    table = table.with_columns(*(one for each in made for one in each))
    waiting, names = iter(made), []
    for each in columns:
        if isinstance(each, str):
            names.append(each)
        elif isinstance(each, Column):
            names.append(each.name)
        else:
            names += [one.name for one in next(waiting)]
    return table, names


def _alone(table: TreeTable, stats: bool) -> tuple[str, ...]:
    sharded = any(facts.sharding is not None and facts.sharding.n_devices != 1 for facts in table.facts)
    return (*SIZES, *(("sharding", "device_bytes") if sharded else ()), *(STATISTICS if stats else ()))


def _default_columns(table: TreeTable, stats: bool, beside: tuple[str, ...]) -> tuple[str, ...]:
    """What is compared stands side by side, and the rest is in the menu."""
    return ("rms", *beside, "nan", "bytes") if stats else (*beside, "bytes")
