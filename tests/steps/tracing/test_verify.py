"""Whether watching changes bits is found out also where the arguments at hand would hide it."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treeviz.steps.tracing.jitted import JittedStep
from treeviz.steps.tracing.verify import verify

pytestmark = pytest.mark.oldest_jax

params, zeros = jax.device_put((np.arange(1.0, 4.0), np.zeros(3)))


def verified(step, instrumented_step, *args, **kwargs):
    """Of a step and its twin as Python functions."""
    jitted = JittedStep(step, step, lambda make: make(step))
    return verify(jitted, lambda *args, **kwargs: (instrumented_step(*args, **kwargs), None), args, kwargs)


@pytest.mark.parametrize("of", [jnp.asarray, np.asarray], ids=["jax", "numpy"])
def test_a_moment_that_begins_with_zero_hides_no_difference(of):
    def step(params, moment, factor=0.9):
        return (params - moment, factor * moment + 0.1 * params), jnp.sum(params)

    found = verified(step, lambda p, m: step(p, m, factor=0.901), of(params), of(zeros))
    assert not found and found.n_runs == 2 and found.n_unsteady == 0
    assert str(found).startswith("1 of 3 leaves differ in run 2:\n  [0][1]: 3 of 3 elements differ, by 0.000")
    assert "exact=True" in str(found)


@pytest.mark.parametrize("of", [jnp.asarray, np.asarray], ids=["jax", "numpy"])
def test_an_argument_that_is_all_zero_and_never_changes_hides_no_difference(of):
    found = verified(lambda p, m: jnp.sum(p * m), lambda p, m: jnp.sum(p * m * 1.5), of(params), moment := of(zeros))
    assert not found and found.n_runs == 2
    assert not moment.any()


def test_without_anything_that_changes_one_run_is_enough():
    calls = []
    assert verified(lambda p: p.sum(), lambda p: calls.append(p) or p.sum(), params).n_runs == len(calls) == 1


def test_a_step_that_is_the_same_says_how_many_runs_were_compared():
    step = jax.jit(lambda p, m: (p - m, m + p), donate_argnums=(0, 1))
    assert str(verified(step, step, params, m=zeros)) == "The same bytes in all 2 leaves of 5 runs."
    assert not params.is_deleted() and not zeros.is_deleted()


def test_a_loss_does_not_become_the_learning_rate():
    rates = []

    def step(params, rate):
        rates.append(float(rate))
        return params * rate, jnp.sum(params)

    assert verified(step, step, params, jnp.float32(0.5))
    assert set(rates) == {0.5}


def test_a_step_that_does_not_repeat_itself_is_told_apart():
    counter = itertools.count()

    def step(params):
        return params + next(counter)

    found = verified(step, step, params)
    assert not found and found.n_unsteady == 1
    assert "is not deterministic" in str(found) and "exact=True does not help" in str(found)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "complex64", "bfloat16"])
def test_arrays_of_every_kind_are_compared(shape, dtype):
    x = jnp.asarray(np.ones(shape), dtype)
    assert verified(lambda x: x, lambda x: x, x)
    found = verified(lambda x: x, lambda x: x * 0 if dtype != "bool" else ~x, x)
    assert sum(d.n_different for d in found.differences) == x.size
