"""Each kind of leaf has its own look and facts, and none is touched."""

from __future__ import annotations

import decimal
import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from sample_nodes import Special
from sample_trees import Level, MyDict, deleted, donated, module_level_function, scale

import treeviz
from treeviz.tree.facts import Facts

pytestmark = [pytest.mark.oldest_jax, pytest.mark.gpu]


def facts(leaf: Any) -> Facts:
    (row,) = treeviz.walk(leaf)
    assert row.is_leaf and row.facts.leaves == 1
    return row.facts


def column(leaf: Any, name: str) -> Any:
    return treeviz.walk(leaf)[0][name]


@pytest.mark.parametrize(
    ("make", "kind", "type_", "shape", "dtype"),
    [
        (lambda: jnp.ones((2, 3)), "array", "jax.Array", (2, 3), "float32"),
        (lambda: jnp.ones((2,), jnp.bfloat16), "array", "jax.Array", (2,), "bfloat16"),
        (lambda: np.ones((3, 4)), "numpy", "np.ndarray", (3, 4), "float64"),
        (lambda: np.ones(2, ">f4"), "numpy", "np.ndarray", (2,), ">f4"),
        (lambda: np.ones(2, ml_dtypes.float8_e5m2), "numpy", "np.ndarray", (2,), "float8_e5m2"),
        (lambda: np.ma.masked_array([1.0]), "numpy", "np.MaskedArray", (1,), "float64"),
        (lambda: np.float32(1), "scalar", "float32", (), "float32"),
        (lambda: 1.0, "scalar", "float", None, ""),
        (lambda: "text", "string", "str", None, ""),
        (lambda: b"bytes", "string", "bytes", None, ""),
        (lambda: jax.ShapeDtypeStruct((7, 8), jnp.int8), "shape only", "ShapeDtypeStruct", (7, 8), "int8"),
        (lambda: jax.random.key(0), "key", "PRNG key", (), "key<fry>"),
        (lambda: jax.random.split(jax.random.key(0), 3), "key", "PRNG key", (3,), "key<fry>"),
        (lambda: np.zeros(3, jax.dtypes.float0), "float0", "np.ndarray", (3,), "float0"),
        (deleted, "deleted", "jax.Array", (2, 2), "float32"),
        (donated, "deleted", "jax.Array", (2, 2), "float32"),
        (lambda: module_level_function, "function", "function", None, ""),
        (lambda: Special(1, 2), "opaque", "Special", None, ""),
        (lambda: MyDict(a=1), "opaque", "MyDict", None, ""),
        (lambda: {1, 2}, "opaque", "set", None, ""),
        (object, "opaque", "object", None, ""),
    ],
)
def test_a_leaf_says_what_it_is(make, kind, type_, shape, dtype):
    found = facts(make())
    assert (found.kind, found.type, found.shape, found.dtype) == (kind, type_, shape, dtype)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float4_e2m1fn"])
def test_narrow_dtypes_have_the_sizes_that_jax_gives_them(name):
    if not hasattr(jnp, name):
        pytest.skip(f"this jax has no {name}")
    x = jnp.zeros((3, 4), getattr(jnp, name))
    assert facts(x)[2:7] == (True, 1, 12, x.nbytes, (3, 4))
    assert facts(x).dtype == name


def test_weak_types_are_marked():
    assert facts(jnp.array(1.0)).weak
    assert column(jnp.array(1.0), "dtype") == "~float32"
    assert not facts(jnp.float32(1.0)).weak


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (0.1, "0.1"),
        (True, "True"),
        (-0.0, "-0.0"),
        (1j, "1j"),
        (float("nan"), "nan"),
        pytest.param(10**5000, "<int of 16,610 bits>", id="a huge int"),
        (np.int8(-128), "-128"),
        (np.bool_(True), "True"),
        (Level.LOW, "Level.LOW"),
        (decimal.Decimal("1.50"), "Decimal('1.50')"),
        ("a\x1b</b>", r"'a\x1b</b>'"),
        pytest.param("x" * 10_000_000, f"'{'x' * 119}… (10,000,000 characters)", id="10 MB"),
        ("\x00" * 50, "'" + r"\x00" * 29 + "\\x0… (50 characters)"),
        (b"\x00\xff", r"b'\x00\xff'"),
        (len, "len"),
        (jnp.float32, "jax.numpy.float32"),
        (np.dtype("f4"), "float32"),
    ],
)
def test_a_value_that_costs_nothing_is_shown(leaf, text):
    assert facts(leaf).text == text


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype([("a", "i4"), ("b", "f8")]),
        np.dtype(object),
        np.dtype("U3"),
        np.dtype("M8[s]"),
        np.dtype("S2"),
        np.dtype("V3"),
    ],
)
def test_numpy_arrays_that_jax_does_not_take_count_as_bytes_but_not_as_parameters(dtype):
    x = np.zeros((2, 2), dtype)
    found = facts(x)
    assert (found.kind, found.elements, found.bytes, found.text) == ("numpy", 0, x.nbytes, "not a JAX dtype")


