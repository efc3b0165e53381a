"""What is said where a model is put together from parts, or a part of it replaced: `nnx.merge`, `eqx.tree_at`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from explained import explained, lines_of

x = jnp.ones(2)


class Net:
    """Failing calls of NNX."""

    def __init__(self) -> None:
        self.nnx = nnx = pytest.importorskip("flax.nnx")

        class Model(nnx.Module):
            def __init__(self, n: int) -> None:
                rngs = nnx.Rngs(0)
                self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs) for _ in range(n)])
                self.norm = nnx.BatchNorm(3, rngs=rngs)

        self.model = Model(2)
        self.graphdef, self.state = nnx.split(self.model)
        self.deeper, self.more = nnx.split(Model(3))
        _, self.params, self.rest = nnx.split(self.model, nnx.Param, ...)

    def merge(self, *states: Any) -> Any:
        return self.nnx.merge(self.graphdef, *states)

    def without_scale(self) -> Any:
        state = self.nnx.state(self.model)
        del state["norm"]["scale"]
        return state

    def tied(self) -> Any:
        nnx = self.nnx
        model = nnx.Dict(a=nnx.Linear(2, 2, rngs=nnx.Rngs(0)), b=nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
        model.b.kernel = model.a.kernel
        graphdef, state = nnx.split(model)
        del state["b"]
        return nnx.merge(graphdef, state)


OF_NNX: dict[str, tuple[Callable[[Net], Any], list[str]]] = {
    "a variable is missing": (
        lambda net: net.merge(net.without_scale()),
        ["['norm']['scale']: only in the graphdef: Param"],
    ),
    "in jit": (
        lambda net: jax.jit(lambda state: net.merge(state)(x))(net.without_scale()),
        ["['norm']['scale']: only in the graphdef: Param"],
    ),
    "the rest of a split is forgotten": (
        lambda net: net.merge(net.params),
        ["['norm']['mean']: only in the graphdef: BatchStat", "['norm']['var']: only in the graphdef: BatchStat"],
    ),
    "a state of a deeper model": (
        lambda net: net.merge(net.more),
        ["['layers'][2]: only in the state: 2 variables"],
    ),
    "a state of a model less deep": (
        lambda net: net.nnx.merge(net.deeper, net.state),
        ["['layers'][2]: only in the graphdef: 2 variables"],
    ),
    "a pure dict with another name": (
        lambda net: net.merge({"layers": net.state["layers"], "bn": {"scale": x}}),
        ["['norm']: only in the graphdef: 4 variables", "['bn']['scale']: only in the state: float32[2]"],
    ),
    "of a tied variable nothing is wanted twice": (
        lambda net: net.tied(),
        ["['b']['bias']: only in the graphdef: Param"],
    ),
    "a state twice": (
        lambda net: net.merge(net.params, net.rest, net.rest),
        ["['norm']['mean']: in 2 of the states", "['norm']['var']: in 2 of the states"],
    ),
    "flax#5494: None": (
        lambda net: net.merge(None),
        ["argument 1: NoneType None: pass what nnx.split or nnx.state returned"],
    ),
    "flax#5494: the model": (
        lambda net: net.merge(net.model),
        ["argument 1: Model: pass what nnx.split or nnx.state returned"],
    ),
    "states in a tuple": (
        lambda net: net.merge((net.params, net.rest)),
        ["argument 1: tuple of 2: pass each state as an argument, nnx.merge(graphdef, *states)"],
    ),
    "the state first": (
        lambda net: net.nnx.merge(net.state, net.graphdef),
        ["argument 0: State of 2", "argument 1: GraphDef"],
    ),
    "update with the state of a deeper model": (
        lambda net: net.nnx.update(net.model, net.more),
        ["['layers'][2]: only in the state: State of 2"],
    ),
}


@pytest.mark.parametrize("name", OF_NNX)
def test_states_that_are_not_of_a_model_of_nnx(name):
    fail, lines = OF_NNX[name]
    net = Net()
    assert lines_of(explained(lambda: fail(net))) == lines


class Eqx:
    """Failing calls of Equinox."""

    def __init__(self) -> None:
        self.eqx = eqx = pytest.importorskip("equinox")
        self.mlp = eqx.nn.MLP(2, 2, 4, 11, key=jax.random.key(0))

    def at(self, where: Callable, *replace: Any, **options: Any) -> Any:
        return self.eqx.tree_at(where, self.mlp, *replace, **options)


OF_EQUINOX: dict[str, tuple[Callable[[Eqx], Any], list[str]]] = {
    "None in two places": (
        lambda of: of.eqx.tree_at(lambda tree: tree[0], (None, {"a": None}, 1), True),
        [
            "[0]: None: pass is_leaf=lambda x: x is None to tree_at",
            "[1]['a']: None: pass is_leaf=lambda x: x is None to tree_at",
        ],
    ),
    "fewer than where chose": (
        lambda of: of.at(lambda mlp: (mlp.layers[0].weight, mlp.layers[1].bias), (x,)),
        [
            "where selected .layers[0].weight: float32[4,2]: replaced by float32[2]",
            "where selected .layers[1].bias: float32[4]: no replacement for it",
        ],
    ),
    "more than where chose": (
        lambda of: of.at(lambda mlp: [mlp.layers[0]], [x, 1]),
        ["where selected .layers[0]: Linear: replaced by float32[2]", "replace[1]: int 1: nothing to replace"],
    ),
    "an array for a sequence": (
        lambda of: of.at(lambda mlp: mlp.layers[:1], x),
        ["where selected .layers[0]: Linear", "replace: float32[2]: not a sequence"],
    ),
    "a static field": (
        lambda of: of.at(lambda mlp: [mlp.layers[0].bias, mlp.width_size], [x, 3]),
        ["its result[1]: int 4: a static field, or computed"],
    ),
    "a new array": (
        lambda of: of.at(lambda mlp: jnp.zeros(3), x),
        ["its result: float32[3]: a static field, or computed"],
    ),
    "a method of a leaf": (
        lambda of: of.at(lambda mlp: mlp.layers[1].weight.T, x),
        [".layers[1].weight: float32[4,4]: .T of a leaf is not one"],
    ),
    "a name that is not there": (
        lambda of: of.at(lambda mlp: mlp.layers[1].wieght, x),
        [".layers[1]: Linear, which has no 'wieght', but .weight, .bias"],
    ),
    "equinox#47: by the type of the leaves": (
        lambda of: of.eqx.tree_at(
            lambda tree: [leaf for leaf in jax.tree.leaves(tree) if of.eqx.is_array(leaf)], {"a": x, "b": 1}, [2]
        ),
        ["it selected 1 leaf first, and then 0", "['a']: float32[2]: selected by its value"],
    ),
    "a layer, and what is in it": (
        lambda of: of.at(lambda mlp: (mlp.layers[1], mlp.layers[1].bias, mlp.layers[11]), (x, x, x)),
        [".layers[1].bias: float32[4]: it is in .layers[1], which is replaced as a whole"],
    ),
}


@pytest.mark.parametrize("name", OF_EQUINOX)
def test_what_tree_at_cannot_replace(name):
    fail, lines = OF_EQUINOX[name]
    of = Eqx()
    assert lines_of(explained(lambda: fail(of))) == lines


def test_tree_at_is_not_blamed_for_what_a_function_does():
    of = Eqx()
    of_leaf = explained(lambda: of.at(lambda mlp: mlp.layers[0].bias, replace_fn=lambda leaf: leaf.nothing))
    assert lines_of(of_leaf) == [".layers[0].bias: float32[4]"]
    for fail in (lambda: of.at(lambda mlp: {}["a"], x), lambda: of.at(lambda mlp: mlp.layers[0].bias)):
        assert not hasattr(explained(fail), "__notes__")
