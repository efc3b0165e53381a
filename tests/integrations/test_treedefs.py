"""The treedefs of libraries: the names that they hold, or that all classes of a library derive alike."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import treeviz


def _equinox() -> Any:
    eqx = pytest.importorskip("equinox")
    return [eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0)), eqx.nn.Linear(2, 3, use_bias=False, key=jax.random.key(0))]


def _flax() -> Any:
    struct = pytest.importorskip("flax.struct")
    core, nnx = pytest.importorskip("flax.core"), pytest.importorskip("flax.nnx")

    @struct.dataclass
    class Mixed:
        z: Any
        n: int = struct.field(pytree_node=False, default=3)
        a: Any = None

    linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    return [Mixed(z=1, a=2), core.FrozenDict({"b": {"c": 1}, "a": 2}), linear, nnx.state(linear)]


def _chex() -> Any:
    chex = pytest.importorskip("chex")

    @chex.dataclass
    class Sorted:
        b: Any
        a: Any

    return [Sorted(b=1, a=[2])]


def _penzai() -> Any:
    pz = pytest.importorskip("penzai.pz")
    return pz.unbind_params(pz.nn.Linear.from_config("x", jax.random.key(0), {"a": 2}, {"b": 3}))


@pytest.mark.parametrize("make", [_equinox, _flax, _chex, _penzai])
def test_the_paths_of_a_treedef_are_those_of_its_trees(make):
    tree = make()
    table = treeviz.walk(jax.tree.structure(tree))
    assert [row.keystr for row in table.leaves] == [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
