"""One level of a node: its children with their keys, as JAX flattens it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import jax

from treeviz.tree.keys import Key, KeyTable, label_text
from treeviz.tree.runtime import jax_is_imported
from treeviz.tree.text import class_name, error_text, guarded, has_base, is_any, visible


class Level(NamedTuple):
    """One level of a node."""

    children: list  # in JAX's order
    keys: list[int] | None  # codes in the `KeyTable`; None for a list or tuple, whose keys are positions
    aux: Any = None  # the auxiliary data in the treedef
    trouble: str = ""  # why JAX itself cannot flatten this node


_new_level = partial(tuple.__new__, Level)  # in half the time of `Level`, and called for each node
_by_key = itemgetter(0)


def one_level(node: Any) -> tuple[list[tuple[tuple, Any]], tuple[type, Any] | None]:
    """[((key,), child), ...] and (type, aux), or None instead of these for a leaf.

    Runs the flatten function of the node's class; its exceptions propagate. Never enters a child, so a node
    may contain itself.
    """
    # The usual `is_leaf=lambda x: x is not node` never returns on a node that contains itself, and
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


def dict_level(node: dict, keys: KeyTable) -> Level:
    """The items in JAX's key order; if keys cannot be sorted, in insertion order and with the reason."""
    if len(node) == 1:  # as half of the dicts in checkpoints: {"kernel": …}, {"weight": …}
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


# The keys and children of a node of a registered class, and its auxiliary data
Flattened = tuple[Sequence[tuple[Any, Any]], Any]


def _flattened(node: Any) -> Flattened | None:
    pairs, data = one_level(node)
    return None if data is None else ([(path[0], kid) for path, kid in pairs], data[1])


def flatten_of(cls: type) -> Callable[[Any], Flattened | None]:
    """A function that flattens objects of the class by one level, or returns None for leaves. Exceptions propagate."""
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
    type(None): lambda node, keys: Level([], None),
}

# A bare `PyTreeDef` as a tree with a placeholder for every leaf

# (class, auxiliary data) -> JAX's keys of the children, or None for classes that it does not know.
ChildKeys = Callable[[type, Any], Sequence[Any] | None]
_child_keys: list[ChildKeys] = []


def knows_child_keys(function: ChildKeys) -> ChildKeys:
    """Register a function that returns JAX's keys of the children of a library's nodes in a bare treedef."""
    _child_keys.append(function)
    return function


def is_treedef(tree: Any) -> bool:
    return jax_is_imported() and type(tree) is jax.tree_util.PyTreeDef


def treedef_level(treedef: Any, keys: KeyTable) -> Level | None:
    """The children of a treedef, or None for a leaf."""
    data = treedef.node_data()
    if data is None:
        return None
    children = treedef.children()
    return Level(children, _key_codes(data, len(children), keys), data)


def _key_codes(data: tuple[type, Any], n_children: int, keys: KeyTable) -> list[int] | None:
    cls, aux = data
    if is_any(cls, (list, tuple)):
        return None
    if is_any(cls, (dict, OrderedDict)):
        return keys.mapping([(key, None) for key in aux])
    if cls is defaultdict:
        return keys.mapping([(key, None) for key in aux[1]])
    child_keys = _keys_of(cls, aux, n_children)
    codes = [_code(keys, key, i) for i, key in enumerate(islice(child_keys, keys.room))]
    return codes + [0] * (n_children - len(codes))


def _keys_of(cls: type, aux: Any, n_children: int) -> Iterable[Any]:
    """JAX's keys of the children; flat indices if unknown, since a treedef has no keys of registered classes."""
    for find_keys in (_named_tuple_keys, *_child_keys):
        child_keys = guarded(lambda function=find_keys: function(cls, aux), lambda _: None)
        if child_keys is not None and len(child_keys) == n_children:
            return child_keys
    return map(jax.tree_util.FlattenedIndexKey, range(n_children))


def _named_tuple_keys(cls: type, aux: Any) -> Sequence[Any] | None:
    """The fields of a named tuple, unless it was registered by hand with other children."""
    if aux is not None or not has_base(cls, tuple) or not hasattr(cls, "_fields"):
        return None
    # The treedef does not say which, so an instance with an object in every field is flattened.
    pairs, _ = one_level(tuple.__new__(cls, [object() for _ in cls._fields]))  # type: ignore[attr-defined]
    return [path[0] for path, _ in pairs]


def _code(keys: KeyTable, key: Any, position: int) -> int:
    if type(key) is jax.tree_util.DictKey:
        return keys.mapping([(key.key, None)])[0]
    if type(key) is jax.tree_util.GetAttrKey:
        name = visible(key.name)
        return keys.code(Key(f".{label_text(name)}", f".{name}", name, (f".{name}",)))
    return keys.code(Key(f"<{position}>", f"[<flat index {position}>]", str(position), (position,)))
