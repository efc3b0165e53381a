"""A bar of how much of the files was read, where that takes longer than a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DELAY_S = 1.0  # until it appears
_bars: list[Any] = []  # that of the command that runs


@contextmanager
def reading() -> Iterator[None]:
    from treeviz.integrations.tqdm import bytes_bar
    from treeviz.tree.stored import on_read

    bar = bytes_bar(DELAY_S)
    if bar is not None:
        _bars.append(bar)
        on_read.append(bar.update)
    try:
        yield
    finally:
        end()


def expect(tree: Any) -> None:
    """Add what is in the files of a tree to what is to be read."""
    if _bars:
        import jax

        from treeviz.tree.stored import Stored

        _bars[-1].total += sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if isinstance(leaf, Stored))


def end() -> None:
    """Take the bar away, before anything is printed."""
    from treeviz.tree.stored import on_read

    while _bars:
        bar = _bars.pop()
        on_read.remove(bar.update)
        bar.close()
