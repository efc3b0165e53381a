"""A leaf that hides arrays from JAX is the most common bug of all: it is marked, and looked into."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_nodes import Special
from sample_trees import MyDict, MyList, Unregistered

import treeviz

pytestmark = pytest.mark.oldest_jax


def hidden(leaf: Any) -> dict[str, str]:
    """What the note on a leaf says is inside."""
    (row,) = treeviz.walk(leaf)
    assert row.is_leaf and len(jax.tree_util.tree_leaves(leaf)) == 1
    notes = [note for note in row.notes if note.kind == "hides"]
    return {path: what for note in notes for path, what in note.details}


def test_an_unregistered_class_shows_the_arrays_that_jax_cannot_see():
    assert hidden(Special(jnp.ones((2, 3)), [np.zeros(4), {"k": jnp.ones(1)}])) == {
        ".x": "float32[2,3]",
        ".y[0]": "float64[4]",
        ".y[1]['k']": "float32[1]",
    }


def test_the_note_says_what_to_do_in_one_sentence():
    (note,) = treeviz.walk(MyDict(w=jnp.ones(2)))[0].notes
    assert note.text == "holds 1 array that JAX cannot see: MyDict is not registered as a pytree node"


@dataclass(slots=True)
class WithSlots:
    w: Any
    never_set: Any = None


@pytest.mark.parametrize(
    ("leaf", "paths"),
    [
        (MyDict(w=np.ones(2)), ["['w']"]),
        (MyList([1.0, np.ones(2)]), ["[1]"]),
        (Unregistered("n", np.ones(2)), [".value"]),
        (SimpleNamespace(a=SimpleNamespace(b=np.ones(2))), [".a.b"]),
        (WithSlots(np.ones(2)), [".w"]),
    ],
)
def test_attributes_slots_and_containers_are_followed(leaf, paths):
    assert list(hidden(leaf)) == paths


@pytest.mark.parametrize("leaf", [Special(1, "2"), MyDict(a=1), object(), {1, 2}, len, lambda: np.ones(2), np, Special])
def test_a_leaf_without_arrays_inside_is_not_accused(leaf):
    assert hidden(leaf) == {}


def test_a_search_inside_ends_however_large_the_object_is():
    everything = SimpleNamespace(items=[SimpleNamespace(n=i) for i in range(100_000)])
    everything.me = everything
    assert hidden(everything) == {}
    assert len(hidden(SimpleNamespace(w=[np.ones(1)] * 3 + [np.ones(1) for _ in range(10_000)]))) == 32


def test_looking_inside_runs_no_code_of_the_class():
    class Explosive(dict):
        def __getattribute__(self, name):
            raise AssertionError(name)

        __iter__ = __len__ = __getitem__ = items = keys = __repr__ = __eq__ = __hash__ = __getattribute__

        @property
        def lazy(self):
            raise AssertionError("a property")

    assert hidden(Explosive(w=np.ones(2))) == {"['w']": "float64[2]"}


@pytest.mark.parametrize("library", ["attrs", "pydantic"])
def test_classes_of_other_libraries_are_looked_into(library):
    module = pytest.importorskip(library)
    if library == "attrs":
        leaf = module.make_class("Model", ["w"])(np.ones(2))
    else:
        leaf = module.create_model("Model", w=(Any, None))(w=np.ones(2))
    assert hidden(leaf) == {".w": "float64[2]"}
