"""Rolling up, held to the leaves of each subtree by themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import treeviz
from treeviz.tree.walk import walk

TREE = {"a": [1, {"b": 2, "c": ()}], "d": {"e": [3, 4, 5]}, "f": 6}


@pytest.mark.parametrize("columns", [(), (3,)])
def test_a_norm_is_the_root_of_the_leaves_squares_and_nothing_where_no_leaf_has_one(columns):
    table = walk(TREE)
    rng = np.random.default_rng(0)
    values = np.full((len(table), *columns), np.nan)
    leaves = np.flatnonzero(table.is_leaf)
    values[leaves] = rng.normal(size=(len(leaves), *columns))
    (row,) = [row.number for row in table if row.path == "d"]
    values[row : table.end[row]] = np.nan
    rolled = table.roll(values, "norm")
    for number in range(len(table)):
        below = values[number : table.end[number]][table.is_leaf[number : table.end[number]]]
        if np.isnan(below).all():
            assert np.isnan(rolled[number]).all()
        else:
            np.testing.assert_allclose(rolled[number], np.sqrt(np.nansum(below**2, axis=0)), rtol=1e-12)


def test_a_column_of_the_table_is_rolled_up_once():
    table = treeviz.walk({"a": np.ones(3), "b": [np.ones(2)]})
    column = table.columns["elements"]
    rolled = table.rolled(column)
    assert rolled.tolist() == [5, 3, 2, 2]
    assert table.rolled(column) is rolled
    other = dataclasses.replace(column, rollup="max")  # not in the table: not kept
    assert table.rolled(other).tolist() == [3, 3, 2, 2] and table.rolled(column) is rolled
    assert table.with_columns(other).rolled(other).tolist() == [3, 3, 2, 2]


def rolled_by_the_root(values, rule):
    return walk([[0, 0], 0, []]).roll(np.array([np.nan, np.nan, *values, np.nan]), rule).tolist()


def test_a_sum_is_nothing_where_no_leaf_has_a_value():
    nan = np.nan
    np.testing.assert_equal(rolled_by_the_root([nan, nan, 2.0], "sum"), [2.0, nan, nan, nan, 2.0, nan])
    np.testing.assert_equal(rolled_by_the_root([1.0, nan, 2.0], "sum"), [3.0, 1.0, 1.0, nan, 2.0, nan])


@pytest.mark.parametrize("rule", ["sum", "norm", "max"])
@pytest.mark.parametrize("huge", [1e308, np.inf])
def test_a_value_of_any_size_is_rolled_up_without_a_warning(rule, huge):
    with np.errstate(all="raise"):
        rolled = rolled_by_the_root([huge, huge, 0.0], rule)
    both = {"sum": np.inf, "norm": min(np.sqrt(2) * 1e308, huge * 2), "max": huge}[rule]
    np.testing.assert_allclose(rolled[1:4], [both if np.isfinite(huge) or rule == "max" else np.inf, huge, huge])


def test_a_norm_of_numbers_whose_squares_underflow_is_kept():
    np.testing.assert_allclose(rolled_by_the_root([3e-200, 4e-200, 0.0], "norm")[0], 5e-200)
