"""`jax.transfer_guard` forbids transfers that a program did not mean: looking and watching go on."""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from as_on_a_gpu import as_on_a_gpu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from watched import init_mlp_params, mlp_data, same_bytes, update_mlp

import treeviz as tv
from treeviz.analysis.details import window
from treeviz.steps.nan_origin.locate import locate_nan
from treeviz.steps.tracing import verify as compare_once

pytestmark = [pytest.mark.oldest_jax, pytest.mark.gpu]

LEVELS = ["disallow", "disallow_explicit"]
PLACES = {"as it is": contextlib.nullcontext, "as on a GPU": as_on_a_gpu}
put = jax.device_put
x, y = mlp_data()


def arrays(more: float = 0.0) -> dict[str, Any]:
    """Arrays of many kinds on the first device, keys and numbers; the values differ with `more`."""
    bad = np.array([np.nan, np.inf, -np.inf, 1 + more, 0], np.float32)
    large = np.random.default_rng(0).normal(size=(70, 80)).astype(np.float32)
    return {
        "large": put(large + np.float32(more)),
        "bad": put(bad),
        "bf16": put(bad.astype(jnp.bfloat16)),
        "int4": put((np.arange(7) % 7 + int(more)).astype(np.int8).astype(jnp.int4)),
        "complex": put(bad + 1j),
        "bool": put(np.ones(3, bool)),
        "empty": put(np.zeros((0, 3), np.float32)),
        "scalar": put(np.float32(3 + more)),
        "keys": jax.random.split(jax.random.key(int(more)), 3),
        "layers": [{"w": put(np.full((4, 4), i + more, np.float32))} for i in range(4)],
        "stack": {"w": put(np.stack([np.full((4, 4), i + more, np.float32) for i in range(4)]))},
        "numpy": np.full(3, more),
        "number": 1.5,
    }


def answers(tree: Any) -> list[Any]:
    """The statistics of each leaf, and the window on its values, without treescope, which draws it."""
    widget = tv.explore(tree)
    rows = np.flatnonzero(widget.table.is_leaf).tolist()
    found = [widget._backend.answer("statistics", (row,), lambda: False)[0]["sections"] for row in rows]
    widget.close()
    parts = [window(leaf) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) and leaf is not tree["keys"]]
    return [found, [part.values.tobytes() for part in parts]]


