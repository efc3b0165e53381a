"""`watch` on models that scan over their layers: a row for each layer of an array that holds all."""

from __future__ import annotations

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import treeviz as tv
from treeviz.inspector.panel import LiveBackend
from treeviz.steps.tracing.domains import scanned_in

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


AT = jax.device_put(np.int32(3))
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


def test_weights_that_are_masked_and_normalized_before_a_scan_have_layers_and_added_positions_have_none():
    def f(weights, scales, position, mask):
        masked = jax.vmap(lambda w: jnp.where(mask, w, 0.0))(weights)
        normed = scales * masked / jnp.linalg.norm(masked, axis=1, keepdims=True)
        return jnp.sum(lax.map(jnp.sum, normed)) + jnp.sum(lax.map(jnp.sum, normed + position))

    jaxpr = jax.make_jaxpr(f)(*(jnp.ones((3, 2)),) * 3, jnp.ones(2, bool)).jaxpr
    found = scanned_in(jaxpr)
    assert [found.get(v) for v in jaxpr.invars] == [0, 0, None, None]


def test_what_is_gathered_from_devices_before_it_is_scanned_over_is_found():
    def f(longer, new):
        longer, new = lax.all_gather(longer, "i", axis=1, tiled=True), lax.all_gather(new, "i", axis=0)
        return jnp.sum(lax.map(jnp.sum, longer)) + jnp.sum(lax.map(jnp.sum, jnp.moveaxis(new, 1, 0)))

    jaxpr = jax.make_jaxpr(f, axis_env=[("i", 2)])(jnp.ones((3, 4)), jnp.ones((3, 4))).jaxpr
    found = scanned_in(jaxpr)
    assert [found.get(v) for v in jaxpr.invars] == [0, 0]


# Inside `shard_map`: "w" is gathered layer by layer, of "stage" each device has some layers, "b" is the same on all.

SHARDED = {"w": (4, 4, 4), "stage": (4, 2), "b": (3, 4, 4)}
DIVIDED = {"w": P(None, "model"), "stage": P("model"), "b": P()}


def sharded_loss(params, x, *, gathered):
    def layer(h, w):
        return jnp.tanh(h @ (lax.all_gather(w, "model", tiled=True) if gathered else w)), None

    def last(h, b):
        return h @ b, None

    h = lax.scan(last, lax.scan(layer, x, params["w"])[0], params["b"])[0]
    return jnp.mean(h**2) + jnp.mean(lax.scan(lambda h, w: (h * jnp.cos(w)[None], None), x[:, :2], params["stage"])[0])


if hasattr(jax, "shard_map"):
    shard_map, UNCHECKED = jax.shard_map, {"check_vma": False}
else:
    from jax.experimental.shard_map import shard_map

    UNCHECKED = {"check_rep": False}


def sharded_step(options, loops=False):
    def step(params, x):
        def gradients(i):
            return jax.grad(sharded_loss)(params, x + i, gathered=True)

        grads = jax.tree.map(lambda g: g.sum(0), lax.map(gradients, jnp.arange(2.0))) if loops else gradients(0)
        if options:  # else they are summed where they are made
            grads = {k: lax.psum(g, ("data", "model") if k == "b" else "data") for k, g in grads.items()}
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    specs = {"in_specs": (DIVIDED, P(("data", "model"))), "out_specs": DIVIDED}
    return jax.jit(shard_map(step, mesh=mesh, **specs, **options))


def sharded_arguments():
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in SHARDED.items()}
    return params, jnp.asarray(rng.normal(size=(8, 4)), jnp.float32)


def sharded_truth(params, x):
    """By the layer, of the sum of the losses of four devices."""

    def loss(params):
        stages = [params["stage"][:2], params["stage"][2:]] * 2
        each = zip(stages, x.reshape(4, 2, 4), strict=True)
        return sum(sharded_loss({**params, "stage": stage}, x, gathered=False) for stage, x in each)

    return jax.jit(jax.grad(loss))(params)


def by_layer(tree):
    return [np.linalg.norm(layer) for name in sorted(tree) for layer in np.asarray(tree[name])]


@pytest.mark.skipif("jax.device_count() < 4")
@pytest.mark.parametrize("options", [{}, UNCHECKED], ids=["checked", "unchecked"])
def test_in_shard_map_layers_are_those_of_the_whole_arrays(options):
    if not options and not hasattr(jax, "shard_map"):
        pytest.skip("jax 0.4 does not see which gradients are sums")
    params, x = sharded_arguments()
    inspector = tv.GradientInspector(updates=True)
    inspector.watch(sharded_step(options))(params, x)
    history, gradients = inspector.history, sharded_truth(params, x)
    source = history.sources["grads"]
    assert source.paths == tuple(f"['{k}'][{i}]" for k in sorted(SHARDED) for i in range(SHARDED[k][0]))
    assert source.stacks == ("*3,4,4",) * 3 + ("*4,2",) * 4 + ("*4,4,4",) * 4 and inspector.notes == []
    for name, tree in {"grads": gradients, "params": params, "updates": gradients}.items():
        factor = 0.1 if name == "updates" else 1
        np.testing.assert_allclose(history.last(name)[1]["norm"], np.multiply(factor, by_layer(tree)), rtol=1e-4)


@pytest.mark.skipif("jax.device_count() < 4")
def test_where_devices_are_not_known_to_have_other_layers_the_array_stays_whole():
    inspector = tv.GradientInspector()
    inspector.watch(sharded_step(UNCHECKED, loops=True))(
        *sharded_arguments()
    )  # summed after the loop, and so not known
    layers = [f"['{k}'][{i}]" for k in ("b", "w") for i in range(SHARDED[k][0])]
    assert sorted(inspector.history.sources["grads"].paths) == sorted(["['stage']", *layers])
    label, note = inspector.notes
    assert label == "grads is the gradient of each micro-batch, of each device."
    assert note == (
        "['stage']: its layers are measured as one array: which device of the `shard_map` has which of them is not "
        "known."
    )
