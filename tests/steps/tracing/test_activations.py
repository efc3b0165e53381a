"""What goes into each parameter, comes out and flows back is found in any program, and its numbers are NumPy's."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import treeviz as tv
from treeviz.steps.reduce import activation_parts, activation_rows
from treeviz.steps.statistics import (
    ACTIVATIONS,
    LIGHT_OF_ACTIVATIONS,
    STATISTICS,
    MeasuredTree,
    unpack_activations,
)
from treeviz.steps.tracing.activations import MOST_USES, with_activations
from treeviz.steps.tracing.jax_private import seeing_gradients
from treeviz.steps.tracing.primitives import equations, sow, sow_p

pytestmark = pytest.mark.oldest_jax
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 6)).astype(np.float32)
W, V = RANDOM.normal(size=(2, 6, 6)).astype(np.float32)
IDS = RANDOM.integers(0, 7, (4, 5))


def layer(w, x):
    return jnp.tanh(x @ w)


@jax.custom_vjp
def product(x, w):
    return x @ w


product.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))


def in_calls(p, x):
    return jax.jit(layer)(p["b"], jax.jit(layer)(p["a"], x))


def in_a_loop(w, x):
    return lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ w["a"][i]), x)


def in_branches(p, x):
    return lax.cond(x[0, 0] > 0, lambda: x @ p["a"], lambda: -x @ p["a"])


# A model, its parameters, and the uses of each: the parameter, its role, the number of the use, and whether it is a
# layer of a stack. Of uses that cannot be told apart, and of changed parameters, there are no cotangents.
MODELS = {
    "dense": (lambda p, x: x @ p["a"] + p["b"][None], {"a": W, "b": W[0]}, "ai1x ao1x ac1x bi1x bo1x bc1x"),
    "calls": (in_calls, {"a": W, "b": V}, "ai1x ao1x ac1x bi1x bo1x bc1x"),
    "checkpoint": (lambda p, x: jax.checkpoint(layer)(p["a"], x), {"a": W}, "ai1x ao1x ac1x"),
    "custom_vjp": (lambda p, x: product(x, p["a"]), {"a": W}, "ai1x ao1x ac1x"),
    "vmap": (lambda p, x: jax.vmap(lambda x: p["a"].astype(x.dtype).T @ x)(x), {"a": W}, "ai1x ao1x ac1x"),
    "scan": (lambda p, x: lax.scan(lambda x, w: (layer(w, x), None), x, p["a"])[0], {"a": W[None]}, "ai1l ao1l ac1l"),
    "fori": (in_a_loop, {"a": np.stack([W, V, W])}, "ai1x ao1x"),
    "tied": (lambda p, x: layer(p["a"], layer(p["a"], x)), {"a": W}, "ai1x ao1x ai2x ao2x"),
    "branches": (in_branches, {"a": W}, "ai1x ao1x ac1x ai1x ao1x ac1x"),
    "branches of each": (lambda p, x: jax.vmap(partial(in_branches, p))(x[:, None]), {"a": W}, "ai1x ao1x ai2x ao2x"),
    "derived": (lambda p, x: x @ (p["a"] * 2 + p["b"] / jnp.sum(p["b"])), {"a": W, "b": V}, "ai1x bi1x ao1x bo1x"),
    "penalty": (lambda p, x: x @ p["a"] + jnp.sum(p["a"] ** 2), {"a": W}, "ai1x ao1x ac1x"),
    "scale": (lambda p, x: x * p["a"][None], {"a": W[0]}, "ai1x ao1x ac1x"),
    "whole loss": (jax.jit(lambda p, x: jnp.sum(x @ p["a"])), {"a": W}, "ai1x ao1x ac1x"),
    "masked": (lambda p, x: x @ (p["a"] * np.eye(6, dtype=np.float32)), {"a": W}, "ai1x ao1x"),
    "embedding": (lambda p, x: p["a"][IDS], {"a": W}, "ai1x ao1x ac1x"),
    "batch is a constant": (lambda p, x: jnp.asarray(X) @ p["a"], {"a": W}, "ai1x ao1x ac1x"),
}  # fmt: skip


def tagged(model, params):
    def step(p, x):
        return jax.tree.map(lambda w, g: w - g, p, jax.grad(lambda p: jnp.sum(model(p, x) ** 2))(p))

    with seeing_gradients(sow):
        program = jax.make_jaxpr(step)(params, X)
    program, n_uses = with_activations(program, True)
    sown = [eqn.params["sown"] for eqn, _ in equations(program) if eqn.primitive is sow_p]
    return [feed for tag in sown for activation in tag.activations for feed in activation.feeds], n_uses


@pytest.mark.parametrize("name", MODELS)
def test_it_finds_the_input_the_output_and_its_cotangent_of_every_parameter(name):
    model, params, expected = MODELS[name]
    feeds, _ = tagged(model, params)
    found = [f"{sorted(params)[f.argument]}{f.role[0]}{f.use}{'xl'[f.is_layer]}" for f in feeds]
    assert {feed.n_features for feed in feeds} <= {0, 6}
    assert sorted(found) == sorted(expected.split())


def test_a_parameter_that_is_used_very_often_has_its_first_uses():
    feeds, n_uses = tagged(lambda p, x: jax.tree.reduce(lambda x, _: layer(p["w"], x), [0] * 9, x), {"w": W})
    assert {feed.use for feed in feeds} == {*range(1, MOST_USES + 1)} and dict(n_uses) == {0: 9}


def numbers_of(x, features=None):
    """In float64."""
    x = np.asarray(x, np.float64)
    numbers = {"rms": np.sqrt(np.mean(x**2)), "max_abs": np.max(np.abs(x)), "zero_share": np.mean(x == 0)}
    if features is not None:
        x = np.moveaxis(x, features, -1).reshape(-1, x.shape[features])
        numbers |= {"dead": np.sum((x == 0).all(0)), "constant": np.sum(x.max(0) == x.min(0))}
    return numbers


def test_of_two_values_that_may_be_the_cotangent_none_is_taken():
    _, n_uses = tagged(lambda p, x: p["a"] * x[0] + jnp.sum(p["a"] ** 2), {"a": W[0]})
    assert n_uses[0, 1] == 2  # the gradient of the penalty is a product of the same size; see `activation_rows`


def test_one_value_that_is_not_finite_is_enough_in_a_light_step():
    bad, source = (
        X.copy(),
        MeasuredTree(ACTIVATIONS, ("", ""), (X.size,) * 2, ("float32",) * 2, (True,) * 2, ("6",) * 2),
    )
    bad[2, 1], bad[:, 3:5] = -np.inf, 0.0
    parts = [activation_parts(jnp.asarray(x), LIGHT_OF_ACTIVATIONS, (1,)) for x in (X, bad)]
    rows = np.asarray(activation_rows(parts, LIGHT_OF_ACTIVATIONS))
    found = unpack_activations(rows, LIGHT_OF_ACTIVATIONS, source)
    np.testing.assert_allclose(found["norm"], [np.linalg.norm(X), np.nan], 1e-6)
    counts = {name: found[name].tolist() for name in ("nonfinite", "zeros", "dead")}
    assert counts == {"nonfinite": [0, 1], "zeros": [0, 32], "dead": [0, 2]}


def test_lists_of_several_devices_are_joined_to_what_is_in_all():
    join = STATISTICS["dead_at"].join_members
    assert join(np.array([[1, 3, 5, 0], [3, 5, 7, 9]]), 0).tolist() == [3, 5, 0, 0]
    assert join(np.full((2, 4), -1), 0).tolist() == [-1] * 4  # without features


def model(p, ids):
    """The loss, and what goes into each parameter and comes out."""
    x = p["embedding"][ids]

    def body(x, layer):
        z = x @ layer["w"]
        y = z + layer["b"][None, None]
        return jax.nn.relu(y), (x, z, y)

    h, (xs, zs, ys) = lax.scan(body, x, p["layers"])
    table, h = p["embedding"].T.astype(jnp.bfloat16), h.astype(jnp.bfloat16)
    logits = lax.cond(jnp.sum(h) > 1e6, lambda: 2 * (h @ table), lambda: h @ table)  # the second is the first branch
    return jnp.mean(logits**2), (x, xs, zs, ys, h, logits)


def numbers_in(p, x, xs, zs, ys, h, logits):
    """Of what `model` returns beside the loss, and of the cotangents of outputs, by tree and path."""
    found = {("inputs", "['embedding']"): {"rows_read": len(np.unique(IDS))}}
    found["outputs", "['embedding']"] = numbers_of(x)
    found["inputs #2", "['embedding']"] = numbers_of(h, features=2)
    found["outputs #2", "['embedding']"] = numbers_of(logits)
    for i in range(3):
        found["inputs", f"['layers']['w'][{i}]"] = numbers_of(xs[i], features=2)
        found["outputs", f"['layers']['w'][{i}]"] = numbers_of(zs[i])
        found["inputs", f"['layers']['b'][{i}]"] = {"rms": numbers_of(zs[i])["rms"]}
        found["outputs", f"['layers']['b'][{i}]"] = numbers_of(ys[i])
    table, w, flowing = (np.asarray(x, np.float64) for x in (p["embedding"], p["layers"]["w"], logits))
    flowing = 2 * flowing / flowing.size
    found["cotangents #2", "['embedding']"] = numbers_of(flowing)
    flowing = flowing @ table
    for i in (2, 1, 0):
        flowing = flowing * (np.asarray(ys[i]) > 0)
        found["cotangents", f"['layers']['w'][{i}]"] = numbers_of(flowing)
        found["cotangents", f"['layers']['b'][{i}]"] = numbers_of(flowing)
        flowing = flowing @ w[i].T
    found["cotangents", "['embedding']"] = numbers_of(flowing)
    return found


@jax.jit
def update(p, ids):
    return jax.tree.map(lambda w, g: w - 1e-2 * g, p, jax.grad(lambda p: model(p, ids)[0])(p))


def test_the_numbers_are_those_of_numpy():
    draw = RANDOM.normal
    params = {"embedding": draw(size=(11, 6)), "layers": {"b": draw(size=(3, 6)), "w": draw(size=(3, 6, 6)) / 3}}
    params["layers"]["b"][0, 1::3] = -100.0  # dead
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    inspector, own, expected = tv.GradientInspector(activations=True, heavy_every=2, updates=False), params, []
    step = inspector.watch(update)
    for _ in range(30):
        expected.append(numbers_in(params, *jax.jit(model)(params, IDS)[1]))
        params, own = step(params, IDS), update(own, IDS)
    assert all(map(np.array_equal, jax.tree.leaves(params), jax.tree.leaves(own)))
    history = inspector.history
    for (tree, path), numbers in expected[0].items():
        leaf = history.sources[tree].paths.index(path)
        for statistic in numbers:
            is_light = statistic in ("rms", "dead") or (statistic == "zero_share" and "inputs" in tree)
            is_light &= "cotangents" not in tree
            measured = history.values(tree, statistic, leaf)
            assert measured.until.tolist() == [*range(0, 30, 1 if is_light else 2)]
            of_steps = [expected[i][tree, path][statistic] for i in measured.until]
            error = 1e-2 if "cotangents" in tree else 1e-6  # those of the logits are bfloat16
            np.testing.assert_allclose(measured.latest, of_steps, error, err_msg=f"{tree} {path} {statistic}")
    leaf = history.sources["inputs"].paths.index("['layers']['w'][1]")
    assert history.values("inputs", "dead_at", leaf).latest[-1].tolist()[:3] == [2, 5, 0]  # counted from 1
    leaf = history.sources["inputs"].paths.index("['embedding']")
    assert history.values("inputs", "unread_at", leaf).latest[-1].tolist()[:5] == [8, 9, 10, 11, 0]
    titles = str(inspector).splitlines()[1]
    assert all(title in titles for title in ("in rms", "out rms", "cotangent rms"))
