"""Make any value and any name readable: bounded, printable, and never trusting the object's own code."""

from __future__ import annotations

import enum
import functools
import operator
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

LABEL_LIMIT = 200  # characters of a name
VALUE_LIMIT = 120  # characters of a value
_KNOWN_MODULES = ("jax", "jaxlib", "numpy", "ml_dtypes", "datetime", "decimal", "fractions", "pathlib", "re", "uuid")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def visible(text: str, limit: int = LABEL_LIMIT) -> str:
    """The text with control, bidi and other invisible characters as escapes, cut to `limit` characters."""
    if type(text) is str and len(text) <= limit and text.isprintable():
        return text
    n_characters = str.__len__(text)
    exact = str.__getitem__(text, slice(0, limit)) if n_characters > limit else str.__str__(text)
    if not exact.isprintable():
        exact = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in exact)
    return exact if n_characters <= limit else f"{exact}… ({n_characters:,} characters)"


def class_name(cls: type) -> str:
    """The class's own name, without asking its metaclass."""
    return visible(type.__dict__["__qualname__"].__get__(cls).rpartition("<locals>.")[2])


def module_name(cls: type) -> str:
    """The module of the class, "" if it does not say so in a plain string."""
    module = guarded(lambda: type.__dict__["__module__"].__get__(cls), lambda _: None)
    return visible(module) if type(module) is str else ""


def mro(cls: type) -> tuple[type, ...]:
    """The class's bases, without asking its metaclass."""
    return type.__dict__["__mro__"].__get__(cls)


def has_base(cls: type, *classes: type) -> bool:
    """Whether one of `classes` is a base of `cls`, by identity: no metaclass is asked."""
    for base in mro(cls):
        for wanted in classes:
            if base is wanted:
                return True
    return False