@pytest.mark.parametrize("dtype", [">f4", ">i2", np.longdouble, np.clongdouble])
def test_numbers_whose_bytes_jax_does_not_know_are_said_to_be_none_of_its_dtypes(dtype):
    assert facts(np.zeros((2, 2), dtype))[4:7] == (4, 4 * np.dtype(dtype).itemsize, (2, 2))
    assert facts(np.zeros((2, 2), dtype)).text == "not a JAX dtype"
    with pytest.raises(TypeError):
        jax.jit(lambda x: x)(np.zeros((2, 2), dtype))


def test_a_masked_array_is_said_to_be_one():
    assert facts(np.ma.masked_array([1.0, 2.0], [0, 1])).text == "masked: not accepted by JAX"


def test_functions_show_their_name_file_and_line():
    line = module_level_function.__code__.co_firstlineno
    for function in (
        module_level_function,
        jax.jit(module_level_function),
        functools.partial(module_level_function, 1),
        jax.custom_jvp(module_level_function),
    ):
        text = facts(function).text
        assert "module_level_function" in text
        assert text.endswith(f"tests/sample_trees.py:{line}")


def test_closures_show_what_they_captured():
    assert facts(scale(jnp.ones(3))).static == (("factor", "float32[3] (12 B)"),)
    assert facts(functools.partial(module_level_function, np.ones(2), k=1)).static == (
        ("argument 0", "float64[2] (16 B)"),
        ("k", "1"),
    )


def tracers() -> dict[str, tuple[Any, ...]]:
    """The facts of a tracer under each transformation."""
    seen: dict[str, tuple[Any, ...]] = {}

    def look(name):
        def f(x):
            found = facts(x)
            seen[name] = (found.kind, found.shape, found.dtype, found.text)
            return x * 1.0

        return f

    x = jnp.ones((4, 3))
    jax.jit(look("jit"))(x)
    jax.vmap(look("vmap"))(x)
    jax.grad(lambda x: look("grad")(x).sum())(x)
    jax.jvp(look("jvp"), (x,), (x,))
    jax.lax.scan(lambda carry, y: (carry, look("scan")(y)), 0.0, x)
    jax.make_jaxpr(look("make_jaxpr"))(x)
    jax.eval_shape(look("eval_shape"), x)
    return seen


def test_tracers_show_their_shape_and_dtype_and_what_traces_them_and_no_value():
    seen = tracers()
    assert {name: found[:3] for name, found in seen.items()} == {
        "jit": ("tracer", (4, 3), "float32"),
        "vmap": ("tracer", (3,), "float32"),
        "grad": ("tracer", (4, 3), "float32"),
        "jvp": ("tracer", (4, 3), "float32"),
        "scan": ("tracer", (3,), "float32"),
        "make_jaxpr": ("tracer", (4, 3), "float32"),
        "eval_shape": ("tracer", (4, 3), "float32"),
    }
    assert seen["vmap"][3] == "mapped by vmap: the shape of one example"
    assert seen["jit"][3] == "traced for jit"
    assert all(found[3] for found in seen.values())


def test_a_leaked_tracer_can_be_looked_at():
    leaked = []
    jax.jit(lambda x: leaked.append(x) or x)(1.0)
    assert facts(leaked[0]).kind == "tracer"


def test_a_reference_shows_shape_and_dtype():
    if not hasattr(jax, "new_ref"):
        pytest.skip("this jax has no references")
    found = facts(jax.new_ref(jnp.zeros((2, 3))))
    assert (found.kind, found.shape, found.dtype, found.elements, found.bytes) == ("ref", (2, 3), "float32", 6, 24)


def test_a_key_has_bytes_and_no_parameters():
    key = jax.random.split(jax.random.key(0), 3)
    assert (facts(key).elements, facts(key).bytes) == (0, jax.random.key_data(key).nbytes)


def test_an_array_that_claims_to_be_huge_is_described_and_not_made():
    x = np.broadcast_to(np.float32(1), (100_000, 100_000))
    assert (facts(x).elements, facts(x).bytes) == (10**10, 4 * 10**10)
    assert column(jax.ShapeDtypeStruct((10**10, 10**10), jnp.float32), "bytes") == 4e20


def test_symbolic_dimensions_are_shown_by_name():
    if jax.__version_info__ < (0, 5):
        pytest.skip("older releases need flatbuffers for this")
    from jax import export

    n, m = export.symbolic_shape("n, 2*m")
    table = treeviz.walk(jax.ShapeDtypeStruct((n, m, 3), jnp.float32))
    assert table[0].shape == ("n", "2*m", 3)
    assert table[0]["shape"] == "(n, 2*m, 3)"
    assert table.find("shape:*,*,3") and not table.find("shape:>2,*,3")


def test_a_generator_is_a_leaf_and_no_reason_for_a_warning():
    assert facts(x for x in ()).kind == "opaque"


def test_leaves_that_look_alike_share_their_facts():
    table = treeviz.walk([jnp.ones((2, 3)) for _ in range(50)] + [np.ones(2)] * 3 + [0.5] * 3)
    assert len(table.facts) == len(set(table.facts)) == 4
