"""What is said of gradients within a jitted step, compared with NumPy in float64."""

import random
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import precise
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from random_trees import random_tree
from several_devices import first_devices

from treeviz.steps.measure import Measurement, measure, numbers_of, paths_in, source_of
from treeviz.steps.statistics import FULL, HISTOGRAM, LIGHT, n_words, unpack
from treeviz.tree.text import printable
from treeviz.tree.walk import walk

pytestmark = [pytest.mark.oldest_jax, pytest.mark.gpu]

FLOATS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]
COUNTS = ("nonfinite", "zeros", "nan", "posinf", "neginf")


@partial(jax.jit, static_argnums=(1, 2))
def measured(tree, statistics, backend):
    return measure(grads=tree, statistics=statistics)


def numbers(tree, statistics=FULL) -> dict[str, np.ndarray]:
    return numbers_of(measured(tree, statistics, jax.default_backend()))["grads"]


def truth(x) -> dict:
    """What NumPy says of one array, in float64."""
    x = np.asarray(x)
    wide = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64).reshape(-1)
    is_nan, is_inf = np.isnan(wide), np.isinf(wide) & ~np.isnan(wide)
    real = np.abs(wide) if np.iscomplexobj(x) else wide
    finite = real[~is_nan & ~is_inf]
    bins = np.clip(np.frexp(np.abs(finite[finite != 0]))[1] - 1 + 40, 0, 63)
    return {
        "norm": np.sqrt(np.sum(np.square(finite))),
        "rms": np.sqrt(np.sum(np.square(finite)) / x.size),
        "max_abs": np.max(np.abs(finite), initial=0),
        "mean": np.mean(finite) if finite.size else 0,
        "nonfinite": int((is_nan | is_inf).sum()),
        "zeros": int((real == 0).sum()),
        "nan": int(is_nan.sum()),
        "posinf": int((is_inf & (real > 0)).sum()),
        "neginf": int((is_inf & (real < 0)).sum()),
        "histogram": np.bincount(bins, minlength=64),
    }


def assert_told(told: dict[str, np.ndarray], leaf: int, x) -> None:
    expected = truth(x)
    for name, values in told.items():
        if name in COUNTS or name == "histogram":
            np.testing.assert_array_equal(values[leaf], expected[name], err_msg=name)
        else:
            slack = 1e-6 * expected["max_abs"] if name == "mean" else 1e-45
            np.testing.assert_allclose(values[leaf], expected[name], rtol=5e-6, atol=slack, err_msg=name)


def sample(dtype: str, shape, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-5, 5, shape)
    x = x + 1j * rng.standard_normal(shape) if dtype == "complex64" else x
    x[rng.random(shape) < 0.1] = 0
    return x.astype(jnp.dtype(dtype))


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def full(shape, value, dtype="float32") -> np.ndarray:
    """By NumPy: of `jnp.full`, each shape is a program to compile."""
    return np.full(shape, value, jnp.dtype(dtype))


def not_all_finite(dtype: str) -> np.ndarray:
    x = sample(dtype, (30, 20))
    x[3, 4], x[5, 6:9], x[7, 1:3] = np.nan, np.inf, -np.inf
    return np.abs(x) if dtype == "complex64" else x


@precise
def test_every_dtype_and_every_shape_agrees_with_float64_also_where_numbers_are_not_finite():
    shapes = [(40, 50), (300, 200), (20_000,), (1,), (3, 1, 7000)]
    leaves = [*(sample("float32", shape) for shape in shapes), sample("float32", (3,))[2:].reshape(())]
    leaves += [sample(dtype, shape) for dtype in FLOATS[1:] for shape in [(300, 200), (17,)]]
    leaves += [not_all_finite(dtype) for dtype in FLOATS if dtype != "float8_e4m3fn"]  # that has no infinity
    told = numbers(leaves, HISTOGRAM)
    for leaf, x in enumerate(leaves):
        assert_told(told, leaf, x)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*(("float32", shape) for shape in [(), (1,), (2, 1)]), *((dtype, (1,)) for dtype in ("bfloat16", "complex64"))],
    ids=str,
)
def test_a_single_small_leaf_agrees_with_float64(dtype, shape):
    x = full(shape, -2, dtype)
    assert_told(numbers([x], LIGHT), 0, x)