def guarded(call: Callable[[], Any], otherwise: Callable[[BaseException], Any]) -> Any:
    """Run somebody else's code: whatever it raises, apart from ctrl-C, becomes a value."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return otherwise(error)


def error_text(error: BaseException) -> str:
    """ "ValueError: what it says", bounded, also if its `__str__` raises."""
    name = class_name(type(error))
    message = guarded(lambda: visible(str(error).strip(), 300), lambda _: "(its message cannot be shown)")
    return f"{name}: {message}" if message else name


def dimensions(shape: Any) -> tuple[int, ...]:
    """The shape as whole numbers, a symbolic dimension as its text: such a size is not known yet."""
    return tuple(size if type(size) is int else _dimension(size) for size in shape)


def _dimension(size: Any) -> Any:
    return guarded(lambda: operator.index(size), lambda _: visible(str(size), 40))


def aval_text(shape: tuple[int, ...], dtype: str) -> str:
    """ "float32[768,768]"."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def value_text(value: Any, limit: int = VALUE_LIMIT) -> str:
    """What a value looks like: bounded in length, depth and time for the builtin types.

    Of a class that is not known here only the name is given: its `repr` could run for ever, or fetch
    the values of an array. Addresses are taken out, so that the text is the same in every run.
    """
    text = guarded(
        lambda: _value_text(value, limit, depth=0),
        lambda error: f"<{qualified_name(type(value))}: {error_text(error)}>",
    )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _value_text(value: Any, limit: int, depth: int) -> str:
    cls = type(value)
    atom = _ATOMS.get(id(cls))
    if atom is not None:
        return atom(value, limit)
    if cls is list or cls is tuple or cls is set or cls is frozenset:
        return _items_text(cls, list(value), limit, depth)
    if cls is dict:
        pairs = [(k, v) for k, v in list(value.items())[: limit // 3]]
        texts = [f"{_inner(k, limit, depth)}: {_inner(v, limit, depth)}" for k, v in pairs]
        return _bracket("{", texts, len(value), "}", limit)
    if has_base(cls, type):
        return qualified_name(value)
    if has_base(cls, np.dtype):
        return visible(str(value))
    if has_base(cls, enum.Enum):
        name, number = (object.__getattribute__(value, which) for which in ("_name_", "_value_"))
        # a combination of flags may have no name
        return f"{class_name(cls)}.{visible(name) if name else _inner(number, limit, depth)}"
    array = array_text(value)
    if array is not None:
        return array
    if cls is types.MethodType or cls is functools.partial:
        return function_name(value)
    known = module_name(cls).partition(".")[0] in _KNOWN_MODULES
    return plain_repr(value, limit) if known else f"<{qualified_name(cls)}>"


def plain_repr(value: Any, limit: int) -> str:
    """`repr(value)` without addresses, printable and cut. Unguarded: a class's `__repr__` may raise."""
    return visible(_ADDRESS.sub("", str.__str__(repr(value))), limit)


def _inner(value: Any, limit: int, depth: int) -> str:
    return "…" if depth >= 3 else _value_text(value, limit, depth + 1)


def _items_text(cls: type, items: list, limit: int, depth: int) -> str:
    texts = [_inner(item, limit, depth) for item in items[: limit // 3]]
    if cls is list:
        return _bracket("[", texts, len(items), "]", limit)
    if cls is tuple:
        return _bracket("(", texts, len(items), ",)" if len(items) == 1 else ")", limit)
    texts.sort()  # a set has no order: the text of two runs is to be the same
    before, after = ("{", "}") if cls is set else ("frozenset({", "})")
    return _bracket(before, texts, len(items), after, limit) if items else f"{cls.__name__}()"


def _bracket(before: str, texts: list[str], n_items: int, after: str, limit: int) -> str:
    shown, n_characters = [], 0
    for text in texts:
        n_characters += len(text) + 2
        if shown and n_characters > limit - 16:
            break
        shown.append(text)
    if len(shown) < n_items:
        shown.append(f"… {n_items - len(shown):,} more")
        after = after.replace(",", "")
    return before + ", ".join(shown) + after


def _string_text(value: str, limit: int) -> str:
    if len(value) <= limit:
        return repr(value)
    return f"{value[:limit]!r}… ({len(value):,} characters)"


def _bytes_text(value: bytes | bytearray, limit: int) -> str:
    return repr(value) if len(value) <= limit else f"{value[: limit // 2]!r}… ({len(value):,} bytes)"


def _int_text(value: int, limit: int) -> str:
    # int() to text is quadratic, and refused above 4,300 digits
    return str(value) if value.bit_length() <= 400 else f"<int of {value.bit_length():,} bits>"


def _repr(value: Any, limit: int) -> str:
    return repr(value)


def qualified_name(cls: type) -> str:
    """ "dict", "optax.EmptyState": with the module, unless that says nothing."""
    module = module_name(cls)
    return class_name(cls) if module in ("builtins", "__main__", "") else f"{module}.{class_name(cls)}"


def function_name(function: Any) -> str:
    """ "relu", "MLP.__call__", "partial(relu, …)"; bounded."""
    if type(function) is functools.partial:
        return f"partial({function_name(function.func)}, …)"
    if type(function) is types.MethodType:
        return f"{class_name(type(function.__self__))}.{function_name(function.__func__).rpartition('.')[2]}"
    for name in ("__qualname__", "__name__"):
        text = guarded(lambda name=name: getattr(function, name, None), lambda _: None)
        if type(text) is str:
            return visible(text.replace("<locals>.", ""), 80)
    return f"<{qualified_name(type(function))}>"


def array_text(value: Any) -> str | None:
    """ "float32[3,4]" for anything of JAX or NumPy that has a shape and a dtype, else None."""
    module = module_name(type(value)).partition(".")[0]
    if has_base(type(value), np.ndarray) or module in ("jax", "jaxlib", "torch", "tensorflow"):
        found = guarded(lambda: (tuple(map(int, value.shape)), str(value.dtype)), lambda _: None)
        if found is not None:
            return aval_text(found[0], visible(found[1].removeprefix("torch."), 40))
    return None


_ATOMS: Mapping[int, Callable[[Any, int], str]] = {
    id(str): _string_text,
    id(bytes): _bytes_text,
    id(bytearray): _bytes_text,
    id(int): _int_text,
    **{id(cls): _repr for cls in (bool, float, complex, type(None), type(Ellipsis), type(NotImplemented))},
    **{
        id(cls): lambda function, limit: function_name(function)
        for cls in (types.FunctionType, types.BuiltinFunctionType, np.ufunc)
    },
}
