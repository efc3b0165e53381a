"""The numbers of a run over the steps, and as columns of a tree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv
from treeviz.steps.findings.finding import Finding
from treeviz.steps.measure import measure, numbers_of, source_of
from treeviz.steps.recording.history import History
from treeviz.steps.series import (
    MOST_BUCKETS,
    gradient_columns,
    gradient_histograms,
    gradient_series,
    ratio_columns,
    table_of_source,
)
from treeviz.tree.walk import walk

TREE = jax.device_put(
    {
        "layers": [{"b": np.zeros(3), "w": np.zeros((2, 3))}, {"b": np.zeros(1), "w": np.zeros((3, 1))}],
        "step": np.zeros((), np.int32),
    }
)
N_LEAVES = 5


def a_history(n_steps: int, bad: tuple[int, int] | None = None, *names: str) -> tuple[History, dict[str, np.ndarray]]:
    """Norms of each leaf, an integer's being NaN; at the step and leaf of `bad`, a number is not finite."""
    rng = np.random.default_rng(0)
    names = names or ("grads",)
    history = History([source_of(TREE, name) for name in names], 4_000_000)
    norms = {name: rng.lognormal(size=(n_steps, N_LEAVES)) for name in names}
    for step in range(n_steps):
        numbers = {}
        for name in names:
            norms[name][step, -1] = np.nan
            nonfinite = np.array([0, 0, 0, 0, -1])
            if bad is not None and bad[0] == step:
                nonfinite[bad[1]] = 2
            numbers[name] = {"norm": norms[name][step], "max_abs": norms[name][step], "nonfinite": nonfinite}
        history.append(step, numbers)
    return history, norms


def row_of(table, path: str) -> int:
    (row,) = [row.number for row in table if row.keystr == path]
    return row


def test_the_tree_is_that_of_the_paths():
    history, _ = a_history(1)
    table = table_of_source(history, "grads", "params")
    assert [leaf.keystr for leaf in table.leaves] == [leaf.keystr for leaf in tv.walk(TREE).leaves]
    assert table[row_of(table, "['layers'][0]['w']")].shape == (2, 3)


def test_a_subtrees_norm_is_the_root_of_the_sum_of_its_leaves_squares():
    history, norms = a_history(50)
    table = table_of_source(history, "grads", "params")
    (series,) = gradient_series(history, table)
    apart = norms["grads"]
    np.testing.assert_allclose(series.values[0], np.linalg.norm(apart[:, :4], axis=1), rtol=1e-6)
    layer = row_of(table, "['layers'][1]")
    np.testing.assert_allclose(series.values[layer], np.linalg.norm(apart[:, 2:4], axis=1), rtol=1e-6)
    assert np.isnan(series.values[row_of(table, "['step']")]).all()
    assert series.low is None and not series.bad.any()
    assert series.first_steps.tolist() == series.last_steps.tolist() == list(range(50))


def test_a_tap_has_no_ratio_to_the_parameters_of_the_step_also_if_it_has_as_many_numbers():
    history, _ = a_history(3, None, "grads", "params", "updates")
    for tree in ([np.ones(1)], jax.tree.leaves(TREE)):
        name = f"hidden {len(tree)}"
        history.add_source(source_of(tree, name), 1000)
        history.append(3, {name: {"norm": np.ones(len(tree))}})
        table = table_of_source(history, name, "hidden")
        assert [series.name for series in gradient_series(history, table, name)] == [f"{name}.norm"]
        assert ratio_columns(table, history, name) == []


def test_what_is_not_finite_is_marked_up_to_the_root():
    history, _ = a_history(20, bad=(7, 2))
    table = table_of_source(history, "grads", "params")
    (series,) = gradient_series(history, table)
    is_bad = series.bad[:, 7]
    struck = [row.keystr for row in table if is_bad[row.number]]
    assert struck == ["", "['layers']", "['layers'][1]", "['layers'][1]['b']"]
    assert series.bad.sum() == 4


