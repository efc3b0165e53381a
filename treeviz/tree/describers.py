"""Describers, which define how nodes and leaves of a class are shown, and the budget of a walk."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from treeviz.tree import library_loaders
from treeviz.tree.text import guarded, mro


class Description(NamedTuple):
    """A description of one node or leaf, returned by a describer. Omitted fields have the walk's defaults.

        tv.Description(kind="node", type="Linear", text="512 to 64", static=[("use_bias", True)])

    Attributes:
      kind: One of `treeviz.tree.facts.KINDS`.
      type: The name of the class in the row: "Param".
      text: A short text after the type: axis names, a unit.
      shape, dtype, bytes: For a leaf that is an array of a class unknown to JAX; `dtype` is a name.
      axes: The name of each axis of the array, "" for none: of such a leaf, or of the only child of an inline node.
        Shown in the shape, "float32[batch 2, seq 3]", and found by `axis:batch`.
      sharding: The `jax.sharding.Sharding` of such an array, if it is on JAX's devices.
      array: The NumPy or JAX array in such a leaf, from which statistics are computed. It is not kept.
      static: (name, value) pairs that JAX keeps in the treedef. Values are shown with bounded length. None: the
        fields of a dataclass that are not children.
      labels: The names of a node's children, in JAX's order. None: their keys.
      step: Maps the key of a child, as `keystr` writes it, to the Python that gets the child from the node:
        `by_key` gives `node['kernel']`. None, also as its result: the attribute, or `treeviz.child`.
      hide: Segments of the keys of children to hide. Children with leaves stay, so that counts agree with JAX.
      inline: Show the node and its only child as one row, if that child is a leaf or a box of one. With
        `labels`: the child is a container, whose children they name.
      transparent: Do not look inside an opaque leaf, and do not warn of arrays there.
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
    axes: Sequence[str] = ()
    sharding: Any = None
    array: Any = None


def by_key(keystr: str) -> str | None:
    """Use the child's key as the step to it, for mappings and sequences: "['kernel']", "[3]"."""
    key = guarded(lambda: literal_eval(keystr), lambda _: None)
    return keystr if type(key) is list and len(key) == 1 else None


def by_wrapping_key(keystr: str) -> str | None:
    """Like `by_key`, for mappings that return a nested dict in a wrapper rather than the dict itself."""
    return by_key(keystr)


Describer = Callable[[Any], Description]
_finders: list[Callable[[type], Any]] = []
_describers: dict[int, tuple[type, Describer]] = {}  # by id, since a metaclass may have no usable hash


def describes(*classes: type) -> Callable[[Describer], Describer]:
    """Register a function that describes the nodes or leaves of a class and of its subclasses.

    The function gets the object and returns a `Description`. It runs during the walk, once for each occurrence of such
    an object, and again if the tree exceeds the budget, so it must be fast. If it raises, the row shows the error and
    the default description.

        @treeviz.describes(Quantity)
        def _(quantity):
            return treeviz.Description(type="Quantity", text=f"in {quantity.unit}")
    """

    def register(describer: Describer) -> Describer:
        _describers.update({id(cls): (cls, describer) for cls in classes})
        return describer

    return register


def finds_describers(find: Callable[[type], Describer | None]) -> None:
    """Register a function that returns a describer for a class without one, or None."""
    _finders.append(find)


def describer_of(cls: type) -> Describer | None:
    """The describer of the class or of its nearest base that has one."""
    known = [_describers[id(base)][1] for base in mro(cls) if id(base) in _describers]
    return known[0] if known else found_describer(cls)


def found_describer(cls: type) -> Describer | None:
    """The describer from a function of `finds_describers`. JAX accepts objects of such a class as they are."""
    return next(filter(None, [find(cls) for find in _finders]), None)


def array_inside(leaf: Any) -> Any:
    """The array in a leaf of a class unknown to JAX, according to its describer; None if there is none."""
    describer = describer_of(type(leaf))
    return None if describer is None else guarded(lambda: describer(leaf).array, lambda _: None)


def static_of(node: Any) -> Sequence[tuple[str, Any]]:
    """(name, value) of the static data that the describer of the node's class names."""
    describer = describer_of(type(node))
    return () if describer is None else guarded(lambda: describer(node).static or (), lambda _: ())


def load_libraries() -> None:
    """Import the integrations of the libraries that this process has imported."""
    for load in library_loaders:
        load()


# The budget: how much of a tree is read, and for how long


class Budget(NamedTuple):
    """The limits of reading a tree."""

    max_rows: int = 2_000_000  # siblings share them fairly
    walk_s: float = inf  # seconds; then the walk starts again with fewer rows, for half of that time or what is left
    read_s: float = inf  # seconds for reading the values of arrays in host memory
    hint: str = ""  # how the user sees more: the end of the message about what was left out


WHOLE = Budget()
# 100,000 distinct rows take 1 s to walk, 1 s to read, 1.5 s to pack into a page, and 250 MB.
DISPLAY = Budget(100_000, 2.0, 2.5, "; whole=True shows more")


class Overflow(Exception):
    """The tree is larger than the budget, or takes longer."""


class Stopwatch:
    """The seconds of this thread's work since it was made.

    Counts CPU time, so that a busy machine does not show less, but at least a twentieth of the wall time, for code that
    waits.
    """

    def __init__(self) -> None:
        self._cpu, self._clock = thread_time(), perf_counter()

    def __call__(self) -> float:
        return max(thread_time() - self._cpu, (perf_counter() - self._clock) / 20)
