"""What follows a run: how often it is told, what of, and what it leaves alone."""

from __future__ import annotations

import gc
import json
import subprocess
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import pythons
from hypothesis import given, settings
from hypothesis import strategies as st
from live_runs import PATHS, Run

import treeviz as tv
from treeviz.inspector.panel import SHARE, LiveBackend, LivePanel
from treeviz.steps.recording.history import Track
from treeviz.steps.recording.recorder import Pace

pytest.importorskip("anywidget")


@pytest.fixture
def run():
    made = []

    def begin(**options) -> Run:
        made.append(Run(**options))
        made[-1].listen()
        return made[-1]

    yield begin
    for each in made:
        each.widget.close()


def test_a_panel_is_told_at_most_eight_times_a_second(run):
    live = run()
    live.step(3000, every_s=0.001)
    assert 20 <= len(live.sent) <= 3 * 8


@pytest.mark.parametrize(("cost_s", "run_s"), [(0.001, 20), (0.01, 20), (0.2, 80)])
def test_telling_takes_no_more_than_its_share_of_the_time(run, cost_s, run_s):
    live = run(cost_s=cost_s)
    live.step(100 * run_s, every_s=0.01)
    assert live.sent
    assert cost_s * (len(live.sent) + 1) <= SHARE * run_s + cost_s
    assert cost_s > 0.002 or len(live.sent) > 7.5 * run_s * 0.9, "what costs little is told often"


def test_panels_of_one_inspector_share_the_time(run):
    live = run(cost_s=0.01)
    other = live.inspector.explore()
    try:
        live.step(4_000, every_s=0.01)
        assert 0.01 * len(live.sent) <= SHARE * 40 / 2 + 0.01
    finally:
        other.close()


@pytest.mark.parametrize("every_s", [0.0005, 0.01, 0.3])
def test_columns_say_what_was_measured_once_and_in_order(run, every_s):
    live = run()
    live.step(400, every_s=every_s, bad=None)
    live.step(10, every_s=every_s, bad=3)
    live.panel.send_updates()
    columns = live.columns()
    assert max(len(part["first"]) for part in columns) <= 16
    first, until, n, bad, latest, low, high = (np.concatenate([part[name] for part in columns]) for name in columns[0])
    assert first[0] == 1 and until[-1] == 409, "the first step was in the tree"
    np.testing.assert_array_equal(first[1:], until[:-1] + 1)
    np.testing.assert_array_equal(n, until - first + 1)
    norms = np.array(live.norms, np.float32)
    for i, (start, stop) in enumerate(zip(first.astype(int), until.astype(int) + 1, strict=True)):
        np.testing.assert_array_equal(latest[i], norms[stop - 1])
        np.testing.assert_array_equal(low[i], norms[start:stop].min(axis=0))
        np.testing.assert_array_equal(high[i], norms[start:stop].max(axis=0))
        np.testing.assert_array_equal(bad[i], np.array(live.bad[start:stop]).any(axis=0))
    sequence = [message["sequence"] for message, _ in live.sent]
    assert sequence == list(range(2, len(sequence) + 2))


def test_the_line_says_how_fast_it_goes_and_how_far_it_is_and_curves_of_scalars_come_once_a_second(run):
    live = run(total=500)
    live.scalars = tuple("abcdefgh")
    live.step(251, every_s=0.02)
    status = live.sent[-1][0]
    assert status["state"] == "running" and status["total"] == 500
    assert 245 <= status["done"] <= 251 and status["done"] == status["step"] + 1
    assert status["rate"] == pytest.approx(50, rel=0.02)
    told = [message["curves"] for message, _ in live.sent if "curves" in message]
    assert len(told) == 5, "in 5 s"
    series, arrays = told[-1]["series"], told[-1]["arrays"]
    assert [(each["name"], each["n"] <= 128) for each in series] == [(name, True) for name in "abcdef"]
    assert arrays[series[0]["first"]][0] == 0 and arrays[series[0]["last"]][-1] > 190
    assert len(json.dumps(told[-1])) < 6 * 4_000


