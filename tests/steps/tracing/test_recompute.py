"""Small leaves of one shape whose gradients are computed alike are measured together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import watched
from watched import watch

from treeviz.steps.measure import numbers_of
from treeviz.steps.statistics import LIGHT
from treeviz.steps.tracing.instrumented import instrumented
from treeviz.steps.tracing.jitted import jit_options

pytestmark = pytest.mark.skipif(jax.__version_info__ < (0, 7, 2), reason="they are measured apart before")


@jax.jit
def update(params):
    def loss(params):
        terms = {name: jnp.mean((2 * p - 1) ** 2).astype(np.float32) for name, p in params.items()}
        return sum(terms.values()) + jnp.sum(params["other"] ** 3)

    return jax.tree.map(lambda p, g: p - (0.1 * g).astype(p.dtype), params, jax.grad(loss)(params))


def tree_of(shape: tuple[int, ...], n: int, dtype: str) -> dict:
    rng = np.random.default_rng(n)
    leaves = {f"leaf{i}": np.asarray(rng.normal(size=shape), jnp.dtype(dtype)) for i in range(n)}
    bad, other = np.full(shape, np.nan, jnp.dtype(dtype)), np.arange(7, dtype=np.float32)
    long = np.linspace(0, 1, 90_000, dtype=np.float32).reshape(300, 300)
    return jax.device_put(leaves | {"bad": bad, "other": other, "long": long})


@pytest.mark.parametrize(
    ("shape", "n", "dtype"),
    [
        *(((32,), 3, "float32"), ((), 20, "float32"), ((33, 5), 17, "bfloat16")),
        *(((64, 64), 17, "float32"), ((64, 65), 17, "float32"), ((40,), 140, "float32"), ((2, 2), 16, "float16")),
    ],
)
def test_leaves_of_one_shape_have_the_numbers_of_each_and_the_step_keeps_its_bits(monkeypatch, shape, n, dtype):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    params, recorder = tree_of(shape, n, dtype), watched.Recorder()
    watched.beside(update, monkeypatch)
    assert watched.same_bytes(*watch(update, recorder)(params))
    found = numbers_of(recorder.measurements[0])["grads"]
    host = [np.asarray(p) for p in jax.tree.leaves(params)]
    gradients = [(2 * (2 * p - 1) * 2 / p.size).astype(np.float64) for p in host]
    gradients[-1] += 3 * np.arange(7.0) ** 2
    finite = [g[np.isfinite(g)] for g in gradients]
    rtol = 1e-6 if dtype == "float32" else 0.02
    np.testing.assert_allclose(found["norm"], [np.linalg.norm(g) for g in finite], rtol=rtol)
    np.testing.assert_allclose(found["max_abs"], [abs(g).max(initial=0) for g in finite], rtol=rtol)
    np.testing.assert_array_equal(found["nonfinite"], [g.size - f.size for g, f in zip(gradients, finite, strict=True)])


@pytest.mark.optimized
def test_a_program_that_measures_many_leaves_of_one_shape_has_few_operations_more(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    params = {f"leaf{i}": jnp.ones(8) for i in range(128)} | {"other": jnp.ones(7)}
    measured = instrumented(update.__wrapped__, jit_options(update), LIGHT)
    texts = [program.lower(params).as_text() for program in (update, measured)]
    n_products = [text.count("stablehlo.multiply") for text in texts]
    assert n_products[0] > 128 and n_products[1] < n_products[0] + 20


def test_what_nothing_depends_on_is_not_run_again():
    """The value of the loss, which is neither returned nor measured."""
    n_equations = []
    for n in (1, 50):
        step = jax.jit(lambda x, n=n: x - jax.grad(lambda x: sum(jnp.sum(x) ** 2 for _ in range(n)) + jnp.sum(x**2))(x))
        assert "integer_pow" in str(jax.make_jaxpr(step)(jnp.ones(3)))
        program = jax.make_jaxpr(instrumented(step.__wrapped__, jit_options(step), LIGHT))(jnp.ones(3))
        n_equations.append(str(program).count("integer_pow"))
    assert n_equations == [0, 0]
