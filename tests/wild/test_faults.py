"""Faults that people meet, planted in models of six kinds: each is found by kind, place and step, its cause first."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from wild.models import MODELS, N_IN, Model
from wild.published import normal

import treeviz as tv

N_STEPS, BAD = 40, 25
HERE = Path(__file__).name
LINES = Path(__file__).read_text().splitlines()
LINE_OF_LOG = next(i for i, line in enumerate(LINES, 1) if line.strip().startswith("return jnp.mean(("))


@functools.cache  # compiled once for all faults of a model
def run(name: str) -> tuple[Model, tv.GradientInspector, jax.stages.Wrapped]:
    model = MODELS[name]()

    def loss(params, x, y):
        return jnp.mean((model.apply(params, x) - jnp.log(y)) ** 2)

    @jax.jit
    def step(params, x, y, rate):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - rate * g, params, grads), value

    inspector = tv.GradientInspector(keep_inputs=True)
    return model, inspector, inspector.watch(step)


def trained(name: str, *, bend=lambda step, x, y: (x, y), rate: float = 1e-3, change=lambda model: model.params):
    """The inspector of a new run: `bend` changes the batches, `change` the first parameters."""
    model, inspector, step = run(name)
    inspector.reset()
    params = change(model)
    for i in range(N_STEPS):
        x = normal(8, N_IN, seed=i) * 3
        params, _ = step(params, *bend(i, x, np.exp(np.tanh(x[:, :1]))), np.float32(rate))
    return inspector


def with_bias(model: Model, value: float):
    """The parameters with this bias in layer 2, and a small one in the others."""

    def filled(path, leaf):
        path = jax.tree_util.keystr(path)
        if not re.search(r"\bb(ias)?\b", path):
            return leaf
        if model.layer == "[{}]":
            return np.where(np.arange(5)[:, None] == 2, np.float32(value), np.float32(0.1)) + 0 * leaf
        return jnp.full_like(leaf, value if model.layer.format(2) in path else 0.1)

    return jax.tree_util.tree_map_with_path(filled, model.params)


def at_bad_step(bend):
    return lambda step, x, y: bend(x, y) if step == BAD else (x, y)


def layer_2(name: str) -> str:
    return run(name)[0].layer.format(2)


@pytest.fixture(params=MODELS)
def model(request) -> str:
    return request.param


def test_healthy_models_have_no_warning(model):
    assert [found for found in trained(model).findings if found.severity != "info"] == []


@pytest.mark.parametrize("bad", [-1.0, 0.0], ids=["log of -1", "log of 0"])
def test_a_bad_target_is_found_with_the_line_that_takes_its_logarithm(model, bad):
    inspector = trained(model, bend=at_bad_step(lambda x, y: (x, np.full_like(y, bad))))
    first = inspector.findings[0]
    assert (first.kind, first.first, first.severity) == ("nonfinite", BAD, "error")
    origin = inspector.locate_nan()
    assert origin is not None
    assert (origin.step, origin.primitive, origin.line, Path(origin.file).name) == (BAD, "log", LINE_OF_LOG, HERE)


def test_a_batch_with_a_nan_is_found_as_an_argument(model):
    inspector = trained(model, bend=at_bad_step(lambda x, y: (np.full_like(x, np.nan), y)))
    assert (inspector.findings[0].kind, inspector.findings[0].first) == ("nonfinite", BAD)
    origin = inspector.locate_nan()
    assert origin is not None and (origin.step, origin.direction, origin.argument) == (BAD, "input", "x")


def test_a_parameter_that_is_nan_from_the_start_is_found_as_an_argument(model):
    inspector = trained(model, change=lambda m: with_bias(m, np.nan))
    assert (inspector.findings[0].kind, inspector.findings[0].first) == ("nonfinite", 0)
    origin = inspector.locate_nan()
    assert origin is not None and origin.argument.startswith("params")
    assert layer_2(model) in origin.argument or model == "scanned_transformer"


def test_a_dead_layer_is_named_before_those_that_it_cuts_off(model):
    inspector = trained(model, change=lambda m: with_bias(m, -100))
    first = inspector.findings[0]
    assert first.kind == "dead" and layer_2(model) in first.path


def test_an_exploding_batch_is_one_finding_of_one_step(model):
    inspector = trained(model, bend=at_bad_step(lambda x, y: (x * 300, y)), rate=1e-7)
    # At such a rate a parameter may stay as it is, which is told, too.
    (found,) = (found for found in inspector.findings if found.severity != "info" and found.kind != "frozen")
    assert (found.kind, found.first, found.until) == ("spike", BAD, BAD)


def test_gradients_that_stay_large_from_a_step_on_explode(model):
    inspector = trained(model, bend=lambda step, x, y: (x * (1000 if step >= BAD else 1), y), rate=1e-12)
    first = inspector.findings[0]
    assert (first.kind, first.first) == ("exploding", BAD)


def test_a_rate_that_is_far_too_large_diverges(model):
    first = trained(model, rate=1e4).findings[0]
    assert first.kind == "nonfinite" and first.first > 0
