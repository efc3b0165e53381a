"""Statistics by NumPy, of arrays in host memory."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from treeviz.analysis.stats import CHUNK
from treeviz.steps.statistics import LIGHT, unpack
from treeviz.steps.tracing.instrumented import reduce_on_host

rng = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32, np.float64, np.complex64, np.complex128])
def test_the_statistics_of_every_dtype_are_those_of_numpy_in_float64(dtype):
    shapes = [(), (3,), (2, CHUNK), (1,), (5, 7)]
    leaves = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    packed = reduce_on_host([*((x,) for x in leaves), None])
    found = unpack(packed, LIGHT)
    exact = [np.abs(x.astype(np.result_type(x.dtype, np.float64) if x.dtype.kind == "c" else float)) for x in leaves]
    np.testing.assert_allclose(found["norm"][:-1], [np.sqrt(np.sum(x**2)) for x in exact], rtol=1e-6)
    np.testing.assert_allclose(found["max_abs"][:-1], [x.max() for x in exact], rtol=1e-7)
    assert found["nonfinite"].tolist() == [0] * 5 + [-1] and np.isnan(found["norm"][-1])


def test_numbers_that_are_huge_tiny_or_not_finite_are_told_apart():
    leaves = [
        np.array([1e300, -1e300, np.nan]), np.array([1e-300, 0]), np.array([5e-324]), np.zeros(3, np.float32),
        np.array([np.inf, 3, 4], np.float32), np.array([2e38, 2e38], np.float32), np.array([2.0**-149], np.float32),
        np.array([1e308 + 1e308j]),
    ]  # fmt: skip
    found = unpack(reduce_on_host([(x,) for x in leaves]), LIGHT)
    norms = [2**0.5 * 1e300, 1e-300, 5e-324, 0, 5, 2**0.5 * 2e38, 2.0**-149, 2**0.5 * 1e308]
    np.testing.assert_allclose(found["norm"], norms, rtol=1e-6)
    assert found["nonfinite"].tolist() == [1, 0, 0, 0, 1, 0, 0, 0]


def test_a_difference_is_rounded_as_the_device_does_and_layers_are_rows():
    old = rng.normal(size=(4, 3, 2)).astype(jnp.bfloat16)
    new = (old.astype(np.float32) * 1.01).astype(jnp.bfloat16)
    new[:, 1] = old[:, 1]
    found = unpack(reduce_on_host([(new, old), (old,), None], [1, None, None]), LIGHT)
    moved = np.linalg.norm(new.astype(float) - old.astype(float), axis=(0, 2))
    np.testing.assert_allclose(found["norm"][:4], [*moved, np.linalg.norm(old.astype(float))], rtol=1e-6)
    assert found["norm"][1] == 0 and len(found["norm"]) == 5
