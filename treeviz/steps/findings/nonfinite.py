"""Findings that follow from counts: NaN and Inf, updates of zero, small magnitudes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from treeviz.analysis.stats.arrays import FIRST_EXPONENT, N_BINS
from treeviz.steps.findings import norms
from treeviz.steps.findings.dead import SCALE_THE_LOSS, dead, of_float16
from treeviz.steps.findings.finding import (
    SCALARS,
    Finding,
    Rank,
    Searched,
    Thresholds,
    and_others,
    digits_text,
    factor_text,
    listed,
)
from treeviz.steps.findings.norms import jumps_of
from treeviz.steps.recording.history import Batch, History, occurs_in
from treeviz.steps.statistics import kind_of, result_kind, sibling_name
from treeviz.tree.text import visible

# Steps with NaN or Inf that were left out, as those are in which the gradients of a scaled loss overflow.

MOST_IN_A_ROW = 16  # a loss scale that is halved each time falls by 65,536
OF_A_LOSS_SCALE = (
    "These are the gradients of a scaled loss: a dynamic loss scale grows until they overflow, and leaves out such a "
    "step on purpose. If more than a few steps in a hundred are struck, look at its growth, and at these batches."
)


@dataclass(frozen=True)
class LeftOut:
    """Steps with NaN or Inf which the parameters have not got.

    Attributes:
      n_steps: How many there are. How many there are in all is not said: a text that changes with each step is news.
      since: The first step after them; None: the newest are some of them.
      is_meant: The loss is scaled, by a number that the step computes or is given.
    """

    n_steps: int
    since: int | None
    is_meant: bool

    @property
    def text(self) -> str:
        """What follows a sentence on the first of them."""
        more = f" In all, {self.n_steps} steps were struck." if self.n_steps > 1 else ""
        then = "" if self.is_meant else ": it seems that the update was left out"
        return more + (f" From step {self.since} on all were finite again{then}." if self.since is not None else "")


def left_out(tree: Searched) -> LeftOut | None:
    """The steps with NaN or Inf in gradients; None if these are there to stay, or may be.

    While the newest steps have them, they count as left out if the loss is scaled, and they are few.
    """
    if kind_of(tree.name) != "grads":
        return None
    timeline, is_meant = tree.history.values(tree.name, "nonfinite"), any(tree.source.unscaled)
    is_bad = np.asarray((timeline.high > 0).any(axis=1))
    last = int(np.flatnonzero(is_bad)[-1])
    after = last + 1 < len(is_bad)
    n_newest = int(timeline.n[np.flatnonzero(~is_bad).max(initial=-1) + 1 :].sum())
    if not after and (not is_meant or n_newest > MOST_IN_A_ROW):
        return None
    since = int(timeline.first[last + 1]) if after else None
    return LeftOut(int(timeline.n[is_bad].sum()), since, is_meant)


# Findings about the scalars that the user records, and the batches of the steps of any finding.

_LOSS = re.compile(r"loss|nll|cost|perplexity|error|mse", re.IGNORECASE)  # what is judged: less is better
_TOGETHER = 5  # entries between jumps of one event
_MOST_EVENTS = 4  # that are findings of their own
_MOST_IDS, _LONGEST = 12, 120  # of a batch in a sentence; characters


def scalar_findings(history: History, thresholds: Thresholds) -> Iterator[Finding]:
    """Scalars that are not finite, and losses that jump above what they were."""
    for name in history.scalars.tracks:
        yield from _not_finite(history, name)
        if _LOSS.search(name):
            yield from _jumps(history, name, thresholds)


def _not_finite(history: History, name: str) -> Iterator[Finding]:
    line, bad = history.scalars.values_and_bad(name)
    entries = np.flatnonzero(bad)
    if not entries.size:
        return
    first, until, is_loss = int(line.first[entries[0]]), int(line.until[entries[-1]]), bool(_LOSS.search(name))
    lasts = entries.size > 1 and bad[entries[0] :].all()
    when = f"step {first}" if line.n[entries[0]] == 1 else f"steps {first} to {line.until[entries[0]]}"
    more = ", and in all since" if lasts else f", and in {entries.size - 1} later ones" if entries.size > 1 else ""
    yield Finding(
        "nonfinite" if is_loss else "result", SCALARS, name, -1, first, until, (("steps", float(entries.size)),),
        f"The {name} was not finite at {when}{more}.",
        "inspector.locate_nan() names the operation, where GradientInspector(keep_inputs=True) has kept the inputs."
        if is_loss
        else "A metric may be so by design, as the mean of nothing is.",
        rank=Rank.NOT_FINITE if is_loss else Rank.UNUSUAL if lasts else Rank.INFORMATION,
        severity="error" if is_loss else "warning" if lasts else "info",
    )  # fmt: skip


def _jumps(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    line = history.scalars.values(name)
    if len(line.n) < max(thresholds.fewest_steps, 4):
        return
    values, typical = line.high, np.nanmedian(np.abs(line.high)) if np.isfinite(line.high).any() else np.nan
    is_positive = bool((values[np.isfinite(values)] > 0).all())
    factor = np.log10(thresholds.loss_spike)
    if not is_positive:  # half as much again is as much above as half of what is typical
        with np.errstate(all="ignore"):
            share = factor / (thresholds.loss_spike - 1)
            values = 10 ** np.clip(values / typical * share, -300, 300)
    (jumps,) = jumps_of(values[:, None], replace(thresholds, spike=thresholds.loss_spike)).T
    entries = np.flatnonzero(jumps)
    if not entries.size:
        return
    events = np.split(entries, np.flatnonzero(np.diff(entries) > _TOGETHER) + 1)
    for event in events if len(events) <= _MOST_EVENTS else [entries]:
        top = int(event[jumps[event].argmax()])
        step, times = int(line.first[top]), 10 ** float(jumps[top])
        usual = f", {factor_text(times)}× its median before" if is_positive else " from a median of "
        if not is_positive:
            usual += f"{digits_text(np.nanmedian(line.high[max(top - 50, 0) : top]))}"
        more = f". It jumped at {len(event)} steps in all" if len(event) > 1 else ""
        first, until = int(line.first[event[0]]), int(line.until[event[-1]])
        numbers = (("value", float(line.high[top])), ("times", times), ("steps", float(len(event))))
        yield Finding(
            "spike", SCALARS, name, -1, step if len(event) == 1 else first, until, numbers,
            f"The {name} jumped to {digits_text(line.high[top])} at step {step}{usual}{more}.",
            "Look at the examples of that batch, and at the learning rate; clipping by the global norm bounds what one "
            "batch can do.",
            times=times / thresholds.loss_spike,
        )  # fmt: skip


def with_batch(finding: Finding, history: History) -> Finding:
    """The finding with the ids of the batch of its first step in its sentence, where it is of that step and known."""
    batch = history.scalars.batches.get(finding.first) if finding.kind in ("nonfinite", "spike", "result") else None
    if batch is None:
        return finding
    of = f" of step {finding.first}" if finding.until > finding.first else ""
    return replace(finding, sentence=f"{finding.sentence} The batch{of} was {batch_text(batch)}.")


def batch_text(batch: Batch) -> str:
    """ "17, 4711, 12", "17, 4711, … of 512"."""
    if isinstance(batch.ids, str):
        return visible(batch.ids, _LONGEST)
    shown = ", ".join(map(str, batch.ids[:_MOST_IDS].tolist()))
    return shown if batch.n <= _MOST_IDS else f"{shown}, … of {batch.n:,}"


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


# Findings about the results of a step: a loss, a new parameter or another result that is NaN or infinite.

_LOCATE = (
    "inspector.locate_nan() names the operation and its line, where GradientInspector(keep_inputs=True) has kept the "
    "inputs of the step."
)
SMALL = "Small parameters are looked at in each step, the others now and then; updates=True measures all."


class _Bad(NamedTuple):
    """What was not finite among results.

    Attributes:
      leaves, paths: Those that were struck first.
      n: How many of their numbers were.
      what, when: "NaN", "at step 3".
      n_steps: How many steps were struck in all.
      was_finite, is_to_the_end: Whether an earlier inspected step was not struck, and all since were.
      gradients: Those that were measured first; None if none were.
    """

    leaves: list[int]
    paths: list[str]
    n: int
    what: str
    when: str
    first: int
    until: int
    n_steps: int
    was_finite: bool
    is_to_the_end: bool
    gradients: Searched | None


def _first_bad(tree: Searched) -> _Bad | None:
    timeline = tree.history.values(tree.name, "nonfinite")
    entries = np.flatnonzero((timeline.high > 0).any(axis=1))
    if not entries.size:
        return None
    entry = entries[0]
    leaves = np.flatnonzero(timeline.high[entry]).tolist()
    has_nan = tree.history.values(tree.name, "nan").high[entry, leaves].any()
    first, until = int(timeline.first[entry]), int(timeline.until[entries[-1]])
    n_steps = int(timeline.n[entries].sum())
    grads = _gradients(tree)
    return _Bad(
        leaves, [tree.path(leaf) for leaf in leaves], int(timeline.high[entry, leaves].sum()),
        "NaN" if has_nan else "infinite",
        f"at step {first}" if timeline.n[entry] == 1 else f"between steps {first} and {timeline.until[entry]}",
        first, until, n_steps,
        any((each.norm.first < first).any() for each in grads),
        all(each.norm.n[each.norm.until >= first].sum() <= n_steps for each in grads),
        grads[0] if grads else None,
    )  # fmt: skip


def nonfinite_results(tree: Searched) -> Iterator[Finding]:
    """The first step with NaN or Inf in a tree, or in results of the step that are the loss or new parameters."""
    kind = result_kind(tree.name)
    if not kind:
        yield from nonfinite(tree)
    found = _first_bad(tree) if kind not in ("", "other", "unchanged") else None
    if found is None:
        return
    diverged, what_then, grown = had_diverged(found.gradients, found.first) if found.gradients else ("", "", ())
    if kind == "parameter":
        what = f"New parameters{f' ({listed(found.paths)})' * any(found.paths)} were"
        why = f"an update made it{'' if found.was_finite else ', or it was there before the first step'}.{diverged}"
        advice = f"{what_then or BY_UPDATE} {SMALL}"
    else:
        what = f"{'The loss' if kind == 'loss' else 'A scalar result of the step'}{_where(found)} was"
        why = f"it was made in the forward pass, and no gradient met it.{diverged}"
        made_by = (
            "the log of a number that is not positive, for Inf - Inf, and for a row that is masked throughout"
            if found.what == "NaN"
            else "a number beyond the largest of its dtype, as a square or a scaled loss in float16, and for the log "
            "of zero or a division by it"
        )
        advice = what_then or f"Look for {made_by}, and at that step's batch."
    yield Finding(
        "nonfinite", tree.name, found.paths[0], found.leaves[0], found.first, found.until,
        (("numbers", found.n), ("leaves at first", len(found.leaves)), *grown),
        f"{what} {found.what} {found.when}, while all gradients were finite: {why}",
        f"{advice} {_LOCATE}", tuple(found.leaves),
        rank=Rank.NOT_FINITE, severity="error",
    )  # fmt: skip


def other_results(tree: Searched) -> Iterator[Finding]:
    """The results that are neither the loss nor a parameter and were NaN or infinite, as the mean of nothing is."""
    found = _first_bad(tree) if result_kind(tree.name) == "other" else None
    if found is None:
        return
    lasts = found.was_finite and found.is_to_the_end and found.n_steps >= tree.thresholds.fewest_steps
    more = f", and in {found.n_steps} inspected steps in all" if found.n_steps > 1 else ""
    yield Finding(
        "result", tree.name, found.paths[0], found.leaves[0], found.first, found.until,
        (("numbers", found.n), ("steps", found.n_steps)),
        f"A result of the step{_where(found)} was {found.what} {found.when}{more}. It is no loss, and all "
        "gradients of that step were finite.",
        f"A metric may be so by design, as the mean of nothing is. If it is not: {_LOCATE}",
        tuple(found.leaves),
        rank=Rank.UNUSUAL if lasts else Rank.INFORMATION, severity="warning" if lasts else "info",
    )  # fmt: skip


def frozen_results(tree: Searched) -> Iterator[Finding]:
    """Leaves that have gradients but whose updates are zero, or small parameters that no update has changed."""
    if result_kind(tree.name) != "unchanged":
        yield from frozen(tree)
        return
    if any(True for name in tree.history.sources for _ in frozen(replace(tree, name=name))):
        return  # found in all updates
    zeros = tree.history.values(tree.name, "zeros")
    # Where not every step was inspected, others may have changed them.
    judged = [g for g in _gradients(tree) if g.n_steps and g.n_steps == g.span[1] - g.span[0] + 1]
    alive = [g.path(leaf) for g in judged for leaf in np.flatnonzero(norms.is_able_to_update(g)).tolist()]
    paths = tree.source.paths
    # A parameter's path may begin with the name of an argument, that of a gradient end with a layer.
    leaves = [
        leaf
        for leaf in np.flatnonzero(zeros.latest[-1] if len(zeros.n) else []).tolist()
        if any(paths[leaf].endswith(path) or path.startswith(paths[leaf]) for path in alive)
    ]
    if not leaves:
        return
    first, until = judged[0].span[0], int(zeros.until[-1])
    whole = len(leaves) == len(paths) == sum(len(g.source.paths) for g in judged)
    what = "All parameters" if whole else listed([paths[leaf] for leaf in leaves])
    yield Finding(
        "frozen", tree.name, "" if whole else paths[leaves[0]], -1 if whole else leaves[0], first, until,
        (("steps", until - first + 1), ("leaves", len(leaves))),
        f"{what} got no update from step {first} to {until}, though there is a gradient.",
        f"{NO_UPDATE} {SMALL}",
        tuple(leaves), (until - first + 1) / tree.thresholds.fewest_steps,
        rank=Rank.TRAINING_ENDS if whole else Rank.LEAF_ENDS,
    )  # fmt: skip


def _gradients(tree: Searched) -> list[Searched]:
    return [replace(tree, name=name) for name in tree.history.sources if kind_of(name) == "grads"]


def _where(found: _Bad) -> str:
    """The paths in what the step returns, unless it returns nothing else."""
    return f", {listed(found.paths)}," if any(found.paths) else ""
