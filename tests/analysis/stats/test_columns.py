"""Value statistics of arrays in this host's memory: what the numbers are."""

import enum

import ml_dtypes
import numpy as np
import pytest
from analysis.stats.truth import COMPLEX, FLOATS, INTEGERS, assert_same, dtype_of, statistics, told, truth
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import treeviz
from treeviz.analysis import stats as stats_host
from treeviz.analysis.stats import Summaries, over_ranges
from treeviz.tree.query import VALUE_STATISTICS
from treeviz.tree.walk import scan

pytestmark = pytest.mark.oldest_jax

RNG = np.random.default_rng(0)
LARGE = 3 * stats_host.CHUNK + 17  # several chunks; the last one is short


def sample(name: str, size: int, seed: int = 0) -> np.ndarray:
    """Numbers of every size that the dtype has, and for floats NaN, infinities and zeros among them."""
    rng, dtype = np.random.default_rng(seed), dtype_of(name)
    if dtype.kind == "b":
        return rng.random(size) < 0.3
    if dtype.kind in "iu" and dtype.itemsize == 8:
        info = np.iinfo(dtype)
        return np.r_[rng.integers(info.min, info.max, size - 3, dtype, endpoint=True), 0, info.min, info.max].astype(
            dtype
        )
    if name in INTEGERS:
        info = ml_dtypes.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, size).astype(dtype)
    x = rng.standard_normal(size) * 2.0 ** rng.integers(-12, 6, size)
    if dtype.kind == "c":
        x = x + 1j * rng.standard_normal(size)
    x = x.astype(dtype)
    for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
        x[rng.integers(0, size, 5)] = value
    return x


@pytest.mark.parametrize("size", [40, LARGE])
@pytest.mark.parametrize("name", FLOATS + INTEGERS + COMPLEX)
def test_statistics_agree_with_float64_in_every_dtype(name, size):
    x = sample(name, size)
    assert_same(told(statistics(x)[0]), truth(x))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("float16", 60000),  # the sum and the square overflow float16
        ("bfloat16", 1),  # a running bfloat16 mean stops at 256
        ("float8_e4m3fn", 448),
        ("float32", 1e20),
        ("float32", 1e-25),
        ("float32", 1e-40),  # denormal
        ("float64", 1e300),
        ("float64", 1e-300),
        ("float64", 1e-307),
        ("int8", -128),
        ("int64", -(2**63)),
        ("uint64", 2**64 - 1),
        ("complex64", 3e38 + 3e38j),
    ],
)
def test_a_million_equal_numbers_have_their_own_value_as_mean_and_rms(name, value):
    x = np.full(1_000_000, value, dtype_of(name))
    one = np.abs(np.complex128(x[0])) if name == "complex64" else float(x[0])
    found = told(statistics(x)[0])
    assert (found["min"], found["max"]) == (one, one)
    np.testing.assert_allclose([found["mean"], found["rms"]], [one, abs(one)], rtol=1e-12)
    assert found["std"] <= 1e-12 * abs(one)
    assert found["zeros"] == found["nan"] == found["inf"] == 0
    assert found["histogram"].sum() == found["histogram"][np.clip(np.frexp(abs(one))[1] + 39, 0, 63)] == 1_000_000


def test_minus_128_has_magnitude_128():
    found = told(statistics(np.array([-128], np.int8))[0])
    assert (found["min"], found["rms"], found["histogram"][47]) == (-128, 128, 1)


def test_a_small_spread_about_a_large_mean_is_not_lost():
    x = 1e8 + np.arange(100_000) % 2
    found = told(statistics(x)[0])
    assert found["mean"] == 1e8 + 0.5
    assert found["std"] == pytest.approx(0.5, rel=1e-9)


def test_one_nan_in_ten_million_is_counted():
    x = np.ones(10_000_000, np.float32)
    x[7_654_321] = np.nan
    found = told(statistics(x)[0])
    assert (found["nan"], found["inf"], found["mean"], found["std"]) == (1, 0, 1.0, 0.0)


