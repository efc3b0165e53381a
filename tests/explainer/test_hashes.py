"""What is said of static arguments that have no hash: which, and what in it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explained import explained, lines_of

pytestmark = pytest.mark.oldest_jax

x = jnp.ones(2)


@dataclasses.dataclass(frozen=True)
class Config:
    layers: Any
    name: str = "mlp"


@dataclasses.dataclass
class Mutable:
    some_value: int = 1


class Const(NamedTuple):
    const: Any
    other: Any = 0


@dataclasses.dataclass
class Trainer:
    w: Any

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, y: jax.Array) -> jax.Array:
        return y


@functools.partial(jax.jit, static_argnames="config")
def do_stuff(data: Any, config: Any) -> Any:
    return data


def test_jax_3701_a_dataclass_that_is_not_frozen():
    config = Mutable()
    line = "argument config: Mutable: @dataclasses.dataclass(frozen=True) on Mutable"
    assert lines_of(explained(lambda: do_stuff(x, config=config))) == [line]
    assert lines_of(explained(lambda: do_stuff({"w": x}, config))) == [line.replace("config", "1", 1)]


def test_genjax_1179_a_list_inside_a_constant():
    config = Const((1, [2]), {"never": "reached"})
    assert lines_of(explained(lambda: do_stuff(x, config))) == [
        "argument 1.const[1]: list [2]: make it a tuple",
        "argument 1.other: dict {'never': 'reached'}: make it a tuple of its items, or a frozen dataclass",
    ]


def test_a_list_in_a_frozen_dataclass_and_an_array():
    config, w = Config([64, 64]), np.ones(3)
    assert lines_of(explained(lambda: do_stuff(x, config))) == ["argument 1.layers: list [64, 64]: make it a tuple"]
    (line,) = lines_of(explained(lambda: do_stuff(x, w)))
    assert line == "argument 1: float64[3]: pass it as an argument that is not static"


def test_a_list_that_is_written_out_and_one_in_a_function_that_jax_traces():
    expected = ["argument 1: list [1]: make it a tuple"]
    assert lines_of(explained(lambda: do_stuff(x, [1]))) == expected
    assert lines_of(explained(lambda: jax.jit(lambda y: do_stuff(y, [1]))(x))) == expected
    assert lines_of(explained(lambda: jax.jit(lambda y, c: y, static_argnums=1)(x, [1]))) == expected
    assert lines_of(explained(lambda: do_stuff.lower(x, [1]))) == expected


def test_a_method_whose_object_has_no_hash():
    trainer = Trainer(x)
    (line,) = lines_of(explained(lambda: trainer.step(x)))
    assert line.startswith("argument 0: Trainer: @dataclasses.dataclass(frozen=True)")


def test_no_hash_and_no_property_runs_and_what_cannot_be_told_is_left_unsaid():
    calls: list[str] = []

    class Own:
        def __hash__(self) -> int:
            calls.append("hash")
            raise TypeError("unhashable")

        @property
        def config(self) -> Any:
            calls.append("config")
            return [1]

    own = Own()
    error = explained(lambda: do_stuff(x, own))
    assert not hasattr(error, "__notes__")
    n = calls.count("hash")
    error = explained(lambda: do_stuff(x, own.config))
    assert not hasattr(error, "__notes__") and calls == ["hash"] * n + ["config"]


def test_an_array_in_the_static_data_of_a_node():
    @functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["table"])
    @dataclasses.dataclass
    class Model:
        w: Any
        table: Any

    step = jax.jit(lambda model: model.w)
    models = [Model(x, np.ones(3)) for _ in range(2)]

    def train(model: Any) -> Any:
        return step(model)

    train(models[0])
    error = explained(lambda: train(models[1]))
    if "metadata fields" in str(error):  # not before jax 0.5
        assert lines_of(error) == ["model: 1 hidden array (24 B) in static data: .table float64[3]"]
