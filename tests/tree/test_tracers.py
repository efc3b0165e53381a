"""Traced values are shown with the type that JAX writes, and say where their shape is a shard's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import treeviz
from treeviz.tree.table import TreeTable

pytestmark = [
    pytest.mark.skipif(len(jax.devices()) < 8, reason="needs eight devices"),
    pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="this JAX has no explicit sharding"),
]


def mesh(kind: str) -> Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(getattr(jax.sharding.AxisType, kind),) * 2)


def seen(call, *args) -> tuple[TreeTable, str, str]:
    """The table and the line of what a call passes to the function that it gets, and its type as JAX writes it."""
    found = []

    def look(x):
        found.append((treeviz.walk({"w": x}), treeviz.render({"w": x}).text(), str(jax.typeof(x))))
        return x * 2

    with jax.set_mesh(mesh("Explicit" if call is explicit else "Auto")) as m:
        jax.eval_shape(lambda *args: call(look, m)(*args), *args)
    table, text, written = found[0]
    return table, text.splitlines()[-1], written


def explicit(look, m):
    return lambda x: look(jax.sharding.reshard(x, P("x", "y")))


def shard_mapped(look, m):
    return jax.shard_map(look, in_specs=P("x", "y"), out_specs=P("x", "y"))


def over_one_axis(look, m):
    return jax.shard_map(look, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})


def unchecked(look, m):
    return jax.shard_map(look, in_specs=P("x"), out_specs=P("x"), check_vma=False)


def inside_vmap(look, m):
    return jax.shard_map(jax.vmap(look), in_specs=P("x", "y"), out_specs=P("x", "y"))


def inside_grad(look, m):
    return shard_mapped(jax.grad(lambda x: look(x).sum()), m)


@pytest.mark.parametrize(
    ("call", "text", "axes"),
    [
        (explicit, "float32[8@x,16@y] tracer", ""),
        (shard_mapped, "float32[2,8]{V:(x,y)} tracer", "x, y"),
        (over_one_axis, "float32[2,16]{V:x} tracer", "x"),
        (unchecked, "float32[2,16] tracer", "x, y"),
        (inside_vmap, "float32[8]{V:(x,y)} tracer", "x, y"),
        (inside_grad, "float32[2,8]{V:(x,y)} tracer", "x, y"),
    ],
)
def test_a_tracer_is_shown_as_jax_writes_it(call, text, axes):
    table, line, written = seen(call, jax.ShapeDtypeStruct((8, 16), jnp.float32))
    assert text in line and text == f"{written} tracer"
    assert (f"  one shard of shard_map over {axes}" in line) == bool(axes)
    facts = table[1].facts
    assert (facts.dtype, facts.elements) == ("float32", np.prod(facts.shape))  # sizes and queries stay plain


def test_the_sharding_of_a_tracer_is_that_of_its_explicit_mesh():
    table, _, _ = seen(explicit, jax.ShapeDtypeStruct((8, 16), jnp.float32))
    assert table[1]["sharding"] == "P('x', 'y') · an abstract mesh (x=4, y=2)"
    assert (table[0]["device_bytes"], table[0]["devices"]) == (8 * 16 * 4 / 8, 8)


@pytest.mark.parametrize("call", [shard_mapped, unchecked])
def test_nothing_is_said_of_the_sharding_that_a_shard_or_the_compiler_has(call):
    table, _, _ = seen(call, jax.ShapeDtypeStruct((8, 16), jnp.float32))
    assert table[1].facts.sharding is None


def test_a_reference_shows_where_its_buffer_lies():
    x = jax.device_put(np.ones((8, 16), np.float32), NamedSharding(mesh("Auto"), P("x")))
    table = treeviz.walk([jax.new_ref(x), jax.new_ref(jnp.ones(2))])
    assert table[1]["sharding"] == "P('x') · cpu:0–7 (x=4, y=2)"
    assert [row["device_bytes"] for row in table] == [128 + 8, 128, 8]


def test_a_traced_reference_is_one():
    found = []
    jax.jit(lambda ref: found.append(treeviz.walk(ref)[0].facts))(jax.new_ref(jnp.ones((2, 3))))
    assert (found[0].aval, found[0].shape, found[0].dtype) == ("Ref{float32[2,3]}", (2, 3), "float32")


def test_the_memory_of_a_tracer_is_part_of_its_type():
    found = []

    def look(x):
        found.append(treeviz.walk(x)[0].facts.aval)
        return x

    place = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    jax.jit(look).eval_shape(jax.device_put(np.ones((2, 3), np.float32), place))
    assert found == ["float32<host>[2,3]"]
