"""The contents of an object that is a leaf for JAX, as an outline. No code of its class runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from treeviz.tree.opaque import contents
from treeviz.tree.safe_repr import array_text, guarded, is_function, value_text, visible

MOST_LINES = 60
_MOST_DEPTH = 4
_MOST_OF_ONE = 24

Line = tuple[int, str, str, bool]  # depth, name, text, whether it is an array


def outline(named: Iterable[tuple[str, Any]], goes_on: Callable[[], bool]) -> tuple[list[Line], bool]:
    """Lines for named values and their contents, and whether the outline is complete.

    An object that occurs several times is opened at its first occurrence.

    Args:
      goes_on: Called before each line; False ends the outline.
    """
    lines: list[Line] = []
    waiting = [(0, name, value) for name, value in reversed(list(named))]
    opened: set[int] = set()
    while waiting:
        if len(lines) >= MOST_LINES or not goes_on():
            return lines, False
        depth, name, value = waiting.pop()
        if value is _MORE:
            lines.append((depth, "", name, False))
            continue
        array = array_text(value)
        may_open = not array and depth + 1 < _MOST_DEPTH and not is_function(type(value)) and id(value) not in opened
        inner = guarded(lambda value=value: inside(value), lambda _: []) if may_open else []
        is_builtin = inner and id(type(value)) in _BUILTIN
        n_inner = len(value) if is_builtin else len(inner)
        text = f"{type(value).__name__} of {n_inner:,}" if is_builtin else None
        lines.append((depth, visible(name, 60), array or text or value_text(value, 100), array is not None))
        opened.add(id(value))
        if len(inner) > _MOST_OF_ONE:
            inner = [*inner[: _MOST_OF_ONE - 1], (f"… {n_inner - _MOST_OF_ONE + 1:,} more", _MORE)]
        waiting += [(depth + 1, name, below) for name, below in reversed(inner)]
    return lines, True


def inside(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of the contents, unless the value's text shows them."""
    is_plain = id(type(value)) in _SEQUENCES and all(id(type(part)) in _FLAT for part in value)
    if is_plain or id(type(value)) in _FLAT:
        return []
    return contents(value)


# Compared by id, since metaclasses may override hash.
_FLAT = frozenset(map(id, (str, bytes, bytearray, int, float, complex, bool, type(None), type, type(Ellipsis))))
_SEQUENCES = frozenset(map(id, (list, tuple, set, frozenset)))
_BUILTIN = _SEQUENCES | {id(dict)}
_MORE = object()
