"""A layer of a stack is found by what people write: in a view of a run and of the tree, with each library's names."""

from __future__ import annotations

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import treeviz as tv
from treeviz.inspector.panel import LiveBackend

N = 4


def of_nnx(as_state: bool):
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            make = nnx.split_rngs(splits=N)(nnx.vmap(lambda rngs: nnx.Linear(3, 3, rngs=rngs)))
            self.layers = nnx.Dict(a=make(rngs))

    definition, state = nnx.split(Model(nnx.Rngs(0)))
    layer, _ = nnx.split(nnx.Linear(3, 3, rngs=nnx.Rngs(0)))

    def loss(tree, x):
        layers = (tree if as_state else nnx.split(tree)[1])["layers"]["a"]
        return jnp.mean(lax.scan(lambda x, one: (jnp.tanh(nnx.merge(layer, one)(x)), None), x, layers)[0] ** 2)

    return loss, state if as_state else nnx.merge(definition, state), "layers/a/kernel[2]"


def of_linen():
    nn = pytest.importorskip("flax.linen")

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return jnp.tanh(nn.Dense(3, name="a")(x)), None

    scanned = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=N)
    model = scanned()
    params = model.init(jax.random.key(0), jnp.ones((2, 3)), None)
    return lambda params, x: jnp.mean(model.apply(params, x, None)[0] ** 2), params, "params/a/kernel[2]"


def of_equinox():
    eqx = pytest.importorskip("equinox")
    layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(3, 3, key=key))(jax.random.split(jax.random.key(0), N))

    def loss(tree, x):
        arrays, rest = eqx.partition(tree["layers"]["a"], eqx.is_array)

        def layer(x, one):
            return jnp.tanh(jax.vmap(eqx.combine(one, rest))(x)), None

        return jnp.mean(lax.scan(layer, x, arrays)[0] ** 2)

    return loss, {"layers": {"a": layers}}, "layers/a/weight[2]"


MODELS = {
    "a state of NNX": lambda: of_nnx(True),
    "a module of NNX": lambda: of_nnx(False),
    "Linen": of_linen,
    "Equinox": of_equinox,
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_layer_is_found_by_its_index_behind_the_name_of_its_array(model):
    loss, params, query = model()
    inspector = tv.GradientInspector()
    step = inspector.watch(jax.jit(jax.grad(loss)))
    for i in range(3):
        step(params, np.full((2, 3), i, np.float32))
    view = inspector.render()
    (row,) = view.find(query)
    array, key = row.parent.path, row.keystr
    assert row.kind == "layer" and key in inspector.history.sources["grads"].paths
    start, name = query.removesuffix("[2]").rsplit("/", 1)
    for other in (f"{name}[2]", f"{name}/2", f"{start[:-1]}*/{name}[2]", f"*/{name}[2]", f"/{array}[2]", key):
        assert view.find(other) == [row], other
    backend = LiveBackend(weakref.ref(inspector), panel=None, view=view)  # leads to the layer of any such tree
    assert backend.where(params, [row.number])[0].shape == (3, 3)
    assert [row.keystr for row in tv.render(params, stacked=f"{start}/*").find(query)] == [key]