LOOKS: dict[str, Callable[[dict, dict], Any]] = {
    "render": lambda a, b: [show(tv.render(a)) for show in (tv.TreeView.text, tv.TreeView.html, repr)],
    "statistics": lambda a, b: [show(tv.render(a, stats=True)) for show in (tv.TreeView.text, tv.TreeView.html)],
    "check": lambda a, b: [repr(tv.check(a, for_=use)) for use in ("jit", "grad", "state")],
    "diff": lambda a, b: [repr(tv.diff(a, b)), repr(tv.diff(a, a)), repr(tv.diff(a, b, rtol=1e-3))],
    "diff of layers and a stack": lambda a, b: repr(tv.diff(a["layers"], b["stack"])),
    "diff of stacks": lambda a, b: repr(tv.diff(a, b, stacked="stack/*")),
    "assert_same": lambda a, b: tv.assert_same(a, a),
    "explain_map": lambda a, b: repr(tv.explain_map(a, b["layers"])),
    "stackable": lambda a, b: repr(tv.stackable(a["layers"])),
    "overlay": lambda a, b: tv.overlay((0,), a["layers"]).text(),
    "another tree beside it": lambda a, b: tv.render(a["layers"], stats=True, other=b["layers"]).text(),
    "explore": lambda a, b: answers(a),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_says_what_it_says_without_a_guard(look, level, place):
    if look == "explore":
        pytest.importorskip("anywidget")
    pair = arrays(), arrays(1.0)
    with PLACES[place]():
        expected = LOOKS[look](*pair)
        with jax.transfer_guard(level):
            assert LOOKS[look](*pair) == expected


@pytest.mark.skipif(len(jax.devices()) < 8, reason="needs eight devices")
@pytest.mark.parametrize("place", PLACES)
def test_arrays_that_are_cut_in_two_ways_are_compared_under_a_guard(place):
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    devices = np.array(jax.devices()[:8])
    rows = put(values, NamedSharding(Mesh(devices, ("d",)), P("d")))
    blocks = put(values + (values == 13), NamedSharding(Mesh(devices.reshape(4, 2), ("d", "e")), P("d", "e")))
    with PLACES[place](), jax.transfer_guard("disallow_explicit"):
        found = {each.kind: each for each in tv.diff({"w": rows}, {"w": blocks}).differences}
    assert found.keys() == {"sharding", "value"}
    assert found["value"].hint.startswith("at [1, 5]; 1 of 64 differ")


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("treeviz"):
            thread.join()


def donated(step: Callable) -> Callable:
    return jax.jit(step, donate_argnums=0)


OPTIONS = {
    "every step": {},
    "every fourth": {"every": 4},
    "histograms": {"heavy_every": 5},
    "updates": {"updates": True},
}
JITTED = {"kept": jax.jit, "donated": donated}
CASES = [  # each of the options, and each input in each place
    pytest.param(options, JITTED[inputs], place, id=f"{name}-{inputs}-{place}")
    for (name, options), (inputs, place) in zip(OPTIONS.items(), itertools.product(JITTED, PLACES), strict=True)
]


@pytest.mark.parametrize(("options", "jitted", "place"), CASES)
def test_a_watched_step_runs_and_is_measured_as_without_a_guard(options, jitted, place, monkeypatch):
    monkeypatch.setattr(compare_once, "AT_CALL", 2)
    with PLACES[place]():
        inspectors, results = [tv.GradientInspector(**options) for _ in range(2)], []
        for level, inspector in zip(("allow", "disallow_explicit"), inspectors, strict=True):
            params = init_mlp_params([1, 8])
            watched = inspector.watch(jitted(update_mlp))
            with jax.transfer_guard(level), warnings.catch_warnings(action="error"):
                found = []
                for number in range(12):
                    params = watched(params, x, y)
                    wait_for_threads()  # those that compile, and compare
                    inspector.record_scalars(number, first=params[0]["biases"])
                    found.append(jax.tree.map(lambda p: p.copy(), params))  # on the device: that is no transfer
                inspector.flush()
                repr(inspector), inspector.findings, inspector.render().text()
            assert watched.trouble == "" and watched.compared is not None
            results.append(found)
        free, guarded = inspectors
        assert same_bytes(*results)
        assert guarded.notes == free.notes and guarded.n_dropped == free.n_dropped == 0
        assert guarded.history.sources.keys() == free.history.sources.keys()
        for name in free.history.sources:
            norms = [each.history.values(name, "norm") for each in (free, guarded)]
            np.testing.assert_array_equal(norms[1].latest, norms[0].latest)


@pytest.mark.parametrize("place", PLACES)
def test_what_a_step_measures_itself_is_recorded_under_a_guard(place):
    @jax.jit
    def step(params, x, y):
        grads = jax.grad(lambda params: jnp.mean((x @ params["w"] - y) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), tv.measure(grads=grads)

    params, inspector = {"w": put(np.ones((1, 1), np.float32))}, tv.GradientInspector()
    with PLACES[place](), jax.transfer_guard("disallow_explicit"):
        for _ in range(3):
            params, measured = step(params, x, y)
            inspector.record(measured)
        inspector.flush()
    assert inspector.history.steps().tolist() == [0, 1, 2] and inspector.n_dropped == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("level", LEVELS)
def test_a_step_is_verified_under_a_guard(level, place):
    params = init_mlp_params([1, 8])
    params[0]["biases"] = put(np.zeros(8, np.float32))  # which `verify` replaces
    watched = tv.GradientInspector().watch(jax.jit(update_mlp))
    with PLACES[place](), jax.transfer_guard(level):
        found = watched.verify(params, x, y)
    assert found.n_leaves == 2 and found.n_runs > 1


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("level", LEVELS)
def test_a_nan_is_located_under_a_guard(level, place):
    step = jax.jit(lambda w, x: jnp.mean(jnp.log(x) * w))
    w, zero = put(np.ones(3, np.float32)), put(np.array([1, 0, 2], np.float32))
    with PLACES[place](), jax.transfer_guard(level):
        found = locate_nan(step, w, zero)
        assert found is not None and (found.primitive, str(found).partition(" at ")[0]) == (
            "log",
            "In the forward pass, log",
        )


@pytest.mark.parametrize("level", LEVELS)
def test_compilations_are_watched_and_forecast_under_a_guard(level):
    params = init_mlp_params([1, 8])
    expected = str(tv.forecast(jax.jit(update_mlp), params, x, y))
    watched = tv.watch_compiles(jax.jit(update_mlp))
    with jax.transfer_guard(level):
        assert str(tv.forecast(jax.jit(update_mlp), params, x, y)) == expected
        watched(watched(params, x, y), x, y)


def test_a_step_whose_own_transfer_is_forbidden_raises_what_it_raises_unwatched():
    step = jax.jit(lambda w, rate: w * rate)
    w = put(np.ones(3, np.float32))
    watched = tv.GradientInspector().watch(step)
    with jax.transfer_guard("disallow"):
        for each in (step, watched):
            with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
                each(w, 0.1)
