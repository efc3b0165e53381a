"""Why trees cannot be stacked to one: every leaf that stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.analysis.compare.difference import Differences
from treeviz.analysis.compare.map_mismatch import Others, map_mismatches
from treeviz.analysis.compare.nodes import Finding, Openers, what
from treeviz.analysis.facts import shape_text
from treeviz.tree.safe_repr import guarded, has_base, value_text

_NUMBERS: dict[str, type] = {"bool": bool, "int": int, "float": float, "complex": complex}


def unstackable(trees: Iterable[Any]) -> Differences:
    """See `treeviz.stackable`."""
    several = [] if isinstance(trees, Mapping | str) or not isinstance(trees, Iterable) else list(trees)
    if not several:
        raise TypeError(
            f"stackable: a list of trees is wanted, and not {value_text(trees, 40)}: stackable([params_1, params_2])"
        )
    return map_mismatches(*several, at_leaf=_Leaves().compare)


class _Leaves:
    """Compares the leaves in one place of several trees."""

    def __init__(self) -> None:
        self._opener = Openers()
        self._classes: dict[int, tuple[str, type]] = {}  # by id: a metaclass may forbid hashing
        self._dtypes: dict[Any, Any] = {}  # what JAX makes of them; None if it refuses them

    def compare(self, leaf: Any, others: Others) -> Iterator[tuple[int, Finding]]:
        mine = self._type(leaf)
        if mine is None:
            yield 0, _not_stacked(leaf, "")
            return
        for tree, other in others:
            theirs = self._type(other)
            if theirs is None:
                yield tree, self._no_array(leaf, other)
            elif theirs != mine:
                if theirs[0] != mine[0]:
                    yield tree, ("shape", shape_text(mine[0]), shape_text(theirs[0]), "")
                if theirs[1] != mine[1]:
                    yield tree, ("dtype", str(mine[1]), str(theirs[1]), _promoted(leaf, other))

    def _type(self, leaf: Any) -> tuple[Any, Any] | None:
        """The shape and JAX's dtype of an array or number."""
        cls = type(leaf)
        if id(cls) not in self._classes:
            self._classes[id(cls)] = _kind(cls), cls
        kind = self._classes[id(cls)][0]
        if kind == "" or (kind == "array" and guarded(leaf.is_deleted, lambda _: False)):
            return None
        given, shape = (kind, ()) if kind in _NUMBERS else (leaf.dtype, leaf.shape)
        if given not in self._dtypes:
            self._dtypes[given] = _jax_dtype(given)
        dtype = self._dtypes[given]
        return None if dtype is None else (shape, dtype)

    def _no_array(self, leaf: Any, other: Any) -> Finding:
        opener = self._opener(other)
        if opener is None:
            return _not_stacked(other, what(leaf, None))
        return "leaf", f"a leaf: {what(leaf, None)}", f"a node: {what(other, opener(other))}", ""


def _kind(cls: type) -> str:
    """How the type of a leaf is read; "" for what `jnp.stack` does not take."""
    if issubclass(cls, jax.Array):
        return "array"
    if has_base(cls, np.ndarray, np.generic, jax.ShapeDtypeStruct):
        return "" if has_base(cls, np.ma.MaskedArray) else "typed"
    return next((name for name, number in _NUMBERS.items() if has_base(cls, number)), "")


def _jax_dtype(given: Any) -> Any:
    """JAX's dtype for one of NumPy or the name of a Python number; None if it has none."""
    if isinstance(given, str):
        return jnp.result_type(_NUMBERS[given](0))
    if not isinstance(given, np.dtype) or given == jax.dtypes.float0:
        return given  # of PRNG keys
    is_known = given.isnative and given.kind != "m" and given.type not in (np.longdouble, np.clongdouble)
    is_known &= jnp.issubdtype(given, np.number) or jnp.issubdtype(given, np.bool_)
    return jax.dtypes.canonicalize_dtype(given) if is_known else None


def _promoted(leaf: Any, other: Any) -> str:
    """What stacking makes of two dtypes."""
    return guarded(lambda: f"stacked, both are {jnp.result_type(leaf, other)}", lambda _: "jnp.stack refuses them")


def _not_stacked(leaf: Any, beside: str) -> Finding:
    """Of the first tree alone if nothing stands beside it."""
    text = what(leaf, None)
    is_deleted = guarded(lambda: bool(leaf.is_deleted()), lambda _: False)
    of_numpy = has_base(type(leaf), np.ndarray, np.generic)
    what_else = "JAX does not take it" if of_numpy else "neither an array nor a number"
    kind, hint = ("deleted", "donated?") if is_deleted else ("python type", what_else)
    return (kind, beside, text, hint) if beside else (kind, text, "", hint)
