"""How measurements arrive: never waited for, read together, in bounded memory, and none lost but counted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treeviz.steps.measure import MeasuredTree, Measurement, measure
from treeviz.steps.nan_origin.locate import Inputs, KeptInputs
from treeviz.steps.recording.decode import Arrived, copied, read
from treeviz.steps.recording.recorder import AHEAD, BATCH, LARGE_BATCH, MOST_WAITING, Recorder
from treeviz.steps.statistics import LIGHT
from treeviz.steps.tracing.attribution import Attribution
from treeviz.steps.tracing.primitives import Axis
from treeviz.tree.layers import MOST_SCANNED

TREE = jax.device_put({"a": np.array([3.0, 4.0]), "b": np.array([np.inf, 1.0]), "c": np.arange(3)})
SOURCE = MeasuredTree("grads", ("['x']",), (2,), ("float32",), (True,))


class Late:
    """Words that are computed when somebody says so; whoever reads them before would have to wait."""

    shape, ndim = (1, 4), 2

    def __init__(self, value: float) -> None:
        self._is_ready = False
        packed = measure(grads={"x": jnp.array([value, 0.0])}).packed["grads"]
        self.packed = np.asarray(packed)
        self.shape = self.packed.shape

    def compute(self) -> None:
        self._is_ready = True

    def is_ready(self) -> bool:
        return self._is_ready

    def __array__(self, dtype=None, copy=None):
        assert self._is_ready, "the loop would wait here"
        return self.packed


def late(value: float, step: int) -> tuple[Late, Arrived]:
    packed = Late(value)
    return packed, Arrived(Measurement({"grads": packed}, [SOURCE], LIGHT), step)


def a_recorder(**options) -> Recorder:
    return Recorder(8_000_000, **options)


def test_nothing_waits_for_a_step_that_still_runs():
    recorder = a_recorder()
    packed = []
    for step in range(200):
        w, arrived = late(step + 1.0, step)
        packed.append(w)
        recorder.take(arrived)
    assert not recorder.history and len(recorder) == 200
    for w in packed[:150]:
        w.compute()
    recorder.take(late(1.0, 200)[1])
    assert recorder.history and len(recorder.history) == 150
    np.testing.assert_allclose(recorder.history.values("grads", "norm").latest[:, 0], np.arange(1.0, 151.0))
    assert recorder.n_dropped == 0


def test_measurements_are_read_in_batches_some_steps_late():
    recorder, first, second = a_recorder(), BATCH + AHEAD, LARGE_BATCH + AHEAD
    for step in range(first + second):
        assert len(recorder.history) == (first if step >= first else 0)
        w, arrived = late(1.0, step)
        w.compute()
        recorder.take(arrived)
    assert len(recorder.history) == first + second and len(recorder) == 0


def test_where_the_device_is_far_behind_the_oldest_are_dropped_and_counted():
    recorder = a_recorder()
    _, arrived = late(1.0, 0)
    for step in range(MOST_WAITING + 100):
        recorder.take(arrived._replace(step=step))
    assert recorder.n_dropped == 101
    assert len(recorder) == MOST_WAITING - 1


def test_a_step_that_failed_takes_no_other_with_it():
    class Failed(Late):
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("the step failed on the device")

    recorder = a_recorder()
    for step in range(5):
        packed, arrived = late(1.0, step)
        packed.compute()
        if step == 2:
            arrived.measurement.packed["grads"] = Failed(1.0)
        recorder.take(arrived)
    recorder.flush()
    assert recorder.history and recorder.history.steps().tolist() == [0, 1, 3, 4]
    assert recorder.n_dropped == 1 and len(recorder) == 0


def test_rows_hold_every_leaf_and_say_what_is_not_finite():
    (steps,) = read([Arrived(jax.jit(lambda t: measure(grads=t))(TREE), 7)])
    assert (steps.steps, steps.inner, steps.suffix) == ([7], [-1], "")
    assert steps.bad_sources == {"grads"} and steps.bad_steps == {7}
    np.testing.assert_allclose(steps.numbers["grads"]["norm"], [[5, 1, np.nan]], rtol=1e-6)
    assert steps.numbers["grads"]["nonfinite"].tolist() == [[0, 1, -1]]


def test_what_is_measured_once_in_a_loop_belongs_to_the_call():
    inner = jax.vmap(lambda k: measure(grads={"x": k * jnp.ones(4)}))(jnp.arange(1.0, 4.0))
    once = measure(params={"x": jnp.ones(4)})
    both = Measurement({**inner.packed, **once.packed}, [*inner.sources, *once.sources], LIGHT)
    first, last = read([Arrived(both, 2)])
    assert (first.steps, first.inner, last.steps, last.inner) == ([2, 2, 2], [0, 1, 2], [2], [-1])
    assert first.numbers["grads"]["norm"][:, 0].tolist() == [2, 4, 6]
    assert "params" not in first.numbers and last.numbers["params"]["norm"].tolist() == [[2]]


def test_steps_of_different_programs_are_read_in_their_order():
    small = jax.jit(lambda: measure(grads={"x": jnp.ones(4)}))
    large = jax.jit(lambda: measure(statistics=("norm", "max_abs", "zeros"), grads={"x": jnp.ones(4)}))
    arrived = [Arrived((large if step % 3 == 0 else small)(), step) for step in range(7)]
    read_ = list(read(arrived))
    assert [step for steps in read_ for step in steps.steps] == list(range(7))
    assert [("zeros" in steps.numbers["grads"], len(steps.steps)) for steps in read_] == [
        (True, 1),
        (False, 2),
        (True, 1),
        (False, 2),
        (True, 1),
    ]


def test_copies_survive_what_they_were_copied_from():
    first, second = measure(grads=TREE), measure(updates=TREE)
    (both,) = copied([first, second])
    first.packed["grads"].delete()
    assert {source.name for source in both.sources} == {"grads", "updates"}
    np.testing.assert_array_equal(both.packed["grads"], second.packed["updates"])


@pytest.mark.parametrize("n_leaves, n_steps, most_bytes", [(3, 10_000, 100_000), (1000, 6_000, 2_000_000)])
def test_memory_is_bounded_however_long_the_run(n_leaves, n_steps, most_bytes):
    """Without JAX: rows go straight to the history, as the recorder hands them on."""
    recorder = Recorder(most_bytes)
    names = tuple(f"[{i}]" for i in range(n_leaves))
    source = MeasuredTree("grads", names, (4,) * n_leaves, ("float32",) * n_leaves, (True,) * n_leaves)
    history = recorder.history
    history.add_sources([source], most_bytes)
    rng = np.random.default_rng(0)
    norms = rng.lognormal(size=(97, n_leaves))
    zeros = np.zeros(n_leaves, np.int64)
    greatest, at = 1e9, n_steps // 3
    for step in range(n_steps):
        norm = norms[step % 97]
        if step == at:
            norm = norm.copy()
            norm[1] = greatest
        history.append(step, {"grads": {"norm": norm, "max_abs": norm, "nonfinite": zeros}})
    assert history.nbytes <= most_bytes
    assert len(history) == n_steps
    series = history.values("grads", "norm")
    assert series.n.sum() == n_steps and series.high[:, 1].max() == greatest
    recent = series.latest[series.first == series.until][-3:]
    np.testing.assert_array_equal(recent, [norms[(n_steps - k) % 97] for k in (3, 2, 1)])


def test_a_source_that_is_seen_later_has_its_place():
    recorder = a_recorder()
    recorder.take(Arrived(measure(grads=TREE), 0))
    recorder.take(Arrived(measure(updates=TREE), 1))
    recorder.take(Arrived(measure(grads=TREE), 2, suffix=" of critic"))
    recorder.flush()
    assert recorder.history
    assert list(recorder.history.sources) == ["grads", "updates", "grads of critic"]
    assert recorder.history.nbytes <= 8_000_000


def test_inputs_of_a_step_that_told_nothing_make_room():
    kept = KeptInputs(2)
    for number in range(5):
        kept.keep(("", number), lambda number=number: Inputs(print, number, (), {}), lambda: None)
    assert len(kept) == 2
    kept.seen(("", 4), True)
    assert kept.bad is not None and kept.bad.number == 4 and len(kept) == 0
    kept.keep(("", 5), pytest.fail, pytest.fail)  # the first bad one is what is looked for


@pytest.mark.parametrize("n_micro", [(), (2,)], ids=["", "in micro-batches"])
@pytest.mark.parametrize("n_layers", [3, MOST_SCANNED + 1])
def test_a_tap_in_a_scan_over_layers_has_a_row_for_each_and_makes_no_steps(n_micro, n_layers):
    """Where there are too many, as of time steps, they are joined into one."""
    row = np.asarray(measure(act=[np.ones(4, np.float32)], statistics=LIGHT).packed["act"])
    sources = [SOURCE, MeasuredTree("act", ("",), (4,), ("float32",), (True,), ("4",))]
    axes = {"grads": n_micro, "act": (*n_micro, n_layers)}
    packed = {name: np.broadcast_to(row, (*sizes, *row.shape)) for name, sizes in axes.items()}
    watches = {
        source.name: Attribution(source, "", tuple(Axis("step", n) for n in axes[source.name])) for source in sources
    }
    arrived = [Arrived(Measurement(packed, sources, LIGHT), step, watches) for step in (4, 5)]
    (steps,) = read(arrived)
    n = int(np.prod(n_micro))
    assert steps.steps == sorted([4, 5] * n) and steps.inner == ([0, 1] * 2 if n_micro else [-1] * 2)
    act = next(source for source in steps.sources if source.name == "act")
    is_joined = n_layers > MOST_SCANNED
    assert act.paths == (("",) if is_joined else ("[0]", "[1]", "[2]"))
    norms = [[2 * np.sqrt(n_layers)] if is_joined else [2.0] * n_layers] * (2 * n)
    np.testing.assert_allclose(steps.numbers["act"]["norm"], norms)
