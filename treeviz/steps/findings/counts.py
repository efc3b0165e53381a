"""Findings that follow from counts: NaN and Inf, zeros, small magnitudes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from treeviz.analysis.stats.summary import FIRST_EXPONENT, N_BINS
from treeviz.steps.findings.finding import Finding, Rank, Thresholds
from treeviz.steps.names import kind_of, sibling_name
from treeviz.steps.recording.history import History
from treeviz.steps.recording.track import occurs_in

NOT_GRADIENTS = ("params", "updates")  # kinds of sources


def forward_order(paths: Sequence[str], forward: Sequence[str] | None) -> np.ndarray:
    """int[n_leaves]: each leaf's place in the order in which the model uses them, as far as it is known."""
    if forward is None:  # layer 2 comes before layer 10
        keys = [[(int(x), "") if x.isdecimal() else (-1, x) for x in re.split(r"([0-9]+)", path)] for path in paths]
        return np.argsort(sorted(range(len(paths)), key=lambda leaf: (keys[leaf], leaf)))
    places = {path: place for place, path in enumerate(forward)}
    return np.array([places.get(path, -1) for path in paths])


def nonfinite(history: History, name: str, forward: Sequence[str] | None = None) -> Iterator[Finding]:
    """The first step with NaN or Inf, the leaf where the backward pass met them first, and all leaves affected."""
    timeline = history.values(name, "nonfinite")
    bad = timeline.high > 0
    entries = np.flatnonzero(bad.any(axis=1))
    if not entries.size:
        return
    paths = history.sources[name].paths
    at_first = np.flatnonzero(bad[entries[0]])
    leaf = int(at_first[np.argmax(forward_order(paths, forward)[at_first])])
    spread = np.flatnonzero(bad.any(axis=0))
    first, until = int(timeline.first[entries[0]]), int(timeline.until[entries[-1]])
    n = int(timeline.high[entries[0], leaf])
    others = "" if len(spread) == 1 else f" {len(spread)} of {len(paths)} leaves were struck in all."
    when = (
        f"at step {first}" if timeline.n[entries[0]] == 1 else f"between steps {first} and {timeline.until[entries[0]]}"
    )
    order = "by its key: if the model uses them in that order," if forward is None else "that the model uses, so"
    yield Finding(
        "nonfinite",
        name,
        paths[leaf],
        leaf,
        first,
        until,
        (("numbers", n), ("leaves at first", len(at_first)), ("leaves in all", len(spread))),
        f"{name}{paths[leaf]} had {n} number{'s' * (n != 1)} that {'are' if n != 1 else 'is'} NaN or infinite "
        f"{when}.{others}",
        f"Of the leaves that were struck first it is the last one {order} the backward pass met it first: "
        "look there for a division, a log, a square root or an exponential, and at that step's batch; a lower learning "
        "rate, clipping, or loss scaling in float16 may be what is missing.",
        tuple(int(i) for i in spread),
        rank=Rank.NOT_FINITE,
        severity="error",
    )


