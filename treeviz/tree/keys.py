"""Keys and key paths as text. They are labels, not identities."""

from __future__ import annotations

import ast
import enum
import keyword
import types
import unicodedata
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.tree.text import LABEL_LIMIT, class_name, guarded, has_base, mro, plain_repr, value_text, visible

# The stored attributes of a node that are its children, by identity

_MAX_ATTRIBUTES = 1000
# Equal objects of these classes may be one object, so identity proves nothing.
_INTERNED = (type(None), bool, int, str, bytes, type, enum.Enum, np.dtype, type(Ellipsis), type(NotImplemented))
MISSING = object()
# Slots and fields of named tuples; a metaclass may override ==
_FIELDS = set(map(id, (types.MemberDescriptorType, type(namedtuple("_", "field").field))))  # type: ignore[attr-defined]


def is_interned(cls: type) -> bool:
    """Whether equal objects of the class may be one object, though nobody shares them on purpose."""
    return has_base(cls, *_INTERNED)


def attribute_names(node: Any, children: Sequence[Any]) -> list[str]:
    """The name of the attribute that holds each child, or "" if uncertain.

    If several attributes hold a child, the name of the only public one.
    """
    names: dict[int, list[str]] = {}
    for name, value in stored_items(node).items():
        names.setdefault(id(value), []).append(name)
    return [
        _only_name(node, names[id(child)]) if id(child) in names and not is_interned(type(child)) else ""
        for child in children
    ]


def stored_items(node: Any) -> dict[str, Any]:
    """The first stored attributes, slots and named tuple fields. Runs no code of the class."""
    items = islice(stored_attributes(node).copy().items(), _MAX_ATTRIBUTES)
    values = {name: value for name, value in items if type(name) is str}
    for base in mro(type(node)):
        for name, descriptor in list(type.__dict__["__dict__"].__get__(base).items()):
            if id(type(descriptor)) in _FIELDS and name not in values:
                values[name] = guarded(lambda descriptor=descriptor: descriptor.__get__(node), lambda _: MISSING)
    return values


def _only_name(node: Any, names: list[str]) -> str:
    public = [name for name in names if not name.startswith("_")] if len(names) > 1 else names
    if len(public) != 1 or any(has_base(type(base.__dict__.get(public[0])), property) for base in mro(type(node))):
        return ""
    return public[0]


def stored_attributes(node: Any) -> dict[str, Any]:
    """The `__dict__` of an object; slots are not included."""
    try:
        stored = object.__getattribute__(node, "__dict__")
    except KeyboardInterrupt:
        raise
    except BaseException:  # missing, or shadowed by a property
        return {}
    return stored if type(stored) is dict else {}


def stored_attribute(node: Any, name: str) -> Any:
    """The value of a stored attribute: an instance attribute, a slot or a named tuple field. MISSING if there is none.

    Never runs a property or a `__getattr__`.
    """
    value = stored_attributes(node).get(name, MISSING)
    if value is not MISSING:
        return value
    for cls in mro(type(node)):
        descriptor: Any = cls.__dict__.get(name)
        if id(type(descriptor)) in _FIELDS:
            return guarded(lambda descriptor=descriptor: descriptor.__get__(node), lambda _: MISSING)
    return MISSING


KEYSTR_LIMIT = 10_000  # characters
_WIDE, _MOST_ORDERS = 64, 1_000  # keys of a dict whose order is kept, and the number of kept orders
_FEW = 1_000  # children of a registered class that always get keys, which show which fields are static
_LITERALS = {id(cls) for cls in (int, bool, float, bytes, tuple, type(None))}  # a metaclass may override ==
_BLANKS = " \u115f\u1160\u2800\u3164\uffa0"  # blank, but printable


class Key(NamedTuple):
    """One step of a key path.

    Attributes:
      label: The text in the tree: "kernel", ".mu", "[3]".
      keystr: The text that `jax.tree_util.keystr` writes: "['kernel']", ".mu", "[3]". Unprintable characters are
        escaped, addresses of objects omitted, and the text is cut after 10,000 characters.
      segment: The text that a query's glob matches: "kernel", "mu", "3".
      steps: The Python that gets the child from the node. A string is appended to the node's expression; a
        number n means `treeviz.child(node, n)`, if Python has no syntax for the step. A pair of both: the string
        returns a dict in a wrapper, and any other child as it is.
    """

    label: str
    keystr: str
    segment: str
    steps: tuple[str | int | tuple[str, int], ...]

    def into(self, inner: Key) -> Key:
        """The key of what is at `inner` in the box at this key."""
        return self._replace(keystr=self.keystr + inner.keystr, steps=self.steps + inner.steps)


