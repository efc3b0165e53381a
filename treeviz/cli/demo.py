"""`treeviz demo`: a model with the shapes of GPT-2 small."""

from __future__ import annotations

import argparse
from typing import Any

from treeviz.cli.output import print_text
from treeviz.cli.show import add_options, show


def add(commands: Any) -> argparse.ArgumentParser:
    about = "the train state of GPT-2 small, as a page and as text"
    parser = commands.add_parser("demo", help=about, description=f"Show {about}.")
    add_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    from treeviz import demo_model

    if not any((options.html, options.json, options.text, options.svg, options.png)):
        options.html = "treeviz-demo.html"
    if not demo_model.has_optax():
        print_text(
            "optax is not installed: the optimizer state stands in named tuples of the same names as its own. "
            "(pip install optax)\n"
        )
    return show(options, demo_model.train_state, "state")