@given(
    st.data(),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
    st.sampled_from(["float16", "float32", "float64", "bfloat16", "float8_e5m2", "int8", "uint64", "bool"]),
)
@settings(max_examples=2 * settings().max_examples)
def test_any_array_agrees_with_float64(data, shape, name):
    if name in ("int8", "uint64", "bool"):
        x = data.draw(hnp.arrays(name, shape))
    else:
        width = {"float64": 64, "float16": 16}.get(name, 32)
        x = data.draw(hnp.arrays(f"float{width}", shape, elements=st.floats(width=width)))
        with np.errstate(all="ignore"):
            x = x.astype(dtype_of(name))
        x = np.where(np.abs(x.astype(np.float64)) < 1e150, x, 1).astype(x.dtype)  # for the truth's squares
    x = x[..., ::-1] if x.ndim else x
    found = told(statistics(x)[0])
    assert_same(found, truth(x))


@pytest.mark.parametrize(
    "lay",
    [
        np.asfortranarray,
        lambda x: x[::2, ::-3, 1:],
        lambda x: x.transpose(1, 2, 0),
        lambda x: x.astype(x.dtype.newbyteorder()),
        lambda x: np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),  # not aligned
        lambda x: x.view(type("Mine", (np.ndarray,), {"__getitem__": None, "reshape": None, "view": None})),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, axis=1),
        lambda x: np.broadcast_to(x[:, None], (70, 5, 40, 30)),
        lambda x: x[:0],
    ],
)
@pytest.mark.parametrize("cut", [1, 70])
def test_an_array_is_read_however_it_lies(lay, cut):
    x = lay(sample("float32", 70 * 40 * 30).reshape(70, 40, 30)[:cut])
    assert_same(
        told(statistics(x)[0]), truth(np.array(np.ndarray.view(x, np.ndarray) if type(x) is not np.ndarray else x))
    )


def test_what_was_broadcast_is_read_once():
    found = told(statistics(np.broadcast_to(np.float32([1, 0]), (10**10, 2)))[0])
    assert (found["zeros"], found["mean"], found["histogram"][40]) == (10**10, 0.5, 10**10)


def test_an_array_beyond_the_budget_is_not_scanned_and_says_so(tmp_path):
    sparse = np.memmap(tmp_path / "sparse", np.float32, "w+", shape=(2**31,))
    columns, notes = statistics({"a": np.ones(3), "b": sparse})
    assert notes == {2: "not scanned: 2,147,483,648 elements are more than 1,000,000,000"}
    assert np.isnan(columns["mean"][2]) and columns["mean"][0] == 1
    columns, notes = statistics(np.ones(11), max_elements=10)
    assert notes == {0: "not scanned: 11 elements are more than 10"}


def test_a_memmap_is_read(tmp_path):
    x = sample("float32", 1000)
    x.tofile(tmp_path / "x")
    assert_same(told(statistics(np.memmap(tmp_path / "x", np.float32, "r"))[0]), truth(x))


class Level(enum.IntEnum):
    HIGH = 7


class Hostile(float):
    __slots__ = ()
    __float__ = __repr__ = __eq__ = __len__ = __hash__ = None  # type: ignore[assignment]


def test_scalars_are_numbers_too():
    tree = [True, 3, 2.5, 3 + 4j, np.float32(8), np.int64(-1), ml_dtypes.bfloat16(0.5), Level.HIGH, Hostile(1.5)]
    columns, notes = statistics(tree)
    assert not notes
    assert [columns["mean"][row] for row in range(1, 10)] == [1, 3, 2.5, 5, 8, -1, 0.5, 7, 1.5]


def test_what_holds_no_numbers_says_why():
    float0 = np.zeros(3, [("float0", "V")])
    tree = [np.array([None]), np.array(["a"]), np.zeros(2, "M8[s]"), np.zeros(2, [("x", "f4")]), float0, 10**400]
    columns, notes = statistics(tree)
    assert list(notes.values()) == [
        "no statistics: dtype object holds no numbers",
        "no statistics: dtype <U1 holds no numbers",
        "no statistics: dtype datetime64[s] holds no numbers",
        "no statistics: dtype [('x', '<f4')] holds no numbers",
        "float0: it has no values",
        "could not be read: OverflowError: int too large to convert to float",
    ]
    assert all(np.isnan(column.values).all() for column in columns.values())


