"""Describe leaves and shardings by metadata, also of objects that JAX does not know. Values are never read."""

from __future__ import annotations

import dis
import functools
import math
import operator
import re
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.tree.describers import Description
from treeviz.tree.facts import KINDS, LEAF_KINDS, MASKED, NO_JAX_DTYPE, NODE_KINDS, DeviceIds, Facts, Sharding
from treeviz.tree.keys import MISSING, is_interned, stored_attribute
from treeviz.tree.opaque import captured, describe_function
from treeviz.tree.runtime import jax_is_imported
from treeviz.tree.static import StaticFields
from treeviz.tree.stored import Saved, Stored
from treeviz.tree.text import (
    VALUE_LIMIT,
    aval_text,
    class_attribute,
    class_name,
    counted,
    dimensions,
    guarded,
    has_base,
    is_any,
    is_function,
    module_name,
    mro,
    namespace,
    qualified_name,
    value_text,
    visible,
)

# Shardings. No computation starts.

_MOST_RUNS = 4  # of ids in a text


def describe_sharding(sharding: Any) -> Sharding | None:
    """The facts of a sharding that do not depend on the array; None if there are none."""
    return guarded(functools.partial(_describe, sharding), lambda _: None)


def traced_sharding(aval: Any) -> Any:
    """The sharding of a traced value; None if the compiler decides it, or the value is a shard."""
    sharding = guarded(lambda: aval.sharding, lambda _: None)
    axis_types = _axis_types(sharding)
    return sharding if axis_types and all(axis_type == "Explicit" for axis_type in axis_types.values()) else None


def manual_axes(aval: Any) -> str:
    """The axes of a mesh over which `shard_map` has split a traced value: "x, y"."""
    sharding = guarded(lambda: aval.sharding, lambda _: None)
    return ", ".join(visible(name) for name, axis_type in _axis_types(sharding).items() if axis_type == "Manual")


def why_unreduced(sharding: Any) -> str:
    """Why an array has no values yet: its parts are still to be summed over the devices; "" for other arrays."""
    names = guarded(lambda: sharding.spec.unreduced, lambda _: ())
    axes = ", ".join(sorted(visible(str(name)) for name in names))
    return f"unreduced over {axes}: each device has a part of every sum" if axes else ""


def _axis_types(sharding: Any) -> dict[str, str]:
    """The type of each axis of the mesh: Auto, Explicit or Manual. Before jax 0.5 there are none."""

    def read() -> dict[str, str]:
        mesh = sharding.mesh
        return {str(name): str(kind.name) for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)}

    return guarded(read, lambda _: {})


@functools.lru_cache(maxsize=256)
def _describe(sharding: Any) -> Sharding | None:
    devices = _devices(sharding)
    ids = tuple([device.id for device in devices])
    ids = DeviceIds(ids) if len(ids) > _MOST_RUNS else ids
    platform = devices[0].platform if devices else ""
    n_devices, text, axes = len(devices), class_name(type(sharding)), ""
    if isinstance(sharding, jax.sharding.NamedSharding):
        if sharding.mesh.empty:
            return None
        n_devices = sharding.mesh.size
        spec = value_text(sharding.spec).removeprefix("PartitionSpec").removeprefix("P")
        spec = spec.replace(", unreduced_kind=sum", "")  # the default, which jax 0.12 prints
        text = f"P{spec[:-2] + ')' if spec.endswith(',)') else spec}"
        axes = ", ".join(f"{visible(str(name))}={size}" for name, size in sharding.mesh.shape.items())
    placement = f"{platform}:{id_text(ids)}" if devices else "an abstract mesh"
    if len(devices) == 1:
        text = placement
    elif axes:
        placement += f" ({axes})"
    return Sharding(
        text=visible(text),
        n_devices=n_devices,
        shard_shape=(),
        replicated=n_devices > 1 and bool(sharding.is_fully_replicated),
        committed=None,
        addressable=not devices or bool(sharding.is_fully_addressable),
        devices=visible(placement),
        memory=_memory(sharding, devices),
        platform=visible(platform),
        device_ids=ids,
    )


