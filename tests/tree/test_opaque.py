"""A leaf that hides arrays from JAX is the most common bug of all: it is marked, and looked into."""

from __future__ import annotations

import functools
import gc
import weakref
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
from treeviz.tree.text import bytes_text

pytestmark = pytest.mark.oldest_jax


def hidden(leaf: Any) -> dict[str, str]:
    """What the note on a leaf says is inside."""
    (row,) = treeviz.walk(leaf)
    assert row.is_leaf and len(jax.tree_util.tree_leaves(leaf)) == 1
    notes = [note for note in row.notes if note.kind == "hidden"]
    return {path: what for note in notes for path, what in note.details}


def said(leaf: Any) -> list[str]:
    return [note.text for note in treeviz.walk(leaf)[0].notes]


def test_an_unregistered_class_shows_the_arrays_that_jax_cannot_see():
    assert hidden(Special(jnp.ones((2, 3)), [np.zeros(4), {"k": jnp.ones(1)}])) == {
        ".x": "float32[2,3]",
        ".y[0]": "float64[4]",
        ".y[1]['k']": "float32[1]",
    }


def test_the_note_says_what_to_do_in_one_sentence():
    (note,) = treeviz.walk(MyDict(w=jnp.ones(2)))[0].notes
    assert note.text == "1 hidden array (8 B): MyDict is not registered as a pytree node"


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
    assert said(everything) == ["no array among the first 25,000 objects inside; the others were not searched"]


@pytest.mark.parametrize("n", [1, 16, 32, 33, 100, 2000])
def test_every_array_inside_is_counted_once_and_the_first_ones_are_named(n):
    leaf = SimpleNamespace(w=[np.ones(1)] * 3 + [np.ones(2, np.float32) for _ in range(n - 1)])
    counted = "1 hidden array (8 B)" if n == 1 else f"{n:,} hidden arrays ({bytes_text(8 * n)})"
    (text,) = said(leaf)
    assert text == f"{counted}: SimpleNamespace is not registered as a pytree node"
    named = hidden(leaf)
    assert list(named)[:2] == [".w[0]", ".w[3]"][:n]
    assert (len(named), named.get("…")) == ((n, None) if n <= 32 else (33, f"{n - 32:,} more"))


def test_a_search_that_stopped_says_so_and_claims_no_number():
    leaf = SimpleNamespace(few=[np.ones(1), np.ones(1)], many=[np.ones(1) for _ in range(40_000)])
    (text,) = said(leaf)
    assert text.startswith("at least 24,9") and text.endswith("(the search stopped after 25,000 objects)")


def test_the_arrays_of_sixty_layers_are_all_found_among_what_layers_keep_for_themselves():
    layers = [
        SimpleNamespace(
            name=f"dense_{i}", built=True, kernel=SimpleNamespace(path=f"dense_{i}/kernel", value=np.ones(4)),
            trackers=[SimpleNamespace(name="a", ids={j: str(j) for j in range(20)})], _lock=object(),
        )
        for i in range(60)
    ]  # fmt: skip
    (text,) = said(SimpleNamespace(_layers=layers, _tracked=layers[:], name="model"))
    assert text.startswith("60 hidden arrays (1.9 kB): ")


@pytest.mark.parametrize("depth", [1, 5, 9, 300])
def test_an_array_is_found_however_deep_it_stands(depth):
    leaf: Any = np.ones(5)
    for _ in range(depth):
        leaf = SimpleNamespace(a=leaf)
    (path,) = hidden(leaf)
    assert path.startswith(".a" * min(depth, 100))


def test_the_objects_looked_at_in_one_walk_are_limited_and_small_leaves_are_looked_into_all_the_same(monkeypatch):
    monkeypatch.setattr("treeviz.tree.opaque._WALK_OBJECTS", 4_000)
    large = [SimpleNamespace(items=[SimpleNamespace(n=i) for i in range(500)]) for _ in range(50)]
    *rows, last = treeviz.walk([*large, SimpleNamespace(w=np.ones(2))]).leaves
    looked_at = [int(note.text.split(" objects")[0].split()[-1]) for row in rows for note in row.notes]
    assert looked_at[0] == 500 and looked_at == sorted(looked_at, reverse=True) and looked_at[-1] == 32
    assert [note.kind for note in last.notes] == ["hidden"]


def test_shapes_without_values_are_no_arrays():
    assert said(SimpleNamespace(a=jax.ShapeDtypeStruct((2,), np.float32))) == []


def test_arrays_that_a_function_inside_captured_are_found():
    w = jnp.ones(2)
    leaf = SimpleNamespace(apply=lambda x: w @ x, part=functools.partial(max, np.ones(3)))
    assert hidden(leaf) == {".apply.w": "float32[2]", ".part(argument 0)": "float64[3]"}


def test_what_is_inside_does_not_keep_the_users_classes_alive():
    class Mine:
        pass

    treeviz.walk(Mine())
    ref = weakref.ref(Mine)
    del Mine
    gc.collect()
    assert ref() is None


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
