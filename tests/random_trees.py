"""Random pytrees with nodes of every make, and changed ones."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from functools import partial
from typing import Any

import jax
import numpy as np
from sample_nodes import AdamState, Keyed, Layer, Node, Point, Registered, Repeated, Slotted, Static, WithAux


class Texts(list):
    """A leaf for JAX."""


LEAVES = [1, 2.5, None, "text", np.ones(2), (), [], {}, Texts([1]), Static("s"), Static("t")]


def random_tree(rng: random.Random, depth: int, leaves: list[Any] = LEAVES) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(leaves)
    child = partial(random_tree, rng, depth - 1, leaves)
    children = [child() for _ in range(rng.randrange(4))]
    keys = rng.sample([["a", "b", "c", "d"], [1, 2, 3, 4], [True, 2, 3.0, 4]][rng.randrange(3)], len(children))
    items = list(zip(keys, children, strict=True))
    makes = [
        lambda: children,
        lambda: tuple(children),
        lambda: dict(items),
        lambda: OrderedDict(items),
        lambda: defaultdict(rng.choice([int, list]), items),
        lambda: Point(child(), child()),
        lambda: AdamState(child(), child(), child()),
        lambda: Registered(child(), child()),
        lambda: WithAux(*children, label=rng.choice("xy")),
        lambda: Keyed(child(), child(), child()),
        lambda: Repeated(*children),
        lambda: Node(child()),
        lambda: Layer(rng.choice("xy"), child(), child()),
        lambda: Slotted(child()),
        lambda: jax.tree_util.Partial(rng.choice([min, max]), *children, k=child()),
        lambda: {1: child(), "a": child()} if rng.random() < 0.2 else child(),
    ]
    return rng.choice(makes)()


def changed(rng: random.Random, tree: Any, leaves: list[Any] = LEAVES) -> Any:
    """The tree with a random subtree in the place of one of its own, mostly."""
    if rng.random() < 0.15 or type(tree) not in (list, tuple, dict, OrderedDict, Point, Layer, Registered):
        return random_tree(rng, rng.randrange(3), leaves) if rng.random() < 0.6 else tree
    if isinstance(tree, list | Point | tuple):
        children = list(tree)
        if children:
            i = rng.randrange(len(children))
            children[i] = changed(rng, children[i], leaves)
        cls: Any = type(tree)
        return cls(*children) if cls is Point else cls(children)
    if isinstance(tree, dict):
        items = list(tree.items())
        rng.shuffle(items)
        if items and rng.random() < 0.8:
            items[0] = items[0][0], changed(rng, items[0][1], leaves)
        return type(tree)(items[rng.random() < 0.1 :])
    if type(tree) is Layer:
        return Layer(tree.name, changed(rng, tree.w, leaves), tree.b)
    return Registered(changed(rng, tree.x, leaves), tree.y)
