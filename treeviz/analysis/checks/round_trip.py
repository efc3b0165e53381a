"""Rules about flattening and unflattening again, which run the user's code: only on request."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from jax import tree_util

from treeviz.analysis.checks.rule import Checked, Found, rule
from treeviz.tree.attributes import MISSING, stored_items
from treeviz.tree.facts import Facts
from treeviz.tree.kinds import NODE_KINDS
from treeviz.tree.safe_repr import class_name, error_text, guarded, value_text, visible

_PLAIN = (bool, int, float, str, type(None))


@rule("T114", "warning", needs="roundtrip")
def unflatten_that_validates(checked: Checked) -> Iterator[Found]:
    """A class cannot be unflattened with anything but arrays.

    JAX unflattens with placeholders, None, or other trees: in `vmap`, `jacobian`, `eval_shape` and error messages. Let
    `tree_unflatten` set the attributes without calling `__init__`, or check nothing there.
    """
    for row, children, treedef in _first_nodes(checked):
        for what, odd in (("object()", object()), ("None", None), ("a tuple", (1, 2))):
            problem = guarded(partial(_unflattened, treedef, [odd] * len(children)), error_text)
            if problem:
                name = class_name(type(checked.nodes[row]))
                fix = f"new = object.__new__({name})  # in tree_unflatten, in place of calling {name}(…)"
                yield Found(row, f"cannot be unflattened with {what}: {problem}", fix)
                break


@rule("T115", "warning", needs="roundtrip")
def round_trip_that_changes(checked: Checked) -> Iterator[Found]:
    """A node is not the same after it was flattened and unflattened again: other children, or other static data.

    Then `jax.tree.map(lambda x: x, tree)` changes the tree, and a step that returns its state compiles again.
    """
    for row, children, treedef in _first_nodes(checked):
        problem = guarded(partial(_changes, children, treedef), lambda error: f"raised {error_text(error)}")
        if problem:
            yield Found(row, f"flattened and unflattened again: {problem}")


@rule("T116", "warning", needs="roundtrip")
def two_flatten_functions(checked: Checked) -> Iterator[Found]:
    """The flatten function with keys gives other children than the one without.

    Paths then name other leaves than `jax.tree.leaves` has.
    """
    for row, children, _ in _first_nodes(checked):
        flatten = partial(tree_util.tree_flatten, checked.nodes[row], is_leaf=_first_only())
        other = guarded(flatten, lambda _, same=children: (same, None))[0]
        if not _are_same(children, other):
            yield Found(row, f"{len(children):,} children with keys, {len(other):,} without, or others")


@rule("T117", "info", needs="roundtrip")
def forgotten_attributes(checked: Checked) -> Iterator[Found]:
    """An attribute of a node is neither a child nor static data, and is lost or reset when JAX rebuilds the node.

    `jax.tree.map`, `jit` and every other function of JAX flatten a node and make a new one. A counter or a flag that
    was set on the old one is then gone without an error. Caches that are computed again are fine.
    """
    for row, children, treedef in _first_nodes(checked):
        node = checked.nodes[row]
        new = guarded(partial(treedef.unflatten, children), lambda _, node=node: node)
        if new is node or type(new) is not type(node):
            continue
        before, after = stored_items(node), stored_items(new)
        for name, value in before.items():
            if name not in after or after[name] is MISSING is not value:
                yield Found(row, f"the attribute {visible(name, 80)} is lost when JAX rebuilds the node")
            elif type(value) in _PLAIN and type(after[name]) in _PLAIN and after[name] != value == value:
                text = f"{value_text(value, 40)} becomes {value_text(after[name], 40)}"
                yield Found(row, f"the attribute {visible(name, 80)} is reset when JAX rebuilds the node: {text}")


def _unflattened(treedef: Any, children: list) -> str:
    treedef.unflatten(children)
    return ""


def _changes(children: list, treedef: Any) -> str:
    again, other = tree_util.tree_flatten(treedef.unflatten(children), is_leaf=_first_only())
    if not _are_same(children, again):
        return "its children are others"
    return "" if other == treedef else "its static data is not equal to what it was"


def _are_same(left: list, right: list) -> bool:
    """Whether two lists have the same objects, or containers of the same objects."""
    return len(left) == len(right) and all(
        a is b
        or (type(a) is type(b) and type(a) in (list, tuple) and all(map(operator.is_, a, b)) and len(a) == len(b))
        or (type(a) is type(b) is dict and a.keys() == b.keys() and all(a[key] is b[key] for key in a))
        for a, b in zip(left, right, strict=True)
    )


def _first_only() -> Callable[[Any], bool]:
    """An `is_leaf` that opens the first node that it sees, and no other."""
    seen: list[bool] = []
    return lambda _: bool(seen) or bool(seen.append(True))


def _first_nodes(checked: Checked) -> Iterator[tuple[int, list, Any]]:
    """(row, children, treedef of one level) of the first node of each registered class."""
    seen: set[int] = set()
    for row in checked.rows(_is_registered):
        node = checked.nodes[row]
        if id(type(node)) in seen:
            continue
        seen.add(id(type(node)))
        found = guarded(lambda node=node: tree_util.tree_flatten_with_path(node, is_leaf=_first_only()), lambda _: None)
        if found is not None and found[1].node_data() is not None:
            yield row, [child for _, child in found[0]], found[1]


def _is_registered(facts: Facts) -> bool:
    """Whether it is a node of a class that somebody else than JAX registered."""
    return facts.kind in NODE_KINDS and facts.module.partition(".")[0] not in ("", "jax", "jaxlib")
