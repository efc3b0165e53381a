"""What is inside an object that JAX takes for a leaf, as an outline. No code of its class runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from treeviz.tree.functions import is_function
from treeviz.tree.opaque import contents
from treeviz.tree.quote import array_text, guarded, value_text, visible

MOST_LINES = 60
_MOST_DEPTH = 4
_MOST_OF_ONE = 24

Line = tuple[int, str, str, bool]  # depth, name, text, whether it is an array


def outline(things: Iterable[tuple[str, Any]], goes_on: Callable[[], bool]) -> tuple[list[Line], bool]:
    """Lines for things by name and for what is inside them, and whether these are all.

    An object that stands in several places is opened in the first.

    Args:
      goes_on: Asked before each line; when it says no the outline ends.
    """
    lines: list[Line] = []
    waiting = [(0, name, thing) for name, thing in reversed(list(things))]
    opened: set[int] = set()
    while waiting:
        if len(lines) >= MOST_LINES or not goes_on():
            return lines, False
        depth, name, thing = waiting.pop()
        if thing is _MORE:
            lines.append((depth, "", name, False))
            continue
        array = array_text(thing)
        may_open = not array and depth + 1 < _MOST_DEPTH and not is_function(type(thing)) and id(thing) not in opened
        inner = guarded(lambda thing=thing: inside(thing), lambda _: []) if may_open else []
        is_builtin = inner and id(type(thing)) in _BUILTIN
        n_inner = len(thing) if is_builtin else len(inner)
        text = f"{type(thing).__name__} of {n_inner:,}" if is_builtin else None
        lines.append((depth, visible(name, 60), array or text or value_text(thing, 100), array is not None))
        opened.add(id(thing))
        if len(inner) > _MOST_OF_ONE:
            inner = [*inner[: _MOST_OF_ONE - 1], (f"… {n_inner - _MOST_OF_ONE + 1:,} more", _MORE)]
        waiting += [(depth + 1, name, below) for name, below in reversed(inner)]
    return lines, True


def inside(thing: Any) -> list[tuple[str, Any]]:
    """(name, what is there), unless the text of the thing says it all."""
    is_plain = id(type(thing)) in _SEQUENCES and all(id(type(part)) in _FLAT for part in thing)
    if is_plain or id(type(thing)) in _FLAT:
        return []
    return contents(thing)


# By their ids, since a metaclass may define the hash of a class.
_FLAT = frozenset(map(id, (str, bytes, bytearray, int, float, complex, bool, type(None), type, type(Ellipsis))))
_SEQUENCES = frozenset(map(id, (list, tuple, set, frozenset)))
_BUILTIN = _SEQUENCES | {id(dict)}
_MORE = object()
