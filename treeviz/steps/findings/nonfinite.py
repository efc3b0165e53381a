"""Findings from counts: NaN and infinity in trees, results and scalars; updates of zero; underflow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import jax
import ml_dtypes
import numpy as np

from treeviz.steps.findings import norms
from treeviz.steps.findings.dead import SCALE_THE_LOSS, SMALLEST_FLOAT16, dead, float16_scale
from treeviz.steps.findings.finding import (
    SCALARS,
    Finding,
    Rank,
    Searched,
    Thresholds,
    digits_text,
    factor_text,
    listed,
    listed_alike,
)
from treeviz.steps.recording.history import Batch, History, occurs_in
from treeviz.steps.statistics import ROLES, kind_of, result_kind
from treeviz.tree.series import FIRST_EXPONENT, N_BINS
from treeviz.tree.text import visible

if TYPE_CHECKING:
    from treeviz.steps.nan_origin.locate import KeptInputs

# Steps with NaN or infinity that the optimizer skipped, as a dynamic loss scale does when the gradients overflow.

MOST_IN_A_ROW = 16  # halving the loss scale each time divides it by 65,536
LOSS_SCALE_ADVICE = (
    "These are the gradients of a scaled loss: a dynamic loss scale grows until they overflow, and leaves out such a "
    "step on purpose. If more than a few steps in a hundred are affected, look at its growth and at these batches."
)


class SkippedSteps(NamedTuple):
    """Steps with NaN or infinity that did not reach the parameters."""

    n_steps: int  # the number of all steps is not stored, since it would change the text each step
    text: str  # the sentences after the one about the first of these steps
    is_meant: bool  # the loss is scaled by a number that the step computes or receives


def skipped_steps(tree: Searched) -> SkippedSteps | None:
    """The skipped steps with NaN or infinity in gradients, also a few newest of a scaled loss; None if NaN stays."""
    if kind_of(tree.name) != "grads":
        return None
    timeline, is_meant = tree.values("nonfinite"), any(tree.source.unscaled)
    is_bad = np.asarray((timeline.high > 0).any(axis=1))
    last = int(np.flatnonzero(is_bad)[-1])
    # The gradients of all micro-batches of a call make one update.
    starts = timeline.first if timeline.numbering.noun == "micro-batch" else np.arange(len(is_bad))
    after = np.flatnonzero(starts > starts[last])
    n_newest = int(timeline.n[np.flatnonzero(~is_bad).max(initial=-1) + 1 :].sum())
    if not after.size and (not is_meant or n_newest > MOST_IN_A_ROW):
        return None
    n_steps = int(timeline.n[is_bad].sum())
    text = f" {n_steps} steps are affected in total." if n_steps > 1 else ""
    if after.size:
        skipped = "" if is_meant else ": the update seems to have been skipped"
        text += f" From {timeline.numbering.text(timeline.begins[after[0]])} on, all are finite again{skipped}."
    return SkippedSteps(n_steps, text, is_meant)


# The operation that a NaN comes from, where the inputs of its step are kept.

_MOST_EQUATIONS = 100_000  # of a step that runs again unasked


def with_origin(found: list[Finding], kept: KeptInputs | None) -> list[Finding]:
    """The findings; that about the first NaN or infinity names its operation. Runs that step again, once."""
    bad = kept.bad if kept is not None else None
    first = [x for x in found if bad and (x.kind, x.severity, x.first) == ("nonfinite", "error", bad.number)]
    if kept is None or not first or jax.process_count() > 1:  # all processes would have to run it
        return found
    from treeviz.steps.nan_origin.locate import locate_nan_in_kept

    try:
        origin = locate_nan_in_kept(kept, first[0].first, max_equations=_MOST_EQUATIONS)
    except Exception:  # `locate_nan` raises it
        return found
    if origin is None:
        return found
    others = [x.source for x in first[1:]]
    also = f" So were values of {listed(others)}." if others else ""
    advice = first[0].advice.removesuffix(LOCATE).strip() if GROWN in dict(first[0].numbers) else origin.advice
    located = replace(first[0], sentence=f"{first[0].sentence}{also} Origin: {origin.text}", advice=advice)
    return [located if x is first[0] else x for x in found if x not in first[1:]]


# Findings about scalars that the user records; the batch of a finding's step.

_LOSS = re.compile(r"loss|nll|cost|perplexity|error|mse", re.IGNORECASE)  # scalars for which less is better
_MOST_IDS, _MOST_CHARACTERS = 12, 120  # ids and characters of a batch in a sentence


def scalar_findings(history: History, thresholds: Thresholds) -> Iterator[Finding]:
    """Scalars that are not finite, and losses that jump above their earlier values."""
    for name in history.scalars.tracks:
        yield from _scalar_not_finite(history, name)
        if _LOSS.search(name):
            yield from _scalar_jumps(history, name, thresholds)


def _scalar_not_finite(history: History, name: str) -> Iterator[Finding]:
    line, bad = history.scalars.values_and_bad(name)
    entries = np.flatnonzero(bad)
    if not entries.size:
        return
    first, until, is_loss = int(line.begins[entries[0]]), int(line.ends[entries[-1]]), bool(_LOSS.search(name))
    is_lasting = entries.size > 1 and bad[entries[0] :].all()
    when = line.steps_text(entries[0])
    rest = ", and in all since" if is_lasting else f", and in {entries.size - 1} later ones" if entries.size > 1 else ""
    yield Finding(
        "nonfinite" if is_loss else "result", SCALARS, name, -1, first, until, (("steps", float(entries.size)),),
        f"The {name} was not finite at {when}{rest}.",
        "inspector.locate_nan() names the operation, where GradientInspector(keep_inputs=True) has kept the inputs."
        if is_loss
        else "A metric may be NaN by design, like the mean of no values.",
        rank=Rank.NOT_FINITE if is_loss else Rank.UNUSUAL if is_lasting else Rank.INFORMATION,
        severity="error" if is_loss else "warning" if is_lasting else "info",
    )  # fmt: skip


def _scalar_jumps(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    line = history.scalars.values(name)
    if len(line.n) < max(thresholds.fewest_steps, 4):
        return
    values, typical = line.high, np.nanmedian(np.abs(line.high)) if np.isfinite(line.high).any() else np.nan
    is_positive = bool((values[np.isfinite(values)] > 0).all())
    factor = np.log10(thresholds.loss_spike)
    if not is_positive:  # `loss_spike` - 1 times the typical magnitude counts as a jump by `loss_spike`
        with np.errstate(all="ignore"):
            share = factor / (thresholds.loss_spike - 1)
            values = 10 ** np.clip(values / typical * share, -300, 300)
    (jumps,) = norms.jumps_of(values[:, None], replace(thresholds, spike=thresholds.loss_spike)).T
    for event in norms.events_of(jumps > 0):
        top = int(event[jumps[event].argmax()])
        step, times = int(line.begins[top]), 10 ** float(jumps[top])
        usual = f", {factor_text(times)}× its median before"
        if not is_positive:
            usual = f" from a median of {digits_text(np.nanmedian(line.high[max(top - 50, 0) : top]))}"
        rest = f". It jumped at {len(event)} steps in all" if len(event) > 1 else ""
        first, until = int(line.begins[event[0]]), int(line.ends[event[-1]])
        numbers = (("value", float(line.high[top])), ("times", times), ("steps", float(len(event))))
        yield Finding(
            "spike", SCALARS, name, -1, step if len(event) == 1 else first, until, numbers,
            f"The {name} jumped to {digits_text(line.high[top])} at {line.numbering.text(step)}{usual}{rest}.",
            "Look at the examples of that batch, and at the learning rate; clipping by the global norm bounds what one "
            "batch can do.",
            times=times / thresholds.loss_spike,
        )  # fmt: skip


def with_batch(finding: Finding, history: History) -> Finding:
    """The finding, with the ids of the batch at its first step if they are recorded."""
    batch = history.scalars.batches.get(finding.first) if finding.kind in ("nonfinite", "spike", "result") else None
    if batch is None:
        return finding
    step_text = f" of step {finding.first}" if finding.until > finding.first else ""
    return replace(finding, sentence=f"{finding.sentence} The batch{step_text} was {batch_text(batch)}.")


def batch_text(batch: Batch) -> str:
    """ "17, 4711, 12", "17, 4711, … of 512"."""
    if isinstance(batch.ids, str):
        return visible(batch.ids, _MOST_CHARACTERS)
    shown = ", ".join(map(str, batch.ids[:_MOST_IDS].tolist()))
    return shown if batch.n <= _MOST_IDS else f"{shown}, … of {batch.n:,}"


LOCATE = (
    "inspector.locate_nan() names the operation and its line, if GradientInspector(keep_inputs=True) kept the inputs "
    "of the step."
)
GROWN = "norm had grown"  # the growth factor of the norm before a NaN
_DIVERGED, _BEFORE = 100.0, 10  # growth factor of the norm; entries before a NaN
NO_UPDATE = (
    "Look for a mask or multi_transform of the optimizer that leaves them out, or a learning rate of zero. If they "
    "should be frozen, list them in Thresholds(expected_frozen=[…])."
)
KEEP_FLOAT32 = "Keep float32 master weights for the optimizer, or round stochastically."
_MOST_FROZEN = 40  # paths in a sentence: who misspelled a mask looks for all that it froze
ROUNDED = "rounded away"  # the number of leaves whose updates are lost in rounding
_BITS = {"bfloat16": 9, "float16": 12}  # half a unit in the last place is at least two to minus this, of a number
_SMALL_RANGE = ("float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
BAD_UPDATE = "Look at what the optimizer divides by, as in g / norm(g) where all gradients are zero, and at its rates."


def nonfinite(tree: Searched) -> Iterator[Finding]:
    """The first step with NaN or infinity, the first affected leaf in the backward pass, and all affected leaves."""
    bad = _first_nonfinite(tree)
    if bad is None:
        return
    high: np.ndarray = tree.values("nonfinite").high
    n, leaves, total = bad.n, np.array(bad.leaves), len(tree.paths)
    leaf = int(leaves[np.argmax(tree.positions[leaves])])
    at_first, affected = {*bad.leaves}, np.flatnonzero((high > 0).any(axis=0)).tolist()
    affected.sort(key=lambda i: (i not in at_first, -tree.positions[i]))
    if _is_everywhere(tree, leaves):
        sentence = f"{len(leaves)} of {total} {tree.nouns} of {tree.name} were NaN or infinite {bad.when}."
        reason = (
            "The NaN arises before the gradient of any parameter: in the forward pass, the loss or its derivative, or "
            "the batch. Look"
        )
        leaf = -1
    else:
        n = int(high[bad.entry, leaf])
        others = "" if len(affected) == 1 else f" {len(affected)} of {total} {tree.nouns} are affected in total."
        sentence = f"{tree.text([leaf])} had {n:,} non-finite value{'s' * (n != 1)} {bad.when}.{others}"
        order = "it is last in the tree. If the model uses leaves in that order,"
        order = order if tree.forward is None else "the model uses it last, so"
        reason = f"Of the leaves affected first, {order} the backward pass reaches it first. Look"
    reason += (
        " there for a division, a log, a square root or an exponential, and at that step's batch. A lower learning "
        "rate, clipping, or loss scaling in float16 may help."
    )
    skipped = skipped_steps(tree)
    if skipped is not None and skipped.is_meant:
        yield tree.finding(
            "nonfinite", leaf, (("numbers", n), ("leaves in all", len(affected)), ("steps", skipped.n_steps)),
            sentence + skipped.text, LOSS_SCALE_ADVICE,
            affected, rank=Rank.INFORMATION, first=bad.first, until=bad.until,
        )  # fmt: skip
        return
    why = had_diverged(tree, bad.first)
    yield tree.finding(
        "nonfinite", leaf,
        (("numbers", n), ("leaves at first", len(leaves)), ("leaves in all", len(affected)), *why.numbers),
        f"{why.before}{sentence}{why.after if skipped is None else skipped.text}",
        f"{why.advice or (BAD_UPDATE if kind_of(tree.name) == 'updates' else reason)} {LOCATE}",
        affected, rank=Rank.NOT_FINITE, first=bad.first, until=bad.until,
    )  # fmt: skip


def _is_everywhere(tree: Searched, affected: np.ndarray) -> bool:
    """Whether NaN appears before any parameter's gradient: in the leaf that is used last, and in most others."""
    active = np.union1d(affected, np.flatnonzero((tree.norm.high > 0).any(axis=0)))
    if len(active) < 3 or not tree.is_gradient:
        return False
    if tree.forward is None:
        return len(affected) >= 0.9 * len(active)
    return 2 * len(affected) > len(active) and tree.positions[active].max() == tree.positions[affected].max()


