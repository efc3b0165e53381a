"""Findings that follow from counts: NaN and Inf, updates of zero, small magnitudes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from treeviz.analysis.stats.summary import FIRST_EXPONENT, N_BINS
from treeviz.steps.findings import norms
from treeviz.steps.findings.dead import SCALE_THE_LOSS, dead, of_float16
from treeviz.steps.findings.finding import Finding, Rank
from treeviz.steps.findings.overflow import OF_A_LOSS_SCALE, left_out
from treeviz.steps.findings.searched import Searched, and_others, factor_text, listed
from treeviz.steps.names import kind_of, sibling_name
from treeviz.steps.recording.track import occurs_in

GROWN = "norm had grown"  # times, before a NaN
_DIVERGED, _BEFORE = 100.0, 10  # times the norm before, in the last entries before a NaN
NO_UPDATE = (
    "Look for a mask or multi_transform of the optimizer that leaves it out, or a learning rate of zero. If it is "
    "meant to be frozen, nothing is wrong; its gradient need not be computed then."
)
_SMALL_RANGE = ("float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
BY_UPDATE = "Look at what the optimizer divides by, as in g / norm(g) where all gradients are zero, and at its rates."


def nonfinite(tree: Searched) -> Iterator[Finding]:
    """The first step with NaN or Inf, the leaf where the backward pass met them first, and all leaves affected."""
    timeline = tree.history.values(tree.name, "nonfinite")
    bad: np.ndarray = timeline.high > 0
    entries = np.flatnonzero(bad.any(axis=1))
    if not entries.size:
        return
    name, paths = tree.name, tree.source.paths
    entry = entries[0]
    at_first = np.flatnonzero(bad[entry])
    leaf = int(at_first[np.argmax(tree.places[at_first])])
    spread = sorted(map(int, np.flatnonzero(bad.any(axis=0))), key=lambda i: (not bad[entry, i], -tree.places[i]))
    first, until = int(timeline.first[entry]), int(timeline.until[entries[-1]])
    when = f"at step {first}" if timeline.n[entry] == 1 else f"between steps {first} and {timeline.until[entry]}"
    is_everywhere = _is_everywhere(tree, at_first)
    if is_everywhere:
        n = int(timeline.high[entry, at_first].sum())
        sentence = f"{len(at_first)} of {len(paths)} {tree.nouns} of {name} were NaN or infinite {when}."
        reason = (
            "The leaf that is used last is among them, so they were made before any gradient of a parameter: in the "
            "forward pass, in the loss or its derivative, or in the batch. Look"
        )
    else:
        n = int(timeline.high[entry, leaf])
        plural = n != 1
        others = "" if len(spread) == 1 else f" {len(spread)} of {len(paths)} {tree.nouns} were struck in all."
        sentence = (
            f"{name}{paths[leaf]} had {n} number{'s' * plural} that {'are' if plural else 'is'} NaN or infinite "
            f"{when}.{others}"
        )
        order = (
            "by its key: if the model uses them in that order," if tree.forward is None else "that the model uses, so"
        )
        reason = f"Of the leaves that were struck first it is the last one {order} the backward pass met it first: look"
    reason = (
        BY_UPDATE
        if kind_of(name) == "updates"
        else reason
        + (
            " there for a division, a log, a square root or an exponential, and at that step's batch; a lower learning "
            "rate, clipping, or loss scaling in float16 may be what is missing."
        )
    )
    out = left_out(tree)
    if out is not None and out.is_meant:
        yield Finding(
            "nonfinite", name, "" if is_everywhere else paths[leaf], -1 if is_everywhere else leaf, first, until,
            (("numbers", n), ("leaves in all", len(spread)), ("steps", out.n_steps)),
            sentence + out.text, OF_A_LOSS_SCALE, tuple(spread),
            rank=Rank.INFORMATION, severity="info",
        )  # fmt: skip
        return
    diverged, what_then, grown = had_diverged(tree, first)
    yield Finding(
        "nonfinite",
        name,
        "" if is_everywhere else paths[leaf],
        -1 if is_everywhere else leaf,
        first,
        until,
        (("numbers", n), ("leaves at first", len(at_first)), ("leaves in all", len(spread)), *grown),
        sentence + (diverged if out is None else out.text),
        f"{what_then or reason} inspector.locate_nan() names the operation and its line, where "
        "GradientInspector(keep_inputs=True) has kept the inputs of the step.",
        tuple(spread),
        rank=Rank.NOT_FINITE,
        severity="error",
    )


def _is_everywhere(tree: Searched, struck: np.ndarray) -> bool:
    """Whether the backward pass met NaN before any parameter: in the leaf that is used last, and in most others."""
    alive = np.union1d(struck, np.flatnonzero((tree.norm.high > 0).any(axis=0)))
    if len(alive) < 3 or not tree.is_gradient:
        return False
    if tree.forward is None:
        return len(struck) >= 0.9 * len(alive)
    return 2 * len(struck) > len(alive) and tree.places[alive].max() == tree.places[struck].max()


def had_diverged(tree: Searched, first: int) -> tuple[str, str, tuple[tuple[str, float], ...]]:
    """If the norm had grown before the first NaN: since when, what to try, and `GROWN`; else nothing."""
    before = np.flatnonzero(tree.norm.until < first)
    root = np.sqrt(np.nansum(tree.norm.high[before] ** 2, axis=1))
    if not len(root):
        return "", "", ()
    lately = float(np.median(root[:-_BEFORE])) if len(root) > _BEFORE else float(root[0])
    usual = min(lately, float(np.median(root[:_BEFORE]))) if len(root) > _BEFORE else lately
    since = int(np.flatnonzero(np.append(0, root) <= _DIVERGED * usual)[-1])  # it was never usual again
    is_growing = len(root) - since <= _BEFORE or root[-_BEFORE:].max() > _DIVERGED * lately
    if not usual or since == len(root) or not is_growing:
        return "", "", ()
    step = int(tree.norm.first[before[since]])
    times = root[since:].max() / usual
    return (
        f" The training diverged: the norm had grown {factor_text(times)} times since step {step}.",
        f"Look at the batch of step {step}; a lower learning rate or clipping may be what is missing.",
        ((GROWN, float(times)),),
    )


def frozen(tree: Searched) -> Iterator[Finding]:
    """Leaves that have gradients but whose updates are zero, in all steps or whenever they were looked at."""
    if kind_of(tree.name) != "updates" or not tree.is_known_enough:
        return
    has_bad = occurs_in(tree.history.values(tree.name, "nonfinite"), tree.norm)
    is_still = ~((tree.norm.high > 0) | has_bad).any(axis=0)
    (first, until), n_steps = tree.span, tree.n_steps
    when = f"in {n_steps} steps"
    if n_steps <= until - first:  # steps between them, as the last of some micro-batches, may have changed it
        when = f"from step {first} to {until}, looked at {n_steps} times"
        params = tree.history.values(sibling_name(tree.name, "params"), "norm")
        is_still &= len(params.n) > 0 and params.low.min(axis=0) == params.high.max(axis=0)
    has_gradient = tree.is_trained
    of_grads = sibling_name(tree.name, "grads")
    grads = tree.history.sources.get(of_grads)
    if grads is not None and grads.sizes == tree.source.sizes and "norm" in tree.history.statistics(of_grads):
        has_gradient = tree.is_trained & norms.is_able_to_update(replace(tree, name=of_grads))
    leaves = np.flatnonzero(has_gradient & is_still).tolist()
    if not leaves:
        return
    whole = len(leaves) == has_gradient.sum()
    what = "All parameters" if whole else listed([tree.path(leaf) for leaf in leaves])
    yield Finding(
        "frozen", tree.name, "" if whole else tree.path(leaves[0]), -1 if whole else leaves[0], first, until,
        (("steps", n_steps), ("leaves", len(leaves))),
        f"{what} got no update {when}, though there is a gradient.",
        NO_UPDATE,
        tuple(leaves), (until - first + 1) / tree.thresholds.fewest_steps,
        rank=Rank.TRAINING_ENDS if whole else Rank.LEAF_ENDS,
    )  # fmt: skip


def underflow(tree: Searched) -> Iterator[Finding]:
    """Magnitudes near the smallest of the dtype; updates that are lost in the rounding of bfloat16 parameters."""
    parts = _parts_below(tree) if tree.is_gradient else {}
    worst = [leaf for leaf in sorted(parts, key=lambda i: -parts[i]) if parts[leaf] > tree.thresholds.underflow]
    if worst:
        part, dtype = parts[worst[0]], _passed_through(tree)[worst[0]]
        yield Finding(
            "underflow", tree.name, tree.path(worst[0]), worst[0], *tree.span, (("part", part),),
            f"{part:.0%} of {tree.name}{tree.path(worst[0])}{_or_less_of(worst, parts)} are below "
            f"2**{_exponent(dtype)}, where {dtype} loses digits and then all.",
            SCALE_THE_LOSS, tuple(worst), part / tree.thresholds.underflow,
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip
    if kind_of(tree.name) == "updates":
        yield from _lost_in_bfloat16(tree)


def _parts_below(tree: Searched) -> dict[int, float]:
    """Of leaves of 16 bits or less, the part of the nonzero numbers below the smallest normal one of the dtype.

    Without a histogram it is told where even the largest number has lost half of its digits: of all of them.
    """
    through = _passed_through(tree)
    leaves = {leaf: _exponent(dtype) for leaf, dtype in through.items()}
    histogram = tree.history.values(tree.name, "histogram").total
    if histogram is not None and len(histogram):
        counts = np.maximum(histogram, 0).sum(axis=0)
        return {
            leaf: float(counts[leaf, : max(min(at - FIRST_EXPONENT, N_BINS), 0)].sum() / max(counts[leaf].sum(), 1))
            for leaf, at in leaves.items()
        }
    largest = tree.history.values(tree.name, "max_abs").latest
    is_told = any(found.kind == "underflow" for found in dead(tree))
    if is_told or tree.n_steps < tree.thresholds.fewest_steps or not len(largest):
        return {}
    half = {leaf: 2.0 ** (at - jnp.finfo(through[leaf]).nmant // 2) for leaf, at in leaves.items()}
    is_below = {leaf: largest[:, leaf][largest[:, leaf] > 0] < least for leaf, least in half.items()}
    return {leaf: 1.0 for leaf, below in is_below.items() if below.size and below.mean() > 0.5}


def _passed_through(tree: Searched) -> dict[int, str]:
    """The dtype of leaves of 16 bits or less, and float16 for gradients that were cast from it, as far as it shows."""
    found = {leaf: dtype for leaf, dtype in enumerate(tree.source.dtypes) if dtype in _SMALL_RANGE}
    if kind_of(tree.name) != "grads":
        return found
    largest = tree.history.values(tree.name, "max_abs").latest
    others = [leaf for leaf in np.flatnonzero(tree.is_trained).tolist() if leaf not in found]
    return found | {leaf: "float16" for leaf in others if of_float16(largest[:, leaf]) is not None}


def _exponent(dtype: str) -> int:
    """That of the smallest normal number."""
    return int(np.log2(float(jnp.finfo(dtype).smallest_normal)))


def _or_less_of(leaves: Sequence[int], parts: dict[int, float]) -> str:
    n, less = len(leaves) - 1, "less " * (parts[leaves[-1]] < parts[leaves[0]])
    return f" (and {less}of {n} other lea{'ves' if n > 1 else 'f'})" if n else ""


def _lost_in_bfloat16(tree: Searched) -> Iterator[Finding]:
    of_params = sibling_name(tree.name, "params")
    params = tree.history.sources.get(of_params)
    ratio = tree.history.ratio(tree.name, of_params)
    if params is None or ratio is None or not tree.is_known_enough:
        return
    typical = {}
    for leaf, dtype in enumerate(params.dtypes):
        values = ratio.latest[:, leaf]
        values = values[np.isfinite(values) & (values > 0)]
        # Half a unit in the last place is at most 2**-9 of a number; a quarter of that changes hardly any.
        if dtype == "bfloat16" and values.size and np.median(values) < 2.0**-11:
            typical[leaf] = float(np.median(values))
    if typical:
        worst = sorted(typical, key=typical.__getitem__)
        part, path = typical[worst[0]], params.paths[worst[0]]
        yield Finding(
            "underflow", tree.name, path, worst[0], int(ratio.first[0]), int(ratio.until[-1]), (("ratio", part),),
            f"The updates of {of_params}{path}{and_others(worst)} are {part:.1e} of it or little more, and most are "
            "lost when it is rounded to bfloat16.",
            "Keep a float32 copy of the parameters for the optimizer, or round stochastically.",
            tuple(worst), 2.0**-11 / part,
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip
