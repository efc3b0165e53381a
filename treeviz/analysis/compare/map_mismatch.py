"""Why `jax.tree.map` or stacking rejects several trees: every mismatch, with its own path."""

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
    describe_value,
    key_text,
)
from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.analysis.facts import shape_text
from treeviz.tree.text import class_name, error_text, guarded, has_base, is_any, value_text

MAX_DEPTH = 100_000  # a flatten function may create new nodes without end
_MANY = 100_000  # visited nodes, after which no group of nodes is visited twice
_ABSENT = object()
Path = tuple[Any, Any, Any] | None  # the path of the parent, the parent, and the key in it; None is the root
Others = list[tuple[int, Any]]  # (number of a tree, its node or leaf)
AtLeaf = Callable[[Any, Others], Iterable[tuple[int, Finding]]]


def map_mismatches(
    tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None, at_leaf: AtLeaf | None = None
) -> Differences:
    """See `treeviz.explain_map`. `at_leaf` returns further findings at a leaf of the first tree."""
    return _Aligned(is_leaf, at_leaf).run(tree, rest)


class _Aligned:
    """Walks trees together, as far as the first one has nodes."""

    def __init__(self, is_leaf: Callable[[Any], bool] | None, at_leaf: AtLeaf | None) -> None:
        self._is_leaf, self._at_leaf = is_leaf, at_leaf
        self._opener = Openers()
        self._found = Differences()
        self._open: set[int] = set()  # ids of the nodes from the root to here
        self._n_visited = 0
        self._visited: dict[tuple[int, ...], Any] = {}  # holds the nodes, so that no id is reused

    def run(self, tree: Any, rest: tuple[Any, ...]) -> Differences:
        # A frame: the node whose children are being visited, and an iterator over the rest of them.
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
        self._found.sort(key=lambda difference: difference.tree)
        return self._found

    def _visit(self, path: Path, node: Any, others: Others) -> Iterator | None:
        """Compare a node with its counterparts in the other trees; return its children, aligned."""
        try:
            if self._is_leaf is not None and self._is_leaf(node):
                return None
            opened = self._opener(node)
            if opened is None:
                for tree, finding in self._at_leaf(node, others) if self._at_leaf else ():
                    self._add(path, finding, tree)
                return None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a flatten function may raise anything
            self._add(path, ("error", f"flattening raised {error_text(error)}", "", ""), 0)
            return None
        if id(node) in self._open or len(self._open) > MAX_DEPTH:
            why = "contains itself" if id(node) in self._open else f"is more than {MAX_DEPTH:,} levels deep"
            self._add(path, ("error", f"{why}: JAX cannot flatten this tree", "", ""), 0)
            return None
        self._n_visited += 1
        if self._n_visited > _MANY:  # in a tree with too many paths to follow all of them
            key = (id(node), *(id(other) for _, other in others))
            if key in self._visited:
                return None
            self._visited[key] = node, others
        aligned = [*filter(None, (self._compare(path, node, opened, *other) for other in others))]
        return self._children(path, node, opened, aligned) if opened.children else None

    def _children(self, path: Path, node: Any, opened: Opened, aligned: list) -> Iterator:
        is_leaf = self._opener.is_leaf
        for i, child in enumerate(opened.children):
            if self._at_leaf or not is_leaf(type(child)):
                below = [(tree, kids[i]) for tree, kids in aligned if kids[i] is not _ABSENT]
                yield (path, node, opened.keys[i]), child, below

    def _compare(self, path: Path, node: Any, left_opened: Opened, tree: int, right: Any) -> tuple[int, list] | None:
        """The children aligned with those of `node`; None if the two cannot be compared."""
        if right is node and tree:
            return tree, left_opened.children
        doing = "flattening"
        try:
            right_opened: Any = self._opener(right)
            doing = "comparing"
            has_keys, differs = False, compare_types(node, right, right_opened)
            if differs is not None:
                self._add(path, differs, tree)
                # Children of nodes of different types are compared so that a wrapper does not hide its contents.
                kinds = (list, tuple), MAPPINGS
                is_alike = any(is_any(type(node), kind) and is_any(type(right), kind) for kind in kinds)
                if right_opened is None or not is_alike:
                    return None
            else:
                found = compare_level(node, left_opened, right, right_opened)
                has_keys = bool(found) and _has_other_keys(left_opened, right_opened)
                for finding in found:
                    if not has_keys or (finding[0] == "static" and not _is_of_keys(left_opened)):
                        self._add(path, finding, tree)
            if not is_any(type(node), MAPPINGS) and not has_keys:  # by position, as JAX does
                n = len(left_opened.children)
                return tree, right_opened.children[:n] + [_ABSENT] * (n - len(right_opened.children))
            return tree, self._align(path, node, left_opened, right, right_opened, tree)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a flatten function may raise anything, and so may == and hash of a key
            self._add(path, ("error", "", f"{doing} raised {error_text(error)}", ""), tree)
            return None

    def _align(self, path: Path, node: Any, opened: Opened, right: Any, right_opened: Opened, tree: int) -> list:
        if opened.keys == right_opened.keys:
            return right_opened.children
        unmatched = dict(zip(right_opened.keys, right_opened.children, strict=True))
        aligned = [unmatched.pop(key, _ABSENT) for key in opened.keys]
        for key, child, counterpart in zip(opened.keys, opened.children, aligned, strict=True):
            if counterpart is _ABSENT:
                self._add((path, node, key), ("missing", self._describe(child), "", ""), tree)
        for key, child in unmatched.items():
            self._add((path, right, key), ("extra", "", self._describe(child), ""), tree)
        return aligned

    def _describe(self, node: Any) -> str:
        failed = lambda error: f"{class_name(type(node))}, which raised {error_text(error)}"  # noqa: E731
        return guarded(lambda: describe_value(node, self._opener(node)), failed)

    def _add(self, path: Path, finding: Finding, tree: int) -> None:
        self._found.append(Difference(path_text(path), *finding, tree=tree))


