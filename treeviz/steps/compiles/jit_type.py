"""What `jax.jit` knows of a tree: its treedef, and the type and the place of each leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import api_util, tree_util

from treeviz.analysis.compare.nodes import Finding
from treeviz.analysis.facts import shape_text
from treeviz.tree.safe_repr import array_text, class_name, guarded, value_text, visible
from treeviz.tree.sharding import describe_sharding

_abstract = getattr(api_util, "shaped_abstractify", None) or jax.typeof

_NUMBERS = (bool, int, float, complex)
_STATIC = "a static argument"
TWO_OBJECTS = "they look alike, but are two objects: create it once"


class LeafType(NamedTuple):
    """What a program is traced and compiled for, of one leaf.

    Attributes:
      aval: Its shape, dtype and weak type; None for what is no array, and so a static argument.
      place: The sharding of a committed array; None for any other.
      value: What tells a Python value apart: its class, its text, and its hash or identity; None for an array.
    """

    aval: Any
    place: Any = None
    value: tuple[type, str, Any] | None = None

    @property
    def text(self) -> str:
        """ "float32[3]", "int 2", "str 'adam'"."""
        return self.value_text or array_text(self.aval) or str(self.aval)

    @property
    def value_text(self) -> str:
        """ "str 'adam'"."""
        return f"{class_name(self.value[0])} {self.value[1]}" if self.value else ""


class JitType(NamedTuple):
    """What `jax.jit` knows of a tree."""

    treedef: Any
    leaves: Sequence[LeafType]


def jit_type(tree: Any, static_numbers: bool = False) -> JitType:
    """Reads no value of an array, and keeps none alive.

    Args:
      static_numbers: Also Python numbers are static arguments.
    """
    leaves, treedef = tree_util.tree_flatten(tree)
    return JitType(treedef, [leaf_type(leaf, static_numbers) for leaf in leaves])


def leaf_type(leaf: Any, static_numbers: bool = False) -> LeafType:
    aval = None if static_numbers and type(leaf) in _NUMBERS else guarded(lambda: _abstract(leaf), lambda _: None)
    if hasattr(leaf, "dtype") and aval is not None:
        return LeafType(aval, guarded(lambda: leaf.sharding, lambda _: None) if is_committed(leaf) else None)
    return LeafType(aval, None, (type(leaf), value_text(leaf, 60), guarded(lambda: hash(leaf), lambda _: id(leaf))))


def is_committed(leaf: Any) -> bool:
    """Whether a leaf is an array that lies where the user put it, so that a program has to follow."""
    return isinstance(leaf, jax.Array) and guarded(lambda: bool(leaf.committed), lambda _: False)


def compare_leaves(mine: LeafType, other: LeafType) -> list[Finding]:
    """Why a program that was traced for one leaf is traced again for the other."""
    a, b = mine.aval, other.aval
    if a is None or b is None:
        return (
            []
            if a is b and mine.value == other.value
            else [("static", mine.text, other.text, _twice_made(mine, other) or _static_number(mine, other))]
        )
    if not all(hasattr(each, "shape") and hasattr(each, "dtype") for each in (a, b)):  # of a hijax type
        is_same = guarded(lambda: bool(a == b), lambda _: False)
        return [] if is_same else [("dtype", _aval_text(a), _aval_text(b), "")]
    found: list[Finding] = []
    if a.shape != b.shape:
        found.append(("shape", shape_text(a.shape), shape_text(b.shape), ""))
    if a.dtype != b.dtype:
        found.append(("dtype", str(a.dtype), str(b.dtype), ""))
    weak = [getattr(each, "weak_type", False) for each in (a, b)]
    if weak[0] != weak[1]:
        found.append(("weak type", *("weakly typed" if each else "not weakly typed" for each in weak), ""))
    if not found and str(a) != str(b):  # a sharding that is part of the type
        found.append(("sharding", str(a), str(b), ""))
    return found


def _aval_text(aval: Any) -> str:
    return guarded(lambda: array_text(aval) or visible(str(aval), 60), lambda _: class_name(type(aval)))


def _twice_made(mine: LeafType, other: LeafType) -> str:
    is_alike = mine.value is not None and other.value is not None and mine.value[:2] == other.value[:2]
    return TWO_OBJECTS if is_alike else ""


def _static_number(*sides: LeafType) -> str:
    is_one = any(each.aval is None and each.value is not None and each.value[0] in _NUMBERS for each in sides)
    return _STATIC if is_one else ""


def compare_values(left: LeafType, right: LeafType) -> list[Finding]:
    """How two arguments differ that a program was traced for, other than in their types: their values are static."""
    if left.value == right.value:
        return []
    return [("static", left.text, right.text, _twice_made(left, right) or _STATIC)]


def compare_places(left: LeafType, right: LeafType) -> list[Finding]:
    """Why a program that was compiled for one array is compiled again for the other."""
    a, b = left.place, right.place
    return [] if a == b else [("sharding", *(_place_text(each) for each in (a, b)), "")]


def _place_text(sharding: Any) -> str:
    place = None if sharding is None else describe_sharding(sharding)
    if place is None:
        return "not committed" if sharding is None else "committed"
    return f"committed to {' · '.join(dict.fromkeys(filter(None, (place.text, place.devices, place.memory))))}"
