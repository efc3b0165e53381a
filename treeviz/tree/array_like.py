"""Leaves of classes unknown to JAX that have a shape and a dtype: metadata of checkpoints, arrays of other libraries.

Stored attributes are read without running code. A property is code of the user's or of a library's: it is run only in
libraries of arrays, and where its code plainly ends.
"""

from __future__ import annotations

import dis
import functools
import math
import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.keys import MISSING, stored_attribute
from treeviz.tree.safe_repr import class_attribute, guarded, has_base, module_name, mro, namespace, visible

_MAX_AXES = 64
_LIBRARIES = frozenset(
    "jax jaxlib orbax xarray h5py zarr tensorstore keras dask cupy torch tensorflow".split()  # noqa: SIM905
)
_PROTOCOLS = ("__array__", "__jax_array__", "__dlpack__", "__array_interface__", "__cuda_array_interface__")
_DTYPE_NAME = re.compile(r"[A-Za-z_][\w<>]*|[<>|=]?[a-zA-Z]\d*")
_ENDING_CALLS = frozenset(("tuple", "list", "int", "len", "str", "np", "numpy", "jnp"))

Reader = Callable[[Any], Any]


class ArrayLike(NamedTuple):
    """The shape and the dtype that an object says it has.

    Attributes:
      shape: An unknown size is "?".
      n_bytes: 0 if a size or the dtype is unknown.
      gives_values: The class has one of the methods by which arrays give out their values.
    """

    shape: tuple[Any, ...]
    dtype: str
    n_elements: int
    n_bytes: int
    gives_values: bool


def array_like_reader(cls: type) -> Callable[[Any], ArrayLike | None]:
    """A function of the objects of a class; it returns None for one without a shape and a dtype."""
    shape_of, dtype_of = _reader(cls, "shape"), _reader(cls, "dtype")
    gives_values = any(name in namespace(base) for base in mro(cls) for name in _PROTOCOLS)

    def read(value: Any) -> ArrayLike | None:
        shape = _shape(guarded(lambda: shape_of(value), lambda _: None))
        if shape is None:
            return None
        dtype = guarded(lambda: _dtype(dtype_of(value)), lambda _: None)
        if dtype is None:
            return None
        name, itemsize = dtype
        n_elements = 0 if "?" in shape else math.prod(shape)
        return ArrayLike(shape, name, n_elements, n_elements * itemsize, gives_values)

    return read


def _reader(cls: type, name: str) -> Reader:
    """How to read an attribute of the objects of a class."""
    found = class_attribute(cls, name, MISSING)
    if type(found) is types.GetSetDescriptorType:  # of a class written in C
        return lambda value: found.__get__(value)
    if type(found) is property:
        return found.fget if _may_run(cls, found.fget) else lambda _: MISSING  # type: ignore[return-value]
    is_descriptor = any("__get__" in namespace(base) for base in mro(type(found)))
    constant = MISSING if is_descriptor else found

    def stored(value: Any) -> Any:
        attribute = stored_attribute(value, name)
        return constant if attribute is MISSING else attribute

    return stored


def _may_run(cls: type, function: Any, asked: tuple[Any, ...] = ()) -> bool:
    """Whether the property is a library's, or its code plainly ends, and so do the properties that it reads."""
    if module_name(cls).partition(".")[0] in _LIBRARIES:
        return True
    names = {name for base in mro(cls)[:-1] for name in namespace(base)}
    code = function.__code__ if type(function) is types.FunctionType else None
    if code is None or not _ends(code) or names & {"__getattr__", "__getattribute__"}:
        return False
    asked = (*asked, function)
    for name in names & set(code.co_names):
        read = class_attribute(cls, name)
        if type(read) is property and read.fget not in asked and not _may_run(cls, read.fget, asked):
            return False
    return True


@functools.lru_cache(maxsize=1024)
def _ends(code: types.CodeType) -> bool:
    """Whether the code has no loop, and calls nothing but `tuple` and its like."""
    n_calls = n_known = 0
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if "BACKWARD" in name or name in ("FOR_ITER", "SEND", "YIELD_VALUE", "IMPORT_NAME", "MAKE_FUNCTION"):
            return False
        n_calls += name.startswith("CALL")
        n_known += name == "LOAD_GLOBAL" and instruction.argval in _ENDING_CALLS
    return n_calls <= n_known


def _shape(shape: Any) -> tuple[Any, ...] | None:
    base = next((base for base in (tuple, list) if has_base(type(shape), base)), None)
    if base is None or base.__len__(shape) > _MAX_AXES:
        return None
    sizes = tuple(map(_size, base.__iter__(shape)))
    return None if None in sizes else sizes


def _size(size: Any) -> int | str | None:
    if size is None or (type(size) is float and math.isnan(size)):
        return "?"
    if has_base(type(size), np.integer):
        size = int(size)
    return size if type(size) is int and size >= 0 else None


def _dtype(dtype: Any) -> tuple[str, int] | None:
    """The name and the bytes of an element; None: this is no dtype."""
    cls = type(dtype)
    is_scalar_class = has_base(cls, type) and (has_base(dtype, np.generic) or module_name(cls).startswith("jax"))
    if has_base(cls, np.dtype) or is_scalar_class:
        dtype = np.dtype(dtype)
        return visible(str(dtype), 40), dtype.itemsize
    if has_base(cls, str):
        name = str.__str__(dtype)
        is_name = len(name) <= 40 and _DTYPE_NAME.fullmatch(name)
        return (name, guarded(lambda: np.dtype(name).itemsize, lambda _: 0)) if is_name else None
    library = module_name(cls).partition(".")[0]
    if library in _LIBRARIES:
        name = visible(str(dtype), 40).removeprefix("torch.")
        return name, guarded(lambda: np.dtype(name).itemsize, lambda _: 0)
    return None