def test_when_nothing_comes_the_last_steps_are_told_and_then_the_whole(run):
    live = run()
    live.step(3, every_s=0.001)
    assert live.panel._tick() == pytest.approx(0.5)
    live.clock.now += 0.6
    assert live.panel._tick() > 1
    assert live.columns()[-1]["until"][-1] == 2
    live.clock.now += 5
    assert live.panel._tick() is None
    assert live.widget._live["state"] == "still"
    assert live.widget._packed == live.inspector.render().packed
    n_told = len(live.sent)
    assert live.panel._tick() is None and len(live.sent) == n_told


def test_what_comes_while_the_whole_is_made_is_looked_at_later(run):
    live = run()
    live.step(3)
    live.clock.now += 6
    live.widget.renew_page = lambda: live.panel.arrived()
    assert live.panel._tick() == 0.5
    live.widget.renew_page = lambda: None
    live.clock.now += 6
    assert live.panel._tick() is None


@pytest.mark.parametrize("total", [200, None])
def test_a_pause_of_any_length_does_not_begin_the_count_anew(run, total):
    live = run(total=total)
    live.step(100)
    live.clock.now += 5000
    while live.panel._tick() is not None:
        live.clock.now += 1
    assert (live.widget._live["state"], live.widget._live["done"]) == ("still", 100)
    live.step(1, every_s=1)
    assert (live.widget._live["state"], live.widget._live["done"], live.widget._live["step"]) == ("running", 101, 100)
    live.step(99)
    live.panel.finish("done")
    assert live.widget._live["done"] == 200 and 5000 < live.widget._live["elapsed"] < 5100
    live.step(3, every_s=1)
    assert live.widget._live["done"] == 1 and live.sent[-1][0]["done"] == 3, "another run"


def test_a_run_whose_steps_are_all_done_is_over_when_it_rests(run):
    live = run(total=100)
    live.step(100)
    live.clock.now += 10
    while live.panel._tick() is not None:
        live.clock.now += 1
    assert live.widget._live["state"] == "done"
    live.step(1, every_s=1)
    assert (live.widget._live["state"], live.widget._live["done"]) == ("running", 1)


def test_after_the_whole_a_run_may_go_on(run):
    live = run()
    live.step(100)
    live.panel.finish()
    live.sent.clear()
    live.step(100)
    live.panel.finish()
    status = live.widget._live
    assert status["done"] == 100 and status["step"] == 199
    assert live.widget._packed == live.inspector.render().packed


@pytest.mark.parametrize("pauses", [False, True])
def test_a_new_run_is_shown_from_its_first_step(run, pauses):
    live = run()
    live.step(10)
    if pauses:
        live.panel.finish()
    live.inspector.reset()
    live.sent.clear()
    for _ in range(3):
        live.inspector.record(tv.measure(grads=[jnp.ones(2)] * len(PATHS)))
        live.clock.now += 1
        live.inspector.flush()
    assert [live.columns()[-1][name].tolist() for name in ("first", "n")] == [[2], [1]]
    live.panel.finish()
    assert live.widget._packed == live.inspector.render().packed
    assert (live.widget._live["step"], live.widget._live["state"]) == (2, "still")


@pytest.mark.parametrize("pauses", [False, True])
def test_a_tree_that_changes_is_shown_with_its_new_leaves_during_a_run_and_after_a_pause(run, pauses):
    live = run()
    live.step(100)
    if pauses:
        live.panel.finish()
    larger = {"layers": [{"w": jnp.ones(2)}] * 7}
    for step in (100, 101):
        live.inspector.record(tv.measure(grads=larger), step=step)
        live.clock.now += 1
        live.inspector.flush()
    assert sum(live.panel.backend.view.table.is_leaf) == 7
    assert [message["n"] for message, _ in live.sent][-1] == 1, "the second step was appended to the new tree"
    live.panel.finish()
    assert live.widget._packed == live.inspector.render().packed and live.widget._live["step"] == 101


