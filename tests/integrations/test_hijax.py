"""A value of a type that was registered with `jax.experimental.hijax` is a leaf that JAX takes, and hides nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from sample_trees import quantized

import treeviz as tv

hijax = pytest.importorskip("jax.experimental.hijax", reason="this jax has no hijax types")
if not hasattr(hijax, "register_hitype"):
    pytest.skip("this jax registers hijax types otherwise", allow_module_level=True)


def test_it_is_a_leaf_of_its_own_kind_with_its_type_and_the_arrays_in_it():
    tree = {"q": quantized(3), "x": jnp.ones(2)}
    row = tv.walk(tree)[1]
    assert (row.kind, row.type, row.facts.text) == ("hijax", "Quantized", "Q[3] · int8[3], float32[]")
    assert not tv.walk(tree).notes and "no finding" in str(tv.check(tree))
    assert "a value of a hijax type: it is not read" in tv.render(tree, stats=True).text()


def test_a_step_that_returns_it_is_not_compiled_again_and_one_that_changes_its_type_is():
    assert not tv.forecast(jax.jit(lambda tree: tree), quantized(3))
    grown = tv.forecast(jax.jit(lambda tree, other: other), quantized(3), quantized(4))
    assert "dtype: Q[3] → Q[4]" in str(grown)


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="this jax traces such steps at each call")
@pytest.mark.parametrize("n", [3, 4])
def test_why_a_step_compiles_again_is_its_type(n):
    step = tv.watch_compiles(jax.jit(lambda tree: tree["x"]))
    for size in (3, n):
        step({"q": quantized(size), "x": 1.0})
    assert [each.why for each in step.compiles[1:]] == ([] if n == 3 else ["retrace"])
    if n == 4:
        assert "tree['q']: dtype: Q[3] → Q[4]" in str(step.compiles[1])


def test_what_becomes_of_its_buffers_is_not_told():
    step = tv.watch_compiles(jax.jit(lambda q, x: (q, x), donate_argnums=(0, 1)))
    with pytest.raises(TypeError, match="has a hijax type, which is several buffers"):
        step.arguments(quantized(3), jnp.ones(2))


def test_an_error_of_jit_names_the_text_beside_it_alone():
    with pytest.raises(TypeError) as caught, tv.explain_errors():
        jax.jit(lambda tree: tree["q"])({"q": quantized(3), "mode": object()})
    assert [line for line in caught.value.__notes__[0].splitlines() if "['q']" in line] == []
    assert "['mode']: object" in caught.value.__notes__[0]


def test_a_variable_of_nnx_that_is_one_is_nothing_that_jit_refuses():
    nnx = pytest.importorskip("flax.nnx")
    if not hasattr(nnx, "var_defaults"):
        pytest.skip("this Flax has no such variables")
    tree = [nnx.Param(jnp.ones(3), hijax=True)]
    jax.jit(lambda tree: None)(tree)
    assert tv.check(tree, for_="jit") == [] and tv.walk(tree)[1].kind == "variable"
