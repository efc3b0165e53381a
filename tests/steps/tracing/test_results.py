"""Which results of a step are looked at, as what, and whether NaN and infinities in them are counted right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from watched import Recorder, watch

from treeviz.steps.measure import Measurement, numbers_of
from treeviz.steps.statistics import LIGHT, LOSSES
from treeviz.steps.tracing.instrumented import MOST_ELEMENTS, instrumented
from treeviz.steps.tracing.jitted import JitOptions

pytestmark = pytest.mark.oldest_jax

params, x = jax.device_put(({"w": np.ones((3, 2)), "b": np.zeros(2)}, np.ones((4, 3))))


def loss(params, x):
    return jnp.sum((x @ params["w"] + params["b"][None]) ** 2)


def descended(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def looked_at(step, *args) -> dict[str, tuple[str, ...]]:
    """The paths of the results that are counted, by their kind. Traces the step, and compiles nothing."""
    return {tree.name.removesuffix(" result"): tree.paths for tree in measured(step, *args).results}


def measured(step, *args) -> Measurement:
    return jax.eval_shape(instrumented(step, JitOptions({}, None, False), LIGHT), *args)[1]


def followed(step, *args) -> dict[str, int]:
    """How many values each loss that is followed has, by its name."""
    sources = [source for source in measured(step, *args).sources if source.name == LOSSES]
    return {name: size for source in sources for name, size in zip(source.paths, source.sizes, strict=True)}


PARAMETERS = ("['b']", "['w']")


def in_scan(params, x):
    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return descended(params, grads), value

    return jax.lax.scan(step, params, jnp.stack([x, x]))


def mean_over_micro_batches(params, x):
    values, grads = zip(*(jax.value_and_grad(loss)(params, half) for half in jnp.split(x, 2)), strict=True)
    return descended(params, jax.tree.map(jnp.add, *grads)), sum(values) / 2


def returned_beside_itself(params, x):
    grads, value = jax.grad(lambda params: (loss(params, x),) * 2, has_aux=True)(params)
    return descended(params, grads), value


def of_members(params, x):
    values, grads = jax.vmap(jax.value_and_grad(loss), (None, 0))(params, x[:, None])
    return descended(params, jax.tree.map(lambda g: g.mean(0), grads)), values.mean()


def inside_jit(params, x):
    value, grads = jax.jit(jax.value_and_grad(loss))(params, x)
    return descended(params, grads), value


@pytest.mark.parametrize(
    "step", [in_scan, mean_over_micro_batches, returned_beside_itself, of_members, inside_jit], ids=lambda f: f.__name__
)
def test_the_loss_is_known_however_it_comes_out(step):
    assert looked_at(step, params, x) == {"loss": ("[1]",), "parameter": PARAMETERS}
    assert followed(step, params, x) == {"loss": 2 if step is in_scan else 1}


def test_losses_are_followed_by_their_names_in_what_the_step_returns():
    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        metrics = {"policy_loss": jnp.exp(value), "loss_scale": value, "accuracy": jnp.tanh(value), "loss": value}
        return descended(params, grads), metrics, [value, jnp.exp(value)]

    assert followed(step, params, x) == {"loss": 1, "policy_loss": 1, "loss [2][0]": 1}


def test_results_are_told_apart_and_what_a_step_is_given_and_returns_is_left_out():
    def step(state, x, average):
        value, grads = jax.value_and_grad(loss)(state["params"], x)
        new = descended(state["params"], grads)
        moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["opt"], grads)
        total = average + value  # of a metric that is carried along
        metrics = {"perplexity": jnp.exp(value), "x": x, "one": 1.0, "many": jnp.zeros(MOST_ELEMENTS + 1), "n": 3}
        return {"params": new, "opt": moments, "best": state["best"] * 2}, value, metrics, total, value * jnp.ones(2)

    state = {"params": params, "opt": params, "best": jnp.inf}
    assert looked_at(step, state, x, jnp.float32(0)) == {
        "loss": ("[1]", "[3]", "[4]"),
        "parameter": PARAMETERS,
        "other": ("[2]['perplexity']",),
    }


def test_where_the_loss_is_not_known_scalars_stand_for_it_and_what_is_named_so_is_it():
    def named(params, x):
        return descended(params, jax.grad(loss)(params, x)), {"Loss": loss(params, x), "size": x.sum(), "x": 2 * x}

    def unnamed(params, x):
        return descended(params, jax.grad(loss)(params, x)), loss(params, x), 2 * x[0]

    expected = {"loss": ("[1]['Loss']",), "parameter": PARAMETERS, "other": ("[1]['size']", "[1]['x']")}
    assert looked_at(named, params, x) == expected
    assert looked_at(unnamed, params, x) == {"scalar": ("[1]",), "parameter": PARAMETERS, "other": ("[2]",)}


def test_of_two_networks_the_parameters_have_the_name_of_their_argument():
    def step(actor, critic, x):
        grads = jax.grad(lambda both: loss(both[0], x) + loss(both[1], x))((actor, critic))
        return descended(actor, grads[0]), descended(critic, jax.grad(loss)(critic, x))

    paths = looked_at(step, params, params, x)["parameter"]
    assert len(paths) == 4 and all("actor" in path or "critic" in path for path in paths)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_nan_and_infinities_are_counted_as_numpy_counts_them(dtype):
    def step(params, x, values):
        value, grads = jax.value_and_grad(loss)(params, x)
        return descended(params, grads), value * values[0].real, values * 2

    seen = Recorder()
    values = np.array([np.nan, 1, np.inf, -np.inf, 0, np.nan]).astype(jnp.dtype(dtype))
    _, value, twice = watch(jax.jit(step), seen)(params, x, values)
    (measurement,) = seen.measurements
    assert set(numbers_of(measurement)) == {"grads"}
    assert [tree.name for tree in measurement.results] == ["loss result", "parameter result", "other result"]
    counts = np.asarray(measurement.counts)
    expected = [np.asarray(value), np.zeros(2), np.zeros(6), np.asarray(twice)]
    assert (counts >> 31).tolist() == [0, 1, 1, 0]  # the parameters are new
    assert [int(n) for n in counts >> 16 & 0x7FFF] == [int((~np.isfinite(v)).sum()) for v in expected]
    assert [int(n) for n in counts & 0xFFFF] == [int(np.isnan(v).sum()) for v in expected]
