"""The strange trees, by name: every view and analysis runs over all of them, and a bug adds one."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import fractions
import functools
import importlib.util
import operator
import pathlib
import re
import tempfile
import threading
import types
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from hostile_objects import EVIL_TEXTS, HOSTILE
from jax import tree_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sample_nodes import (
    AdamState,
    Keyed,
    Layer,
    Node,
    Point,
    Raises,
    Registered,
    Repeated,
    Slotted,
    Special,
    Static,
    Validating,
    WithAux,
)


class Level(enum.IntEnum):
    LOW = 1


class MyDict(dict):
    """A subclass of dict: a leaf to JAX."""


class MyList(list):
    """A subclass of list: a leaf to JAX."""


@dataclass
class Unregistered:
    name: str
    value: Any


def module_level_function(x):
    return x


def scale(factor):
    return lambda x: factor * x


def ones(shape, dtype=np.float32) -> jax.Array:
    """The same as jnp.ones, which compiles a program for each shape and dtype, in each process."""
    return jax.device_put(np.ones(shape, dtype))


def leaf_kinds() -> dict[str, Any]:
    """One leaf of each kind that needs no device."""
    return {
        "array": ones((2, 3)),
        "weak": jnp.array(1.0),
        "numpy": np.ones((3, 4), np.float32),
        "abstract": jax.ShapeDtypeStruct((7, 8), jnp.bfloat16),
        "key": jax.random.key(0),
        "float0": np.zeros((3,), jax.dtypes.float0),
        "deleted": deleted(),
        "function": module_level_function,
        "scalar": 0.1,
        "string": "text",
        "opaque": Special(np.ones(2), 1),
    }


def deleted() -> jax.Array:
    x = jnp.ones((2, 2))
    x.delete()
    return x


def donated() -> jax.Array:
    x = jnp.ones((2, 2))
    jax.jit(lambda x: x + 1, donate_argnums=0)(x).block_until_ready()
    return x


def cyclic_list() -> list:
    tree: list = [1.0]
    tree.append({"again": tree})
    return tree


def cyclic_dict() -> dict:
    tree: dict = {"x": 1.0}
    tree["self"] = tree
    return tree


def dag(n_levels: int = 40) -> list:
    """A tree with 2**n_levels paths, and n_levels nodes."""
    tree: list = [ones(2)]
    for _ in range(n_levels):
        tree = [tree, tree]
    return tree


def deep(n_levels: int = 5_000, wrap: Callable[[Any], Any] = lambda below: [below]) -> Any:
    tree: Any = 1.0
    for _ in range(n_levels):
        tree = wrap(tree)
    return tree


def shared() -> dict[str, Any]:
    w, block = ones((4, 4)), {"k": np.zeros(3), "b": jnp.zeros(3)}
    return {"embed": w, "head": w, "blocks": [block, block], "twice": [block["k"]]}


def _memmap() -> np.memmap:
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype=np.int16, mode="w+", shape=(4, 2))


def _numpy_arrays() -> dict[str, Any]:
    pair = np.dtype([("a", "<i4"), ("b", "<f8", (2,)), ("</script>", "S3")])
    return {
        "structured": np.zeros(3, pair),
        "record": np.zeros(3, pair).view(np.recarray),
        "object": np.array([object(), None, [1]], dtype=object),
        "memmap": _memmap(),
        "big-endian": np.arange(4, dtype=">f4"),
        "text": np.array(["a", "</script>"]),
        "bytes": np.array([b"a"]),
        "dates": np.array(["2024-01-01"], "M8[D]"),
        "durations": np.array([1], "m8[s]"),
        "0-d": np.array(3.0),
        "empty": np.zeros((0, 5)),
        "masked": np.ma.masked_array([1, 2], [True, False]),
        "huge": np.broadcast_to(np.float32(1), (100_000, 100_000)),
        "Fortran": np.ones((2, 3), order="F"),
        "bool": np.zeros(2, bool),
        "half": np.zeros(2, np.float16),
        "complex": np.zeros(2, np.complex64),
        "longdouble": np.zeros(2, np.longdouble),
        "void": np.zeros(2, "V4"),
        "fp8": np.zeros(2, ml_dtypes.float8_e4m3fn),
        "scalars": [np.float32(1.5), np.int8(-128), np.bool_(True), np.str_("<b>"), np.bytes_(b"x"), np.void(b"abc")],
        "date": np.datetime64("2024-01-01"),
        "record scalar": np.zeros(1, pair)[0],
        "float64": np.float64("nan"),
    }


def _narrow_dtypes() -> list[jax.Array]:
    names = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "int2", "float4_e2m1fn")
    return [jax.device_put(np.zeros((2, 4), getattr(jnp, name))) for name in names if hasattr(jnp, name)]


def _prng_keys() -> list[Any]:
    return [
        jax.random.key(0),
        jax.random.split(jax.random.key(1), 3),
        jax.random.key(0, impl="rbg"),
        jax.random.PRNGKey(0),
    ]


def _python_scalars() -> list[Any]:
    return [True, 0, -1, 2**70, 0.1, -0.0, float("nan"), float("inf"), 1j, Level.LOW, decimal.Decimal("1.5")]


def _functions() -> dict[str, Any]:
    return {
        "function": module_level_function,
        "lambda": lambda x: x,
        "closure": scale(ones(3)),
        "builtin": len,
        "method": Static("x").upper,
        "bound": Special(1, 2).__init__,
        "partial": functools.partial(module_level_function, ones(2), k=np.zeros(3)),
        "jitted": jax.jit(module_level_function),
        "jitted lambda": jax.jit(lambda x: x),
        "custom_jvp": jax.nn.relu,
        "custom_vjp": jax.custom_vjp(module_level_function),
        "ufunc": np.add,
        "jnp ufunc": jnp.add,
        "itemgetter": operator.itemgetter(1),
        "class": Special,
        "wraps": functools.wraps(module_level_function)(lambda *a: a),
    }


def _opaque_objects() -> dict[str, Any]:
    cell = types.SimpleNamespace(w=ones(3))
    cell.me = cell
    return {
        "dict subclass": MyDict(w=ones((2, 2))),
        "list subclass": MyList([np.ones(2)]),
        "special": Special(ones(2), [np.zeros(3)]),
        "dataclass": Unregistered("x", ones(2)),
        "nothing inside": Special(1, "2"),
        "cyclic": cell,
        "set": {1, 2},
        "frozenset": frozenset({"a", "b", "c"}),
        "deque": deque([np.ones(2)]),
        "counter": collections.Counter("aab"),
        "user dict": collections.UserDict(w=ones(2)),
        "mapping proxy": types.MappingProxyType({"w": ones(2)}),
        "object": object(),
        "generator": (x for x in ()),
        "module": np,
        "lock": threading.Lock(),
        "others": [range(3), slice(1, 2), ..., NotImplemented, memoryview(b"ab"), array.array("d", [1.0])],
        "known": [datetime.date(2024, 1, 1), fractions.Fraction(1, 3), pathlib.PurePosixPath("a"), re.compile("a<b>")],
        "uuid": uuid.UUID(int=1),
        "of JAX": [PartitionSpec("x", None), jnp.float32, np.dtype("f4"), jax.devices()[0], ones(2).sharding],
        "code": module_level_function.__code__,
        "exception": ValueError("</script>"),
    }


def _attrs() -> Any:
    import attrs

    return attrs.make_class("Attrs", ["w", "name"])(ones(2), "n")


def _pydantic() -> Any:
    import pydantic

    model = pydantic.create_model("Model", w=(Any, None), n=(int, 1))
    return model(w=ones(2))


def _refs() -> list[Any]:
    return [jax.new_ref(jnp.zeros((2, 3))), {"state": jax.new_ref(jnp.int32(0))}]


def _unreduced() -> Any:
    """A product whose parts are still to be summed over the devices."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2])
    specs = PartitionSpec(None, "x"), PartitionSpec("x", None), PartitionSpec(unreduced={"x"})
    lies = [NamedSharding(mesh, spec) for spec in specs]
    a, b = jax.device_put(ones((4, 8)), lies[0]), jax.device_put(ones((8, 4)), lies[1])
    return {"sum": jax.jit(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=lies[2]))(a, b), "a": a}


