"""Findings of gradients that are zero, by the layer that is the cause."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from treeviz.steps.findings.finding import Finding, Rank, Searched, Thresholds, and_others, listed, pattern
from treeviz.steps.recording.history import occurs_in
from treeviz.steps.statistics import natural, sibling_name

# Where gradients of zero come from, as far as the order of the layers tells: behind which, or in which branch.

_KEY = re.compile(r"\['(?:[^'\\]|\\.)*'\]|\[[^\[\]]*\]|\.[^.\[\]]+")
_BIAS = re.compile(r"(?:.*[\W_])?(?:b|bias|beta|offset)[0-9]*")
_Node = tuple[str, ...]  # the keys of its path


class Branch(NamedTuple):
    """Parts of a model past which the gradients go.

    Attributes:
      paths: Of their nodes.
    """

    paths: Sequence[str]
    advice: str


def behind(tree: Searched) -> str:
    """Behind which layer the gradients of a whole tree are lost; empty if that is not known.

    A bias is added, so it has a gradient where anything of what it is added to reaches the loss.
    """
    if tree.forward is None:
        return ""
    biases = [leaf for leaf in np.flatnonzero(tree.is_trained).tolist() if _is_bias(tree, leaf)]
    if not biases:
        return ""
    bias = max(biases, key=lambda leaf: tree.places[leaf])
    layer = next(layer for layer in tree.layers if bias in layer)
    is_last = max(tree.places[tree.is_trained]) == max(tree.places[layer])
    after = "" if is_last else ", and none of the layers after it has a bias, so it may be in any of them"
    return (
        f"{tree.name}{tree.path(bias)}, the bias that is used last, is zero, too: what it is added to does not reach "
        f"the loss. So they are lost behind it, in its activation or what follows{after}. "
    )


def branch(tree: Searched, run: Sequence[int]) -> Branch | None:
    """The nodes of which leaves without gradients are all that is trained, if gradients go past them; else None.

    These are nodes beside which another has gradients that differs in its number only, as the experts of a layer. In a
    chain of layers, a dead one has no gradients before it, and of the next one the weights have none.
    """
    if tree.forward is None:
        return None
    struck, is_alive = set(run), tree.is_trained & (tree.norm.high > 0).any(axis=0)
    alive = [leaf for leaf in np.flatnonzero(is_alive).tolist() if leaf not in struck]
    keys: list[_Node] = [tuple(_KEY.findall(path)) for path in tree.source.paths]
    below: dict[_Node, set[int]] = defaultdict(set)
    for leaf in np.flatnonzero(tree.is_trained).tolist():
        for n in range(len(keys[leaf])):
            below[keys[leaf][: n + 1]].add(leaf)
    like: dict[tuple[_Node, str, _Node], list[str]] = defaultdict(list)
    for leaf in alive:
        for n, key in enumerate(keys[leaf]):
            like[keys[leaf][:n], pattern(key), keys[leaf][n + 1 :]].append(key)
    dead: dict[_Node, set[_Node]] = {}  # each with those like it that have gradients
    for leaf in run:
        path = keys[leaf]
        nodes = [n for n, key in enumerate(path) if below[path[: n + 1]] <= struck and pattern(key) != key]
        n = next((n for n in nodes if (path[:n], pattern(path[n]), path[n + 1 :]) in like), None)
        if n is None:
            return None
        beside = like[path[:n], pattern(path[n]), path[n + 1 :]]
        dead.setdefault(path[: n + 1], set()).update((*path[:n], key) for key in beside)
    first, parents = min(tree.places[leaf] for leaf in run), {node[:-1] for node in dead}
    if not any(tree.places[leaf] < first and any(keys[leaf][: len(p)] == p for p in parents) for leaf in alive):
        return None
    beside = sorted({"".join(node) for nodes in dead.values() for node in nodes}, key=natural)
    return Branch(
        ["".join(node) for node in dead],
        f"{listed(beside)} beside it {'has' if len(beside) == 1 else 'have'} gradients, and so has what is used "
        "before: they go past this part, of which nothing reaches the loss. An expert looks so that the router never "
        "chooses: look at its scores, at the loss that balances them, and at the capacity. Else look behind this part, "
        "for a gate of zero, stop_gradient, a saturated softmax, or units that are zero for every example.",
    )


def _is_bias(tree: Searched, leaf: int) -> bool:
    """By its name, or in a pair beside a weight."""
    _, key, _ = tree.keys[leaf]
    if not key.strip("[]").isdecimal():
        return _BIAS.fullmatch(key.strip("[].'")) is not None
    layer = next(layer for layer in tree.layers if leaf in layer)
    ranks = [tree.source.shapes[each].count(",") if tree.source.shapes else 0 for each in layer]
    return tree.source.shapes != () and "," not in tree.source.shapes[leaf] and max(ranks) > 0


SCALE_THE_LOSS = "Scale the loss (a dynamic loss scale, as in jmp), or keep these gradients in bfloat16 or float32."
_SMALLEST_FLOAT16 = 2.0**-24
_NEARLY_ALL = 0.9  # of the steps
_TOGETHER = 5  # entries between leaves that die of one cause


def dead(tree: Searched) -> Iterator[Finding]:
    """Gradients that are zero: always, or from some step on."""
    if not tree.is_gradient or tree.n_steps < tree.thresholds.fewest_steps:
        return
    timeline, (first, until) = tree.norm, tree.span
    # A norm covers finite numbers only, so where others are not finite, zero does not mean dead.
    alive = (timeline.high > 0) | occurs_in(tree.history.values(tree.name, "nonfinite"), timeline)
    trained = tree.is_trained
    if trained.any() and not alive[:, trained].any():
        n_steps = int(_steps_with_numbers(tree)[:, trained].max(axis=1).sum())
        if n_steps < tree.thresholds.fewest_steps:
            return
        is_known = bool(tree.cut_off[trained].all())
        yield Finding(
            "dead", tree.name, "", -1, first, until, (("steps", n_steps),),
            f"All of {tree.name} were zero in all {n_steps} steps.",
            "The loss does not depend on the parameters, or only where it has no derivative: look for stop_gradient, "
            "an argnums that names something else, or a comparison or rounding on the way."
            if is_known
            else f"{behind(tree)}Look for a layer that all passes through and that is dead, as a ReLU far below zero, "
            "a saturated sigmoid or a softmax of one number; for a mask that leaves nothing; and for a loss that "
            "underflows. tv.tap on what goes through shows where.",
            (), n_steps / tree.thresholds.fewest_steps,
            rank=Rank.TRAINING_ENDS,
        )  # fmt: skip
        return
    since = np.where(alive.any(axis=0), len(alive) - alive[::-1].argmax(axis=0), 0)  # after the last nonzero entry
    n_known = np.concatenate([np.zeros((1, len(since)), int), np.cumsum(_steps_with_numbers(tree), axis=0)])
    n_zero = n_known[-1] - n_known[since, range(len(since))]
    patience = np.full(len(since), float(tree.thresholds.fewest_steps))
    for leaf in np.flatnonzero((since > 0) & (since < len(alive))):
        patience[leaf] = _patience(timeline.n, alive[:, leaf], tree.thresholds)
    is_dead = trained & (n_zero >= patience) & (since < len(alive))
    if (is_cut := is_dead & tree.cut_off & (since == 0)).any():
        yield _cut_off(tree, is_cut, int(n_zero[is_cut].max()))
    is_dead &= ~is_cut
    if (is_part := _parts(tree, is_dead & (since == 0))).any():
        is_dead &= ~is_part
        yield _in_learning_layers(tree, is_part, int(n_zero[is_part].max()), np.asarray(alive.any(axis=0)))
    starts = np.unique(since[is_dead])
    for group in np.split(starts, np.flatnonzero((np.diff(starts) > _TOGETHER) | (starts[:-1] == 0)) + 1):
        for run in _alike(tree, tree.runs(is_dead & np.isin(since, group))):
            yield _dead_run(tree, run, int(since[run].min()), float((n_zero / patience)[run].max()))
    is_told = is_dead | is_cut | is_part
    yield from _dead_in_a_member(tree, trained & ~is_told)
    yield from _seldom(tree, trained & alive.any(axis=0) & ~is_told, alive)


def _dead_in_a_member(tree: Searched, is_judged: np.ndarray) -> Iterator[Finding]:
    """The findings of leaves that are zero in a member of an ensemble whose other leaves are not."""
    if "least" not in tree.history.statistics(tree.name):
        return
    least = tree.history.values(tree.name, "least")
    is_zero = is_judged & (least.high == 0).all(axis=0) & (np.nanmax(tree.norm.high, axis=0) > 0)
    parts, n_steps = _parts(tree, is_zero), int(least.n.sum())
    for run in _alike(tree, tree.runs(is_zero & ~parts)):
        path, were = tree.path(run[0]), "was" if len(run) == 1 else "were"
        yield Finding(
            "dead", tree.name, path, run[0], *tree.span, (("steps", n_steps),),
            f"{tree.name}{path}{and_others(run)} {were} zero in one member of the ensemble, or more: {n_steps} steps.",
            'GradientInspector(members="each") has rows for each member: it tells in which, and what to try.',
            tuple(run), n_steps / tree.thresholds.fewest_steps,
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip


def _seldom(tree: Searched, is_judged: np.ndarray, alive: np.ndarray) -> Iterator[Finding]:
    """The finding of leaves whose gradients are zero in nearly all steps."""
    steps = _steps_with_numbers(tree)
    n_steps, n_zero = steps.sum(axis=0), np.where(alive, 0, steps).sum(axis=0)
    is_seldom = is_judged & (n_zero >= _NEARLY_ALL * n_steps) & (n_zero >= 1.5 * tree.thresholds.fewest_steps)
    leaves = [leaf for layer in reversed(tree.layers) for leaf in layer if is_seldom[leaf]]
    if leaves and _last_of_float16(tree, leaves) is None:
        path, were = tree.path(leaves[0]), "was" if len(leaves) == 1 else "were"
        most, of = int(n_zero[leaves].min()), int(n_steps[leaves[0]])
        yield Finding(
            "dead", tree.name, path, leaves[0], *tree.span, (("zero", most), ("steps", of), ("leaves", len(leaves))),
            f"{tree.name}{path}{and_others(leaves)} {were} zero in {most} of {of} steps.",
            "It may be that a softmax is saturated, or a sigmoid: tv.tap on what goes into it tells. What is seldom "
            "in use looks so too, as an expert, or a network that few steps train.",
            tuple(leaves), most / of,
            rank=Rank.INFORMATION, severity="info",
        )  # fmt: skip


def _cut_off(tree: Searched, is_cut: np.ndarray, n_steps: int) -> Finding:
    """The finding of leaves on which the loss does not depend, as the step itself shows: those of unused layers."""
    leaves = [leaf for layer in reversed(tree.layers) for leaf in layer if is_cut[leaf]]
    paths, is_one = [tree.path(leaf) for leaf in leaves], len(leaves) == 1
    zero = "was always zero, and is for any numbers" if is_one else "were always zero, and are for any numbers"
    what = "this parameter" if is_one else listed(paths)
    return Finding(
        "dead", tree.name, paths[0], leaves[0], *tree.span, (("steps", n_steps), ("leaves", len(leaves))),
        f"{tree.name}{paths[0]}{and_others(leaves)} {zero}: the loss does not depend on {what}, or only where "
        "it has no derivative.",
        "It is not used, or behind stop_gradient, a comparison or a rounding, or times zero. If it is to be trained, "
        "look there; else nothing is wrong.",
        tuple(leaves), n_steps / tree.thresholds.fewest_steps,
        rank=Rank.INFORMATION, severity="info",
    )  # fmt: skip


def _parts(tree: Searched, was_always_zero: np.ndarray) -> np.ndarray:
    """bool[leaves]: which leaves that were always zero are parts of layers that learn, behind no dead layer."""
    parts, found = tree.parts(was_always_zero), np.zeros(len(was_always_zero), bool)
    for run in tree.runs(was_always_zero):
        found[run] = parts[run].all()
    return found


def _in_learning_layers(tree: Searched, is_part: np.ndarray, n_steps: int, is_alive: np.ndarray) -> Finding:
    """The finding of leaves without gradients in layers that have some: they cut off nothing."""
    leaves = [leaf for layer in reversed(tree.layers) for leaf in layer if is_part[leaf]]
    path, is_one = tree.path(leaves[0]), len(leaves) == 1
    zero = (
        f"{'was' if is_one else 'were'} always zero, and others of {'its layer' if is_one else 'their layers'} are not"
    )
    cuts_off = ""
    if is_alive[tree.is_trained & ~is_part].all():
        cuts_off = f"{'It cuts' if is_one else 'They cut'} off nothing: all other leaves have gradients. "
    return Finding(
        "dead", tree.name, path, leaves[0], *tree.span, (("steps", n_steps), ("leaves", len(leaves))),
        f"{tree.name}{path}{and_others(leaves)} {zero}: {n_steps} steps.",
        f"{cuts_off}Zeros come of a symmetry of the data, a path that the data do not feed, terms that cancel, a gate "
        "that is shut, or a parameter of zero, as in x·w². If these are to be trained, look there; else nothing is "
        "wrong.",
        tuple(leaves), n_steps / tree.thresholds.fewest_steps,
        rank=Rank.INFORMATION, severity="info",
    )  # fmt: skip


def _steps_with_numbers(tree: Searched) -> np.ndarray:
    """int[entries, leaves]: the steps of each entry, 0 where the leaf had none: in a branch that was not taken."""
    return np.where(np.isnan(tree.norm.high), 0, tree.norm.n[:, None])


def _alike(tree: Searched, runs: Iterable[list[int]]) -> list[list[int]]:
    """Join the runs that differ in the numbers of their layers only: that nearest to the loss comes first."""
    joined: dict[frozenset[str], list[int]] = {}
    for run in runs:
        alike = frozenset(pattern(tree.path(leaf)) for leaf in run)
        joined[alike] = run + joined.get(alike, [])
    return list(joined.values())


def _dead_run(tree: Searched, run: list[int], start: int, times: float) -> Finding:
    """The finding of leaves that are zero since the entry `start`, of which the first is the cause."""
    first = int(tree.norm.first[start])
    n_zero = int(_steps_with_numbers(tree)[start:, run[0]].sum())
    path = tree.path(run[0])
    if (largest := _last_of_float16(tree, run)) is not None:
        return Finding(
            "underflow", tree.name, path, run[0], first, tree.span[1], (("largest", largest), ("steps", n_zero)),
            f"{tree.name}{path}{and_others(run)} became zero: around it, gradients are of {largest:.1g} at most, and "
            f"float16 has nothing below {_SMALLEST_FLOAT16:.1g}.",
            SCALE_THE_LOSS, tuple(run), times,
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip
    zero = f"zero from step {first} on" if start else "always zero"
    if (beside := branch(tree, run)) is not None:
        n = len(run)
        what = "" if n == len(beside.paths) else "Both leaves of " if n == 2 else f"All {n} leaves of "
        return Finding(
            "dead", tree.name, path, run[0], first, tree.span[1], (("steps", n_zero),),
            f"{what}{tree.name}{listed(beside.paths)} {'was' if n == 1 else 'were'} {zero}: {n_zero} steps.",
            beside.advice, tuple(run), times,
            rank=Rank.LEAF_ENDS,
        )  # fmt: skip
    cause = _with_other_bias(tree, run)
    run = [*cause, *(leaf for leaf in run if leaf not in cause)]
    path = tree.path(run[0])
    layer = next(layer for layer in tree.layers if run[0] in layer)
    reason = "Of these it is in the last layer in use, so the backward pass met it first. " if len(run) > 1 else ""
    if cause:
        reason = (
            "The layers behind it have biases of zero, in which zeros stay zero, and the last of them seems to give "
            "zeros: it may be this one, or a later one; tv.tap on their outputs tells which. "
        )
    elif not set(run) <= set(layer):
        reason += (
            "It may be an earlier one: zeros stay zero in layers without biases, or with zero ones; tv.tap on their "
            "outputs tells which. "
        )
    if tree.norm.high[start:, layer].any():
        reason = "Other leaves of its layer have gradients, so what it is multiplied with may be zero. "
    if start:
        reason += (
            "Units may be dead, as ReLUs are whose inputs became negative for every example: try a lower learning "
            "rate, a leaky activation, or another initialisation. Experts and embeddings that are no longer chosen "
            "look so too."
        )
    else:
        reason += (
            "Look for stop_gradient, an unused branch, units that are zero for every example, in it or before it, a "
            "softmax behind it that is saturated, or a parameter that the model does not use."
        )
    return Finding(
        "dead", tree.name, path, run[0], first, tree.span[1], (("steps", n_zero),),
        f"{tree.name}{path}{and_others(run)} {'was' if len(run) == 1 else 'were'} {zero}: {n_zero} steps.",
        reason, tuple(run), times,
        rank=Rank.LEAF_ENDS,
    )  # fmt: skip


def _with_other_bias(tree: Searched, run: list[int]) -> list[int]:
    """The leaves of the last layer in a run whose bias is not zero, if layers with zero biases and then zeros follow.

    Where the weights behind the run have no gradient and their bias has, zeros leave the run. A layer with a bias of
    zero makes zeros of zeros, so it tells nothing of itself. None if there is no such layer, or it is the last of all.
    """
    of_params, source = sibling_name(tree.name, "params"), tree.source
    params = tree.history.sources.get(of_params)
    if params is None or not source.shapes or params.paths != source.paths:
        return []
    if "norm" not in tree.history.statistics(of_params):
        return []
    whole = [layer for layer in tree.layers if set(layer) <= set(run)]
    if not whole or all(tree.places[leaf] <= tree.places[whole[-1]].max() for leaf in run):
        return []
    norm = tree.history.values(of_params, "norm").latest[-1]
    for layer in reversed(whole):
        biases = [leaf for leaf in layer if "," not in source.shapes[leaf] and "," in source.shapes[layer[0]]]
        if (norm[biases] > 0).any():
            return [] if layer is whole[-1] else sorted(layer, key=run.index)
        if not biases or not (norm[biases] == 0).all():
            return []
    return []


def _last_of_float16(tree: Searched, run: list[int]) -> float | None:
    """The largest magnitude next to leaves that are zero, if it is among the smallest numbers of float16; else None."""
    order = [leaf for layer in tree.layers for leaf in layer]
    after = [leaf for leaf in order if tree.places[leaf] > tree.places[run[0]]][:2]
    largest = tree.history.values(tree.name, "max_abs").latest
    if not (largest[:, [*run, *after]] > 0).any():  # what the backward pass met before is zero, too, or there is none
        after = [leaf for leaf in order if (largest[:, leaf] > 0).any()]
    return of_float16(largest[:, [*run, *after]])


def of_float16(largest: np.ndarray) -> float | None:
    """What magnitudes are at most, if they are among the smallest of float16; else None.

    Gradients may be float32 that were cast: these are multiples of the smallest float16, too. Those of bfloat16 are
    not.
    """
    largest = largest[np.isfinite(largest) & (largest > 0)]
    if largest.size and (largest % _SMALLEST_FLOAT16 == 0).all() and (top := np.median(largest)) < 2.0**-17:
        return float(top)
    return None


def _patience(n: np.ndarray, alive: np.ndarray, thresholds: Thresholds) -> float:
    """The number of zero steps that makes a leaf dead: ten times its longest pause, at least `dead_after`."""
    entries = np.flatnonzero(alive)
    steps = np.concatenate([[0], np.cumsum(n)])
    pauses = steps[entries[1:]] - steps[entries[:-1] + 1]
    return max(thresholds.dead_after, 10 * int(pauses.max(initial=0)))