def _has_other_keys(left: Opened, right: Opened) -> bool:
    """Whether two nodes of a library's mapping, such as `flax.nnx.State`, differ in their keys."""
    keys = [*left.keys, *right.keys]
    return all(type(key) is DictKey for key in keys) and set(left.keys) != set(right.keys)


def _is_of_keys(node: Opened) -> bool:
    """Whether the auxiliary data of a mapping is its keys."""
    return type(node.aux) is tuple and guarded(lambda: node.aux == tuple(key.key for key in node.keys), lambda _: False)


def path_text(path: Any) -> str:
    """The path from the root as `keystr` writes it."""
    keys = []
    while path is not None:
        path, node, key = path
        keys.append(key_text(node, key))
    return "".join(reversed(keys))


# Why trees cannot be stacked: every leaf that prevents it

_NUMBERS: dict[str, type] = {"bool": bool, "int": int, "float": float, "complex": complex}


def unstackable(trees: Iterable[Any]) -> Differences:
    """See `treeviz.stackable`."""
    several = [] if isinstance(trees, Mapping | str) or not isinstance(trees, Iterable) else list(trees)
    if not several:
        raise TypeError(
            f"stackable: pass a list of trees, not {value_text(trees, 40)}: stackable([params_1, params_2])"
        )
    return map_mismatches(*several, at_leaf=_Leaves().compare)


class _Leaves:
    """Compares the leaves of several trees at one path."""

    def __init__(self) -> None:
        self._opener = Openers()
        self._classes: dict[int, tuple[str, type]] = {}  # by id: a metaclass may forbid hashing
        self._dtypes: dict[Any, Any] = {}  # JAX's dtype; None if it accepts none

    def compare(self, leaf: Any, others: Others) -> Iterator[tuple[int, Finding]]:
        left_type = self._type(leaf)
        if left_type is None:
            yield 0, _not_stacked(leaf, "")
            return
        for tree, other in others:
            other_type = self._type(other)
            if other_type is None:
                opened, text = self._opener(other), describe_value(leaf, None)
                node = "leaf", f"a leaf: {text}", f"a node: {describe_value(other, opened)}", ""
                yield tree, _not_stacked(other, text) if opened is None else node
            elif other_type != left_type:
                if other_type[0] != left_type[0]:
                    yield tree, ("shape", shape_text(left_type[0]), shape_text(other_type[0]), "")
                if other_type[1] != left_type[1]:
                    promoted = guarded(lambda other=other: jnp.result_type(leaf, other), lambda _: None)
                    hint = "jnp.stack refuses them" if promoted is None else f"stacked, both are {promoted}"
                    yield tree, ("dtype", str(left_type[1]), str(other_type[1]), hint)

    def _type(self, leaf: Any) -> tuple[Any, Any] | None:
        cls = type(leaf)
        if id(cls) not in self._classes:
            self._classes[id(cls)] = _kind(cls), cls
        kind = self._classes[id(cls)][0]
        if kind == "" or (kind == "array" and guarded(leaf.is_deleted, lambda _: False)):
            return None
        given, shape = (kind, ()) if kind in _NUMBERS else (leaf.dtype, leaf.shape)
        if given not in self._dtypes:
            self._dtypes[given] = _jax_dtype(given)
        return None if self._dtypes[given] is None else (shape, self._dtypes[given])


def _kind(cls: type) -> str:
    """How to read the type of a leaf; "" for a leaf that `jnp.stack` rejects."""
    if issubclass(cls, jax.Array):
        return "array"
    if has_base(cls, np.ndarray, np.generic, jax.ShapeDtypeStruct):
        return "" if has_base(cls, np.ma.MaskedArray) else "typed"
    return next((name for name, number in _NUMBERS.items() if has_base(cls, number)), "")


def _jax_dtype(given: Any) -> Any:
    """JAX's dtype for a NumPy dtype or the name of a Python number; None if there is none."""
    if isinstance(given, str):
        return jnp.result_type(_NUMBERS[given](0))
    if not isinstance(given, np.dtype) or given == jax.dtypes.float0:
        return given  # of PRNG keys
    is_known = given.isnative and given.kind != "m" and given.type not in (np.longdouble, np.clongdouble)
    is_known &= jnp.issubdtype(given, np.number) or jnp.issubdtype(given, np.bool_)
    return jax.dtypes.canonicalize_dtype(given) if is_known else None


def _not_stacked(leaf: Any, left_text: str) -> Finding:
    """A finding about the first tree alone if `left_text` is empty."""
    text = describe_value(leaf, None)
    is_deleted = guarded(lambda: bool(leaf.is_deleted()), lambda _: False)
    is_numpy = has_base(type(leaf), np.ndarray, np.generic)
    reason = "JAX does not accept it" if is_numpy else "neither an array nor a number"
    kind, hint = ("deleted", "donated?") if is_deleted else ("python type", reason)
    return (kind, left_text, text, hint) if left_text else (kind, text, "", hint)
