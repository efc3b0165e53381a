"""Which siblings are folded into one row: the cases that the front end is tested with too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_nodes import WithAux
from sample_trees import SAMPLES

from treeviz import diff
from treeviz.tree.facts import Note
from treeviz.tree.repeats import LEAST, fold, merged_facts
from treeviz.tree.walk import walk

CASES = json.loads((Path(__file__).parents[1] / "fold_cases.json").read_text("utf-8"))

inner = st.sampled_from([1, [1], [1, 1, 1], {"a": 1}, {"a": [1, 1]}])
trees = st.lists(st.one_of(inner, st.lists(inner, max_size=6)), max_size=8)


@pytest.mark.parametrize("case", CASES, ids=[case["what"] for case in CASES])
def test_runs_are_those_of_the_rule(case):
    table = diff(case["tree"], case["other"]).table if "other" in case else walk(case["tree"])
    found = fold(table, case.get("wrong", ()), case.get("nan", ()))
    assert [{"label": run.label, "rows": run.rows.tolist()} for _, run in sorted(found.runs.items())] == case["folded"]
    assert found.rows.tolist() == case["shown"]
    assert found.n_blank == case.get("n_blank", 0)
    assert {str(found.rows[shown]): row for shown, row in found.mirrors.items()} == case.get("mirrors", {})


def subtree(table, row):
    inside = range(row + 1, int(table.end[row]))
    return table.fact_codes[row], [(table.depth[i], table.key(i), table.fact_codes[i]) for i in inside]


@settings(deadline=None)
@given(trees, st.lists(st.integers(0, 60), max_size=4), st.lists(st.integers(0, 60), max_size=4))
def test_a_folded_row_stands_for_subtrees_that_are_equal_row_by_row(tree, wrong, nan):
    table = walk(tree)
    found = fold(table, *([row for row in rows if row < len(table)] for rows in (wrong, nan)))
    for shown, run in found.runs.items():
        assert len(run.rows) >= LEAST and found.rows[shown] == run.rows[0]
        assert len({repr(subtree(table, row)) for row in run.rows.tolist()}) == 1
    stands_for = found.rows[found.place]
    assert np.array_equal(stands_for[found.rows], found.rows)
    assert np.array_equal(table.fact_codes[stands_for], table.fact_codes)
    assert np.array_equal(table.depth[stands_for], table.depth)


def test_layers_that_differ_in_the_numbers_of_their_static_fields_are_alike_and_values_are_not():
    table = walk(SAMPLES["layers that know their numbers"]())
    (run,) = fold(table).runs.values()
    assert run.label == "[0…11] ×12"
    merged = merged_facts([table.facts[table.fact_codes[row]] for row in run.rows])
    assert merged.static == (("aux", "('layer 0…11', 7)"),)
    rates = [WithAux(1.0, label=f"rate {10.0**-i} of {2 + i}") for i in range(5)]
    table = walk(rates)
    merged = merged_facts([table.facts[code] for code in np.unique(table.fact_codes[1::2])])
    assert merged.static == (("aux", "('rate 0.0001…1.0 of 2…6', 7)"),)
    for values in ([1, 2, 3], ["a1", "a2", "a3"], [np.ones(1), np.ones(2), np.ones(3)]):
        assert not fold(walk(values)).runs


def test_what_is_said_of_rows_that_are_none_or_mirror_others_keeps_them():
    mu, nu = ({"w": {"a": 1, "b": 2, "c": 3, "d": 4}} for _ in range(2))
    table = walk({"mu": mu, "nu": nu, "x": None, "y": None, "z": None})
    assert fold(table).rows.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    found = fold(table, values=lambda: [np.arange(len(table))], labeled=lambda: [13])
    assert found.rows.tolist() == [*range(len(table))]
    noted = table.with_notes({9: (Note("info", "a note"),), 14: (Note("info", "a note"),)})
    assert fold(noted).rows.tolist() == [*range(len(table))]


def test_a_tree_without_repeats_is_shown_as_it_is():
    table = walk([[[[1]], 2], 3])
    found = fold(table)
    assert not found.runs and found.rows.tolist() == found.place.tolist() == list(range(len(table)))


def test_a_deep_chain_is_not_folded_and_a_wide_list_is():
    tree: object = 1
    for _ in range(20_000):
        tree = [tree, 1]
    assert not fold(walk(tree)).runs
    assert fold(walk([[1, 2]] * 20_000)).rows.tolist() == [0, 1, 2, 3]
