"""What a run has not read is told when Python ends, also if its inspector has gone by then."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv
from treeviz.steps.recording import recorder as at_the_end
from treeviz.steps.recording.decode import Arrived


@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


@pytest.fixture
def run(monkeypatch):
    """Run five steps of which the last is NaN, on a device that is slow, and return the inspector."""
    monkeypatch.setattr(Arrived, "is_ready", lambda self: False)

    def run(**how) -> tv.GradientInspector:
        inspector = tv.GradientInspector(**how)
        watched, w = inspector.watch(step), jnp.ones((3, 2))
        for i in range(5):
            w = watched(w, np.full((4, 3), np.nan if i == 4 else 1, np.float32))
        return inspector

    yield run
    at_the_end._left.clear()


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_finding_of_the_last_step_is_told_when_python_ends(run, is_gone):
    found = []
    inspector = run(on_finding=found.append)
    if is_gone:
        del inspector
        gc.collect()
    assert found == []
    at_the_end._at_exit()
    assert [(each.kind, each.first) for each in found] == [("nonfinite", 4)]
    at_the_end._at_exit()
    assert len(found) == 1


def test_a_run_that_would_have_been_stopped_warns_of_it(run):
    inspector = run(raise_on="nonfinite")
    with pytest.warns(RuntimeWarning, match="would have been stopped: nonfinite: grads had .* at step 4"):
        at_the_end._at_exit()
    assert inspector.n_dropped == 0


def test_what_an_inspector_has_left_is_told_before_the_next_begins(run):
    found = []
    at_the_end._leave(run(on_finding=found.append)._recorder)  # as the garbage collector calls it, sooner or later
    assert found == []
    tv.GradientInspector(on_finding=print)
    assert [(each.kind, each.first) for each in found] == [("nonfinite", 4)]


@pytest.mark.parametrize("is_ready", [True, False])
def test_one_of_several_processes_tells_what_is_ready_and_waits_for_nothing(run, monkeypatch, is_ready):
    found = []
    inspector = run(on_finding=found.append)
    monkeypatch.setattr(Arrived, "is_ready", lambda self: is_ready)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    at_the_end._at_exit()
    assert [(each.kind, each.first) for each in found] == [("nonfinite", 4)] * is_ready
    assert inspector.n_dropped == 0
