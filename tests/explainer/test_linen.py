"""What is said of variables that do not fit a Linen model: the leaf, and the input of its layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import treeviz as tv

nn = pytest.importorskip("flax.linen")
x = jnp.ones((2, 5))


class Model(nn.Module):
    normed: bool = False

    @nn.compact
    def __call__(self, y: jax.Array, train: bool = False) -> jax.Array:
        y = nn.Dense(4, name="encoder")(y)
        if self.normed:
            y = nn.BatchNorm(use_running_average=not train)(y)
        return nn.Dense(1)(y)


@pytest.fixture(scope="module")
def variables() -> Any:
    return Model(normed=True).init(jax.random.key(0), x)


def note_of(variables: Any, y: Any = x, *, model: Any = None, **kwargs: Any) -> list[str]:
    with pytest.raises(Exception) as raised, tv.explain_errors():
        (model or Model(normed=True)).apply(variables, y, **kwargs)
    (note,) = raised.value.__notes__
    return [line.strip() for line in note.removeprefix("treeviz: ").splitlines()]


def test_flax_2941_an_input_of_another_size(variables):
    assert note_of(variables, jnp.ones((2, 3))) == [
        "the parameters belong to a model with other shapes:",
        "['params']['encoder']['kernel']: float32[5,4]: the layer makes it (3, 4) for its input",
        "inputs of Dense: float32[2,3]",
    ]


def test_parameters_without_their_collection(variables):
    plain = Model().init(jax.random.key(0), x)["params"]
    assert note_of(plain, model=Model())[1] == (
        "['params']['encoder']['kernel']: not in the variables, which belong in it: pass {'params': variables}"
    )
    dense = nn.Dense(4)
    assert note_of(variables["params"]["encoder"], model=dense) == [
        "the variables must be a dict of collections:",
        "['kernel']: float32[5,4] in place of a collection: pass {'params': variables}",
        "['bias']: float32[4] in place of a collection: pass {'params': variables}",
    ]
    assert note_of({"params": {"params": variables["params"]["encoder"]}}, model=dense) == [
        "the variables must be a dict of collections:",
        "['params']['params']: the variables are nested twice: pass what is in ['params']",
    ]


def test_a_collection_that_is_not_there_and_one_that_may_not_change(variables):
    assert note_of({"params": variables["params"]})[:2] == [
        "the variables lack what the model needs:",
        "['batch_stats']['BatchNorm_0']['mean']: not in the variables, which have only 'params'",
    ]
    assert note_of(variables, train=True) == [
        "apply cannot change the variables:",
        "['batch_stats']['BatchNorm_0']['mean']: pass mutable=['batch_stats'] to apply, which returns it",
    ]


def test_a_layer_of_another_name_under_jit(variables):
    params = {**variables["params"]}
    params["head"] = params.pop("Dense_0")

    traced = SimpleNamespace(apply=jax.jit(Model(normed=True).apply))
    assert note_of({**variables, "params": params}, model=traced)[1:] == [
        "['params']['Dense_0']: ['params'] has only 'BatchNorm_0', 'encoder', 'head'",
        "inputs of Dense: float32[2,4]",
    ]
    part = {**params, "encoder": {"bias": params["encoder"]["bias"]}}
    assert note_of({**variables, "params": part})[1] == (
        "['params']['encoder']['kernel']: ['params']['encoder'] has only 'bias'"
    )


def test_an_embedding_whose_table_is_added_to_the_wrong_array():
    class Positions(nn.Module):
        @nn.compact
        def __call__(self, y: jax.Array) -> jax.Array:
            return y + self.param("table", nn.initializers.ones, (7, 5))

    given = Positions().init(jax.random.key(0), jnp.ones((7, 5)))
    assert note_of(given, jnp.ones((9, 5)), model=Positions()) == [
        "the arrays of the call that failed:",
        "y: float32[9,5]",
        "variables['params']['table']: float32[7,5]",
    ]
