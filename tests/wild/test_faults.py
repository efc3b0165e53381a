"""Faults that people meet, planted in models of six kinds: each is found by kind, place and step, its cause first."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from wild.models import MODELS, N_IN, Model
from wild.published import normal

import treeviz as tv

N_STEPS, BAD = 30, 22
HERE = Path(__file__).name
LINES = Path(__file__).read_text().splitlines()
IS_BIAS = re.compile(r"\bb(ias)?\b")
LINE_OF_LOG = next(i for i, line in enumerate(LINES, 1) if line.strip().startswith("return jnp.mean(("))


class Plant(NamedTuple):
    """What may be wrong in a step: arguments, so that it is compiled once for all faults.

    Attributes:
      scale: What the gradient of each parameter is multiplied with.
      is_held: 0 where a mask leaves a parameter out.
      is_half: Whether gradients pass through float16.
      bound: Of the norm to which gradients are clipped.
      score: Whose logarithm is a metric.
    """

    scale: Any
    is_held: Any
    is_half: Any = False
    bound: Any = np.float32(np.inf)
    score: Any = np.float32(1)


@jax.custom_vjp
def bent(params, plant: Plant):
    """The parameters, with other gradients."""
    return params


def bent_backward(plant: Plant, gradients):
    def one(g, scale):
        return jnp.where(plant.is_half, (g * scale).astype(jnp.float16).astype(g.dtype), g * scale)

    return jax.tree.map(one, gradients, plant.scale), None


bent.defvjp(lambda params, plant: (params, plant), bent_backward)


@functools.cache  # compiled once for all faults of a model
def run(name: str) -> tuple[Model, tv.GradientInspector, Callable]:
    model = MODELS[name]()

    def loss(params, x, y, plant):
        return jnp.mean((model.apply(bent(params, plant), x) - jnp.log(y)) ** 2)

    @jax.jit
    def step(params, x, y, rate, plant):
        value, grads = jax.value_and_grad(loss)(params, x, y, plant)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        grads = tv.tap(jax.tree.map(lambda g: g * jnp.minimum(1, plant.bound / norm), grads), "clipped")
        new = jax.tree.map(lambda p, g, held: p - rate * held * g, params, grads, plant.is_held)
        return new, value, jnp.log(plant.score)

    inspector = tv.GradientInspector(keep_inputs=True, updates=True)
    return model, inspector, inspector.watch(step)


def trained(
    name: str,
    *,
    bend=lambda step, x, y: (x, y),
    rate: float = 1e-3,
    change=lambda model: model.params,
    plant=lambda model: {},
):
    """The inspector of a new run: `bend` changes the batches, `change` the first parameters, `plant` the step."""
    model, inspector, step = run(name)
    inspector.reset()
    params = change(model)
    ones = jax.tree.map(lambda p: np.ones((len(p), *(1,) * (p.ndim - 1)), np.float32), params)
    planted = Plant(ones, ones)._replace(**plant(model))
    for i in range(N_STEPS):
        x = normal(8, N_IN, seed=i) * 3
        params, *_ = step(params, *bend(i, x, np.exp(np.tanh(x[:, :1]))), np.float32(rate), planted)
    return inspector


def of_layers(model: Model, value, but: float = 1.0, only_biases: bool = False):
    """For each parameter a factor: `value(number of its layer)`, `but` for those of no layer."""

    def factor(path, leaf):
        path, shape = jax.tree_util.keystr(path), (len(leaf), *(1,) * (leaf.ndim - 1))
        if only_biases and not IS_BIAS.search(path):
            return np.ones(shape, np.float32)
        if model.layer == "[{}]" and "layers" in path:
            return np.array([value(i) for i in range(5)], np.float32).reshape(shape)
        found = [value(i) for i in range(5) if model.layer.format(i) in path]
        return np.full(shape, found[0] if found else but, np.float32)

    return jax.tree_util.tree_map_with_path(factor, model.params)


def with_bias(model: Model, value: float, others: float = 0.1):
    """The parameters with this bias in layer 2, and another in the other layers."""

    def filled(path, leaf):
        path = jax.tree_util.keystr(path)
        if not IS_BIAS.search(path):
            return leaf
        if model.layer == "[{}]":
            return np.where(np.arange(5)[:, None] == 2, np.float32(value), np.float32(others)) + 0 * leaf
        return jnp.full_like(leaf, value if model.layer.format(2) in path else others)

    return jax.tree_util.tree_map_with_path(filled, model.params)


def at_bad_step(bend):
    return lambda step, x, y: bend(x, y) if step == BAD else (x, y)


def layer_2(name: str) -> str:
    return run(name)[0].layer.format(2)


@pytest.fixture(params=MODELS)
def model(request) -> str:
    """Each: where the place is that is named, or nothing else says that a library is read."""
    return request.param


@pytest.fixture(params=["dictionary", "scanned_transformer"])
def some_model(request) -> str:
    """A leaf for each layer, and a stack of layers: where no place is named, a library has no say."""
    return request.param


def test_healthy_models_have_no_warning(model):
    assert [found for found in trained(model).findings if found.severity != "info"] == []


@pytest.mark.parametrize(
    ("model", "bad"),
    [("dictionary", -1.0), ("dictionary", 0.0), ("scanned_transformer", -1.0)],
    ids=["log of -1", "log of 0", "log of -1 in a scan"],
)
def test_a_bad_target_is_found_with_the_line_that_takes_its_logarithm(model, bad):
    inspector = trained(model, bend=at_bad_step(lambda x, y: (x, np.full_like(y, bad))))
    first = inspector.findings[0]
    assert (first.kind, first.first, first.severity) == ("nonfinite", BAD, "error")
    origin = inspector.locate_nan()
    assert origin is not None
    assert (origin.step, origin.primitive, origin.line, Path(origin.file).name) == (BAD, "log", LINE_OF_LOG, HERE)


def test_a_batch_with_a_nan_is_found_as_an_argument(some_model):
    inspector = trained(some_model, bend=at_bad_step(lambda x, y: (np.full_like(x, np.nan), y)))
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


def test_a_dead_layer_is_named_before_those_behind_it_whose_biases_are_zero(some_model):
    inspector = trained(some_model, change=lambda m: with_bias(m, -100, others=0))
    first = inspector.findings[0]
    assert first.kind == "dead" and layer_2(some_model) in first.path


def test_an_exploding_batch_is_one_finding_of_one_step(some_model):
    inspector = trained(some_model, bend=at_bad_step(lambda x, y: (x * 300, y)), rate=1e-7)
    # At such a rate a parameter hardly changes, which is told, too.
    (found,) = (x for x in inspector.findings if x.severity != "info" and x.kind not in ("frozen", "ratio"))
    assert (found.kind, found.first, found.until) == ("spike", BAD, BAD)


def test_gradients_that_stay_large_from_a_step_on_explode(some_model):
    inspector = trained(some_model, bend=lambda step, x, y: (x * (1000 if step >= BAD else 1), y), rate=1e-12)
    first = inspector.findings[0]
    assert (first.kind, first.first) == ("exploding", BAD)


def test_a_rate_that_is_far_too_large_diverges(some_model):
    first = trained(some_model, rate=1e4).findings[0]
    assert first.kind == "nonfinite" and first.first > 0


def scaled(of_layer, other=1.0, only_biases=False):
    """The gradients of each layer are multiplied."""
    return lambda model: {"scale": of_layers(model, of_layer, other, only_biases)}


# What is planted, in layer 2 or everywhere; at which rate; in which tree it is found, and in which layer.
PLANTED = {
    "vanishing": (scaled(lambda i: 1e-9 if i == 2 else 1), 1e-3, "grads", 2),
    "vanishing with depth": (scaled(lambda i: 10.0 ** (2 * i - 8)), 1e-3, "grads", 0),
    "imbalance": (scaled(lambda i: 1e-4 if i == 2 else 1), 1e-3, "grads", 2),
    "redundant": (scaled(lambda i: 1e-9 if i == 2 else 1, only_biases=True), 1e-3, "grads", 2),
    "frozen": (lambda model: {"is_held": of_layers(model, lambda i: float(i != 2))}, 1e-3, "updates", 2),
    "underflow": (
        lambda model: {"is_half": True, **scaled(lambda i: 1e-12 if i == 2 else 1e-6, 1e-6)(model)}, 1e2, "grads", 2,
    ),
    "clipping": (lambda model: {"bound": np.float32(0.01)}, 0.1, "clipped", None),
    "ratio": (lambda model: {}, 3e-6, "updates", None),
    "result": (lambda model: {"score": np.float32(-1)}, 1e-3, "other result", None),
}  # fmt: skip


OTHERS = [name for name in MODELS if name != "scanned_transformer"]  # which has a row for each layer of a leaf


@pytest.mark.parametrize(
    ("model", "fault"),
    [(name, fault) for n, fault in enumerate(PLANTED) for name in ("scanned_transformer", OTHERS[n % len(OTHERS)])],
)
def test_a_planted_fault_of_each_kind_is_found_in_its_place_and_comes_first(model, fault):
    plant, rate, source, layer = PLANTED[fault]
    first, *others = trained(model, plant=plant, rate=rate).findings
    assert (first.kind, first.source, first.first) == (fault.split()[0], source, 0)
    assert layer is None or run(model)[0].layer.format(layer) in first.path
    assert first.severity == ("info" if fault in ("redundant", "result") else "warning")
    assert {other.kind for other in others} <= {"ratio"}  # where gradients are tiny, so are the updates
