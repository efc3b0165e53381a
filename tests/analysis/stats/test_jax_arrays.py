"""Value statistics of jax arrays: on the host and, by force, by the program that an accelerator runs."""

import contextlib
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis.stats.truth import assert_same, dtype_of, on_device, statistics, told, truth
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from several_devices import first_devices

from treeviz.analysis import stats as stats_host
from treeviz.analysis.stats import value_statistics
from treeviz.tree.layers import open_stacks
from treeviz.tree.walk import scan

pytestmark = [pytest.mark.oldest_jax, pytest.mark.gpu]

HOST, DEVICE = {}, {"_on_host": on_device}
BOTH = pytest.mark.parametrize("how", [HOST, DEVICE], ids=["host", "device"])
FLOATS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]
DTYPES = [*FLOATS, "int4", "uint4", "int8", "int16", "int32", "uint32", "bool"]


def sample(dtype: str, shape=(40, 50)) -> np.ndarray:
    rng = np.random.default_rng(1)
    if dtype == "bool" or "int" in dtype:
        info = (0, 1) if dtype == "bool" else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
        return rng.integers(*info, shape, endpoint=True).astype(dtype_of(dtype))
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape)
    if dtype == "complex64":
        x = x + 1j * rng.standard_normal(shape)
    x[rng.random(shape) < 0.1] = 0
    with np.errstate(all="ignore"):
        x = x.astype(dtype_of(dtype))
    for value in (np.nan, np.inf, -np.inf):
        x[rng.integers(0, shape[0]), rng.integers(0, shape[1])] = value
    return x


def mesh(*shape: int) -> Mesh:
    return Mesh(first_devices(int(np.prod(shape))).reshape(shape), ("a", "b")[: len(shape)])


@pytest.fixture
def n_compiled():
    """How many programs JAX has compiled since."""
    count = []
    listener = lambda name, *_, **__: count.append(name) if name.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(listener)
    yield lambda: len(count)
    from jax._src import monitoring  # the public way to take a listener out came after jax 0.4.36

    take_out = getattr(monitoring, "unregister_event_duration_listener", None)
    (take_out or monitoring._unregister_event_duration_listener_by_callback)(listener)


@BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_agrees_with_float64(dtype, how):
    x = sample(dtype)
    assert_same(told(statistics(jnp.asarray(x), **how)[0]), truth(x))


@BOTH
@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
def test_64_bit_dtypes_agree_with_float64(dtype, how):
    rng = np.random.default_rng(2)
    with jax.experimental.enable_x64() if hasattr(jax.experimental, "enable_x64") else jax.enable_x64(True):
        if "int" in dtype:
            info = np.iinfo(dtype)
            x = rng.integers(info.min, info.max, 1000, dtype, endpoint=True)
        else:
            x = (rng.standard_normal(1000) * 1e100).astype(dtype)
        array = jnp.asarray(x)
    assert_same(told(statistics(array, **how)[0]), truth(x))


@pytest.mark.parametrize(
    ("dtype", "value", "how"),
    [
        ("float16", 60000, HOST),
        ("bfloat16", 1, HOST),
        ("bfloat16", 1, DEVICE),  # its program is that of all others which float32 holds, but for the cast
        ("float8_e4m3fn", 448, HOST),
        *(("float32", value, how) for value in (1e20, 1e-25) for how in (HOST, DEVICE)),
        ("int8", -128, HOST),
    ],
)
def test_many_equal_numbers_have_their_own_value_as_mean_and_rms(dtype, value, how):
    x = np.full(100_000, value, dtype_of(dtype))  # of `jnp.full`, and of an index, each dtype is a program to compile
    one = float(x[0])
    x = jnp.asarray(x)
    found = told(statistics(x, **how)[0])
    assert (found["min"], found["max"]) == (one, one)
    np.testing.assert_allclose([found["mean"], found["rms"]], [one, abs(one)], rtol=1e-12)
    assert found["histogram"].sum() == 100_000


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int4", "int32"])
def test_a_device_without_float64_is_right_to_the_digits_of_float32(dtype, monkeypatch):
    monkeypatch.setattr("treeviz.analysis.stats.has_float64", lambda device: False)
    x = sample(dtype)
    found, expected = told(statistics(jnp.asarray(x), **DEVICE)[0]), truth(x)
    if dtype in ("int32", "complex64"):  # integers are rounded to float32, and |z| is made in it
        for name in ("min", "max"):
            assert found[name] == pytest.approx(expected[name], rel=1e-6)
            found[name] = expected[name]
    if dtype == "complex64":  # a magnitude close to a power of two may be rounded up to it
        assert np.abs(found["histogram"] - expected["histogram"]).sum() <= 4
        found["histogram"] = expected["histogram"]
    assert_same(found, expected, rtol=1e-5)


@pytest.mark.parametrize("value", [1e20, 1e-25])
def test_a_device_without_float64_loses_no_large_or_small_square(value, monkeypatch):
    monkeypatch.setattr("treeviz.analysis.stats.has_float64", lambda device: False)
    found = told(statistics(jnp.array([value, -value] * 100), **DEVICE)[0])
    np.testing.assert_allclose([found["rms"], found["std"]], value, rtol=1e-6)