def test_a_leaf_that_is_all_nan_has_no_norm_and_no_ratio_then_rather_than_zero():
    history = History([source_of(TREE, name) for name in ("grads", "params")])
    norms, nothing = np.array([3.0, 4, 5, 6, np.nan]), np.array([0, 0, 0, 0, -1])
    for step in range(10):
        is_bad = np.arange(N_LEAVES) == 1 if step == 4 else np.zeros(N_LEAVES, bool)
        grads = {"norm": np.where(is_bad, 0, norms), "nonfinite": np.where(is_bad, 6, nothing)}
        history.append(step, {"grads": grads, "params": {"norm": np.where(norms == 5, 0, norms), "nonfinite": nothing}})
    table = table_of_source(history, "grads", "params")
    norm, ratio = gradient_series(history, table)
    struck, zero = row_of(table, "['layers'][0]['w']"), row_of(table, "['layers'][1]['b']")
    assert np.flatnonzero(np.isnan(norm.values[struck])).tolist() == [4] == np.flatnonzero(norm.bad[struck]).tolist()
    assert np.flatnonzero(np.isnan(ratio.values[struck])).tolist() == [4] == np.flatnonzero(ratio.bad[struck]).tolist()
    assert np.isnan(ratio.values[zero]).all() and not ratio.bad[zero].any()  # its parameters are zero
    assert norm.values[0, 4] == pytest.approx(np.sqrt(9 + 25 + 36)) and norm.bad[0, 4]  # without it


@pytest.mark.parametrize("max_bytes", [8_000, 20_000, 60_000])
def test_what_is_not_finite_is_marked_at_its_step_however_old_and_in_no_other(max_bytes):
    history = History([source_of(TREE, "grads")], max_bytes)
    for step in range(2000):
        bad = np.where(np.arange(N_LEAVES) == 2, int(step in (777, 1990)), 0)
        history.append(step, {"grads": {"norm": np.ones(N_LEAVES), "nonfinite": bad}})
    widths = {statistic: history.values("grads", statistic).n[0] for statistic in ("norm", "nonfinite")}
    assert widths["norm"] > 1
    table = table_of_source(history, "grads", "params")
    (series,) = gradient_series(history, table)
    struck = row_of(table, "['layers'][1]['b']")
    columns = np.flatnonzero(series.bad[struck])
    near = max(widths.values())  # buckets of counts may be wider than those of norms
    for step, column in zip((777, 1990), (columns[0], columns[-1]), strict=True):
        assert series.first_steps[column] - near < step < series.last_steps[column] + near
    assert (series.last_steps[columns] - series.first_steps[columns] + 1).sum() <= 8 * near
    assert any(series.first_steps[c] <= 777 <= series.last_steps[c] for c in columns)
    assert any(series.first_steps[c] <= 1990 <= series.last_steps[c] for c in columns)


def test_a_long_run_is_joined_into_as_many_columns_as_a_screen_has_and_keeps_its_extremes():
    history, norms = a_history(3 * MOST_BUCKETS)
    table = table_of_source(history, "grads", "params")
    (series,) = gradient_series(history, table)
    leaf = row_of(table, "['layers'][0]['b']")
    assert series.values.shape[1] == MOST_BUCKETS
    assert series.low is not None and series.high is not None
    np.testing.assert_allclose(series.low[leaf].min(), norms["grads"][:, 0].min(), rtol=1e-6)
    np.testing.assert_allclose(series.high[leaf].max(), norms["grads"][:, 0].max(), rtol=1e-6)
    assert (series.low[leaf] <= series.values[leaf]).all() and (series.values[leaf] <= series.high[leaf]).all()


def test_a_finding_is_marked_where_it_begins():
    history, _ = a_history(30)
    table = table_of_source(history, "grads", "params")
    found = [
        Finding("spike", "grads", "['layers'][0]['w']", 1, 12, 12, (), "It rose.", "Look."),
        Finding("exploding", "grads", "", -1, 20, 29, (), "All rose.", "Clip."),
        Finding("spike", "updates", "['step']", 4, 3, 3, (), "Of another tree.", ""),
    ]
    (series,) = gradient_series(history, table, "grads", found)
    marks = [(mark.row, mark.column, mark.kind, mark.text) for mark in series.marks]
    assert marks == [
        (row_of(table, "['layers'][0]['w']"), 12, "spike", "It rose. Look."),
        (0, 20, "exploding", "All rose. Clip."),
    ]