def test_a_leaf_that_turns_bad_is_named_at_once(run):
    live = run(cost_s=0.004)
    live.step(100)
    n = len(live.sent)
    live.step(40, bad=5)
    kinds = [found[2] for message, _ in live.sent[n:] for found in message.get("findings", [])]
    assert "nonfinite" in kinds
    (row, step, _, text, _) = next(f for m, _ in live.sent[n:] for f in m.get("findings", []) if f[2] == "nonfinite")
    assert live.widget.table[row].keystr == PATHS[5] and step == 100 and PATHS[5] in text


def test_a_page_that_missed_what_was_found_is_told_of_it_again_without_asking(run):
    live = run()
    live.step(40, bad=5)
    live.sent.clear()
    live.step(1000)
    found = [message["findings"] for message, _ in live.sent if "findings" in message]
    assert found and all("nonfinite" in [kind for _, _, kind, *_ in marks] for marks in found)
    assert len(found) <= len(live.sent) / 8, "but not with each message"


def test_whoever_lacks_columns_gets_them_all(run):
    live = run()
    live.step(500)
    before = live.widget._version
    live.panel.backend.answer("whole", [0], lambda: False)
    assert live.widget._version == before, "somebody only asked whether Python is there"
    live.panel.backend.answer("whole", [], lambda: False)
    assert live.widget._version == before + 1 and live.widget._live["state"] == "running"
    assert live.panel.backend.view.series[0].last_steps[-1] == 499
    live.sent.clear()
    live.step(1, every_s=1)
    assert live.columns()[0]["first"][0] == 500


def test_a_panel_that_fails_does_not_stop_the_run(run, caplog):
    live = run()
    live.widget.send_message = lambda *_: 1 / 0
    live.step(50, every_s=0.05)
    assert len(live.inspector.history) == 50
    assert "could not follow the run: ZeroDivisionError" in caplog.text


def test_a_closed_widget_is_let_go_of(run):
    live = Run()
    live.step(10)
    panel, widget = weakref.ref(live.panel), weakref.ref(live.widget)
    recorder = live.recorder
    live.widget.close()
    assert recorder.listeners == ()
    del live
    gc.collect()
    assert panel() is None and widget() is None


def test_an_open_widget_keeps_no_inspector(run):
    live = run()
    live.step(10)
    inspector = weakref.ref(live.inspector)
    del live.inspector, live.recorder
    gc.collect()
    assert inspector() is None
    assert "8 leaves" in repr(live.widget)
    with pytest.raises(ReferenceError, match="the inspector is gone"):
        _ = live.widget.tree


def test_rows_of_a_panel_have_their_paths_and_numbers(run):
    live = run()
    live.step(10)
    live.panel.finish()
    live.widget.value = PATHS[3]
    tree = {"layers": [{"b": 0, "w": i} for i in range(4)]}
    paths = [path for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if leaf == 1]
    assert live.widget.selected_paths == paths
    assert live.widget.selected[0]["grads_norm"] == pytest.approx(live.norms[-1][3])
    assert live.widget.tree is live.inspector
    with pytest.raises(TypeError, match="follows an inspector"):
        live.widget.tree = {}


def measured(scale):
    return tv.measure(grads={"a": jnp.ones(3) * scale, "b": jnp.ones(2)})


