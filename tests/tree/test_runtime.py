"""Attributes and locks of a forked child, and the search for cycles that is paused while many objects are made."""

from __future__ import annotations

import functools
import gc
import os
import pkgutil
import threading
import time
import warnings
from importlib import import_module

import numpy as np
import pytest

import treeviz
import treeviz as tv
from treeviz.tree.runtime import Lock, computed_once, full_searches_put_off, gc_paused
from treeviz.views import tree_view

pytestmark = pytest.mark.oldest_jax
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
PATIENCE_S = 30


class Squared:
    def __init__(self, x: int) -> None:
        self.x, self.n_calls = x, 0

    @computed_once
    def square(self) -> int:
        """The square."""
        self.n_calls += 1
        return self.x**2


def test_an_attribute_is_computed_once_for_each_object():
    three, four = Squared(3), Squared(4)
    assert (three.square, three.square, three.n_calls, four.square) == (9, 9, 1, 16)
    assert Squared.square.__doc__ == "The square."


def test_no_class_has_an_attribute_that_is_computed_under_a_lock():
    names = [module.name for module in pkgutil.walk_packages(treeviz.__path__, "treeviz.")]
    classes = [
        each
        for name in names
        if not any(part in name for part in ("__main__", ".integrations.", ".widget", "pydevd"))
        for each in vars(import_module(name)).values()
        if isinstance(each, type) and each.__module__.startswith("treeviz")
    ]
    assert len(classes) > 50
    under_lock = [
        f"{each.__qualname__}.{name}"
        for each in classes
        for name, value in vars(each).items()
        if isinstance(value, functools.cached_property)
    ]
    assert under_lock == []


@pytest.fixture
def busy(monkeypatch):
    """Another thread is in the middle of packing a view."""
    is_packing, may_go_on = threading.Event(), threading.Event()
    pack, me = tree_view.pack, threading.current_thread()

    def pack_slowly(view):
        if threading.current_thread() is not me:
            is_packing.set()
            may_go_on.wait(PATIENCE_S)
        return pack(view)

    monkeypatch.setattr(tree_view, "pack", pack_slowly)
    thread = threading.Thread(target=lambda: treeviz.render([1.0]).packed)
    thread.start()
    assert is_packing.wait(PATIENCE_S)
    yield
    may_go_on.set()
    thread.join()


def in_child(work) -> int | None:
    """The exit status of a forked child that does the work; None if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python and JAX, about fork
        child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


def all_views():
    view = treeviz.render({"w": np.ones((3, 4)), "b": [1.0, None]})
    assert view.packed and view.html() and view.text() and view.json() and view._repr_html_()
    assert view.find("shape:3,*") and [*view.table.leaves]


@needs_fork
def test_a_child_renders_though_it_was_forked_while_another_thread_did(busy):
    all_views()  # what is imported at first use is there
    assert in_child(all_views) == 0


@needs_fork
def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    lock, is_held, may_go_on = Lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            may_go_on.wait(PATIENCE_S)

    def use():
        with lock:
            pass
        assert lock.acquire(blocking=False)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(PATIENCE_S) and not lock.acquire(blocking=False)
    assert in_child(use) == 0
    may_go_on.set()
    thread.join()


@needs_fork
def test_a_lock_that_the_forking_thread_holds_is_still_its_own_in_a_child():
    lock = Lock()

    def use():
        lock.release()
        with lock:
            pass

    with lock:
        assert in_child(use) == 0


# The search for cycles is paused while many objects are made.


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
    with gc_paused():
        new = [[] for _ in range(5_000)]
        assert not searched
    assert {*searched} == {0} and gc.isenabled()
    more = [[] for _ in range(5_000)]
    assert max(searched) == 2, "the search among all objects is still due"
    del new, more


def test_who_turned_the_search_off_has_none(searched):
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled() and not searched
    finally:
        gc.enable()
    gc.set_threshold(0)
    with gc_paused():
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