def test_what_is_found_in_the_updates_and_parameters_is_marked_at_the_same_leaves():
    history, _ = a_history(30, None, "grads", "params", "updates")
    history.add_source(source_of({"a": jnp.zeros(2)}, "tap"), 10_000)
    table = table_of_source(history, "grads", "params")
    found = [
        Finding("nonfinite", "params", "['layers'][0]['w']", 1, 12, 12, (), "NaN.", "Look."),
        Finding("ratio", "updates", "", -1, 3, 29, (), "Too fast.", "Slower."),
        Finding("spike", "updates", "['layers'][0]['b']", 0, 5, 5, (), "It rose.", ""),
        Finding("dead", "tap", "['a']", 0, 3, 3, (), "Of other leaves.", ""),
    ]
    series = {each.name: each for each in gradient_series(history, table, "grads", found)}
    marks = {name: [(mark.row, mark.column, mark.kind) for mark in each.marks] for name, each in series.items()}
    weight, bias = row_of(table, "['layers'][0]['w']"), row_of(table, "['layers'][0]['b']")
    assert marks["grads.norm"] == [(weight, 12, "nonfinite"), (bias, 5, "spike")]
    assert marks["updates.ratio"] == [(0, 3, "ratio")] and marks["grads.ratio"] == []


def test_ratios_are_those_of_the_rolled_up_norms():
    history, norms = a_history(40, None, "grads", "params", "updates")
    table = table_of_source(history, "grads", "params")
    series = {each.name: each for each in gradient_series(history, table)}
    assert list(series) == ["grads.norm", "updates.ratio", "grads.ratio"]
    layer = row_of(table, "['layers'][0]")
    over = np.linalg.norm(norms["updates"][:, :2], axis=1) / np.linalg.norm(norms["params"][:, :2], axis=1)
    np.testing.assert_allclose(series["updates.ratio"].values[layer], over, rtol=1e-6)


def test_histograms_are_summed_up_the_tree_and_along_joined_steps():
    history = History([source_of(TREE, "grads")], 40_000_000)
    table = table_of_source(history, "grads", "params")
    assert gradient_histograms(history, table) == ()
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (2 * MOST_BUCKETS, N_LEAVES, 64))
    counts[:, -1] = -1
    for step, each in enumerate(counts):
        history.append(10 * step, {"grads": {"histogram": each}})
    (histograms,) = gradient_histograms(history, table)
    layer = histograms.counts[row_of(table, "['layers'][1]")]
    np.testing.assert_array_equal(layer.sum(axis=0), counts[:, 2:4].sum(axis=(0, 1)))
    np.testing.assert_array_equal(histograms.counts[0].sum(axis=0), counts[:, :4].sum(axis=(0, 1)))
    assert histograms.counts[row_of(table, "['step']")].sum() == 0
    assert (histograms.first_steps[0], histograms.last_steps[-1]) == (0, 10 * (2 * MOST_BUCKETS - 1))


def test_a_magnitude_lies_between_the_edges_of_its_bin():
    inspector = tv.GradientInspector()
    for step, x in enumerate((1.0, 1.5, 2.0, 1e-3)):
        inspector.record(tv.measure(statistics=tv.HISTOGRAM, grads={"x": jnp.array([x, -x])}), step)
    (histograms,) = inspector.render().histograms
    for column, x in enumerate((1.0, 1.5, 2.0, 1e-3)):
        (used,) = np.flatnonzero(histograms.counts[1, column])
        assert histograms.counts[1, column, used] == 2
        assert histograms.edges[used] <= x < histograms.edges[used + 1]


def test_the_root_is_the_global_norm_of_the_gradients():
    rng = np.random.default_rng(0)
    grads = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), TREE)
    inspector = tv.GradientInspector()
    inspector.record(tv.measure(grads=grads))
    view = inspector.render()
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(grads["layers"])]
    np.testing.assert_allclose(view.series[0].values[0, 0], np.linalg.norm(np.concatenate(leaves)), rtol=1e-6)


def test_whether_there_is_a_ratio_is_known_without_computing_it(monkeypatch):
    history, _ = a_history(50, None, "grads", "params", "updates")
    table = table_of_source(history, "grads", "params")
    monkeypatch.setattr(History, "ratio", lambda *_, **__: pytest.fail("a ratio was computed"))
    names = [each.name for each in gradient_series(history, table)]
    assert names == ["grads.norm", "updates.ratio", "grads.ratio"]


