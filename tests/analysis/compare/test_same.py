"""Is what was restored, ported or renamed the same as what is there? Many cases are public threads that asked it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from sample_nodes import AdamState, Layer, Point

import treeviz as tv

pytestmark = pytest.mark.oldest_jax


class Empty(NamedTuple):
    pass


def differences(left: Any, right: Any, **options: Any) -> list[str]:
    return [str(each) for each in tv.diff(left, right, **options).differences]


def f32(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7


# The same tree in containers of other kinds


def saved(tree: Any, *, lists: bool = False, box: bool = False) -> Any:
    """What flax.serialization or Orbax without a target makes of a tree."""
    if isinstance(tree, np.ndarray):
        return {"value": tree.copy()} if box else tree.copy()
    if hasattr(tree, "_fields"):
        items = tree._asdict() or None
        return items and {name: saved(child, lists=lists, box=box) for name, child in items.items()}
    if isinstance(tree, list | tuple):
        children = [saved(child, lists=lists, box=box) for child in tree]
        return children if lists else {str(i): child for i, child in enumerate(children)}
    return {name: saved(child, lists=lists, box=box) for name, child in tree.items()}


PARAMS = {"w": f32(2, 3), "layers": [{"b": f32(i + 1)} for i in range(11)]}
STATE = AdamState(np.int32([3]), PARAMS, jax.tree.map(np.square, PARAMS)), Empty(), {"clip": Empty()}
CONTAINERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "flax#1432, named tuples as dicts": lambda: (STATE, saved(STATE)),
    "Orbax without a target": lambda: (STATE, saved(STATE, lists=True)),
    "Orbax of variables": lambda: (STATE, saved(STATE, box=True)),
    "a tuple for a named tuple": lambda: (Point(PARAMS, f32(2)), (saved(PARAMS, lists=True), f32(2))),
    "a class with fields": lambda: (Layer("n", PARAMS, [f32(2)]), {"w": saved(PARAMS), "b": [f32(2)]}),
    "keys that JSON made texts": lambda: ((f32(2), {"a": f32(3)}), {0: f32(2), 1: {"a": f32(3)}}),
}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("is_back", [False, True])
def test_containers_of_other_kinds_are_compared_by_field_and_position(name, is_back):
    pair = CONTAINERS[name]()
    leaves, treedef = jax.tree.flatten(pair[1])
    for changed in [None, *range(0, len(leaves), 5)]:
        new = [leaf + leaf.dtype.type(i == changed) for i, leaf in enumerate(leaves)]
        left, right = (treedef.unflatten(new), pair[0]) if is_back else (pair[0], treedef.unflatten(new))
        found = tv.diff(left, right).differences
        assert [each.kind for each in found] == ["type"] + ["value"] * (changed is not None), found
        if changed is not None:
            named = {row.keystr: leaf for row, leaf in zip(tv.walk(left).leaves, jax.tree.leaves(left), strict=True)}
            np.testing.assert_array_equal(named[found[1].path], (new if is_back else leaves)[changed])


def test_containers_that_differ_are_said_once_with_those_inside():
    (found,) = tv.diff(STATE, saved(STATE, lists=True)).differences
    assert str(found) == (
        "the root: type: tuple · 25 leaves → list · 25 leaves (also inside: 2 Empty → None, 1 AdamState → dict)"
    )


def test_what_has_no_name_in_common_is_not_compared_inside():
    """A list of two layers is no module of two arrays, and a dict has no order."""
    layers = [{"w": f32(2), "b": f32(2)}] * 2
    for left, right in (
        (layers, Layer("n", f32(2, 2), f32(2, 2))),
        ((f32(2), f32(2)), {"x": f32(2), "y": f32(2)}),
        (Point(f32(2), f32(2)), AdamState(f32(2), f32(2), f32(2))),
        (Point(f32(2), f32(2)), Layer("n", f32(2), f32(2))),
    ):
        assert [each.kind for each in tv.diff(left, right).differences] == ["type"]


def test_live_states_of_libraries_are_compared_with_what_they_save():
    """flax#1432 and flax#4423: as optax, Flax and NNX make them, and as they come back."""
    optax, nnx = pytest.importorskip("optax"), pytest.importorskip("flax.nnx")
    to_state_dict, freeze = (
        getattr(pytest.importorskip(f"flax.{module}"), name)
        for module, name in (("serialization", "to_state_dict"), ("core", "freeze"))
    )
    live = optax.adam(1e-3).init({"w": np.ones(3, np.float32)})
    raw = to_state_dict(live)
    raw["0"]["mu"]["w"] += 1
    assert differences(live, raw)[1:] == ["[0].mu['w']: value: 0 → 1 (at [0]; 3 of 3 differ)"]
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    values = jax.tree.map(np.asarray, nnx.to_pure_dict(state))
    changed = values | {"bias": values["bias"] + np.float32([0, 2, 0])}
    for mine in (*[model] * (len(jax.tree.leaves(model)) == 2), state, freeze(values)):  # a leaf in older versions
        assert [each.kind for each in tv.diff(mine, values).differences] == ["type"]
        for other in (changed, {name: {"value": x} for name, x in changed.items()}):
            found = tv.diff(mine, other).differences
            assert [each.kind for each in found] == ["type", "value"] and "bias" in found[1].path, found
