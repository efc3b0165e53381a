"""How the nodes and leaves of a class are shown, where that differs from what JAX says of them."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from treeviz.tree.quote import guarded, mro


class Look(NamedTuple):
    """What a describer says of one object. Everything is optional: what is left out is found by the walk.

    Attributes:
      kind: One of `treeviz.tree.kinds.KINDS`.
      type: What people call it: "Param".
      text: A few words beside it: axis names, a unit.
      shape, dtype, bytes: For a leaf that is an array of its own making; `dtype` is a name.
      static: (name, value) pairs that JAX keeps in the treedef. Values are shown bounded; None: found
        from the fields of a dataclass.
      labels: What the children of a node are called, in JAX's order; None: what their keys say.
      step: How Python goes from a node to a child, given the child's key as `keystr` writes it; `by_key`
        is `node['kernel']`. None, also as its result: by the attribute, or by `treeviz.child`.
      hide: Segments of the keys of children that are not shown. Only children without leaves are
        hidden: the counts are JAX's.
      inline: Show the node and its only child as one row, if that child is a leaf.
      transparent: For an opaque leaf: what is inside it is no mistake.
    """

    kind: str = ""
    type: str = ""
    text: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    bytes: int = 0
    static: Sequence[tuple[str, Any]] | None = None
    labels: Sequence[str] | None = None
    step: Callable[[str], str | None] | None = None
    hide: frozenset[str] = frozenset()
    inline: bool = False
    transparent: bool = False


def by_key(keystr: str) -> str | None:
    """The step to a child of a mapping or a sequence: "['kernel']", "[3]"."""
    key = guarded(lambda: literal_eval(keystr), lambda _: None)
    return keystr if type(key) is list and len(key) == 1 else None


Describer = Callable[[Any], Look]
_describers: dict[int, tuple[type, Describer]] = {}  # by id: a metaclass may have no usable hash


def describes(*classes: type) -> Callable[[Describer], Describer]:
    """Register how the nodes or leaves of a class, and of its subclasses, are shown.

    The decorated function gets the object and returns a `Look`. It runs during the walk, once for each
    such object, so it has to be quick; what it raises becomes an error in the object's row, which is
    then shown as if it had no describer.

        @treeviz.describes(Quantity)
        def _(quantity):
            return treeviz.Look(type="Quantity", text=f"in {quantity.unit}")
    """

    def register(describer: Describer) -> Describer:
        _describers.update({id(cls): (cls, describer) for cls in classes})
        return describer

    return register


def describer_of(cls: type) -> Describer | None:
    """The describer of the class or of its nearest base that has one."""
    return next((_describers[id(base)][1] for base in mro(cls) if id(base) in _describers), None)
