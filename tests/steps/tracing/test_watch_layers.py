"""`watch` on models that scan over their layers: a row for each layer of an array that holds all."""

from __future__ import annotations

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import treeviz as tv
from treeviz.inspector.backend import LiveBackend
from treeviz.steps.tracing.scanned import scanned_in

pytestmark = pytest.mark.oldest_jax

N = 3


def model():
    """Layers along axis 0 of "w", along axis 1 of "b", as Flax can have them; "table" is no stack."""
    rng = np.random.default_rng(0)
    shapes = {"layers": {"b": (4, N), "w": (N, 4, 4)}, "out": (2, 4), "table": (5, 4)}
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )


def loss(params, at):
    @jax.checkpoint
    def layer(h, w_and_b):
        w, b, is_used = w_and_b
        return h + is_used * jnp.tanh(h @ w + b), None

    cast = params["layers"]["w"].astype(jnp.bfloat16).astype(jnp.float32)
    xs = cast, jnp.moveaxis(params["layers"]["b"], 1, 0), jnp.array([1.0, 0.0, 1.0])
    h, _ = jax.jit(lambda h, xs: lax.scan(layer, h, xs))(params["table"][at], xs)
    return jnp.mean((h * params["out"][0] + params["out"][1]) ** 2)


@jax.jit
def update(params, at):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, at))


AT = jnp.array(3)
PATHS = (
    *(f"['layers']['b'][:, {i}]" for i in range(N)),
    *(f"['layers']['w'][{i}]" for i in range(N)),
    "['out']",
    "['table']",
)


def norms_by_layer(tree):
    b, w = tree["layers"]["b"], tree["layers"]["w"]
    return [np.linalg.norm(x) for x in (*np.asarray(b).T, *np.asarray(w), tree["out"], tree["table"])]


@pytest.fixture(scope="module")
def inspector():
    inspector, params = tv.GradientInspector(updates=True), model()
    step = inspector.watch(update)
    for _ in range(20):
        params = step(params, AT)
    return inspector


def test_the_layers_that_a_step_scans_over_are_measured_apart(inspector):
    history = inspector.history
    gradients = jax.jit(jax.grad(loss))(model(), AT)
    updates = jax.tree.map(lambda g: -0.1 * g, gradients)
    for name, tree in {"grads": gradients, "params": model(), "updates": updates}.items():
        assert history.sources[name].paths == PATHS
        np.testing.assert_allclose(history.values(name, "norm").latest[0], norms_by_layer(tree), rtol=2e-5, atol=1e-8)
    assert inspector.notes == []


def test_a_dead_layer_is_found_by_its_index(inspector):
    (dead,) = [finding for finding in inspector.findings if finding.kind == "dead"]
    assert dead.path == "['layers']['w'][1]" and len(dead.leaves) == 2
    view = inspector.render()
    (row,) = view.find("layers/w[1]")
    assert row["grads_norm"] == 0 and row.shape == (4, 4) and row.kind == "layer"
    assert [mark.row for mark in view.series[0].marks if mark.kind == "dead"] == [row.number]
    assert view.table[0]["leaves"] == 4 == len(list(view.table.leaves))
    np.testing.assert_allclose(row.parent["grads_norm"], np.linalg.norm([r["grads_norm"] for r in row.parent.children]))
    assert "layers/w/1" in [row.path for row in view.find("grads_norm:=0")]


def test_a_live_view_leads_to_the_layer_of_another_tree(inspector):
    backend = LiveBackend(weakref.ref(inspector), panel=None, view=inspector.render())
    (row,) = backend.view.find("layers/b[2]")
    assert list(map(jax.tree_util.keystr, backend.paths([row.number]))) == ["['layers']['b']"]
    np.testing.assert_array_equal(backend.where(model(), [row.number])[0], model()["layers"]["b"][:, 2])


def test_a_saved_run_keeps_its_layers(inspector, tmp_path):
    loaded = tv.GradientInspector.load(inspector.save(tmp_path / "run.treeviz"))
    assert loaded.history.sources == inspector.history.sources
    assert loaded.render().text() == inspector.render().text()


def test_globs_tell_of_arrays_that_are_not_scanned_over():
    inspector = tv.GradientInspector(stacked=["out", "nowhere"])
    inspector.watch(update)(model(), AT)
    (source,) = inspector.history.sources.values()
    assert source.paths == (*PATHS[: 2 * N], *(f"['out'][{i}]" for i in range(2)), "['table']")
    (note,) = inspector.notes
    assert note.startswith("stacked='nowhere': no array that is measured has such a key path and axis")
    gradients = np.asarray(jax.jit(jax.grad(loss))(model(), AT)["out"])
    found = inspector.history.last()[1]["norm"][2 * N : 2 * N + 2]
    np.testing.assert_allclose(found, np.linalg.norm(gradients, axis=1), rtol=2e-5)


def test_none_takes_no_array_apart_and_what_is_no_glob_is_refused():
    with pytest.raises(TypeError, match="stacked= takes globs"):
        tv.GradientInspector(stacked=[0]).watch(update)
    inspector = tv.GradientInspector(stacked=None)
    inspector.watch(update)(model(), AT)
    assert len(inspector.history.sources["grads"].paths) == 4


def test_the_members_of_an_ensemble_are_rows_that_are_no_leaves():
    inspector = tv.GradientInspector(members="each")

    @jax.jit
    @jax.vmap
    def step(w):
        return w - jax.grad(lambda w: jnp.sum(w**2))(w)

    inspector.watch(step)(jnp.arange(6.0).reshape(3, 2))
    table = inspector.render().table
    assert len(list(table.leaves)) == 1 and [row.label for row in table[0].children] == ["[0]", "[1]", "[2]"]
    np.testing.assert_allclose([row["grads_norm"] for row in table[0].children], 2 * np.sqrt([1, 13, 41]), rtol=1e-6)


def test_members_of_layers_are_measured_too():
    def step(ws, x):
        return ws - jax.grad(lambda ws: jnp.sum(lax.scan(lambda h, w: (jnp.tanh(h * w), None), x, ws)[0]))(ws)

    inspector = tv.GradientInspector(members="each")
    ws = jnp.linspace(0.1, 0.6, 6).reshape(2, 3)
    inspector.watch(jax.jit(jax.vmap(step, (0, None))))(ws, jnp.ones(()))
    assert inspector.history.sources["grads"].paths == tuple(
        f"[{i}][{member}]" for i in range(3) for member in range(2)
    )
    after = jax.vmap(step, (0, None))(ws, jnp.ones(()))
    np.testing.assert_allclose(inspector.history.last()[1]["norm"], np.abs(ws - after).T.ravel(), rtol=1e-5)


def test_what_is_scanned_over_is_found_at_any_depth():
    def f(whole, cut, flat, index):
        twice = lax.scan(lambda c, _: lax.scan(lambda c, x: (c + x, None), c, whole), 0.0, None, length=2)[0]
        taken = lax.cond(index > 0, lambda x: jnp.sum(lax.map(jnp.sin, x)), jnp.sum, cut.T)
        return twice + taken + jnp.sum(lax.map(jnp.sin, flat.reshape(2, 3))) + whole[index]

    x = jnp.ones(4)
    jaxpr = jax.make_jaxpr(f)(x, jnp.ones((2, 3)), jnp.ones(6), 1).jaxpr
    found = scanned_in(jaxpr)
    assert [found.get(v) for v in jaxpr.invars] == [0, 1, None, None]