def _saved_sharding(saved: Saved, shape: tuple[int, ...]) -> Sharding:
    """The facts of an array in a checkpoint about the devices that it was on."""
    sizes: dict[str | None, int] = dict(saved.mesh)
    split = (axes if isinstance(axes, tuple) else (axes,) for axes in saved.spec)
    n_parts = [math.prod(sizes.get(name, 1) for name in axes) for axes in split]
    n_parts += [1] * (len(shape) - len(n_parts))
    is_even = len(n_parts) == len(shape) and not any(map(operator.mod, shape, n_parts))
    n_devices = math.prod(sizes.values())
    axes = ", ".join(f"{name}={size}" for name, size in saved.mesh)
    return Sharding(
        text=saved.device or visible(f"P({', '.join(map(value_text, saved.spec))})"),
        n_devices=n_devices,
        shard_shape=tuple(map(operator.floordiv, shape, n_parts)) if is_even else (),
        replicated=n_devices > 1 and math.prod(n_parts) == 1,
        committed=None,
        addressable=True,
        devices=saved.device or visible(f"{counted(n_devices, 'device')} when saved ({axes})"),
        memory=saved.memory,
    )


def id_text(ids: Sequence[int]) -> str:
    """ "0–7", "3", "0,2,4,6", "0–3,8,10,12,… 20 more": the ids in order."""
    runs, i = [], 0
    while i < len(ids) and len(runs) < _MOST_RUNS:
        start = i
        while i + 1 < len(ids) and ids[i + 1] == ids[i] + 1:
            i += 1
        runs.append(str(ids[start]) if i == start else f"{ids[start]}–{ids[i]}")
        i += 1
    return ",".join(runs) + (f",… {len(ids) - i:,} more" if i < len(ids) else "")


def _devices(sharding: Any) -> list[Any]:
    """The devices in the order of the mesh, or else of their ids; empty for an abstract mesh."""
    in_order = guarded(lambda: list(sharding.mesh.devices.flat), lambda _: None)
    if in_order is not None:
        return in_order
    return sorted(guarded(lambda: sharding.device_set, lambda _: ()), key=lambda device: device.id)


def _memory(sharding: Any, devices: list[Any]) -> str:
    """The kind of memory; "" for the default one of the devices."""

    def default_kind() -> str:
        # Of a device of this process, or a similar one: before jax 0.5 other devices do not report their memories.
        client = devices[0].client
        local = [device for device in devices if device.process_index == client.process_index()]
        return [*local, *client.local_devices()][0].default_memory().kind

    kind = guarded(lambda: sharding.memory_kind, lambda _: None)
    return "" if kind is None or kind == guarded(default_kind, lambda _: "device") else visible(str(kind), 40)


# Objects unknown to JAX with a shape and a dtype: metadata of checkpoints, arrays of other libraries

_MAX_AXES = 64
_LIBRARIES = frozenset(
    "jax jaxlib orbax xarray h5py zarr tensorstore keras dask cupy torch tensorflow".split()  # noqa: SIM905
)
_PROTOCOLS = ("__array__", "__jax_array__", "__dlpack__", "__array_interface__", "__cuda_array_interface__")
_DTYPE_NAME = re.compile(r"[A-Za-z_][\w<>]*|[<>|=]?[a-zA-Z]\d*")
_ENDING_CALLS = frozenset(("tuple", "list", "int", "len", "str", "np", "numpy", "jnp"))

Reader = Callable[[Any], Any]


class ArrayLike(NamedTuple):
    """The shape and the dtype that an object reports."""

    shape: tuple[Any, ...]  # an unknown size is "?"
    dtype: str
    n_elements: int
    n_bytes: int  # 0 if a size or the dtype is unknown
    has_values: bool  # the class has one of the methods that convert its objects to arrays


def array_like_reader(cls: type) -> Callable[[Any], ArrayLike | None]:
    """A function that reads objects of a class; it returns None for one without a shape and a dtype."""
    shape_of, dtype_of = _reader(cls, "shape"), _reader(cls, "dtype")
    has_values = any(name in namespace(base) for base in mro(cls) for name in _PROTOCOLS)

    def read(value: Any) -> ArrayLike | None:
        shape = _shape(guarded(lambda: shape_of(value), lambda _: None))
        if shape is None or (dtype := guarded(lambda: _dtype(dtype_of(value)), lambda _: None)) is None:
            return None
        n_elements = 0 if "?" in shape else math.prod(shape)
        return ArrayLike(shape, dtype[0], n_elements, n_elements * dtype[1], has_values)

    return read