def test_norms_are_right_where_their_squares_are_no_float32():
    for value in (1e20, 1e-25, 3e38, 1e-37, 1e14, 2.0**-60, 1.0):
        leaves = [full(shape, value) for shape in ((7, 9), (200, 300))]
        told = numbers(leaves)
        for leaf, x in enumerate(leaves):
            assert_told(told, leaf, x)


@precise
def test_norms_are_right_where_magnitudes_of_all_sizes_meet():
    rng = np.random.default_rng(0)
    for low, high in [(-120, 120), (-120, -50), (-70, -50), (40, 60), (40, 120), (-63, -57)]:
        x = np.exp2(rng.uniform(low, high, (100, 200))).astype(np.float32)
        leaves = [x, x[0], x[:, :1]]
        told = numbers(leaves)
        for leaf, array in enumerate(leaves):
            assert_told(told, leaf, array)


@pytest.mark.optimized
def test_a_large_float16_norm_is_finite():
    x = full((1000, 300), 17, "float16")
    assert numbers([x])["norm"][0] == pytest.approx(17 * np.sqrt(300_000), rel=1e-6)


@pytest.mark.optimized
def test_long_sums_keep_their_digits():
    leaves = [full(shape, 1.3) for shape in [(2_000_000,), (4, 500_000), (500_000, 4)]]
    assert numbers(leaves, LIGHT)["norm"] == pytest.approx(np.float32(1.3) * np.sqrt(2e6), rel=1e-3)


@given(st.lists(st.floats(width=32, allow_subnormal=False), min_size=60, max_size=60))
def test_any_numbers_agree_with_float64(values):
    leaves = np.split(np.array(values, np.float32), [1, 5, 20, 50])
    told = numbers(leaves, HISTOGRAM)
    for leaf, x in enumerate(leaves):
        expected = truth(x)
        for name in (*COUNTS, "histogram"):
            np.testing.assert_array_equal(told[name][leaf], expected[name], err_msg=name)
        assert told["max_abs"][leaf] == expected["max_abs"]
        np.testing.assert_allclose(told["norm"][leaf], expected["norm"], rtol=2e-6)


def test_denormal_numbers_are_no_zeros():
    told = numbers([full(4, 1e-40), 0 * ones(4)])
    assert told["zeros"].tolist() == [0, 4]
    assert told["norm"][0] >= told["max_abs"][0] == pytest.approx(1e-40, rel=1e-4)


def enable_x64():
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def test_float64_and_complex128_are_right_under_x64():
    rng = np.random.default_rng(0)
    for scale in (1.0, 1e150, 1e-200, 1e300):
        with enable_x64():
            xs = [rng.standard_normal(shape) * scale for shape in ((30, 40), (200, 300))]
            wide = [*xs, *(x + 1j * x[::-1] for x in xs)]
            small = rng.standard_normal((30, 40)).astype(np.float32)
            told = numbers([*wide, small, np.arange(3)])  # a program for all scales
        for leaf, y in enumerate(wide):
            top = np.abs(xs[leaf % 2]).max()
            expected = np.linalg.norm((y / top).reshape(-1))
            np.testing.assert_allclose(told["norm"][leaf] / top, expected, rtol=1e-6)
            if leaf < 2:
                np.testing.assert_allclose(told["max_abs"][leaf], top, rtol=1e-6)
        assert_told(told, 4, small)
        assert told["nonfinite"].tolist() == [0, 0, 0, 0, 0, -1]


def test_leaves_without_numbers_have_a_row_and_no_number():
    float0 = np.zeros(3, jax.dtypes.float0)
    tree = {"a": jnp.arange(3), "b": jnp.ones(2, bool), "c": None, "e": jnp.zeros((0, 4)), "k": jax.random.key(0)}
    tree |= {"f": jnp.full((2, 2), 3.0), "t": jnp.zeros(3, jnp.int8)}
    told = numbers(tree)
    has = [False, False, False, True, False, False]
    assert np.isfinite(told["norm"]).tolist() == has
    assert (told["nonfinite"] >= 0).tolist() == has
    assert source_of(tree, "grads").has_number == tuple(has)
    assert numbers_of(measure(grads=[float0, 2.0, "text", 1j, 7]))["grads"]["norm"].tolist()[1::2] == [2.0, 1.0]


