"""`treeviz diff A B`: every difference between the trees in two files; of more, how each leaf drifts."""

from __future__ import annotations

import argparse
from typing import Any

from treeviz.cli.output import DIFFERENT, SAME, add_outputs, deliver, is_terminal, markdown_table, print_text
from treeviz.cli.source import add_source, load


def add(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "diff",
        help="every difference between two; the drift of every leaf over more",
        description="Show every difference between the trees in two files, or, of three or more checkpoints, how far "
        "every leaf has moved from the first. Status 1 if they differ.",
    )
    add_source(parser, "files", nargs="+")
    parser.add_argument("--no-values", dest="values", action="store_false", help="compare structure, shapes and dtypes")
    parser.add_argument("--rtol", metavar="X", type=float, default=0.0, help="relative tolerance of values")
    parser.add_argument("--atol", metavar="X", type=float, default=0.0, help="absolute tolerance of values")
    add_outputs(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    if len(options.files) < 2:
        raise ValueError("diff: compares two files or more")
    trees = [load(what, options) for what in options.files]
    return _two(trees, options)


def _two(trees: list[Any], options: argparse.Namespace) -> int:
    from treeviz.differ import diff

    found = diff(*trees, values=options.values, rtol=options.rtol, atol=options.atol)
    if options.github:
        title = f"{' and '.join(options.files)}: {len(found.differences):,} differences"
        print_text(
            markdown_table(
                title, ("leaf", "difference"), ((each.path or "the root", each.text) for each in found.differences)
            )
        )
    else:
        deliver(found, options, lambda: str(found) if is_terminal() else found.text(fold=False))
    return DIFFERENT if found.differences else SAME
