"""`treeviz show FILE`: what is in a file."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeviz.cli.output import (
    DIFFERENT,
    SAME,
    add_outputs,
    add_source,
    deliver,
    is_terminal,
    load,
    markdown_list,
    name_of,
    number,
    one_line,
    print_error,
    printed,
    run_at,
    stacks_of,
)

if TYPE_CHECKING:
    from treeviz.inspector.inspector import GradientInspector
    from treeviz.tree.facts import Column
    from treeviz.tree.table import Row
    from treeviz.views.tree_view import TreeView


def add(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser("show", help="what is in a file", description="Show the tree in a file.")
    add_source(parser, "what", extra_format="a .treeviz run")
    add_options(parser)
    return parser


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Declare the options that select the rows to show."""
    add_list(parser)
    parser.add_argument("--depth", metavar="N", type=number("levels"), help="show only N levels")
    parser.add_argument("--columns", metavar="NAMES", help="the columns to show, for example dtype,bytes")


def add_list(
    parser: argparse.ArgumentParser,
    sort: str = "list the leaves, the largest first: by bytes, rms, a run's grads_norm …",
    top: str = "list the first N rows; without --find or --sort the N largest leaves",
) -> None:
    """Declare the options that list rows."""
    query = "list the rows that match a query of the page's search box: 'bytes:>100M', kernel …"
    parser.add_argument("--find", metavar="QUERY", help=query)
    parser.add_argument("--sort", metavar="COLUMN", help=sort)
    parser.add_argument("--top", metavar="N", type=number("rows"), help=top)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_rows(parser)
    parser.add_argument("--stats", action="store_true", help="read the values: mean, std, zeros, NaN, a histogram …")
    stacked = "arrays with all layers along their first axis, for example 'layers/*': show a row for each layer"
    parser.add_argument("--stacked", metavar="GLOB", action="append", default=[], help=f"{stacked}; repeatable")
    parser.add_argument("--sharding", action="store_true", help="how each array is sharded, in a checkpoint when saved")
    parser.add_argument("--whole", action="store_true", help="read the whole tree, however long that takes")
    add_outputs(parser)


def run(options: argparse.Namespace) -> int:
    if options.what.endswith(".treeviz"):
        if options.stats or options.stacked or options.like:
            raise ValueError(f"{one_line(options.what)} is a recorded run: --stats, --stacked and --like do not apply")
        return shown(with_run_options(recorded(options.what).render(), options), options)
    return show(options, lambda: load(options.what, options), name_of(options.what))


def recorded(file: str) -> GradientInspector:
    """Load a recorded run; raises ValueError if it has no measured step."""
    from treeviz.inspector.inspector import GradientInspector

    run = run_at(file)
    if not isinstance(run, Path):
        run.update()
    inspector = GradientInspector.load(run if isinstance(run, Path) else run.path)
    try:
        _ = inspector.history
    except LookupError:
        text = "no step was measured in this run yet; inspector.keep writes steps once a second and at the end"
        raise ValueError(f"{one_line(str(run))}: {text}") from None
    return inspector


def with_run_options(view: TreeView, options: argparse.Namespace) -> TreeView:
    """The view of a recorded run, with the requested columns and depth."""
    if options.columns is not None:
        view = replace(view, columns=view.table.chosen(options.columns.split(",")))
    return replace(view, depth=options.depth)


def show(options: argparse.Namespace, make_tree: Callable[[], Any], name: str) -> int:
    """Show a tree, or list rows of it."""
    # Not from `treeviz.api`, which would import JAX.
    from treeviz.prepare import prepare
    from treeviz.tree.query import VALUE_STATISTICS, needs_values
    from treeviz.tree.runtime import gc_paused
    from treeviz.views.tree_view import TreeView

    # A query or column of values needs the statistics.
    if options.sharding:
        options.columns = f"{options.columns or 'bytes'},sharding"
    columns = None if options.columns is None else options.columns.split(",")
    options.stats |= options.find is not None and needs_values(options.find)
    options.stats |= not {*VALUE_STATISTICS}.isdisjoint([*(columns or ()), options.sort])
    whole, stacked = options.whole or is_list(options), options.stacked
    with gc_paused():
        tree, totals = make_tree(), whole or not options.stats  # totals must cover the whole checkpoint
        with stacks_of(getattr(options, "what", "demo")):
            prepared = prepare(tree, name=name, stats=options.stats, columns=columns, stacked=stacked, whole=totals)
        return shown(TreeView(prepared.table, prepared.columns, depth=options.depth, whole=whole), options)


