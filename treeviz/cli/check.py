"""`treeviz check FILE`: what is wrong with the tree in a file."""

from __future__ import annotations

import argparse
import json
from typing import Any

from treeviz.cli.output import DIFFERENT, SAME, add_github, markdown_table, print_text
from treeviz.cli.source import add_source, load, name_of

FORMAT = "treeviz-check/1"  # of --json: later versions add names, but change none


def add(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "check", help="what is wrong with it", description="Say what is wrong with the tree in a file."
    )
    add_source(parser, "file", nargs="?")
    parser.add_argument("--explain", metavar="CODE", help="say what a rule looks for, as T101")
    parser.add_argument(
        "--for",
        dest="for_",
        choices=("any", "jit", "grad", "state"),
        default="any",
        help="what the tree is for: arguments of jit, parameters of grad, a state to save",
    )
    parser.add_argument("--values", action="store_true", help="read the values: NaN, infinities, zeros")
    parser.add_argument("--ignore", metavar="CODE", action="append", default=[], help="leave a rule out; repeatable")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the findings for programs")
    add_github(output)
    return parser


def run(options: argparse.Namespace) -> int:
    from treeviz.checker import check_tree, explain

    if options.explain:
        print_text(explain(options.explain))
        return SAME
    if options.file is None:
        raise ValueError("check: which file? See treeviz check --help")
    found = check_tree(
        load(options.file, options),
        name=name_of(options.file),
        for_=options.for_,
        values=options.values,
        roundtrip=False,
        ignore=options.ignore,
    )
    if options.json:
        rows = [{"code": f.code, "level": f.level, "path": f.path, "sentence": f.sentence, "fix": f.fix} for f in found]
        print_text(json.dumps({"format": FORMAT, "findings": rows}, indent=1))
    elif options.github:
        rows = ((each.path or "the root", each.level, each.code, each.sentence) for each in found)
        print_text(markdown_table(f"{options.file}: {len(found):,} findings", ("leaf", "", "rule", "finding"), rows))
    else:
        print_text(str(found))
    return DIFFERENT if any(each.level == "error" for each in found) else SAME
