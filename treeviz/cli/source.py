"""What a command is given: a file, a folder of files, or a tree that Python makes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from treeviz.cli.progress import expect


def add_source(parser: argparse.ArgumentParser, name: str, **how: Any) -> None:
    """Declare the files, and how to read them."""
    from treeviz.reader import READERS

    formats = f"{', '.join(READERS)}, a folder of .safetensors, or package.module:name in Python"
    parser.add_argument(name, metavar="FILE", help=formats, **how)
    parser.add_argument("--like", metavar="MODULE:NAME", help="the model, or what makes it, of a file without names")


def load(what: str, options: argparse.Namespace) -> Any:
    """The tree; nothing is read but headers until values are asked for."""
    from treeviz.reader import read

    if "" not in sys.path and os.getcwd() not in sys.path:  # a script lacks what `python -m` has
        sys.path.insert(0, os.getcwd())
    tree = read(what, like=options.like)
    expect(tree)
    return tree


def name_of(what: str) -> str:
    """A Python identifier for the tree."""
    from treeviz.reader import identifier

    return identifier(what)
