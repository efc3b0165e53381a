"""What is said below errors of libraries: where a checkpoint and a tree part, and an optimizer's trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_nodes import AdamState

import treeviz as tv

pytestmark = pytest.mark.oldest_jax

x = jnp.ones(2)


def note_of(fail: Callable[[], Any]) -> list[str]:
    with pytest.raises(Exception) as raised, tv.explain_errors():
        fail()
    (note,) = raised.value.__notes__
    return [line.strip() for line in note.removeprefix("treeviz: ").splitlines()]


def test_a_file_that_flax_cannot_restore_is_compared_with_its_target():
    serialization = pytest.importorskip("flax.serialization")
    box = pytest.importorskip("flax.struct").dataclass(type("Box", (), {"__annotations__": {"params": Any}}))
    stored = serialization.to_bytes({"box": box({"w": x, "bias": x}), "opt": [x, AdamState(x, x, x)]})
    target = {"box": box({"w": x, "b": x}), "opt": [x, AdamState(x, x, x), x]}
    assert note_of(lambda: serialization.from_bytes(target, stored)) == [
        "the restored tree does not match the target:",
        "['box']['params']['b']: only in the target: float32[2]",
        "['box']['params']['bias']: only in the file: float32[2]",
        "['opt']['2']: only in the target: float32[2]",
    ]


def test_a_class_of_the_users_that_restores_itself_does_not_cut_the_path(monkeypatch):
    serialization = pytest.importorskip("flax.serialization")
    box = type("Box", (), {"__init__": lambda self, inside: setattr(self, "inside", inside)})
    monkeypatch.setitem(serialization._STATE_DICT_REGISTRY, box, None)  # taken out again at the end
    serialization.register_serialization_state(
        box,
        lambda each: {"inside": serialization.to_state_dict(each.inside)},
        lambda each, state: box(serialization.from_state_dict(each.inside, state["inside"], name="inside")),
        override=True,
    )
    target = {"a": [box({"w": x})]}
    restore = lambda state: note_of(lambda: serialization.from_state_dict(target, state))[1:]
    assert restore({"a": {"0": {"inside": {"v": x}}}}) == [
        "['a']['0']['inside']['w']: only in the target: float32[2]",
        "['a']['0']['inside']['v']: only in the file: float32[2]",
    ]
    assert restore({"a": {"0": {"within": x}}}) == [
        "['a']['0']['inside']: only in the target: dict · 1 leaf",
        "['a']['0']['within']: only in the file: float32[2]",
    ]


def test_a_file_of_equinox_is_compared_with_the_tree_that_it_is_read_into(tmp_path):
    eqx = pytest.importorskip("equinox")
    path, title = tmp_path / "model.eqx", "the file does not match the tree:"
    eqx.tree_serialise_leaves(path, {"a": np.ones((2, 3)), "b": x, "n": 3})
    read = lambda like: note_of(lambda: eqx.tree_deserialise_leaves(path, like))
    assert read({"a": np.ones((2, 4)), "b": jnp.ones(2, jnp.bfloat16), "n": 3}) == [
        title,
        "['a']: shape: (2, 4) → (2, 3)",
        "['b']: dtype: bfloat16 → float32",
    ]
    assert read({"a": np.ones((2, 3)), "b": jnp.ones(4), "c": [x], "n": 3, "z": True}) == [
        title,
        "['b']: only in the tree: float32[4]",
        "['z']: only in the tree: bool[]",
    ]
    assert read([x, 1, 2, 3])[1:] == [
        "array 0: only in the file: float64[2,3]",
        "[2]: only in the tree: int64[]",
        "[3]: only in the tree: int64[]",
    ]


def test_an_update_of_an_optimizer_names_the_tree_that_is_wrong():
    optax = pytest.importorskip("optax")
    params = {"w": jnp.ones(3), "b": x}
    part = {"w": params["w"]}
    adam, chain = optax.adam(1e-3), optax.chain(optax.clip(1.0), optax.adam(1e-3))
    expected = {
        (adam, "params"): ["the updates do not match the params:", "['b']: only in the params: float32[2]"],
        (adam, "shape"): ["the updates do not match the params:", "['b']: shape: (4,) → (2,)"],
        (chain, "state"): ["updates and state[1][0].mu do not match:", "['b']: only in the updates: float32[2]"],
        (adam, "sgd"): ["the state belongs to another optimizer:", "state[0]: EmptyState, which has no 'mu'"],
        (chain, "adam"): [
            "the state belongs to another optimizer:",
            "state[1]: EmptyState, for a chain of 2 transformations",
        ],
    }
    calls = {
        "params": lambda update: update(part, adam.init(params), params),
        "shape": lambda update: update({**params, "b": jnp.ones(4)}, adam.init(params), params),
        "state": lambda update: jax.jit(update)(params, chain.init(part), params),
        "sgd": lambda update: update(params, optax.sgd(0.1).init(params), params),
        "adam": lambda update: update(params, adam.init(params), params),
    }
    for (optimizer, name), lines in expected.items():
        assert note_of(lambda name=name, optimizer=optimizer: calls[name](optimizer.update)) == lines
    assert note_of(lambda: optax.apply_updates(params, part)) == expected[adam, "params"]
    model = {**params, "act": jax.nn.relu}
    lines = note_of(lambda: adam.update(model, adam.init(params), model))
    assert [line.partition(":")[0] for line in lines] == [
        "updates and state[0].mu do not match",
        "['act']",
    ]
    lines = note_of(lambda: optax.sgd(0.1).update(model, optax.sgd(0.1).init(model), model))
    assert [line.partition(":")[0] for line in lines] == [
        "an optimizer accepts only arrays",
        "updates['act']",
        "params['act']",
    ]
    (found,) = note_of(lambda: adam.init({**params, "act": jax.nn.relu}))[1:]
    assert found.startswith("params['act']: ") and found.endswith("partition the tree (eqx.filter_jit does)")


def test_equinox_193_optax_says_what_its_arguments_are_and_when_it_calls_them():
    optax, eqx = pytest.importorskip("optax"), pytest.importorskip("equinox")
    params, sgd = {"w": x, "b": x}, optax.sgd(0.1)
    once = "it got dict of 2 leaves: for a function of one leaf, give lambda params: jax.tree.map(function, params)"
    assert note_of(lambda: optax.masked(sgd, lambda leaf: leaf.ndim > 1).init(params)) == [
        "optax calls mask once, with all parameters:",
        once,
    ]
    assert note_of(lambda: optax.multi_transform({"a": sgd}, lambda leaf: leaf.ndim and "a").init(params))[1] == once
    assert note_of(lambda: optax.masked({"w": True, "b": False}, sgd)) == [
        "optax takes inner first, then mask:",
        "inner: dict",
        f"mask: {type(sgd).__name__}",
    ]
    swapped = note_of(lambda: optax.multi_transform(lambda params: params, {"a": sgd}))
    assert swapped[0] == "optax takes transforms first, then param_labels:"
    model = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    labels = jax.tree.map(lambda leaf: "a", model)
    assert note_of(lambda: optax.multi_transform({"a": sgd}, labels).init(model)) == [
        "optax calls param_labels, since Linear is callable:",
        "param_labels: Linear of 2 leaves: give lambda _: param_labels",
    ]
    optax.multi_transform({"a": sgd}, lambda _: labels).init(model)


def test_brax_480_labels_of_an_optimizer_name_their_parameters():
    optax = pytest.importorskip("optax")
    params = {"policy": {"w": x, "b": x}, "value": [x, x]}
    optimizers = {"frozen": optax.set_to_zero(), "train": optax.sgd(0.1)}

    def init(labels: Any) -> list[str]:
        return note_of(lambda: optax.multi_transform(optimizers, labels).init(params))

    assert init({"policy": {"w": "train", "b": "freeze"}, "value": "trian"}) == [
        "labels of multi_transform that have no transformation:",
        "['policy']['b']: str 'freeze': none of 'frozen', 'train'",
        "['value']: str 'trian': none of 'frozen', 'train'",
    ]
    assert init(lambda params: jax.tree.map(lambda leaf: leaf.ndim, params))[1] == (
        "['policy']['b']: int 1: none of 'frozen', 'train'"
    )
    assert init({"policy": "train", "values": "frozen"}) == [
        "the labels of multi_transform do not match the params:",
        "['values']: only in the labels: str 'frozen'",
        "['value']: only in the params: list of 2",
    ]
    chain = optax.chain(optax.clip(1.0), optax.multi_transform(optimizers, {"policy": "train", "value": "frozen"}))
    other = {"policy": params["policy"], "critic": params["value"]}
    assert note_of(lambda: jax.jit(chain.update)(other, chain.init(params))) == [
        "the labels of multi_transform do not match the updates:",
        "['value']: only in the labels: str 'frozen'",
        "['critic']: only in the updates: list of 2",
    ]


def test_jax_31256_a_mask_with_boxes_that_the_updates_do_not_have():
    optax = pytest.importorskip("optax")
    params = {"w": x, "b": x}
    tx = optax.masked(optax.add_decayed_weights(0.1), {"w": (True,), "b": False})
    state = tx.init({"w": (x,), "b": x})
    assert note_of(lambda: tx.update(params, state, params)) == [
        "mask and updates do not match:",
        "['w']: leaf: a node: tuple → a leaf: float32[2]",
    ]


def test_orbax_a_checkpoint_with_other_names_of_its_parts(tmp_path):
    """MaxText#4372: a state of NNX against one of Linen."""
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "state", {"params": {"decoder": x}, "opt_state": [{"count": jnp.zeros(())}]})
    with ocp.StandardCheckpointer() as saver:
        lines = note_of(lambda: saver.restore(tmp_path / "state", {"model": {"decoder": x}}))
    assert [line.partition(" (")[0] for line in lines] == [
        "the checkpoint does not match the target:",
        "['model']: only in the target: dict · 1 leaf",
        "['opt_state']: only in the checkpoint: list · 1 leaf",
        "['params']: only in the checkpoint: dict · 1 leaf",
    ]
