"""`treeviz grads RUN [RUN2]`: the gradients of a run, or the step at which two runs part."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from treeviz.cli.output import DIFFERENT, SAME, add_outputs, deliver, number
from treeviz.cli.show import add_rows, is_list, recorded, shown, with_run_options
from treeviz.tree.text import visible


def add(commands: Any) -> argparse.ArgumentParser:
    about = (
        "Show the gradients of a run. For two runs: the first step and leaf where they diverge, the ratio of their "
        "norms over the steps, and their losses."
    )
    parser = commands.add_parser("grads", help="the gradients of a run, or where two runs diverge", description=about)
    written = "a .treeviz file, written by inspector.save or inspector.keep; also at s3://, gs://, …"
    parser.add_argument("run_file", metavar="RUN", help=written)
    parser.add_argument("other", metavar="RUN2", nargs="?", help="another run; status 1 if they differ")
    parser.add_argument("--tree", metavar="NAME", help="the tree to show or compare, if there are several")
    follow = "show the run while it is written; piped: its new findings"
    parser.add_argument("--follow", action="store_true", help=follow)
    parser.add_argument("--total", metavar="N", type=number("steps"), help="with --follow: the steps of the whole run")
    add_rows(parser)
    add_outputs(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    if options.follow:
        from treeviz.cli.follow import run as follow

        return follow(options)
    inspector = recorded(options.run_file)
    if options.other is None:
        return shown(with_run_options(inspector.render(options.tree), options), options, lambda: str(inspector))
    from treeviz.inspector.views import compare_runs

    other = recorded(options.other)
    files = options.run_file, options.other
    left, right = (visible(run.history.name, 100) for run in (inspector, other))
    names = left or Path(files[0]).stem, right or Path(files[1]).stem
    names = names if names[0] != names[1] else files
    runs = compare_runs(inspector.history, other.history, names, options.tree)
    view = with_run_options(runs.view, options)
    if runs.is_equal and not is_list(options):  # a tree of ones
        deliver(view, options, lambda: " · ".join(view.table.headline))
    else:
        shown(view, options)
    return SAME if runs.parting is None else DIFFERENT
