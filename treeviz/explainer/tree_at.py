"""What `where` of `equinox.tree_at` chose, and why that cannot be replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treeviz.analysis.compare.nodes import Openers
from treeviz.analysis.compare.nodes import what as node_text
from treeviz.explainer.frames import Answer, Calls
from treeviz.explainer.leaves import is_wrapper, leaves_of, unwrapped, what
from treeviz.tree.walk import scan

_MOST_NAMES = 6
_CHOOSES = "where chooses nodes and leaves of the tree, and nothing else"


def of_tree_at(calls: Calls) -> Answer:
    of, error = calls[0].variables, calls[0].error
    if "out" in of:  # all was replaced; then each node is looked for
        return _of_chosen(of)
    if "nodes" in of:
        if "node_replace_fns" in of or "replace_fns" in of:
            return "", ()
        return _of_numbers(of)
    if "leaves1" in of:
        return _of_leaves(of, error)
    return _of_names(of, error)


def _of_names(of: Mapping[str, Any], error: BaseException) -> Answer:
    """Of an attribute that `where` asks for, and that is not there."""
    if not isinstance(error, AttributeError) or not error.name:
        return "", ()
    places = _Places(of["pytree"])
    path = places.of(error.obj)
    if not path:
        return "", ()
    if is_wrapper(error.obj):
        return _CHOOSES, [f"{path[0]}: {_text(error.obj)}: .{error.name} of a leaf is none of them"]
    names = places.names(error.obj)
    return "where asks for what is not in the tree", [
        f"{path[0]}: {_text(error.obj)}, which has no {error.name!r}" + (f", but {names}" if names else "")
    ]


def _of_leaves(of: Mapping[str, Any], error: BaseException) -> Answer:
    if "node_or_nodes" not in of:
        return "", ()
    if isinstance(error, TypeError):  # from taking the leaves out of their wrappers
        return _CHOOSES, [
            f"its result{path}: {what(leaf)}: a static field, or computed"
            for path, leaf in leaves_of(of["node_or_nodes"])
            if not is_wrapper(leaf)
        ]
    n, found = len(of["leaves1"]), len(of["leaves2"])
    paths = _Places(of["pytree"], bare=True)
    kept = set(map(id, of["leaves2"]))
    lost = [each for each in of["leaves1"] if id(each) not in kept]
    return "where has to choose by the structure of the tree: it is called again with other leaves", [
        f"it chose {n:,} {'leaf' if n == 1 else 'leaves'} first, and then {found:,}",
        *(f"{(paths.of(leaf) or ['a leaf'])[0]}: {what(leaf)}: chosen for what it is" for leaf in lost),
    ]


def _of_numbers(of: Mapping[str, Any]) -> Answer:
    """Of `replace` and what `where` chose: as many of one as of the other."""
    nodes, replace = of["nodes"], of["replace"]
    if not isinstance(nodes, Sequence) or type(replace) is object:  # one that stands for none
        return "", ()
    places = _Places(of["pytree"])
    given = [*replace] if isinstance(replace, tuple | list) else None
    if given is not None and len(given) == len(nodes):
        return "", ()
    chosen = [f"where chose {places.name(node)}" for node in nodes]
    if given is None:
        return "where chose a sequence, so replace has to be one", [*chosen, f"replace: {what(replace)}: no sequence"]
    return f"where chose {len(nodes):,}, and replace has {len(given):,}", [
        *(f"{line}: replaced by {what(new)}" for line, new in zip(chosen, given, strict=False)),
        *(f"{line}: nothing to replace it by" for line in chosen[len(given) :]),
        *(f"replace[{i}]: {what(given[i])}: for nothing" for i in range(len(nodes), len(given))),
    ]


def _of_chosen(of: Mapping[str, Any]) -> Answer:
    """Of a node that stands nowhere, inside another one, or in several places."""
    node, nodes, places = of["node"], of["nodes"], _Places(of["pytree"])
    paths = places.of(node)
    if not paths:
        return _CHOOSES, [f"its result: {_text(node)}: made by where"]
    if len(paths) > 1:
        fix = ": pass is_leaf=lambda x: x is None to tree_at" if node is None else ""
        return "what where chose stands in several places", [f"{path}: {_text(node)}{fix}" for path in paths]
    return "where chose a node and what is in it", [
        f"{paths[0]}: {_text(node)}: it is in {places.of(each)[0]}, which is replaced as a whole"
        for each in nodes
        if places.are_nested(each, node)
    ]


class _Places:
    """Where the nodes and leaves of a tree stand, by identity."""

    def __init__(self, tree: Any, bare: bool = False) -> None:
        self._table, nodes = scan(tree)
        self._rows: dict[int, list[int]]
        self._nodes = [unwrapped(node) for node in nodes] if bare else nodes
        self._keystr, self._rows = self._table.keystrs(), {}
        for row, node in enumerate(self._nodes):
            self._rows.setdefault(id(node), []).append(row)

    def of(self, node: Any) -> list[str]:
        """The key paths of a node; of the root, "the root"."""
        return [self._keystr(row) or "the root" for row in self._rows.get(id(node), ())]

    def are_nested(self, node: Any, below: Any) -> bool:
        rows = self._rows.get(id(node), ())
        return any(row < other < self._table[row].end for row in rows for other in self._rows[id(below)])

    def name(self, node: Any) -> str:
        return f"{(self.of(node) or ['what is not in the tree'])[0]}: {_text(node)}"

    def names(self, node: Any) -> str:
        """What is in a node."""
        keys = [self._table.key(row).keystr for row in self._table.children(self._rows[id(node)][0])]
        more = f" and {len(keys) - _MOST_NAMES:,} more" if len(keys) > _MOST_NAMES else ""
        return ", ".join(keys[:_MOST_NAMES]) + more


def _text(node: Any) -> str:
    opener = Openers()(node)
    return what(node) if opener is None else node_text(node, opener(node))
