"""Why a call compiled again: a step is called in ways of which each is known to compile, or not to."""

from __future__ import annotations

import gc
import inspect
import logging
import threading
import weakref
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treeviz as tv
from treeviz.steps.compiles import watch
from treeviz.steps.compiles import watch as events

pytestmark = pytest.mark.oldest_jax

ONE = np.ones(2, np.float32)


@pytest.fixture(autouse=True)
def _made_before():
    """Other tests make their steps by the same lines."""
    watch._calls_of.clear()


def make_step() -> Any:
    @partial(jax.jit, static_argnames="mode", donate_argnums=0)
    def step(state, x, lr=1.0, *, mode="sum"):
        """Documented."""
        return jax.tree.map(lambda leaf: leaf + lr * x.sum(), state)

    return step


def said(step: Any) -> list[str]:
    return [f"{each.call} {each.why}: {'; '.join(map(str, each.differences))}" for each in step.compiles]


def test_each_call_that_compiles_again_says_why_and_those_that_do_not_say_nothing():
    step = tv.watch_compiles(make_step())
    committed = jax.device_put(jnp.ones(2), jax.devices()[0])
    step({"w": ONE}, ONE)
    step({"w": jnp.ones(2)}, ONE)  # a NumPy array is as good as one of JAX
    step({"w": ONE}, jnp.ones(3))
    step({"w": ONE}, ONE, 0.5)
    step({"w": ONE}, ONE, lr=0.5)
    step({"w": ONE}, ONE, 0.1)  # its value does not matter
    step({"w": ONE}, ONE, jnp.float32(0.1))
    step({"w": ONE}, ONE, 0.1, mode="mean")
    step({"w": ONE}, ONE, 0.1, mode="max")
    step({"w": ONE, "m": (ONE, None)}, ONE)
    step({"w": ONE, "m": (ONE, ONE)}, ONE)
    step({"w": ONE}, committed)
    with jax.default_matmul_precision("highest"):
        step({"w": ONE}, ONE)
    over_both = NamedSharding(Mesh(np.array(jax.devices()[:2]), "d"), PartitionSpec("d"))
    step({"w": ONE}, jax.device_put(ONE, over_both))
    assert said(step).pop().endswith(": x: sharding: committed to cpu:0 → committed to P('d') · cpu:0–1 (d=2)")
    assert said(step)[:-1] == [
        "1 first: ",
        "3 retrace: x: shape: (2,) → (3,)",
        "4 retrace: lr: only in the other: float 0.5",
        "5 retrace: lr: argument: by position → by keyword (pass it in one way)",
        "7 retrace: lr: weak type: weakly typed → not weakly typed",
        "8 retrace: mode: only in the other: str 'mean'",
        "9 retrace: mode: static: str 'mean' → str 'max'",
        "10 retrace: state['m']: only in the other: tuple · 1 leaf",
        "11 retrace: state['m'][1]: none: None → float32[2]",
        "12 recompile: x: sharding: not committed → committed to cpu:0",
        "13 retrace: jax_default_matmul_precision: setting: None → 'highest'",
    ]


def test_a_line_in_the_log_says_why(caplog):
    compiled = make_step()
    compiled({"w": ONE, "b": 0.0}, ONE)
    step = tv.watch_compiles(compiled)
    with caplog.at_level(logging.WARNING, "treeviz"):
        step({"w": ONE, "b": 0.0}, ONE)
        step(step({"w": ONE, "b": 0.0}, ONE), ONE)
    start, _, text = caplog.text.partition(" s: ")
    assert "call 3 of `step` traced and compiled again in " in start and caplog.text.count("\n") == 1
    assert text == "state['b']: weak type: weakly typed → not weakly typed\n"
    assert str(step.compiles) == caplog.messages[0]


def test_a_function_that_is_made_anew_is_told_from_one_that_is_called_for_the_first_time():
    def make():
        return tv.watch_compiles(jax.jit(lambda x: x + 1))

    first, second, other = make(), make(), make()
    for step, n in ((first, 2), (second, 2), (other, 3)):
        step(np.ones(n, np.float32))
    assert [each.compiles[0].why for each in (first, second, other)] == ["first", "new function", "first"]
    assert "make it once, outside the loop" in str(second.compiles)
    second.clear_cache()
    second(ONE)
    jax.clear_caches()
    second(ONE)
    assert [each.why for each in second.compiles] == ["new function", "first", "same"]
    assert "jax.clear_caches()" in str(second.compiles[-1])


