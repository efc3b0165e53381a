"""Whether measuring changes bits is compared once during a run, aside, and told."""

from __future__ import annotations

import gc
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from watched import Recorder, same_bytes, watch

import treeviz as tv
from treeviz.steps.tracing import instrumented
from treeviz.steps.tracing import verify as compare_once

pytestmark = pytest.mark.gpu

AT_CALL = 3
x = jax.device_put(np.arange(1.0, 5.0))


def finished():
    """Wait for what the comparison does aside."""
    for thread in threading.enumerate():
        if thread.name == "treeviz comparison":
            thread.join()


def train(watched, n_steps, params=x):
    """The results of each step, by donation if the step donates."""
    params, results = params + 0, []
    for _ in range(n_steps):
        params, _ = watched(params, x)
        results.append(np.array(params))
        finished()
    return results


def update(params, x):
    loss, grads = jax.value_and_grad(lambda p: jnp.sum((p * x) ** 2))(params)
    return params - 0.01 * grads, loss


@pytest.fixture(autouse=True)
def early(monkeypatch):
    monkeypatch.setattr(compare_once, "AT_CALL", AT_CALL)
    monkeypatch.setattr(compare_once, "N_CALLS", 2)


@pytest.fixture
def changes_bits(monkeypatch):
    """Measuring changes the first result of a step."""
    reap = instrumented.reap

    def wrong(*args, **kwargs):
        out, *measured = reap(*args, **kwargs)
        return [out[0] * jnp.float32(1.001), *out[1:]], *measured

    monkeypatch.setattr(instrumented, "reap", wrong)


@pytest.fixture
def n_runs(monkeypatch):
    """The number of comparisons that were made."""
    made, compare = [], compare_once.compare
    monkeypatch.setattr(compare_once, "compare", lambda *args: made.append(args[0] is not None) or compare(*args))
    return made


@pytest.mark.oldest_jax
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("donated", [False, True])
def test_a_step_is_compared_and_nothing_is_told_where_no_bit_differs(every, donated, n_runs):
    step = jax.jit(update, donate_argnums=0 if donated else ())
    watched = watch(step, seen := Recorder(), every=every)
    mine = train(watched, 10)
    assert same_bytes(mine, train(step, 10))
    assert watched.compared and watched.compared.n_leaves == 2
    assert watched.notes == () and len(n_runs) == 2
    assert seen.steps == list(range(0, 10, every))


@pytest.mark.oldest_jax
def test_a_difference_is_a_note_that_says_how_much_and_what_to_do(changes_bits):
    watched = watch(jax.jit(update), Recorder())
    train(watched, AT_CALL + 2)
    assert not watched.compared and watched.compared.n_leaves == 2
    (note,) = watched.notes
    assert note.startswith("`update`: measuring changes bits. 1 of 2 results differ from those of the unwatched step")
    assert "[0]: 4 of 4 elements differ, by 0.00" in note and "exact=True" in note


def test_the_view_and_the_text_of_an_inspector_say_that_bits_change(changes_bits):
    inspector = tv.GradientInspector()
    train(inspector.watch(jax.jit(update)), AT_CALL + 2)
    assert "measuring changes bits: exact=True does not" in inspector.render().table.headline
    assert "4 of 4 elements differ" in repr(inspector)


def test_a_difference_that_begins_late_is_found_at_a_call_four_times_as_far(monkeypatch):
    """As in a PINN, in which numbers differ from call 30 on."""
    compare, at = compare_once.compare, []

    def late(left, right):
        at.append(watched.newest + 1)
        return compare(left, right if len(at) < 4 else jax.tree.map(lambda a: a + 1, right))

    monkeypatch.setattr(compare_once, "compare", late)
    watched = watch(jax.jit(update), Recorder())
    train(watched, 16 * AT_CALL + 1)
    assert at == [AT_CALL, AT_CALL + 1, 4 * AT_CALL, 16 * AT_CALL] and len(watched.notes) == 1


def test_a_note_is_there_at_the_next_print_and_the_call_was_compared_though_the_step_was_not_compiled(changes_bits):
    inspector = tv.GradientInspector()
    watched, params = inspector.watch(jax.jit(update)), x + 0
    for _ in range(AT_CALL):
        params, _ = watched(params, x)
    assert "measuring changes bits. 1 of 2 results differ" in " ".join(repr(inspector).split())


def test_auto_compares_the_first_call(changes_bits):
    inspector = tv.GradientInspector()
    watched, params = inspector.watch(jax.jit(update), exact="auto"), np.array(x)
    watched(params, x)
    params[:] = 0  # the comparison has its own copy
    inspector.flush()
    assert watched.changes_bits or "From now on the untouched step runs" in watched.notes[0]


def test_both_programs_of_a_run_with_histograms_are_compared(n_runs):
    watched = watch(jax.jit(update), Recorder(), heavy_every=2)
    train(watched, 2 * AT_CALL + 4)
    assert watched.compared and len(n_runs) == 4


