"""Rolling up, held to the leaves of each subtree by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from treeviz.tree.rollup import roll
from treeviz.tree.walk import walk

pytestmark = pytest.mark.oldest_jax

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
    rolled = roll(table, values, "norm")
    for number in range(len(table)):
        below = values[number : table.end[number]][table.is_leaf[number : table.end[number]]]
        if np.isnan(below).all():
            assert np.isnan(rolled[number]).all()
        else:
            np.testing.assert_allclose(rolled[number], np.sqrt(np.nansum(below**2, axis=0)), rtol=1e-12)
