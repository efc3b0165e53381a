"""What refuses `jax.tree.map`, leaf by leaf: as JAX does, and with the right paths."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from sample_nodes import AdamState, Keyed, Layer, Node, Point, Registered, Repeated, Slotted, Static, WithAux

from treeviz.analysis.compare.map_mismatch import map_mismatches

pytestmark = pytest.mark.oldest_jax


class Texts(list):
    """A leaf for JAX."""


def random_tree(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([1, 2.5, None, "text", np.ones(2), (), [], {}, Texts([1]), Static("s"), Static("t")])
    child = partial(random_tree, rng, depth - 1)
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


def changed(rng: random.Random, tree: Any) -> Any:
    """The tree with a random subtree in the place of one of its own, mostly."""
    if rng.random() < 0.15 or type(tree) not in (list, tuple, dict, OrderedDict, Point, Layer, Registered):
        return random_tree(rng, rng.randrange(3)) if rng.random() < 0.6 else tree
    if isinstance(tree, list | Point | tuple):
        children = list(tree)
        if children:
            i = rng.randrange(len(children))
            children[i] = changed(rng, children[i])
        return type(tree)(*children) if type(tree) is Point else type(tree)(children)
    if isinstance(tree, dict):
        items = list(tree.items())
        rng.shuffle(items)
        if items and rng.random() < 0.8:
            items[0] = items[0][0], changed(rng, items[0][1])
        return type(tree)(items[rng.random() < 0.1 :])
    if type(tree) is Layer:
        return Layer(tree.name, changed(rng, tree.w), tree.b)
    return Registered(changed(rng, tree.x), tree.y)


def maps(*trees: Any, is_leaf: Any) -> bool:
    try:
        treedef = jax.tree.structure(trees[0], is_leaf=is_leaf)
        for tree in trees[1:]:
            treedef.flatten_up_to(tree)
    except (ValueError, TypeError, KeyError):
        return False
    return True


@pytest.mark.parametrize("seed", range(10))
def test_there_is_a_mismatch_exactly_where_jax_refuses(seed):
    rng = random.Random(seed)
    outcomes = []
    for _ in range(600):
        tree = random_tree(rng, 4)
        others = [changed(rng, tree) for _ in range(rng.choice([1, 1, 2]))]
        is_leaf = rng.choice([None, None, lambda x: x is None, lambda x: isinstance(x, tuple)])
        found = map_mismatches(tree, *others, is_leaf=is_leaf)
        outcomes.append(maps(tree, *others, is_leaf=is_leaf))
        assert (not found) == outcomes[-1], f"{tree}\n{others}\n{found}"
    assert 100 < sum(outcomes) < 500
