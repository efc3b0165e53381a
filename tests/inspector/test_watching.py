"""`with inspector.watching()`: jitted steps that are called in it are watched, whoever owns them, and nothing else."""

from __future__ import annotations

import functools
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import api, compiler, pjit
from jax.experimental import io_callback

import treeviz as tv
from treeviz.steps.tracing.called import MOST_STEPS

pytestmark = pytest.mark.oldest_jax

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
W = np.ones(3, np.float32)


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


def update(w, x):
    return w - 0.1 * jax.grad(loss)(w, x)


bound = jax.jit(update)  # before any block


class Trainer:
    """Owns its step, as a library does."""

    def __init__(self):
        self.n_traced = 0

    def step(self, w, x):
        self.n_traced += 1
        return update(w, x), loss(w, x)

    @functools.partial(jax.jit, static_argnums=(0, 3))
    def either(self, w, x, is_training):
        return update(w, x) if is_training else loss(w, x)

    def train(self, w, n=3):
        step = jax.jit(self.step, donate_argnums=0)
        w = jnp.asarray(w)
        for _ in range(n):
            w, _ = step(w, X)
        return w


def anew(w, n=3):
    """Jits its body at each step, as numpyro's SVI.run does."""

    def body(w):
        return update(w, X)

    for _ in range(n):
        w = jax.jit(body)(w)
    return w


def loop(w, n=3):
    for _ in range(n):
        w = bound(w, X)
    return w


def norms(n=3):
    w, found = W, []
    for _ in range(n):
        found.append(np.linalg.norm(jax.grad(loss)(w, X)))
        w = w - 0.1 * jax.grad(loss)(w, X)
    return found


def measured(inspector, source="grads"):
    return inspector.history.values(source, "norm").latest[:, 0]


@pytest.mark.parametrize("train", [loop, anew, lambda w: Trainer().train(w)], ids=["bound", "jitted anew", "method"])
def test_a_step_that_is_called_in_the_block_is_measured_wherever_it_was_jitted(train):
    inspector = tv.GradientInspector()
    expected = train(W)
    with inspector.watching() as called:
        got = train(W)
    assert np.array_equal(expected, got) and len(called.watched) == 1
    np.testing.assert_allclose(measured(inspector), norms(), rtol=1e-5)
    train(W)  # after the block
    assert inspector.history.steps("grads").tolist() == [0, 1, 2]


def test_the_block_leaves_jax_as_it_was_also_when_it_raises():
    before, inspector = {**vars(pjit)}, tv.GradientInspector()
    with pytest.raises(RuntimeError, match="stop"), inspector.watching():
        loop(W, 2)
        assert vars(pjit) != before
        raise RuntimeError("stop")
    assert vars(pjit) == before and api.vjp is jax.vjp
    loop(W)
    with inspector.watching():
        loop(W, 1)
    assert inspector.history.steps("grads").tolist() == [0, 1, 2]


def test_functions_without_gradients_are_neither_traced_nor_compiled_again(monkeypatch):
    traced, compiled = [], []

    @jax.jit
    def score(w):
        traced.append(w)
        return jnp.sum(jnp.square(w))

    inspector = tv.GradientInspector()
    expected, original = score(W), compiler.compile_or_get_cached
    monkeypatch.setattr(compiler, "compile_or_get_cached", lambda *a, **k: compiled.append(str(a)) or original(*a, **k))
    with pytest.warns(RuntimeWarning, match=r"no step was found.*score: it takes no gradients"), inspector.watching():
        assert [float(score(W)) for _ in range(3)] == [float(expected)] * 3
    assert len(traced) == 1 and not any("score" in program for program in compiled)
    assert repr(inspector) == "GradientInspector: nothing was measured yet"


def test_only_calls_that_take_gradients_count_as_steps():
    inspector, trainer = tv.GradientInspector(), Trainer()
    with inspector.watching() as called:
        for is_training in (False, True, False, True):
            trainer.either(W, X, is_training)
    assert called.watched == ["Trainer.either"] and inspector.history.steps("grads").tolist() == [0, 1]
    either = jax.jit(lambda w, x, is_training: update(w, x) if is_training else loss(w, x), static_argnums=2)
    watched = inspector.watch(either)
    with inspector.watching():
        either(W, X, False), either(W, X, True)
    assert watched.newest == 0 and not watched.trouble