def _reader(cls: type, name: str) -> Reader:
    """A function that reads an attribute of the objects of a class."""
    attribute = class_attribute(cls, name, MISSING)
    if type(attribute) is types.GetSetDescriptorType:  # a class written in C
        return lambda value: attribute.__get__(value)
    if type(attribute) is property:
        return attribute.fget if _may_run(cls, attribute.fget) else lambda _: MISSING  # type: ignore[return-value]
    is_descriptor = any("__get__" in namespace(base) for base in mro(type(attribute)))
    default = MISSING if is_descriptor else attribute

    def stored(value: Any) -> Any:
        own = stored_attribute(value, name)
        return default if own is MISSING else own

    return stored


def _may_run(cls: type, function: Any, visited: tuple[Any, ...] = ()) -> bool:
    """Whether a property may run: it is a library's, or its code surely ends, as do the properties that it reads."""
    if module_name(cls).partition(".")[0] in _LIBRARIES:
        return True
    names = {name for base in mro(cls)[:-1] for name in namespace(base)}
    code = function.__code__ if type(function) is types.FunctionType else None
    if code is None or not _ends(code) or names & {"__getattr__", "__getattribute__"}:
        return False
    visited = (*visited, function)
    read = (class_attribute(cls, name) for name in names & set(code.co_names))
    functions = [attribute.fget for attribute in read if type(attribute) is property]
    return all(other in visited or _may_run(cls, other, visited) for other in functions)


@functools.lru_cache(maxsize=1024)
def _ends(code: types.CodeType) -> bool:
    """Whether the code has no loop, and calls nothing but functions such as `tuple`."""
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
    sizes: list[int | str] = []
    for size in base.__iter__(shape):
        size = int(size) if has_base(type(size), np.integer) else size
        if size is None or (type(size) is float and math.isnan(size)):
            sizes.append("?")
        elif type(size) is not int or size < 0:
            return None
        else:
            sizes.append(size)
    return tuple(sizes)


def _dtype(dtype: Any) -> tuple[str, int] | None:
    """The name and the itemsize of a dtype; None if this is not one."""
    cls = type(dtype)
    is_scalar_class = has_base(cls, type) and (has_base(dtype, np.generic) or module_name(cls).startswith("jax"))
    if has_base(cls, np.dtype) or is_scalar_class:
        dtype = np.dtype(dtype)
        return visible(str(dtype), 40), dtype.itemsize
    if has_base(cls, str):
        name = str.__str__(dtype)
        is_name = len(name) <= 40 and _DTYPE_NAME.fullmatch(name)
        return (name, guarded(lambda: np.dtype(name).itemsize, lambda _: 0)) if is_name else None
    if module_name(cls).partition(".")[0] not in _LIBRARIES:
        return None
    name = visible(str(dtype), 40).removeprefix("torch.")
    return name, guarded(lambda: np.dtype(name).itemsize, lambda _: 0)


# Facts of all kinds of leaves

LeafDescriber = Callable[[Any], int]

# Modules with immutable classes: shardings, devices, dates …
_CONSTANTS = ("jax", "jaxlib", "ml_dtypes", "datetime", "decimal", "fractions", "pathlib", "re", "uuid")
ONLY_A_KIND = Description()[1:-1]  # of a description that has only a kind
_shape_of, _dtype_of = np.ndarray.shape.__get__, np.ndarray.dtype.__get__  # type: ignore[attr-defined]


