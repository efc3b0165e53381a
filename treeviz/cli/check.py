"""`treeviz check FILE`: the problems of the tree in a file."""

from __future__ import annotations

import argparse
from typing import Any

from treeviz.cli.output import (
    DIFFERENT,
    SAME,
    add_outputs,
    add_source,
    deliver,
    load,
    markdown_table,
    name_of,
    print_text,
)
from treeviz.tree.text import counted

_JSON = "all rows and the findings, for programs; the format: treeviz/views/schema.json"


def add(commands: Any) -> argparse.ArgumentParser:
    about = "check a tree for problems"
    parser = commands.add_parser("check", help=about, description="Check the tree in a file for problems.")
    add_source(parser, "file", nargs="?")
    parser.add_argument("--explain", metavar="CODE", help="explain a rule, for example T101")
    use = "what the tree is for: arguments of jit, parameters of grad, a state to save"
    parser.add_argument("--for", dest="for_", choices=("any", "jit", "grad", "state"), default="any", help=use)
    parser.add_argument("--values", action="store_true", help="read the values: NaN, infinities, zeros")
    parser.add_argument("--ignore", metavar="CODE", action="append", default=[], help="skip a rule; repeatable")
    add_outputs(parser, text="the findings as text", json=_JSON, width=None)
    return parser


def run(options: argparse.Namespace) -> int:
    if options.explain:
        from treeviz.api import explain

        print_text(explain(options.explain))
        return SAME
    if options.file is None:
        raise ValueError("check: name a file; see treeviz check --help")
    tree = load(options.file, options)  # before JAX is imported, so that a bad file is refused at once
    from treeviz.api import checked_tree

    name = name_of(options.file)
    view = checked_tree(tree, name=name, for_=options.for_, values=options.values, ignore=options.ignore)
    findings = view.findings

    def summary() -> str:
        title = f"{options.file}: {counted(len(findings), 'finding')}"
        rows = ((finding.path or "the root", finding.level, finding.code, finding.sentence) for finding in findings)
        return markdown_table(title, ("leaf", "", "rule", "finding"), rows)

    deliver(view, options, lambda: str(findings), summary=summary)
    return DIFFERENT if any(finding.level == "error" for finding in findings) else SAME