def test_other_threads_train_as_they_did():
    inspector, results = tv.GradientInspector(), []
    with inspector.watching():
        thread = threading.Thread(target=lambda: results.append(loop(W)))
        thread.start()
        thread.join()
        loop(W, 1)
    assert np.array_equal(results[0], loop(W)) and len(inspector.history) == 1


def test_a_step_that_is_watched_already_measures_for_itself_also_where_it_is_called_as_it_was():
    inspector = tv.GradientInspector(every=2)
    watched = inspector.watch(bound)
    with pytest.warns(RuntimeWarning, match="no step was found"), inspector.watching():
        for _ in range(4):
            watched(W, X)
    assert inspector.history.steps("grads").tolist() == [0, 2]
    for _ in range(2):
        with inspector.watching() as called:
            results = [step(W, X) for step in (bound, watched, watched, bound, bound)]
        assert called.watched == ["update"] and not called.passed
    assert all(np.array_equal(result, bound(W, X)) for result in results)
    assert watched.newest == 13 and inspector.history.steps("grads").tolist() == [*range(0, 14, 2)]


def test_two_functions_have_trees_of_their_own_and_a_second_training_begins_a_run():
    inspector = tv.GradientInspector()
    with inspector.watching():
        anew(W)
        loop(W, 2)
        anew(W)
    assert {s: len(inspector.history.steps(s)) for s in inspector.history.sources} == {
        "grads": 3, "grads of update": 2, "grads of body": 3,
    }  # fmt: skip
    with inspector.watching():
        anew(W, 1)
    assert len(inspector.history) == 1 and len(inspector.earlier_runs) == 1


def test_a_function_that_is_jitted_at_each_call_is_not_watched_without_end():
    inspector = tv.GradientInspector()
    with inspector.watching() as called:
        for _ in range(MOST_STEPS + 2):
            jax.jit(lambda w: update(w, X))(W)
    assert len(called.watched) == MOST_STEPS and "jit it once" in str(called)


def test_what_was_traced_outside_a_jitted_function_is_named_with_what_to_do():
    inspector = tv.GradientInspector()
    told = r"not all gradients were seen.* cond: called outside .* call what contains it by jax.jit"

    def train(w):
        return jax.lax.cond(w.sum() < np.inf, lambda w: update(w, X), lambda w: w, w)

    with pytest.warns(RuntimeWarning, match=told), tv.GradientInspector().watching():
        jax.jit(lambda w: update(w, X))(W)
        train(W)
    with inspector.watching() as called:
        jax.jit(train)(W)
    assert len(called.watched) == 1 and len(inspector.history) == 1


class Run:
    """Trains in a loop outside a jitted function, whose body closes over the data, as numpyro's `svi.run` does."""

    def __init__(self, kind, x):
        self.kind, self.x, self.kinds = kind, x, []

    def __call__(self, w, n=3):
        x, kinds, least = (self.x,), self.kinds, (jnp.asarray(1),)

        def body(w):
            kinds.append(type(x[0]).__name__)
            return update(w, x[0])

        if self.kind == "scan":
            return jax.lax.scan(lambda w, _: (body(w), w.sum()), w, None, length=n)
        if self.kind == "while_loop":
            return jax.lax.while_loop(lambda c: c[0] >= least[0], lambda c: (c[0] - 1, body(c[1])), (n, w))
        return jax.lax.fori_loop(0, n, lambda i, w: body(w), w)


@pytest.mark.parametrize("kind", ["scan", "fori_loop", "while_loop"])
@pytest.mark.parametrize("x", [X, jnp.asarray(X)], ids=["numpy", "jax"])
def test_each_step_of_a_loop_outside_a_jitted_function_is_measured(kind, x):
    run, inspector, loops = Run(kind, x), tv.GradientInspector(), (jax.lax.scan, jax.lax.fori_loop, jax.lax.while_loop)
    expected = run(W)
    with inspector.watching() as called:
        got = run(W)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True))
    assert len(called.watched) == 1 and not called.passed
    last = (
        slice(-1, None) if kind == "while_loop" else slice(None)
    )  # of those of which it is unknown how many there are
    np.testing.assert_allclose(measured(inspector), norms()[last], rtol=1e-5)
    assert (jax.lax.scan, jax.lax.fori_loop, jax.lax.while_loop) == loops


