"""Why `jax.tree.map` refuses several trees: every mismatch, with its own path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jax.tree_util import DictKey

from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.analysis.compare.nodes import (
    MAPPINGS,
    Finding,
    Opened,
    Openers,
    compare_level,
    compare_types,
    key_text,
    what,
)
from treeviz.tree.safe_repr import class_name, error_text, guarded

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
