"""Bounded, printable text of values, names and numbers. Code of user-defined classes runs only under a guard."""

from __future__ import annotations

import array
import enum
import functools
import math
import operator
import re
import types
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

LABEL_LIMIT = 200  # characters of a name
VALUE_LIMIT = 120  # characters of a value
_KNOWN_MODULES = ("jax", "jaxlib", "numpy", "ml_dtypes", "datetime", "decimal", "fractions", "pathlib", "re", "uuid")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NEW_LINE = re.compile(r"\s*\n\s*")
_MAX_DEPTH = 3
_MAX_EQUATIONS = 100


def visible(text: str, limit: int = LABEL_LIMIT) -> str:
    """The text with control, bidi and other invisible characters as escapes, cut to `limit` characters."""
    if type(text) is str and len(text) <= limit and text.isprintable():
        return text
    n_characters = str.__len__(text)
    exact = printable(str.__getitem__(text, slice(0, limit)) if n_characters > limit else text)
    return exact if n_characters <= limit else f"{exact}… ({n_characters:,} characters)"


def printable(text: str) -> str:
    """The whole text with such characters as escapes, so that a terminal does not interpret them."""
    exact = str.__str__(text)
    if exact.isprintable():
        return exact
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in exact)


def printable_lines(text: str) -> str:
    """Like `printable`, but keeps line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def class_name(cls: type) -> str:
    """The class's own name; runs no code of its metaclass."""
    return visible(type.__dict__["__qualname__"].__get__(cls).rpartition("<locals>.")[2])


def module_name(cls: type) -> str:
    """The module of the class; "" if `__module__` is not a plain string."""
    module = guarded(functools.partial(type.__dict__["__module__"].__get__, cls), lambda _: None)
    return visible(module) if type(module) is str else ""


def mro(cls: type) -> tuple[type, ...]:
    """The class's bases; runs no code of its metaclass."""
    return type.__dict__["__mro__"].__get__(cls)


def namespace(cls: type) -> Mapping[str, Any]:
    """The class's own namespace, without those of its bases; runs no code of its metaclass."""
    return type.__dict__["__dict__"].__get__(cls)


def class_attribute(cls: type, name: str, otherwise: Any = None) -> Any:
    """The attribute stored in a class or its bases, without binding it; runs no code of its metaclass."""
    return next((namespace(base)[name] for base in mro(cls) if name in namespace(base)), otherwise)


def has_base(cls: type, *classes: type) -> bool:
    """Whether one of `classes` is a base of `cls`, by identity; runs no code of a metaclass."""
    for base in mro(cls):
        for wanted in classes:
            if base is wanted:
                return True
    return False


def is_any(cls: type, classes: Iterable[type]) -> bool:
    """Whether a class is one of `classes`, by identity: `in` would run the `==` and `hash` of its metaclass."""
    return id(cls) in map(id, classes)


def guarded(call: Callable[[], Any], otherwise: Callable[[BaseException], Any]) -> Any:
    """Call user code; if it raises anything but KeyboardInterrupt, return `otherwise(error)`."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return otherwise(error)


def error_text(error: BaseException) -> str:
    """ "ValueError: message", bounded, even if `__str__` raises."""
    name = class_name(type(error))
    message = guarded(lambda: visible(str(error).strip(), 300), lambda _: "(its message cannot be shown)")
    return f"{name}: {message}" if message else name


def dimensions(shape: Any) -> tuple[int, ...]:
    """The shape as ints; symbolic dimensions as text."""

    def dimension(size: Any) -> Any:
        return guarded(lambda: operator.index(size), lambda _: visible(str(size), 40))

    return tuple([size if type(size) is int else dimension(size) for size in shape])


def aval_text(shape: tuple[int, ...], dtype: str, axes: tuple[str, ...] = ()) -> str:
    """ "float32[768,768]"; "float32[batch 2, seq 3]" with names of axes."""
    if axes:
        return f"{dtype}[{', '.join(f'{name} {size}'.strip() for name, size in zip(axes, shape, strict=True))}]"
    return f"{dtype}[{','.join(map(str, shape))}]"


# Returns the text of an object of an unknown class, from the object, a limit of characters and the depth.
OfObject = Callable[[Any, int, int], str]


def value_text(value: Any, limit: int = VALUE_LIMIT, of_object: OfObject | None = None) -> str:
    """A short text of a value: bounded in length and depth, and in time for the builtin types.

    For an unknown class this is only its name, since its `repr` could run forever or fetch the values of an array;
    `of_object` may return more, also inside containers. Addresses are removed, so that every run has the same text.
    """
    text = guarded(
        lambda: inner_text(value, limit, 0, of_object or _name_of),
        lambda error: f"<{qualified_name(type(value))}: {error_text(error)}>",
    )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _name_of(value: Any, limit: int, depth: int) -> str:
    return f"<{qualified_name(type(value))}>"


def inner_text(value: Any, limit: int, depth: int, of_object: OfObject) -> str:
    """`value_text` for a value at a depth inside another one; not guarded."""
    cls = type(value)
    atom = _ATOMS.get(id(cls))
    if atom is not None:
        return atom(value, limit)
    if depth > _MAX_DEPTH:
        return "…"
    if cls is list or cls is tuple or cls is set or cls is frozenset:
        return _items_text(cls, value, limit, depth, of_object)
    if cls is dict:
        pairs = list(islice(value.items(), limit // 3))
        texts = (": ".join([inner_text(part, limit, depth + 1, of_object) for part in pair]) for pair in pairs)
        return bracket("{", texts, len(value), "}", limit)
    if has_base(cls, type):
        return qualified_name(value)
    if has_base(cls, np.dtype):
        return visible(str(value))
    if has_base(cls, enum.Enum):
        name, number = (object.__getattribute__(value, which) for which in ("_name_", "_value_"))
        # a combination of flags may have no name
        return f"{class_name(cls)}.{visible(name) if name else inner_text(number, limit, depth + 1, of_object)}"
    if cls is slice:
        ends = (value.start, value.stop, value.step)
        return f"slice({', '.join(inner_text(end, limit // 3, depth + 1, of_object) for end in ends)})"
    array_description = array_text(value)
    if array_description is not None:
        return array_description
    if is_function(cls):
        return function_name(value)
    if is_jaxpr(cls) and len(value.eqns) > _MAX_EQUATIONS:  # printing takes time for each equation
        return f"a jaxpr of {len(value.eqns):,} equations"
    is_known = module_name(cls).partition(".")[0] in _KNOWN_MODULES
    return plain_repr(value, limit) if is_known else of_object(value, limit, depth)


def plain_repr(value: Any, limit: int) -> str:
    """`repr(value)` on one line, without addresses, printable and cut. Not guarded: a class's `__repr__` may raise."""
    text = str.__str__(repr(value))
    part = _ADDRESS.sub("", str.__getitem__(text, slice(0, 4 * limit)))
    part = _NEW_LINE.sub(" ", part)
    return visible(part, limit) if len(text) <= 4 * limit else visible(part[: limit - 1], limit) + "…"


