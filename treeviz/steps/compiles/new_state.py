"""Which part of a step's result is its new state: told by structure, or given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from treeviz.analysis.compare.nodes import MAPPINGS
from treeviz.steps.compiles.compare import Part, mapping_keys, same_structure
from treeviz.tree.safe_repr import class_name, has_base

_DEEPEST = 3  # levels of the result; further below, Adam's moments have the structure of the parameters


class Place(NamedTuple):
    """A part of the result.

    Attributes:
      keys: From the result to it.
    """

    keys: tuple[Any, ...]
    part: Part

    @property
    def text(self) -> str:
        """ "the result", "result[0]"."""
        return "".join(["result", *(f"[{key!r}]" for key in self.keys)]) if self.keys else "the result"

    def children(self) -> Iterator[Place]:
        for key, part in zip(_keys(self.part), self.part.children(), strict=True):
            yield Place((*self.keys, key), part)


def given_state(result: Part, out: Any) -> Place:
    """The part of the result that a key leads to, or a tuple of keys.

    Raises:
      ValueError: The result has no such part.
    """
    place = Place((), result)
    for key in out if isinstance(out, tuple) else (out,):
        below = {child.keys[-1]: child for child in place.children()}
        if key not in below:
            raise ValueError(
                f"forecast: out={out!r}: {place.text} is {place.part.text}, and has {[*below] or 'no parts'}."
            )
        place = below[key]
    return place


def find_state(state: Part, result: Part) -> Place | None:
    """The part of the result that is certainly the new state; None where there is none, or several.

    The first level of the result that has parts with the state's structure (and shape, of a single array), of which
    shapes single one out; if there is none, the first that has one part of its class, with about its keys, or of
    another class, with children of the same structure and shapes. What was None becomes a single array.
    """
    if not state.leaves and result.treedef.node_data() is None:
        return Place((), result)
    levels = [[Place((), result)]]
    while len(levels) < _DEEPEST:
        levels.append([child for place in levels[-1] for child in place.children()])
    is_array = state.treedef.node_data() is None
    for level in levels:
        found = [place for place in level if same_structure(place.part.treedef, state.treedef)]
        alike = [place for place in found if _shapes(place.part) == _shapes(state)]
        if is_array and len(level) > 1:  # every array has the structure of one
            found = alike
        if found:
            return _only(found) or _only(alike)
    return next(filter(None, (_only([place for place in level if _is_alike(place, state)]) for level in levels)), None)


def _only(found: list[Place]) -> Place | None:
    return found[0] if len(found) == 1 else None


def _shapes(part: Part) -> list[Any]:
    return [getattr(each.aval, "shape", each.aval) for each in part.leaves]


def _is_alike(place: Place, state: Part) -> bool:
    part = place.part
    a, b = part.treedef.node_data(), state.treedef.node_data()
    if a is None or b is None:
        return False
    if a[0] is not b[0] and class_name(a[0]) != class_name(b[0]):
        return _has_other_class(place, state)
    mine, other = (dict(zip(_keys(each), each.treedef.children(), strict=True)) for each in (part, state))
    if a[0] in MAPPINGS:
        return 2 * len(mine.keys() & other.keys()) >= len(mine.keys() | other.keys())
    if a[0] not in (list, tuple):
        return True
    if len(mine) == len(other) and any(map(same_structure, mine.values(), other.values())):
        return True
    return bool(state.leaves) and _child_shapes(part) == _child_shapes(state)


def _has_other_class(place: Place, state: Part) -> bool:
    """Whether a part is the state in another class; a tuple that is the result may be several, and is a list alone."""
    mine, other = place.part.treedef, state.treedef
    if mine.node_data()[0] is tuple and not place.keys and other.node_data()[0] is not list:
        return False
    if not state.leaves or len(mine.children()) != len(other.children()):
        return False
    if all(map(same_structure, mine.children(), other.children())) and _shapes(place.part) == _shapes(state):
        return True
    # The keys of a dict are sorted, and fields are not.
    return sorted(_child_shapes(place.part)) == sorted(_child_shapes(state))


def _child_shapes(part: Part) -> list[str]:
    return [f"{child.treedef.num_leaves} {_shapes(child)}" for child in part.children()]


def _keys(part: Part) -> list[Any]:
    """What a user writes to get a child: a key, the name of a field, or its position."""
    data = part.treedef.node_data()
    if data is None or not part.treedef.children():
        return []
    if data[0] in MAPPINGS:
        return list(mapping_keys(data))
    n = len(part.treedef.children())
    names = list(getattr(data[0], "_fields", ())) if has_base(data[0], tuple) else []
    return names if len(names) == n else list(range(n))