@functools.cache
def _quantized_class() -> type:
    from jax.experimental import hijax

    class Quantized:
        def __init__(self, values: Any, scale: Any) -> None:
            self.values, self.scale = values, scale

    @dataclass(frozen=True)
    class QuantizedType(hijax.HiType):
        n: int

        def lo_ty(self) -> list[Any]:
            return [jax.typeof(jnp.zeros(self.n, jnp.int8)), jax.typeof(jnp.float32(1))]

        def lower_val(self, value: Any) -> list[Any]:
            return [value.values, value.scale]

        def raise_val(self, values: Any, scale: Any) -> Any:
            return Quantized(values, scale)

        def str_short(self, *_: Any, **__: Any) -> str:
            return f"Q[{self.n}]"

        __str__ = __repr__ = str_short

    hijax.register_hitype(Quantized, lambda value: QuantizedType(len(value.values)))
    return Quantized


def quantized(n: int) -> Any:
    """A value of a type that is registered with JAX, and no pytree node."""
    return _quantized_class()(ones(n, jnp.int8), jnp.float32(0.1))


def _symbolic() -> Any:
    from jax import export

    n, m = export.symbolic_shape("n, 2*m")
    return jax.ShapeDtypeStruct((n, m, 3), jnp.float32)


def _sharded() -> dict[str, Any]:
    """Arrays on a mesh of all devices, whose axis has a bad name too."""
    devices = np.array(jax.devices())
    evil = Mesh(devices, (EVIL_TEXTS["script"],))
    mesh = Mesh(devices, ("data",))
    x = np.ones((8, 16), np.float32)
    return {
        "evil": jax.device_put(x, NamedSharding(evil, PartitionSpec(EVIL_TEXTS["script"]))),
        "rows": jax.device_put(x, NamedSharding(mesh, PartitionSpec("data", None))),
        "replicated": jax.device_put(x, NamedSharding(mesh, PartitionSpec())),
        "committed": jax.device_put(x, jax.devices()[-1]),
        "uncommitted": jnp.asarray(x),
        "abstract": jax.ShapeDtypeStruct(
            (8, 16), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(None, "data"))
        ),
    }