def test_numbers_that_are_traced_are_no_reason_and_static_ones_are():
    step = tv.watch_compiles(jax.jit(lambda x, n, m=0: x + n + m, static_argnums=1, static_argnames="m"))
    step(1.0, 2)
    with jax.default_matmul_precision("highest"):
        step(2.0, 2)
    step(3.0, 3)
    step(4.0, 3, m=1)
    step(5.0, 3, m=2)
    jax.clear_caches()
    step(6.0, 3, m=2)
    assert [str(difference) for each in step.compiles for difference in each.differences] == [
        "jax_default_matmul_precision: setting: None → 'highest'",
        "n: static: int 2 → int 3 (a static argument)",
        "m: only in the other: int 1",
        "m: static: int 1 → int 2 (a static argument)",
    ]
    assert [each.why for each in step.compiles] == ["first", *["retrace"] * 4, "same"]


class Agent:
    @partial(jax.jit, static_argnums=(0, 2))
    def update(self, rate, n, x):
        return x * rate * n


@pytest.mark.parametrize(
    "step",
    [Agent().update, partial(Agent.update, Agent()), tv.watch_compiles(partial(Agent.update, Agent()))],
    ids=["a bound method", "a partial", "a partial that is watched"],
)
def test_of_a_bound_step_the_numbers_are_traced_or_static_as_in_the_function(step):
    jax.clear_caches()
    watched = tv.watch_compiles(step)
    assert [*inspect.signature(watched).parameters] == ["rate", "n", "x"]
    watched(1.0, 2, ONE)
    jax.clear_caches()
    watched(2.0, 2, ONE)
    watched(3.0, 3, ONE)
    watched(4.0, 3, np.ones(3, np.float32))
    assert said(watched) == [
        "1 first: ",
        "2 same: ",
        "3 retrace: n: static: int 2 → int 3 (a static argument)",
        "4 retrace: x: shape: (2,) → (3,)",
    ]
    assert {each.step for each in watched.compiles} == {"update"}
    assert watched.arguments(1.0, 2, ONE).table[1].keystr == "['rate']"
    (found,) = tv.forecast(step, 1.0, 2, jnp.float32(1), state_arg="rate")
    assert (found.path, found.kind) == ("rate", "weak type")


def test_numbers_that_a_step_of_nnx_takes_are_no_reason_and_static_ones_are():
    nnx = pytest.importorskip("flax.nnx")
    step = tv.watch_compiles(nnx.jit(lambda model, x, n: model(x) * n, static_argnums=2))
    other = tv.watch_compiles(nnx.jit(lambda model, x, n: model(x) * n))
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    for n in (1, 2):
        step(model, ONE, n)
        other(model, ONE, n)
        jax.clear_caches()
    assert [str(difference) for each in step.compiles for difference in each.differences] == [
        "n: static: int 1 → int 2 (a static argument)"
    ]
    assert [each.why for each in other.compiles] == ["first", "same"]


def test_a_number_that_becomes_an_array_is_the_reason_where_numbers_are_static():
    eqx = pytest.importorskip("equinox")
    step = tv.watch_compiles(eqx.filter_jit(lambda state, x: x + state["t"]))
    for t in (1.0, jnp.asarray(1.0), 2.0, 3, np.ones((), np.float32)):
        step({"t": t}, ONE)
    assert [str(difference) for each in step.compiles for difference in each.differences] == [
        "state['t']: static: float 1.0 → float32[] (a static argument)",
        "state['t']: static: float32[] → float 2.0 (a static argument)",
        "state['t']: static: float 2.0 → int 3 (a static argument)",
        "state['t']: weak type: weakly typed → not weakly typed",  # of the array before
    ]