def test_what_is_no_array_has_neither_statistics_nor_an_excuse():
    columns, notes = statistics(["text", None, {}, object(), len])
    assert not notes
    assert np.isnan(columns["nan"].values).all()


def test_an_empty_array_has_counts_and_nothing_else():
    found = told(statistics(np.zeros((0, 3)))[0])
    assert found["zeros"] == found["nan"] == found["inf"] == found["histogram"].sum() == 0
    assert all(np.isnan(found[name]) for name in ("min", "max", "mean", "std", "rms"))


def test_an_array_without_a_finite_value_has_counts_and_nothing_else():
    found = told(statistics(np.array([np.nan, np.inf, -np.inf]))[0])
    assert (found["nan"], found["posinf"], found["neginf"], found["inf"]) == (1, 1, 1, 2)
    assert all(np.isnan(found[name]) for name in ("min", "max", "mean", "std", "rms"))


def test_a_complex_number_with_a_nan_part_is_a_nan():
    x = np.array([complex(np.nan, np.inf), complex(np.inf, 1), complex(-np.inf, 0), 3 + 4j, 0])
    found = told(statistics(x)[0])
    assert [found[name] for name in ("nan", "posinf", "neginf", "zeros", "min", "max")] == [1, 2, 0, 1, 0, 5]


def test_masked_data_counts_and_a_note_says_so():
    columns, notes = statistics(np.ma.masked_greater(np.arange(4.0), 2))
    assert columns["max"][0] == 3
    assert notes == {0: "the mask is ignored: the statistics cover all its data"}


def test_a_node_speaks_for_everything_below_it():
    tree = {
        "block": [sample("float32", 100), {"b": sample("bfloat16", LARGE, 1), "none": None}],
        "scale": 1e3 + sample("float64", 50, 2),
        "step": 12,
        "name": "text",
    }
    table, _ = scan(tree)
    columns, _ = statistics(tree)
    block = tree["block"]
    by_path = {row.path: row.number for row in table}
    assert_same(told(columns, 0), truth(block[0], block[1]["b"], tree["scale"], tree["step"]))
    assert_same(told(columns, by_path["block"]), truth(block[0], block[1]["b"]))
    assert_same(told(columns, by_path["block/1"]), truth(block[1]["b"]))
    assert np.isnan(columns["nan"][by_path["block/1/none"]]) and np.isnan(columns["nan"][by_path["name"]])


def test_a_tiny_leaf_beside_a_huge_one_keeps_its_digits():
    tree = [[np.full(3, 1e30)], [np.full(3, 1e-30), np.full(1, -1e-30)]]
    columns, _ = statistics(tree)
    assert columns["mean"][3] == pytest.approx(0.5e-30, rel=1e-12)


trees = st.recursive(
    hnp.arrays(np.float64, st.integers(0, 4), elements=st.floats(-1e9, 1e9) | st.sampled_from([np.nan, np.inf])),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=30,
)


@given(trees)
def test_roll_ups_agree_with_all_numbers_below_at_once(tree):
    table, nodes = scan(tree)
    columns, _ = statistics(tree)
    for row in table:
        below = [nodes[n] for n in range(row.number, row.end) if isinstance(nodes[n], np.ndarray)]
        if below:
            assert_same(told(columns, row.number), truth(*below))
        else:
            assert np.isnan(columns["zeros"][row.number])


def test_an_array_in_several_places_is_read_once_and_counts_in_each(monkeypatch):
    calls = []
    summary_of_array = stats_host.summary_of_array
    monkeypatch.setattr("treeviz.analysis.stats.summary_of_array", lambda x: calls.append(x) or summary_of_array(x))
    x = np.zeros(stats_host.SMALL + 1)
    columns, _ = statistics([x, x, [x]])
    assert len(calls) == 1
    assert columns["zeros"][0] == 3 * x.size


def test_a_deep_chain_costs_one_level_of_numbers():
    tree = np.ones(3)
    for _ in range(20_000):
        tree = [tree]
    columns, _ = statistics(tree)
    assert columns["mean"].levels.shape == (1,)
    assert (columns["mean"].values == 1).all()


