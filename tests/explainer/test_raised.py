"""What a function in a tree map was called with when it raised, and static arguments without a hash."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import pythons
from explained import explained, lines_of
from sample_nodes import AdamState

import treeviz as tv

pytestmark = pytest.mark.oldest_jax

x = jnp.ones(2)
target = {"actor": {"w": jnp.ones((3, 4))}, "critic": {"w": jnp.ones((3, 1))}}
online = {"actor": {"w": jnp.ones((3, 4))}, "critic": {"w": jnp.ones((4, 2))}}


def is_odd(number: int) -> int:
    if number == 3:
        raise ValueError("no")
    return number


def missing(leaf: Any) -> Any:
    return leaf.missing


# In `jax.tree.map`: what fails, and the line that says for which leaf.
MAPPED: dict[str, tuple[Callable[[], Any], str]] = {
    "flax#888: a soft update of a network with another head": (
        lambda: jax.tree.map(lambda t, o: 0.9 * t + 0.1 * o, target, online),
        "['critic']['w']: float32[3,1] and float32[4,2]",
    ),
    "a function of JAX": (lambda: jax.tree.map(jnp.add, [x, x], [x, jnp.ones(3)]), "[1]: float32[2] and float32[3]"),
    "equal numbers, which are one object": (lambda: jax.tree.map(is_odd, [1, 1, 3, 1]), "[2]: int 3"),
    "the first of equal numbers": (lambda: jax.tree.map(lambda n: n / 0, (1, 1, 1)), "[0]: int 1"),
    "a field of a named tuple": (
        lambda: jax.tree.map(missing, AdamState((), (), {"w": x})),
        ".nu['w']: float32[2]",
    ),
    "a leaf that is_leaf makes one": (
        lambda: jax.tree.map(missing, {"a": None, "b": x}, is_leaf=lambda y: y is None),
        "['a']: NoneType None",
    ),
    "with the path": (
        lambda: jax.tree_util.tree_map_with_path(lambda _, leaf, other: leaf @ other, [x, x], [x, jnp.ones(3)]),
        "[1]: float32[2] and float32[3]",
    ),
    "below jit": (
        lambda: jax.jit(lambda tree: jax.tree.map(missing, tree))({"deep": AdamState(x, x, x)}),
        "['deep'].count: float32[2]",
    ),
    "in the tree alone": (lambda: jax.tree.map(missing, x), "the root: float32[2]"),
}


@pytest.mark.parametrize("name", MAPPED)
def test_the_leaf_is_named_for_which_a_function_in_tree_map_raised(name):
    fail, expected = MAPPED[name]
    with pytest.raises(Exception) as raised, tv.explain_errors():
        fail()
    (note,) = raised.value.__notes__
    assert note == f"treeviz: the function that jax.tree.map calls raised:\n  {expected}"


def test_of_a_single_leaf_that_a_library_maps_over_nothing_is_said(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "solver_of_a_test.py"
    package.parent.mkdir()
    package.write_text("import jax\n\ndef solve(check, of):\n    return jax.tree.map(check, of)\n")
    monkeypatch.syspath_prepend(package.parent)
    solver = pytest.importorskip("solver_of_a_test")
    for of, notes in (
        (x, []),
        ({"w": x}, ["treeviz: in solver_of_a_test, the function that jax.tree.map calls raised"]),
    ):
        with pytest.raises(AttributeError) as raised, tv.explain_errors():
            solver.solve(missing, of)
        assert [note.partition(":\n")[0] for note in getattr(raised.value, "__notes__", [])] == notes


def test_the_function_runs_once_for_each_leaf_and_nothing_of_the_tree_again():
    seen: list[int] = []

    class Own(Exception):
        pass

    def fail(n: int) -> None:
        seen.append(n)
        if n == 2:
            raise Own

    def is_leaf(node: Any) -> bool:
        asked.append(node)
        return False

    asked: list[Any] = []
    with pytest.raises(Own) as raised, tv.explain_errors():
        jax.tree.map(fail, [0, 1, 2, 3], is_leaf=is_leaf)
    n_asked = len(asked)
    jax.tree.map(id, [0, 1, 2, 3], is_leaf=is_leaf)
    assert lines_of(raised.value) == ["[2]: int 2"] and seen == [0, 1, 2] and len(asked) == 2 * n_asked


QUIET = """
import jax, jax.numpy as jnp, treeviz as tv