class _Divergence(NamedTuple):
    """What led to the first NaN; all empty if unknown."""

    before: str = ""  # the sentence about it, before or after the one about the NaN
    after: str = ""
    advice: str = ""
    numbers: tuple[tuple[str, float], ...] = ()  # the `GROWN` number


def had_diverged(tree: Searched, first: int) -> _Divergence:
    """Whether the updates were far too large, or the norm had grown, before the first NaN."""
    if (largest := norms.largest_updates(tree, first)) is not None:
        step, times = largest
        return _Divergence(
            f"The learning rate is too high: the updates of {tree.numbering.text(step)} were {digits_text(times, 2)} "
            "times the norm of the parameters, and 1e-3 is usual. ",
            advice="Lower the learning rate, or let it rise over the first steps.",
            numbers=((GROWN, times),),
        )
    entries_before = np.flatnonzero(tree.norm.ends < first)
    root = norms.total_norm(tree.norm.high[entries_before])
    if not len(root):
        return _Divergence()
    lately = float(np.median(root[:-_BEFORE])) if len(root) > _BEFORE else float(root[0])
    usual = min(lately, float(np.median(root[:_BEFORE]))) if len(root) > _BEFORE else lately
    start = int(np.flatnonzero(np.append(0, root) <= _DIVERGED * usual)[-1])  # the norm stays high from here on
    is_growing = len(root) - start <= _BEFORE or root[-_BEFORE:].max() > _DIVERGED * lately
    if not usual or start == len(root) or not is_growing:
        return _Divergence()
    step = tree.numbering.text(tree.norm.begins[entries_before[start]])
    times = root[start:].max() / usual
    return _Divergence(
        after=f" The training diverged: the norm had grown {factor_text(times)}-fold since {step}.",
        advice=f"Look at the batch of {step}, and try a lower learning rate or clipping.",
        numbers=((GROWN, float(times)),),
    )


