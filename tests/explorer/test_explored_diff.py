"""An explorer of a diff answers with both sides of a row, which it does not keep alive."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv
from treeviz.explorer import ExploredDiff

pytest.importorskip("anywidget")


def answered(backend: ExploredDiff, operation: str, *numbers: int) -> list[dict]:
    return backend.answer(operation, numbers, lambda: False)[0]["sections"]


@pytest.fixture
def trees():
    left = {"b": [np.zeros(3), "text"], "w": np.zeros((100, 200), np.float32)}
    right = {"b": [np.zeros(3), "other"], "w": left["w"].copy()}
    right["w"][90, 150] = 2
    return left, right


def test_a_row_that_differs_has_the_values_of_both_sides_and_what_one_has_more(trees):
    backend = ExploredDiff(tv.diff(*trees))
    (row,) = (row.number for row in backend.view.find("key:w"))
    sections = answered(backend, "detail", row)
    windows = [each for each in sections if each["kind"] == "window"]
    assert [each["title"] for each in windows] == ["other - first", "first", "other"]
    assert {each["starts"] for each in windows} == {(36, 136)}, "the greatest difference is in sight"
    assert [each["kind"] for each in sections if each["kind"] == "numbers"] == ["numbers", "numbers"]
    for side in range(3):
        (part,) = answered(backend, "slice", row, side, 1, 0, 0, 0)
        assert (part["axes"], part["starts"], part["arguments"]) == ((1, 0), (0, 0), [side])
    (row,) = (row.number for row in backend.view.find("diff:value kind:string"))
    assert [each["text"] for each in answered(backend, "detail", row)] == ["first:", "other:"]


def test_a_row_that_is_the_same_has_one_side_and_a_node_none(trees):
    backend = ExploredDiff(tv.diff(*trees))
    (row,) = (row.number for row in backend.view.find("diff:same kind:numpy"))
    assert [each["title"] for each in answered(backend, "detail", row) if each["kind"] == "window"] == ["first"]
    assert answered(backend, "detail", 0) == [] and backend.nodes([0, row]) == [None, trees[0]["b"][0]]
    assert backend.where(trees[1], [row])[0] is trees[1]["b"][0]
    assert jax.tree_util.keystr(backend.paths([row])[0]) == "['b'][0]"


def test_no_leaf_is_kept_and_one_that_is_gone_is_said_so():
    left, right = [jnp.ones(3)], [jnp.zeros(3)]
    backend, ref = ExploredDiff(tv.diff(left, right)), weakref.ref(right[0])
    right.clear()
    gc.collect()
    assert ref() is None
    texts = [each.get("text", "") for each in answered(backend, "detail", 1)]
    assert "other: it was freed: nothing else referenced it" in texts
    assert left[0]._npy_value is None


def test_several_trees_have_a_part_each(trees):
    left, right = trees
    backend = ExploredDiff(tv.diff(left, left, right))
    (row,) = (row.number for row in backend.view.find("key:w"))
    windows = [each["title"] for each in answered(backend, "detail", row) if each["kind"] == "window"]
    assert windows == ["first", "tree 1", "tree 2"]


def test_explore_shows_a_diff_and_the_next_one(trees):
    left, right = trees
    widget = tv.explore(tv.diff(left, right))
    assert widget.expanded == ["tree", "['b']"]
    widget.value = "['w']"
    assert widget.selected[0] is left["w"]
    with pytest.raises(TypeError, match="this widget shows a diff"):
        widget.tree = right
    widget.tree = tv.diff(left, {**right, "w": left["w"]})
    assert [each.path for each in widget.tree.differences] == ["['b'][1]"] and widget.value == "['w']"
    with pytest.raises(TypeError, match="a diff is shown as it is"):
        tv.explore(tv.diff(left, right), stats=True)
    widget.close()
