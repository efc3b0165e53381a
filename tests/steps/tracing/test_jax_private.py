"""What touches the inside of JAX: it is there, it sees what it should, and it leaves nothing behind."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import pythons
from jax._src import api
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treeviz
from treeviz.steps.tracing.jax_private import now_seeing, seeing_gradients, why_not
from treeviz.steps.tracing.jitted import is_jitted, jit_options
from treeviz.steps.tracing.watch import ProcessConsensus

pytestmark = pytest.mark.oldest_jax


def loss(w):
    return jnp.sum(w["a"] ** 3)


w = {"a": jax.device_put(np.arange(3.0))}


@pytest.fixture
def see():
    def see(kind, tree, origins=None, name="grads"):
        if kind == "loss":
            see.losses.append(jax.tree.map(jnp.shape, tree))
            return tree
        see.seen.append((kind, jax.tree.map(jnp.shape, tree), jax.tree.structure(origins)))
        return tree

    see.seen, see.losses = [], []
    return see


def test_a_watched_step_and_the_functions_around_it_are_traced_once():
    program = """
import jax, jax.numpy as jnp, treeviz as tv
counts = {"step": 0, "other": 0}
inspector = tv.GradientInspector()

@jax.jit
def other(x):
    counts["other"] += 1
    return x

@jax.jit
def step(w, x):
    counts["step"] += 1
    return w - jax.grad(lambda w: jnp.sum(w * x))(w)

other(1.0)
watched, w = inspector.watch(step), jnp.ones(3)
for _ in range(3):
    w = watched(w, other(1.0))