def frozen(tree: Searched) -> Iterator[Finding]:
    """Leaves with gradients whose updates are zero in all inspected steps; leaves that the step never changes."""
    by_design = np.flatnonzero(tree.is_frozen).tolist() if kind_of(tree.name) == "grads" else []
    if by_design and tree.n_steps >= tree.thresholds.fewest_steps and "#" not in tree.name:  # once for micro-batches
        yield tree.finding(
            "frozen", by_design[0], (("steps", tree.n_steps), ("leaves", len(by_design))),
            f"{len(by_design)} of {sum(tree.source.has_number)} {tree.nouns} are frozen: the step never changes "
            f"{listed_alike([*map(tree.path, by_design)], _MOST_FROZEN)}.",
            "If they should be trained, look at the labels or the mask of the optimizer.",
            by_design, rank=Rank.INFORMATION,
        )  # fmt: skip
    if kind_of(tree.name) != "updates" or not tree.has_enough_steps:
        return
    yield from norms.stopped(tree)
    has_bad = occurs_in(tree.values("nonfinite"), tree.norm)
    is_still = ~((tree.norm.high > 0) | has_bad).any(axis=0)
    n_steps, params, grads = tree.n_steps, tree.sibling("params"), tree.sibling("grads")
    when = f"in {n_steps} steps"
    if n_steps < tree.n_spanned:  # steps that were not inspected may have changed it
        when = f"in {tree.numbering.span_text(*tree.span)}, of which {n_steps} were inspected"
        is_still &= len(params.norm.n) > 0 and params.norm.low.min(axis=0) == params.norm.high.max(axis=0)
    has_gradient = tree.is_trained
    if grads.has("norm") and grads.source.sizes == tree.source.sizes:
        has_gradient = tree.is_trained & norms.is_able_to_update(grads)
    leaves = np.flatnonzero(has_gradient & is_still).tolist()
    if leaves:
        all_dtypes = tree.history.sources.get(params.name, tree.source).dtypes
        yield _no_update(tree, leaves, all_dtypes, len(leaves) == has_gradient.sum(), tree.span, n_steps, when)