def _items_text(cls: type, value: Any, limit: int, depth: int, of_object: OfObject) -> str:
    texts = (inner_text(item, limit, depth + 1, of_object) for item in list(islice(value, limit // 3)))
    n = len(value)
    if cls is list:
        return bracket("[", texts, n, "]", limit)
    if cls is tuple:
        return bracket("(", texts, n, ",)" if n == 1 else ")", limit)
    before, after = ("{", "}") if cls is set else ("frozenset({", "})")
    # a set has no order: sorting makes the text deterministic
    return bracket(before, sorted(texts), n, after, limit) if n else f"{cls.__name__}()"


def bracket(before: str, texts: Iterable[str], n_items: int, after: str, limit: int) -> str:
    """ "[a, b, … 7 more]": as many texts as fit. Does not compute the others."""
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


def _module_text(value: types.ModuleType, limit: int) -> str:
    name = object.__getattribute__(value, "__dict__").get("__name__")
    return f"module {visible(name, 80)}" if type(name) is str else "<module>"


def qualified_name(cls: type) -> str:
    """ "dict", "optax.EmptyState": with the module, unless it is builtins or __main__."""
    module = module_name(cls)
    return class_name(cls) if module in ("builtins", "__main__", "") else f"{module}.{class_name(cls)}"


def function_name(function: Any) -> str:
    """ "relu", "MLP.__call__", "partial(relu, …)"; bounded."""
    function, n_partials = unboxed(function), 0
    while has_base(type(function), functools.partial) and n_partials < 8:
        function = unboxed(functools.partial.func.__get__(function))
        n_partials += 1
    return f"partial({_plain_name(function)}, …)" if n_partials else _plain_name(function)


def step_name(step: Any) -> str:
    """The printable `__name__` of a function, such as a step; without one, the name of its class."""
    name = guarded(lambda: step.__name__, lambda _: None)
    return visible(name, 80) if type(name) is str else class_name(type(step))


_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    functools.partial,
    type(functools.lru_cache(len)),
    np.ufunc,
)
_JAX_WRAPPERS = ("PjitFunction", "custom_jvp", "custom_vjp", "ufunc", "PmapFunction")


def is_function(cls: type) -> bool:
    """Whether instances are functions, methods, partials, or JAX wrappers: `jax.jit(f)`, `jax.custom_jvp(f)`."""
    return has_base(cls, *_FUNCTIONS) or any(
        class_name(base) in _JAX_WRAPPERS and "jax" in module_name(base) for base in mro(cls)
    )


def is_jaxpr(cls: type) -> bool:
    return class_name(cls) in ("Jaxpr", "ClosedJaxpr") and module_name(cls).startswith("jax")


def unboxed(function: Any) -> Any:
    """The partial inside the box that `jax.tree_util.Partial` puts it in; any other object unchanged."""
    if class_name(type(function)) != "_HashableCallableShim":
        return function
    return guarded(lambda: object.__getattribute__(function, "__dict__")["fun"], lambda _: function)


def _plain_name(function: Any) -> str:
    if type(function) is types.MethodType:
        return f"{class_name(type(function.__self__))}.{function_name(function.__func__).rpartition('.')[2]}"
    for name in ("__qualname__", "__name__"):
        text = guarded(lambda name=name: getattr(function, name, None), lambda _: None)
        if type(text) is str:
            return visible(text.replace("<locals>.", ""), 80)
    return f"<{qualified_name(type(function))}>"


def array_text(value: Any) -> str | None:
    """ "float32[3,4]" for JAX and NumPy objects with a shape and a dtype, else None."""
    module = module_name(type(value)).partition(".")[0]
    if has_base(type(value), np.ndarray):
        return aval_text(np.ndarray.shape.__get__(value), _dtype_text(np.ndarray.dtype.__get__(value)))
    if module in ("jax", "jaxlib", "torch", "tensorflow"):
        described = guarded(lambda: (tuple(map(int, value.shape)), str(value.dtype)), lambda _: None)
        if described is not None:
            shape, dtype = described
            return aval_text(shape, visible(dtype.removeprefix("torch.").replace("[('float0', 'V')]", "float0"), 40))
    return None


@functools.lru_cache(maxsize=256)
def _dtype_text(dtype: np.dtype) -> str:
    return visible(str(dtype), 40)


def array_bytes(array: Any) -> int:
    """The bytes of a JAX, NumPy or PyTorch array; 0 if unknown."""
    if has_base(type(array), np.ndarray):
        return np.ndarray.nbytes.__get__(array)
    n_bytes = guarded(lambda: array.nbytes, lambda _: 0)
    return n_bytes if type(n_bytes) is int and n_bytes > 0 else 0


_ATOMS: Mapping[int, Callable[[Any, int], str]] = {
    id(str): _string_text,
    id(bytes): _bytes_text,
    id(bytearray): _bytes_text,
    # str(int) is quadratic, and refused above 4,300 digits
    id(int): lambda value, limit: str(value) if (n := value.bit_length()) <= 400 else f"<int of {n:,} bits>",
    **{
        id(cls): lambda value, limit: repr(value)
        for cls in (bool, float, complex, range, type(None), type(Ellipsis), type(NotImplemented))
    },
    id(memoryview): lambda value, limit: f"{value.nbytes:,} bytes",
    id(array.array): lambda value, limit: f"{len(value):,} × {value.typecode!r}",
    id(types.CodeType): lambda value, limit: visible(value.co_qualname),
    id(types.ModuleType): _module_text,
    **{
        id(cls): lambda value, limit: visible(value.__qualname__.replace("<locals>.", ""), 80)
        for cls in (types.GeneratorType, types.CoroutineType)
    },
    **{
        id(cls): lambda function, limit: function_name(function)
        for cls in (types.FunctionType, types.BuiltinFunctionType, np.ufunc)
    },
}

# Numbers. The front end formats them in the same way.

_COUNT_UNITS = ("K", "M", "B", "T", "P", "E")
_BYTES_UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


_LARGEST = 1e24  # written with a unit


@functools.lru_cache(maxsize=4096)  # layers have the same sizes
def count_text(n: float) -> str:
    """ "1,234", "124.4 M": exact below 100,000, one decimal above; "1e308", "inf"."""
    if not abs(n) < _LARGEST:
        return number_text(n)
    n = int(n)
    return f"{n:,}" if abs(n) < 100_000 else _scaled(n, _COUNT_UNITS)


@functools.lru_cache(maxsize=4096)
def bytes_text(n: float) -> str:
    """ "512 B", "497.8 MB": a kB is 1000 bytes."""
    if not abs(n) < _LARGEST:
        return f"{number_text(n)} B"
    n = int(n)
    return f"{n} B" if abs(n) < 1000 else _scaled(n, _BYTES_UNITS)


def number_text(x: float) -> str:
    """Four significant digits: "0.02", "-1.234e-5", "12346", "1.235e6"."""
    x = float(x)
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    if 9999.5 <= abs(x) < 999_999.5:
        return f"{x:.0f}"
    digits, _, exponent = f"{x:.4g}".partition("e")
    if not exponent:
        return "0" if digits == "-0" else digits
    return f"{digits}e{int(exponent)}"


def counted(n: int, noun: str, plural: str = "") -> str:
    """ "1 leaf", "1,024 leaves"; the plural of a regular noun ends in s."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def percent_text(part: float, whole: float) -> str:
    """ "31 %", "<1 %"; "" if either is 0 or not finite."""
    if not part or not whole or not math.isfinite(part) or not math.isfinite(whole):
        return ""
    share = 100 * part / whole
    return "<1 %" if share < 1 else f"{math.floor(share + 0.5)} %"


def _scaled(n: int, units: tuple[str, ...]) -> str:
    """One decimal in the largest unit that keeps the number at least 1; halves round up."""
    sign, n = ("-", -n) if n < 0 else ("", n)
    for i, unit in enumerate(units):
        scale = 1000 ** (i + 1)
        tenths = (10 * n + scale // 2) // scale
        if tenths < 10_000 or i == len(units) - 1:
            return f"{sign}{tenths // 10}.{tenths % 10} {unit}"
    raise AssertionError("units is never empty")
