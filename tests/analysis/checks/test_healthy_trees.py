"""No rule warns of what libraries make: variables, states, models."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import treeviz as tv


def linen() -> Any:
    nn = pytest.importorskip("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            box = nn.with_partitioning(nn.initializers.ones, (None, "tp"))
            return nn.BatchNorm(use_running_average=False)(nn.Dense(4, kernel_init=box)(x))

    return Model().init(jax.random.key(0), jnp.ones((2, 3)))


def optax_states() -> Any:
    optax = pytest.importorskip("optax")
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return [params, optimizer.init(params), optax.inject_hyperparams(optax.adam)(learning_rate=1e-3).init(params)]


def nnx_model() -> Any:
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)

    return Model(nnx.Rngs(0))


def nnx_state() -> Any:
    model = nnx_model()
    return pytest.importorskip("flax.nnx").split(model)[1]


def train_state() -> Any:
    train = pytest.importorskip("flax.training.train_state")
    optax = pytest.importorskip("optax")
    params = linen()["params"]
    return train.TrainState.create(apply_fn=lambda x: x, params=params, tx=optax.adamw(1e-3))


def equinox_models() -> Any:
    eqx = pytest.importorskip("equinox")
    key = jax.random.key(0)
    return [eqx.nn.MLP(2, 2, 4, 1, key=key), eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode="ema")]


def static_of_equinox() -> Any:
    """What Lineax and others keep in their states: its static field is a list."""
    return pytest.importorskip("equinox.internal").Static({"a": 1, "f": jnp.sin})


def penzai() -> Any:
    pz = pytest.importorskip("penzai.pz")
    return pz.nn.Affine.from_config("a", jax.random.key(0), {"x": 3}, {"y": 4})


def haiku() -> Any:
    hk = pytest.importorskip("haiku")
    model = hk.transform(lambda x: hk.nets.MLP([3, 2])(x))
    return model.init(jax.random.key(0), jnp.ones((1, 3)))


ANY = [linen, optax_states, nnx_model, nnx_state, train_state, equinox_models, static_of_equinox, penzai, haiku]
STATES = [linen, optax_states, nnx_state, train_state, static_of_equinox, haiku]


@pytest.mark.parametrize(
    ("make", "use"),
    [*((make, "any") for make in ANY), *((make, "state") for make in STATES)],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_nothing_is_wrong_with_what_a_library_makes(make, use):
    found = tv.check(make(), for_=use, roundtrip=True, values=True)
    assert [str(each) for each in found if each.level != "info"] == []


def einsum_of_penzai() -> Any:
    """Its static fields are dicts."""
    return pytest.importorskip("penzai.pz").nn.NamedEinsum(({"a": "x"},), {"b": "x"})


@pytest.mark.parametrize("make", [static_of_equinox, einsum_of_penzai])
def test_what_an_installed_library_keeps_in_static_data_is_not_told_unless_the_tree_is_for_jit(make):
    assert [str(each) for each in tv.check([make()]) if each.code == "T102"] == []
    assert {each.level for each in tv.check([make()], for_="jit") if each.code == "T102"} == {"info"}


def test_the_variables_of_a_penzai_model_are_taken_out_as_penzai_does_it():
    pz = pytest.importorskip("penzai.pz")
    scope = {"tree": penzai(), "pz": pz}
    found = tv.check(scope["tree"], for_="jit")
    assert {each.code for each in found} == {"T132"}
    exec(found[0].fix, scope)
    assert not tv.check((scope["tree"], scope["variables"]), for_="jit")
    assert len(jax.tree.leaves(scope["variables"])) == len(found)


def test_a_variable_of_penzai_is_no_array_for_jax():
    variable = pytest.importorskip("penzai.pz").Parameter(value=jnp.ones(2), label="w")
    assert [(each.code, each.level) for each in tv.check([variable], for_="jit")] == [("T132", "error")]
    assert [each.level for each in tv.check([variable])] == ["info"]
    with pytest.raises(TypeError):
        jax.jit(lambda tree: tree)([variable])
