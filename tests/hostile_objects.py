"""Objects, names and values that break tools which trust them."""

from __future__ import annotations

import enum
import re
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

from jax import tree_util
from sample_nodes import Keyed, Node, Special, WithAux

EVIL_TEXTS = {
    "script": "</script><script>alert(1)</script>",
    "comment": "<!--<script>]]>-->",
    "markup": "<img src=x onerror=alert(1)>",
    "quotes": "'\"`\\'\"",
    "entities": "&lt;&amp;&#0;&nosuch;",
    "bidi": "safe\u202eevil\u2066\u2069\u200f",
    "control": "\x00\x07\x08\x1b[31mred\x1b[0m\x7f\x85\x9b",
    "newlines": "one\ntwo\r\nthree\u2028four\u2029five\x0b\x0c",
    "surrogate": "lone\ud800\udfff",
    "invisible": "\ufeff\u200b\u00ad\u2060",
    "template": "{{7*7}} ${x} %s {0} {",
    "prototype": "__proto__",
    "empty": "",
    "blank": "  a  b  ",
    "astral": "👩‍👩‍👧‍👦 ﷽ Z͑ͫ̓ͪ̂ͫ̽",
    "path": "a/b.c['d']",
    "long": "long " * 1000,
}


class _Boom(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even the message raises")


def boom(*_args: Any, **_kwargs: Any) -> Any:
    raise _Boom


def _with(**methods: Any) -> Any:
    return type("Hostile", (), methods)()


def _metaclass(**methods: Any) -> Any:
    return type.__new__(type("Meta", (type,), methods), "OfMeta", (), {})()


def _class_of_meta(*bases: type, hash_of: Any = lambda cls: hash(dict)) -> type:
    """A class that cannot be compared with another one."""
    return type.__new__(type("Meta", (type,), {"__eq__": boom, "__hash__": hash_of}), "OfMeta", bases, {})


def _node_of_meta() -> Any:
    cls = _class_of_meta(Node, hash_of=type.__hash__)
    tree_util.register_pytree_node(cls, lambda node: ((node.child,), None), lambda _, kids: cls(*kids))
    return cls(1.0)


def _without_equality(*values: Any) -> list[Any]:
    return [
        type("Unequal", (type(value),), {"__eq__": boom, "__ne__": boom, "__hash__": boom})(value) for value in values
    ]


class _Recursive:
    def __repr__(self) -> str:
        return repr(self)

    __str__ = __hash__ = __len__ = __repr__  # type: ignore[assignment]


class _Lies:
    """Claims to be an array."""

    __class__ = property(lambda self: __import__("numpy").ndarray)  # type: ignore[assignment]
    shape = (10**9, 10**9)
    dtype = "float32"
    nbytes = -1

    def __len__(self) -> int:
        return 2**62

    def __bool__(self) -> bool:
        return "no"  # type: ignore[return-value]

    def __eq__(self, _) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]


class _EndlessList(list):
    def __iter__(self):
        while True:
            yield self


class _SlyString(str):
    """A string whose every method lies."""

    def translate(self, *_):
        return "<script>alert(1)</script>"

    replace = __format__ = __str__ = __repr__ = encode = lower = translate  # type: ignore[assignment]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _):
        return boom()

    def isprintable(self) -> bool:
        return True


class _Slots:
    __slots__ = ("never_set", "x")


class _HtmlReprs:
    def _repr_html_(self) -> str:
        return "<script>alert(1)</script>"

    __html__ = _repr_html_
    _repr_svg_ = _repr_javascript_ = _repr_mimebundle_ = boom


class _HugeRepr:
    def __repr__(self) -> str:
        return "<script>" * 1_000_000