@BOTH
def test_a_denormal_number_is_no_zero(how):
    x = jax.device_put(np.float32([1e-40, 0, -0.0, 1]))
    found = told(statistics(x, **how)[0])
    assert found["zeros"] == 2
    assert found["histogram"][0] == found["histogram"][40] == 1


@BOTH
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1, 1)])
def test_scalars_and_empty_arrays(shape, how):
    x = np.ones(shape, np.float32)
    assert_same(told(statistics(jnp.asarray(x), **how)[0]), truth(x))


SPECS = [P(), P("a"), P("a", "b"), P(None, "b"), P(("a", "b"))]


@pytest.mark.parametrize(
    ("dtype", "spec", "how"),
    [(dtype, spec, HOST) for dtype in ("float32", "int4") for spec in SPECS]
    + [("float32", spec, DEVICE) for spec in SPECS[:2]],
)
def test_a_sharded_array_is_read_as_it_lies(dtype, spec, how):
    x = sample(dtype, (8, 16))
    array = jax.device_put(x, NamedSharding(mesh(2, 4), spec))
    with jax.transfer_guard("disallow_explicit"):
        found, notes = statistics(array, **how)
    assert not notes
    assert_same(told(found), truth(x))
    assert array._npy_value is None


@pytest.mark.parametrize(
    ("dtype", "how"),
    [(dtype, HOST) for dtype in ("float32", "bfloat16", "float8_e5m2", "int4", "bool", "complex64")]
    + [(dtype, DEVICE) for dtype in ("bfloat16", "int4")],
)
def test_nothing_is_left_on_an_array_and_donation_still_happens(dtype, how):
    for place in (jax.devices()[0], NamedSharding(mesh(2), P("a"))):
        for n_rows in (4, 2 * stats_host.SMALL)[: 1 if how else 2]:  # the size matters on the host
            x = jax.device_put(np.ones((n_rows, 2), dtype_of(dtype)), place)
            view = statistics({"x": x}, **how)
            assert x._npy_value is None
            assert all(shard.data._npy_value is None for shard in x.addressable_shards)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                jax.jit(lambda x: x, donate_argnums=0)(x).block_until_ready()
            assert x.is_deleted()
            del view


@pytest.mark.optimized
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU compiles a program for each shape")
def test_an_array_on_the_cpu_is_read_without_compiling(n_compiled):
    tree = [jnp.asarray(sample(dtype)) for dtype in DTYPES]
    tree.append(jax.device_put(np.ones((8, 3)), NamedSharding(mesh(8), P("a"))))
    before = n_compiled()
    statistics(tree)
    assert n_compiled() == before


@pytest.mark.optimized
def test_an_accelerator_compiles_one_program_per_shape_and_dtype(n_compiled):
    tree = [jax.device_put(np.full((3, 41), i, np.float32)) for i in range(5)]
    before = n_compiled()
    columns, _ = statistics(tree, **DEVICE)
    assert n_compiled() == before + 1
    assert [columns["mean"][row] for row in range(1, 6)] == [0, 1, 2, 3, 4]


def test_what_an_accelerator_found_travels_in_one_transfer(monkeypatch):
    calls = []
    device_get = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda tree: calls.append(sum(x.nbytes for x in tree)) or device_get(tree))
    statistics([jnp.ones(10), jnp.ones(20_000), jnp.ones((3, 3), jnp.bfloat16)], **DEVICE)
    assert len(calls) == 1
    assert calls[0] < 1500


@BOTH
def test_deleted_and_donated_arrays_keys_and_abstract_values_say_why(how):
    deleted = jnp.ones(3)
    deleted.delete()
    tree = [deleted, jax.random.key(0), jax.ShapeDtypeStruct((3,), "float32"), jnp.ones(2)]
    columns, notes = statistics(tree, **how)
    assert notes == {
        1: "deleted or donated: it has no values",
        2: "PRNG key (no statistics)",
        3: "no values: only its shape is known",
    }
    assert columns["mean"][4] == columns["mean"][0] == 1


def test_an_array_that_is_deleted_meanwhile_says_so(monkeypatch):
    doomed = jnp.ones(3)

    def delete_first(shard):
        doomed.delete()
        return stats_host.host_view(shard)

    monkeypatch.setattr("treeviz.analysis.stats.host_view", delete_first)
    assert statistics([doomed])[1] == {1: "deleted while it was read"}


@BOTH
@pytest.mark.parametrize("axis", [0, 1])
def test_the_layers_of_a_stack_are_read_where_they_lie(axis, how):
    x = sample("float32", (4, 6, 5))
    lying = [jnp.asarray(x), *(jax.device_put(x, NamedSharding(mesh(2), spec)) for spec in (P("a"), P(None, "a"), P()))]
    table, nodes = scan(lying)
    table, rows = open_stacks(table, dict.fromkeys(range(1, 5), axis))
    columns, notes = value_statistics(table, [nodes[row] for row in rows.tolist()], **how)
    of = {column.name: column for column in columns}
    for stack in table[0].children:
        assert_same(told(of, stack.number), truth(x))
        for i, row in enumerate(stack.children):
            assert_same(told(of, row.number), truth(np.take(x, i, axis)))
    assert notes == {}