@pytest.mark.parametrize("tree", [{}, None, [], {"i": 3}])
def test_a_tree_without_numbers_is_measured(tree):
    told = numbers(tree) if tree != {"i": 3} else numbers_of(measure(grads=tree))["grads"]
    assert np.isnan(told["norm"]).all()


def test_rows_are_in_the_order_of_the_leaves():
    tree = [full(n, i + 1.0) for i, n in enumerate([3, 20_000, 1, 5000, 3, 17_000, 900])]
    tree.insert(3, np.arange(4))
    told = numbers(tree)
    assert told["max_abs"].tolist()[:3] == [1, 2, 3] and told["max_abs"].tolist()[4:] == [4, 5, 6, 7]
    np.testing.assert_array_equal(np.delete(told["zeros"], 3), 0)
    np.testing.assert_allclose(told["rms"][4:], [4, 5, 6, 7], rtol=1e-6)


def test_paths_are_right_for_named_tuples():
    from collections import namedtuple

    Pair = namedtuple("Pair", "mu nu")
    assert source_of({"opt": Pair([1.0], 2.0)}, "x").paths == ("['opt'].mu[0]", "['opt'].nu")
    assert hash(source_of([1.0], "x")) == hash(source_of([2.0], "x"))


def loss(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"]) ** 2)


gradient_of_loss = jax.jit(jax.grad(loss))


def gradient(scale=1.0):
    params = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4) * scale}
    return gradient_of_loss(params, ones(2, 3))


def test_paths_are_those_of_the_walk_whatever_the_keys_are():
    rng = random.Random(0)
    texts = [{key: [1.0]} for key in ("a b", "a'b", 'a"b', "a\\b", "a\nb", "\u3164", "\u202e", "x" * 20_000, True, -1)]
    n_plain = 0
    for tree in (*texts, *(random_tree(rng, 4) for _ in range(200))):
        paths = [printable(row.keystr) for row in walk(tree).leaves]
        try:
            n_leaves = len(jax.tree.leaves(tree))
        except ValueError:  # keys without an order
            continue
        if len(paths) == n_leaves:
            assert list(paths_in(tree)) == paths
            n_plain += all(path.isprintable() and "." not in path for path in paths)
    assert n_plain > 40


def test_it_works_in_jit_scan_vmap_grad_and_without_jit():
    expected = np.linalg.norm(np.asarray(gradient()["w"], np.float64))
    eager = numbers_of(measure(grads=gradient()))["grads"]["norm"][0]
    np.testing.assert_allclose(eager, expected, rtol=1e-6)

    _, steps = jax.jit(lambda: jax.lax.scan(lambda c, s: (c, measure(grads=gradient(s))), 0, ones(3)))()
    np.testing.assert_allclose(numbers_of(steps)["grads"]["norm"], np.full((3, 1), expected), rtol=1e-6)

    members = jax.jit(jax.vmap(lambda s: measure(grads=gradient(s), statistics=HISTOGRAM)))(np.float32([1, 2]))
    told = numbers_of(members)["grads"]
    assert told["norm"].shape == (2, 1) and told["histogram"].shape == (2, 1, 64)
    np.testing.assert_allclose(told["norm"][0], expected, rtol=1e-6)

    def with_measurement(w):
        return loss({"w": w}, ones(2, 3)), measure(grads={"w": w})

    grad, measurement = jax.jit(jax.grad(with_measurement, has_aux=True))(ones(3, 4))
    assert isinstance(measurement, Measurement) and grad.shape == (3, 4)
    jax.eval_shape(jax.hessian(lambda w: with_measurement(w)[0]), ones(3, 4))
    jax.eval_shape(jax.checkpoint(with_measurement), ones(3, 4))


