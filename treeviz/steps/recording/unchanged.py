"""Parameters that no update has changed, of those whose new values are looked at in each inspected step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.names import name_of_result, result_kind
from treeviz.steps.recording.decode import Arrived, StepNumbers, counts_of, taken
from treeviz.tree.safe_repr import printable

FIRST_TOLD = 32  # inspected steps; then after twice as many


class Unchanged:
    """Follows which parameters never changed, and adds those to the numbers of some step as a tree with their zeros.

    It is told after 32 inspected steps, each time that their number has doubled, and once such a parameter changes.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, np.ndarray]] = {}  # by suffix: how many steps, and which never changed
        self._done: set[str] = set()  # suffixes of those that all have changed

    def tell(self, arrived: Sequence[Arrived], rows: list[StepNumbers]) -> None:
        """Follow some measurements, and add to the rows that were read of them."""
        places: dict[tuple[str, int], int] = {}
        for each in arrived:
            if each.suffix in self._done:
                continue
            n_before, before = self._known.get(each.suffix, (0, None))
            places = places or {row.call: place for place, row in enumerate(rows)}  # the last row of each
            place = places.get((each.suffix, each.step))
            if place is None:
                continue
            first, counts = 0, None
            for tree in each.measurement.results:
                n = len(tree.paths)
                if result_kind(tree.name) == "parameter":
                    counts = counts_of(each.measurement) if counts is None else counts
                    now = counts[first : first + n] >> 31 == 0
                    if before is not None and len(before) == n:
                        now &= before
                    self._known[each.suffix] = n_before + 1, now
                    self._done |= set() if now.any() else {each.suffix}
                    is_due = n_before + 1 >= FIRST_TOLD and n_before & (n_before + 1) == 0 and now.any()
                    has_changed = before is not None and not np.array_equal(now, before)
                    if is_due or (n_before >= FIRST_TOLD and has_changed):
                        name = printable(name_of_result("unchanged") + each.suffix)
                        rows[place] = _with_zeros(rows[place], tree._replace(name=name), now)
                first += n


def _with_zeros(row: StepNumbers, tree: MeasuredTree, is_zero: np.ndarray) -> StepNumbers:
    zeros = {tree.name: {"zeros": np.where(is_zero, tree.sizes, 0)[None]}}
    return row._replace(sources=[*row.sources, tree], together={**taken(row.together, [row.at]), **zeros}, at=0)