# Norms of subtrees: compared with optax where that is right, and right where it is not.


def table_of(tree, **others):
    numbers = numbers_of(measure(grads=tree, **others))
    table = walk(tree)
    return table.with_columns(*gradient_columns(table, numbers))


def grads():
    rng = np.random.default_rng(0)
    layers = [{"w": jnp.asarray(rng.standard_normal((30, 40)), jnp.float32), "b": jnp.ones(40)} for _ in range(3)]
    return {"layers": layers, "head": jnp.full(7, 0.5)}


def test_the_root_is_the_global_norm():
    optax = pytest.importorskip("optax")
    table = table_of(grads())
    assert table[0]["grads_norm"] == pytest.approx(float(optax.tree.norm(grads())), rel=1e-6)


def test_every_subtree_has_the_root_of_the_sum_of_squares():
    tree = grads()
    table = table_of(tree)
    (row,) = table.find("layers/1")[:1]
    flat = np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree["layers"][1])])
    assert row["grads_norm"] == pytest.approx(np.linalg.norm(flat), rel=1e-6)


@pytest.mark.optimized
def test_the_root_is_right_where_float16_sums_are_infinite():
    tree = {"a": jnp.full((1000, 300), 17, jnp.float16), "b": jnp.full(5, 1e20), "c": jnp.arange(3)}
    assert table_of({"a": tree["a"]})[0]["grads_norm"] == pytest.approx(17 * np.sqrt(300_000), rel=1e-6)
    assert table_of(tree)[0]["grads_norm"] == pytest.approx(1e20 * np.sqrt(5), rel=1e-6)


def test_counts_add_up_and_ratios_are_those_of_the_subtrees():
    tree = {"a": jnp.array([1.0, np.nan, np.inf]), "b": {"c": jnp.array([np.nan]), "i": jnp.arange(3)}}
    table = table_of(tree, params=jax.tree.map(lambda x: jnp.full_like(x, 2), tree))
    assert table[0]["grads_nonfinite"] == 3
    assert np.isnan(table[0]["grads_ratio"])
    finite = {"a": jnp.array([1.0, 2.0, 2.0]), "b": {"c": jnp.array([0.0]), "i": jnp.arange(3)}}
    table = table_of(finite, params=jax.tree.map(lambda x: jnp.full_like(x, 2), finite))
    assert table[0]["grads_nonfinite"] == 0
    assert table[0]["grads_ratio"] == pytest.approx(3 / 4)


def test_what_is_not_finite_has_no_norm_and_neither_has_what_it_is_in():
    tree = {"a": {"x": jnp.array([3.0, np.nan]), "y": jnp.array([4.0])}, "b": jnp.array([5.0])}
    table = table_of(tree)
    norms = table.rolled(table.columns["grads_norm"])
    greatest = table.rolled(table.columns["grads_max_abs"])
    by_path = {row.keystr: (norms[row.number], greatest[row.number]) for row in table}
    known = {path: pair for path, pair in by_path.items() if not np.isnan(pair).any()}
    assert known == {"['a']['y']": (4, 4), "['b']": (5, 5)}
    assert all(np.isnan(by_path[path]).all() for path in ("", "['a']", "['a']['x']"))
    assert [row.keystr for row in table if table.columns["grads_norm"].bad[row.number]] == ["", "['a']", "['a']['x']"]


def test_parameters_that_are_zero_have_no_ratio():
    tree = {"a": jnp.ones(3), "b": jnp.ones(2)}
    table = table_of(tree, params={"a": jnp.zeros(3), "b": jnp.full(2, 4.0)})
    ratio = table.rolled(table.columns["grads_ratio"])
    np.testing.assert_allclose(ratio, [np.sqrt(5 / 32), np.nan, 1 / 4], rtol=1e-6)


def test_a_tree_with_other_leaves_is_refused():
    table = walk([1.0, 2.0])
    with pytest.raises(ValueError, match=r"grads has .* leaves, but tree has 2"):
        gradient_columns(table, numbers_of(measure(grads=[1.0])))