class FactTable:
    """The distinct facts of one walk, each with a code. Equal leaves are described once."""

    def __init__(self) -> None:
        self.facts: list[Facts] = []
        self.static = StaticFields()
        self._codes: dict[Any, int] = {}
        self._equal_shardings: dict[Any, Any] = {}
        self._last: Any = None  # the sharding of the last array, or an equal one of an earlier array
        self._kept: list[Any] = []  # so that no id of a sharding is reused

    def code(self, facts: Facts) -> int:
        code = self._codes.setdefault(facts, len(self.facts))
        if code == len(self.facts):
            self.facts.append(facts)
        return code

    def _remember(self, cache_key: Any, facts: Facts) -> int:
        code = self._codes[cache_key] = self.code(facts)
        return code

    def describer(self, cls: type) -> tuple[LeafDescriber, bool]:
        """The describer of leaves of this class, and whether their identity matters."""
        of_jax = self._describer_of_jax(cls) if jax_is_imported() else None
        if of_jax is not None:
            return of_jax
        if has_base(cls, np.ndarray):
            return self.numpy, True
        if cls is Stored:
            return self.stored, True
        if has_base(cls, np.generic):
            return self.numpy_scalar, False
        if has_base(cls, bool, int, float, complex):
            return self.scalar, False
        if has_base(cls, str, bytes, bytearray):
            return self.string, False
        return (self.function, False) if is_function(cls) else (self.opaque, not _is_constant(cls))

    def _describer_of_jax(self, cls: type) -> tuple[LeafDescriber, bool] | None:
        from treeviz.tree.tracers import Tracer  # which imports JAX

        if has_base(cls, Tracer):
            return self.tracer, False
        # Before jax 0.5 the class of arrays is jaxlib's and has no base.
        if has_base(cls, jax.Array) or (module_name(cls), class_name(cls)) == ("jaxlib.xla_extension", "ArrayImpl"):
            return (self.array if class_name(cls) == "ArrayImpl" else self.key), True
        if has_base(cls, jax.ShapeDtypeStruct) or (class_name(cls) == "ShapedArray" and "jax" in module_name(cls)):
            return self.abstract, False
        if class_name(cls) in ("Ref", "MutableArray") and "jax" in module_name(cls):
            return self.ref, True
        return None

    def array(self, leaf: Any) -> int:
        sharding = leaf.sharding
        if sharding is not self._last and (type(sharding) is not type(self._last) or sharding != self._last):
            self._last = self._equal_shardings.setdefault(sharding, sharding)
        sharding = self._last  # equal for most arrays; its hash is slow Python code of JAX
        cache_key = (leaf.aval, id(sharding), leaf.committed, leaf.is_deleted())
        if (code := self._codes.get(cache_key)) is not None:
            return code
        aval, _, committed, deleted = cache_key
        return self._remember(cache_key, _facts_of_jax_array(aval, sharding, committed, deleted))

    def key(self, leaf: Any) -> int:
        deleted = guarded(leaf.is_deleted, lambda _: False)
        sharding = guarded(lambda: leaf.sharding, lambda _: None)
        committed = guarded(lambda: leaf.committed, lambda _: None)
        place = _sharding_facts(sharding, leaf.shape, committed)
        kind = "deleted" if deleted else "key"
        return self.code(_array_facts(kind, "PRNG key", leaf, place)._replace(elements=0))

    def numpy(self, leaf: Any) -> int:
        cls, shape, dtype = type(leaf), _shape_of(leaf), _dtype_of(leaf)
        cache_key = (id(cls), shape, dtype)
        if (code := self._codes.get(cache_key)) is not None:
            return code
        type_text = f"np.{class_name(cls)}" if module_name(cls).partition(".")[0] == "numpy" else class_name(cls)
        n_elements = _product(shape)
        aval = (n_elements, n_elements * dtype.itemsize, shape, _dtype_name(dtype))
        facts = Facts("numpy", type_text, True, 1, *aval)
        if dtype == jax.dtypes.float0:
            facts = facts._replace(kind="float0", elements=0, bytes=0, dtype="float0")
        elif not (_has_jax_kind(dtype) and _is_jax_layout(dtype)):
            facts = facts._replace(elements=facts.elements * _has_jax_kind(dtype), text=NO_JAX_DTYPE)
        elif has_base(cls, np.ma.MaskedArray):
            facts = facts._replace(text=MASKED)
        return self._remember(cache_key, facts)

    def stored(self, leaf: Stored) -> int:
        cache_key = (Stored, leaf.shape, leaf.dtype, leaf.nbytes, leaf.stored_as, leaf.text, leaf.saved)
        if (code := self._codes.get(cache_key)) is not None:
            return code
        is_known = bool(leaf.stored_as) or _has_jax_kind(leaf.dtype)
        dtype = visible(leaf.stored_as) if leaf.stored_as else _dtype_name(leaf.dtype)
        text = leaf.text if is_known else ": ".join(filter(None, (NO_JAX_DTYPE, leaf.text)))
        if leaf.dtype.kind == "V" and leaf.dtype.names is None and not is_known:
            text += " (NumPy writes bfloat16 and float8 like this)"
        aval = (leaf.size if is_known else 0, leaf.nbytes, leaf.shape, dtype)
        sharding = None if leaf.saved is None else _saved_sharding(leaf.saved, leaf.shape)
        facts = Facts("stored", "Stored", True, 1, *aval, text=visible(text), sharding=sharding)
        return self._remember(cache_key, facts)

    def numpy_scalar(self, leaf: Any) -> int:
        dtype = np.generic.dtype.__get__(leaf)  # type: ignore[attr-defined]
        # A float32 as short as it is written, 0.91, and not as float64: 0.9100000262260437.
        written = dtype.type.__str__ if dtype.kind in "fV" else lambda x: str(np.generic.item(x))
        text = guarded(lambda: visible(written(leaf), 60), lambda _: "")  # type: ignore[arg-type]
        elements = int(_has_jax_kind(dtype) and _is_jax_layout(dtype))
        aval = (elements, dtype.itemsize, (), _dtype_name(dtype))
        return self.code(Facts("scalar", class_name(type(leaf)), True, 1, *aval, text=text))

    def scalar(self, leaf: Any) -> int:
        cls = type(leaf)
        text = repr(leaf) if cls is float else value_text(leaf)
        if (id(cls), text) not in self._codes:
            weak = is_any(cls, (bool, int, float, complex))
            self._remember((id(cls), text), Facts("scalar", class_name(cls), True, 1, text=text, weak=weak))
        return self._codes[id(cls), text]

    def string(self, leaf: Any) -> int:
        cls = type(leaf)
        base = next(base for base in (str, bytes, bytearray) if has_base(cls, base))
        n_characters, limit = base.__len__(leaf), VALUE_LIMIT
        text = repr(base.__getitem__(leaf, slice(0, limit)))
        if n_characters > limit or len(text) > limit + 20:
            text = f"{text[:limit]}… ({n_characters:,} {'characters' if base is str else 'bytes'})"
        return self.code(Facts("string", class_name(cls), True, 1, text=text))

    def abstract(self, leaf: Any) -> int:
        shape, dtype, weak = leaf.shape, leaf.dtype, bool(leaf.weak_type)
        sharding = getattr(leaf, "sharding", None)
        cache_key = (id(type(leaf)), shape, dtype, weak, sharding)
        if (code := self._codes.get(cache_key)) is not None:
            return code
        place = _sharding_facts(sharding, shape, None)
        facts = _array_facts("shape only", class_name(type(leaf)), leaf, place, weak=weak)
        return self._remember(cache_key, facts)

    def tracer(self, leaf: Any) -> int:
        aval = leaf.aval
        name = class_name(type(leaf))
        text, axes = _TRACERS.get(name, ""), manual_axes(aval)
        if axes or name == "ShardMapTracer":
            text = "; ".join(filter(None, (f"one shard of shard_map{f' over {axes}' if axes else ''}", text)))
        if not hasattr(aval, "shape"):
            return self.code(Facts("tracer", name, True, 1, dtype=value_text(aval), text=text))
        weak = bool(getattr(aval, "weak_type", False))
        facts = _array_facts("tracer", name, aval, weak=weak)._replace(text=text)
        sharding = traced_sharding(aval)
        if sharding is not None:
            facts = facts._replace(sharding=_sharding_facts(sharding, facts.shape or (), None))
        type_text = guarded(lambda: visible(str(aval)), lambda _: "")
        if type_text.startswith("Shaped") or type_text.removeprefix("~") == aval_text(facts.shape or (), facts.dtype):
            type_text = ""
        return self.code(facts._replace(aval=type_text))

    def ref(self, leaf: Any) -> int:
        facts = _array_facts("ref", class_name(type(leaf)), leaf)
        sharding = guarded(lambda: leaf.sharding, lambda _: None)
        return self.code(facts._replace(sharding=_sharding_facts(sharding, facts.shape or (), None)))

    def function(self, leaf: Any) -> int:
        cache_key = ("function", id(leaf))
        if cache_key not in self._codes:
            self._kept.append(leaf)
            text, static = describe_function(leaf), captured(leaf)
            facts = Facts("function", "function", True, 1, text=text, static=static, module=module_name(type(leaf)))
            self._remember(cache_key, facts)
        return self._codes[cache_key]

    def opaque(self, leaf: Any) -> int:
        return self.code(opaque_facts(leaf))

    def with_description(self, facts: Facts, description: Description) -> Facts:
        """The facts, overridden by a description."""
        if description.kind and description.kind not in KINDS:
            raise ValueError(f"there is no kind {value_text(description.kind)}; there are {', '.join(KINDS)}")
        fits = description.kind in (LEAF_KINDS if facts.is_leaf else NODE_KINDS)
        if description[1:-1] == ONLY_A_KIND:
            return facts._replace(kind=description.kind) if fits else facts
        facts = facts._replace(
            kind=description.kind if fits else facts.kind,
            type=visible(description.type) if description.type else facts.type,
            text=visible(description.text) if description.text else facts.text if description.shape is None else "",
        )
        if description.static is not None:
            facts = facts._replace(static=self.static.of_pairs(description.static, facts.is_leaf))
        if description.shape is None:
            return facts._replace(dtype=visible(description.dtype)) if description.dtype else facts
        shape = dimensions(description.shape)
        facts = facts._replace(shape=shape, dtype=visible(description.dtype))
        if not facts.is_leaf:
            return facts
        place = _sharding_facts(description.sharding, shape, None)
        n_counted = 0 if facts.dtype.startswith("key<") else _product(shape)
        return facts._replace(elements=n_counted, bytes=int(description.bytes), sharding=place or facts.sharding)