@pytest.mark.parametrize("name", ["jax_debug_nans", "jax_debug_infs"])
def test_debugging_options_do_not_see_our_numbers(name):
    bad = np.array([1.0, np.nan, np.inf, 3e38, 1e-40], np.float32), full((200, 200), 3e38)
    with getattr(jax, name.removeprefix("jax_"))(True) if hasattr(jax, name.removeprefix("jax_")) else jax.debug_nans():
        told = numbers(bad, HISTOGRAM)
    assert told["nonfinite"].tolist() == [2, 0]


def test_nothing_promotes_under_strict_promotion_and_without_transfers():
    tree = [jnp.ones(3, dtype) for dtype in ("float32", "bfloat16", "float16", "complex64", "int8")]
    with jax.numpy_dtype_promotion("strict"), jax.transfer_guard("disallow"), jax.checking_leaks():
        packed = jax.jit(lambda tree: measure(grads=tree, statistics=HISTOGRAM))(tree).packed["grads"]
    assert packed.dtype == jnp.uint32 and packed.shape == (5, n_words(HISTOGRAM))


def test_no_warning_is_raised_while_measuring():
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        numbers([np.array([np.nan, np.inf, 0.0], np.float32), full(3, 3e38)], HISTOGRAM)


def mesh(*shape: int) -> Mesh:
    return Mesh(first_devices(int(np.prod(shape))).reshape(shape), ("a", "b")[: len(shape)])


@pytest.mark.parametrize(
    ("spec", "backend", "statistics"),
    [
        *((P("a", "b"), "cpu", HISTOGRAM), (P(None, "a"), "cpu", LIGHT), (P(), "cpu", FULL)),
        (P("a", "b"), "gpu", FULL),
    ],
    ids=lambda value: None if isinstance(value, tuple) and len(value) > 2 else str(value),
)
def test_sharded_arrays_are_measured_as_they_lie(spec, backend, statistics, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    place = NamedSharding(mesh(4, 2), spec)
    large, small = sample("float32", (400, 200)), sample("float32", (16, 8))
    told = numbers([jax.device_put(x, place) for x in (large, small)], statistics)
    assert_told(told, 0, large)
    assert_told(told, 1, small)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="jax.shard_map came with jax 0.7")
def test_it_works_in_shard_map_and_in_explicit_meshes():
    x = sample("float32", (400, 200))
    small = ones(8)
    f = jax.shard_map(
        lambda x, s: measure(grads=[jax.lax.psum(x, ("a", "b")), s, s[:2] * x[:1, :2].sum()]).packed["grads"][None],
        mesh=mesh(4, 2), in_specs=(P("a", "b"), P()), out_specs=P(("a", "b")),
    )  # fmt: skip
    packed = np.asarray(jax.jit(f)(x, small))
    parts = np.asarray(x, np.float64).reshape(4, 100, 2, 100).sum(axis=(0, 2))
    np.testing.assert_allclose(unpack(packed, LIGHT)["norm"][:, 0], np.linalg.norm(parts), rtol=1e-5)

    explicit = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        leaves = [jax.device_put(x, P("a", "b")), jax.device_put(sample("float32", (16, 8)), P("b", "a")), small]
        told = numbers(leaves)
    for leaf, array in enumerate(leaves):
        assert_told(told, leaf, array)


@precise
def test_what_is_made_for_accelerators_agrees_with_float64(monkeypatch):
    tree = [sample("float32", shape) for shape in ((3,), (40, 50), (200, 100))]
    tree += [sample(dtype, (40, 50)) for dtype in ("bfloat16", "float8_e5m2", "complex64")]
    tree += [full(5, 1e20), np.array([1e-30, np.nan], np.float32)]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    told = numbers(tree, HISTOGRAM)
    for leaf, x in enumerate(tree):
        assert_told(told, leaf, x)


