"""Which part of static data differs, where its text does not tell it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hostile_objects import HOSTILE
from sample_nodes import WithAux

import treeviz as tv

pytestmark = pytest.mark.oldest_jax


@dataclasses.dataclass(frozen=True)
class Settings:
    of: dict
    inner: Any = None


@dataclasses.dataclass(eq=False)
class ById:
    number: int


LONG = {f"name_{i}": i for i in range(40)}
PARTS = {
    "an item of a dict in a dataclass": (
        Settings({"rate": 1, "b": 2}), Settings({"rate": 3, "b": 2}), ["label.of['rate'] = 1 → 3"],
    ),
    "a field of a dataclass": (Settings({}, 1), Settings({}, 2), ["label.inner = 1 → 2"]),
    "two fields": (Settings({"a": 1}, 1), Settings({"a": 2}, 2), ["label.of['a'] = 1 → 2", "label.inner = 1 → 2"]),
    "a dataclass in a dataclass": (
        Settings({}, Settings({}, (1, 2))), Settings({}, Settings({}, (1, 3))), ["label.inner.inner[1] = 2 → 3"],
    ),
    "a tuple of a dataclass": ((Settings({}, 1), 5), (Settings({}, 2), 5), ["label[0].inner = 1 → 2"]),
    "an item beyond what is shown": (LONG, {**LONG, "name_33": "x"}, ["label['name_33'] = 33 → 'x'"]),
    "another length": (Settings({}, (1,)), Settings({}, (1, 2)), ["label.inner = (1,) → (1, 2)"]),
    "other keys": (Settings({"a": 1}), Settings({"b": 1}), ["label.of = {'a': 1} → {'b': 1}"]),
    "an array": (Settings({}, np.ones(2)), Settings({}, np.ones(3)), ["label.inner = float64[2] → float64[3]"]),
    "objects without ==": (ById(1), ById(2), ["label.number = 1 → 2"]),
    "what is short": ((1, 2), (1, 3), ["label = (1, 2) → (1, 3)"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_the_part_that_differs_is_named(name):
    left, right, parts = PARTS[name]
    pair = WithAux(1, label=left), WithAux(1, label=right)
    for found in (tv.diff(*pair).differences, tv.explain_map(*pair)):
        assert [each.text.removeprefix("static: ").partition(" (comparing")[0] for each in found] == parts
    told = tv.stackable([*pair])
    assert all(part.partition(" =")[0] in str(told) for part in parts)


def test_what_looks_alike_and_is_unequal_is_told_so():
    (found,) = tv.diff(WithAux(1, label=ById(1)), WithAux(1, label=ById(1))).differences
    assert found.kind == "static" and "== returns False" in found.text


def test_data_that_holds_itself_ends():
    left, right = {"a": 1}, {"a": 1}
    left["self"], right["self"] = left, right
    (found,) = tv.diff(WithAux(1, label=Settings(left)), WithAux(1, label=Settings(right))).differences
    assert found.kind == "static"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_static_data_is_looked_at_without_an_exception(name):
    pair = [WithAux(1, label=Settings({"x": each}, i)) for i, each in enumerate((HOSTILE[name](), object()))]
    found = tv.diff(*pair).differences
    assert found and {each.kind for each in found} == {"static"}
