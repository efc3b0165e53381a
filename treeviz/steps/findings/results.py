"""Findings about the results of a step: a loss, a new parameter or another result that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeviz.steps.findings import counts, norms
from treeviz.steps.findings.finding import Finding, Rank
from treeviz.steps.findings.searched import Searched, listed
from treeviz.steps.names import kind_of, result_kind

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


def nonfinite(tree: Searched) -> Iterator[Finding]:
    """The first step with NaN or Inf in a tree, or in results of the step that are the loss or new parameters."""
    kind = result_kind(tree.name)
    if not kind:
        yield from counts.nonfinite(tree)
    found = _first_bad(tree) if kind not in ("", "other", "unchanged") else None
    if found is None:
        return
    diverged, what_then, grown = counts.had_diverged(found.gradients, found.first) if found.gradients else ("", "", ())
    if kind == "parameter":
        what = f"New parameters{f' ({listed(found.paths)})' * any(found.paths)} were"
        why = f"an update made it{'' if found.was_finite else ', or it was there before the first step'}.{diverged}"
        advice = f"{what_then or counts.BY_UPDATE} {SMALL}"
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


def frozen(tree: Searched) -> Iterator[Finding]:
    """Leaves that have gradients but whose updates are zero, or small parameters that no update has changed."""
    if result_kind(tree.name) != "unchanged":
        yield from counts.frozen(tree)
        return
    if any(True for name in tree.history.sources for _ in counts.frozen(replace(tree, name=name))):
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
        f"{counts.NO_UPDATE} {SMALL}",
        tuple(leaves), (until - first + 1) / tree.thresholds.fewest_steps,
        rank=Rank.TRAINING_ENDS if whole else Rank.LEAF_ENDS,
    )  # fmt: skip


def _gradients(tree: Searched) -> list[Searched]:
    return [replace(tree, name=name) for name in tree.history.sources if kind_of(name) == "grads"]


def _where(found: _Bad) -> str:
    """The paths in what the step returns, unless it returns nothing else."""
    return f", {listed(found.paths)}," if any(found.paths) else ""