_new_key = partial(tuple.__new__, Key)  # twice as fast as `Key`


def index_key(position: int) -> Key:
    """The key of the element at `position` of a list or tuple."""
    text = f"[{position}]"
    return _new_key((text, text, str(position), (text,)))


def python_expression(name: str, path: Iterable[Key], *, is_dict: bool = False) -> str:
    """Python that evaluates to the node at `path` of the tree `name`.

    Args:
      is_dict: The node is or may be a dict, which some mappings return in a wrapper.
    """
    expression = name
    for key in path:
        for step in key.steps:
            if isinstance(step, tuple):
                step = step[is_dict]
            expression = expression + step if isinstance(step, str) else f"treeviz.child({expression}, {step})"
    return expression


# A function that puts a dict's values into JAX's order, the codes of its keys, and the keys, so that no id is reused.
Order = tuple[Callable[[list], tuple], list[int], list[Any]]


class KeyTable:
    """The distinct keys of one walk, each with a code. Code 0 is the index in a list or tuple.

    Args:
      room: The number of keys of a node that get a code, since the walk shows no more; the others have 0.
    """

    def __init__(self, room: int = 2**31) -> None:
        self.room = room
        self.keys: list[Key] = [Key("[…]", "[…]", "*", ())]
        self._codes: dict[Key, int] = {}
        self._plain: dict[str | int, int] = {}
        self._attributes: dict[str, int] = {}  # the codes of attributes that hold the child
        self.orders: dict[tuple[int, ...], Order] = {}  # by the ids of a dict's keys, in insertion order
        self._flat_indices: dict[tuple[str, str], int] = {}  # by JAX's key and the attribute

    def code(self, key: Key) -> int:
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self.keys)
            self.keys.append(key)
        return code

    def mapping(self, items: list[tuple[Any, Any]]) -> list[int]:
        """The codes of a dict's keys."""
        known = self._plain.get
        shown = items if len(items) <= self.room else items[: self.room]
        # Other types of keys are not looked up, since their hash may run user code.
        codes = [known(key, 0) if type(key) is str or type(key) is int else 0 for key, _ in shown]
        if 0 in codes:
            codes = [code or self._mapping_code(items[i][0], i) for i, code in enumerate(codes)]
        return codes if shown is items else codes + [0] * (len(items) - self.room)

    def remember(self, key_ids: tuple[int, ...], in_order: list[Any], codes: list[int]) -> None:
        """Keep the order and codes of a dict's keys, which the dicts of all layers of a model share."""
        is_kept = 1 < len(codes) <= min(_WIDE, self.room) and len(self.orders) < _MOST_ORDERS
        if is_kept and {*map(id, in_order)} == {*key_ids} and {*map(id, map(type, in_order))} <= {id(str), id(int)}:
            self.orders[key_ids] = itemgetter(*[key_ids.index(id(key)) for key in in_order]), codes.copy(), in_order

    def single(self, key: Any) -> int:
        """The code of the only key of a dict, in half the time of `mapping`."""
        code = self._plain.get(key) if type(key) is str or type(key) is int else None
        return code or self._mapping_code(key, 0)

    def customs(self, node: Any, pairs: Sequence[tuple[Any, Any]]) -> list[int]:
        """The codes of the keys that a registered class returns for the children of a node."""
        shown = pairs[: max(self.room, _FEW)]
        codes = self.attributes(stored_attributes(node), shown)
        if 0 in codes:
            of_index = [type(key) is jax.tree_util.FlattenedIndexKey for key, _ in shown]
            aliases = attribute_names(node, [below for _, below in shown]) if any(of_index) else []
            for i, (key, kid) in enumerate(shown):
                if of_index[i]:
                    codes[i] = self._flat_index_code(key, aliases[i], i)
                elif not codes[i]:
                    codes[i] = self.custom(key, node, kid, i)
        return codes + [0] * (len(pairs) - len(codes))

    def attributes(self, stored: dict[str, Any], pairs: Sequence[tuple[Any, Any]]) -> list[int]:
        """The code of each key that is the known name of a stored attribute that holds the child; 0 for others."""
        known, attribute = self._attributes, jax.tree_util.GetAttrKey
        return [
            known.get(name, 0)
            if type(key) is attribute and type(name := key.name) is str and stored.get(name, MISSING) is kid
            else 0
            for key, kid in pairs
        ]

    def custom(self, key: Any, node: Any, child: Any, position: int) -> int:
        """The code of the key that a registered class returns for its child at `position`."""
        cls = type(key)
        if cls is jax.tree_util.GetAttrKey:
            return self._attribute_code(key.name, node, child, position)
        if cls is jax.tree_util.DictKey:
            return self.code(_mapping_key(key.key, position)._replace(steps=(position,)))
        text = _key_text(key)
        segment = str(position) if cls is jax.tree_util.SequenceKey else visible(text).strip("[]'\".")
        return self.code(Key(label_text(text), text, segment, (position,)))

    def _flat_index_code(self, key: Any, alias: str, position: int) -> int:
        """The code of a child registered without a key, with the name of its attribute in the label."""
        text = str(key) if type(key.key) is not int or key.key != position else f"[<flat index {position}>]"
        code = self._flat_indices.get((text, alias))
        if code is None:
            label, step = (f".{visible(alias)} = {text}", f".{alias}") if _is_name(alias) else (text, position)
            code = self._flat_indices[text, alias] = self.code(Key(label, text, str(position), (step,)))
        return code

    def _attribute_code(self, name: Any, node: Any, child: Any, position: int) -> int:
        known = self._attributes.get(name) if type(name) is str else None
        if known is not None and stored_attribute(node, name) is child:
            return known
        key = _attribute_key(name, node, child, position)
        code = self.code(key)
        if type(name) is str and key.steps != (position,):
            self._attributes[name] = code
        return code

    def _mapping_code(self, key: Any, position: int) -> int:
        made = _mapping_key(key, position)
        if made.steps == (position,) or not (type(key) is str or type(key) is int):
            return self.code(made)
        code = self._plain[key] = len(self.keys)
        self.keys.append(made)
        return code


