"""Which rows are shown when there is no room for all."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from query_trees import TREES

import treeviz
from treeviz.tree.walk import walk
from treeviz.views.text.rows import truncate

trees = st.recursive(st.just(1.0), lambda inner: st.lists(inner, max_size=8), max_leaves=60)


def n_lines(truncated):
    """A line for each row, and one for each node that shows some of its children and not all."""
    some = (truncated.n_left_out[:-1] > 0) & shows_the_next(truncated)[:-1]
    return len(truncated.rows) + int(some.sum())


def shows_the_next(truncated):
    table = truncated.table
    return np.append(table.parent[truncated.rows[1:]] == truncated.rows[:-1], False)


class Chosen:
    def __init__(self, table, *args, **more):
        self.table = table
        self.rows, self.n_left_out, _ = truncate(table, *args, **more)


def test_everything_is_shown_where_there_is_room():
    table = TREES["model"]()
    assert truncate(table).rows.tolist() == list(range(12))
    assert truncate(table, 12).rows.tolist() == list(range(12))
    assert not truncate(table, 12).n_left_out.any()


def test_a_depth_closes_the_nodes_there():
    truncated = truncate(TREES["model"](), None, 1)
    assert truncated.rows.tolist() == [0, 1, 8, 10, 11]
    assert truncated.n_left_out.tolist() == [0, 2, 1, 0, 0]
    assert truncate(TREES["model"](), None, 0).rows.tolist() == [0]


def test_the_first_children_of_a_long_list_are_shown():
    truncated = truncate(walk([1.0] * 1000), 60)
    assert truncated.rows.tolist() == list(range(59))  # and a line that says how many more there are
    assert truncated.n_left_out[0] == 1000 - 58


def test_every_block_of_a_model_shows_its_first_rows():
    table = walk([dict.fromkeys("abcdef", 1.0) for _ in range(6)])
    truncated = truncate(table, 30)
    n_shown = np.bincount(table.parent[truncated.rows[1:]], minlength=len(table))
    blocks = [int(row.number) for row in table[0].children]
    assert n_shown[0] == 6
    # 23 lines for six blocks of six: two children each and a line for the rest; what is left goes to the first
    assert n_shown[blocks].tolist() == [3, 3, 3, 3, 3, 2]


def test_a_wide_level_leaves_room_for_what_is_below_it():
    table = walk([dict.fromkeys("abc", 1.0) for _ in range(1000)])
    truncated = truncate(table, 60)
    depths = table.depth[truncated.rows]
    assert (depths == 1).sum() >= 20
    assert (depths == 2).sum() >= 20


def test_room_that_the_deep_levels_do_not_need_goes_to_the_wide_one():
    table = walk([[1.0, 2.0], *[1.0] * 1000])
    assert n_lines(Chosen(table, 60)) >= 54


@settings(deadline=None)
@given(trees, st.integers(1, 40), st.one_of(st.none(), st.integers(0, 4)))
def test_a_choice_is_bounded_and_shows_the_first_children_of_what_it_shows(tree, max_rows, max_depth):
    table = walk(tree)
    truncated = Chosen(table, max_rows, max_depth)
    shown = set(truncated.rows.tolist())
    assert 0 in shown
    assert truncated.rows.tolist() == sorted(shown)
    assert n_lines(truncated) <= max_rows
    assert max_depth is None or table.depth[truncated.rows].max() <= max_depth
    for row, n_left_out in zip(truncated.rows.tolist(), truncated.n_left_out.tolist(), strict=True):
        children = [child.number in shown for child in table[row].children]
        assert children == sorted(children, reverse=True)
        assert children.count(False) == n_left_out


@settings(deadline=None)
@given(trees, st.integers(1, 40))
def test_of_a_choice_nothing_is_left_out_that_would_fit_as_a_whole(tree, max_rows):
    table = walk(tree)
    if len(table) <= max_rows:
        assert len(truncate(table, max_rows).rows) == len(table)


@settings(deadline=None)
@given(trees, st.integers(1, 40), st.lists(st.integers(0, 60), max_size=9))
def test_kept_rows_and_those_above_them_are_shown_within_the_bound(tree, max_rows, kept):
    table = walk(tree)
    kept = [row for row in kept if row < len(table)]
    truncated = Chosen(table, max_rows, weights=table.end - np.arange(len(table)), kept=kept)
    shown = set(truncated.rows.tolist())
    assert n_lines(truncated) <= max_rows
    assert all(int(table.parent[row]) in shown for row in shown if row)
    assert not kept or kept[0] in shown or table.depth[kept[0]] > max_rows // 3
    for row, n_left_out in zip(truncated.rows.tolist(), truncated.n_left_out.tolist(), strict=True):
        assert sum(child.number not in shown for child in table[row].children) == n_left_out


def test_a_subtree_that_repeats_an_earlier_one_stays_closed_where_not_all_rows_fit():
    params = {"layers": [{"w": np.ones((2, i + 1)), "b": np.ones(2)} for i in range(3)]}
    zeros = {"layers": [{"w": np.zeros((2, i + 1)), "b": np.zeros(2)} for i in range(3)]}
    view = treeviz.render({"params": params, "state": {"mu": zeros, "nu": zeros["layers"][:2]}})
    lines = view.text(max_rows=22).splitlines()
    assert [line for line in lines if "like" in line and "├─ mu" in line and line.endswith("like ['params']")]
    assert not any("like" in line for line in view.text(fold=False).splitlines())
    assert sum("['params']" in line for line in lines) == 1  # ['nu'] has a layer less


def test_of_two_nodes_the_heavier_one_shows_its_children():
    table = walk([[1.0] * 4, [1.0] * 8, [1.0] * 5])
    rows = truncate(table, 12, weights=table.end - np.arange(len(table))).rows
    assert set(table.parent[rows[1:]].tolist()) == {0, 6}
