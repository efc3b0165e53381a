"""Why `jax.tree.map` refuses several trees: every mismatch, with its own path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey

from treeviz.analysis.compare.aligned import (
    MAPPINGS,
    Finding,
    Opened,
    Openers,
    compare_level,
    compare_types,
    key_text,
    what,
)
from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.analysis.facts import shape_text
from treeviz.tree.text import class_name, error_text, guarded, has_base, value_text

MAX_DEPTH = 100_000  # a flatten function may create new nodes without end
_MANY = 100_000  # visited nodes: from then on, what was met before is not visited again
_ABSENT = object()
Path = tuple[Any, Any, Any] | None  # the path of the parent, the parent, and the key in it; None is the root
Others = list[tuple[int, Any]]  # the number of a tree, and what stands there
AtLeaf = Callable[[Any, Others], Iterable[tuple[int, Finding]]]


def map_mismatches(
    tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None, at_leaf: AtLeaf | None = None
) -> Differences:
    """See `treeviz.explain_map`.

    Args:
      at_leaf: Finds more to tell where the first tree has a leaf.
    """
    return _Aligned(is_leaf, at_leaf).run(tree, rest)


class _Aligned:
    """Walks trees together, as far as the first one has nodes."""

    def __init__(self, is_leaf: Callable[[Any], bool] | None, at_leaf: AtLeaf | None) -> None:
        self._is_leaf, self._at_leaf = is_leaf, at_leaf
        self._opener = Openers()
        self._found = Differences()
        self._open: set[int] = set()  # ids of the nodes from the root to here
        self._n_visited = 0
        self._met: dict[tuple[int, ...], Any] = {}  # with the nodes, so that no id is used again

    def run(self, tree: Any, rest: tuple[Any, ...]) -> Differences:
        # A frame: the node whose children are being visited, and what is left to visit of them.
        stack: list[tuple[Any, Iterator]] = [(_ABSENT, iter([(None, tree, list(enumerate(rest, 1)))]))]
        while stack:
            node, waiting = stack[-1]
            for path, child, others in waiting:
                below = self._visit(path, child, others)
                if below is not None:
                    self._open.add(id(child))
                    stack.append((child, below))
                    break
            else:
                stack.pop()
                self._open.discard(id(node))
        self._found.sort(key=lambda each: each.tree)
        return self._found

    def _visit(self, path: Path, node: Any, others: Others) -> Iterator | None:
        """Compare a node with what stands in its place in the other trees; yield its children, aligned."""
        try:
            if self._is_leaf is not None and self._is_leaf(node):
                return None
            opener = self._opener(node)
            if opener is None:
                for tree, finding in self._at_leaf(node, others) if self._at_leaf else ():
                    self._add(path, finding, tree)
                return None
            mine = opener(node)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a flatten function may raise anything
            self._add(path, ("error", f"flattening raised {error_text(error)}", "", ""), 0)
            return None
        if id(node) in self._open or len(self._open) > MAX_DEPTH:
            why = "contains itself" if id(node) in self._open else f"is more than {MAX_DEPTH:,} levels deep"
            self._add(path, ("error", f"{why}: JAX cannot flatten this tree", "", ""), 0)
            return None
        if self._is_known(node, others):
            return None
        aligned = [each for each in (self._compare(path, node, mine, *other) for other in others) if each]
        if not mine.children and not aligned:
            return None
        return self._children(path, node, mine, aligned)

    def _is_known(self, node: Any, others: Others) -> bool:
        """Whether these were compared before, in a tree with too many paths to follow each of them."""
        self._n_visited += 1
        if self._n_visited <= _MANY:
            return False
        key = (id(node), *(id(other) for _, other in others))
        is_known = key in self._met
        self._met[key] = node, others
        return is_known

    def _children(self, path: Path, node: Any, mine: Opened, aligned: list) -> Iterator:
        is_leaf = self._opener.is_leaf
        for i, child in enumerate(mine.children):
            if self._at_leaf or not is_leaf(type(child)):
                below = [(tree, kids[i]) for tree, kids in aligned if kids[i] is not _ABSENT]
                yield (path, node, mine.keys[i]), child, below

    def _compare(self, path: Path, node: Any, mine: Opened, tree: int, right: Any) -> tuple[int, list] | None:
        """The tree's children in the places of those of `node`; None where its own are something else."""
        if right is node and tree:
            return tree, mine.children
        try:
            opener = self._opener(right)
            other = None if opener is None else opener(right)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._add(path, ("error", "", f"flattening raised {error_text(error)}", ""), tree)
            return None
        differs = compare_types(node, right, other)
        if differs is not None:
            self._add(path, differs, tree)
            if other is None or not _is_alike(node, right):
                return None
            return tree, self._align(path, node, mine, right, other, tree)  # type: ignore[arg-type]
        found = compare_level(node, mine, right, other)  # type: ignore[arg-type]
        has_keys = bool(found) and _has_other_keys(mine, other)  # type: ignore[arg-type]
        for finding in found:
            if not has_keys or (finding[0] == "static" and not _is_of_keys(mine)):
                self._add(path, finding, tree)
        return tree, self._align(path, node, mine, right, other, tree, has_keys=has_keys)  # type: ignore[arg-type]

    def _align(
        self, path: Path, node: Any, mine: Opened, right: Any, other: Opened, tree: int, *, has_keys: bool = False
    ) -> list:
        if type(node) not in MAPPINGS and not has_keys:  # by position, as JAX does
            n_missing = len(mine.children) - len(other.children)
            return other.children[: len(mine.children)] + [_ABSENT] * n_missing
        if mine.keys == other.keys:
            return other.children
        theirs = dict(zip(other.keys, other.children, strict=True))
        aligned = [theirs.pop(key, _ABSENT) for key in mine.keys]
        for key, child, found in zip(mine.keys, mine.children, aligned, strict=True):
            if found is _ABSENT:
                self._add((path, node, key), ("missing", self._what(child), "", ""), tree)
        for key, child in theirs.items():
            self._add((path, right, key), ("extra", "", self._what(child), ""), tree)
        return aligned

    def _what(self, node: Any) -> str:
        def describe() -> str:
            opener = self._opener(node)
            return what(node, None if opener is None else opener(node))

        return guarded(describe, lambda error: f"{class_name(type(node))}, which raised {error_text(error)}")

    def _add(self, path: Path, finding: Finding, tree: int) -> None:
        self._found.append(Difference(path_text(path), *finding, tree=tree))


def _has_other_keys(mine: Opened, other: Opened) -> bool:
    """Whether two nodes of a library's mapping, as `flax.nnx.State`, differ in their keys."""
    keys = [*mine.keys, *other.keys]
    return all(type(key) is DictKey for key in keys) and set(mine.keys) != set(other.keys)


def _is_of_keys(node: Opened) -> bool:
    """Whether the auxiliary data of a mapping are its keys."""
    return type(node.aux) is tuple and guarded(lambda: node.aux == tuple(key.key for key in node.keys), lambda _: False)


def _is_alike(left: Any, right: Any) -> bool:
    """Whether to go on below nodes of different types, so that a wrapper hides nothing of what is in it."""
    kinds = (list, tuple), MAPPINGS
    return any(type(left) in kind and type(right) in kind for kind in kinds)


def path_text(path: Any) -> str:
    """The path from the root as `keystr` writes it."""
    keys = []
    while path is not None:
        path, node, key = path
        keys.append(key_text(node, key))
    return "".join(reversed(keys))


# Why trees cannot be stacked to one: every leaf that stands in the way.

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