def test_cosines_with_the_last_gradients():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 30, 40))
    tree = lambda x: {"a": np.float32(x), "i": np.arange(2), "z": 0 * ones(3), "s": full(2, 1e-30)}
    m = jax.jit(lambda g, h: measure(grads=g, last_grads=h))(tree(a), tree(b * 1e25))
    told = numbers_of(m)["grads"]["cosine"]
    assert told[0] == pytest.approx((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)
    assert np.isnan(told[[1, 3]]).all() and told[2] == pytest.approx(1)
    with pytest.raises(ValueError, match="another structure"):
        measure(grads=[1.0], last_grads=[1.0, 2.0])


def test_an_unknown_statistic_is_named():
    with pytest.raises(ValueError, match="no statistic 'median'; there are norm"):
        measure(grads=[1.0], statistics=("norm", "median"))
    with pytest.raises(ValueError, match="rows of 4 words, but 9 for"):
        unpack(np.zeros((1, 4), np.uint32), FULL)


@pytest.mark.parametrize("statistics", [("norm",), ("zeros", "norm"), ("histogram",), ("mean",)], ids=str)
def test_any_choice_of_statistics_can_be_read(statistics):
    x = sample("float32", (30, 20))
    told = numbers([x], statistics)
    floats = {"norm", "mean"}.intersection(statistics)  # which skip NaN and infinities, so these are counted
    assert set(told) == {*statistics} | ({"rms"} if "norm" in statistics else set()) | (
        {"nonfinite"} if floats else set()
    )
    assert_told(told, 0, x)


def test_a_measurement_is_a_pytree_with_the_same_structure_every_time():
    m = measure(grads=gradient(), params=gradient())
    assert jax.tree.structure(m) == jax.tree.structure(measure(grads=gradient(2.0), params=gradient()))
    again = jax.tree.map(lambda x: x, m)
    assert again.sources == m.sources and [source.name for source in m.sources] == ["grads", "params"]
    assert repr(m) == "Measurement(grads: 1 leaves, params: 1 leaves; norm, max_abs, nonfinite)"


@pytest.mark.optimized
def test_parameters_are_the_same_to_the_bit_with_and_without_it():
    def step(params, x, measured):
        grads = jax.grad(loss)(params, x)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return (new, measure(params=params, grads=grads)) if measured else (new, None)

    step = jax.jit(step, static_argnums=2)
    a = b = {"w": sample("float32", (64, 64)) * 0.1}
    for i in range(10):
        x = sample("float32", (8, 64), seed=i)
        a, b = step(a, x, True)[0], step(b, x, False)[0]
    np.testing.assert_array_equal(np.asarray(a["w"]), np.asarray(b["w"]))


@pytest.mark.parametrize(
    ("sizes", "statistics"),
    [
        *(([16384, 128, 128, 1], LIGHT), ([1, 8, 1023, 1024, 1025, 5000], HISTOGRAM)),
        *(([30000, *[32] * 20], LIGHT), ([3] * 40, HISTOGRAM)),
    ],
)
def test_small_leaves_broken_into_rows_keep_their_numbers_apart(sizes, statistics):
    rng = np.random.default_rng(0)
    leaves = [np.float32(rng.normal(size=n) * 10.0 ** rng.integers(-30, 30)) for n in sizes]
    leaves[-1][0], leaves[0][-1] = np.nan, -np.inf
    told = numbers(leaves, statistics)
    for i, x in enumerate(leaves):
        assert_told(told, i, x)


@pytest.mark.parametrize("shapes", [[(16, 8), (8,)], [(8,), (16, 8)], [(8,), (8,)], [(400, 200), (16, 8)]], ids=str)
def test_every_device_has_the_rows_of_sharded_leaves_in_any_order(shapes):
    if jax.device_count() != 8:
        pytest.skip("needs eight devices")
    mesh = Mesh(first_devices(8).reshape(4, 2), ("a", "b"))
    leaves = [jax.device_put(ones(*shape), NamedSharding(mesh, P("b"))) for shape in shapes]
    assert jax.jit(lambda grads: measure(grads=grads))(leaves).packed["grads"].is_fully_replicated


def test_a_leaf_takes_as_many_bytes_as_the_docstring_says():
    packed = [
        jax.eval_shape(lambda s=s: measure(grads=[np.ones(3, np.float32)] * 2, statistics=s)).packed["grads"]
        for s in (LIGHT, FULL, HISTOGRAM)
    ]
    assert [rows.size * rows.dtype.itemsize // 2 for rows in packed] == [16, 36, 292]
    assert "16, 36 or 292 bytes of output for each leaf" in " ".join((measure.__doc__ or "").split())