def drifting(tree: Searched) -> Iterator[Finding]:
    """Parameters that each device changes by its own gradient, as the program shows."""
    leaves = np.flatnonzero(tree.source.drifts).tolist() if kind_of(tree.name) == "grads" else []
    if not leaves or "#" in tree.name:
        return
    yield tree.finding(
        "drift", -1, (("leaves", len(leaves)),),
        f"The parameters drift apart on the devices: each changes its copy of {listed_alike([*map(tree.path, leaves)])}"
        " by gradients of its own, and the step returns them as if all were equal.",
        'Average the gradients before the update, jax.lax.pmean(grads, "…"). shard_map finds this with check_vma=True.',
        leaves, rank=Rank.TRAINING_ENDS, severity="error",
    )  # fmt: skip


def _no_update(
    tree: Searched, leaves: list[int], all_dtypes: Sequence[str], is_all: bool, span: tuple[int, int], n_steps, when
) -> Finding:
    """The finding about leaves that no update changed, though they have gradients."""
    subject, dtypes = "All parameters", sorted({all_dtypes[leaf] for leaf in leaves})
    if not is_all:
        subject = listed_alike([*map(tree.path, leaves)], _MOST_FROZEN)
    # A mask would be known from the program. If all are still, the learning rate may be zero.
    is_rounded = {*dtypes} <= _BITS.keys() and not is_all
    bits = _BITS.get(all_dtypes[leaves[0]])
    rounding = f": {listed(dtypes)} rounds away a change below 2**-{bits} of the value" if is_rounded else ""
    return tree.finding(
        "frozen", -1 if is_all else leaves[0],
        (("steps", n_steps), ("leaves", len(leaves)), *([(ROUNDED, float(len(leaves)))] if is_rounded else [])),
        f"{subject} got no update {when}, though there is a gradient{rounding}.",
        KEEP_FLOAT32 if is_rounded else NO_UPDATE,
        leaves, n_steps / tree.thresholds.fewest_steps, Rank.TRAINING_ENDS if is_all else Rank.LEAF_ENDS,
        first=span[0], until=span[1],
    )  # fmt: skip


