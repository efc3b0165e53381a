"""`watch(updates=True)`: the parameters and what a step adds to them, compared with what is computed apart."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from watched import beside, copies, loss_fn, mlp_data, same_bytes, true_norms, update_mlp

from treeviz.steps.tracing.watch import watch

pytestmark = pytest.mark.oldest_jax

x, y = mlp_data()
grads_of_loss = jax.jit(jax.grad(loss_fn))
NAMES = ["grads", "params", "updates"]


def change(old, new):
    """Leaf by leaf, in float64."""
    return jax.tree.map(lambda a, b: np.asarray(b, np.float64) - np.asarray(a, np.float64), old, new)


def check(seen, gradients, old, new, *, at=-1, suffix="", rtol=2e-5):
    seen.check(gradients, "grads" + suffix, at, rtol)
    seen.check(old, "params" + suffix, at)
    seen.check(change(old, new), "updates" + suffix, at)
    for name in NAMES:
        assert seen.paths(name + suffix, at) == seen.paths("grads" + suffix, at)


def add(params, updates):
    return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)


def adam_init(params):
    zeros = jax.tree.map(lambda p: np.zeros(p.shape, p.dtype), params)  # of `jnp.zeros`, each shape is a program
    return jax.device_put({"n": np.int32(0), "mu": zeros, "nu": zeros})


def adam(grads, state, params, decay=0.0):
    """As optax has it, with decoupled weight decay."""
    n = state["n"] + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["nu"], grads)
    c = 1 - 0.9**n
    updates = jax.tree.map(
        lambda m, v, p: -0.01 * (m / c.astype(m.dtype) / (jnp.sqrt(v) + 1e-6) + decay * p), mu, nu, params
    )
    return updates, {"n": n, "mu": mu, "nu": nu}


@pytest.mark.optimized
def test_the_documentations_mlp_shows_parameters_and_updates_at_every_step(seen, mlp):
    step = jax.jit(update_mlp)
    watched = watch(step, seen, updates=True)
    params = mlp
    for _ in range(4):
        old = params
        params = watched(params, x, y)
        check(seen, grads_of_loss(old, x, y), old, params)
        assert same_bytes(params, step(old, x, y))
    assert seen.names() == NAMES
    assert watched.notes == ()
    assert watched.watches["updates"].owner == "params"


def with_adam(params, state, x, y):
    updates, state = adam(jax.grad(loss_fn)(params, x, y), state, params)
    return add(params, updates), state


def with_adam_first_state(params, state, x, y):
    updates, state = adam(jax.grad(loss_fn)(params, x, y), state, params, decay=0.1)
    return state, add(params, updates), jnp.ones(())


def with_decay_in_the_moments(params, state, x, y):
    gradients = jax.tree.map(lambda g, p: g + 0.1 * p, jax.grad(loss_fn)(params, x, y), params)
    updates, state = adam(gradients, state, params)
    return {"state": state, "loss": 1.0, "params": add(params, updates)}


def with_decay_by_a_factor(params, state, x, y):
    updates, state = adam(jax.grad(loss_fn)(params, x, y), state, params)
    return jax.tree.map(lambda p, u: p * (1 - 0.01 * 0.1) + u, params, updates), state


def with_a_scheduled_factor(params, state, x, y):
    updates, state = adam(jax.grad(loss_fn)(params, x, y), state, params)
    rate = 0.01 / state["n"]
    return jax.tree.map(lambda p, u: p * (1 - rate * 0.1) + rate * u, params, updates), state


def with_the_old_ones_returned(params, state, x, y):
    updates, state = adam(jax.grad(loss_fn)(params, x, y), state, params)
    return params, add(params, updates), state


def with_gradients_returned(params, state, x, y):
    gradients = jax.grad(loss_fn)(params, x, y)
    updates, state = adam(gradients, state, params)
    return gradients, state, updates, add(params, updates)


def where_all_is_finite(params, state, x, y):
    gradients = jax.grad(loss_fn)(params, x, y)
    updates, new_state = adam(gradients, state, params)
    good = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradients)]))
    kept = partial(jax.tree.map, lambda a, b: jnp.where(good, a, b))
    return kept(add(params, updates), params), kept(new_state, state)


def under_a_condition(params, state, x, y):
    updates, state = adam(jax.grad(loss_fn)(params, x, y), state, params)
    return jax.lax.cond(state["n"] > 0, lambda: add(params, updates), lambda: params), state


def in_a_jit_of_its_own(params, state, x, y):
    return jax.jit(lambda p, u: jax.tree.map(lambda p, u: jnp.clip(p + u, -9, 9), p, u))(
        params, jax.jit(adam)(grads_of_loss(params, x, y), state, params)[0]
    ), state


STEPS = [
    *(with_adam, with_adam_first_state, with_decay_in_the_moments, with_decay_by_a_factor, with_a_scheduled_factor),
    *(with_the_old_ones_returned, with_gradients_returned, where_all_is_finite, under_a_condition, in_a_jit_of_its_own),
]
PLACES = {
    "with_adam_first_state": 1,
    "with_decay_in_the_moments": "params",
    "with_the_old_ones_returned": 1,
    "with_gradients_returned": 3,
}


# For the bits these three, and tests of their own in test_watch_bits.py.
OPTIMIZED = with_adam, where_all_is_finite, in_a_jit_of_its_own


@pytest.mark.parametrize(
    ("function", "donated"),
    [
        *(
            pytest.param(f, False, marks=[pytest.mark.optimized] * (f in OPTIMIZED), id=f"{f.__name__}-kept")
            for f in STEPS
        ),
        *(pytest.param(f, True, id=f"{f.__name__}-donated") for f in (with_adam, where_all_is_finite)),
    ],
)
def test_the_new_parameters_are_told_from_moments_gradients_and_the_old_ones(
    function, donated, seen, layer, monkeypatch
):
    is_alone = donated or function in OPTIMIZED  # else one program also computes the plain step
    if not is_alone:
        beside(function, monkeypatch)
    watched = watch(jax.jit(function, donate_argnums=(0, 1) if donated else ()), seen, updates=True)
    gradients = grads_of_loss(layer, x, y)
    state = adam_init(layer)
    after = watched(copies(layer), copies(state), x, y)
    after, plain = (after, jax.jit(function)(layer, state, x, y)) if is_alone else after
    assert watched.trouble == "" and watched.notes == ()
    assert same_bytes(after, plain)
    check(seen, gradients, layer, after[PLACES.get(function.__name__, 0)])
    assert seen.names() == NAMES


def average(d):
    return lambda a, p: d * a + (1 - d) * p


@pytest.mark.parametrize(
    ("averaged", "first"),
    [
        *((average(0.99), "params"), (average(0.3), "average")),
        *((lambda a, p: a + 0.01 * (p - a), "average"), (lambda a, p: a + 0.6 * (p - a), "params")),
    ],
    ids=["slow", "fast", "added", "added fast"],
)
def test_an_average_of_the_parameters_is_not_taken_for_them(averaged, first, seen, layer):
    def step(state, x, y, d):
        params = update_mlp(state["params"], x, y)
        return {
            "params": params,
            "average": jax.tree.map(averaged, state["average"], params),
            "by an argument": jax.tree.map(average(d), state["by an argument"], params),
        }

    if first == "average":
        renamed = {"params": "p", "average": "a", "by an argument": "b"}
        plain = step

        def step(p, a, b, x, y, d):
            state = plain({"params": p, "average": a, "by an argument": b}, x, y, d)
            return state["by an argument"], state["average"], state["params"]

    else:
        renamed = {}
    other = jax.tree.map(lambda p: p * 0.5 + 0.1, layer)
    state = {"params": layer, "average": other, "by an argument": other}
    if renamed:
        after = watch(jax.jit(step), seen, updates=True)(*state.values(), x, y, 0.9)[2]
    else:
        after = watch(jax.jit(step), seen, updates=True)(state, x, y, 0.9)["params"]
    check(seen, grads_of_loss(layer, x, y), layer, after)


def test_two_networks_have_their_parameters_and_updates_each(seen, layer):
    @jax.jit
    def step(generator, discriminator, x, y):
        of_generator = jax.grad(lambda g: loss_fn(g, x, y))(generator)
        of_discriminator = jax.grad(lambda d: loss_fn(d, x, -y))(discriminator)
        return tuple(
            jax.tree.map(lambda p, g: p - 0.1 * g, *pair)
            for pair in ((generator, of_generator), (discriminator, of_discriminator))
        )

    other = jax.tree.map(lambda p: p * 0.5, layer)
    generator, discriminator = watch(step, seen, updates=True)(layer, other, x, y)
    check(seen, grads_of_loss(layer, x, y), layer, generator, suffix=" of generator")
    check(seen, grads_of_loss(other, x, -y), other, discriminator, suffix=" of discriminator")


def test_micro_batches_share_one_update(seen, layer):
    @jax.jit
    def step(params, x, y):
        first, second = (jax.grad(loss_fn)(params, x[i::2], y[i::2]) for i in range(2))
        return jax.tree.map(lambda p, a, b: p - 0.1 * (a + b), params, first, second)

    after = watch(step, seen, updates=True)(layer, x, y)
    assert seen.names() == ["grads", "grads #2", "params", "updates"]
    check(seen, grads_of_loss(layer, x[::2], y[::2]), layer, after)


def test_micro_batches_in_a_loop_share_one_update(seen, layer):
    @jax.jit
    def step(params, x, y):
        def body(total, batch):
            return jax.tree.map(jnp.add, total, jax.grad(loss_fn)(params, *batch)), None

        batches = x.reshape(4, 4, 1), y.reshape(4, 4, 1)
        total = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, params), batches)[0]
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, total)

    after = watch(step, seen, updates=True)(layer, x, y)
    assert seen.norms().shape == (4, 2)
    seen.check(layer, "params")
    seen.check(change(layer, after), "updates")


def scan(params):
    return jax.lax.scan(lambda p, _: (update_mlp(p, x, y), None), params, None, length=4)[0]


def fori_loop(params):
    return jax.lax.fori_loop(0, 4, lambda _, p: update_mlp(p, x, y), params)


def while_loop(params):
    return jax.lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, update_mlp(s[1], x, y)), (0, params))[1]


def scan_of_adam_and_average(params):
    def body(carry, _):
        params, state, average = carry
        updates, state = adam(jax.grad(loss_fn)(params, x, y), state, params)
        params = add(params, updates)
        return (params, state, jax.tree.map(lambda a, p: 0.5 * a + 0.5 * p, average, params)), params

    return jax.lax.scan(body, (params, adam_init(params), params), None, length=4)[0][0]


def scan_in_a_scan(params):
    two = jax.jit(lambda p: jax.lax.scan(lambda p, _: (update_mlp(p, x, y), None), p, None, length=2)[0])
    return jax.lax.scan(lambda p, _: (two(p), None), params, None, length=2)[0]


@pytest.mark.parametrize(
    "loop",
    [
        *(scan, fori_loop, while_loop, scan_in_a_scan),
        pytest.param(scan_of_adam_and_average, marks=pytest.mark.optimized),
    ],
)
def test_in_a_training_loop_each_inner_step_has_its_parameters_and_updates(loop, seen, layer):
    step = jax.jit(loop)
    watched = watch(step, seen, updates=True)
    after = watched(layer)
    assert same_bytes(after, step(layer))
    rows, state, params = [], adam_init(layer), layer
    for _ in range(4):
        if loop is scan_of_adam_and_average:
            new, state = jax.jit(with_adam)(params, state, x, y)
        else:
            new = jax.jit(update_mlp)(params, x, y)
        rows.append([true_norms(tree) for tree in (grads_of_loss(params, x, y), params, change(params, new))])
        params = new
    truth = np.array(rows[-1:] if loop is while_loop else rows)
    assert seen.names() == NAMES and len(watched.notes) == (loop is while_loop)
    for i, name in enumerate(NAMES):
        np.testing.assert_allclose(seen.norms(name).reshape(-1, 2), truth[:, i], rtol=2e-4)
    assert watched.watches["updates"].axes == watched.watches["grads"].axes


def test_each_member_of_an_ensemble_has_its_own(seen, layer):
    ensemble = jax.tree.map(lambda p: np.stack([p, p * 0.5, -p], axis=p.ndim), layer)
    step = jax.jit(jax.vmap(update_mlp, in_axes=(jax.tree.map(lambda p: p.ndim, layer), None, None)))
    after = watch(step, seen, updates=True)(ensemble, x, y)
    members = [jax.tree.map(lambda p: p[..., i], ensemble) for i in range(3)]
    np.testing.assert_allclose(seen.norms(), [true_norms(grads_of_loss(m, x, y)) for m in members], rtol=2e-5)
    np.testing.assert_allclose(seen.norms("params"), [true_norms(m) for m in members], rtol=2e-5)
    assert "updates" not in seen.names()  # the results have the members along another axis
    step = jax.jit(jax.vmap(update_mlp, in_axes=(0, None, None)))
    ensemble = jax.tree.map(lambda p: np.stack([p, p * 0.5, -p]), layer)
    after = watch(step, seen, updates=True)(ensemble, x, y)
    news = [jax.tree.map(lambda p: p[i], after) for i in range(3)]
    updates = [true_norms(change(m, new)) for m, new in zip(members, news, strict=True)]
    np.testing.assert_allclose(seen.norms("updates"), updates, rtol=2e-5)


def test_gradients_of_each_example_have_the_parameters_once(seen, layer):
    @jax.jit
    def step(params, x, y):
        each = jax.vmap(jax.grad(loss_fn), in_axes=(None, 0, 0))(params, x[:, None], y[:, None])
        return jax.tree.map(lambda p, g: p - 0.1 * jnp.mean(g, 0), params, each)

    after = watch(step, seen, updates=True)(layer, x, y)
    assert seen.norms().shape == (16, 2)
    seen.check(layer, "params")
    seen.check(change(layer, after), "updates")


@pytest.mark.optimized
def test_in_bfloat16_the_update_is_what_is_left_of_it_after_rounding(seen, layer):
    low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), layer)
    step = jax.jit(lambda p: jax.tree.map(lambda p, g: p - jnp.bfloat16(1e-4) * g, p, jax.grad(loss_fn)(p, x, y)))
    after = watch(step, seen, updates=True)(low)
    assert same_bytes(after, step(low))
    seen.check(change(low, after), "updates")
    assert (true_norms(change(low, after)) == 0).any()
    seen.check(low, "params")


def test_low_precision_gradients_belong_to_the_parameters_in_float32(seen, layer):
    @jax.jit
    def step(params):
        low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        gradients = jax.grad(loss_fn)(low, x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))
        return jax.tree.map(lambda p, g: p - 0.01 * g.astype(jnp.float32), params, gradients)

    watched = watch(step, seen, updates=True)
    after = watched(layer)
    seen.check(layer, "params")
    seen.check(change(layer, after), "updates")
    assert set(watched.watches["updates"].source.dtypes) == {"float32"}
    assert set(watched.watches["grads"].source.dtypes) == {"bfloat16"}


def test_a_copy_in_float32_updates_the_parameters_in_low_precision(seen, layer):
    @jax.jit
    def step(params, master):
        gradients = jax.grad(loss_fn)(params, x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))
        master = jax.tree.map(lambda p, g: p - 0.1 * g.astype(jnp.float32), master, gradients)
        return jax.tree.map(lambda p: p.astype(jnp.bfloat16), master), master

    low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), layer)
    after = watch(step, seen, updates=True)(low, layer)[0]
    seen.check(low, "params")
    seen.check(change(low, after), "updates")


def test_frozen_leaves_have_no_update(seen, mlp):
    @jax.jit
    def step(params):
        gradients = jax.grad(loss_fn)(params, x, y)
        return [params[0], *jax.tree.map(lambda p, g: p - 0.1 * g, params[1:], gradients[1:])]

    after = watch(step, seen, updates=True)(mlp)
    check(seen, grads_of_loss(mlp, x, y), mlp, after)
    assert seen.norms("updates")[:2].tolist() == [0, 0]


def both_ways(params, gradients):
    return {str(s): jax.tree.map(lambda p, g, s=s: p + s * g, params, gradients) for s in (0.1, -0.1)}


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (
            lambda params, x: jax.grad(loss_fn)(params, x, y),
            r"the new params\[0\]\['biases'\], params\[0\].* and 1 more$",
        ),
        (
            lambda params, x: jax.tree.map(lambda g: g * 0.5, jax.grad(loss_fn)(params, x, y)),
            r"the new params\[0\]\['biases'\], params\[0\].* and 1 more$",
        ),
        (lambda params, x: update_mlp(params, x, y)[:1], r"the new params\[1\]\['biases'\], params\[1\]\['weights'\]$"),
        (lambda params, x: both_ways(params, jax.grad(loss_fn)(params, x, y)), r"\['biases'\].* and 1 more$"),
    ],
    ids=["gradients", "scaled gradients", "a part", "two candidates"],
)
def test_where_no_result_is_surely_the_new_parameters_there_are_no_updates_and_a_note(function, why, seen, mlp):
    import re

    watched = watch(jax.jit(function), seen, updates=True)
    watched(mlp, x)
    assert seen.names() == ["grads", "params"]
    seen.check(mlp, "params")
    (note,) = watched.notes
    assert note.startswith("updates are not measured: no result of the step is for sure") and re.search(why, note)


def test_without_being_asked_only_the_steps_with_histograms_measure_updates(seen, layer):
    watched = watch(jax.jit(update_mlp), seen, heavy_every=2)
    for _ in range(3):
        watched(layer, x, y)
    assert [seen.names(at) for at in range(3)] == [NAMES, ["grads"], NAMES]
    seen.check(layer, "params", 2)
    never = watch(jax.jit(update_mlp), seen, heavy_every=2, updates=False)
    never(layer, x, y)
    assert seen.names() == ["grads"]


def test_exact_measures_updates_and_runs_the_untouched_step(seen, layer):
    step = jax.jit(lambda p, x, y: update_mlp(p, x, y), donate_argnums=0)
    after = watch(step, seen, exact=True, updates=True)(copies(layer), x, y)
    check(seen, grads_of_loss(layer, x, y), layer, after)
    assert same_bytes(after, step(copies(layer), x, y))


def test_the_order_of_use_is_that_of_the_forward_pass(seen):
    params = {"z": jnp.ones((3, 3)), "a": jnp.ones((3, 3)), "m": jnp.ones(3), "unused": jnp.ones(3)}

    def loss(p, x):
        low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), p)
        h = jax.nn.relu(jax.jit(jnp.matmul)(x, low["z"].T) + low["m"][None])
        return jnp.sum(jax.checkpoint(lambda h: h @ low["a"])(h)).astype(jnp.float32)

    step = jax.jit(lambda p, x: jax.tree.map(lambda p, g: p - g, p, jax.grad(loss)(p, x)))
    watched = watch(step, seen)
    watched(params, jnp.ones((2, 3), jnp.bfloat16))
    forward = watched.watches["grads"].forward
    assert forward[:3] == ("['z']", "['m']", "['a']")
    looped = watch(jax.jit(lambda p, x: jax.lax.fori_loop(0, 2, lambda _, p: step(p, x), p)), seen)
    looped(params, jnp.ones((2, 3), jnp.bfloat16))
    assert looped.watches["grads"].forward[:3] == forward[:3]