def keystr(path: Iterable[Any]) -> str:
    """What `jax.tree_util.keystr` returns, with the keys as `Key.keystr` has them: printable, and it never raises."""
    return "".join(map(_key_text, path))


def _key_text(key: Any) -> str:
    """A key of JAX in a key path."""
    cls = type(key)
    if cls is jax.tree_util.DictKey:
        return _mapping_key(key.key, 0).keystr
    if cls is jax.tree_util.GetAttrKey:
        return f".{visible(_attribute_name(key.name), KEYSTR_LIMIT)}"
    return guarded(
        lambda: visible(str(key), KEYSTR_LIMIT), lambda error: f"<a key whose str raised {class_name(type(error))}>"
    )


def label_text(text: str) -> str:
    """A name as the tree shows it, in quotes if it is empty or starts or ends with a blank."""
    return _quoted(visible(text))


def _quoted(label: str) -> str:
    return label if label and label[0] not in _BLANKS and label[-1] not in _BLANKS else f"'{label}'"


@lru_cache(maxsize=4096)  # the trees of one process have few distinct names
def _name_key(name: str) -> Key:
    """The key of a short text in a dict."""
    keystr, segment = f"[{name!r}]", visible(name)
    return Key(_quoted(segment), keystr, segment, (keystr,))


@lru_cache(maxsize=4096)
def _stored_key(name: str) -> Key:
    """The key of an attribute that holds the child."""
    return Key(f".{label_text(name)}", f".{visible(name, KEYSTR_LIMIT)}", visible(name), (f".{name}",))


def _mapping_key(key: Any, position: int) -> Key:
    if type(key) is str and len(key) <= LABEL_LIMIT:
        return _name_key(key)
    if type(key) is int and _is_short(key):
        label, keystr = str(key), f"[{key}]"
        return Key(label, keystr, label, (keystr,))
    text = guarded(lambda: plain_repr(key, KEYSTR_LIMIT), lambda _: value_text(key, LABEL_LIMIT))
    label = label_text(key if type(key) is str else text)
    keystr = f"[{text}]"
    return Key(label, keystr, label, (keystr,) if _is_pasteable(key, text) else (position,))


def _is_short(number: int) -> bool:
    return -(10**20) < number < 10**20


def _is_pasteable(key: Any, text: str) -> bool:
    if len(text) > LABEL_LIMIT or id(type(key)) not in _LITERALS:
        return False
    return guarded(lambda: bool(ast.literal_eval(text) == key), lambda _: False)


def _attribute_key(name: Any, node: Any, child: Any, position: int) -> Key:
    name = _attribute_name(name)
    key = _stored_key(name) if len(name) <= LABEL_LIMIT else _stored_key.__wrapped__(name)
    return key if _is_name(name) and stored_attribute(node, name) is child else key._replace(steps=(position,))


def _attribute_name(name: Any) -> str:
    return str.__str__(name) if has_base(type(name), str) else value_text(name)


def _is_name(text: str) -> bool:
    """Whether `node.text` is valid Python for the attribute of that name."""
    if not text.isidentifier() or keyword.iskeyword(text):
        return False
    return text.isascii() or unicodedata.normalize("NFKC", text) == text
