"""Findings about gradients that are clipped in nearly every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeviz.steps.findings.finding import Finding, Rank, Thresholds
from treeviz.steps.findings.searched import Searched, digits_text
from treeviz.steps.names import is_beside, kind_of, sibling_name
from treeviz.steps.recording.history import History
from treeviz.steps.recording.track import Timeline, occurs_in
from treeviz.tree.numbers import number_text

_SAME, _BOUND = 1e-4, 1e-3  # relative tolerances: of equal norms; of norms at the same bound
_NEARLY_ALL = 0.95  # of the changed norms
_STEADIER = 30.0  # how many times less than what is clipped a norm at a bound moves; a tiny learning rate keeps both


class _Compared(NamedTuple):
    """Norms of the same steps before and after a transformation of the gradients.

    Attributes:
      steps: int64[k].
      before, after: float64[k, leaves], without leaves that have no numbers.
      largest: float64[k]: the largest magnitude after it; None if not measured.
    """

    steps: np.ndarray
    before: np.ndarray
    after: np.ndarray
    largest: np.ndarray | None


def clipping(tree: Searched) -> Iterator[Finding]:
    """Gradients that are clipped in nearly every step.

    If they were measured before and after clipping, the two are compared. Otherwise gradients with the same norm in
    nearly every step are reported. Of what the optimizer receives this is told where no tap of the same tells it.
    """
    history, name, thresholds = tree.history, tree.name, tree.thresholds
    is_received = kind_of(name) == "received"
    if not (tree.is_gradient or is_received) or "norm" not in history.statistics(name):
        return
    if is_received and any(True for tapped in _alike(tree) for _ in clipping(tapped)):
        return
    earlier = reversed(list(history.sources)[: list(history.sources).index(name)])
    for before in [sibling_name(name, "grads")] if is_received else earlier:
        compared = _compared(history, before, name, thresholds)
        if history.sources[before].unscaled:  # the bound is one of the unscaled gradients
            break
        if compared is not None:
            yield from _always_smaller(compared, before, name, thresholds)
            return
    if not is_received or any(history.sources[sibling_name(name, "grads")].unscaled):
        yield from _always_the_same(history, name, thresholds)


def _alike(received: Searched) -> Iterator[Searched]:
    """The gradients, and what was tapped, that may be of the parameters of what the optimizer receives."""
    for name, source in received.history.sources.items():
        other = replace(received, name=name)
        if other.is_gradient and sum(source.sizes) == sum(received.source.sizes):
            yield other


def _compared(history: History, before: str, after: str, thresholds: Thresholds) -> _Compared | None:
    """None if the sources differ in leaves or share too few steps, or if gradients grew from one to the other."""
    a, b = history.sources[before], history.sources[after]
    if is_beside(before) or (a.paths, a.sizes) != (b.paths, b.sizes):
        return None
    (steps, tops), (others, bottoms) = (_exact(history, name, "norm") for name in (before, after))
    common, left, right = np.intersect1d(steps, others, assume_unique=True, return_indices=True)
    has_number = np.array(a.has_number, bool)
    tops, bottoms = tops[left][:, has_number], bottoms[right][:, has_number]
    known = np.isfinite(tops).all(axis=1) & np.isfinite(bottoms).all(axis=1) & tops.any(axis=1) & bottoms.any(axis=1)
    steps, tops, bottoms = common[known], tops[known], bottoms[known]
    if len(steps) < max(thresholds.fewest_steps, 1) or (bottoms > tops * (1 + _SAME)).any():
        return None
    at, largest = _exact(history, after, "max_abs")
    is_measured = bool(np.isin(steps, at).all())
    largest = largest[np.searchsorted(at, steps)][:, has_number].max(axis=1) if is_measured else None
    return _Compared(steps, tops, bottoms, largest)


def _exact(history: History, name: str, statistic: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps that are kept exactly, each once, and the values of the leaves at these steps."""
    timeline = history.values(name, statistic)
    steps, places = np.unique(timeline.until[timeline.n == 1], return_index=True)
    return steps, timeline.latest[timeline.n == 1][places]


