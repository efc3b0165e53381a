"""The search for cycles is paused while many objects are made."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import treeviz as tv
from treeviz.tree.runtime import collector_paused, full_searches_put_off

pytestmark = pytest.mark.oldest_jax


@pytest.fixture
def searched():
    """The generations that were searched; a search among all objects is due from the next new ones on."""
    generations, threshold = [], gc.get_threshold()

    def note(phase, info):
        generations.append(info["generation"])

    gc.freeze()  # so that few objects count as old
    gc.collect()
    old = [[] for _ in range(5_000)]
    gc.collect(1)
    gc.set_threshold(threshold[0], 0, 0)
    gc.callbacks.append(note)
    yield generations
    gc.callbacks.remove(note)
    gc.set_threshold(*threshold)
    gc.unfreeze()
    del old


def test_many_new_objects_are_followed_by_a_search_among_them_alone(searched):
    with collector_paused():
        new = [[] for _ in range(5_000)]
        assert not searched
    assert {*searched} == {0} and gc.isenabled()
    more = [[] for _ in range(5_000)]
    assert max(searched) == 2, "the search among all objects is still due"
    del new, more


def test_who_turned_the_search_off_has_none(searched):
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled() and not searched
    finally:
        gc.enable()
    gc.set_threshold(0)
    with collector_paused():
        pass
    assert gc.isenabled() and not searched


def test_a_search_among_all_objects_is_put_off_and_comes_later(searched):
    before = gc.get_threshold()
    with full_searches_put_off():
        with full_searches_put_off():
            new = [[] for _ in range(5_000)]
        new += [[] for _ in range(5_000)]
        assert {*searched} <= {0, 1} and searched
    assert gc.get_threshold() == before
    more = [[] for _ in range(5_000)]
    assert max(searched) == 2
    del new, more


def test_who_sets_when_to_search_meanwhile_is_right(searched):
    with full_searches_put_off():
        gc.set_threshold(500, 5, 5)
    assert gc.get_threshold() == (500, 5, 5)


def test_a_diff_searches_no_objects_that_were_there_before(searched):
    left, right = ([{"w": np.full(3, x), "b": x} for _ in range(2_000)] for x in (1.0, 2.0))
    tv.diff(left[:3], right[:3])  # what is imported and made once
    gc.collect(0)
    searched.clear()
    diff = tv.diff(left, right)
    assert {*searched} == {0} and len(diff.differences) == 4_000