class Named:
    """Its static data is a tuple of the names of its fields, and one of their values, as that of a module of NNX."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


jax.tree_util.register_pytree_node(
    Named,
    lambda node: ((), (("rngs",), tuple(vars(node)), tuple(vars(node).values()))),
    lambda aux, _: Named(**dict(zip(aux[1], aux[2], strict=True))),
)


def test_a_static_field_has_its_name_also_where_others_have_the_same_value():
    step = tv.watch_compiles(jax.jit(lambda model, x: x))
    for deterministic in (None, True):
        step(Named(deterministic=deterministic, rngs=None, use_bias=True, decode=False), ONE)
    assert [str(difference) for each in step.compiles for difference in each.differences] == [
        "model: static: deterministic = None → True"
    ]


class Keyed(dict):
    """Its static data is a tuple of the keys of its children, as that of a state of NNX."""


jax.tree_util.register_pytree_with_keys(
    Keyed,
    lambda node: ([(jax.tree_util.DictKey(key), node[key]) for key in sorted(node)], tuple(sorted(node))),
    lambda keys, children: Keyed(zip(keys, children, strict=True)),
)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"a": 1.0, "b": ONE}, {"b": ONE}, ["state['a']: only in the first: float 1.0"]),
        ({"b": ONE}, {"a": 1.0, "b": ONE}, ["state['a']: only in the other: float 1.0"]),
        (
            {"b": ONE, "c": ONE},
            {"a": 1.0, "b": ONE[:1]},
            [
                "state['b']: shape: (2,) → (1,)",
                "state['c']: only in the first: float32[2]",
                "state['a']: only in the other: float 1.0",
            ],
        ),
    ],
)
def test_children_that_have_names_are_compared_by_these(before, after, said):
    step = tv.watch_compiles(jax.jit(lambda state: 0))
    for state in (before, after):
        step(Keyed(state))
    assert sorted(str(difference) for each in step.compiles for difference in each.differences) == sorted(said)


def test_functions_that_one_factory_makes_of_others_are_not_the_same_made_anew():
    def make(function, times=1.0):
        return tv.watch_compiles(jax.jit(lambda x: function(x) * times))

    def recursive():
        def step(x, n=2):
            return step(x, n - 1) if n else x

        return tv.watch_compiles(jax.jit(step))

    made = [make(jnp.sin), make(lambda x: x + 1), make(lambda x: x - 1), make(lambda x: x - 1, 2.0)]
    for step in made:
        step(ONE)
    assert [step.compiles[0].why for step in made] == ["first"] * 4
    again = [recursive(), recursive()]
    for step in again:
        step(ONE)
    assert [step.compiles[0].why for step in again] == ["first", "new function"]


def test_a_watched_step_is_the_step():
    step, plain = tv.watch_compiles(make_step()), make_step()
    state = {"w": jnp.ones(2)}
    assert np.array_equal(step(state, ONE)["w"], [3, 3]) and state["w"].is_deleted()
    assert inspect.signature(step) == inspect.signature(plain)
    assert (step.__name__, step.__doc__) == ("step", "Documented.")
    assert step.eval_shape({"w": ONE}, ONE)["w"].shape == (2,)
    assert step.lower({"w": ONE}, ONE).as_text() == plain.lower({"w": ONE}, ONE).as_text()
    assert not tv.forecast(step, {"w": ONE}, ONE) and tv.watch_compiles(step) is step
    with pytest.raises((ValueError, RuntimeError), match="deleted"):  # the latter since jax 0.11
        step(state, ONE)
    x = jnp.ones(3)
    held = [weakref.ref(array) for array in (state.pop("w"), x, step({"w": jnp.asarray(ONE)}, x)["w"])]
    del x
    gc.collect()
    assert len(step.compiles) == 2 and [array() for array in held] == [None] * 3
    with pytest.raises(TypeError, match=r"`<lambda>` is not jitted: tv.watch_compiles\(jax.jit"):
        tv.watch_compiles(lambda x: x)

    class Model:
        step = tv.watch_compiles(jax.jit(lambda self, x: x * 2, static_argnums=0))

    assert np.array_equal(Model().step(ONE), [2, 2])


def test_what_another_thread_compiles_does_not_count():
    def compile_in(is_thread: bool) -> None:
        compiles = threading.Thread(target=lambda: jax.jit(lambda: 1.0).lower())
        (compiles.start if is_thread else compiles.run)()
        if is_thread:
            compiles.join()

    compile_in.lower = None  # so that it counts as jitted
    step = tv.watch_compiles(compile_in)
    for is_thread in (True, False, True):
        step(is_thread)
    assert [each.call for each in step.compiles] == [2]


@pytest.mark.parametrize("is_inside", [True, False])
def test_an_inspector_watches_it_and_its_own_programs_are_watched_too(is_inside):
    @jax.jit
    def update(w, x):
        return w - 0.1 * jax.grad(lambda w: (w * x).sum())(w)

    inspector = tv.GradientInspector(every=2)
    if is_inside:
        step: Any = inspector.watch(tv.watch_compiles(update))
    else:
        step = tv.watch_compiles(inspector.watch(update))
    w = jnp.ones(2)
    for _ in range(4):
        w = step(w, ONE)
    for _ in range(2):  # the program that measures, then the step itself
        w = step(w.astype(jnp.bfloat16), ONE)
    assert len(inspector.history) == 3
    assert [str(each).partition(" traced")[0] for each in step.compiles if each.why == "retrace"] == [
        "call 5 of `update, inspected`",
        "call 6 of `update`",
    ]
    assert [str(each) for each in step.compiles[-1].differences] == ["w: dtype: float32 → bfloat16"]


def test_a_release_of_jax_that_tells_nothing_costs_a_warning(monkeypatch):
    monkeypatch.setattr(events, "_KINDS", {})
    events.listener_problem.cache_clear()
    with pytest.warns(RuntimeWarning, match="the step runs, but is not watched: jax .* does not tell jax.monitoring"):
        step = tv.watch_compiles(jax.jit(lambda x: x + 1))
    events.listener_problem.cache_clear()
    assert np.array_equal(step(ONE), [2, 2]) and not step.compiles
