"""Look into the opaque leaves of a walk, within one budget for all of them."""

from __future__ import annotations

from typing import Any

from treeviz.tree.facts import Note
from treeviz.tree.numbers import bytes_text
from treeviz.tree.object_text import fields, object_text
from treeviz.tree.opaque import Found, arrays_inside, items
from treeviz.tree.safe_repr import class_name, guarded, value_text

MAX_FIELDS = 16
_IN_AVAL = ("shape", "dtype", "_aval")  # what the type of an array-like leaf shows
_MAX_VALUE = 60  # characters
_MAX_TEXT = 600  # characters of one leaf
_WALK_TEXT = 400_000  # characters of all leaves
_WALK_OBJECTS = 200_000  # looked at in all leaves
_LEAST_OBJECTS = 32  # looked at in every leaf


class Inside:
    """Looks into the opaque leaves of one walk."""

    def __init__(self) -> None:
        self._characters_left = _WALK_TEXT
        self._objects_left = _WALK_OBJECTS

    def note(self, leaf: Any) -> Note | None:
        """The arrays that a leaf hides from JAX; a leaf may use an eighth of what is left of the budget."""
        found = arrays_inside(leaf, max(_LEAST_OBJECTS, self._objects_left // 8))
        self._objects_left = max(0, self._objects_left - found.n_objects)
        if found.n_arrays:
            text = f"{hidden(found)}: {class_name(type(leaf))} is not registered as a pytree node"
            return Note("hidden", text + stopped(found), details=found.details)
        if found.is_all:
            return None
        return Note(
            "info", f"no array among the first {found.n_objects:,} objects inside; the others were not searched"
        )

    def fields(self, leaf: Any, is_array_like: bool = False) -> tuple[tuple[str, str], ...]:
        """(name, text) of the first items and fields of a leaf. Runs no code of its class."""
        return guarded(lambda: self._fields(leaf, _IN_AVAL if is_array_like else ()), lambda _: ())

    def _fields(self, leaf: Any, shown: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        some, n = items(leaf, MAX_FIELDS)
        others = [pair for pair in fields(leaf) if pair[0] not in shown]
        n = (n or 0) + len(others)
        texts: list[tuple[str, str]] = []
        room = min(_MAX_TEXT, self._characters_left)
        for name, value in [*some, *others][:MAX_FIELDS]:
            if room <= 0:
                break
            texts.append((name, value_text(value, _MAX_VALUE, object_text)))
            n_characters = len(name) + len(texts[-1][1])
            room -= n_characters
            self._characters_left -= n_characters
        if len(texts) < n:
            texts.append(("…", f"{n - len(texts):,} more"))
        return tuple(texts)


def hidden(found: Found) -> str:
    """ "at least 2 hidden arrays (4.0 kB)": JAX cannot see them."""
    size = f" ({bytes_text(found.n_bytes)})" if found.n_bytes else ""
    least = "" if found.is_all else "at least "
    return f"{least}{found.n_arrays:,} hidden array{'s' * (found.n_arrays > 1)}{size}"


def stopped(found: Found) -> str:
    """Where an incomplete search stopped, or ""."""
    return "" if found.is_all else f" (the search stopped after {found.n_objects:,} objects)"