def test_a_difference_that_was_not_there_at_the_first_comparison_is_told_once(changes_bits, monkeypatch):
    compare, made = compare_once.compare, []
    monkeypatch.setattr(
        compare_once, "compare", lambda left, right: made.append(1) or compare(left, right if made[1:] else left)
    )
    watched = watch(jax.jit(update), Recorder())
    train(watched, AT_CALL + 4)
    assert not watched.compared and len(watched.notes) == 1 and len(made) == 2


@pytest.mark.oldest_jax
@pytest.mark.parametrize("donated", [False, True])
def test_auto_goes_on_with_the_untouched_step_where_bits_differ(donated, changes_bits):
    step = jax.jit(update, donate_argnums=0 if donated else ())
    watched = watch(step, seen := Recorder(), exact="auto")
    before = train(watched, AT_CALL + 2)
    assert not same_bytes(before, train(step, AT_CALL + 2))
    seen.steps.clear()
    assert same_bytes(train(watched, 4), train(step, 4))
    assert len(seen.steps) == 4
    assert "From now on the untouched step runs" in watched.notes[0]


def momentum(params, x):
    """XLA adds to the velocity by one operation that rounds once, to which of the products depends on other uses."""
    w, v = params
    grads = jax.grad(lambda w: jnp.mean((x * w[None] * w[None]).sum(-1) ** 2))(w)
    v = 0.9 * v + 0.1 * grads
    return w - 0.01 * v, v


def batch(i):
    return np.random.default_rng((i, 20, 100)).normal(size=(20, 100)).astype(np.float32)


def differing(watched, step, params, n_steps):
    """The numbers of the steps whose bits differ, and the last results of the step itself."""
    found = []
    for i in range(n_steps):
        expected, got = step(params, batch(i)), watched(params, batch(i))
        found += [] if same_bytes(expected, got) else [i]
        params = expected
        finished()
    return found, params


@pytest.mark.optimized  # else nothing is fused, and all are rounded alike
def test_of_a_step_that_xla_rounds_otherwise_when_it_is_measured_all_ways_to_know_tell_it():
    step, params = jax.jit(momentum), (np.random.default_rng(0).normal(size=100).astype(np.float32),) * 2
    params = params[0], np.zeros_like(params[1])
    inspector = tv.GradientInspector()
    found, last = differing(watched := inspector.watch(step), step, params, 12)
    if len(found) < 8:
        pytest.skip(f"XLA rounds alike in all but {len(found)} of 12 steps here")
    assert "measuring changes bits: exact=True does not" in inspector.render().table.headline
    (note,) = (note for note in inspector.notes if "measuring changes bits" in note)
    difference = watched.compared.differences[0]
    assert f"{difference.n_different} of 100 elements differ, by {difference.max_difference:.3g} at most" in note
    assert 0 < difference.max_difference < 1e-6 and note.split(". watch(")[0] in " ".join(repr(inspector).split())
    verified = inspector.verify(step, params, batch(0))  # the velocity is all zero, as any optimizer's is at first
    assert not verified and verified.n_runs > 1 and verified.n_unsteady == 0
    assert differing(watch(jax.jit(momentum), Recorder(), exact=True), step, params, 12)[0] == []
    auto = watch(jax.jit(momentum), Recorder(), exact="auto")
    assert max(differing(auto, step, params, AT_CALL + 2)[0]) <= AT_CALL + 1
    assert differing(auto, step, last, 12)[0] == []


def test_auto_measures_in_one_run_where_no_bit_differs():
    watched = watch(jax.jit(update), Recorder(), exact="auto")
    train(watched, AT_CALL + 2)
    assert watched.compared and watched.notes == ()
    assert not watched._programs.is_exact


@pytest.mark.parametrize("exact", [False, "auto"])
def test_a_step_with_effects_is_never_run_twice(exact, changes_bits):
    called = []

    @jax.jit
    def step(params, x):
        io_callback(lambda n: called.append(float(n)), None, params[0])
        return update(params, x)

    watched = watch(step, Recorder(), exact=exact)
    train(watched, 2 * AT_CALL)
    jax.effects_barrier()
    assert len(called) == 2 * AT_CALL
    assert watched.compared is None
    assert [note for note in watched.notes if "io_callback" in note] == list(watched.notes)
    assert len(watched.notes) == (exact == "auto")


@pytest.mark.oldest_jax
def test_exact_refuses_a_step_whose_effects_would_happen_twice():
    called = []

    @jax.jit
    def step(params, x):
        io_callback(lambda n: called.append(float(n)), None, params[0])
        return update(params, x)

    watched = watch(step, seen := Recorder(), exact=True)
    with pytest.warns(RuntimeWarning, match="exact=True runs the step twice, and with it io_callback"):
        train(watched, 3)
    jax.effects_barrier()
    assert len(called) == 3 and seen.steps == []


