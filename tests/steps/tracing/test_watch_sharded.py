"""`watch` on eight devices: automatic and explicit shardings, and `shard_map`."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from watched import beside, copies, same_bytes, true_norms

import treeviz as tv
from treeviz.steps import reduce as barrier
from treeviz.steps.recording.decode import stacked
from treeviz.steps.statistics import LIGHT
from treeviz.steps.tracing.instrumented import instrumented
from treeviz.steps.tracing.jitted import jit_options
from treeviz.steps.tracing.watch import watch

pytestmark = pytest.mark.oldest_jax

if hasattr(jax, "shard_map"):
    unchecked = {"check_vma": False}
    shard_map = jax.shard_map
else:
    from jax.experimental.shard_map import shard_map

    unchecked = {"check_rep": False}

COLLECTIVES = ["all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all"]
rng = np.random.default_rng(0)
params = jax.device_put({"w": rng.normal(size=(16, 8)), "b": rng.normal(size=(8,))})
x, y = jax.device_put((rng.normal(size=(32, 16)), rng.normal(size=(32, 8))))


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"][None]) - y) ** 2)


gradients_of = jax.jit(jax.grad(loss))  # a program, where each operation would be one
gradients = gradients_of(params, x, y)


def descend(params, gradients):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def update(params, x, y):
    return descend(params, jax.grad(loss)(params, x, y))


update_jitted = jax.jit(update)


@pytest.fixture
def mesh():
    if jax.device_count() != 8:
        pytest.skip("needs eight devices")
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


SPECS = {
    "replicated": {"w": P(), "b": P()},
    "sharded": {"w": P("model", None), "b": P("model")},
    "fully sharded": {"w": P(("data", "model"), None), "b": P(("data", "model"))},
}


def placed(mesh, specs):
    shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, P))
    batch = NamedSharding(mesh, P("data"))
    return shardings, batch, jax.device_put(params, shardings), jax.device_put(x, batch), jax.device_put(y, batch)


@pytest.mark.parametrize(
    ("said", "specs"),
    [
        *(("nothing", "replicated"), ("nothing", "fully sharded"), ("in", "replicated")),
        *(("a prefix", "sharded"), ("out", "fully sharded")),
        pytest.param("in and out", "fully sharded", marks=pytest.mark.optimized),
    ],
)
def test_shardings_stay_as_they_are_and_every_device_has_the_numbers(specs, said, mesh, seen):
    shardings, batch, p, bx, by = placed(mesh, SPECS[specs])
    options = {}
    if "in" in said.split():
        options["in_shardings"] = (shardings, batch, batch)
    if "out" in said.split():
        options["out_shardings"] = shardings
    if said == "a prefix":
        options["out_shardings"] = NamedSharding(mesh, P())
    donated = () if said == "a prefix" else 0  # its results lie elsewhere than its arguments
    step = jax.jit(update, donate_argnums=donated, **options)
    watched = watch(step, seen)
    mine = copies(p)
    after = watched(mine, bx, by)
    expected = step(copies(p), bx, by)
    assert same_bytes(after, expected)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(expected), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
    seen.check(gradients)
    assert seen.measurements[0].packed["grads"].is_fully_replicated
    assert watched.trouble == ""


@pytest.mark.parametrize("updates", [False, True])
def test_results_lie_where_the_step_puts_them_though_others_that_are_measured_with_them_are_sharded(mesh, updates):
    shardings = {"layers": P("data"), "head": P(), "bias": P()}
    shapes = {"layers": (4, 8, 8), "head": (8, 16), "bias": (16,)}
    place = lambda spec, shape: jax.device_put(rng.normal(size=shape), NamedSharding(mesh, spec))
    p = {name: place(spec, shapes[name]) for name, spec in shardings.items()}

    @jax.jit
    def step(p, x):
        def loss(p):
            y = x
            for i in range(2):
                y = jnp.tanh(y @ p["layers"][i])
            return jnp.mean((y @ p["head"] + p["bias"][None]) ** 2)

        return descend(p, jax.grad(loss)(p))

    bx, inspector = place(P("data"), (32, 8)), tv.GradientInspector(updates=updates)
    watched, after, expected = inspector.watch(step), p, p
    for _ in range(3):
        after, expected = watched(after, bx), step(expected, bx)
        assert same_bytes(after, expected)
        for name in p:
            assert after[name].sharding.is_equivalent_to(expected[name].sharding, p[name].ndim), name
    assert not inspector.notes and len(inspector.history) == 3


def test_a_jax_without_such_a_barrier_costs_a_warning_and_no_step(mesh, seen, monkeypatch):
    for name in ("PropagationBarrierOp", "CustomCallOp"):
        monkeypatch.setattr(barrier, name, None)
    _, _, p, bx, by = placed(mesh, SPECS["replicated"])
    step = jax.jit(update)
    with pytest.warns(RuntimeWarning, match="results of a measured step may be placed differently"):
        after = watch(step, seen)(p, bx, by)
    assert same_bytes(after, step(p, bx, by))
    seen.check(gradients)


@pytest.mark.parametrize("name", ["ad.primitive_jvps", "batching.primitive_batchers", "mlir.register_lowering"])
def test_a_jax_without_what_makes_a_primitive_costs_a_warning_and_no_measurement(name, monkeypatch):
    monkeypatch.delattr(f"jax.interpreters.{name}")
    monkeypatch.setattr(barrier, "_forward_p", barrier._forward())
    assert barrier._forward_p is None
    with pytest.warns(RuntimeWarning, match="results of a measured step may be placed differently"):
        assert np.asarray(barrier.barrier(x)).tobytes() == np.asarray(x).tobytes()


def test_explicit_axes_are_reaped(seen, monkeypatch):
    axis_type = getattr(jax.sharding, "AxisType", None)
    if axis_type is None or not hasattr(jax, "set_mesh"):
        pytest.skip("this jax has no explicit axes")
    mesh = jax.make_mesh((8,), ("data",), axis_types=(axis_type.Explicit,))
    with jax.set_mesh(mesh):
        p = jax.device_put(params, NamedSharding(mesh, P()))
        bx, by = (jax.device_put(a, NamedSharding(mesh, P("data"))) for a in (x, y))
        step = jax.jit(update)
        beside(step, monkeypatch)
        watched = watch(step, seen)
        assert same_bytes(*watched(p, bx, by))
    assert watched.trouble == ""
    seen.check(gradients)


def test_explicit_axes_on_the_parameters_are_reaped_from_a_scan(seen, monkeypatch):
    axis_type = getattr(jax.sharding, "AxisType", None)
    if axis_type is None or not hasattr(jax, "set_mesh"):
        pytest.skip("this jax has no explicit axes")
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type.Explicit,) * 2)
    with jax.set_mesh(mesh):
        p = jax.device_put(params, {"w": NamedSharding(mesh, P(None, "model")), "b": NamedSharding(mesh, P("model"))})
        bx = jax.device_put(x, NamedSharding(mesh, P("data", None)))
        by = jax.device_put(y, NamedSharding(mesh, P("data", "model")))

        @jax.jit
        def step(p, x, y):
            return jax.lax.scan(lambda p, _: (update(p, x, y), None), p, None, length=2)[0]

        beside(step, monkeypatch)
        watched = watch(step, seen)
        assert same_bytes(*watched(p, bx, by))
    assert watched.trouble == ""
    np.testing.assert_allclose(seen.norms()[0], true_norms(gradients), rtol=2e-5)
    np.testing.assert_allclose(seen.norms()[1], true_norms(gradients_of(update_jitted(params, x, y), x, y)), rtol=2e-5)


def shares(params):
    """The gradient of each eighth of the batch, as a mean over the whole."""
    return [gradients_of(params, x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4]) for i in range(8)]


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.optimized), unchecked], ids=["checked", "unchecked"]
)
@pytest.mark.parametrize("mean", [jax.lax.pmean, lambda g, axis: jax.tree.map(lambda g: jax.lax.psum(g, axis) / 8, g)])
def test_in_shard_map_the_mean_over_the_devices_is_measured(options, mean, mesh, seen):
    if not options and not hasattr(jax, "shard_map"):
        pytest.skip("jax 0.4 cannot say that a value varies")
    line = Mesh(mesh.devices.ravel(), ("data",))

    @jax.jit
    @partial(shard_map, mesh=line, in_specs=(P(), P("data"), P("data")), out_specs=P(), **options)
    def step(params, x, y):
        local = params
        if not options:  # else the gradient is summed where it is made
            local = (
                jax.lax.pcast(params, "data", to="varying")
                if hasattr(jax.lax, "pcast")
                else jax.lax.pvary(params, "data")
            )
        return descend(params, mean(jax.grad(loss)(local, x, y), "data"))

    watched = watch(step, seen)
    after = watched(params, x, y)
    assert watched.trouble == ""
    seen.check(gradients)
    assert same_bytes(after, step(params, x, y))


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="jax 0.4 does not see that its gradient is replicated")
def test_in_shard_map_the_gradient_of_a_mean_is_measured_once(mesh, seen, monkeypatch):
    @jax.jit
    @partial(shard_map, mesh=mesh, in_specs=(P(), P(("data", "model")), P(("data", "model"))), out_specs=P())
    def step(params, x, y):
        return descend(params, jax.grad(lambda p: jax.lax.pmean(loss(p, x, y), ("data", "model")))(params))

    beside(step, monkeypatch)
    watched = watch(step, seen)
    after, plain = watched(params, x, y)
    assert watched.trouble == ""
    seen.check(gradients)
    assert same_bytes(after, plain)


def test_in_shard_map_gradients_that_stay_apart_have_a_row_for_each_device(mesh, seen, monkeypatch):
    line = Mesh(mesh.devices.ravel(), ("data",))
    stacked = jax.tree.map(lambda p: np.stack([p] * 8), params)

    @jax.jit
    @partial(shard_map, mesh=line, in_specs=(P("data"), P("data"), P("data")), out_specs=P("data"), **unchecked)
    def step(params, x, y):
        one = jax.tree.map(lambda p: p[0], params)
        return jax.tree.map(lambda p: p[None], descend(one, jax.grad(loss)(one, x, y)))

    beside(step, monkeypatch)
    watched = watch(step, seen)
    after, plain = watched(stacked, x, y)
    np.testing.assert_allclose(seen.norms(), [true_norms(g) for g in shares(params)], rtol=2e-5)
    assert [axis.kind for axis in watched.watches["grads"].axes] == ["device"]
    assert same_bytes(after, plain)


def whole_loss(params, x, y):
    scale, gain = ({**numbers_of_all, **params["whole"]}[name] for name in ("scale", "gain"))
    return loss(jax.tree.map(lambda p: p * scale * gain.astype(p.dtype), params["shards"]), x, y)


def fully_sharded(line):
    """A step whose parameters are sharded, but for two numbers that all devices have."""
    specs = {"shards": P("data"), "whole": P()}

    @jax.jit
    @partial(shard_map, mesh=line, in_specs=(specs, P("data"), P("data")), out_specs=specs)
    def step(params, x, y):
        def of_shards(params):
            gathered = jax.tree.map(lambda p: jax.lax.all_gather(p, "data", tiled=True), params["shards"])
            return jax.lax.pmean(whole_loss({**params, "shards": gathered}, x, y), "data")

        return descend(params, jax.grad(of_shards)(params))

    return step


numbers_of_all = {"scale": jnp.float32(1.5), "gain": jnp.bfloat16(0.5)}


@pytest.mark.optimized
@pytest.mark.skipif(jax.__version_info__ < (0, 7, 2), reason="packed rows are returned before")
def test_partial_sums_of_each_device_become_the_numbers_of_fully_sharded_gradients(mesh, seen):
    step = fully_sharded(Mesh(mesh.devices.ravel()[::-1], ("data",)))
    both = {"shards": params, "whole": numbers_of_all}
    watched = watch(step, seen)
    after = watched(both, x, y)
    assert watched.trouble == "" and same_bytes(after, step(both, x, y))
    b, w, gain, scale = true_norms(jax.jit(jax.grad(whole_loss))(both, x, y))
    np.testing.assert_allclose(np.linalg.norm(seen.norms()[:, :2], axis=0), [b, w], rtol=2e-5)
    np.testing.assert_allclose(seen.norms()[:, 2:], [[gain, scale]] * 8, rtol=2e-5)
    (measurement,) = seen.measurements
    assert [x.dtype for x in measurement.arrays] == ["float64", "uint32", "uint32"], "and the counts of results"
    read, counts = stacked([measurement, measurement])
    np.testing.assert_equal(read["grads"], [measurement.packed["grads"]] * 2)
    np.testing.assert_equal(counts, [measurement.counts] * 2)


@pytest.mark.optimized
@pytest.mark.skipif(jax.__version_info__ < (0, 7, 2), reason="packed rows are returned before")
def test_the_program_of_a_fully_sharded_step_joins_no_partial_sums_of_its_devices(mesh):
    step = fully_sharded(Mesh(mesh.devices.ravel(), ("data",)))
    long = {"w": jnp.ones((64, 8192)), "b": jnp.ones(8192)}  # results of so many numbers are not looked at
    arguments = {"shards": long, "whole": {}}, jnp.ones((32, 64)), jnp.ones((32, 8192))
    instrumented_step = instrumented(step.__wrapped__, jit_options(step), LIGHT)
    plain, program = (f.lower(*arguments).compile().as_text() for f in (step, instrumented_step))
    assert [program.count(f" {name}(") for name in COLLECTIVES] == [plain.count(f" {name}(") for name in COLLECTIVES]
    of_rows = program.count(" concatenate(") - plain.count(" concatenate(")
    assert of_rows == 3 and "u32[1,2,4]" not in program, "small leaves, sums, words: NumPy adds up"
    n_kernels = [text[text.index("ENTRY") :].count(" fusion(") for text in (plain, program)]
    assert n_kernels[1] == n_kernels[0] + 2, "of small leaves and of a long one: to join is to copy"


def test_a_shard_map_in_a_scan_is_reaped(mesh, seen, monkeypatch):
    line = Mesh(mesh.devices.ravel(), ("data",))

    @partial(shard_map, mesh=line, in_specs=(P(), P("data"), P("data")), out_specs=P(), **unchecked)
    def inner(params, x, y):
        return descend(params, jax.lax.pmean(jax.grad(loss)(params, x, y), "data"))

    step = jax.jit(lambda p, x, y: jax.lax.scan(lambda p, _: (inner(p, x, y), None), p, None, length=3)[0])
    beside(step, monkeypatch)
    watched = watch(step, seen)
    after, plain = watched(params, x, y)
    assert watched.trouble == ""
    now = params
    for row in seen.norms():
        np.testing.assert_allclose(row, true_norms(gradients_of(now, x, y)), rtol=2e-5)
        now = update_jitted(now, x, y)
    assert same_bytes(after, plain)


@pytest.mark.parametrize("specs", SPECS.values(), ids=SPECS)
def test_parameters_and_updates_are_those_of_the_whole_arrays(specs, mesh, seen):
    _, _, p, bx, by = placed(mesh, specs)
    step = jax.jit(update, donate_argnums=0)
    watched = watch(step, seen, updates=True)
    after = watched(copies(p), bx, by)
    assert same_bytes(after, step(copies(p), bx, by))
    assert watched.trouble == "" and watched.notes == ()
    changes = jax.tree.map(lambda a, b: np.asarray(b, np.float64) - np.asarray(a, np.float64), params, after)
    seen.check(params, "params")
    seen.check(changes, "updates")


@pytest.mark.parametrize("loop", [False, True], ids=["in a call", "in a loop"])
def test_in_a_shard_map_the_parameters_are_those_of_the_whole_step_or_are_left_out(loop, mesh, seen):
    def local(params, x, y):
        gradients = jax.tree.map(lambda g: jax.lax.pmean(g, "data"), jax.grad(loss)(params, x, y))
        return descend(params, gradients)

    def many(params, x, y):
        return jax.lax.fori_loop(0, 3, lambda _, p: local(p, x, y), params) if loop else jax.jit(local)(params, x, y)

    step = jax.jit(shard_map(many, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P(), **unchecked))
    watched = watch(step, seen, updates=True)
    after = watched(params, x, y)
    if loop:
        assert seen.names() == ["grads"] and any("cannot be distinguished" in note for note in watched.notes)
        return
    seen.check(params, "params")
    seen.check(
        jax.tree.map(lambda a, b: np.asarray(b, np.float64) - np.asarray(a, np.float64), params, after), "updates"
    )


# Steps that take the devices themselves


def averaged(params, x, y):
    return descend(params, jax.lax.pmean(jax.grad(loss)(params, x, y), "batch"))


@pytest.mark.parametrize("by", ["jax.pmap", "equinox.filter_pmap"])
def test_the_lines_that_convert_a_pmapped_step_compute_the_same_and_are_watched(by, mesh):
    equinox = pytest.importorskip("equinox") if by == "equinox.filter_pmap" else None
    pmapped = (equinox.filter_pmap if equinox else jax.pmap)(averaged, axis_name="batch")
    arguments = jax.tree.map(lambda p: jnp.stack([p] * 8), params), x.reshape(8, 4, 16), y.reshape(8, 4, 8)
    after = pmapped(*arguments)
    inspector = tv.GradientInspector(members="each")
    with pytest.raises(tv.CannotWatch, match=f"the step is made by {by}") as error:
        inspector.watch(pmapped)
    names = {"jax": jax, "equinox": equinox, "inspector": inspector, "function": averaged, "arguments": arguments}
    exec("\n".join(line.strip() for line in str(error.value).split("\n")[2:]), names)
    converted = names["step"](*names["arguments"])
    for name, expected in after.items():
        np.testing.assert_allclose(converted[name], expected, rtol=1e-6)
    of_devices = [gradients_of(params, x[4 * k : 4 * k + 4], y[4 * k : 4 * k + 4]) for k in range(8)]
    norms = np.array([true_norms(gradients) for gradients in of_devices]).T.ravel()
    np.testing.assert_allclose(inspector.history.values("grads", "norm").latest[0], norms, rtol=2e-5)
