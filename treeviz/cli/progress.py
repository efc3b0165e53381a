"""A bar of how much of the files was read, where that takes longer than a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