def test_real_records_arrive_from_several_threads():
    inspector = tv.GradientInspector()
    widget = inspector.explore()
    step = jax.jit(measured)

    def record(first: int) -> None:
        for i in range(200):
            inspector.record(step(float(i)), first + i)

    threads = [threading.Thread(target=record, args=(first,)) for first in (0, 200, 400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend = widget._backend
    assert isinstance(backend, LiveBackend)
    panel = backend.panel
    assert isinstance(panel, LivePanel)
    panel.finish()
    assert len(inspector.history) == 600
    assert "600 steps" in repr(widget)
    widget.close()


def test_steps_that_are_not_inspected_count():
    inspector = tv.GradientInspector(every=3)
    update = inspector.watch(jax.jit(lambda p: p - 0.1 * jax.grad(jnp.sum)(p)))
    loop = inspector.watch(
        jax.jit(lambda p: jax.lax.scan(lambda p, _: (p - jax.grad(jnp.sum)(p), None), p, None, 4)[0])
    )
    for step, n_calls, n_steps in ((update, 12, 12), (update, 1, 13), (loop, 5, 5)):
        widget = inspector.explore(total=n_steps)
        for _ in range(n_calls):
            step(jnp.ones(3))
        widget._backend.panel.finish()
        assert widget._backend.panel._messages.status()["step"] == n_steps - 1
        widget.close()
        if n_steps == 13:
            inspector.reset()


@pytest.mark.parametrize(("every", "first"), [(1, 0), (1, 2), (3, 0), (3, 1), (3, 2), (5, 6)])
def test_a_run_that_goes_on_counts_all_its_steps(first, every):
    inspector = tv.GradientInspector(every=every)
    update = inspector.watch(jax.jit(lambda p: p - 0.1 * jax.grad(jnp.sum)(p)))
    for _ in range(first):
        update(jnp.ones(3))
    widget = inspector.explore(total=10)
    for n_steps in (10, 7):
        for _ in range(n_steps):
            update(jnp.ones(3))
        widget._backend.panel.finish()
        assert widget._backend.panel._messages.status()["done"] == n_steps
    widget.close()


def test_a_record_without_a_number_follows_the_last_one():
    inspector = tv.GradientInspector()
    widget = inspector.explore(total=12)
    step = jax.jit(measured)
    for number in (None, None, 6, None, None, np.int64(10), None):
        inspector.record(step(1.0), number)
    widget._backend.panel.finish()
    first = inspector.history.tracks["grads", "norm"].timeline().first
    assert first.tolist() == [0, 1, 6, 7, 8, 10, 11]
    assert widget._backend.panel._messages.status()["done"] == 12
    widget.close()


def test_a_finding_that_stops_a_run_is_not_lost_in_a_thread_that_only_looks():
    inspector = tv.GradientInspector(raise_on={"nonfinite"})
    step = jax.jit(measured)
    recorder = inspector._recorder
    recorder._pace = Pace(0)  # as if the bad step were not read at once
    inspector.record(jax.block_until_ready(step(float("nan"))))
    thread = threading.Thread(target=recorder.read_what_is_ready)
    thread.start()
    thread.join()
    assert len(recorder) == 0 and recorder.history and len(recorder.history) == 1
    inspector.record(step(1.0))
    with pytest.raises(tv.StopTraining):
        inspector.flush()


SCRIPT = """
import sys
import jax.numpy as jnp, treeviz as tv
inspector = tv.GradientInspector()
with inspector.live(total=3) as panel:
    for i in range(3):
        inspector.record(tv.measure(grads={"a": jnp.ones(3) * i}))
assert panel is None and len(inspector._recorder) == 0 and len(inspector.history) == 3
assert "anywidget" not in sys.modules and "ipywidgets" not in sys.modules
try:
    with inspector.live():
        inspector.record(tv.measure(grads={"a": jnp.ones(3)}))
        raise KeyboardInterrupt
except KeyboardInterrupt:
    assert len(inspector._recorder.history) == 4
"""


def test_in_a_script_nothing_is_shown_and_nothing_loaded():
    done = subprocess.run([*pythons.command("jax"), "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "") and not done.stderr.strip(), done.stderr


@settings(deadline=None, max_examples=25)
@given(n=st.integers(1, 300), wanted=st.integers(1, 300), max_bytes=st.integers(200, 6000))
def test_the_newest_of_a_track_are_its_last_steps(n, wanted, max_bytes):
    track = Track((2,), np.float64, max_bytes)
    values = np.random.default_rng(n).normal(size=(n, 2))
    track.extend(range(n), values)
    assert track.n_steps == n
    newest = track.newest(min(wanted, n))
    assert newest.until[-1] == n - 1 and newest.n.sum() >= min(wanted, n)
    assert newest.n[1:].sum() < min(wanted, n), "no entry more than is needed"
    for first, until, low, high, latest in zip(
        newest.first, newest.until, newest.low, newest.high, newest.latest, strict=True
    ):
        np.testing.assert_array_equal(low, values[first : until + 1].min(axis=0))
        np.testing.assert_array_equal(high, values[first : until + 1].max(axis=0))
        np.testing.assert_array_equal(latest, values[until])