def is_list(options: argparse.Namespace) -> bool:
    return options.find is not None or options.sort is not None or options.top is not None


def shown(view: TreeView, options: argparse.Namespace, text: Callable[[], str] | None = None) -> int:
    """Deliver a view or a list of its rows, or in a terminal a `text`. Returns the status: whether a row matches."""
    if is_list(options):
        sort = options.sort or ("bytes" if options.find is None else None)
        from treeviz.tree.text import aval_text

        of_leaf = lambda f: f.type if f.shape is None else aval_text(f.shape, f.dtype)  # noqa: E731
        n_rows = deliver_list(view, options, list(view.table.leaves), sort, lambda row: of_leaf(row.facts))
        return SAME if n_rows else DIFFERENT
    is_chosen = options.depth is not None or options.columns is not None or options.width is not None
    make_text = text if text is not None and is_terminal() and not is_chosen else lambda: printed(view, options)
    deliver(view, options, make_text)
    return SAME


def deliver_list(
    view: TreeView,
    options: argparse.Namespace,
    rows: list[Row],
    sort: str | None,
    describe: Callable[[Row], str],
) -> int:
    """Deliver a view; as text, one line per matching row, with its numbers. Returns the number of these rows.

    Without a query, these are `rows`. A query that compares numbers lists leaves, and nodes only if no leaf matches.
    """
    from treeviz.tree.query import compared_columns, nearest, needs_values, unread
    from treeviz.tree.text import counted
    from treeviz.views.text.cells import BAD, WRITE

    columns: list[Column] = []
    if options.find is not None:
        columns, rows = compared_columns(view.table, options.find), view.find(options.find)
    if columns:
        rows = [row for row in rows if row.is_leaf or row.kind == "layer"] or rows
    n_matches = len(rows)
    if sort is not None:
        (column,) = view.table.chosen([sort])
        if column.format not in WRITE:
            raise ValueError(f"--sort {sort}: choose a column of numbers, not of text")
        columns = [column, *(other for other in columns if other is not column)]
        values = view.table.rolled(column)
        known = [row for row in rows if _is_bad(column, row) or not math.isnan(values[row.number])]
        rows = sorted(known, key=lambda row: (0, 0) if _is_bad(column, row) else (1, -values[row.number]))
    shown = [(column, WRITE[column.format], view.table.rolled(column)) for column in columns]
    lines = []
    for row in rows[: options.top]:
        cells = [BAD if _is_bad(column, row) else write(of[row.number].item()) for column, write, of in shown]
        lines.append("".join(f"{cell:>9}  " for cell in cells) + f"{row.expression}  {describe(row)}")
    if options.find is not None:
        n_unread = int(unread(view.table).sum()) if needs_values(options.find) else 0
        unread_text = f"; the values of {counted(n_unread, 'leaf', 'leaves')} were not read" if n_unread else ""
        near = "" if n_matches else nearest(view.table, options.find)
        hint = f". Did you mean --find {shlex.quote(one_line(near))}?" if near else ""
        print_error(f"{n_matches:,} of {len(view.table):,} rows match{unread_text}{hint}")
    deliver(view, options, lambda: lines, lambda: markdown_list(view.title, lines))
    return len(rows)


def _is_bad(column: Column, row: Row) -> bool:
    """Whether the value is NaN or infinite, and so the greatest."""
    return column.bad is not None and bool(column.bad[row.number])