@pytest.mark.parametrize("size", [None, 2])
def test_each_gradient_of_a_map_outside_a_jitted_function_is_measured(size):
    rows, inspector, w = jnp.asarray(X), tv.GradientInspector(), jnp.asarray(W)

    def apart(rows):
        return jax.lax.map(lambda x: jax.grad(loss)(w, x[None]), rows, batch_size=size)

    expected = apart(rows)
    with inspector.watching() as called:
        got = apart(rows)
    assert np.array_equal(got, expected) and len(called.watched) == 1 and not called.passed
    assert np.linalg.norm(measured(inspector)) == pytest.approx(np.linalg.norm(expected), rel=1e-5)


def test_a_condition_whose_numbers_change_is_no_constant_of_the_program():
    least, inspector = jnp.asarray(1), tv.GradientInspector()

    def goes_on(c):
        return c[0] >= least

    def body(c):
        return c[0] - 1, update(c[1], X)

    def left():
        return int(jax.lax.while_loop(goes_on, body, (5, W))[0])

    with inspector.watching() as called:
        found = [left()]
        least = jnp.asarray(3)
        found.append(left())
    assert found == [0, 2] and len(called.watched) == 1 and len(inspector.history) == 2


def test_a_body_with_a_name_and_its_data_are_arguments_of_the_program_that_measures():
    programs, data, inspector = [], jnp.asarray(X), tv.GradientInspector()

    def body(w, _):
        programs.append(type(data))
        return update(w, data), None

    with inspector.watching() as called:
        for _ in range(3):
            jax.lax.scan(body, W, None, length=2)
            n_traced = len(programs)
    assert [name.split(".")[-1] for name in called.watched] == ["body"] and len(inspector.history) == 6
    jax.lax.scan(body, W, None, length=2)
    assert len(programs) == n_traced  # the first call has traced it for all


def test_a_loop_without_gradients_or_in_a_gradient_runs_as_it_did():
    def body(w, _):
        return update(w, X), None

    def trained(w):
        return jax.lax.scan(body, w, None, length=3)[0].sum()

    def scored(w):
        return jax.lax.scan(lambda w, _: (0.5 * w, loss(w, X)), w, None, length=3)

    inspector = tv.GradientInspector()
    expected = jax.grad(trained)(W), scored(W)
    with pytest.warns(RuntimeWarning, match="no step was found"), inspector.watching():
        got = jax.grad(trained)(W), scored(W)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True))


def test_a_loop_whose_body_reads_the_numbers_that_it_closes_over_runs_unwatched():
    def body(w, _):
        return (update(w, X) if X.sum() < 1 else w), None

    inspector = tv.GradientInspector()
    x, expected = jnp.asarray(X), jax.lax.scan(body, W, None, length=3)[0]

    def reading(w, _):
        return (update(w, x) if np.asarray(x).sum() < 1 else w), None

    with inspector.watching() as called:
        assert np.array_equal(jax.lax.scan(body, W, None, length=3)[0], expected)  # a global stays what it is
        assert np.array_equal(jax.lax.scan(reading, W, None, length=3)[0], expected)
    assert len(called.watched) == 1 and any("TracerArrayConversion" in why for why in called.passed.values())
    assert len(inspector.history) == 3


def test_a_loop_that_fails_while_it_runs_has_its_effects_once():
    happened = []

    def log(i):
        happened.append(int(i))
        if i == 2:
            raise OSError("the disk is full")

    def body(w, i):
        io_callback(log, None, i)
        return update(w, X), None

    with tv.GradientInspector().watching():
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(jax.lax.scan(body, W, np.arange(4)))
        jax.block_until_ready(jax.lax.scan(body, W, np.arange(7, 9)))
    jax.effects_barrier()
    assert happened == [0, 1, 2, 7, 8]


def test_what_jax_says_of_a_loop_in_a_block_has_the_lines_of_the_user():
    inspector = tv.GradientInspector()
    with inspector.watching():
        loop(W, 1)
        text = jax.jit(lambda w: jax.lax.scan(lambda w, _: (update(w, X), None), w, None, 3)).lower(W)
        text = text.compiler_ir().operation.get_asm(enable_debug_info=True)
        with pytest.raises(TypeError) as raised:
            jax.lax.scan(lambda w, _: w, W, None, length=3)
    assert "test_watching.py" in text and "eager_loops.py" not in text
    assert "eager_loops.py" not in [entry.path.name for entry in raised.traceback]


def equinox_step():
    eqx = pytest.importorskip("equinox")

    @eqx.filter_jit
    def step(model, x):
        return eqx.filter_grad(lambda model: jnp.sum(jax.vmap(model)(x)))(model)

    return step, eqx.nn.Linear(3, 1, key=jax.random.key(0))