step = jax.jit(lambda x: traced.append(0) or x + 1)
fixed = jax.jit(lambda x, config: x, static_argnums=1)
traced, w = [], {"a": {"w": jnp.ones(3)}}
failing = [
    lambda: jax.tree.map(lambda leaf: leaf.missing, w),
    lambda: w["a"]["w"] @ jnp.ones(4),
    lambda: fixed(1, [1]),
    lambda: jax.vmap(lambda a, b: 0)(w, jnp.ones(2)),
]
for fail in [lambda: None, *failing]:
    step(1.0)
    try:
        with tv.explain_errors():
            fail()
    except Exception as error:
        assert error.__notes__, error
assert len(traced) == 1
"""


def test_an_explained_error_has_no_function_traced_again(tmp_path):
    (tmp_path / "quiet.py").write_text(QUIET)
    command = [*pythons.command("jax"), str(tmp_path / "quiet.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_a_tree_of_a_library_is_said_to_be_one():
    optax = pytest.importorskip("optax")
    params, other = {"w": jnp.ones((2, 3))}, {"w": jnp.ones((3, 2))}
    tx = optax.adam(0.1)
    error = explained(lambda: tx.update(params, tx.init(other), params))
    assert error.__notes__[0].startswith("treeviz: in optax, the function that jax.tree.map calls raised:\n")
    assert lines_of(error) == ["['w']: float32[2,3] and float32[3,2]"]


def forward(params: Any, y: jax.Array) -> jax.Array:
    for layer in params["layers"]:
        y = jnp.tanh(y @ layer["w"] + layer["b"])
    return y


layers = [{"w": jnp.ones((3, 4)), "b": 1.0}, {"w": jnp.ones((5, 2)), "b": 1.0}]


def test_the_layer_is_named_whose_weight_does_not_fit():
    expected = ["y: float32[7,4]", "p['layers'][1]['w']: float32[5,2]"]
    loss = lambda p, batch: forward(p, batch).sum()
    given = {"layers": layers}, jnp.ones((7, 3))
    for call in (loss, jax.grad(loss), jax.jit(loss), jax.jit(jax.value_and_grad(loss))):
        y, w = lines_of(explained(lambda call=call: call(*given)))
        assert y == expected[0] and w in (expected[1], expected[1].replace("p", "given[0]", 1))
    per_example = ["y: float32[4]", "given[0]['layers'][1]['w']: float32[5,2]"]
    mapped = jax.vmap(loss, in_axes=(None, 0))
    assert lines_of(explained(lambda: mapped(*given))) == per_example


def test_an_array_in_several_places_is_named_in_two_and_one_in_no_tree_not_at_all():
    w, y = jnp.ones((3, 4)), jnp.ones(3)
    tied = {"a": w, "b": w}
    assert lines_of(explained(lambda: tied["b"] @ y)) == ["tied['a'] and tied['b']: float32[3,4]", "y: float32[3]"]
    error = explained(lambda: w @ y)
    assert not hasattr(error, "__notes__")
    assert lines_of(explained(lambda: jnp.concatenate([tied["a"], w[:, 0]])))[1:] == ["a computed array: float32[3]"]


def test_errors_of_the_user_in_a_layer_get_no_note():
    def check(params: Any) -> None:
        raise ValueError(f"no {params}")

    error = explained(lambda: check({"w": x}))
    assert not hasattr(error, "__notes__")


def test_variables_that_may_not_be_looked_at_are_left_out():
    class Lazy:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __repr__(self) -> str:
            raise RuntimeError

    def call(lazy: Any, params: Any) -> Any:
        cycle: list[Any] = [lazy]
        cycle.append(cycle)
        return params["w"] @ jnp.ones(3)

    assert lines_of(explained(lambda: call(Lazy(), {"w": x})))[0] == "params['w']: float32[2]"


def test_the_layer_of_an_equinox_model_is_named():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    for call in (
        lambda: jax.vmap(model)(jnp.ones((2, 5))),
        lambda: eqx.filter_jit(lambda model, y: jax.vmap(model)(y))(model, jnp.ones((2, 5))),
        lambda: eqx.filter_grad(lambda model, y: model(y).sum())(model, jnp.ones(5)),
    ):
        assert lines_of(explained(call)) == ["model.layers[0].weight: float32[4,3]", "x: float32[5]"]
    layer = eqx.nn.Linear(10, 8, key=jax.random.key(0))
    # equinox#205: the batch axis is not mapped
    assert lines_of(explained(lambda: layer(jnp.ones((10, 100))))) == ["x: float32[8,100]", "layer.bias: float32[8]"]


def test_the_layer_of_an_nnx_model_is_named_also_where_it_casts_its_weights():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, dtype: Any) -> None:
            rngs = nnx.Rngs(0)
            self.first, self.second = (nnx.Linear(n, 4, rngs=rngs, dtype=dtype) for n in (5, 3))

        def __call__(self, y: jax.Array) -> jax.Array:
            return self.second(self.first(y))

    for dtype, name in ((None, "float32"), (jnp.bfloat16, "bfloat16")):
        model = Model(dtype)
        for call in (lambda m: m(jnp.ones((2, 5))), nnx.jit(lambda m: m(jnp.ones((2, 5))))):
            error = explained(lambda call=call, model=model: call(model))
            assert [line.partition(".")[2] for line in lines_of(error)[1:]] == [f"second.kernel: {name}[3,4]"]
            assert lines_of(error)[0] == f"inputs: {name}[2,4]"


def test_neural_tangents_135_the_first_layer_of_stax_has_another_input():
    stax = pytest.importorskip("jax.example_libraries.stax")
    init, apply = stax.serial(stax.Dense(7), stax.Relu, stax.Dense(1))
    _, params = init(jax.random.PRNGKey(0), (-1, 1))
    assert lines_of(explained(lambda: apply(params, np.ones((4, 15), np.float32)))) == [
        "inputs: float32[4,15]",
        "params[0][0]: float32[1,7]",
    ]


class Holder:
    def __init__(self) -> None:
        self.layers = [{"w": None}]

    def sees(self, y: Any) -> Any:
        return y + self.layers[0]["w"]


def test_numpyro_1981_a_leaked_tracer_is_found_where_it_is_kept():
    state, holder = {"a": x, "inner": {"w": None}}, Holder()

    @jax.jit
    def leak(y):
        state["inner"]["w"] = holder.layers[0]["w"] = y * 2
        return y

    leak(x)
    step = jax.jit(lambda tree: jax.tree.map(jnp.add, tree, tree))
    fails = [
        ("state['inner']['w']", lambda: step(state)),
        ("holder.layers[0]['w']", lambda: jax.jit(lambda y: y + holder.layers[0]["w"])(x)),
        ("holder.layers[0]['w']", lambda: holder.sees(x)),
    ]
    for path, fail in fails:
        error = explained(fail)
        assert isinstance(error, jax.errors.UnexpectedTracerError)
        title, *lines = error.__notes__[0].splitlines()
        assert title.startswith("treeviz: tracers that leak at ") and title.endswith("instead of returning them:")
        assert f"  {path}: float32[2]" in lines


def test_flax_5489_a_graphdef_names_the_attributes_without_a_hash():
    nnx = pytest.importorskip("flax.nnx")
    if not hasattr(nnx, "static"):
        pytest.skip("a release of Flax without static attributes")

    class Inner(nnx.Module):
        def __init__(self):
            self.options = {"a": 1}

    class Model(nnx.Module):
        def __init__(self):
            self.layer, self.inner, self.sizes = nnx.Linear(2, 2, rngs=nnx.Rngs(0)), Inner(), nnx.static([1, 2])

    graphdef, state = nnx.split(Model())
    lines = lines_of(explained(lambda: jax.jit(lambda graphdef, state: state, static_argnums=0)(graphdef, state)))
    assert lines == [
        "argument 0.inner.options: dict {'a': 1}: make it a tuple of its items, or a frozen dataclass",
        "argument 0.sizes: list [1, 2]: make it a tuple",
    ]
    found = tv.check(graphdef, for_="jit")
    assert [(finding.code, finding.fix) for finding in found] == [
        ("T102", "model.inner.options = tuple(model.inner.options.items())  # in its class"),
        ("T102", "model.sizes = tuple(model.sizes)  # in its class"),
    ]
    assert [finding.level for finding in tv.check(graphdef)] == ["info"] * 2
    Model.__init__ = lambda self: setattr(self, "layer", nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    assert not tv.check(nnx.split(Model())[0], for_="jit")


# What is said of static arguments that have no hash: which, and what in it.


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
