"""`treeviz diff A B`: every difference between the trees in two files; for more files, the drift of each leaf."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeviz.cli.output import (
    DIFFERENT,
    SAME,
    TROUBLE,
    add_outputs,
    add_source,
    deliver,
    load,
    markdown_table,
    name_of,
    one_line,
    print_error,
    printed,
    stacks_of,
)
from treeviz.cli.show import add_list, deliver_list, is_list
from treeviz.tree.text import counted

if TYPE_CHECKING:
    from treeviz.tree.table import Row

_ABOUT_VALUES = ("delta", "relative", "differ")


def add(commands: Any) -> argparse.ArgumentParser:
    about = (
        "Show every difference between the trees in two files. For three or more checkpoints: how far each leaf has "
        "moved from the first. Status 1 if they differ."
    )
    short = "every difference between two; the drift of each leaf over several"
    parser = commands.add_parser("diff", help=short, description=about)
    add_source(parser, "files", nargs="+")
    structure = "compare only structure, shapes and dtypes"
    parser.add_argument("--no-values", dest="values", action="store_false", help=structure)
    stacked = (
        "arrays with all layers along their first axis, for example 'layers/*': show which layers differ; repeatable"
    )
    parser.add_argument("--stacked", metavar="GLOB", action="append", default=[], help=stacked)
    only_values = "compare only values of arrays, whatever their names, order and layout"
    parser.add_argument("--only-values", action="store_true", help=only_values)
    parser.add_argument("--rtol", metavar="X", type=float, default=0.0, help="relative tolerance of values")
    parser.add_argument("--atol", metavar="X", type=float, default=0.0, help="absolute tolerance of values")
    sort = "list the leaves that differ, the largest difference first: by delta, relative, differ, bytes …"
    add_list(parser, sort, top="list the first N of those rows, or of those that differ")
    add_outputs(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    if len(options.files) < 2:
        raise ValueError("diff: pass two or more files")
    return _two(options) if len(options.files) == 2 else _drift(options)


def _two(options: argparse.Namespace) -> int:
    trees = [load(file, options) for file in options.files]  # before JAX is imported, so that bad files fail at once
    from treeviz.analysis.compare.tree_diff import RAISED
    from treeviz.differ import diff
    from treeviz.tree.query import needs_values

    if options.find is not None and needs_values(options.find):
        raise ValueError("diff: --find knows no statistics of one tree; diff:nan finds where NaN are in one of the two")
    with stacks_of(options.files[0]):
        given = {name: getattr(options, name) for name in ("values", "rtol", "atol", "stacked")}
        differing = diff(*trees, like="values" if options.only_values else None, **given)

    def summary() -> str:
        title = f"{' and '.join(options.files)}: {counted(len(differing.differences), 'difference')}"
        rows = ((difference.path or "the root", difference.text) for difference in differing.differences)
        return markdown_table(title, ("leaf", "difference"), rows)

    def describe(row: Row) -> str:
        return "; ".join(note.text for note in row.notes if note.kind == "differs") or "the same"

    if is_list(options):
        # If no value differs, the table has no column about values.
        has_none = options.values and options.sort in _ABOUT_VALUES and options.sort not in differing.table.columns
        sort = None if has_none else options.sort
        rows = [row for row in differing.find("is:differs") if options.sort is None or row.is_leaf]
        deliver_list(differing, options, rows, sort, describe)
    else:
        deliver(differing, options, lambda: printed(differing, options), summary=summary)
    unread = [f"{path}: {why}" for path, why in differing.not_compared.items() if why.startswith(RAISED)]
    if unread:
        print_error(f"treeviz: not compared: {one_line('; '.join(unread))}")
    return DIFFERENT if differing.differences else TROUBLE if unread else SAME


def _drift(options: argparse.Namespace) -> int:
    from treeviz.analysis.compare.aligned import Side
    from treeviz.analysis.compare.merged import drift
    from treeviz.prepare import scanned
    from treeviz.tree.facts import Note
    from treeviz.views.tree_view import TreeView

    if not options.values or options.rtol or options.atol or options.stacked or options.only_values:
        raise ValueError("diff: with more than two files, values are compared in full and without tolerances")
    if is_list(options):
        raise ValueError("diff: --find, --sort and --top work with two files only")
    files, steps = _in_order(options.files)
    sides = (Side(*scanned(load(file, options), None, name_of(files[0]))) for file in files)
    first = next(sides)
    moved = drift(first, sides, steps[1:])
    n_moved, n_same, n_left_out = (counted(n, "leaf", "leaves") for n in moved[2:])
    lines = [f"{len(files):,} checkpoints", f"{n_moved} moved since step {steps[0]:,}"]
    lines += [f"{n_same} never moved"] * bool(moved.n_same)
    why = "missing in one, of another shape, or unreadable"
    lines += [f"{n_left_out} not compared: {why}"] * bool(moved.n_left_out)
    notes = {row: (Note("info", f"from zeros by {norm:.3g}"),) for row, norm in moved.from_zero.items()}
    table = first.table.with_headline(*first.table.headline, *lines).with_notes(notes)
    view = TreeView(table, table.chosen(["elements"]), series=moved.series)
    deliver(view, options, lambda: printed(view, options))
    return DIFFERENT if moved.n_moved or moved.n_left_out else SAME


def _in_order(files: list[str]) -> tuple[list[str], list[int]]:
    """The files and their steps, sorted by the last number in each name; in the given order if one has none."""
    digits = [re.findall(r"\d+", Path(file).name) for file in files]
    numbers = [int(runs[-1]) for runs in digits if runs]
    if len(set(numbers)) < len(files) or max(numbers) >= 2**63:
        return files, list(range(len(files)))
    pairs = sorted(zip(numbers, files, strict=True))
    return [file for _, file in pairs], [number for number, _ in pairs]
