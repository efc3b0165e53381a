"""The source that a command reads: a file, a folder of files or a Python object; and the progress bar for it."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treeviz.integrations.fsspec import RunCopy

# A progress bar, shown if reading takes longer than a second.

DELAY_S = 1.0  # until the bar appears
_bars: list[Any] = []  # the bar of the running command, and a line about what it does
_expected: list[Any] = []  # trees not yet in the bar's total


class _StatusLine:
    """A line on standard error about a step that takes long; erased before anything is printed."""

    def __init__(self, text: str) -> None:
        self._text = text
        print(f"{text}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print(f"\r{' ' * len(self._text)}\r", end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Show what the command does until it prints something; nothing if standard error is not a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        _bars.append(_StatusLine(text))


@contextmanager
def reading() -> Iterator[None]:
    from treeviz.integrations.tqdm import bytes_bar
    from treeviz.tree.stored import on_fetch, on_read

    bar = bytes_bar(DELAY_S)
    if bar is not None:
        _bars.append(bar)
        on_read.append(_advance)
        on_fetch.append(_fetched)
    try:
        yield
    finally:
        end()


def expect(tree: Any) -> None:
    """Add the stored leaves of a tree to the bar's total, once the first bytes are read."""
    if _bars:
        _expected.append(tree)


def _fetched(n_bytes: int) -> None:
    """Count the bytes of headers at an address, until values are read."""
    if _bars:
        _bars[-1].total += n_bytes
        _bars[-1].update(n_bytes)


def _advance(n_bytes: int) -> None:
    import jax

    from treeviz.tree.stored import Stored, on_fetch

    if _fetched in on_fetch:
        on_fetch.remove(_fetched)
    while _expected:
        leaves = jax.tree.leaves(_expected.pop())
        _bars[-1].total += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Stored))
    _bars[-1].update(n_bytes)


def end() -> None:
    """Remove the bar, before anything is printed, also to standard error."""
    from treeviz.tree.stored import on_fetch, on_read

    _expected.clear()
    for report, reports in ((_advance, on_read), (_fetched, on_fetch)):
        if report in reports:
            reports.remove(report)
    while _bars:
        _bars.pop().close()


def add_source(parser: argparse.ArgumentParser, name: str, extra_format: str = "", **options: Any) -> None:
    """Declare the arguments for the files; `extra_format` is one that this command reads, too."""
    from treeviz.reader import READERS

    folders, objects = (
        "an Orbax or .safetensors folder",
        "or a Python object, package.module:name; also at s3://, gs://, …",
    )
    formats = "; ".join(filter(None, (", ".join(READERS), folders, extra_format, objects)))
    parser.add_argument(name, metavar="FILE", help=formats, **options)
    parser.add_argument("--like", metavar="MODULE:NAME", help="for .eqx: the model, or a function that returns it")
    parser.add_argument("--follow-links", action="store_true", help="follow links that lead out of a folder")


def load(source: str, options: argparse.Namespace) -> Any:
    """The tree in a file. Reads only headers until values are needed."""
    from treeviz.reader import is_in_python, read

    has_other_files = len(getattr(options, "files", ())) > 1  # only .eqx files need --like then
    like = None if has_other_files and not source.lower().endswith(".eqx") else options.like
    like = None if like is None else _from_python(like)
    tree = _from_python(source) if is_in_python(source) else read(source, like=like, follow_links=options.follow_links)
    expect(tree)
    return tree


def _from_python(name: str) -> Any:
    """The tree "package.module:name". Its module may be in the working directory."""
    from treeviz.reader import from_python

    with working_directory():
        return from_python(name)


@contextmanager
def working_directory() -> Iterator[None]:
    """The working directory is on the path of imports.

    It is only here: for a file, a library such as gguf must never come from there.
    """
    importlib.import_module("jax.numpy")  # the installed one, which a module may import first
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:  # the module may have changed the list
            sys.path.remove(here)


def run_at(file: str) -> Path | RunCopy:
    """A recorded run: a file, or a copy of one at an address."""
    from treeviz.reader import path_of

    if isinstance(path := path_of(file), Path):
        return path
    from treeviz.integrations.fsspec import RunCopy

    return RunCopy(path)


def name_of(source: str) -> str:
    """A Python identifier for the tree."""
    from treeviz.reader import identifier

    return identifier(source)


@contextmanager
def stacks_of(source: str) -> Iterator[None]:
    """Rewrites the error about a --stacked glob without arrays for users of the command."""
    from treeviz.tree.layers import NoStack

    try:
        yield
    except NoStack as error:
        find = f"treeviz {shlex.quote(source)} --find {shlex.quote(error.glob)}"
        raise ValueError(
            f"--stacked {error.glob!r}: no array with axes has a key path that ends like this. {find} lists what has, "
            "and a glob may also name a node above the arrays."
        ) from None