def _all_nodes() -> dict[str, Any]:
    return {
        "without keys": Registered(1.0, [2.0, None]),
        "with aux": WithAux(1.0, ones(2)),
        "with keys": Keyed(1.0, 2.0, 3.0),
        "repeated keys": Repeated(1.0, 2.0),
        "dataclass": Layer("apple", ones((2, 3)), b=None),
        "slots": Slotted(ones(2)),
        "static": Static("add"),
        "validating": Validating(ones(5)),
        "namedtuple": AdamState(jnp.int32(0), {"w": ones(2)}, {"w": ones(2)}),
        "partial": tree_util.Partial(module_level_function, ones(2), k=np.zeros(3)),
        "vjp": jax.vjp(jnp.sin, 1.0)[1],
    }


def _node_with_arrays_in_aux() -> Any:
    return [Layer("n", 1.0, units=np.arange(3)), WithAux(1.0, label=ones(2))]  # type: ignore[arg-type]


SAMPLES: dict[str, Callable[[], Any]] = {
    "a number": lambda: 1.0,
    "None": lambda: None,
    "an array": lambda: jax.device_put(np.arange(3, dtype=np.int32)),
    "an empty list": lambda: [],
    "empty containers": lambda: {"a": (), "b": [], "c": {}, "d": None, "e": OrderedDict(), "f": defaultdict(list)},
    "lists, tuples, dicts": lambda: [1, {"k1": 2, "k2": (3, 4)}, Point("foo", [5])],
    "dicts of all makes": lambda: [
        {"b": 2.0, "a": 3.0},
        OrderedDict(b=2.0, a=3.0),
        defaultdict(list, b=2.0, a=3.0),
    ],
    "keys of all types": lambda: [
        {1: 1.0, 2: 2.0, 10: 3.0},
        {True: 1.0},
        {None: 1.0},
        {0.5: 1.0, -0.0: 2.0, float("inf"): 3.0},
        {(1, "a"): 1.0, (1, "b"): {(): 2.0}},
        {b"k": 1.0},
        {Level.LOW: 1.0},
        {np.int64(3): 1.0, np.int64(4): 2.0},
        {frozenset({"b", "a"}): 1.0},
        {"a b": 1.0, "ü": 2.0, "a.b": 3.0, "0": 4.0},
        {Static("s"): 1.0},
    ],
    "registered nodes": _all_nodes,
    "layers that know their numbers": lambda: [
        *(WithAux(np.ones(3), label=f"layer {i}") for i in range(12)),
        WithAux(np.ones(3), label="head 12"),
    ],
    "arrays in auxiliary data": _node_with_arrays_in_aux,
    "a flatten that raises": lambda: {"bad": Raises(ValueError("</script>")), "good": 1.0},
    "a flatten that exits": lambda: [Raises(SystemExit(1)), Raises(GeneratorExit()), Raises(MemoryError())],
    "a PyTreeDef": lambda: tree_util.tree_structure(
        {
            "a": [1, (2, None)],
            "p": Point(1, 2),
            "l": Layer("n", 1, 2),
            "r": Registered(1, 2),
            "d": defaultdict(list, x=1),
        }
    ),
    "a PyTreeDef as a leaf": lambda: [tree_util.tree_structure([1, 2])],
    "every kind of leaf": leaf_kinds,
    "deleted and donated": lambda: [deleted(), donated()],
    "NumPy arrays": _numpy_arrays,
    "narrow dtypes": _narrow_dtypes,
    "PRNG keys": _prng_keys,
    "Python scalars": _python_scalars,
    "strings": lambda: ["", "a", b"a", bytearray(b"a"), "é" * 1000, Static],
    "functions": _functions,
    "opaque objects": _opaque_objects,
    "abstract leaves": lambda: [jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((0, 3), jnp.float16)],
    "sharded arrays": _sharded,
    "shared leaves and subtrees": shared,
    "a list that contains itself": cyclic_list,
    "a dict that contains itself": cyclic_dict,
    "2**40 paths": dag,
    "5,000 levels of lists": deep,
    "2,000 levels of dicts": lambda: deep(2_000, lambda below: {"down": below, "leaf": 1.0}),
    "2,000 levels of custom nodes": lambda: deep(2_000, Node),
    "3,000 children": lambda: {"list": list(range(3_000)), "dict": {f"k{i}": jnp.float32 for i in range(1_000)}},
    "many shapes": lambda: [jax.ShapeDtypeStruct((i, 2), jnp.float32) for i in range(1_000)],
    "astronomical shapes": lambda: [jax.ShapeDtypeStruct((10**10, 10**10), jnp.float32)] * 2 + [Special(1, 2)],
    **HOSTILE,
}
if importlib.util.find_spec("attrs"):
    SAMPLES["attrs"] = _attrs
if importlib.util.find_spec("pydantic"):
    SAMPLES["pydantic"] = _pydantic
if hasattr(jax, "new_ref"):
    SAMPLES["references"] = _refs
if jax.__version_info__ >= (0, 10):
    SAMPLES["an array whose parts are not summed yet"] = _unreduced
    SAMPLES["a value of a hijax type"] = lambda: [quantized(3), ones(2)]
if jax.__version_info__ >= (0, 5):
    SAMPLES["symbolic shapes"] = _symbolic