def dead(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    """Gradients that are zero: always, or from some step on."""
    if kind_of(name) in NOT_GRADIENTS:
        return
    timeline, n_steps, has_number = _norms(history, name)
    if n_steps < thresholds.fewest_steps:
        return
    paths = history.sources[name].paths
    # A norm covers finite numbers only, so where others are not finite, zero does not mean dead.
    alive = (timeline.high > 0) | occurs_in(history.values(name, "nonfinite"), timeline)
    never = has_number & ~alive.any(axis=0)
    if has_number.any() and never[has_number].all():
        yield Finding(
            "dead", name, "", -1, int(timeline.first[0]), int(timeline.until[-1]), (("steps", n_steps),),
            f"All of {name} were zero in all {n_steps} steps.",
            "The loss does not depend on the parameters: look for stop_gradient, an argnums that names something else, "
            "a comparison or rounding on the way, or a loss that underflows.",
            (), n_steps / thresholds.fewest_steps,
            rank=Rank.TRAINING_ENDS,
        )  # fmt: skip
        return
    n_entries = len(timeline.n)
    since = np.where(
        alive.any(axis=0), n_entries - alive[::-1].argmax(axis=0), 0
    )  # the entry after its last nonzero one
    n_until = np.concatenate([[0], np.cumsum(timeline.n)])
    for leaf in np.flatnonzero(has_number & (since < n_entries)):
        start, n_zero = since[leaf], int(n_until[-1] - n_until[since[leaf]])
        patience = _patience(timeline.n, alive[:, leaf], thresholds) if start else thresholds.fewest_steps
        if n_zero < patience:
            continue
        first = int(timeline.first[start])
        always = f"from step {first} on" if start else "always"
        reason = (
            "Its units may be dead, as ReLUs are whose inputs became negative for every example: try a lower "
            "learning rate, a leaky activation, or another initialisation. Experts and embeddings that are no longer "
            "chosen look so too."
            if start
            else "No path leads from the loss to it: look for stop_gradient, an unused branch, or a parameter that the "
            "model does not use. A bias before a normalisation, and the key bias of attention, have no effect and may "
            "go."
        )
        yield Finding(
            "dead", name, paths[leaf], int(leaf), first, int(timeline.until[-1]), (("steps", n_zero),),
            f"{name}{paths[leaf]} was {always} zero: {n_zero} steps.", reason, (), n_zero / patience,
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip


def _patience(n: np.ndarray, alive: np.ndarray, thresholds: Thresholds) -> float:
    """The number of zero steps that makes a leaf dead: ten times its longest pause, at least `dead_after`."""
    entries = np.flatnonzero(alive)
    steps = np.concatenate([[0], np.cumsum(n)])
    pauses = steps[entries[1:]] - steps[entries[:-1] + 1]
    return max(thresholds.dead_after, 10 * int(pauses.max(initial=0)))


def frozen(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    """Leaves that have gradients but whose updates are zero."""
    if kind_of(name) != "updates":
        return
    timeline, n_steps, has_number = _norms(history, name)
    if n_steps < thresholds.fewest_steps:
        return
    has_gradient = has_number
    of_grads = sibling_name(name, "grads")
    grads = history.sources.get(of_grads)
    source = history.sources[name]
    if grads is not None and grads.sizes == source.sizes and "norm" in history.statistics(of_grads):
        has_gradient = has_number & (history.values(of_grads, "norm").high > 0).any(axis=0)
    leaves = np.flatnonzero(has_gradient & ~(timeline.high > 0).any(axis=0))
    whole = bool(leaves.size) and leaves.size == has_gradient.sum()
    for leaf in [-1] if whole else leaves:
        path = "" if whole else source.paths[leaf]
        yield Finding(
            "frozen", name, path, int(leaf), int(timeline.first[0]), int(timeline.until[-1]), (("steps", n_steps),),
            f"{'All parameters' if whole else path} got no update in {n_steps} steps, though there is a gradient.",
            "Look for a mask or multi_transform of the optimizer that leaves it out, or a learning rate of zero. If "
            "it is meant to be frozen, nothing is wrong; its gradient need not be computed then.",
            tuple(int(i) for i in leaves) if whole else (), n_steps / thresholds.fewest_steps,
            rank=Rank.TRAINING_ENDS if whole else Rank.LEAF_ENDS,
        )  # fmt: skip


def underflow(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    """Magnitudes near the smallest of the dtype; updates that are lost in the rounding of bfloat16 parameters."""
    source = history.sources[name]
    timeline = history.values(name, "histogram")
    if timeline.total is not None and len(timeline.n) and kind_of(name) not in NOT_GRADIENTS:
        counts = np.maximum(timeline.total, 0).sum(axis=0)
        for leaf, dtype in enumerate(source.dtypes):
            if dtype not in ("float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
                continue
            smallest = int(np.log2(float(jnp.finfo(dtype).smallest_normal)))
            part = counts[leaf, : max(min(smallest - FIRST_EXPONENT, N_BINS), 0)].sum() / max(counts[leaf].sum(), 1)
            if part > thresholds.underflow:
                yield Finding(
                    "underflow", name, source.paths[leaf], leaf, int(timeline.first[0]), int(timeline.until[-1]),
                    (("part", float(part)),),
                    f"{part:.0%} of {name}{source.paths[leaf]} are below 2**{smallest}, where {dtype} loses digits "
                    f"and then all.",
                    "Scale the loss (a dynamic loss scale, as in jmp), or keep these gradients in bfloat16 or float32.",
                    (), float(part) / thresholds.underflow,
                    rank=Rank.LEAF_ENDS,
                )  # fmt: skip
    if kind_of(name) == "updates":
        yield from _lost_in_bfloat16(history, name, thresholds)


def _lost_in_bfloat16(history: History, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    of_params = sibling_name(name, "params")
    params = history.sources.get(of_params)
    ratio = history.ratio(name, of_params)
    if params is None or ratio is None or ratio.n.sum() < thresholds.fewest_steps:
        return
    for leaf, dtype in enumerate(params.dtypes):
        values = ratio.latest[:, leaf]
        values = values[np.isfinite(values) & (values > 0)]
        # Half a unit in the last place is at most 2**-9 of a number; a quarter of that changes hardly any.
        if dtype == "bfloat16" and values.size and (typical := float(np.median(values))) < 2.0**-11:
            yield Finding(
                "underflow", name, params.paths[leaf], leaf, int(ratio.first[0]), int(ratio.until[-1]),
                (("ratio", typical),),
                f"The updates of {of_params}{params.paths[leaf]} are {typical:.1e} of it, and most are lost when it is "
                "rounded to bfloat16.",
                "Keep a float32 copy of the parameters for the optimizer, or round stochastically.",
                (), 2.0**-11 / typical,
                rank=Rank.LEAF_ENDS,
            )  # fmt: skip


def _norms(history: History, name: str):
    """The norms over time, their number of steps, and which leaves have numbers."""
    timeline = history.values(name, "norm")
    return timeline, int(timeline.n.sum()), np.array(history.sources[name].has_number, bool)
