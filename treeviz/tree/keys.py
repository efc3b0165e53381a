"""Keys and key paths: what people read, copy and paste. Labels, never identities."""

from __future__ import annotations

import ast
import keyword
import types
import unicodedata
from collections import namedtuple
from collections.abc import Iterable
from typing import Any, NamedTuple

from jax import tree_util

from treeviz.tree.quote import LABEL_LIMIT, guarded, mro, plain_repr, value_text, visible


class Key(NamedTuple):
    """One step of a key path.

    Attributes:
      label: What stands in the tree: "kernel", ".mu", "[3]".
      keystr: What `jax.tree_util.keystr` writes for it: "['kernel']", ".mu", "[3]".
      segment: What a query's glob sees: "kernel", "mu", "3".
      steps: How Python gets there. A string is put behind the expression of the node; a number n means
        `treeviz.child(node, n)`, for nodes that have no notation of their own.
    """

    label: str
    keystr: str
    segment: str
    steps: tuple[str | int, ...]


def index_key(position: int) -> Key:
    """The key of the element at `position` of a list or tuple."""
    text = f"[{position}]"
    return Key(text, text, str(position), (text,))


def python_expression(name: str, path: Iterable[Key]) -> str:
    """Python that goes from the tree called `name` along `path`."""
    expression = name
    for key in path:
        for step in key.steps:
            expression = expression + step if isinstance(step, str) else f"treeviz.child({expression}, {step})"
    return expression


class KeyTable:
    """The different keys of one walk, each with a code. Code 0 is the index in a list or tuple."""

    def __init__(self) -> None:
        self.keys: list[Key] = [Key("[…]", "[…]", "*", ())]
        self._codes: dict[Key, int] = {}
        self._plain: dict[str | int, int] = {}
        self._attributes: dict[str, int] = {}  # of names by which Python finds the child

    def code(self, key: Key) -> int:
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self.keys)
            self.keys.append(key)
        return code

    def mapping(self, items: list[tuple[Any, Any]]) -> list[int]:
        """The codes of a dict's keys."""
        known = self._plain.get
        # no other key is looked up at once: its hash may be somebody's code
        codes = [known(key, 0) if type(key) is str or type(key) is int else 0 for key, _ in items]
        if 0 in codes:
            codes = [code or self._mapping_code(items[i][0], i) for i, code in enumerate(codes)]
        return codes

    def customs(self, node: Any, pairs: Iterable[tuple[Any, Any]]) -> list[int]:
        """The codes of the keys that a registered class gave to the children of its node."""
        known, stored, codes = self._attributes, stored_attributes(node), []
        for key, kid in pairs:
            name = key.name if type(key) is tree_util.GetAttrKey else None
            if type(name) is str and name in known and stored.get(name, MISSING) is kid:
                codes.append(known[name])
            else:
                codes.append(self.custom(key, node, kid, len(codes)))
        return codes

    def custom(self, key: Any, node: Any, child: Any, position: int) -> int:
        """The code of a key that a registered class gave to its child at `position`."""
        cls = type(key)
        if cls is tree_util.GetAttrKey:
            return self._attribute_code(key.name, node, child, position)
        if cls is tree_util.DictKey:
            return self.code(_mapping_key(key.key, position)._replace(steps=(position,)))
        text = guarded(lambda: visible(str(key)), lambda error: f"<a key whose str raised {type(error).__name__}>")
        segment = str(position) if cls in (tree_util.SequenceKey, tree_util.FlattenedIndexKey) else text.strip("[]'\".")
        return self.code(Key(text, text, segment, (position,)))

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
        if not ((type(key) is str and len(key) <= LABEL_LIMIT) or (type(key) is int and _is_short(key))):
            return self.code(_mapping_key(key, position))
        code = self._plain[key] = len(self.keys)
        self.keys.append(_mapping_key(key, position))
        return code


def _mapping_key(key: Any, position: int) -> Key:
    if type(key) is str and len(key) <= LABEL_LIMIT:
        keystr = f"[{key!r}]"
        label = visible(key)
        return Key(label, keystr, label, (keystr,))
    if type(key) is int and _is_short(key):
        label, keystr = str(key), f"[{key}]"
        return Key(label, keystr, label, (keystr,))
    if type(key) is str:
        label, text = visible(key), value_text(key)
    else:
        label = text = guarded(lambda: plain_repr(key, LABEL_LIMIT), lambda _: value_text(key, LABEL_LIMIT))
    keystr = f"[{text}]"
    return Key(label, keystr, label, (keystr,) if _is_pasteable(key, text) else (position,))


def _is_short(number: int) -> bool:
    return -(10**20) < number < 10**20


def _is_pasteable(key: Any, text: str) -> bool:
    if type(key) not in (int, bool, float, bytes, tuple, type(None)):
        return False
    return guarded(lambda: bool(ast.literal_eval(text) == key), lambda _: False)


def _attribute_key(name: Any, node: Any, child: Any, position: int) -> Key:
    name = str.__str__(name) if isinstance(name, str) else value_text(name)
    label = visible(name)
    attribute = _is_name(name) and stored_attribute(node, name) is child
    return Key(f".{label}", f".{label}", label, (f".{name}",) if attribute else (position,))


def _is_name(text: str) -> bool:
    """Whether Python reads `node.text` as the attribute of that name."""
    if not text.isidentifier() or keyword.iskeyword(text):
        return False
    return text.isascii() or unicodedata.normalize("NFKC", text) == text


MISSING = object()
_TUPLE_FIELD = type(namedtuple("_", "field").field)  # type: ignore[attr-defined]


def stored_attributes(node: Any) -> dict[str, Any]:
    """What is stored in the object by name, without its slots."""
    try:
        stored = object.__getattribute__(node, "__dict__")
    except KeyboardInterrupt:
        raise
    except BaseException:  # no such thing, or a property of that name
        return {}
    return stored if type(stored) is dict else {}


def stored_attribute(node: Any, name: str) -> Any:
    """What `node.name` holds if it is stored (an instance attribute, a slot, a named tuple's field).

    Never runs a property or a `__getattr__`; MISSING if there is no such thing.
    """
    found = stored_attributes(node).get(name, MISSING)
    if found is not MISSING:
        return found
    for cls in mro(type(node)):
        descriptor: Any = cls.__dict__.get(name)
        if type(descriptor) in (types.MemberDescriptorType, _TUPLE_FIELD):
            return guarded(lambda descriptor=descriptor: descriptor.__get__(node), lambda _: MISSING)
    return MISSING
