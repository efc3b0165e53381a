"""Value statistics stand every strange tree."""

import numpy as np
import pytest
from sample_trees import SAMPLES

from treeviz.analysis.stats import value_statistics
from treeviz.tree.walk import scan

pytestmark = pytest.mark.oldest_jax


@pytest.mark.parametrize("name", SAMPLES)
def test_every_row_has_a_value_and_a_node_the_sum_of_its_children(name):
    table, nodes = scan(SAMPLES[name]())
    with np.errstate(all="raise"):
        columns, notes = value_statistics(table, nodes)
    assert all(len(column.values) == len(table) for column in columns)
    assert all(0 <= row < len(table) and text.isprintable() and len(text) < 500 for row, text in notes.items())
    for column in columns:
        if column.name in ("zeros", "nan", "posinf", "neginf", "inf", "histogram"):
            values = np.nan_to_num(column.values)
            of_children = np.zeros_like(values)
            np.add.at(of_children, table.parent[1:], values[1:])
            has_children = table.end > np.arange(1, len(table) + 1)
            np.testing.assert_array_equal(of_children[has_children], values[has_children])
