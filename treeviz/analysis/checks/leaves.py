"""Rules about leaves: what no JAX function takes, where they lie, and their dtypes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import jax
import numpy as np

from treeviz.analysis.checks.finding import Changed, Level
from treeviz.analysis.checks.fixes import registration, stands_for
from treeviz.analysis.checks.rule import MIB, Checked, Found, rule
from treeviz.tree.describers import found_describer
from treeviz.tree.facts import MASKED, Facts, is_refused
from treeviz.tree.numbers import bytes_text
from treeviz.tree.safe_repr import class_attribute, has_base
from treeviz.tree.tracers import is_tracing

_OTHER_LIBRARIES = ("torch", "tensorflow", "keras")  # registering their classes would not help
_FLOAT = re.compile(r"b?float(?!0$)")
_WIDE = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
_LONG = {str(np.dtype(np.longdouble)): "float64", str(np.dtype(np.clongdouble)): "complex128"}
_NO_ARRAYS = ("string", "function", "opaque")  # kinds of leaves
_MOST_FIELDS = 50
_DEEP = 200  # levels
_CALLS = {"jit": "jit raises", "grad": "grad raises", "state": "a jitted step raises"}


@rule("T100", "error")
def hidden_arrays(checked: Checked) -> Iterator[Found]:
    """An object that is not registered as a pytree node holds arrays.

    JAX sees one leaf: `jax.tree.map`, optimizers and counts of parameters pass over its arrays, and `jit` and `grad`
    raise. That holds for subclasses of dict and list, and for dataclasses. Register the class.
    """
    for row, note in checked.noted("hidden"):
        facts = checked.facts(row)
        if not facts.is_leaf or facts.module.partition(".")[0] in _OTHER_LIBRARIES:
            continue
        key = "registration", facts.type, facts.module
        if key not in checked.cache:
            checked.cache[key] = registration(checked.nodes[row])
        where = "".join(f": {path} {what}" for path, what in note.details[:1])
        yield Found(row, f"{note.text}{where}", checked.cache[key], note=note)


@rule("T113", "error")
def committed_to_different_devices(checked: Checked) -> Iterator[Found]:
    """Arrays are committed to different devices, or to the same ones in another order.

    A jitted function that gets both raises "Received incompatible devices". Arrays are committed by `jax.device_put`
    with a device or a sharding, and by jitted functions with shardings. Fine in a tree that no single call gets, such
    as the stages of a pipeline.
    """
    sets: dict[tuple[int, ...], list[int]] = {}
    for row in checked.rows(_is_committed):
        where = checked.facts(row).sharding
        if where is not None:
            sets.setdefault(where.device_ids, []).append(row)
    if len(sets) < 2:
        return
    most = max(sets.values(), key=len)
    usual, n = checked.table[most[0]], len(most)
    sharding = f"{usual.expression if usual.depth < _DEEP else 'x'}.sharding"
    if usual.facts.sharding and usual.facts.sharding.n_devices > 1:
        sharding = f"jax.sharding.NamedSharding({sharding}.mesh, jax.sharding.PartitionSpec())"
    others = f"{n:,} {'leaf' if n == 1 else 'leaves'} to {_devices(usual.facts)}"
    for rows in sets.values():
        for row in rows if rows is not most else ():
            text = f"committed to {_devices(checked.facts(row))}, and {others}: jit raises where it gets both"
            yield Found(row, text, Changed(f"jax.device_put({{x}}, {sharding})"))


def _is_committed(facts: Facts) -> bool:
    return facts.is_leaf and facts.kind != "deleted" and facts.sharding is not None and bool(facts.sharding.committed)


def _devices(facts: Facts) -> str:
    return facts.sharding.devices or facts.sharding.text if facts.sharding else ""


@rule("T120", "error")
def leaked_tracer(checked: Checked) -> Iterator[Found]:
    """A leaf is a tracer, and no function is traced.

    A function that JAX traced has stored it, in an attribute, a global or a list. It has no value, and every use of it
    raises UnexpectedTracerError. Return it from the function instead. Within a function that is traced, tracers are
    what its arguments are made of, and nothing is said.
    """
    rows = checked.rows(lambda facts: facts.kind == "tracer")
    if rows and not is_tracing():
        for row in rows:
            yield Found(row, "a tracer that has left the function that JAX traced: every use of it raises")


@rule("T121", "error")
def deleted(checked: Checked) -> Iterator[Found]:
    """The buffer of an array was deleted, or donated to a jitted function.

    Every use raises "Array has been deleted", without a path. Keep what the function returns, and not its argument.
    """
    for row in checked.rows(lambda facts: facts.kind == "deleted"):
        fix = "{tree} = step({tree})  # with donate_argnums: keep the result, or donate jax.tree.map(jnp.copy, {tree})"
        yield Found(row, "deleted or donated: every use of it raises", fix)


@rule("T130", "info")
def no_jax_dtype(checked: Checked) -> Iterator[Found]:
    """A NumPy array holds objects, text, dates, records or long doubles, is masked, or has its bytes in another order.

    No JAX function takes it: `jnp.asarray` raises. Files of FITS, HDF5 and NumPy have numbers such as ">f4", most
    significant byte first. An error if the tree is for `jit`, `grad` or a state.
    """
    for row in checked.rows(lambda facts: is_refused(facts) or _is_swapped(facts)):
        facts = checked.facts(row)
        what = "a masked array" if facts.text == MASKED else f"dtype {facts.dtype}"
        yield Found(row, f"{what} is no JAX type{_raises(checked)}", _for_jax(checked, row), _level(checked))


def _is_swapped(facts: Facts) -> bool:
    """Whether the numbers in a file have their bytes in another order than those of this machine."""
    return facts.kind == "stored" and facts.dtype[:1] in ("<", ">") and facts.dtype[1:2] in "fiuc"


def _for_jax(checked: Checked, row: int) -> str:
    """Python that makes an array what JAX takes, or takes it out of the tree."""
    facts = checked.facts(row)
    if facts.text == MASKED:
        return Changed("{x}.filled(0)")
    if facts.dtype in _LONG:
        return Changed(f"np.asarray({{x}}, np.{_LONG[facts.dtype]})")
    if facts.dtype[0] in "<>" and facts.elements and facts.dtype[1:2] not in "UMm":
        read = "np.asarray({x})" if facts.kind == "stored" else "{x}"
        return Changed(read + ".astype({x}.dtype.newbyteorder('='))")
    return _apart(checked, row)


@rule("T131", "info")
def function_leaf(checked: Checked) -> Iterator[Found]:
    """A leaf is a function, as the activation of an Equinox module.

    `jax.jit` and `jax.grad` raise; `eqx.filter_jit` and its like take it. An error if the tree is for `jit`, `grad`
    or a state.
    """
    for row in checked.rows(lambda facts: facts.kind == "function"):
        yield Found(row, f"a function is no JAX type{_raises(checked)}", _apart(checked, row), _level(checked))


@rule("T132", "info")
def other_leaf(checked: Checked) -> Iterator[Found]:
    """A leaf is text, or an object that JAX does not know and that holds no array.

    `jax.jit` and `jax.grad` raise "not a valid JAX type", and `grad` and `vmap` without a path. Text in a named tuple
    is a leaf: a dataclass can keep it in `meta_fields`. So are iterators and the values of a dict, of which `jax.tree`
    warns since jax 0.10, and for which it will raise: make lists of them. An error if the tree is for `jit`, `grad` or
    a state.
    """
    hidden = {row for row, _ in checked.noted("hidden")}
    for row in checked.rows(lambda f: f.is_leaf and f.kind in ("string", "opaque", "tensor", "variable")):
        facts = checked.facts(row)
        if row not in hidden or facts.module.partition(".")[0] in _OTHER_LIBRARIES:
            cls = type(checked.nodes[row])
            if found_describer(cls):
                continue
            container = stands_for(cls)
            fix = Changed(f"{container}({{x}})") if container else _apart(checked, row)
            yield Found(row, f"{facts.type} is no JAX type{_raises(checked)}", fix, _level(checked))


def _level(checked: Checked) -> Level:
    return "info" if checked.use == "any" else "error"


def _raises(checked: Checked) -> str:
    return f": {_CALLS[checked.use]}" if checked.use != "any" else ""


def _apart(checked: Checked, row: int) -> str:
    """Python that takes a leaf that is no array out of a tree."""
    parent, key = checked.parent(row), checked.table.key(row).segment
    if parent is None:
        return ""
    if parent.module.startswith("equinox") or parent.kind == "module":
        return "arrays, others = eqx.partition({tree}, eqx.is_array)  # or eqx.filter_jit, eqx.filter_grad"
    if parent.kind == "dict" and not parent.module:
        return f"{key if key.isidentifier() else 'apart'} = {{at}}  # a static argument, and not a leaf:\ndel {{at}}"
    if parent.kind == "list" and not parent.module:
        return "{at} = None"
    if parent.kind == "tuple" and not parent.module:
        return Changed("None")
    return _as_static_field(checked, row, parent)


def _as_static_field(checked: Checked, row: int, parent: Facts) -> str:
    """Python that keeps a field in the treedef, in the class of the node."""
    siblings, cls = checked.siblings(row), type(checked.nodes[int(checked.table.parent[row])])
    names = [checked.table.key(each).segment for each in siblings[:_MOST_FIELDS]]
    if len(siblings) > _MOST_FIELDS or not all(map(str.isidentifier, names)):
        return ""
    kinds = [checked.facts(each).kind for each in siblings]
    meta = [name for name, kind, each in zip(names, kinds, siblings, strict=True) if each == row or kind in _NO_ARRAYS]
    data = [name for name in names if name not in meta]
    if parent.kind == "namedtuple":
        fields = "".join(f"\n    {name}: object" for name in names)
        return (
            "import dataclasses, functools\n\n"
            f"@functools.partial(jax.tree_util.register_dataclass, data_fields={data!r}, meta_fields={meta!r})\n"
            f"@dataclasses.dataclass\nclass {parent.type}:  # in place of the named tuple{fields}"
        )
    name = checked.table.key(row).segment
    if class_attribute(cls, "__dataclass_fields__") is not None:
        how = "dataclasses.field(metadata={'static': True, 'pytree_node': False})"
        return f"{name}: object = {how}  # in {parent.type}"
    return f"self.{name}  # in tree_flatten of {parent.type}: a part of the auxiliary data, and no child"


@rule("T133", "error")
def no_float_to_differentiate(checked: Checked) -> Iterator[Found]:
    """A leaf that `grad` gets is an integer, a bool, a PRNG key, or a tangent of type float0.

    `jax.grad` raises "grad requires real- or complex-valued inputs". Pass it as another argument, make it a float, or
    take `allow_int=True`, whose gradients have dtype float0. Only if the tree is for `grad`.
    """
    if checked.use != "grad":
        return
    for row in checked.rows(_may_be_discrete):
        facts = checked.facts(row)
        if _is_number(facts) and not has_base(type(checked.nodes[row]), int):
            continue
        is_number = facts.kind not in ("key", "float0")
        fix = Changed("jnp.asarray({x}, jnp.float32)") if is_number else _apart(checked, row)
        yield Found(row, f"{facts.dtype or facts.type} cannot be differentiated: grad raises", fix)


def _is_number(facts: Facts) -> bool:
    """Whether it is a number of Python, or of a class that is based on one, such as an `IntEnum`."""
    return facts.kind == "scalar" and not facts.dtype


def _may_be_discrete(facts: Facts) -> bool:
    if _is_number(facts):
        return facts.type not in ("float", "complex")
    return facts.is_leaf and bool(re.match(r"u?int\d|bool|key<|float0", facts.dtype))


@rule("T201", "info")
def weak_type(checked: Checked) -> Iterator[Found]:
    """A number in a state is weakly typed: a Python scalar, or `jnp.array(1.0)`.

    Where the step returns it strongly typed, its second call traces and compiles again. Harmless where it is returned
    as it came, or is made a Python scalar again. Only if the tree is a state.
    """
    if checked.use != "state":
        return
    said: dict[str, tuple[str, Changed]] = {}
    for row in checked.rows(lambda f: f.is_leaf and f.weak and f.kind in ("array", "scalar") and f.type != "bool"):
        facts = checked.facts(row)
        what = facts.dtype or facts.type
        if what not in said:
            dtype = {"int": "int32", "float": "float32", "complex": "complex64"}.get(what, what)
            text = f"weakly typed {what}: the second call of a step may compile again"
            said[what] = text, Changed(f"jnp.asarray({{x}}, jnp.{dtype})")
        yield Found(row, *said[what])


@rule("T202", "info")
def large_numpy_leaf(checked: Checked) -> Iterator[Found]:
    """A NumPy array has 1 MiB or more.

    Each call of a jitted function copies it to the device. A warning if the tree is for `jit`, `grad` or a state,
    though a batch of inputs has to be copied.
    """
    for row in checked.rows(lambda f: f.kind == "numpy" and f.bytes >= MIB and f.elements > 0):
        text = f"{bytes_text(checked.facts(row).bytes)} in host memory: each call copies it to the device"
        level = None if checked.use == "any" else "warning"
        yield Found(row, text, Changed("jnp.asarray({x})"), level)


@rule("T203", "info")
def canonicalized_dtype(checked: Checked) -> Iterator[Found]:
    """A NumPy array has 64 bits a number, and JAX takes 32, unless `jax_enable_x64` is set.

    JAX converts it without a word at each call. Large integers wrap around. A Python integer that is too large raises
    OverflowError: an error if the tree is for `jit` or a state.
    """
    n_bits = 64 if jax.config.jax_enable_x64 else 32  # type: ignore[attr-defined]
    for row in checked.rows(lambda f: f.kind == "scalar" and f.type == "int" and f.weak):
        if not -(2 ** (n_bits - 1)) <= checked.nodes[row] < 2 ** (n_bits - 1):
            text = f"an integer that does not fit into {n_bits} bits"
            raises = checked.use in ("jit", "state")
            yield Found(row, f"{text}{_raises(checked)}" if raises else text, "", "error" if raises else None)
    if n_bits == 64:
        return
    for row in checked.rows(lambda f: f.kind in ("numpy", "stored") and f.dtype in _WIDE):
        dtype = checked.facts(row).dtype
        yield Found(row, f"JAX turns {dtype} into {_WIDE[dtype]}", Changed(f"{{x}}.astype(np.{_WIDE[dtype]})"))


@rule("T204", "info")
def odd_dtype(checked: Checked) -> Iterator[Found]:
    """At most a tenth of ten or more arrays of floats has another dtype than the others.

    One float32 among bfloat16 makes what it is added to float32. Norms and optimizers keep float32 on purpose.
    """
    rows = checked.rows(lambda f: f.is_leaf and f.elements > 0 and f.shape is not None and bool(_FLOAT.match(f.dtype)))
    counts = Counter(checked.facts(row).dtype for row in rows)
    if len(rows) < 10 or len(counts) < 2:
        return
    usual, n = counts.most_common(1)[0]
    if n < 0.9 * len(rows):
        return
    for row in rows:
        dtype = checked.facts(row).dtype
        if dtype != usual:
            yield Found(row, f"{dtype}, and {n:,} others are {usual}", Changed(f"{{x}}.astype(jnp.{usual})"))


@rule("T205", "info")
def replicated_beside_sharded(checked: Checked) -> Iterator[Found]:
    """An array of 1 MiB or more is replicated on all devices, and others are sharded.

    Each device holds the whole of it.
    """
    if not any(
        f.is_leaf and f.sharding is not None and f.sharding.n_devices > 1 and not f.sharding.replicated
        for f in checked.table.facts
    ):
        return
    for row in checked.rows(
        lambda f: f.is_leaf and f.bytes >= MIB and f.sharding is not None and f.sharding.replicated
    ):
        facts = checked.facts(row)
        n = facts.sharding.n_devices if facts.sharding else 0
        yield Found(row, f"replicated on {n} devices, {bytes_text(facts.bytes)} on each; others are sharded")