def _always_smaller(compared: _Compared, before: str, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    tops, bottoms = (np.linalg.norm(norms, axis=1) for norms in (compared.before, compared.after))
    is_less = compared.after < compared.before * (1 - _SAME)
    is_clipped = is_less.any(axis=1)
    part = float(is_clipped.mean())
    if part < thresholds.clipping or not _is_a_bound(compared, bottoms, is_less):
        return
    top, bottom = (float(np.median(norms[is_clipped])) for norms in (tops, bottoms))
    has_one_bound = _is_bound(bottoms[is_clipped], tops[is_clipped])
    what = "what the optimizer receives" if kind_of(name) == "received" else name
    most = digits_text(np.quantile(tops, 0.9), 2)
    where = f"to about {most}, which nine of ten steps stay below" if has_one_bound else ""
    # A normalisation does the same to all gradients that are larger than what it makes of them.
    is_sure = not (has_one_bound and is_clipped.all())
    how, then = ("Clipping", "Then") if is_sure else ("Clipping, or a normalisation,", "If it is clipping,")
    yield Finding(
        "clipping", name, "", -1, int(compared.steps[0]), int(compared.steps[-1]),
        (("norm", bottom), ("norm before", top), ("part of steps", part)),
        f"{how} makes {what} smaller than {before} in {part:.0%} of the steps: the norm is {number_text(top)} "
        f"before it and {number_text(bottom)} after it.",
        f"{then} the bound only rescales the learning rate: raise it{' ' * bool(where)}{where}, or lower the learning "
        "rate instead.",
        (), top / bottom,
        rank=Rank.CHOICE,
    )  # fmt: skip


def _is_a_bound(compared: _Compared, norms: np.ndarray, is_less: np.ndarray) -> bool:
    """Whether gradients were clipped at a bound, not scaled by a learning rate.

    A clipped norm, largest magnitude or norm of a leaf is constant; or leaves are unchanged in some steps. What is
    unchanged has been smaller: scales by the norm of a parameter, as LARS has them, are 1 where that is zero.
    """
    is_clipped = is_less.any(axis=1)
    tops = np.linalg.norm(compared.before, axis=1)
    before, stays = np.where(is_less, compared.before, 0), compared.after >= compared.before * (1 - 1e-6)
    stays &= (compared.after > 0) & is_less.any(axis=0)
    if (np.where(stays, compared.before, 0).max(axis=0) > before.max(axis=0)).any():
        return False
    if _is_bound(norms[is_clipped], tops[is_clipped]):
        return True
    if compared.largest is not None and _is_bound(compared.largest[is_clipped], tops[is_clipped]):
        return True
    relative = (_relative(x, is_less)[is_less] for x in (compared.after, compared.before))
    return _is_bound(*relative) or bool(stays.any())


def _relative(norms: np.ndarray, is_less: np.ndarray) -> np.ndarray:
    """The norms of each leaf beside their median where they are less."""
    return norms / np.ma.median(np.ma.array(norms, mask=~is_less), axis=0).filled(np.nan)


def _is_bound(values: np.ndarray, before: np.ndarray) -> bool:
    """Whether nearly all values are the same, though what they are made of is not."""
    spread, spread_before = (_spread(x, _NEARLY_ALL) for x in (values, before))
    return spread <= _BOUND and spread * _STEADIER <= spread_before


def _spread(values: np.ndarray, part: float) -> float:
    """How far this part of the values is from their median at most, beside it."""
    middle = float(np.median(values))
    return float(np.quantile(np.abs(values - middle), part)) / middle


def _always_the_same(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    timeline: Timeline = history.values(name, "norm")
    is_exact = timeline.n == 1  # the norms of the leaves in a bucket can be of different steps
    is_exact &= ~occurs_in(history.values(name, "nonfinite"), timeline).any(axis=1)
    norms = timeline.latest[is_exact]
    root = np.sqrt(np.nansum(norms**2, axis=1))
    if root.size < max(thresholds.fewest_steps, 1) or not (root > 0).all():
        return
    bound = float(np.median(root))
    is_same = np.abs(root - bound) <= _SAME * bound
    part = float(np.mean(is_same))
    if part >= thresholds.clipping and _moves_inside(history, name, norms[is_same], root[is_same]):
        yield Finding(
            "clipping", name, "", -1, int(timeline.first[is_exact][0]), int(timeline.until[-1]),
            (("norm", bound), ("part of steps", part)),
            f"The norm of {name} was {number_text(bound)} in {part:.0%} of the steps: they are clipped always, "
            "or normalised.",
            "If it is clipping, the bound only rescales the learning rate: raise it to some times the usual norm "
            "before clipping (which a measurement placed before it shows), or lower the learning rate instead.",
            rank=Rank.CHOICE,
        )  # fmt: skip


def _moves_inside(history: History, name: str, norms: np.ndarray, root: np.ndarray) -> bool:
    """Whether gradients change, as far as the statistics show, and far more than their norm does.

    Others are nearly constant: the learning rate is tiny, the loss is linear, or the loop drops the new parameters.
    Under clipping by the global norm, the norms of several leaves vary, but that of a single leaf does not: there the
    largest magnitude decides.
    """
    if len(history.sources[name].paths) == 1:
        _, norms = _exact(history, name, "max_abs")
    moves = float(np.nanmax(np.ptp(norms, axis=0), initial=0.0))
    return moves > _SAME * root[0] and moves >= _STEADIER * float(np.ptp(root))