def _sharding_facts(sharding: Any, shape: tuple[int, ...], committed: bool | None) -> Sharding | None:
    described = None if sharding is None else describe_sharding(sharding)
    if described is None:
        return None
    if type(sharding) is not jax.sharding.SingleDeviceSharding:
        shape = guarded(lambda: sharding.shard_shape(tuple(shape)), lambda _: ())
    return described._replace(shard_shape=dimensions(shape), committed=committed)


@functools.lru_cache(maxsize=1024)  # the trees of one process have few distinct arrays
def _facts_of_jax_array(aval: Any, sharding: Any, committed: bool, deleted: bool) -> Facts:
    place = _sharding_facts(sharding, aval.shape, committed)
    return _array_facts("deleted" if deleted else "array", "jax.Array", aval, place, weak=aval.weak_type)


def _array_facts(
    kind: str, type_text: str, array: Any, sharding: Sharding | None = None, *, weak: bool = False
) -> Facts:
    """The facts of an array, or of the aval of one."""
    shape = dimensions(array.shape)
    n_elements = _product(shape)
    # a deleted array holds nothing
    n_bytes = 0 if kind == "deleted" else n_elements * guarded(lambda: int(array.dtype.itemsize), lambda _: 0)
    dtype = _dtype_name(array.dtype)
    n_counted = 0 if dtype.startswith("key<") else max(n_elements, 0)
    return Facts(kind, type_text, True, 1, n_counted, n_bytes, shape, dtype, weak, sharding=sharding)


