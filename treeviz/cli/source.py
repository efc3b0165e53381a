"""What a command is given: a file, a folder of files, or a tree that Python makes."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# A bar of how much of the files was read, where that takes longer than a second.

DELAY_S = 1.0  # until it appears
_bars: list[Any] = []  # that of the command that runs
_expected: list[Any] = []  # trees that are not in its total yet


@contextmanager
def reading() -> Iterator[None]:
    from treeviz.integrations.tqdm import bytes_bar
    from treeviz.tree.stored import on_read

    bar = bytes_bar(DELAY_S)
    if bar is not None:
        _bars.append(bar)
        on_read.append(_advance)
    try:
        yield
    finally:
        end()


def expect(tree: Any) -> None:
    """Add what is in the files of a tree to what is to be read, if anything is."""
    if _bars:
        _expected.append(tree)


def _advance(n_bytes: int) -> None:
    import jax

    from treeviz.tree.stored import Stored

    while _expected:
        leaves = jax.tree.leaves(_expected.pop())
        _bars[-1].total += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Stored))
    _bars[-1].update(n_bytes)


def end() -> None:
    """Take the bar away, before anything is printed."""
    from treeviz.tree.stored import on_read

    _expected.clear()
    while _bars:
        on_read.remove(_advance)
        _bars.pop().close()


def add_source(parser: argparse.ArgumentParser, name: str, also: str = "", **how: Any) -> None:
    """Declare the files, and how to read them.

    Args:
      also: What else this command reads.
    """
    from treeviz.reader import READERS

    others = [
        "a folder of Orbax or of .safetensors",
        *([also] if also else []),
        "or an object in Python, package.module:name",
    ]
    formats = "; ".join([", ".join(READERS), *others])
    parser.add_argument(name, metavar="FILE", help=formats, **how)
    parser.add_argument("--like", metavar="MODULE:NAME", help="for .eqx: the model, or a function that makes it")


def load(what: str, options: argparse.Namespace) -> Any:
    """The tree; nothing is read but headers until values are asked for."""
    from treeviz.reader import read

    if "" not in sys.path and os.getcwd() not in sys.path:  # a script lacks what `python -m` has
        sys.path.insert(0, os.getcwd())
    is_one_of_several = len(getattr(options, "files", ())) > 1  # the others may have names
    like = None if is_one_of_several and not what.lower().endswith(".eqx") else options.like
    tree = read(what, like=like)
    expect(tree)
    return tree


def name_of(what: str) -> str:
    """A Python identifier for the tree."""
    from treeviz.reader import identifier

    return identifier(what)


@contextlib.contextmanager
def stacks_of(what: str) -> Iterator[None]:
    """Tells of --stacked without an array as a user of the command needs it."""
    from treeviz.tree.layers import NoStack

    try:
        yield
    except NoStack as error:
        find = f"treeviz {shlex.quote(what)} --find {shlex.quote(error.glob)}"
        raise ValueError(
            f"--stacked {error.glob!r}: no array with axes has a key path that ends like this. {find} lists what has, "
            "and a glob may also name a node above the arrays."
        ) from None