def test_a_reduction_that_fails_is_a_note_and_the_others_go_on(monkeypatch):
    from treeviz.analysis import stats as stats_device

    fetch = stats_device.fetch

    def fails(arrays):
        if any(array is arrays_made[0] for array in arrays):
            raise RuntimeError("INTERNAL: the device is on fire")
        return fetch(arrays)

    arrays_made = []
    launch = stats_device.launch
    monkeypatch.setattr(stats_device, "launch", lambda *x: (made := launch(*x), arrays_made.append(made[0]))[0])
    monkeypatch.setattr(stats_device, "fetch", fails)
    columns, notes = statistics([jnp.ones(3), jnp.full(3, 2.0)], **DEVICE)
    assert notes == {1: "could not be read: RuntimeError: INTERNAL: the device is on fire"}
    assert columns["mean"][2] == columns["mean"][0] == 2


def test_nothing_is_started_on_an_array_that_is_partly_elsewhere(monkeypatch):
    x = jax.device_put(np.ones(8), NamedSharding(mesh(8), P("a")))
    monkeypatch.setattr(NamedSharding, "is_fully_addressable", property(lambda self: False))
    monkeypatch.setattr("treeviz.analysis.stats.host_view", None)
    assert statistics([x])[1] == {1: "no statistics: part of it is in another process"}


SETTINGS = {
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "disable_jit": jax.disable_jit,
    "enable_x64": lambda: (
        getattr(jax, "enable_x64", None)(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()
    ),
    "strict_dtypes": lambda: jax.numpy_dtype_promotion("strict"),
    "rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "no_transfer": lambda: jax.transfer_guard("disallow"),
    "no_explicit_transfer": lambda: jax.transfer_guard("disallow_explicit"),
    "leaks": jax.checking_leaks,
    "errstate": lambda: np.errstate(all="raise"),
    "another_default_device": lambda: jax.default_device(jax.devices()[-1]),
    "mesh": lambda: (
        jax.set_mesh(jax.make_mesh((len(jax.devices()),), ("a",)))
        if hasattr(jax, "set_mesh")
        else contextlib.nullcontext()
    ),
}


@BOTH
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_same_numbers_whatever_the_user_has_set(setting, how):
    arrays = [sample(dtype) for dtype in DTYPES]
    tree = [jnp.asarray(x) for x in arrays] + [jax.device_put(arrays[0], NamedSharding(mesh(2), P("a")))]
    with SETTINGS[setting]():
        columns, notes = statistics(tree, **how)
    assert not notes
    for row, x in enumerate([*arrays, arrays[0]], 1):
        assert_same(told(columns, row), truth(x))


@BOTH
def test_inside_a_trace_nothing_is_traced(how):
    x = jnp.asarray(sample("float32"))
    seen = []

    def f(y):
        seen.append(statistics({"x": x, "y": y}, **how))
        return y + 1

    for transform in (jax.jit, jax.vmap, jax.grad, jax.checkpoint):
        transform(lambda y: f(y).sum())(jnp.ones(3))
    assert str(jax.make_jaxpr(f)(1.0)) == str(jax.make_jaxpr(lambda y: y + 1)(1.0))
    with jax.checking_leaks():
        jax.jit(f)(jnp.ones(3))
    assert len(seen) == 6
    for columns, notes in seen:
        assert notes == {2: "traced: it has no values yet"}
        assert_same(told(columns, 1), truth(x))


@BOTH
@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="jax.shard_map is not in this jax")
def test_inside_shard_map_and_scan_nothing_is_traced(how):
    x = sample("float32", (8, 16))
    whole, sharded = jnp.asarray(x), jax.device_put(x, NamedSharding(mesh(2), P("a")))
    seen = []

    def f(y):
        seen.append(statistics([whole, sharded, y], **how))
        return y

    jax.jit(jax.shard_map(f, mesh=mesh(2), in_specs=P("a"), out_specs=P("a")))(sharded)
    jax.lax.scan(lambda carry, y: (carry, f(y)), 0, jnp.ones(3))
    assert len(seen) >= 2
    for columns, notes in seen:
        assert notes == {3: "traced: it has no values yet"}
        assert_same(told(columns, 1), truth(x))
        assert_same(told(columns, 2), truth(x))


@BOTH
def test_eight_threads_find_the_same(how):
    tree = [jnp.asarray(sample(dtype)) for dtype in ("float32", "bfloat16", "int4")]
    with ThreadPoolExecutor(8) as pool:
        every = list(pool.map(lambda _: statistics(tree, **how)[0], range(16)))
    for columns in every:
        for name, column in columns.items():
            np.testing.assert_array_equal(column.values, every[0][name].values)


def test_an_offloaded_array_is_read_on_the_host():
    x = sample("float32")
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="unpinned_host")
    try:
        array = jax.device_put(x, place)
    except ValueError:
        pytest.skip("this backend has no such memory")
    assert stats_host.lies_on_host(array)
    assert_same(told(statistics(array)[0]), truth(x))
