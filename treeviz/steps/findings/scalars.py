"""Findings about the scalars that the user records, and the batches of the steps of any finding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from treeviz.steps.findings.finding import SCALARS, Finding, Rank, Thresholds
from treeviz.steps.findings.searched import digits_text, factor_text
from treeviz.steps.findings.spikes import jumps_of
from treeviz.steps.recording.history import History
from treeviz.steps.recording.scalars import Batch
from treeviz.tree.safe_repr import visible

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
