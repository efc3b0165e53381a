"""One level of a node: its children with their keys, as JAX flattens it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax

from treeviz.tree.keys import KeyTable
from treeviz.tree.safe_repr import class_name, error_text, has_base


class Level(NamedTuple):
    """A node, one level deep.

    Attributes:
      children: In the order in which JAX flattens.
      keys: A code of the `KeyTable` for each child; None for a list or tuple, whose keys are positions.
      aux: The auxiliary data in the treedef.
      trouble: Why JAX itself cannot flatten this node, or "".
    """

    children: list
    keys: list[int] | None
    aux: Any = None
    trouble: str = ""


_new_level = partial(tuple.__new__, Level)  # half as long as `Level`: one for each node
_by_key = itemgetter(0)


def one_level(node: Any) -> tuple[list[tuple[tuple, Any]], tuple[type, Any] | None]:
    """[((key,), child), ...] and (type, aux), or None instead of these for a leaf.

    Runs the flatten function of the node's class; its exceptions propagate. Never enters a child, so a node
    may contain itself.
    """
    # The usual `is_leaf=lambda x: x is not node` never ends on a node that contains itself, and
    # `flatten_one_level_with_keys` gives every NamedTuple field the first field's key (jax#39297).
    called = False

    def is_below(_: Any) -> bool:
        nonlocal called
        called, was_called = True, called
        return was_called

    children, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=is_below)
    return children, treedef.node_data()


def child(node: Any, position: int) -> Any:
    """Get the child at `position` of any pytree node, in the order in which JAX flattens it.

    Copied expressions use it where Python has no syntax for the step, such as below a custom node
    registered without keys. Costs one flatten of the node.

        tv.child({"b": 1, "a": 2}, 0)  # 2: JAX sorts the keys

    Raises:
      IndexError: The node has no such child.
      TypeError: JAX sees a leaf here.
    """
    children, data = one_level(node)
    if data is None:
        raise TypeError(f"child: JAX sees a leaf here, a {type(node).__name__}, which has no children.")
    if not 0 <= position < len(children):
        raise IndexError(f"child: a {type(node).__name__} with {len(children)} children has no child {position}.")
    return children[position][1]


def list_level(node: list | tuple, keys: KeyTable) -> Level:
    return _new_level((list(node), None, None, ""))


def none_level(node: None, keys: KeyTable) -> Level:
    return Level([], None)


def dict_level(node: dict, keys: KeyTable) -> Level:
    """The items in JAX's key order; in insertion order, with the reason, if keys cannot be sorted."""
    if len(node) == 1:  # as half of a checkpoint's are: {"kernel": …}, {"weight": …}
        ((key, value),) = node.items()
        return _new_level(([value], [keys.single(key)], None, ""))
    known = keys.orders.get(key_ids := tuple(map(id, node)))
    if known is not None and len(values := list(node.values())) == len(key_ids):
        in_order, codes, _ = known
        return _new_level((list(in_order(values)), codes.copy(), None, ""))
    items = list(node.items())
    trouble = ""
    try:
        items = sorted(items, key=_by_key)  # not in place: a sort that raises would leave them half sorted
    except Exception as error:
        types = ", ".join(sorted({class_name(type(key)) for key, _ in items}))
        trouble = f"JAX cannot flatten this dict: its keys ({types}) cannot be sorted: {error_text(error)}"
    codes = keys.mapping(items)
    if not trouble:
        keys.remember(key_ids, [key for key, _ in items], codes)
    return _new_level(([value for _, value in items], codes, None, trouble))


def ordered_dict_level(node: OrderedDict, keys: KeyTable) -> Level:
    items = list(node.items())
    return Level([value for _, value in items], keys.mapping(items))


# The keys and children of a node of a registered class, and its auxiliary data.
Flattened = tuple[Sequence[tuple[Any, Any]], Any]


def _flattened(node: Any) -> Flattened | None:
    pairs, data = one_level(node)
    return None if data is None else ([(path[0], kid) for path, kid in pairs], data[1])


def flatten_of(cls: type) -> Callable[[Any], Flattened | None]:
    """The function that flattens objects of a class by one level; None for a leaf. Their exceptions propagate."""
    # Not in jax 0.4.36. Twice as fast as `one_level`, but wrong for the keys of named tuples (jax#39297).
    with_keys = getattr(jax.tree_util.default_registry, "flatten_one_level_with_keys", None)
    return _flattened if with_keys is None or has_base(cls, tuple) else with_keys


def custom_level(node: Any, keys: KeyTable, flattened: Flattened) -> Level:
    """The level of a node of a registered class."""
    pairs, aux = flattened
    return _new_level(([kid for _, kid in pairs], keys.customs(node, pairs), aux, ""))


BUILTIN_LEVELS = {
    list: list_level,
    tuple: list_level,
    dict: dict_level,
    OrderedDict: ordered_dict_level,
    defaultdict: dict_level,
    type(None): none_level,
}
