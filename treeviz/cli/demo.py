"""`treeviz demo`: a model with the shapes of GPT-2 small."""

from __future__ import annotations

import argparse
from typing import Any

from treeviz.cli.output import print_error, say
from treeviz.cli.show import add_options, show

_PAGE = "treeviz-demo.html"


def add(commands: Any) -> argparse.ArgumentParser:
    about = "the train state of GPT-2 small, as a page and as text"
    parser = commands.add_parser("demo", help=about, description=f"Show {about}.")
    add_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    say("Making the state of GPT-2 small, 1.5 GB …")
    from treeviz import demo_model

    is_own_page = not any((options.html, options.json, options.text, options.svg, options.png))
    if is_own_page:
        options.html = _PAGE
    status = show(options, demo_model.train_state, "state")
    if not demo_model.has_optax():
        print_error("Without optax, named tuples with its names hold the optimizer state (pip install optax).")
    if is_own_page and not options.open:
        print_error(f"Open {_PAGE} in a browser, or run: treeviz demo --open")
    return status
