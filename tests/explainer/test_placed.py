"""What is said below errors of calls that lay specs over trees, and of arrays that are gone: the leaves, by path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explained import explained, lines_of
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sample_nodes import AdamState

import treeviz as tv

needs_new = pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="this JAX keeps the trees elsewhere")
mesh = Mesh(np.array(jax.devices()[:4]), "d")
whole, parts, of_columns = (NamedSharding(mesh, spec) for spec in (P(), P("d"), P(None, "d")))
of_turned = NamedSharding(Mesh(mesh.devices[::-1], "d"), P("d"))
params = {"w": np.ones((4, 3), np.float32), "b": np.zeros(3, np.float32)}
x = np.ones((4, 2), np.float32)


def weights(tree: Any, *_: Any) -> Any:
    return tree["w"]


def same(tree: Any) -> Any:
    return tree


def mapped(function: Callable, in_specs: Any, out_specs: Any = None) -> Callable:
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs or P())


def on_devices(*devices: int) -> list[jax.Array]:
    return [jax.device_put(x, jax.devices()[device]) for device in devices]


def compiled(tree: Any) -> Callable:
    return jax.jit(same).lower(tree).compile()


adam = AdamState(x, params, params)
FAILURES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "jit: a sharding too few": (
        lambda: jax.jit(weights, in_shardings=(whole,))(params, (x, x)),
        ["[1][0]: float32[4,2]: no spec", "[1][1]: float32[4,2]: no spec"],
    ),
    "jit: a sharding too many, beside a static argument": (
        lambda: jax.jit(weights, in_shardings=(whole, None), static_argnums=1)(params, "fast"),
        ["[1]: None: a spec without an argument"],
    ),
    "jit: a dict for a tuple of one": (
        lambda: jax.jit(weights, in_shardings={"w": whole, "b": whole})(params),
        ["the root: it must be a tuple with one spec for each argument: put it into a tuple, in_shardings=(…,)"],
    ),
    "jit: in_shardings that do not divide": (
        lambda: jax.jit(weights, in_shardings=({"w": parts, "b": parts}, whole))(params, x),
        ["tree['b']: size: axis 0 has 3 (not divisible by 4 of 'd')"],
    ),
    "jit: out_shardings of an array with fewer axes": (
        lambda: jax.jit(same, out_shardings={"w": parts, "b": of_columns})(params),
        ["result['b']: axis: P(None, 'd') → float32[3] (it has 1 axis)"],
    ),
    "jit: out_shardings of another length": (
        lambda: jax.jit(lambda y: (y, y, y), out_shardings=(whole, whole))(x),
        ["the root: length: 2 children → 3 children"],
    ),
    "device_put: a sharding that does not divide": (
        lambda: jax.device_put({"a": x, **params}, {"a": parts, "w": parts, "b": parts}),
        ["['b']: size: axis 0 has 3 (not divisible by 4 of 'd')"],
    ),
    "with_sharding_constraint": (
        lambda: jax.jit(lambda p: jax.lax.with_sharding_constraint(p, {"w": whole, "b": of_columns}))(params),
        ["['b']: axis: P(None, 'd') → float32[3] (it has 1 axis)"],
    ),
    "jit: arrays on several devices": (
        lambda: jax.jit(jnp.add)(*on_devices(1, 0)),
        ["argument 0: float32[4,2], on device 1", "argument 1: float32[4,2], on device 0"],
    ),
    "jit: one array on another device": (
        lambda: jax.jit(lambda state: state[0] + state[1] + state[2])(on_devices(1, 0, 1)),
        ["argument 0[1]: float32[4,2], on device 0", "the other 2 on device 1"],
    ),
    "jit: arrays on the same devices in another order": (
        lambda: jax.jit(jnp.add)(jax.device_put(x, parts), jax.device_put(x, of_turned)),
        ["argument 0: float32[4,2], on devices 0, 1, 2, 3", "argument 1: float32[4,2], on devices 3, 2, 1, 0"],
    ),
    "shard_map: a spec too few": (
        lambda: mapped(weights, (P(),))(params, x),
        ["[1]: float32[4,2]: no spec"],
    ),
    "shard_map: a key that in_specs lacks": (
        lambda: mapped(weights, ({"w": P()}, P()))(params, x),
        ["[0]['b']: only in the tree: float32[3]"],
    ),
    "shard_map: an axis that is not divisible": (
        lambda: mapped(weights, ({"w": P("d"), "b": P("d")}, P()))(params, x),
        ["[0]['b']: size: axis 0 has 3 (not divisible by 4 of 'd')"],
    ),
    "shard_map: an axis that the mesh lacks": (
        lambda: mapped(weights, ({"w": P("data"), "b": P()},))(params),
        ["[0]['w']: axis: the mesh axis 'data' (the mesh has 'd')"],
    ),
    "shard_map: a name among the arrays": (
        lambda: mapped(weights, P())({"w": x, "name": min}),
        ["[0]['name']: builtin_function_or_method min: make it static, or partition the tree (eqx.filter_jit does)"],
    ),
    "shard_map: a key that out_specs lacks": (
        lambda: mapped(same, (P(),), {"w": P()})(params),
        ["['b']: in the tree, but not in the prefix"],
    ),
    "shard_map: out_specs of an array with fewer axes": (
        lambda: mapped(same, (P(),), {"w": P(), "b": P(None, "d")})(params),
        ["['b']: axis: P(None, 'd') → float32[3] (it has 1 axis)"],
    ),
    "pmap: sizes": (
        lambda: jax.pmap(weights)(params, x),
        ["[0]['b']: size: axis 0 has 3 (2 leaves have 4, such as [0]['w'])"],
    ),
    "pmap: a key that in_axes lacks": (
        lambda: jax.pmap(weights, in_axes=({"w": 0}, 0))(params, x),
        ["[0]['b']: only in the tree: float32[3]"],
    ),
    "pmap: out_axes": (
        lambda: jax.pmap(same, out_axes={"w": 0})({"w": x, "b": x}),
        ["['b']: in the tree, but not in the prefix"],
    ),
    "pmap: more than there are devices": (
        lambda: jax.pmap(same)({"w": np.ones((1_000, 2), np.float32)}),
        ["[0]['w']: float32[1000,2]: axis 0 has 1,000"],
    ),
    "vmap: an axis of the result": (
        lambda: jax.vmap(same, out_axes={"w": 0, "b": 3})({"w": x, "b": x}),
        ["['b']: axis: 3 → float32[2] (mapped, it has 2 axes)"],
    ),
    "vmap: a name in the result": (
        lambda: jax.vmap(lambda y: {"y": y, "name": min})(x),
        ["result['name']: builtin_function_or_method min: make it static, or partition the tree (eqx.filter_jit does)"],
    ),
    "scan: a function in what the body returns": (
        lambda: jax.lax.scan(lambda c, y: (c, {"y": y, "f": min}), 0, x),
        ["result[1]['f']: builtin_function_or_method min: make it static, or partition the tree (eqx.filter_jit does)"],
    ),
    "scan: a number among the arrays": (
        lambda: jax.lax.scan(lambda c, y: (c, y), 0, {"a": x, "b": 1.0}),
        ["xs['b']: float 1.0"],
    ),
    "associative_scan: lengths": (
        lambda: jax.lax.associative_scan(jnp.add, {"a": x, "b": x[:3], "c": x}),
        ["['b']: float32[3,2]"],
    ),
    "jax#39297: a step that was compiled for another structure": (
        lambda: compiled(adam)(adam._replace(nu={"w": x})),
        [
            "args[0].nu['b']: only in the compiled: float32[3]",
            "args[0].nu['w']: shape: (4, 3) → (4, 2)",
        ],
    ),
}


@needs_new
@pytest.mark.parametrize("name", FAILURES)
def test_an_error_names_the_leaves_that_do_not_fit(name):
    fail, expected = FAILURES[name]
    assert lines_of(explained(fail)) == expected


def deleted(tree: Any) -> Any:
    for leaf in jax.tree.leaves(tree):
        leaf.delete()
    return tree


@pytest.mark.oldest_jax
def test_an_array_that_was_donated_is_named_as_in_the_call_that_compiled_code_raised_in():
    class Run:
        pass

    step = jax.jit(lambda state, y: jax.tree.map(jnp.sin, state), donate_argnums=0)
    run, state, y = Run(), {"w": jnp.ones(3), "b": jnp.ones(3)}, jnp.ones(2)
    run.state = step(state, y)  # type: ignore[attr-defined]
    state["b"] = run.state["b"]  # type: ignore[attr-defined]
    assert lines_of(explained(lambda: step(state, y))) == ["state['w']: float32[3]"]
    deleted(run.state)  # type: ignore[attr-defined]
    assert lines_of(explained(lambda: step(state=run.state, y=y)))  # its arguments are known
    assert lines_of(explained(lambda: run.state["w"] + y.sum())) == ["run.state['w']: float32[3]"]
    assert lines_of(explained(lambda: [jnp.exp(run.state["b"] * 2)])) == ["run.state['b']: float32[3]"]


@pytest.mark.oldest_jax
def test_nothing_runs_again_where_the_caller_is_searched_for_deleted_arrays():
    calls = []

    class Run:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return state

        def __getitem__(self, key: Any) -> Any:
            calls.append(key)
            return state

    run, state = Run(), {"w": deleted(jnp.ones(3))}
    error = explained(lambda: run.first["w"] + run[0]["w"])
    assert calls == ["first", 0] and not hasattr(error, "__notes__")

    def fail(state: Any) -> None:
        raise RuntimeError("the file has been deleted")

    error = explained(lambda: fail({"a": 1}))
    assert not hasattr(error, "__notes__")
    with pytest.raises(RuntimeError) as raised, tv.explain_errors():
        exec(compile("run.first['w'] + 1", "no file", "exec"), {"run": run})
    assert not hasattr(raised.value, "__notes__")


def test_an_array_that_is_donated_and_given_again_is_named_in_both_places():
    step = jax.jit(lambda state, y: jax.tree.map(lambda leaf: leaf + y, state), donate_argnums=0)
    w, y = jnp.ones(8), jnp.ones(8)
    state = {"params": {"w": w}, "init": {"w": w}}
    assert lines_of(explained(lambda: step(state, 1.0))) == ["state['params']['w']: float32[8], as state['init']['w']"]
    assert lines_of(explained(lambda: step(y, y))) == ["y: float32[8], given twice"]


def test_a_deleted_array_in_a_module_of_nnx_has_its_name_in_the_module():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    model.bias.get_value().delete()
    (line,) = lines_of(explained(lambda: nnx.jit(lambda model, y: model(y))(model, jnp.ones((1, 2)))))
    assert line.startswith("model.bias") and line.endswith(": float32[2]")


def test_a_compiled_step_names_the_arguments_that_lie_elsewhere():
    state = {"w": jax.device_put(x, parts), "b": jax.device_put(x, whole), "unused": jax.device_put(x, parts)}
    step = jax.jit(lambda state: {name: state[name] + 1 for name in ("w", "b")}).lower(state).compile()
    moved = {**state, "w": jax.device_put(x, whole), "unused": jax.device_put(x, whole)}
    (line,) = lines_of(explained(lambda: step(moved)))
    assert line.startswith("args[0]['w']: sharding: committed to P('d')") and "→ committed to P()" in line
    error = explained(lambda: step({**state, "w": moved["w"], "unused": moved["w"]}))
    assert not hasattr(error, "__notes__")  # which of the two the program reads is not known
    (line,) = lines_of(explained(lambda: step({**state, "b": jax.device_put(x, jax.devices()[1])})))
    assert line.startswith("args[0]['b']: sharding: committed to P()") and line.endswith("→ committed to cpu:1")