@functools.lru_cache(maxsize=256)
def _dtype_name(dtype: Any) -> str:
    return visible(str(dtype), 80)


def opaque_facts(leaf: Any) -> Facts:
    """The facts of an object unknown to JAX; its text is "" if only the class is known."""
    cls = type(leaf)
    text = value_text(leaf)
    text = "" if text == f"<{qualified_name(cls)}>" else text
    return Facts("opaque", class_name(cls), True, 1, text=text, module=module_name(cls))


def array_like_facts(leaf: Any, array_like: ArrayLike) -> Facts:
    """The facts of an object unknown to JAX that has a shape and a dtype."""
    cls, kind = type(leaf), "tensor" if array_like.has_values else "shape only"
    is_numeric = guarded(lambda: _has_jax_kind(np.dtype(array_like.dtype)), lambda _: False)
    aval = (array_like.n_elements if is_numeric else 0, array_like.n_bytes, array_like.shape, array_like.dtype)
    return Facts(kind, class_name(cls), True, 1, *aval, module=module_name(cls))


def _is_constant(cls: type) -> bool:
    """Whether objects of the class are immutable, so that sharing one does not matter."""
    is_frozen = has_base(cls, frozenset, range, slice, types.ModuleType)
    return is_interned(cls) or is_frozen or module_name(cls).partition(".")[0] in _CONSTANTS


def _has_jax_kind(dtype: np.dtype) -> bool:
    """Whether the dtype is numeric, or one of ml_dtypes (bfloat16 …), whose kind is void in NumPy."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and not issubclass(dtype.type, np.void))


def _is_jax_layout(dtype: np.dtype) -> bool:
    """Whether JAX knows the bytes of the numbers: native byte order, not long doubles."""
    return dtype.isnative and not issubclass(dtype.type, np.longdouble | np.clongdouble)


def _product(shape: tuple) -> int:
    # A symbolic dimension is text: the array has no size yet.
    return 0 if str in map(type, shape) else math.prod(shape)


_TRACERS = {
    "DynamicJaxprTracer": "traced for jit",
    "JaxprTracer": "traced for partial evaluation",
    "JVPTracer": "differentiated (forward)",
    "LinearizeTracer": "differentiated (linearized)",
    "BatchTracer": "mapped by vmap: the shape of one example",
}
