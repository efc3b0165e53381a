"""What becomes of the buffers of a step's arguments: compared with which of them JAX deletes, and what it reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sample_nodes import Node

import treeviz as tv
from treeviz.steps.compiles import step_arguments as flattening
from treeviz.steps.compiles import step_arguments as program
from treeviz.tree.walk import scan

pytestmark = pytest.mark.oldest_jax


def arguments(step: Any, *args: Any, jit: Any = (), **kwargs: Any) -> Any:
    return tv.watch_compiles(jax.jit(step, **dict(jit))).arguments(*args, **kwargs)


def update(state, x, unused, *, mode="sum"):
    """`c` and `unused` are not read, not even by the function that is called with them."""

    @jax.jit
    def inner(w, c):
        return w - x.sum()

    return {"w": inner(state["w"], state["c"]), "b": state["b"].astype(jnp.bfloat16)}, x * 2


def test_what_is_reused_what_is_donated_in_vain_and_what_is_never_read_is_told_by_path():
    state = {"w": jnp.ones((3, 4)), "b": jnp.ones(4), "c": jnp.ones((3, 4)), "twin": jnp.ones((3, 4))}
    step = tv.watch_compiles(jax.jit(update, donate_argnums=0, static_argnames="mode", keep_unused=False))
    call = (state, jnp.ones(5), jnp.ones(2))
    view = step.arguments(*call, mode="mean")
    assert view.reused == {"state['w']": "result[0]['w']"}
    assert view.in_vain == {"state['b']": "no result is float32[4], result[0]['b'] is bfloat16[4]"}
    assert view.never_read == ["state['c']", "state['twin']", "unused"]
    assert "48 B of 64 B donated are reused · 1 donated, not reused · 3 never read" in view.text()
    (line,) = [line for line in view.text().splitlines() if "─ w " in line]
    assert "→ result[0]['w']" in line
    assert not state["w"].is_deleted()
    step(*call, mode="mean")
    assert {name for name, x in state.items() if x.is_deleted()} >= {"w"}
    assert not state["c"].is_deleted() and not state["twin"].is_deleted()
    assert step.arguments(*call, mode="mean").reused == view.reused  # arguments that are deleted have types


def test_one_result_takes_one_buffer_and_a_token_is_no_argument():
    def step(n, pair, x):
        jax.debug.print("{}", n, ordered=True)
        return pair[0] + pair[1] + n, x

    view = arguments(step, 2, (jnp.ones(3), jnp.ones(3)), x=1.0, jit={"donate_argnums": 1})
    assert view.reused == {"pair[0]": "result[0]"}
    assert view.in_vain == {"pair[1]": "the one result that is float32[3], result[0], takes another buffer"}
    assert view.never_read == []
    assert "nothing is donated" in arguments(lambda x: x, jnp.ones(2)).text()


def test_a_result_that_is_split_in_another_way_takes_no_buffer():
    mesh = Mesh(np.array(jax.devices()), ("d",))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("d",), ()))
    options = {"donate_argnums": 0, "in_shardings": split, "out_shardings": whole}
    view = arguments(lambda x: x + 1, jax.ShapeDtypeStruct((8,), jnp.float32), jit=options)
    assert view.in_vain == {"x": "result is float32[8], too, but lies as P(), and this as P('d')"}


def test_where_a_release_of_jax_tells_nothing_nothing_is_claimed(monkeypatch):
    def first(x, y):
        return x + 1

    options = {"donate_argnums": 0}
    monkeypatch.setattr(program, "arguments_read", lambda compiled: None)
    view = arguments(first, jnp.ones(3), jnp.ones(2), jit=options)
    assert (view.reused, view.in_vain, view.never_read) == ({}, {}, []) and "unknown if reused" in view.text()
    assert arguments(first, jnp.ones(3), jnp.ones(2), jit={**options, "keep_unused": True}).reused == {"x": "result"}


def test_the_cost_of_a_class_is_that_of_its_flatten_function_without_the_call_that_measures_it(monkeypatch):
    class Slow:
        pass

    now = [0.0]

    def flatten(_: Any) -> Any:
        now[0] += 3e-6
        return (1.0, 2.0), None

    jax.tree_util.register_pytree_node(Slow, flatten, lambda *_: Slow())
    registry = jax.tree_util.default_registry

    def flatten_one_level(node: Any) -> Any:
        now[0] += 0.1e-6
        return registry.flatten_one_level(node)

    monkeypatch.setattr(flattening, "perf_counter", lambda: now[0])
    monkeypatch.setattr(jax.tree_util, "default_registry", SimpleNamespace(flatten_one_level=flatten_one_level))
    found = flattening.measure_flattening(*scan([Slow(), {"x": Slow()}]))
    assert found is not None and found.us == pytest.approx(6.0)
    ((name, n, each_us),) = found.classes
    assert (name, n) == ("Slow", 2) and each_us == pytest.approx(3.0)


def test_what_flattening_costs_is_told_by_class():
    nodes = [Node(np.ones(2, np.float32)) for _ in range(3)]
    step = tv.watch_compiles(jax.jit(lambda nodes, x: x))
    found = step.arguments(nodes, 1.0).flattening
    assert [(each.name, each.n) for each in found.classes] == [("Node", 3)] and found.classes[0].each_us > 0
    assert found.us > 0 and f"flattening takes {found.us:.3g} µs a call, " in found.text and "Node 3 × " in found.text


def test_a_step_of_equinox_has_the_paths_of_its_own_arguments_and_results():
    eqx = pytest.importorskip("equinox")

    @eqx.filter_jit(donate="all-except-first")
    def step(x, state, unused, *, name):
        return {name: 2 * x[:2]}, [state["w"] + x, state["b"].astype(jnp.bfloat16)]

    state = {"w": jnp.ones(3), "b": jnp.ones(4), "n": 2}
    view = tv.watch_compiles(step).arguments(jnp.ones(3), state, np.ones(2), name="x")
    assert view.reused == {"state['w']": "result[1][0]"}
    assert view.in_vain == {"state['b']": "no result is float32[4], result[1][1] is bfloat16[4]"}
    assert view.never_read == ["unused"] and view.flattening is not None
    assert [row["buffer"] for row in view.table.leaves].count("static") == 2
    assert not state["w"].is_deleted()
    with pytest.raises(TypeError, match="treats shapes as static data: pass arrays"):
        tv.watch_compiles(step).arguments(jnp.ones(3), jax.ShapeDtypeStruct((3,), jnp.float32), 0, name="x")


def test_a_step_of_nnx_has_the_paths_of_the_modules_that_it_changes():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self):
            self.w, self.n, self.unused = nnx.Param(jnp.ones(3)), nnx.Variable(jnp.ones(())), nnx.Param(jnp.ones(2))

    def step(model, x):
        model.w[...] = model.w[...] + x
        model.n[...] = model.n[...] + 1
        return {"sum": x.sum()}

    model = Model()
    view = tv.watch_compiles(nnx.jit(step, donate_argnums=0)).arguments(model, jnp.ones(3))
    w, n = (f"model.{name}.value" for name in "wn")
    assert view.reused[w] == w and view.reused[n] == n
    assert not view.in_vain and view.flattening is None
    assert view.never_read == []
    assert model.n[...] == 1.0 and not model.w[...].is_deleted()


def test_a_step_of_another_library_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match=r"`Odd` was not returned by jax.jit.*pass the function to jax.jit itself"):

        class Odd:
            lower = None

            def __call__(self, x):
                return x

        tv.watch_compiles(Odd()).arguments(1.0)
