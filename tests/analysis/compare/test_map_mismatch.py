"""What refuses `jax.tree.map`, leaf by leaf: as JAX does, and with the right paths."""

from __future__ import annotations

import random
from typing import Any

import jax
import pytest
from own_thread import in_a_thread
from random_trees import changed, random_tree

from treeviz.analysis.compare.map_mismatch import map_mismatches

pytestmark = pytest.mark.oldest_jax


def maps(*trees: Any, is_leaf: Any) -> bool:
    try:
        treedef = jax.tree.structure(trees[0], is_leaf=is_leaf)
        for tree in trees[1:]:
            treedef.flatten_up_to(tree)
    except (ValueError, TypeError, KeyError):
        return False
    return True


@pytest.mark.parametrize("seed", range(10))
@in_a_thread
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
