"""Where gradients of zero come from, as far as the order of the layers tells: behind which, or in which branch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeviz.steps.findings.searched import Searched, listed, pattern
from treeviz.steps.names import natural

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
