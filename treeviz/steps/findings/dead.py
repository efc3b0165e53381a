"""Findings about gradients that are zero, with the layer or branch that is the cause."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from treeviz.steps.findings.finding import Finding, Rank, Searched, listed, listed_alike, pattern
from treeviz.steps.recording.history import occurs_in
from treeviz.steps.statistics import kind_of, natural, section_of

# The layer or branch that blocks the gradients, derived from the order of the layers.

_KEY = re.compile(r"\['(?:[^'\\]|\\.)*'\]|\[[^\[\]]*\]|\.[^.\[\]]+")
_BIAS = re.compile(r"(?:.*[\W_])?(?:b|bias|beta|offset)[0-9]*")
_EXPERT = re.compile(r"expert|moe|router", re.IGNORECASE)
_EMBEDDING = re.compile(r"emb|codebook|table", re.IGNORECASE)
_Node = tuple[str, ...]  # the keys of its path


def dead_activation_hint(tree: Searched) -> str:
    """Names the layer after which all gradients are lost: a bias has one if its sum affects the loss; "" if unknown."""
    if tree.forward is None:
        return ""
    biases = [leaf for leaf in np.flatnonzero(tree.is_trained).tolist() if _is_bias(tree, leaf)]
    bias = max(biases, key=lambda leaf: tree.positions[leaf], default=None)
    if bias is None:
        return ""
    layer = next(layer for layer in tree.layers if bias in layer)
    is_last = max(tree.positions[tree.is_trained]) == max(tree.positions[layer])
    after = "" if is_last else "; no later layer has a bias, so it may be any of them"
    return (
        f"The last bias in use, {tree.name}{tree.path(bias)}, gets no gradient either. So the gradients are lost after "
        f"it, in its activation or later{after}. "
    )


def zero_input(tree: Searched, leaves: Sequence[int] = (), start: int = 0) -> str:
    """Names the first layer that outputs only zeros, at or after those leaves; "" if none does, or none is measured."""
    uses, since = [use for use in tree.uses("inputs") if use.has("dead")], tree.norm.begins[start]
    if not uses or any(use.source.paths != tree.source.paths for use in uses):
        return ""
    is_measured = np.any([use.source.has_number for use in uses], axis=0)
    is_read = np.any([np.nan_to_num(use.norm.high[use.norm.ends >= since]).any(axis=0) for use in uses], axis=0)
    is_zero = np.any([use.values("dead").latest[-1] > 0 for use in uses], axis=0) & ~is_read
    order = sorted(np.flatnonzero(is_measured).tolist(), key=lambda leaf: tree.positions[leaf])
    from_here = min(tree.positions[list(leaves) or order])
    pairs = (pair for pair in itertools.pairwise(order) if is_zero[pair[1]] and tree.positions[pair[1]] >= from_here)
    if (found := next(pairs, None)) is None:
        return ""
    return (
        f"All units between {tree.path(found[0])} and {tree.path(found[1])} are zero for every example, so no gradient "
        "passes them. ReLU units die where their inputs are negative: try a lower learning rate, a leaky activation or "
        "another initialisation."
    )


def dead_branch(tree: Searched, run: Sequence[int]) -> tuple[list[str], str] | None:
    """The paths of the nodes in which every trained leaf is dead, and the advice, if gradients bypass them; else None.

    Each has a sibling with gradients that differs only in its number, such as the experts of a layer. In a chain of
    layers, by contrast, the layers before a dead one have no gradients.
    """
    if tree.forward is None:
        return None
    dead_leaves, is_alive = set(run), tree.is_trained & (tree.norm.high > 0).any(axis=0)
    alive = {*np.flatnonzero(is_alive).tolist()} - dead_leaves
    keys: list[_Node] = [tuple(_KEY.findall(path)) for path in tree.paths]
    leaves_below: dict[_Node, set[int]] = defaultdict(set)
    alive_like: dict[tuple[_Node, str, _Node], list[str]] = defaultdict(list)
    for leaf in np.flatnonzero(tree.is_trained).tolist():
        for n, key in enumerate(keys[leaf]):
            leaves_below[keys[leaf][: n + 1]].add(leaf)
            if leaf in alive:
                alive_like[keys[leaf][:n], pattern(key), keys[leaf][n + 1 :]].append(key)
    dead_nodes: dict[_Node, set[_Node]] = {}  # dead node -> similar nodes that have gradients
    for leaf in run:
        path = keys[leaf]
        nodes = [n for n, key in enumerate(path) if leaves_below[path[: n + 1]] <= dead_leaves and pattern(key) != key]
        n = next((n for n in nodes if (path[:n], pattern(path[n]), path[n + 1 :]) in alive_like), None)
        if n is None:
            return None
        similar = alive_like[path[:n], pattern(path[n]), path[n + 1 :]]
        dead_nodes.setdefault(path[: n + 1], set()).update((*path[:n], key) for key in similar)
    first, parents = min(tree.positions[leaf] for leaf in run), {node[:-1] for node in dead_nodes}
    if not any(tree.positions[leaf] < first and any(keys[leaf][: len(p)] == p for p in parents) for leaf in alive):
        return None
    look = "Look"
    if _EXPERT.search(tree.path(run[0])):
        look = "The router may never choose this expert: check its scores, its balancing loss and the capacity. "
        look += "Otherwise look"
    siblings = sorted({"".join(node) for nodes in dead_nodes.values() for node in nodes}, key=natural)
    have = "has" if len(siblings) == 1 else "have"
    return ["".join(node) for node in dead_nodes], (
        f"{listed(siblings)} beside it {have} gradients, and so do earlier layers: the output of this part alone does "
        f"not reach the loss. {look} after this part for a gate of zero, stop_gradient, a saturated softmax, or units "
        "that are zero for every example."
    )


def _is_bias(tree: Searched, leaf: int) -> bool:
    """Whether a leaf is a bias: by its name, or as the vector in a list with a weight."""
    (_, key, _), shapes = tree.order.keys(leaf), tree.source.shapes
    if not key.strip("[]").isdecimal():
        is_factor = shapes != () and "," in shapes[leaf] and not any(tree.source.stacks)  # "b" of a LoRA
        return _BIAS.fullmatch(key.strip("[].'")) is not None and not is_factor
    layer = next(layer for layer in tree.layers if leaf in layer)
    return shapes != () and "," not in shapes[leaf] and any("," in shapes[other] for other in layer)


SCALE_THE_LOSS = "Scale the loss (a dynamic loss scale, as in jmp), or keep these gradients in bfloat16 or float32."
SMALLEST_FLOAT16 = 2.0**-24
_NEARLY_ALL = 0.9  # of the steps
_TOGETHER = 5  # entries within which leaves die for one cause


def dead(tree: Searched) -> Iterator[Finding]:
    """Gradients that are always zero, or zero from some step on."""
    if not tree.is_gradient or tree.n_steps < tree.thresholds.fewest_steps:
        return
    timeline, fewest = tree.norm, tree.thresholds.fewest_steps
    # A norm covers only finite elements, so a zero norm beside non-finite elements does not mean dead.
    is_nonzero = (timeline.high > 0) | occurs_in(tree.values("nonfinite"), timeline)
    trained = tree.is_trained
    if trained.any() and not is_nonzero[:, trained].any():
        n_steps = int(_steps_with_numbers(tree)[:, trained].max(axis=1).sum())
        if n_steps < fewest:
            return
        found = tree.finding(
            "dead", -1, (("steps", n_steps),),
            f"All {'trained leaves ' * bool(tree.is_frozen.any())}of {tree.name} were zero in all {n_steps} steps.",
            "The loss does not depend on the parameters, or only where it has no derivative: look for stop_gradient, "
            "an argnums that names something else, or a comparison or rounding on the way."
            if tree.cut_off[trained].all()
            else _zero_factors(tree, np.flatnonzero(trained).tolist())
            or zero_input(tree)
            or f"{dead_activation_hint(tree)}Look for a dead layer that everything passes through, such as a ReLU "
            "far below zero, a saturated sigmoid or a softmax of one number; for a mask that leaves nothing; and for a "
            "loss that underflows. tv.tap on the outputs of layers shows where.",
            (), n_steps / fewest, Rank.TRAINING_ENDS,
        )  # fmt: skip
        yield _rated(tree, found)
        return
    # After the last nonzero entry.
    dead_from = np.where(is_nonzero.any(axis=0), len(is_nonzero) - is_nonzero[::-1].argmax(axis=0), 0)
    n_steps_until = np.concatenate([np.zeros((1, len(dead_from)), int), np.cumsum(_steps_with_numbers(tree), axis=0)])
    n_zero = n_steps_until[-1] - n_steps_until[dead_from, range(len(dead_from))]
    patience, until = np.full(len(dead_from), float(fewest)), np.concatenate([[0], np.cumsum(timeline.n)])
    for leaf in np.flatnonzero((dead_from > 0) & (dead_from < len(is_nonzero))):  # at least ten times its longest pause
        entries = np.flatnonzero(is_nonzero[:, leaf])
        pauses = until[entries[1:]] - until[entries[:-1] + 1]
        patience[leaf] = max(tree.thresholds.dead_after, 10 * int(pauses.max(initial=0)))
    is_dead = trained & (n_zero >= patience) & (dead_from < len(is_nonzero))
    if (is_cut := is_dead & tree.cut_off & (dead_from == 0)).any():
        yield _rated(tree, _cut_off_finding(tree, is_cut, int(n_zero[is_cut].max())))
    is_dead &= ~is_cut
    if (is_part := tree.parts_of_learning_layers(is_dead & (dead_from == 0))).any():
        is_dead &= ~is_part
        yield _learning_layers_finding(tree, is_part, int(n_zero[is_part].max()), np.asarray(is_nonzero.any(axis=0)))
    starts = np.unique(dead_from[is_dead])
    for group in np.split(starts, np.flatnonzero((np.diff(starts) > _TOGETHER) | (starts[:-1] == 0)) + 1):
        for run in _join_similar(tree, tree.runs(is_dead & np.isin(dead_from, group))):
            times = float((n_zero / patience)[run].max())
            yield _rated(tree, _dead_run_finding(tree, run, int(dead_from[run].min()), times))
    is_reported = is_dead | is_cut | is_part
    yield from _dead_in_a_member(tree, trained & ~is_reported)
    yield from _rarely_nonzero(tree, trained & is_nonzero.any(axis=0) & ~is_reported, is_nonzero)


def _dead_in_a_member(tree: Searched, is_judged: np.ndarray) -> Iterator[Finding]:
    """Findings about leaves that are zero in one member of an ensemble but not in the others."""
    if not tree.has("least"):
        return
    least = tree.values("least")
    is_zero = is_judged & (least.high == 0).all(axis=0) & (np.nanmax(tree.norm.high, axis=0) > 0)
    parts, n_steps = tree.parts_of_learning_layers(is_zero), int(least.n.sum())
    for run in _join_similar(tree, tree.runs(is_zero & ~parts)):
        yield tree.finding(
            "dead", run[0], (("steps", n_steps),),
            f"{tree.text(run)} {_were(run)} zero in at least one member of the ensemble: {n_steps} steps.",
            'GradientInspector(members="each") measures each member, and shows which one it is.',
            run, n_steps / tree.thresholds.fewest_steps, Rank.LEAF_ENDS,
        )  # fmt: skip


def _were(leaves: Sequence[int]) -> str:
    return "was" if len(leaves) == 1 else "were"


def _backward(tree: Searched, is_among: np.ndarray) -> list[int]:
    return [leaf for layer in reversed(tree.layers) for leaf in layer if is_among[leaf]]


def _rarely_nonzero(tree: Searched, is_judged: np.ndarray, is_nonzero: np.ndarray) -> Iterator[Finding]:
    """The finding about leaves whose gradients are zero in nearly all steps."""
    steps = _steps_with_numbers(tree)
    n_steps, n_zero = steps.sum(axis=0), np.where(is_nonzero, 0, steps).sum(axis=0)
    is_seldom = is_judged & (n_zero >= _NEARLY_ALL * n_steps) & (n_zero >= 1.5 * tree.thresholds.fewest_steps)
    leaves = _backward(tree, is_seldom)
    if leaves and _near_float16_limit(tree, leaves) is None:
        n_least, total = int(n_zero[leaves].min()), int(n_steps[leaves[0]])
        yield tree.finding(
            "dead", leaves[0], (("zero", n_least), ("steps", total), ("leaves", len(leaves))),
            f"{tree.text(leaves)} {_were(leaves)} zero in {n_least} of {total} steps.",
            "A softmax or a sigmoid may be saturated: tv.tap on its input shows it. Or few steps use this part.",
            leaves, n_least / total, Rank.INFORMATION,
        )  # fmt: skip


def _cut_off_finding(tree: Searched, is_cut: np.ndarray, n_steps: int) -> Finding:
    """The finding about leaves that the traced step proves irrelevant to the loss, such as unused layers."""
    leaves = _backward(tree, is_cut)
    paths, last = [*map(tree.path, leaves)], tree.positions[leaves].max()
    after = [leaf for leaf in np.flatnonzero(tree.is_trained).tolist() if tree.positions[leaf] > last]
    between = f"between {paths[0]} and {tree.path(min(after, key=lambda i: tree.positions[i]))}" if after else "there"
    where = "" if last < 0 else f"look {between} for stop_gradient, a comparison, a rounding or a product with zero"
    return tree.finding(
        "dead", leaves[0], (("steps", n_steps), ("leaves", len(leaves))),
        f"{len(leaves)} of {tree.is_trained.sum()} {tree.nouns} of {tree.name} are zero in all {n_steps} steps: the "
        f"loss does not depend on {listed_alike(paths)}, or only where it has no derivative.",
        f"If they should be trained, {where or 'use them: the step does not'}. If they should be frozen, list them in "
        "Thresholds(expected_frozen=[…]).",
        leaves, n_steps / tree.thresholds.fewest_steps, Rank.INFORMATION,
    )  # fmt: skip


def _rated(tree: Searched, finding: Finding) -> Finding:
    """The finding; an error if it is about most of what the gradient gives the optimizer."""
    is_given, others = tree.is_trained.copy(), [name for name in tree.history.sources if name != tree.name]
    for name in others:  # another loss of the step may train the leaf
        is_alike = kind_of(name) == "grads" and section_of(name)[1] == section_of(tree.name)[1]
        if is_alike and tree.history.sources[name].paths == tree.source.paths:
            is_given &= ~(tree.history.values(name, "finite_norm").high > 0).any(axis=0)
    n = is_given[list(finding.leaves) or slice(None)].sum()
    is_most = kind_of(tree.name) == "grads" and 2 * n > is_given.sum()
    return replace(finding, rank=Rank.TRAINING_ENDS, severity="error") if is_most else finding


def _learning_layers_finding(tree: Searched, is_part: np.ndarray, n_steps: int, is_alive: np.ndarray) -> Finding:
    """The finding about leaves without gradients in layers that learn: they block no gradients."""
    leaves = _backward(tree, is_part)
    it, layer = ("it", "layer") if len(leaves) == 1 else ("they", "layers")
    cuts_off = "All other leaves have gradients. " * bool(is_alive[tree.is_trained & ~is_part].all())
    return tree.finding(
        "dead", leaves[0], (("steps", n_steps), ("leaves", len(leaves))),
        f"{tree.text(leaves)} {_were(leaves)} zero in all {n_steps} steps, unlike others in the same {layer}.",
        f"{cuts_off}If {it} should be trained, look for symmetric data, inputs that never reach "
        "it, terms that cancel, a closed gate, and a parameter that is zero, as in x·w². Otherwise nothing is wrong.",
        leaves, n_steps / tree.thresholds.fewest_steps, Rank.INFORMATION,
    )  # fmt: skip


def _steps_with_numbers(tree: Searched) -> np.ndarray:
    """int[entries, leaves]: the steps of each entry; 0 if the leaf has no values, as in a branch that was not taken."""
    return np.where(np.isnan(tree.norm.high), 0, tree.norm.n[:, None])


def _join_similar(tree: Searched, runs: Iterable[list[int]]) -> list[list[int]]:
    """Join runs that differ only in their layer numbers, the one nearest to the loss first."""
    joined: dict[frozenset[str], list[int]] = {}
    for run in runs:
        key = frozenset(pattern(tree.path(leaf)) for leaf in run)
        joined[key] = run + joined.get(key, [])
    return list(joined.values())


def _dead_run_finding(tree: Searched, run: list[int], start: int, times: float) -> Finding:
    """The finding about leaves that are zero from entry `start` on; the first leaf is the cause."""
    first = int(tree.norm.begins[start])
    n_zero = int(_steps_with_numbers(tree)[start:, run[0]].sum())
    if (largest := _near_float16_limit(tree, run)) is not None:
        return tree.finding(
            "underflow", run[0], (("largest", largest), ("steps", n_zero)),
            f"{tree.text(run)} became zero: around it, gradients are of {largest:.1g} at most, and "
            f"float16 has nothing below {SMALLEST_FLOAT16:.1g}.",
            SCALE_THE_LOSS, run, times, Rank.LEAF_ENDS, first=first,
        )  # fmt: skip
    zero = f"zero from {tree.numbering.text(first)} on: {n_zero} steps" if start else f"always zero: {n_zero} steps"
    if (branch := dead_branch(tree, run)) is not None:
        (paths, advice), n = branch, len(run)
        what = "" if n == len(paths) else "Both leaves of " if n == 2 else f"All {n} leaves of "
        return tree.finding(
            "dead", run[0], (("steps", n_zero),),
            f"{what}{tree.name}{listed(paths)} {_were(run)} {zero}.",
            zero_input(tree, run, start) or advice, run, times, Rank.LEAF_ENDS, first=first,
        )  # fmt: skip
    cause = _last_layer_with_bias(tree, run)
    run = [*cause, *(leaf for leaf in run if leaf not in cause)]
    layer = next(layer for layer in tree.layers if run[0] in layer)
    reason = "It is the first of them in the backward pass. " if len(run) > 1 else ""
    if cause:
        reason = (
            "The layers after it pass zeros on, since their biases are zero. So the cause is this layer or a later "
            "one: tv.tap on their outputs shows which. "
        )
    elif not set(run) <= set(layer) and not tree.uses("inputs"):
        reason += (
            "The cause may be an earlier one: a layer without a bias, or with a bias of zero, passes zeros on. tv.tap "
            "on their outputs shows which. "
        )
    if tree.norm.high[start:, layer].any():
        reason = "Other leaves of its layer have gradients, so its input may be zero. "
    if known := _zero_factors(tree, run) or zero_input(tree, run, start):
        reason = known
    elif start:
        reason += (
            "ReLU units may be dead: their inputs are negative for every example. Try a lower learning rate, a leaky "
            "activation, or another initialisation."
        )
        if _EXPERT.search(tree.path(run[0])) or _EMBEDDING.search(tree.path(run[0])):
            reason += " Or this expert or embedding is no longer chosen."
    else:
        reason += (
            "Look for stop_gradient, an unused branch, units that are zero for every example, in it or before it, a "
            "softmax behind it that is saturated, or a parameter that the model does not use."
        )
    return tree.finding(
        "dead", run[0], (("steps", n_zero),),
        f"{tree.text(run)} {_were(run)} {zero}.",
        reason, run, times, Rank.LEAF_ENDS, first=first,
    )  # fmt: skip


def _zero_factors(tree: Searched, leaves: Sequence[int]) -> str:
    """The advice if two of the leaves are matrices of zeros, and used one after the other; else ""."""
    params, shapes = tree.sibling("params"), tree.source.shapes
    if not shapes or not params.has("norm") or len(params.source.paths) != len(shapes):
        return ""
    order = sorted(np.flatnonzero(tree.is_trained).tolist(), key=lambda leaf: tree.positions[leaf])
    are_zero = {leaf for leaf in leaves if "," in shapes[leaf] and not params.norm.latest[:, leaf].any()}
    factors = next((pair for pair in itertools.pairwise(order) if are_zero.issuperset(pair)), ())
    return bool(factors) * (
        f"{' and '.join(map(tree.path, factors))} are both zero, so neither has a gradient: let one of two factors, as "
        "of LoRA, start with random numbers."
    )


def _last_layer_with_bias(tree: Searched, run: list[int]) -> list[int]:
    """The leaves of the run's last layer with a nonzero bias, if only layers with zero biases follow it; else [].

    If the weights after the run have no gradient but their bias has one, the run outputs zeros. A layer with a zero
    bias maps zeros to zeros, so it may not be the cause.
    """
    params, shapes = tree.sibling("params"), tree.source.shapes
    if not shapes or not params.has("norm") or params.source.paths != tree.source.paths:
        return []
    whole_layers = [layer for layer in tree.layers if set(layer) <= set(run)]
    if not whole_layers or all(tree.positions[leaf] <= tree.positions[whole_layers[-1]].max() for leaf in run):
        return []
    norm = params.norm.latest[-1]
    for layer in reversed(whole_layers):
        biases = [leaf for leaf in layer if "," not in shapes[leaf] and "," in shapes[layer[0]]]
        if (norm[biases] > 0).any():
            return [] if layer is whole_layers[-1] else sorted(layer, key=run.index)
        if not biases or not (norm[biases] == 0).all():
            return []
    return []


def _near_float16_limit(tree: Searched, run: list[int]) -> float | None:
    """The largest magnitude near leaves that are zero, if it is close to the smallest float16 number; else None."""
    order = [leaf for layer in tree.layers for leaf in layer]
    following = [leaf for leaf in order if tree.positions[leaf] > tree.positions[run[0]]][:2]
    largest = tree.values("finite_max_abs").latest
    if not (largest[:, [*run, *following]] > 0).any():  # the leaves that the backward pass reaches first are zero, too
        following = [leaf for leaf in order if (largest[:, leaf] > 0).any()]
    return float16_scale(largest[:, [*run, *following]])


def float16_scale(largest: np.ndarray) -> float | None:
    """The typical largest magnitude, if it is close to the smallest float16 number; else None.

    Float32 gradients that were cast from float16 are multiples of the smallest float16 number; bfloat16 ones are not.
    """
    largest = largest[np.isfinite(largest) & (largest > 0)]
    if largest.size and (largest % SMALLEST_FLOAT16 == 0).all() and (top := np.median(largest)) < 2.0**-17:
        return float(top)
    return None
