"""What a display may cost, and what it says of the rest. Time is counted by a stopwatch of the test's own."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from sample_nodes import Forever

import treeviz
from treeviz import prepare
from treeviz.analysis import stats as statistics
from treeviz.tree import keys
from treeviz.tree import walk as walking
from treeviz.tree.describers import Budget
from treeviz.tree.level import BUILTIN_LEVELS

pytestmark = pytest.mark.oldest_jax

ROWS = Budget(max_rows=200, hint="; whole=True shows more")
SECONDS = Budget(walk_s=1.5, read_s=2.0, hint="; whole=True shows more")


class Unkeyed:
    def __init__(self, children) -> None:
        self.children, self.n_flattened = children, 0

    def flatten(self):
        self.n_flattened += 1
        return list(self.children), None

    def flatten_with_keys(self):
        children, aux = self.flatten()
        return [(jax.tree_util.DictKey(i), child) for i, child in enumerate(children)], aux


class Keyed(Unkeyed):
    pass


jax.tree_util.register_pytree_node(Unkeyed, Unkeyed.flatten, lambda _, children: Unkeyed(children))
jax.tree_util.register_pytree_with_keys(Keyed, Keyed.flatten_with_keys, lambda _, children: Keyed(children))


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr(prepare, "DISPLAY", ROWS)


@pytest.fixture
def slow(monkeypatch):
    """Each look at a stopwatch finds it 0.1 s later."""

    class Slow:
        def __init__(self) -> None:
            self.n_looks = 0

        def __call__(self) -> float:
            self.n_looks += 1
            return 0.1 * self.n_looks

    for module in (walking, statistics):
        monkeypatch.setattr(module, "Stopwatch", Slow)
    monkeypatch.setattr(statistics, "_CHECK_EVERY_S", -1.0)
    monkeypatch.setattr(prepare, "DISPLAY", SECONDS)


def notes(table, kind: str) -> list[str]:
    return [note.text for row in table for note in row.notes if note.kind == kind]


ENDLESS = {
    "nodes without an end": Forever,
    "and a list beside them": lambda: {"deep": Forever(), "wide": [0.5] * 5_000},
    "many keys": lambda: dict.fromkeys(range(30_000), 0.5),
    "many levels": lambda: _nested(30_000),
}


def _nested(n: int):
    tree = 0.5
    for _ in range(n):
        tree = [tree]
    return tree


@pytest.mark.parametrize("show", [treeviz.render, treeviz.explore])
@pytest.mark.parametrize("limit", ["few_rows", "slow"])
@pytest.mark.parametrize("name", ENDLESS)
def test_a_display_ends_and_counts_what_it_leaves_out(name, limit, show, request):
    request.getfixturevalue(limit)
    table = show(ENDLESS[name]()).table
    assert len(table) < 1_500
    left_out = notes(table, "more")
    assert left_out and all("left out: " in text for text in left_out)
    why = (
        "the budget is 200 rows and 250,000 levels"
        if limit == "few_rows"
        else "walking this tree takes more than 1.5 s"
    )
    assert all(text.endswith(f": {why}; whole=True shows more") for text in left_out)
    assert table.headline[0].startswith("≥ ")
    assert [note.text for note in table[0].notes if note.kind == "info"] == ["at least: some of it was left out"]


def test_a_dict_beyond_the_budget_is_flattened_once_and_only_the_keys_of_its_rows_are_made(few_rows, monkeypatch):
    made, flattened = [], []
    make, level = keys._mapping_key, BUILTIN_LEVELS[dict]
    monkeypatch.setattr(keys, "_mapping_key", lambda *key: made.append(key) or make(*key))
    monkeypatch.setitem(BUILTIN_LEVELS, dict, lambda *node: flattened.append(node) or level(*node))
    assert len(treeviz.render({f"k{i}": 0.5 for i in range(1_000)}).table) == 200
    assert len(flattened) == 1 and len(made) == 199
    flattened.clear(), made.clear()
    table = treeviz.render({f"{i}": {f"{i}{j}": 0.5 for j in range(100)} for i in range(10)}).table
    assert len(table) == 200 and len(notes(table, "more")) == 10
    assert len(flattened) < 20 and len(made) < 700


@pytest.mark.parametrize("cls", [Keyed, Unkeyed])
def test_a_custom_node_beyond_the_budget_is_flattened_once_and_only_the_keys_of_its_rows_are_made(
    cls, few_rows, monkeypatch
):
    monkeypatch.setattr(keys, "_FEW", 0)
    node = cls(range(1_000))
    table = treeviz.render(node).table
    assert len(table) == 200 and node.n_flattened == 1
    assert len(table.keys) == 200 and notes(table, "more")[0].startswith("802 more children were left out: the budget")
    inner = [cls(range(100)) for _ in range(10)]
    assert len(treeviz.render(inner).table) == 200
    assert max(node.n_flattened for node in inner) == 2 and sum(node.n_flattened for node in inner) < 15


def test_a_custom_node_that_takes_all_the_time_to_flatten_has_a_thousand_rows(monkeypatch):
    node = Keyed(range(20_000))

    def stopwatch():
        n_before = node.n_flattened
        return lambda: 2.0 * (node.n_flattened - n_before)

    monkeypatch.setattr(walking, "Stopwatch", stopwatch)
    monkeypatch.setattr(prepare, "DISPLAY", SECONDS._replace(max_rows=10_000))
    table = treeviz.render(node).table
    assert len(table) == 1_000 and node.n_flattened == 1
    assert notes(table, "more")[0].startswith("19,002 more children were left out: walking this tree takes more than")


def test_a_bare_treedef_beyond_the_budget_has_keys_for_its_rows_alone(few_rows):
    table = treeviz.render(jax.tree.structure(Keyed(range(1_000)))).table
    assert len(table) == len(table.keys) == 200


def test_a_walk_stops_at_its_budget_though_most_leaves_stand_behind_the_nodes(few_rows):
    tree = 0.5
    for _ in range(10):
        tree = [tree, *[0.5] * 150]
    assert len(treeviz.render(tree).table) < 220


def test_the_reason_is_the_time_where_the_second_pass_takes_too_long(slow, monkeypatch):
    monkeypatch.setattr(prepare, "DISPLAY", SECONDS._replace(max_rows=10_000))
    table = treeviz.render({i: i + 0.5 for i in range(20_000)}).table
    (text,) = notes(table, "more")
    assert "more children were left out: walking this tree takes more than 1.5 s" in text
    assert len(table) < 1_500 and max(len(table.keys), len(table.facts)) <= len(table) + 1
    assert len(table) - 2 + int(text.split()[0].replace(",", "")) == 20_000


def test_every_node_above_what_was_left_out_says_that_its_totals_are_not_whole(few_rows):
    table = treeviz.render({"a": {"b": [0.5] * 500}, "c": [0.5, 0.5]}).table
    assert [row.keystr for row in table if any(note.kind == "info" for note in row.notes)] == [
        "",
        "['a']",
        "['a']['b']",
    ]


def test_no_share_is_claimed_of_a_tree_that_was_cut(few_rows):
    headline = treeviz.render([np.ones(3, np.float32)] * 500).table.headline
    assert not any("%" in part for part in headline)
    assert all(part.startswith("≥ ") and part.count("≥") == part.count("unique") + 1 for part in headline)


@pytest.mark.parametrize("limit", ["few_rows", "slow"])
def test_a_keyword_shows_the_whole_tree(limit, request):
    request.getfixturevalue(limit)
    view = treeviz.render([0.5] * 5_000, stats=True, whole=True)
    assert len(view.table) == len(treeviz.walk([0.5] * 5_000)) == 5_001
    assert not notes(view.table, "more") and view.table[0]["zeros"] == 0


def test_a_tree_given_as_that_keyword_is_told_of_beside():
    with pytest.raises(TypeError, match="beside"):
        treeviz.render([1.0], whole={"w": 1.0})


def test_leaves_that_there_is_no_time_to_read_are_counted_and_the_rest_is_at_least(slow):
    tree = [np.full(3, np.nan) for _ in range(40)]
    table = treeviz.render(tree, stats=True).table
    n_read = np.isfinite(table.columns["nan"].values[1:]).sum()
    assert 0 < n_read < 40 and table[0]["nan"] == 3 * n_read
    assert (
        f"NaN in ≥ {n_read} leaves" in table.headline and f"statistics without {40 - n_read} leaves" in table.headline
    )
    why = "not read: the statistics take more than 2 s; whole=True shows more"
    assert notes(table, "info") == [why] * (40 - n_read)


def test_another_tree_that_was_cut_has_no_holes(few_rows):
    params = {"w": [0.5] * 150}
    grads = {"w": [0.5] * 150, "x": [0.5] * 5_000}
    table = treeviz.render(params, grads=grads).table
    assert "grads: compared only where both trees were walked" in notes(table, "info")
    assert not any("—" in map(str, column.levels) for column in table.columns.values() if column.format == "label")


def test_another_tree_that_there_is_no_time_to_read_is_counted(slow):
    tree = {f"w{i}": np.ones(3) for i in range(40)}
    found = notes(treeviz.render(tree, stats=True, grads=tree).table, "info")
    assert any(
        text.startswith("grads: ") and "leaves were not read: the statistics take more" in text for text in found
    )


def test_the_budget_is_what_the_docstring_says():
    rows, walk_s, read_s, _ = prepare.DISPLAY
    said = f"{rows:,} rows, {walk_s:g} s for the walk of each tree, {read_s:g} s for the values"
    documented = " ".join((treeviz.render.__doc__ or "").split())
    assert said in documented and "its page at most 3 MB" in documented


@pytest.mark.large
def test_a_page_of_many_rows_takes_at_most_three_megabytes():
    names = np.random.default_rng(0).integers(2**60, size=(40_000, 8)).tolist()
    view = treeviz.render({"".join(f"{part:x}" for part in parts): 0.5 for parts in names})
    assert len(view.packed) > 2_500_000 and 2_000_000 < len(view.html().encode()) <= 3_000_000
