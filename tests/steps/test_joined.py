"""What leaves the device as one array is what leaves it as several."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import watched
from jax.sharding import PartitionSpec as P
from watched import on_devices, watch

from treeviz.steps.measure import Joined, numbers_of
from treeviz.steps.recording.decode import Arrived
from treeviz.steps.recording.recorder import Recorder

pytestmark = pytest.mark.oldest_jax


def update(params, x):
    loss, grads = jax.value_and_grad(lambda p: jnp.sum(p["w"] * x) ** 2 + jnp.log(p["b"]))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def run() -> tuple[list, Recorder]:
    seen, recorder = watched.Recorder(), Recorder(100_000)
    step = watch(jax.jit(update), seen, updates=True)
    for bias in (1.0, 2.0, -1.0):
        step({"w": jnp.ones(3), "b": jnp.float32(bias)}, jnp.arange(3.0))
    for number, measurement in enumerate(seen.measurements):
        recorder.take(Arrived(measurement, number, step.watches))
    recorder.flush()
    return seen.measurements, recorder


def test_a_measurement_in_one_array_has_the_numbers_of_one_in_several(monkeypatch, caplog):
    measured, recorder = run()
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        measured_as_one, recorder_of_one = run()
    assert "compilation of jit(update)" in caplog.text and "slice" not in caplog.text, "words are read on the host"
    for one, several in zip(measured_as_one, measured, strict=True):
        assert isinstance(one, Joined) and not isinstance(several, Joined) and len(one.arrays) == 1
        np.testing.assert_equal(
            jax.device_get((one.packed, one.counts)), jax.device_get((several.packed, several.counts))
        )
    history, of_one = recorder.history, recorder_of_one.history
    assert history.sources.keys() == of_one.sources.keys() > {"grads", "params", "updates"}, "and a loss that is NaN"
    for source in history.sources:
        np.testing.assert_equal(of_one.last(source), history.last(source))


def test_a_shard_map_of_the_only_device_is_measured(monkeypatch):
    """As a step for many devices runs on a laptop."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    params = {"w": jnp.ones(3), "b": jnp.float32(2)}
    measured = []
    for step in (update, on_devices(update, "devices", (P(), P("devices")), P())):
        recorder = watched.Recorder()
        watch(jax.jit(step), recorder)(params, jnp.arange(3.0))
        measured.append(numbers_of(recorder.measurements[0])["grads"])
    np.testing.assert_equal(*({name: numbers.reshape(2) for name, numbers in grads.items()} for grads in measured))