def test_a_leaf_that_fails_is_a_note_and_the_others_go_on(monkeypatch):
    summary_of_array = stats_host.summary_of_array

    def fails(array):
        if array[0] == 13:
            raise MemoryError("no room <b>\x07")
        return summary_of_array(array)

    monkeypatch.setattr("treeviz.analysis.stats.summary_of_array", fails)
    columns, notes = statistics([np.full(5000, 13.0), np.full(5000, 1.0)])
    assert notes == {1: "could not be read: MemoryError: no room <b>\\x07"}
    assert np.isnan(columns["mean"][1]) and columns["mean"][0] == 1


def test_ctrl_c_passes_through(monkeypatch):
    def interrupted(array):
        raise KeyboardInterrupt

    monkeypatch.setattr("treeviz.analysis.stats.summary_of_array", interrupted)
    with pytest.raises(KeyboardInterrupt):
        statistics(np.ones(5000))


def test_no_floating_point_error_whatever_numpy_is_told():
    x = np.float32([1e38, np.inf, -np.inf, np.nan, 0, 1e-40])
    with np.errstate(all="raise"):
        before = np.geterr()
        found = told(statistics([x, np.tile(x, 2000), x[::-1]])[0])
        assert np.geterr() == before
    assert found["nan"] == 2002


def test_ranges_of_any_length_are_put_together_right():
    moments = np.stack([np.full(50, 2.0), RNG.random(50), RNG.random(50), -RNG.random(50), RNG.random(50)])
    start, stop = np.sort(RNG.integers(0, 51, (2, 200)), axis=0)
    found = over_ranges(Summaries(moments, np.ones((50, 1), np.int64)), start, stop)
    for i, (a, b) in enumerate(zip(start, stop, strict=True)):
        n, mean, std, least, greatest = moments[:, a:b]
        assert found.counts[i, 0] == b - a
        if b > a:
            std_of_all = np.sqrt((std**2 + mean**2).mean() - mean.mean() ** 2)
            expected = [n.sum(), mean.mean(), std_of_all, least.min(), greatest.max()]
            np.testing.assert_allclose(found.moments[:, i], expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("tree", "said", "columns"),
    [
        ([np.zeros(3), np.zeros((2, 2), np.int32)], "all finite, all zeros", []),
        (np.zeros(3), "all finite, all zeros", []),
        ([np.full(3, 0.5), np.full(2, 0.5, np.float32)], "all finite, all values are 0.5", []),
        (
            [np.array([0.0, 1.0]), np.array([0.0, 3.0])],
            "min 0 in every row",
            ["zeros", "max", "mean", "std", "rms", "histogram"],
        ),
        (
            [np.array([0.0, 1.0]), np.array([0.0, 0.0, 1.0])],
            "min 0, max 1 in every row",
            ["zeros", "mean", "std", "rms", "histogram"],
        ),
        ([np.array([0.0, np.nan]), np.zeros(2)], "no Inf, all other values are 0", ["nan"]),
        ([np.array([0.0, 1.0])], "all finite", ["zeros", "min", "max", "mean", "std", "rms", "histogram"]),
        # A leaf that has no finite number has none of these.
        (
            [np.array([np.nan]), np.array([0.0, 1.0]), np.array([0.0, 2.0])],
            "no Inf",
            ["nan", "zeros", "min", "max", "mean", "std", "rms", "histogram"],
        ),
        # The least and the greatest of complex numbers are magnitudes.
        (
            [np.array([1, -1j])],
            "all finite, no zeros",
            ["min", "max", "mean", "std", "rms", "histogram"],
        ),
        (np.float32(1), "all finite, no zeros", ["min", "max", "mean", "std", "rms", "histogram"]),
    ],
)
def test_what_is_the_same_in_every_row_is_words_in_the_headline_of_every_view(tree, said, columns, tmp_path):
    view = treeviz.render(tree, stats=True)
    assert view.table.headline[-1] == said
    assert [column.name for column in view.columns if column.name in VALUE_STATISTICS] == columns
    picture = view.save(tmp_path / "tree.svg").read_text("utf-8")
    for text in (view.text(), view.html(), picture):
        assert said.split(", ")[-1] in text
    assert set(VALUE_STATISTICS) <= view.table.columns.keys()  # in the menu and for the search