def test_exact_says_that_prints_happen_twice(capsys):
    @jax.jit
    def step(params, x):
        jax.debug.print("one {}", 1)
        return update(params, x)

    watched = watch(step, Recorder(), exact=True)
    train(watched, 1)
    jax.effects_barrier()
    assert capsys.readouterr().out.count("one 1") == 2
    assert "runs the step twice" in watched.notes[0]


@pytest.mark.parametrize("donated", [False, True])
def test_copies_that_are_too_large_are_not_made_and_a_note_says_so(donated, monkeypatch, n_runs):
    monkeypatch.setattr(compare_once, "MOST_BYTES", 40)
    watched = watch(jax.jit(update, donate_argnums=0 if donated else ()), Recorder())
    train(watched, AT_CALL + 2)
    assert watched.compared is None and not n_runs
    assert "was not compared, since the copies would take" in watched.notes[0] and "verify" in watched.notes[0]


def test_an_error_of_the_comparison_is_not_one_of_the_step(monkeypatch):
    def fail(*_):
        raise RuntimeError("of the comparison")

    for name in ("compare", "_described", "n_bytes_on_device"):
        with monkeypatch.context() as patch:
            patch.setattr(compare_once, name, fail)
            watched = watch(jax.jit(update), seen := Recorder())
            train(watched, AT_CALL + 2)
            assert len(seen.steps) == AT_CALL + 2 and watched.compared is None


def test_the_comparison_keeps_no_array():
    watches = []  # held, as what they hold counts

    def n_arrays_after_run():
        watches.append(watched := watch(jax.jit(update, donate_argnums=0), lambda *_: None))
        train(watched, AT_CALL + 3)
        assert watched.compared
        gc.collect()
        return min(len(jax.live_arrays()) for _ in range(10) if time.sleep(0.01) is None)

    # The runtime lets go of the last arrays a moment later: what is kept is seen by its growth from run to run.
    first, later = ([n_arrays_after_run() for _ in range(4)] for _ in range(2))
    assert min(later) <= min(first)


def test_steps_with_static_arguments_and_of_equinox_and_nnx_are_compared():
    eqx, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")
    static = jax.jit(lambda how, params, x: update(params, x), static_argnums=0)
    filtered = eqx.filter_jit(lambda how, params, x: update(params, x))
    for step in (static, filtered):
        watched = watch(step, Recorder())
        for _ in range(AT_CALL + 2):
            watched("how", x, x)
            finished()
        assert watched.compared and watched.compared.n_leaves == 2

    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))

    @nnx.jit
    def train_step(model, x):
        grads = nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.01 * g, nnx.state(model), grads))

    watched = watch(train_step, Recorder())
    for _ in range(AT_CALL + 2):
        watched(model, x)
        finished()
    assert watched.compared and watched.compared.n_leaves >= 2


@pytest.mark.oldest_jax
@pytest.mark.parametrize("donated", [False, True])
def test_a_step_is_traced_by_its_first_call_alone(donated, monkeypatch):
    threads = []
    monkeypatch.setattr(compare_once, "_lowered", None)

    def step(params, x):
        threads.append(threading.current_thread())
        return update(params, x)

    watched = watch(jax.jit(step, donate_argnums=0 if donated else ()), Recorder())
    train(watched, AT_CALL + 2)
    assert watched.compared and threads == [threading.main_thread()]


def in_a_differentiated_loop(params, x):
    def loss(p):
        def body(p, _):
            return p - 0.01 * jax.grad(lambda p: jnp.sum((p * x) ** 2))(p), None

        return jnp.sum(jax.lax.scan(body, p, None, length=3)[0])

    value, grads = jax.value_and_grad(loss)(params)
    return params - 0.01 * grads, value


def test_a_step_whose_trace_holds_more_than_its_own_program_is_traced_again():
    n_traces = []
    step = jax.jit(lambda params, x: n_traces.append(1) or in_a_differentiated_loop(params, x))
    watched = watch(step, Recorder())
    train(watched, AT_CALL + 2)
    assert watched.compared and len(n_traces) == 2


def test_a_step_in_a_thread_with_options_of_its_own_is_compared_with_these():
    with jax.enable_x64(True):
        watched = watch(jax.jit(update), Recorder())
        train(watched, AT_CALL + 2)
    assert watched.compared and watched.notes == ()


def test_a_step_that_is_called_with_other_static_values_is_compared_with_its_own():
    step = jax.jit(lambda how, params, x: update(params * (2 if how == "twice" else 1), x), static_argnums=0)
    watched = watch(step, Recorder())
    for how in ("once", *["twice"] * (AT_CALL - 2), *["once"] * 3):
        watched(how, x, x)
        finished()
    assert watched.compared and watched.notes == ()