def nnx_step():
    nnx = pytest.importorskip("flax.nnx")

    @nnx.jit
    def step(model, x):
        return nnx.grad(lambda model: jnp.sum(model(x)))(model)

    return step, nnx.Linear(3, 1, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("make", "paths"), [(equinox_step, (".weight", ".bias")), (nnx_step, ("['bias']", "['kernel']"))]
)
def test_the_paths_of_a_library_are_those_of_the_users_model(make, paths):
    step, model = make()
    inspector = tv.GradientInspector()
    with inspector.watching():
        step(model, X)
    assert inspector.history.sources["grads"].paths == paths
    other = tv.GradientInspector()
    watched = other.watch(step)
    with pytest.warns(RuntimeWarning, match=r"watched, but .* call what inspector.watch gave"), other.watching():
        step(model, X)
    assert watched.newest == -1


grad = jax.jit(jax.value_and_grad(lambda w, x: loss(w["w"], x)))


@functools.partial(jax.jit, donate_argnums=(0, 1))
def apply(params, moments, grads):
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments


def descended(grad, apply, n=4):
    params, moments = {"w": jnp.asarray(W)}, {"w": jnp.zeros(3)}
    norms = []
    for _ in range(n):
        _, grads = grad(params, X)
        norms.append(np.linalg.norm(grads["w"]))
        params, moments = apply(params, moments, grads)
    return params["w"], norms


def test_gradients_of_one_function_and_the_update_of_another_stand_in_one_row():
    plain, expected = descended(grad, apply)
    inspector = tv.GradientInspector(updates=True)
    watched = inspector.watch(apply, gradients="grads")
    got, _ = descended(grad, watched)
    assert np.array_equal(plain, got) and set(inspector.history.sources) == {"grads", "params", "updates"}
    np.testing.assert_allclose(measured(inspector), expected, rtol=1e-5)
    assert inspector.history.steps("updates").tolist() == [0, 1, 2, 3] and inspector.notes == []
    ratio = inspector.history.ratio("updates", "params")
    assert ratio is not None and np.isfinite(ratio.latest).all()
    with inspector.watching():
        descended(lambda params, x: (None, jax.grad(lambda w: loss(w["w"], x))(params)), apply)
    assert watched.newest == 7
    with pytest.raises(tv.CannotWatch, match="no such parameter; it has params, moments, grads"):
        tv.GradientInspector().watch(apply, gradients="gradient")
    block = tv.GradientInspector(updates=True)
    with block.watching() as called:
        got, _ = descended(grad, apply)
    assert np.array_equal(plain, got) and len(called.watched) == 2 and called.passed == {}
    np.testing.assert_array_equal(measured(block, "grads of apply"), measured(block))
    assert block.history.steps("updates of apply").tolist() == [0, 1, 2, 3]
    assert re.search(r"4 steps · step 3 · loss \S+ · grads of apply, 1 of 2 trees", block.render().text())
    assert block.notes[0].startswith("`<lambda>`: updates are not measured")


@pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="there, jax.pmap is no function of Python")
def test_a_function_of_pmap_is_watched_and_every_gradient_in_it_is_seen():
    def of_both(w, scale, x):
        derivative = jax.grad(lambda t: jnp.sum(w * scale) * t)(
            x[0, 0]
        )  # by data, as in a PINN: it is no gradient of the step
        return loss(w * scale, x) + 0 * derivative

    @functools.partial(jax.pmap, axis_name="devices")
    def step(w, scale, x):
        def one(carry, x):
            w, scale = carry
            of_w = jax.lax.pmean(jax.grad(of_both)(w, scale, x), "devices")
            return (w - 0.1 * of_w, scale - jax.grad(of_both, 1)(w, scale, x)), None  # of a number, as others are

        return jax.lax.scan(one, (w, scale), x[None])[0]

    inspector, w, scale = tv.GradientInspector(), jnp.stack([W, W]), jnp.ones(2)
    with inspector.watching() as called:
        step(w, scale, jnp.stack([X, X]))
    assert called.watched == ["a function of jax.pmap"]
    of_w, of_scale = (np.linalg.norm(grad) for grad in jax.grad(of_both, (0, 1))(W, 1.0, X))
    history = inspector.history
    found = {source.sizes: history.last(name)[1]["norm"][0] for name, source in history.sources.items()}
    assert found == pytest.approx({(3,): of_w, (1,): np.sqrt(2) * of_scale}, 1e-5)  # the latter of both devices
