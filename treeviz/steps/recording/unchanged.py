"""Parameters that no update has changed, of those whose new values are looked at in each inspected step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.names import name_of_result, result_kind
from treeviz.steps.recording.decode import Arrived, ReadSteps, counts_of
from treeviz.tree.safe_repr import printable

FIRST_TOLD = 32  # inspected steps; then after twice as many


class Unchanged:
    """Follows which parameters never changed, and adds those to the numbers of some step as a tree with their zeros.

    It is told after 32 inspected steps, each time that their number has doubled, and once such a parameter changes.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, np.ndarray]] = {}  # by suffix: how many steps, and which never changed
        self._done: set[str] = set()  # suffixes of those that all have changed

    def tell(self, arrived: Sequence[Arrived], read: list[ReadSteps]) -> None:
        """Follow some measurements, and add to the steps that were read of them."""
        followed = [each for each in arrived if each.suffix not in self._done]
        were_read = {(steps.suffix, call) for steps in read if followed for call in steps.calls}
        for each in followed:
            if each.suffix in self._done or (each.suffix, each.step) not in were_read:
                continue
            n_before, before = self._known.get(each.suffix, (0, None))
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
                        _add_zeros(read, each, tree._replace(name=name), now)
                first += n


def _add_zeros(read: list[ReadSteps], arrived: Arrived, tree: MeasuredTree, is_zero: np.ndarray) -> None:
    """Add a tree to the last step of a call; those that were read before and after it stay together."""
    for place, steps in reversed([*enumerate(read)]):
        if steps.suffix == arrived.suffix and arrived.step in steps.calls:
            at = len(steps.calls) - 1 - steps.calls[::-1].index(arrived.step)
            of_call = steps.part(at, at + 1)
            zeros = {tree.name: {"zeros": np.where(is_zero, tree.sizes, 0)[None]}}
            of_call = of_call._replace(sources=[*steps.sources, tree], numbers={**of_call.numbers, **zeros})
            parts = (steps.part(0, at), of_call, steps.part(at + 1))
            read[place : place + 1] = [part for part in parts if part.steps]
            return
