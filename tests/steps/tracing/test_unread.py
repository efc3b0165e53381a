"""A JAX that moved what treeviz reads of a program costs what needs it, and a note says so; the step is as it was."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from watched import same_bytes, watch

from treeviz.steps.tracing import instrumented, reap
from treeviz.steps.tracing.jax_private import Unread

pytestmark = pytest.mark.oldest_jax

params = {"layers": jnp.ones((3, 4, 4)) / 8, "head": jnp.ones((4, 2))}
x = jnp.arange(8.0).reshape(2, 4) / 8


def loss(params, x):
    hidden, _ = jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, params["layers"])
    return ((hidden @ params["head"] - 1) ** 2).mean()


def descend(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@jax.jit
def layers_in_a_scan(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return descend(params, grads), value


@jax.jit
def accumulated_in_a_scan(params, x):
    """The gradients of the scan are made in it; those of the penalty are not."""

    def add(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, x[None])), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), x)
    penalty = jax.grad(lambda params: sum((p**2).sum() for p in jax.tree.leaves(params)))(params)
    return descend(params, jax.tree.map(jnp.add, total, penalty)), penalty


@pytest.fixture
def moved(may_be_unread, monkeypatch):
    """The parameters of a scan have names that treeviz does not know."""

    def fails(*_):
        raise KeyError("num_consts")

    for name, module in [*sys.modules.items()]:
        if name.startswith("treeviz.steps.tracing") and hasattr(module, "scan_parts"):
            monkeypatch.setattr(module, "scan_parts", fails)


@pytest.mark.usefixtures("moved")
def test_layers_in_a_scan_that_cannot_be_read_are_measured_as_one_array(seen):
    watched = watch(layers_in_a_scan, seen)
    out = watched(params, x)
    assert watched.trouble == ""
    assert same_bytes(out, layers_in_a_scan(params, x))
    seen.check(jax.grad(loss)(params, x))
    (note,) = [note for note in watched.notes if "Layers of a scan are measured as one array" in note]
    assert "KeyError: 'num_consts'" in note and f"jax {jax.__version__}" in note
    assert "treeviz was tested with jax 0.4.36 to" in note and "treeviz doctor" in note


@pytest.mark.usefixtures("moved")
def test_a_loop_that_cannot_be_read_costs_its_own_gradients_alone(seen):
    watched = watch(accumulated_in_a_scan, seen)
    out = watched(params, x)
    assert watched.trouble == ""
    assert same_bytes(out, accumulated_in_a_scan(params, x))
    assert len(seen.names()) == 1  # of the penalty
    seen.check(jax.tree.map(lambda p: 2 * p, params))
    assert any("What jax.grad computes inside this `scan` is not measured" in note for note in watched.notes)


@pytest.mark.usefixtures("moved")
def test_a_step_of_which_nothing_can_be_read_says_what_is_wrong_with_which_jax_and_how_to_report_it(seen):
    @jax.jit
    def step(params, x):
        return jax.lax.scan(lambda params, x: (descend(params, jax.grad(loss)(params, x[None])), None), params, x)[0]

    with pytest.warns(RuntimeWarning, match="the step runs, but is not watched: .*What jax.grad computes") as caught:
        watched = watch(step, seen)
        out = watched(params, x)
    assert same_bytes(out, step(params, x))
    (text,) = [str(each.message) for each in caught]
    assert text.count(f"(jax {jax.__version__};") == 1 and "treeviz was tested with jax 0.4.36 to" in text
    assert "Please report this with what `treeviz doctor` prints" in text and "tv.measure" in text


# What one analysis of the program gives, and what is seen without it.
ANALYSES = {
    "drop_unused_tags": instrumented,
    "OptimizerInputs": instrumented,
    "structural_zeros": instrumented,
    "frozen_arguments": instrumented,
    "drifting_arguments": instrumented,
    "argument_order": instrumented,
    "measure_step_params": instrumented,
    "count_in_results": instrumented,
    "recomputed_equations": reap,
    "scanned_in": reap,
}


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.usefixtures("may_be_unread")
def test_an_analysis_that_fails_costs_what_it_finds_and_nothing_else(name, seen, monkeypatch):
    def fails(*_):
        raise AttributeError("moved")

    monkeypatch.setattr(ANALYSES[name], name, fails)
    watched = watch(layers_in_a_scan, seen, updates=True)
    out = watched(params, x)
    assert watched.trouble == "" and same_bytes(out, layers_in_a_scan(params, x))
    norms = seen.norms()
    true = jax.grad(loss)(params, x)
    np.testing.assert_allclose(norms[0], np.linalg.norm(true["head"]), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(norms[1:]), np.linalg.norm(true["layers"]), rtol=1e-5)
    assert len([note for note in watched.notes if "AttributeError: moved" in note]) == 1


def test_in_the_tests_what_cannot_be_read_is_an_error():
    def fails():
        raise AttributeError("moved")

    with pytest.raises(AssertionError, match="some numbers"):
        Unread().attempt("some numbers", None, fails)
