"""Describe a leaf by its kind and its metadata. Values are never read."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from treeviz.tree.array_like import ArrayLike
from treeviz.tree.attributes import is_interned
from treeviz.tree.describers import Description
from treeviz.tree.facts import MASKED, NO_JAX_DTYPE, Facts, Sharding
from treeviz.tree.functions import captured, describe_function
from treeviz.tree.jax_later import jax_is_imported
from treeviz.tree.kinds import KINDS, LEAF_KINDS, NODE_KINDS
from treeviz.tree.safe_repr import (
    VALUE_LIMIT,
    aval_text,
    class_name,
    dimensions,
    guarded,
    has_base,
    is_function,
    module_name,
    qualified_name,
    value_text,
    visible,
)
from treeviz.tree.sharding import describe_sharding, manual_axes, of_array, of_traced
from treeviz.tree.static import StaticFields
from treeviz.tree.stored import Stored

LeafDescriber = Callable[[Any], int]


# Modules whose classes that are opaque leaves are immutable: shardings, devices, dates …
_CONSTANTS = ("jax", "jaxlib", "ml_dtypes", "datetime", "decimal", "fractions", "pathlib", "re", "uuid")
ONLY_A_KIND = Description()[1:-1]  # of a description that gives only a kind


_shape_of, _dtype_of = np.ndarray.shape.__get__, np.ndarray.dtype.__get__  # type: ignore[attr-defined]


class FactTable:
    """The distinct facts of one walk, each with a code. Equal leaves are described once."""

    def __init__(self) -> None:
        self.facts: list[Facts] = []
        self.static = StaticFields()
        self._codes: dict[Any, int] = {}
        self._dtype_names: dict[Any, str] = {}
        self._shardings: dict[int, Any] = {}
        self._equal_shardings: dict[Any, Any] = {}
        self._last: Any = None  # the sharding of the last array, as the first array has it that has an equal one
        self._places: dict[int, Sharding | None] = {}
        self._kept: list[Any] = []  # so that no id of a sharding is reused

    def code(self, facts: Facts) -> int:
        code = self._codes.get(facts)
        if code is None:
            code = self._codes[facts] = len(self.facts)
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
        sharding = self._last  # most arrays have one that equals the last: its hash is Python of JAX
        cache_key = (leaf.aval, id(sharding), leaf.committed, leaf.is_deleted())
        code = self._codes.get(cache_key)
        if code is not None:
            return code
        aval, _, committed, deleted = cache_key
        where = self._place(sharding, aval.shape, committed)
        kind = "deleted" if deleted else "array"
        return self._remember(cache_key, self._array_facts(kind, "jax.Array", aval, where, weak=aval.weak_type))

    def _same_sharding(self, sharding: Any) -> Any:
        """One object for all equal shardings, kept alive since its id is part of cache keys."""
        same = self._shardings.get(id(sharding))
        if same is None:
            same = self._equal_shardings.setdefault(sharding, sharding)
            self._shardings[id(sharding)] = same
            self._kept.append(sharding)
        return same

    def _place(self, sharding: Any, shape: tuple[int, ...], committed: bool | None) -> Sharding | None:
        """The facts of a sharding, which may name thousands of devices, so each is described once."""
        if id(sharding) not in self._places:
            self._places[id(sharding)] = describe_sharding(sharding)
        return of_array(self._places[id(sharding)], sharding, tuple(shape), committed)

    def key(self, leaf: Any) -> int:
        deleted = guarded(leaf.is_deleted, lambda _: False)
        sharding = guarded(lambda: self._same_sharding(leaf.sharding), lambda _: None)
        committed = guarded(lambda: leaf.committed, lambda _: None)
        where = None if sharding is None else self._place(sharding, leaf.shape, committed)
        return self.code(
            self._array_facts("deleted" if deleted else "key", "PRNG key", leaf, where)._replace(elements=0)
        )

    def numpy(self, leaf: Any) -> int:
        cls, shape, dtype = type(leaf), _shape_of(leaf), _dtype_of(leaf)
        cache_key = (id(cls), shape, dtype)
        code = self._codes.get(cache_key)
        if code is not None:
            return code
        type_text = f"np.{class_name(cls)}" if module_name(cls).partition(".")[0] == "numpy" else class_name(cls)
        n_elements = _product(shape)
        facts = Facts(
            "numpy", type_text, True, 1, n_elements, n_elements * dtype.itemsize, shape, self._dtype_name(dtype)
        )
        if dtype == jax.dtypes.float0:
            facts = facts._replace(kind="float0", elements=0, bytes=0, dtype="float0")
        elif not (_has_jax_kind(dtype) and _is_jax_layout(dtype)):
            facts = facts._replace(elements=facts.elements * _has_jax_kind(dtype), text=NO_JAX_DTYPE)
        elif has_base(cls, np.ma.MaskedArray):
            facts = facts._replace(text=MASKED)
        return self._remember(cache_key, facts)

    def stored(self, leaf: Stored) -> int:
        cache_key = (Stored, leaf.shape, leaf.dtype, leaf.nbytes, leaf.stored_as, leaf.text)
        code = self._codes.get(cache_key)
        if code is not None:
            return code
        is_known = bool(leaf.stored_as) or _has_jax_kind(leaf.dtype)
        dtype = visible(leaf.stored_as) if leaf.stored_as else self._dtype_name(leaf.dtype)
        text = leaf.text if is_known else ": ".join(filter(None, (NO_JAX_DTYPE, leaf.text)))
        if leaf.dtype.kind == "V" and leaf.dtype.names is None and not is_known:
            text += " (NumPy writes bfloat16 and float8 like this)"
        aval = (leaf.size if is_known else 0, leaf.nbytes, leaf.shape, dtype)
        return self._remember(cache_key, Facts("stored", "Stored", True, 1, *aval, text=visible(text)))

    def numpy_scalar(self, leaf: Any) -> int:
        dtype = np.generic.dtype.__get__(leaf)  # type: ignore[attr-defined]
        text = guarded(lambda: visible(str(np.generic.item(leaf)), 60), lambda _: "")  # type: ignore[arg-type]
        elements = int(_has_jax_kind(dtype) and _is_jax_layout(dtype))
        return self.code(
            Facts(
                "scalar",
                class_name(type(leaf)),
                True,
                1,
                elements,
                dtype.itemsize,
                (),
                self._dtype_name(dtype),
                text=text,
            )
        )

    def scalar(self, leaf: Any) -> int:
        cls = type(leaf)
        text = repr(leaf) if cls is float else value_text(leaf)
        code = self._codes.get((id(cls), text))
        if code is not None:
            return code
        weak = any(cls is scalar for scalar in (bool, int, float, complex))
        return self._remember((id(cls), text), Facts("scalar", class_name(cls), True, 1, text=text, weak=weak))

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
        if sharding is not None:
            sharding = self._same_sharding(sharding)
        cache_key = (id(type(leaf)), shape, dtype, weak, id(sharding))
        code = self._codes.get(cache_key)
        if code is not None:
            return code
        where = None if sharding is None else self._place(sharding, shape, None)
        facts = self._array_facts("shape only", class_name(type(leaf)), leaf, where, weak=weak)
        return self._remember(cache_key, facts)

    def tracer(self, leaf: Any) -> int:
        aval = leaf.aval
        name = class_name(type(leaf))
        text, axes = _TRACERS.get(name, ""), manual_axes(aval)
        if axes or name == "ShardMapTracer":
            text = "; ".join(filter(None, (f"one shard of shard_map{f' over {axes}' if axes else ''}", text)))
        if not hasattr(aval, "shape"):
            return self.code(Facts("tracer", name, True, 1, dtype=value_text(aval), text=text))
        facts = self._array_facts("tracer", name, aval, weak=bool(getattr(aval, "weak_type", False)))._replace(
            text=text
        )
        sharding = of_traced(aval)
        if sharding is not None:
            facts = facts._replace(sharding=self._place(self._same_sharding(sharding), facts.shape or (), None))
        written = guarded(lambda: visible(str(aval)), lambda _: "")
        if written.startswith("Shaped") or written.removeprefix("~") == aval_text(facts.shape or (), facts.dtype):
            written = ""
        return self.code(facts._replace(aval=written))

    def ref(self, leaf: Any) -> int:
        facts = self._array_facts("ref", class_name(type(leaf)), leaf)
        sharding = guarded(lambda: self._same_sharding(leaf.sharding), lambda _: None)
        where = None if sharding is None else self._place(sharding, facts.shape or (), None)
        return self.code(facts._replace(sharding=where))

    def function(self, leaf: Any) -> int:
        code = self._codes.get(("function", id(leaf)))
        if code is not None:
            return code
        self._kept.append(leaf)
        text, static = describe_function(leaf), captured(leaf)
        facts = Facts("function", "function", True, 1, text=text, static=static, module=module_name(type(leaf)))
        return self._remember(("function", id(leaf)), facts)

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
            static=facts.static
            if description.static is None
            else self.static.of_pairs(description.static, facts.is_leaf),
        )
        if description.shape is None:
            return facts._replace(dtype=visible(description.dtype)) if description.dtype else facts
        shape = dimensions(description.shape)
        facts = facts._replace(shape=shape, dtype=visible(description.dtype))
        if not facts.is_leaf:
            return facts
        sharding = description.sharding
        where = None if sharding is None else self._place(self._same_sharding(sharding), shape, None)
        n_counted = 0 if facts.dtype.startswith("key<") else _product(shape)
        return facts._replace(elements=n_counted, bytes=int(description.bytes), sharding=where or facts.sharding)

    def _array_facts(
        self, kind: str, type_text: str, array: Any, sharding: Sharding | None = None, *, weak: bool = False
    ) -> Facts:
        """The facts of an array, or of the aval of one."""
        shape = dimensions(array.shape)
        n_elements = _product(shape)
        n_bytes = n_elements * guarded(lambda: int(array.dtype.itemsize), lambda _: 0)
        dtype = self._dtype_name(array.dtype)
        n_counted = 0 if dtype.startswith("key<") else max(n_elements, 0)
        return Facts(kind, type_text, True, 1, n_counted, n_bytes, shape, dtype, weak, sharding=sharding)

    def _dtype_name(self, dtype: Any) -> str:
        name = self._dtype_names.get(dtype)
        if name is None:
            name = self._dtype_names[dtype] = visible(str(dtype), 80)
        return name


def opaque_facts(leaf: Any) -> Facts:
    """The facts of an object that JAX does not know; its text is "" if nothing but the class is known."""
    cls = type(leaf)
    text = value_text(leaf)
    text = "" if text == f"<{qualified_name(cls)}>" else text
    return Facts("opaque", class_name(cls), True, 1, text=text, module=module_name(cls))


def array_like_facts(leaf: Any, found: ArrayLike) -> Facts:
    """The facts of an object that JAX does not know and that has a shape and a dtype."""
    cls, kind = type(leaf), "tensor" if found.gives_values else "shape only"
    is_numeric = guarded(lambda: _has_jax_kind(np.dtype(found.dtype)), lambda _: False)
    aval = (found.n_elements if is_numeric else 0, found.n_bytes, found.shape, found.dtype)
    return Facts(kind, class_name(cls), True, 1, *aval, module=module_name(cls))


def _is_constant(cls: type) -> bool:
    """Whether nothing can change an object of the class, so that it does not matter who shares it."""
    is_frozen = has_base(cls, frozenset, range, slice, types.ModuleType)
    return is_interned(cls) or is_frozen or module_name(cls).partition(".")[0] in _CONSTANTS


def _has_jax_kind(dtype: np.dtype) -> bool:
    """Whether the dtype is numeric, or one of ml_dtypes (bfloat16 …), whose kind is void in NumPy."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and not issubclass(dtype.type, np.void))


def _is_jax_layout(dtype: np.dtype) -> bool:
    """Whether numbers have the bytes that JAX knows: in the order of the machine, and no long doubles."""
    return dtype.isnative and not issubclass(dtype.type, np.longdouble | np.clongdouble)


def _product(shape: tuple) -> int:
    # A symbolic dimension is text: the array has no size yet.
    return math.prod(shape) if all(isinstance(size, int) for size in shape) else 0


_TRACERS = {
    "DynamicJaxprTracer": "traced for jit",
    "JaxprTracer": "traced for partial evaluation",
    "JVPTracer": "differentiated (forward)",
    "LinearizeTracer": "differentiated (linearized)",
    "BatchTracer": "mapped by vmap: the shape of one example",
}