class _AnyAttribute:
    """Has every attribute, and each is callable."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        return self


class _EvilAttributes:
    def __init__(self) -> None:
        vars(self).update({**EVIL_TEXTS, "w\n</script>": [1.0]})
        vars(self).update(dict.fromkeys(EVIL_TEXTS.values(), 1))


class _UnsortableKey:
    def __lt__(self, _) -> bool:
        boom()
        return False

    def __repr__(self) -> str:
        return boom()


class _CollidingKey:
    """Equal to everything, with one hash for all."""

    def __eq__(self, _) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    def __str__(self) -> str:
        return "same"


def _raising_hash() -> Any:
    """A key that has a hash once, for the dict, and then no more."""

    class Key:
        n_left = 1

        def __hash__(self) -> int:
            self.n_left -= 1
            return 1 if self.n_left >= 0 else boom()

        __eq__ = __repr__ = __str__ = boom

    return Key()


class Color(enum.Flag):
    RED = enum.auto()
    GREEN = enum.auto()


def _dead_proxy() -> Any:
    return weakref.proxy(Special(1, 2))


def _evil_class(name: str, leaf: Any) -> Any:
    """A node and an opaque leaf whose class, module and attribute names are `name`."""
    members = {"__module__": name}
    text = name.replace("\x00", "?").encode(errors="replace").decode()  # CPython takes all but these
    node = type(text, (WithAux,), dict(members))
    tree_util.register_pytree_node(node, lambda n: (n.children, (name, {name: name})), lambda _, kids: node(*kids))
    other = type(text, (), dict(members))()
    vars(other)[name] = leaf
    return [node(leaf), other]


def _evil_getattr_key() -> Any:
    def flatten(node: Any):
        names = [tree_util.GetAttrKey(name) for name in EVIL_TEXTS.values()]
        return [(key, 1.0) for key in names], None

    cls = type("EvilKeys", (), {})
    tree_util.register_pytree_with_keys(cls, flatten, lambda _, kids: cls())
    return cls()


def _key_that_raises() -> Any:
    cls = type("KeyRaises", (), {})
    key = type("Key", (), {"__str__": boom, "__repr__": boom, "__eq__": boom, "__hash__": boom})
    tree_util.register_pytree_with_keys(cls, lambda _: ([(key(), 1.0), (key(), 2.0)], None), lambda _, kids: cls())
    return cls()


def _aux_that_raises() -> Any:
    cls = type("AuxRaises", (), {})
    aux = _with(__repr__=boom, __eq__=boom, __hash__=boom, __len__=boom, __bool__=boom, __iter__=boom)
    tree_util.register_pytree_node(cls, lambda _: ((1.0,), aux), lambda _, kids: cls())
    return cls()


HOSTILE: dict[str, Callable[[], Any]] = {
    "evil keys": lambda: dict.fromkeys(EVIL_TEXTS.values(), 1.0),
    "evil strings": lambda: list(EVIL_TEXTS.values()),
    "evil bytes": lambda: [bytes(range(256)), bytearray(b"</script>"), b""],
    "evil class, module and attribute names": lambda: [_evil_class(n, 1.0) for n in EVIL_TEXTS.values() if n.strip()],
    "evil attribute keys": _evil_getattr_key,
    "evil attributes": _EvilAttributes,
    "evil custom key": lambda: Keyed(1.0, 2.0, {"x": 1}),
    "10 MB strings": lambda: {"k" * 10_000_000: "</script>" * 1_200_000, "b": b"\x00" * 10_000_000},
    "lying string": lambda: {"leaf": _SlyString("<b>"), _SlyString("<i>"): 1.0},
    "raises from every method": lambda: [
        _with(**{name: boom})
        for name in re.findall(
            r"\w+",
            "__repr__ __str__ __eq__ __hash__ __len__ __bool__ __iter__ __getattr__ __getattribute__ __format__ "
            "__dir__ __sizeof__ __reduce__ __call__ __contains__ __getitem__ __array__ __jax_array__ __index__",
        )
    ],
    "raises from __class__": lambda: _with(__class__=property(boom)),
    "raises from properties": lambda: _with(**{n: property(boom) for n in ("shape", "dtype", "nbytes", "__dict__")}),
    "raises from the metaclass's __hash__": lambda: [_metaclass(__hash__=boom), 1.0],
    "raises from the metaclass's __eq__": lambda: [_metaclass(__eq__=boom, __hash__=lambda c: 1), 1.0],
    "raises from the metaclass's __getattribute__": lambda: [_metaclass(__getattribute__=boom), 1.0],
    "raises from the metaclass's __instancecheck__": lambda: [
        _metaclass(__instancecheck__=boom, __subclasscheck__=boom)
    ],
    "classes that cannot be compared": lambda: [
        _class_of_meta(),
        *(_class_of_meta(of)() for of in (object, str, float)),
    ],
    "keys and a node of such classes": lambda: [{_class_of_meta(): 1.0}, {_class_of_meta()(): 1.0}, _node_of_meta()],
    "numbers and texts that cannot be compared": lambda: _without_equality(1, 1.5, float("nan"), "a"),
    "a metaclass as a leaf": lambda: [type(_metaclass(__repr__=boom)), type(type(_metaclass(__repr__=boom)))],
    "recursive repr": _Recursive,
    "claims to be an array": lambda: [_Lies(), _AnyAttribute(), mock.MagicMock(), mock.call, mock.call.a.b(1)],
    "endless iterator": lambda: [_EndlessList([1]), iter(int, 1)],
    "uninitialised slots": _Slots,
    "dead weak reference": lambda: {"proxy": _dead_proxy(), "ref": weakref.ref(Special(1, 2))},
    "its own HTML": _HtmlReprs,
    "huge repr": lambda: [_HugeRepr(), {_HugeRepr(): 1.0}],
    "flags": lambda: [Color.RED | Color.GREEN, Color(0), {Color.GREEN: 1.0}, Color],
    "huge integers": lambda: {"leaf": 10**5000, "in": [-(10**5000)], "key": {10**5000: 1.0, 0: 2.0}},
    "nan keys": lambda: {"two": {float("nan"): 1.0, float("nan"): 2.0}, "one": {float("nan"): 3.0}},
    "unsortable keys": lambda: {"mixed": {1: 1.0, "a": 2.0, None: 3.0}, "raising": {_UnsortableKey(): 1.0, 1: 2.0}},
    "colliding keys": lambda: [{_CollidingKey(): 1.0}, {_CollidingKey(): 2.0}],
    "keys without a hash": lambda: {"a": {_raising_hash(): 1.0}},
    "keys that raise": _key_that_raises,
    "auxiliary data that raises": _aux_that_raises,
    "a node that contains itself": lambda: _cycle(Node()),
}


def _cycle(node: Node) -> Node:
    node.child = node
    return node