print(counts)
"""
    command = [*pythons.command("jax"), "-W", "error", "-c", program]
    finished = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(treeviz.__file__).parents[1]
    )
    assert finished.stdout.strip() == "{'step': 1, 'other': 1}"


def test_this_release_of_jax_looks_up_what_we_replace():
    assert why_not() == ""


def test_a_release_that_looks_up_another_name_is_told(monkeypatch):
    monkeypatch.setattr(api, "value_and_grad", lambda fun: fun)
    why = f"jax {jax.__version__} has no _vjp in jax._src.api.value_and_grad or vjp in jax._src.api.value_and_grad"
    assert why_not().startswith(why)
    assert why_not().endswith(": the gradients inside a step cannot be seen")


GRADIENTS = {
    "grad": lambda: jax.grad(loss)(w),
    "value_and_grad": lambda: jax.value_and_grad(loss)(w),
    "has_aux": lambda: jax.grad(lambda w: (loss(w), w), has_aux=True)(w),
    "grad of a jit": lambda: jax.grad(jax.jit(loss))(w),
    "jit of a grad": lambda: jax.jit(jax.grad(loss))(w),
    "in vmap": lambda: jax.vmap(jax.grad(loss))({"a": jnp.ones((4, 3))}),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_is_seen_once_with_what_it_belongs_to(name, see):
    with seeing_gradients(see):
        GRADIENTS[name]()
    assert see.seen == [("grads", {"a": (3,)}, jax.tree.structure(w))]
    assert see.losses == [()]


def test_several_arguments_are_one_tree(see):
    with seeing_gradients(see):
        jax.grad(lambda a, b: jnp.sum(a * b), argnums=(0, 1))(jnp.ones(2), jnp.ones(2))
    assert see.seen == [("grads", ((2,), (2,)), jax.tree.structure((0, 0)))]


VJPS = {
    "vjp": lambda: jax.vjp(loss, w)[1](1.0),
    "has_aux": lambda: jax.vjp(lambda w: (loss(w), w), w, has_aux=True)[1](1.0),
    "jit of a vjp": lambda: jax.jit(lambda w: jax.vjp(loss, w)[1](1.0))(w),
    "a pullback through jit": lambda: jax.jit(lambda pull: pull(1.0))(jax.vjp(loss, w)[1]),
}


@pytest.mark.parametrize("name", VJPS)
def test_the_cotangents_of_a_vjp_are_seen_once(name, see):
    with seeing_gradients(see):
        VJPS[name]()
    assert see.seen == [("cotangents", {"a": (3,)}, jax.tree.structure(None))]


@pytest.mark.parametrize("jacobian", [jax.jacrev, jax.jacfwd, lambda f: jax.linearize(f, w["a"])[1]])
def test_rows_of_a_jacobian_are_no_gradients(jacobian, see):
    with seeing_gradients(see):
        jacobian(lambda a: a**2)(w["a"])
    assert see.seen == []


def test_what_see_gives_is_what_the_step_uses():
    with seeing_gradients(lambda kind, tree, origins=None, name="": jax.tree.map(lambda g: g * 0 + 7, tree)):
        gradient = jax.grad(loss)(w)
    np.testing.assert_array_equal(gradient["a"], [7, 7, 7])


def test_what_was_traced_before_is_traced_again_and_stays(see):
    traced = []

    @jax.jit
    def gradient(w):
        traced.append(1)
        return jax.grad(loss)(w)

    jax.jit(lambda w: gradient(w))(w)
    with seeing_gradients(see):
        jax.jit(lambda w: gradient(w))(w)
    assert len(see.seen) == 1 and len(traced) == 2
    jax.jit(lambda w: gradient(w))(w)
    assert len(traced) == 2


def names():
    return [getattr(api, name, None) for name in ("vjp", "_vjp", "_vjp3_bwd")]


def test_nothing_is_left_behind_after_an_error(see):
    before = names()
    with pytest.raises(ZeroDivisionError), seeing_gradients(see):
        assert names() != before
        assert now_seeing() is see
        raise ZeroDivisionError
    assert names() == before
    assert now_seeing() is None
    jax.grad(loss)(w)
    assert see.seen == []


def test_another_thread_sees_nothing(see):
    with seeing_gradients(see):
        thread = threading.Thread(target=lambda: jax.grad(loss)(w))
        thread.start()
        thread.join()
    assert see.seen == []


def test_seeing_ends_when_the_last_thread_ends():
    before = names()
    both, first_left = threading.Barrier(2), threading.Event()
    seen = {"first": [], "second": []}

    def run(name):
        def see(kind, tree, origins=None, name_=""):
            seen[name].append(kind)
            return tree

        with seeing_gradients(see):
            both.wait()
            if name == "second":
                first_left.wait()
            jax.grad(loss)(w)
        if name == "first":
            first_left.set()

    threads = [threading.Thread(target=run, args=(name,)) for name in seen]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert seen == {"first": ["loss", "grads"], "second": ["loss", "grads"]}
    assert names() == before


def test_what_jit_was_told_is_read_back():
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    sharding = NamedSharding(mesh, PartitionSpec())

    def f(a, b, *, c=1):
        return {"x": a, "y": b}

    jitted = jax.jit(
        f,
        static_argnames="c",
        donate_argnums=0,
        in_shardings=(sharding, None),
        out_shardings={"x": None, "y": sharding},
        keep_unused=True,
    )
    options = jit_options(jitted)
    assert options.donates
    assert options.keywords["donate_argnums"] == (0,)
    assert tuple(options.keywords["static_argnames"]) == ("c",)
    assert options.keywords["keep_unused"] is True
    assert options.keywords["in_shardings"] == (sharding, None)
    assert options.out_shardings == {"x": None, "y": sharding}
    assert jit_options(jax.jit(f)).keywords == {} and jit_options(jax.jit(f)).out_shardings is None


def test_only_what_jit_gave_is_jitted():
    assert is_jitted(jax.jit(loss))
    assert not any(map(is_jitted, [loss, jax.grad(loss), jax.jit(loss).lower(w), 3, None]))


def test_one_process_agrees_with_itself():
    consensus = ProcessConsensus("step", "answer", -1)
    assert consensus.measures(0) and (consensus.why_not, consensus.notes) == ("", ())
