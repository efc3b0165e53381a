"""The nodes whose children are being walked, and which of these get rows: siblings share the rows of a walk fairly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import length_hint
from typing import NamedTuple

from treeviz.tree.budget import WHOLE
from treeviz.tree.describe import Describers
from treeviz.tree.keys import Key, KeyTable

MORE = Key("…", "", "…", ())


class Frame(NamedTuple):
    """A node whose children are being walked."""

    row: int
    depth: int  # of the children
    children: list
    key_codes: list[int]
    waiting: Iterator[int]  # the positions of the children not walked yet
    limit: int = WHOLE.max_rows  # the subtree ends before this row; this and the next field are for fair shares only
    nodes_from: Sequence[int] = ()  # how many of the children from i on are nodes

    def share(self, n_rows: int) -> int:
        """The rows for what is below the child that is entered: its share of those that remain.

        Args:
          n_rows: Of the walk up to that child, inclusive.
        """
        waiting = length_hint(self.waiting)
        nodes_waiting = self.nodes_from[len(self.children) - waiting]
        return max((self.limit - n_rows - waiting) // (nodes_waiting + 1), 0)


new_frame = partial(tuple.__new__, Frame)  # three times as fast as `_make`


class LeftOut(NamedTuple):
    """A placeholder for children beyond the budget."""

    n_children: int


def fair_frame(row: int, children: list, key_codes: list[int], above: Frame, n_rows: int, of: Describers) -> Frame:
    """The frame of a node with its share of the remaining rows."""
    room = above.share(n_rows)
    if len(children) > room:
        children, key_codes = cut(children, key_codes, max(room - 1, 0), of.keys)
    are_nodes = (of.handler(child).level is not None for child in reversed(children))
    nodes_from = [*accumulate(are_nodes, initial=0)][::-1]
    return Frame(row, above.depth + 1, children, key_codes, iter(range(len(children))), n_rows + room, nodes_from)


def fair_rows(ends: Sequence[int], max_rows: int) -> tuple[list[int], dict[int, int]]:
    """The rows to keep of a walk that has too many, with fair shares as above; what fits into its share is whole.

    Args:
      ends: Of each row, the end of its subtree.

    Returns:
      The rows, in order; and which of them are placeholders for the siblings from there on, with how many these are.
    """
    kept: list[int] = []
    left_out: dict[int, int] = {}
    waiting = [(0, max_rows, 0, 0)]  # a row, where its parent's share ends, and how many siblings and nodes are behind
    while waiting:
        row, limit, n_behind, n_nodes = waiting.pop()
        kept.append(row)
        if row in left_out:
            continue
        room, end = max((limit - len(kept) - n_behind) // (n_nodes + 1), 0), ends[row]
        if end - row - 1 <= room:
            kept.extend(range(row + 1, end))
            continue
        children, child = [], row + 1
        while child < end:
            children.append(child)
            child = ends[child]
        if len(children) > room:
            n_shown = max(room - 1, 0)
            left_out[children[n_shown]] = len(children) - n_shown
            del children[n_shown + 1 :]
        limit, n_nodes = len(kept) + room, 0
        for n_behind, child in enumerate(reversed(children)):
            waiting.append((child, limit, n_behind, n_nodes))
            n_nodes += ends[child] > child + 1 and child not in left_out
    return kept, left_out


def cut(children: list, key_codes: Sequence[int] | None, n_kept: int, keys: KeyTable) -> tuple[list, list[int]]:
    """The first children, and one placeholder for the others."""
    more = keys.code(MORE)
    key_codes = [0] * n_kept if key_codes is None else key_codes[:n_kept]
    return [*children[:n_kept], LeftOut(len(children) - n_kept)], [*key_codes, more]