def underflow(tree: Searched) -> Iterator[Finding]:
    """Magnitudes near the smallest of the dtype; updates lost in rounding of bfloat16 parameters."""
    parts = _subnormal_fractions(tree) if tree.is_gradient else {}
    worst = [leaf for leaf in sorted(parts, key=lambda i: -parts[i]) if parts[leaf] > tree.thresholds.underflow]
    if worst:
        part, dtype, n = parts[worst[0]], _small_dtypes(tree)[worst[0]], len(worst) - 1
        less = "less " * (parts[worst[-1]] < part)
        others = f" (and {less}of {n} other lea{'ves' if n > 1 else 'f'})" if n else ""
        yield tree.finding(
            "underflow", worst[0], (("part", part),),
            f"{part:.0%} of {tree.text(worst[:1])}{others} are below 2**{_exponent(dtype)}, where {dtype} loses "
            "digits, and smaller ones become 0.",
            SCALE_THE_LOSS, worst, part / tree.thresholds.underflow, Rank.LEAF_ENDS,
        )  # fmt: skip
    if kind_of(tree.name) == "updates":
        yield from _lost_in_bfloat16(tree)


def _subnormal_fractions(tree: Searched) -> dict[int, float]:
    """The fraction of nonzero elements below the normal range, by leaf of 16 bits or less; 1 without a histogram."""
    through = _small_dtypes(tree)
    leaves = {leaf: _exponent(dtype) for leaf, dtype in through.items()}
    histogram = tree.values("histogram").total
    if histogram is not None and len(histogram):
        counts = np.maximum(histogram, 0).sum(axis=0)
        n_bins = {leaf: max(min(exponent - FIRST_EXPONENT, N_BINS), 0) for leaf, exponent in leaves.items()}
        return {leaf: float(counts[leaf, :n].sum() / max(counts[leaf].sum(), 1)) for leaf, n in n_bins.items()}
    largest = tree.values("finite_max_abs").latest
    is_reported = any(finding.kind == "underflow" for finding in dead(tree))
    if is_reported or tree.n_steps < tree.thresholds.fewest_steps or not len(largest):
        return {}
    half = {leaf: 2.0 ** (exponent - ml_dtypes.finfo(through[leaf]).nmant // 2) for leaf, exponent in leaves.items()}
    is_below = {leaf: largest[:, leaf][largest[:, leaf] > 0] < least for leaf, least in half.items()}
    return {leaf: 1.0 for leaf, below in is_below.items() if below.size and below.mean() > 0.5}


def _small_dtypes(tree: Searched) -> dict[int, str]:
    """The dtype of leaves of 16 bits or less, and float16 for gradients that appear to be cast from it."""
    dtypes = {leaf: dtype for leaf, dtype in enumerate(tree.source.dtypes) if dtype in _SMALL_RANGE}
    if kind_of(tree.name) != "grads":
        return dtypes
    largest = tree.values("finite_max_abs").latest
    if not len(largest):
        return dtypes
    with np.errstate(invalid="ignore"):
        is_multiple = (largest % SMALLEST_FLOAT16 == 0) | ~np.isfinite(largest)
    others = [leaf for leaf in np.flatnonzero(tree.is_trained & is_multiple.all(axis=0)).tolist() if leaf not in dtypes]
    return dtypes | {leaf: "float16" for leaf in others if float16_scale(largest[:, leaf]) is not None}


def _exponent(dtype: str) -> int:
    return int(np.log2(float(ml_dtypes.finfo(dtype).smallest_normal)))


def _lost_in_bfloat16(tree: Searched) -> Iterator[Finding]:
    params = tree.sibling("params")
    ratio = tree.history.ratio(tree.name, params.name, "finite_norm")
    if ratio is None or not tree.has_enough_steps:
        return
    if any(ROUNDED in dict(found.numbers) for found in frozen(tree)):
        return  # the same cause
    typical = {}
    for leaf, dtype in enumerate(params.source.dtypes):
        values = ratio.latest[:, leaf]
        values = values[np.isfinite(values) & (values > 0)]
        # Half a unit in the last place is at most 2**-9 of a number; updates of a quarter of that change few numbers.
        if dtype == "bfloat16" and values.size and np.median(values) < 2.0**-11:
            typical[leaf] = float(np.median(values))
    if typical:
        worst = sorted(typical, key=typical.__getitem__)
        part = typical[worst[0]]
        yield tree.finding(
            "underflow", worst[0], (("ratio", part),),
            f"The updates of {params.text(worst)} are about {part:.1e} times the parameter, and most of them are lost "
            "in rounding to bfloat16.",
            KEEP_FLOAT32, worst, 2.0**-11 / part, Rank.LEAF_ENDS,
        )  # fmt: skip


# Results of a step: a loss, a new parameter or another result that is NaN or infinite.

_SMALL = "Only small parameters are measured in each step; updates=True measures all."


class _NonFinite(NamedTuple):
    entry: int  # the first entry with some
    leaves: list[int]  # the leaves affected then
    n: int  # number of non-finite elements in them
    when: str  # "at step 3"
    first: int
    until: int
    n_steps: int  # number of affected steps


def _first_nonfinite(tree: Searched) -> _NonFinite | None:
    timeline = tree.values("nonfinite")
    entries = np.flatnonzero((timeline.high > 0).any(axis=1))
    if not entries.size:
        return None
    entry = int(entries[0])
    leaves = np.flatnonzero(timeline.high[entry] > 0).tolist()
    first, last = int(timeline.begins[entry]), int(timeline.ends[entry])
    return _NonFinite(
        entry, leaves, int(timeline.high[entry, leaves].sum()),
        f"{'at' if first == last else 'between'} {timeline.numbering.span_text(first, last, 'and')}",
        first, int(timeline.ends[entries[-1]]), int(timeline.n[entries].sum()),
    )  # fmt: skip


def nonfinite_results(tree: Searched) -> Iterator[Finding]:
    """The first step with NaN or infinity in a tree, in the loss or in new parameters."""
    kind = result_kind(tree.name)
    if not kind and kind_of(tree.name) not in ROLES:
        yield from nonfinite(tree)
    bad = _first_nonfinite(tree) if kind not in ("", "other", "unchanged") else None
    if bad is None:
        return
    grads, what, paths = _gradients(tree), _what(tree, bad), [*map(tree.path, bad.leaves)]
    why = had_diverged(grads[0], bad.first) if grads else _Divergence()
    if kind == "parameter":
        subject = f"New parameters{f' ({listed(paths)})' * any(paths)} were"
        before = "" if _was_finite(grads, bad) else ", or they were before the first step"
        reason = f"the update made them {what}{before}.{why.after}"
        advice = why.advice or BAD_UPDATE
    else:
        subject = f"{'The loss' if kind == 'loss' else 'A scalar result of the step'}{_paths_text(paths)} was"
        reason = f"it arises in the forward pass and does not reach the gradients.{why.after}"
        made_by = (
            "the log of a number that is not positive, for Inf - Inf, and for a row that is masked throughout"
            if what == "NaN"
            else "a number beyond the largest of its dtype, as a square or a scaled loss in float16, and for the log "
            "of zero or a division by it"
        )
        advice = why.advice or f"Look for {made_by}, and at that step's batch."
    yield tree.finding(
        "nonfinite", bad.leaves[0], (("numbers", bad.n), ("leaves at first", len(bad.leaves)), *why.numbers),
        f"{why.before}{subject} {what} {bad.when}, while all gradients were finite: {reason}",
        f"{advice} {LOCATE}", bad.leaves, rank=Rank.NOT_FINITE, first=bad.first, until=bad.until,
    )  # fmt: skip


def _what(tree: Searched, bad: _NonFinite) -> str:
    return "NaN" if tree.values("nan").high[bad.entry, bad.leaves].any() else "infinite"


def _was_finite(grads: Sequence[Searched], bad: _NonFinite) -> bool:
    return any((g.norm.begins < bad.first).any() for g in grads)


def other_results(tree: Searched) -> Iterator[Finding]:
    """Non-finite results that are neither the loss nor a parameter, such as the mean of nothing."""
    bad = _first_nonfinite(tree) if result_kind(tree.name) == "other" else None
    if bad is None:
        return
    first, n_steps, grads = bad.first, bad.n_steps, _gradients(tree)
    n_since = (g.norm.n[g.norm.ends >= first].sum() * g.numbering.apart / g.numbering.n for g in grads)
    is_lasting = _was_finite(grads, bad) and max(n_since) <= n_steps and n_steps >= tree.thresholds.fewest_steps
    rest = f", and in {n_steps} inspected steps in all" if n_steps > 1 else ""
    yield tree.finding(
        "result", bad.leaves[0], (("numbers", bad.n), ("steps", n_steps)),
        f"A result of the step{_paths_text([*map(tree.path, bad.leaves)])} was {_what(tree, bad)} {bad.when}{rest}. It "
        "is not the loss, and all gradients of that step were finite.",
        f"A metric may be NaN by design, like the mean of no values. If it should not be: {LOCATE}",
        bad.leaves, rank=Rank.UNUSUAL if is_lasting else Rank.INFORMATION, first=first, until=bad.until,
    )  # fmt: skip


def frozen_results(tree: Searched) -> Iterator[Finding]:
    """Leaves with gradients whose updates are zero, or small parameters that no update changed."""
    if result_kind(tree.name) != "unchanged":
        yield from frozen(tree)
        return
    of_updates = (replace(tree, name=name) for name in tree.history.sources if kind_of(name) == "updates")
    if any(True for updates in of_updates for _ in frozen(updates)):
        return  # found in all updates
    zeros = tree.values("zeros")
    # If not every step was inspected, the others may have changed the parameters.
    judged = [g for g in _gradients(tree) if g.n_steps and g.n_steps == g.n_spanned]
    alive = [path for g in judged for path in compress(g.paths, norms.is_able_to_update(g) & g.is_trained)]
    paths = tree.paths
    # A parameter's path may start with an argument name; a gradient's path may end with a layer.
    leaves = [
        leaf
        for leaf in np.flatnonzero(zeros.latest[-1] if len(zeros.n) else []).tolist()
        if any(paths[leaf].endswith(path) or path.startswith(paths[leaf]) for path in alive)
    ]
    if not leaves:
        return
    span = judged[0].span[0], int(zeros.ends[-1])
    is_all = len(leaves) == len(paths) == sum(len(g.source.paths) for g in judged)
    when = f"in {zeros.numbering.span_text(*span)}"
    found = _no_update(tree, leaves, tree.source.dtypes, is_all, span, judged[0].n_steps, when)
    is_measured = any(kind_of(name) == "updates" for name in tree.history.sources)
    yield found if is_measured else replace(found, advice=f"{found.advice} {_SMALL}")


def _gradients(tree: Searched) -> list[Searched]:
    return [replace(tree, name=name) for name in tree.history.sources if kind_of(name) == "grads"]


def _paths_text(paths: Sequence[str]) -> str:
    """The paths within the step's result; empty if the result is a single leaf."""
    return f", {listed(paths)}," if any(paths) else ""
