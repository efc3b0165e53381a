"""The rules of `treeviz.check`, and the functions that run them and turn findings into badges."""

from __future__ import annotations

import dis
import functools
import operator
import re
import sys
import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, Literal, get_args

import jax
import numpy as np
from jax import tree_util

from treeviz.analysis.checks.rule import (
    LEVELS,
    MIB,
    RULES,
    Changed,
    Checked,
    Found,
    Level,
    Rule,
    TreeFinding,
    as_child,
    aux_attributes,
    registration,
    rule,
    stands_for,
)
from treeviz.tree.annotations import annotated_arrays
from treeviz.tree.describers import found_describer, static_of
from treeviz.tree.facts import KINDS, MASKED, NODE_KINDS, Facts, Note, is_refused
from treeviz.tree.keys import MISSING, stored_attribute, stored_items
from treeviz.tree.level import one_level
from treeviz.tree.opaque import arrays_in, captured_values, contents, step_to
from treeviz.tree.runtime import is_installed
from treeviz.tree.static import DROPPED, LOST
from treeviz.tree.stored import Stored
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.text import (
    array_bytes,
    aval_text,
    bytes_text,
    class_attribute,
    class_name,
    counted,
    error_text,
    function_name,
    guarded,
    has_base,
    is_any,
    is_function,
    module_name,
    unboxed,
    value_text,
    visible,
)
from treeviz.tree.tracers import is_tracing

_OTHER_LIBRARIES = ("torch", "tensorflow", "keras")  # registering their classes would not help
_FLOAT = re.compile(r"b?float(?!0$)")
_DISCRETE = re.compile(r"u?int\d|bool|key<|float0")
_WIDE = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
_LONG = {str(np.dtype(np.longdouble)): "float64", str(np.dtype(np.clongdouble)): "complex128"}
_NO_ARRAYS = ("string", "function", "opaque")  # kinds of leaves that hold no array
_MOST_FIELDS = 50
_DEEP = 200  # levels: in deeper trees paths are not joined and JAX's own flatten is not called
_CALLS = {"jit": "jit raises", "grad": "grad raises", "state": "a jitted step raises"}


@rule("T100", "error")
def hidden_arrays(checked: Checked) -> Iterator[Found]:
    """An object that is not registered as a pytree node holds arrays.

    JAX sees one leaf: `jax.tree.map`, optimizers and counts of parameters pass over its arrays, and `jit` and `grad`
    raise. That holds for subclasses of dict and list, and for dataclasses. Register the class.
    """
    registrations: dict[tuple[str, str], str] = {}
    for row, note in checked.noted("hidden"):
        facts = checked.facts(row)
        if not facts.is_leaf or facts.module.partition(".")[0] in _OTHER_LIBRARIES:
            continue
        node, key = checked.nodes[row], (facts.type, facts.module)
        text = note.text + "".join(f": {path} {what}" for path, what in note.details[:1])
        if not _is_of_library(type(node)):
            if key not in registrations:
                registrations[key] = registration(node)
            yield Found(row, text, registrations[key], note=note)
        elif callable(node):  # its author decides how JAX sees it
            yield Found(row, text, _apart(checked, row), _level(checked), note)
        else:
            yield Found(row, f"{text}; give JAX the arrays in it", note=note)


@rule("T113", "error")
def committed_to_different_devices(checked: Checked) -> Iterator[Found]:
    """Arrays are committed to different devices, or to the same ones in another order.

    A jitted function that gets both raises "Received incompatible devices". Arrays are committed by `jax.device_put`
    with a device or a sharding, and by jitted functions with shardings. Fine in a tree that no single call gets, such
    as the stages of a pipeline.
    """
    shardings: dict[int, Any] = {}
    sets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in checked.rows(lambda f: f.is_leaf and f.kind != "deleted" and bool(f.sharding and f.sharding.committed)):
        shardings[row] = checked.facts(row).sharding
        sets[shardings[row].device_ids].append(row)
    if len(sets) < 2:
        return
    largest = max(sets.values(), key=len)
    usual, place = checked.table[largest[0]], shardings[largest[0]]
    sharding = f"{usual.expression if usual.depth < _DEEP else 'x'}.sharding"
    if place.n_devices > 1:
        sharding = f"jax.sharding.NamedSharding({sharding}.mesh, jax.sharding.PartitionSpec())"
    others = f"{counted(len(largest), 'leaf', 'leaves')} to {place.devices or place.text}"
    for row in [row for rows in sets.values() if rows is not largest for row in rows]:
        devices = shardings[row].devices or shardings[row].text
        text = f"committed to {devices}, and {others}: jit raises when it gets both"
        yield Found(row, text, Changed(f"jax.device_put({{x}}, {sharding})"))


@rule("T120", "error")
def leaked_tracer(checked: Checked) -> Iterator[Found]:
    """A leaf is a tracer, and no function is traced.

    A function that JAX traced has stored it, in an attribute, a global or a list. It has no value, and every use of it
    raises UnexpectedTracerError. Return it from the function instead. Within a function that is traced, tracers are
    what its arguments are made of, and nothing is said.
    """
    for row in () if is_tracing() else checked.rows(lambda facts: facts.kind == "tracer"):
        yield Found(row, "a leaked tracer: every use of it raises")


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

    def is_swapped(facts: Facts) -> bool:  # numbers in a file, in a byte order other than this machine's
        return facts.kind == "stored" and facts.dtype[:1] in ("<", ">") and facts.dtype[1:2] in "fiuc"

    for row in checked.rows(lambda facts: is_refused(facts) or is_swapped(facts)):
        facts, fix = checked.facts(row), ""
        if facts.text == MASKED:
            fix = Changed("{x}.filled(0)")
        elif facts.dtype in _LONG:
            fix = Changed(f"np.asarray({{x}}, np.{_LONG[facts.dtype]})")
        elif facts.dtype[0] in "<>" and facts.elements and facts.dtype[1:2] not in "UMm":
            read = "np.asarray({x})" if facts.kind == "stored" else "{x}"
            fix = Changed(read + ".astype({x}.dtype.newbyteorder('='))")
        kind = "a masked array" if facts.text == MASKED else f"dtype {facts.dtype}"
        yield _invalid(checked, row, kind, fix or _apart(checked, row))


@rule("T131", "info")
def function_leaf(checked: Checked) -> Iterator[Found]:
    """A leaf is a function, as the activation of an Equinox module.

    `jax.jit` and `jax.grad` raise; `eqx.filter_jit` and its like take it. An error if the tree is for `jit`, `grad`
    or a state.
    """
    for row in checked.rows(lambda facts: facts.kind == "function"):
        yield _invalid(checked, row, "a function", _apart(checked, row))


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
        facts, cls = checked.facts(row), type(checked.nodes[row])
        is_hidden = row in hidden and facts.module.partition(".")[0] not in _OTHER_LIBRARIES
        if is_hidden or found_describer(cls):
            continue
        if facts.module.startswith("penzai."):
            fix = "{tree}, variables = pz.unbind_params({tree}, freeze=True)  # and later pz.bind_variables"
            yield _invalid(checked, row, facts.type, fix)
        elif facts.kind == "variable":
            yield _invalid(checked, row, facts.type, "", "; give JAX the array in it")
        else:
            container = stands_for(cls)
            fix = Changed(f"{container}({{x}})") if container else _apart(checked, row)
            yield _invalid(checked, row, facts.type, fix)


def _invalid(checked: Checked, row: int, what: str, fix: str, advice: str = "") -> Found:
    return Found(row, f"{what} is not a valid JAX type{_raises(checked)}{advice}", fix, _level(checked))


def _level(checked: Checked) -> Level:
    return "info" if checked.use == "any" else "error"


def _raises(checked: Checked) -> str:
    return f": {_CALLS[checked.use]}" if checked.use != "any" else ""


def _apart(checked: Checked, row: int) -> str:
    """Python that takes a leaf that is not an array out of the tree."""
    above, key = int(checked.table.parent[row]), checked.table.key(row).segment
    if above < 0:
        return ""
    parent = checked.facts(above)
    if parent.module.startswith("equinox") or parent.kind == "module":
        if not checked.rows(lambda facts: facts.is_leaf and facts.kind in ("array", "numpy")):
            return ""  # there would be no arrays on that side
        return "arrays, others = eqx.partition({tree}, eqx.is_array)  # or eqx.filter_jit, eqx.filter_grad"
    if parent.kind == "dict" and not parent.module:
        return f"{key if key.isidentifier() else 'apart'} = {{at}}  # a static argument, and not a leaf:\ndel {{at}}"
    if parent.kind == "list" and not parent.module:
        return "{at} = None"
    if parent.kind == "tuple" and not parent.module:
        return Changed("None")
    siblings = children_of(checked.table.end, above)
    names = [checked.table.key(sibling).segment for sibling in siblings[:_MOST_FIELDS]]
    if len(siblings) > _MOST_FIELDS or not all(map(str.isidentifier, names)):
        return ""
    # Otherwise it becomes a static field of its node's class.
    if parent.kind == "namedtuple":
        pairs = [*zip(names, siblings, strict=True)]
        meta = [name for name, other in pairs if other == row or checked.facts(other).kind in _NO_ARRAYS]
        data = [name for name in names if name not in meta]
        fields = "".join(f"\n    {name}: object" for name in names)
        return (
            "import dataclasses, functools\n\n"
            f"@functools.partial(jax.tree_util.register_dataclass, data_fields={data!r}, meta_fields={meta!r})\n"
            f"@dataclasses.dataclass\nclass {parent.type}:  # in place of the named tuple{fields}"
        )
    if class_attribute(type(checked.nodes[above]), "__dataclass_fields__") is not None:
        static_field = "dataclasses.field(metadata={'static': True, 'pytree_node': False})"
        return f"{key}: object = {static_field}  # in {parent.type}"
    return f"self.{key}  # in tree_flatten of {parent.type}: a part of the auxiliary data, and no child"


@rule("T133", "error")
def no_float_to_differentiate(checked: Checked) -> Iterator[Found]:
    """A leaf that `grad` gets is an integer, a bool, a PRNG key, or a tangent of type float0.

    `jax.grad` raises "grad requires real- or complex-valued inputs". Pass it as another argument, make it a float, or
    take `allow_int=True`, whose gradients have dtype float0. Only if the tree is for `grad`.
    """
    if checked.use != "grad":
        return

    def is_python_number(facts: Facts) -> bool:  # or a subclass of one, such as `IntEnum`
        return facts.kind == "scalar" and not facts.dtype

    for row in checked.rows(lambda f: is_python_number(f) or (f.is_leaf and bool(_DISCRETE.match(f.dtype)))):
        facts = checked.facts(row)
        if is_python_number(facts) and not has_base(type(checked.nodes[row]), int):
            continue
        is_number = facts.kind not in ("key", "float0")
        fix = Changed("jnp.asarray({x}, jnp.float32)") if is_number else _apart(checked, row)
        yield Found(row, f"{facts.dtype or facts.type} leaf: jax.grad will fail", fix)


@rule("T201", "info")
def weak_type(checked: Checked) -> Iterator[Found]:
    """A number in a state is weakly typed: a Python scalar, or `jnp.array(1.0)`.

    Where the step returns it strongly typed, its second call traces and compiles again. Harmless where it is returned
    as it came, or is made a Python scalar again. Only if the tree is a state.
    """
    if checked.use != "state":
        return
    for row in checked.rows(lambda f: f.is_leaf and f.weak and f.kind in ("array", "scalar") and f.type != "bool"):
        name = checked.facts(row).dtype or checked.facts(row).type
        dtype = {"int": "int32", "float": "float32", "complex": "complex64"}.get(name, name)
        text = f"weakly typed {name}: the second call of a step may compile again"
        yield Found(row, text, Changed(f"jnp.asarray({{x}}, jnp.{dtype})"))


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
    raises = checked.use in ("jit", "state")
    for row in checked.rows(lambda f: f.kind == "scalar" and f.type == "int" and f.weak):
        if not -(2 ** (n_bits - 1)) <= checked.nodes[row] < 2 ** (n_bits - 1):
            text = f"an integer that does not fit into {n_bits} bits{_raises(checked) if raises else ''}"
            yield Found(row, text, "", "error" if raises else None)
    for row in checked.rows(lambda f: n_bits < 64 and f.kind in ("numpy", "stored") and f.dtype in _WIDE):
        dtype = checked.facts(row).dtype
        yield Found(row, f"JAX converts {dtype} to {_WIDE[dtype]}", Changed(f"{{x}}.astype(np.{_WIDE[dtype]})"))


@rule("T204", "info")
def odd_dtype(checked: Checked) -> Iterator[Found]:
    """At most a tenth of ten or more arrays of floats has another dtype than the others.

    One float32 among bfloat16 makes what it is added to float32. Norms and optimizers keep float32 on purpose.
    """
    rows = checked.rows(lambda f: f.is_leaf and f.elements > 0 and f.shape is not None and bool(_FLOAT.match(f.dtype)))
    counts = Counter([checked.facts(row).dtype for row in rows])
    if len(rows) < 10 or len(counts) < 2:
        return
    usual, n = counts.most_common(1)[0]
    for row in rows if n >= 0.9 * len(rows) else ():
        if (dtype := checked.facts(row).dtype) != usual:
            yield Found(row, f"{dtype}, and {n:,} others are {usual}", Changed(f"{{x}}.astype(jnp.{usual})"))


@rule("T205", "info")
def replicated_beside_sharded(checked: Checked) -> Iterator[Found]:
    """An array of 1 MiB or more is replicated on all devices, and others are sharded.

    Each device holds the whole of it.
    """
    shardings = [f.sharding for f in checked.table.facts if f.is_leaf and f.sharding is not None]
    if not [sharding for sharding in shardings if sharding.n_devices > 1 and not sharding.replicated]:
        return
    for row in checked.rows(lambda f: f.is_leaf and f.bytes >= MIB):
        facts = checked.facts(row)
        if (sharding := facts.sharding) and sharding.replicated:
            text = f"replicated on {sharding.n_devices} devices, {bytes_text(facts.bytes)} on each; others are sharded"
            yield Found(row, text)


# Rules about flattening and unflattening, which run the user's code: only on request

_PLAIN = (bool, int, float, str, type(None))


@rule("T114", "warning", needs="roundtrip")
def unflatten_that_validates(checked: Checked) -> Iterator[Found]:
    """A class cannot be unflattened with anything but arrays.

    JAX unflattens with placeholders, None, or other trees: in `vmap`, `jacobian`, `eval_shape` and error messages. Let
    `tree_unflatten` set the attributes without calling `__init__`, or check nothing there.
    """
    for row, children, treedef in _first_nodes(checked):
        for placeholder, value in (("object()", object()), ("None", None), ("a tuple", (1, 2))):
            errors: list[BaseException] = []
            guarded(partial(treedef.unflatten, [value] * len(children)), errors.append)
            if errors:
                name = class_name(type(checked.nodes[row]))
                fix = f"new = object.__new__({name})  # in tree_unflatten, in place of calling {name}(…)"
                yield Found(row, f"cannot be unflattened with {placeholder}: {error_text(errors[0])}", fix)
                break


@rule("T115", "warning", needs="roundtrip")
def round_trip_that_changes(checked: Checked) -> Iterator[Found]:
    """A node is not the same after it was changed by flattening and unflattening: other children, or other static data.

    Then `jax.tree.map(lambda x: x, tree)` changes the tree, and a step that returns its state compiles again.
    """

    def problem(children: list, treedef: Any) -> str:
        again, other = tree_util.tree_flatten(treedef.unflatten(children), is_leaf=_first_only())
        if not _are_same(children, again):
            return "its children differ"
        return "" if other == treedef else "its static data compares as unequal"

    for row, *flat in _first_nodes(checked):
        if text := guarded(partial(problem, *flat), lambda error: f"raised {error_text(error)}"):
            yield Found(row, f"changed by flattening and unflattening: {text}")


@rule("T116", "warning", needs="roundtrip")
def two_flatten_functions(checked: Checked) -> Iterator[Found]:
    """The flatten function with keys gives other children than the one without.

    Paths then name other leaves than `jax.tree.leaves` has.
    """
    for row, children, _ in _first_nodes(checked):
        flatten = partial(tree_util.tree_flatten, checked.nodes[row], is_leaf=_first_only())
        other = guarded(flatten, lambda _, same=children: (same, None))[0]
        if not _are_same(children, other):
            yield Found(row, f"{len(children):,} children with keys, {len(other):,} without, or others")


@rule("T117", "info", needs="roundtrip")
def forgotten_attributes(checked: Checked) -> Iterator[Found]:
    """An attribute of a node is neither a child nor static data, and is lost or reset when JAX rebuilds the node.

    `jax.tree.map`, `jit` and every other function of JAX flatten a node and make a new one. A counter or a flag that
    was set on the old one is then gone without an error. Caches that are computed again are fine.
    """
    for row, children, treedef in _first_nodes(checked):
        node = checked.nodes[row]
        new = guarded(partial(treedef.unflatten, children), lambda _, node=node: node)
        if new is node or type(new) is not type(node):
            continue
        before, after = stored_items(node), stored_items(new)
        for name, value in before.items():
            if name not in after or after[name] is MISSING is not value:
                yield Found(row, f"the attribute {visible(name, 80)} is lost when JAX rebuilds the node")
            elif is_any(type(value), _PLAIN) and is_any(type(after[name]), _PLAIN) and after[name] != value == value:
                text = f"{value_text(value, 40)} becomes {value_text(after[name], 40)}"
                yield Found(row, f"the attribute {visible(name, 80)} is reset when JAX rebuilds the node: {text}")


@rule("T119", "info")
def dropped_field(checked: Checked) -> Iterator[Found]:
    """A field of a dataclass is neither a child nor static data, as `min_loss_scale` of jmp's DynamicLossScale.

    The flatten function does not return it, so `jax.tree.map`, `jit` and every other function of JAX make a node that
    has its default, or lacks it. Return it among the children or the static data. Fields with `init=False`, as of
    caches, are left out.
    """
    for row in checked.rows(lambda facts: any(name.endswith(DROPPED) for name, _ in facts.static)):
        fields = class_attribute(type(checked.nodes[row]), "__dataclass_fields__", {})
        for name, value in checked.facts(row).static:
            field = name.removesuffix(DROPPED)
            if field != name and getattr(fields.get(field), "init", True):
                yield Found(row, f"the field {field} = {value} is lost or reset when JAX rebuilds the node")


def _are_same(left: list, right: list) -> bool:
    """Whether two lists have the same objects, or containers of the same objects."""
    return len(left) == len(right) and all(
        a is b
        or (type(a) is type(b) and is_any(type(a), (list, tuple)) and all(map(operator.is_, a, b)) and len(a) == len(b))
        or (type(a) is type(b) is dict and a.keys() == b.keys() and all(a[key] is b[key] for key in a))
        for a, b in zip(left, right, strict=True)
    )


def _first_only() -> Callable[[Any], bool]:
    """An `is_leaf` that opens only the first node that it is called with."""
    seen: list[bool] = []
    return lambda _: bool(seen) or bool(seen.append(True))


def _first_nodes(checked: Checked) -> Iterator[tuple[int, list, Any]]:
    """(row, children, treedef of one level) of the first node of each class registered outside JAX."""
    of_jax, first = ("", "jax", "jaxlib"), dict[int, int]()
    for row in checked.rows(lambda f: f.kind in NODE_KINDS and f.module.partition(".")[0] not in of_jax):
        first.setdefault(id(type(checked.nodes[row])), row)
    for row in first.values():
        flatten = partial(tree_util.tree_flatten_with_path, checked.nodes[row], is_leaf=_first_only())
        flattened = guarded(flatten, lambda _: None)
        if flattened is not None and flattened[1].node_data() is not None:
            yield row, [child for _, child in flattened[0]], flattened[1]


# Rules about values, which are read only on request

_WHERE = "jnp.argwhere(~jnp.isfinite({at}))  # where"


@rule("T140", "warning", needs="values")
def not_finite(checked: Checked) -> Iterator[Found]:
    """A leaf has NaN or infinities; NaN is an error.

    One NaN in a parameter makes every later loss NaN. An infinity may be meant, as in a mask, or as the best loss so
    far.
    """
    noted = dict(checked.noted("nonfinite"))
    for row, (nan, inf, _), n in _leaves(checked):
        if nan or inf:
            parts = [f"{count:,} {word}" for word, count in (("NaN", nan), ("±Inf", inf)) if count]
            text = f"{' and '.join(parts)} among {n:,} values" if n > 1 else f"the value is {'NaN' if nan else '±Inf'}"
            fix = "" if checked.facts(row).kind == "variable" else _WHERE  # a variable is no array: jnp refuses it
            yield Found(row, text, fix, "error" if nan else None, noted.get(row))


@rule("T141", "info", needs="values")
def all_zero(checked: Checked) -> Iterator[Found]:
    """All values of an array of two elements or more are zero.

    New biases and moments are; kernels and gradients are not.
    """
    for row, (_, _, zeros), n in _leaves(checked):
        if n > 1 and zeros == n:
            yield Found(row, f"all {n:,} values are zero")


@rule("T142", "warning", needs="values")
def unread_values(checked: Checked) -> Iterator[Found]:
    """The values of a leaf were to be read and were not: an error if reading raised, as of a damaged file.

    Nothing is known of NaN in them. Arrays of more than 10^9 elements in host memory, and formats that treeviz does
    not know, are not read.
    """
    from treeviz.analysis.stats import NOT_SCANNED, UNREADABLE

    for row, note in checked.noted("info"):
        if note.text.startswith((UNREADABLE, NOT_SCANNED)):
            yield Found(row, note.text, level="error" if note.text.startswith(UNREADABLE) else None, note=note)


def _leaves(checked: Checked) -> Iterator[tuple[int, tuple[int, int, int], int]]:
    """(row, (NaN, infinities, zeros), elements) for the leaves whose values were read."""
    table = checked.table
    counts = np.stack([table.columns[name].values for name in ("nan", "inf", "zeros")])
    for row in np.flatnonzero(table.is_leaf & ~np.isnan(counts[0])).tolist():
        nan, inf, zeros = counts[:, row].astype(np.int64).tolist()
        yield row, (nan, inf, zeros), checked.facts(row).elements


# Elements: the fewest of an array that is compared, and the most of its sample
_N_RANDOM, _N_SAMPLE = 8, 4096
# Words of a path: a copy that is meant, or what an optimizer keeps
_COPY = re.compile(
    r"(?i)(?<![a-z])(ema|swa|avg|averaged?|target|tgt|teacher|online|old|prev|previous|best|last|init|initial|anchor"
    r"|ref|reference|frozen|slow|fast|backup|copy|snapshot|shadow|polyak|master|opt|optim|optimizer|mu|nu)(?![a-z])"
)
_KEY = re.compile(r"(?i)key|rng|seed")
_SPLIT = "was one key used twice? jax.random.split makes several of one"


@rule("T143", "warning", needs="values")
def equal_random_values(checked: Checked) -> Iterator[Found]:
    """Two leaves hold the same PRNG key or the same random numbers, or all slices of an array along its first axis do.

    The usual cause is a key that was used twice, or for all layers. What is drawn from equal keys is equal, and layers,
    heads and networks that start equal may stay equal while they train. Split the key. One array in two places is T211.
    Constants, ranges, tables and masks are not reported, nor optimizer states, nor copies by name
    (`ema_params`, `target`). Fine where a copy is meant.
    """
    with_like_statistics: dict[tuple, list[int]] = defaultdict(list)
    for row, statistics in _random_leaves(checked):
        with_like_statistics[statistics].append(row)
    for rows in with_like_statistics.values():
        firsts: list[int] = []
        for row in rows:
            x = checked.nodes[row]
            tests = {one: partial(_are_equal, checked.nodes[one], x) for one in firsts}  # T142 says what is not read
            first = next((one for one, test in tests.items() if guarded(test, lambda _: False)), None)
            if first is None:
                firsts.append(row)
                if n := guarded(partial(_n_equal_slices, x), lambda _: 0):
                    yield Found(row, f"all {n:,} slices along its first axis are equal: {_SPLIT}")
            elif _is_key(checked.facts(row)):
                parent, other = (checked.nodes[checked.table.parent[one]] for one in (row, first))
                if parent is not other or checked.table.parent[row] == checked.table.parent[first]:  # else it is T210
                    yield Found(row, f"the same PRNG key as {_place(checked, first)}: {_SPLIT}")
            elif x is not checked.nodes[first]:
                yield Found(row, f"another array with the random numbers of {_place(checked, first)}: {_SPLIT}")


def _random_leaves(checked: Checked) -> Iterator[tuple[int, tuple]]:
    """Each leaf that may hold keys or random numbers, with what is the same in leaves of equal values."""
    table = checked.table
    columns = [table.columns[name].values for name in ("min", "max", "mean", "rms")]
    for row in checked.rows(lambda facts: facts.is_leaf and (_is_key(facts) or facts.elements >= _N_RANDOM)):
        facts, statistics, place = checked.facts(row), [values[row].item() for values in columns], _place(checked, row)
        if facts.kind == "key":  # of keys that cannot be read, none is like another one
            bits = lambda row=row: jax.device_get(jax.random.key_data(checked.nodes[row])).tobytes()  # noqa: E731
            statistics = [guarded(bits, lambda _, row=row: row)]
        elif _is_key(facts):
            if len(facts.shape or ()) > 1 and not _KEY.search(place):  # or pairs of other numbers
                continue
        elif not (_FLOAT.match(facts.dtype) and statistics[0] < statistics[1]):
            continue
        above, n = [], row
        while n:
            n = int(table.parent[n])
            above.append(checked.facts(n).module)
        if not any(module.startswith("optax.") for module in above) and not _COPY.search(place):
            # A stream of NNX draws from its key and its count.
            siblings = children_of(table.end, int(table.parent[row])) if row else ()
            counts = [n for n in siblings if table.key(n).label.strip(".'[]") == "count"]
            yield row, (facts.dtype, facts.shape, *statistics, *columns[0][counts].tolist())


def _is_key(facts: Facts) -> bool:
    shape = facts.shape or ()
    return facts.kind == "key" or (facts.dtype == "uint32" and len(shape) in (1, 2) and shape[-1] in (2, 4))


def _are_equal(left: Any, right: Any) -> bool:
    from treeviz.analysis.compare.values import compare_arrays

    if left is right:
        return True
    gap = compare_arrays(left, right)
    return not (gap.n_outside or gap.n_nan) and (gap.n < _N_RANDOM or _is_random(left))


def _n_equal_slices(x: Any) -> int:
    """The number of slices along the first axis of an array in host memory; 0 unless all are equal and random."""
    part = _first_part(x)
    is_stack = isinstance(part, np.ndarray) and part.ndim > 1 and len(part) == len(x) > 1 and part.strides[0] != 0
    if not is_stack or any(not np.array_equal(part[0], other) for other in part[1:]):
        return 0
    is_key = part.dtype == np.uint32 and part[0].size < _N_RANDOM
    return len(part) if is_key or (part[0].size >= _N_RANDOM and _is_random(part[0])) else 0


def _is_random(x: Any) -> bool:
    """Whether a sample has many values, of which neighbors along each axis do not depend on each other."""
    part = _first_part(x)
    side = int(_N_SAMPLE ** (1 / max(part.ndim, 1)))
    sample = np.asarray(part[(slice(side),) * part.ndim])
    sample = np.abs(sample) if sample.dtype.kind == "c" else sample.astype(np.float64)
    if len(np.unique(sample)) <= min(16, sample.size // 2):
        return False
    sample -= sample.mean()
    variance = np.mean(sample**2)
    neighbors = (np.moveaxis(sample, axis, 0) for axis in range(sample.ndim) if sample.shape[axis] > 3)
    return all(abs(np.mean(along[1:] * along[:-1])) < 0.5 * variance for along in neighbors)


def _first_part(x: Any) -> Any:
    """A NumPy view or an array on one device; of a file, the first chunk that is read."""
    from treeviz.analysis.compare.values import parts_of

    return next(x.chunks()) if isinstance(x, Stored) else parts_of(x)[0][1]


# Rules about structure: cycles, nodes that JAX cannot flatten, keys, shared objects, and sizes

_IN_BOXES = ("array", "numpy", "scalar", "key")  # kinds of leaves that have no module
_MANY_LEAVES, _MANY_NODES = 5_000, 2_000


@rule("T110", "error")
def cycle(checked: Checked) -> Iterator[Found]:
    """A node contains itself.

    JAX flattens recursively and without a limit: it raises, or exhausts the interpreter's recursion for good, so that
    even `print` fails afterwards (jax#15711). Keep an index or a name in place of the node.
    """
    for row, note in checked.noted("cycle"):
        yield Found(row, "contains itself: JAX cannot flatten this tree", "{at} = None", note=note)


@rule("T111", "error")
def cannot_flatten(checked: Checked) -> Iterator[Found]:
    """JAX cannot flatten a node: its flatten function raises, or the keys of a dict cannot be sorted.

    JAX's error has no path. Keys of one type can be sorted; a flatten function has to take whatever the node holds.
    """
    for row, note in checked.noted("error"):
        facts = checked.facts(row)
        if facts.kind == "dict" and not facts.module:
            keys = checked.nodes[row].keys()
            is_distinct = guarded(lambda keys=keys: len(set(map(str, keys))) == len(keys), lambda _: False)
            text = "str(key)" if is_distinct else "f'{type(key).__name__} {key}'"
            yield Found(row, note.text, f"{{at}} = {{{text}: value for key, value in {{at}}.items()}}", note=note)
        elif facts.kind == "error" and not facts.is_leaf:
            yield Found(row, note.text, "jax.tree_util.tree_flatten_with_path({at})  # the traceback", note=note)


@rule("T112", "warning")
def repeated_keys(checked: Checked) -> Iterator[Found]:
    """Two children of one node have the same key.

    JAX asks for distinct keys and does not check it. A path then names several leaves, so that masks, checkpoints and
    labels by path mix them up.
    """
    table = checked.table
    rows, known = np.flatnonzero(table.key_codes), dict[str, int]()
    names = np.array([known.setdefault(key.keystr, len(known)) for key in table.keys], np.int64)[table.key_codes[rows]]
    pairs = table.parent[rows].astype(np.int64) * len(known) + names
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    for row, n in zip(rows[first[counts > 1]].tolist(), counts[counts > 1].tolist(), strict=True):
        parent, key = int(table.parent[row]), table.key(row).keystr
        if checked.facts(row).kind != "more":
            # Number the children of a class with a method for its keys, else the paths outside the tree.
            fix = (
                "leaves = jax.tree_util.tree_leaves_with_path({tree})\n"
                "names = [f'{i}{jax.tree_util.keystr(path)}' for i, (path, _) in enumerate(leaves)]  # each is another"
            )
            if class_attribute(cls := type(checked.nodes[parent]), "tree_flatten_with_keys") is not None:
                name = f"{class_name(cls)}.tree_flatten_with_keys"
                fix = (
                    f"def tree_flatten_with_keys(self, flatten={name}):\n"
                    "    children, aux = flatten(self)\n"
                    "    return [(jax.tree_util.SequenceKey(i), child) for i, (_, child) in enumerate(children)], aux\n"
                    f"\n{name} = tree_flatten_with_keys"
                )
            yield Found(parent, f"{n:,} of its children have the key {key}", fix)


@rule("T210", "info")
def shared_node(checked: Checked) -> Iterator[Found]:
    """A node occurs in several places.

    JAX sees a tree: each place gets gradients and updates of its own, and after one `jax.tree.map` the places are no
    longer one object. In a state it is a warning: a buffer that is donated twice raises.
    """
    yield from _shared(checked, is_leaf=False)


@rule("T211", "info")
def shared_array(checked: Checked) -> Iterator[Found]:
    """An array occurs in several places, as with tied weights.

    JAX sees two leaves: each gets a gradient of its own, and after one update they differ. In a state it is a warning:
    `donate_argnums` raises "Attempt to donate the same buffer twice".
    """
    yield from _shared(checked, is_leaf=True)


def _shared(checked: Checked, is_leaf: bool) -> Iterator[Found]:
    for row, note in checked.noted("shared"):
        facts = checked.facts(row)
        if note.row < 0 or facts.is_leaf != is_leaf or (is_leaf and not KINDS[facts.kind].has_identity):
            continue
        end = min(int(checked.table.end[row]), row + 1000)
        below = {(inner.kind, inner.is_leaf) for inner in map(checked.facts, range(row, end))}
        level = "warning" if checked.use == "state" and ("array", True) in below else None
        kind = "array" if is_leaf else "node"
        has_others = any(is_leaf and kind not in ("array", "numpy", "scalar") for kind, is_leaf in below)
        copy = "lambda a: a.copy() if isinstance(a, jax.Array) else a" if has_others else "jnp.copy"
        fix = Changed(f"jax.tree.map({copy}, {{x}})") if level else ""
        text = f"the same {kind} as {_place(checked, note.row)}: JAX updates each copy separately"
        yield Found(row, text, fix, level, note)


def _place(checked: Checked, row: int) -> str:
    return checked.table[row].keystr or "the root" if checked.table.depth[row] < _DEEP else "another one"


@rule("T118", "info")
def annotated_otherwise(checked: Checked) -> Iterator[Found]:
    """An array does not have the axes, sizes or dtype of its annotation by jaxtyping.

    The same name of an axis stands for one size in one object, as where jaxtyping checks a constructor; another object
    of the class may have another size. Nothing is said of an object all of whose arrays have further axes in front, as
    `vmap` makes it. Fine for a tree of other values in the same classes. A warning if the tree is for `jit`, `grad` or
    a state.
    """
    level = None if checked.use == "any" else "warning"
    first: dict[tuple[int, str], tuple[int, int]] = {}  # of each name in an object: the size, and the row
    for array in annotated_arrays(checked.table, checked.nodes):
        (shape, dtype), annotation = (array.facts.shape or (), array.facts.dtype), array.annotation
        what = f"{aval_text(shape, dtype)} in a field of {annotation.text}"
        if array.surplus:
            yield Found(array.row, f"{what}: {len(shape)} {'axis' if len(shape) == 1 else 'axes'}", level=level)
            continue
        if annotation.dtypes and dtype not in annotation.dtypes and array.facts.kind != "key":
            yield Found(array.row, f"{what}: its dtype is {dtype}", level=level)
        names, sizes = (annotation.along(len(shape), of_axes, None) for of_axes in (annotation.names, annotation.sizes))
        for name, wanted, size in zip(names, sizes, shape, strict=True):
            if wanted is not None and size != wanted and not (size == 1 and name in annotation.broadcast):
                yield Found(array.row, f"{what}: an axis of size {wanted} has {size}", level=level)
            if name and not (size == 1 and name in annotation.broadcast):
                known, row = first.setdefault((array.parent, name), (size, array.row))
                if known != size:
                    other = checked.table.key(row).label
                    yield Found(array.row, f"axis {name} has size {size}, and {known} in {other}", level=level)


@rule("T220", "info")
def shape_taken_for_nodes(checked: Checked) -> Iterator[Found]:
    """A tuple or list holds nothing but two to six Python integers: it may be a shape.

    JAX sees a node with that many leaves, so `jax.tree.map` goes inside: say `is_leaf` where the tuple is meant.
    """
    table = checked.table
    n_children = np.bincount(table.parent[1:], minlength=len(table))
    is_int = np.array([f.kind == "scalar" and f.type == "int" for f in table.facts], bool)[table.fact_codes]
    n_ints = np.bincount(table.parent[1:], weights=is_int[1:], minlength=len(table))
    for row in np.flatnonzero((n_children >= 2) & (n_children <= 6) & (n_ints == n_children)).tolist():
        facts = checked.facts(row)
        if facts.kind in ("tuple", "list") and not facts.module:
            fix = (
                f"is_shape = lambda x: type(x) is {facts.type} and len(x) > 0 and all(type(n) is int for n in x)\n"
                "shapes = jax.tree.leaves({tree}, is_leaf=is_shape)  # as in jax.tree.map(f, {tree}, is_leaf=is_shape)"
            )
            yield Found(row, f"a {facts.type} of {n_children[row]} integers is a node with as many leaves", fix)


@rule("T230", "info")
def many_leaves(checked: Checked) -> Iterator[Found]:
    """The tree has more than 5,000 leaves, or 2,000 nodes of registered classes.

    JAX flattens every argument of every call of a jitted function, and builds every result: that takes some 0.1 µs a
    leaf, and some µs for each node that Python flattens. Stack the layers, or split what changes from what does not.
    """
    table = checked.table
    n_leaves = int(np.count_nonzero(table.is_leaf))
    # The row of a box with one leaf, such as a Flax variable, has the kind of the leaf and the module of the box.
    n_nodes = len(checked.rows(lambda f: bool(f.module) and (not f.is_leaf or f.kind in _IN_BOXES)))
    if n_leaves <= _MANY_LEAVES and n_nodes <= _MANY_NODES:
        return
    duration = ""
    is_walked = not any(facts.kind in ("error", "cycle", "repeat", "more") for facts in table.facts)
    if is_walked and table.depth.max() < _DEEP:
        start = perf_counter()
        guarded(lambda: tree_util.tree_flatten(checked.nodes[0]), lambda _: None)
        duration = f": flattening it takes JAX {1e3 * (perf_counter() - start):.1f} ms a call"
    yield Found(0, f"{n_leaves:,} leaves and {n_nodes:,} nodes of registered classes{duration}")


@rule("T231", "info")
def ambiguous_paths(checked: Checked) -> Iterator[Found]:
    """Two leaves have the same path where keys are joined by "/" or ".", as in most files of checkpoints.

    {"a/b": 1, "a": {"b": 2}}: `jax.tree_util.keystr(path, simple=True, separator="/")` is the same for both, and one of
    them is lost.
    """
    table = checked.table
    if table.depth.max() >= _DEEP:
        return
    for separator in "/.":
        if not any(separator in key.segment for key in table.keys):
            continue
        paths, seen = [""], dict[str, int]()
        for row in range(1, len(table)):
            paths.append(f"{paths[table.parent[row]]}{separator}{table.key(row).segment}")
            if table.is_leaf[row] and seen.setdefault(paths[row], row) != row:
                yield Found(row, f'joined by "{separator}" its path is that of {table[seen[paths[row]]].keystr}')


# How JAX compares static data that holds arrays: what `==` does

Comparison = Literal["arrays", "identity", "own", "function"]
_MAX_COMPARED_OBJECTS = 2_000  # inspected in the static data of one node
_CONTAINERS = (list, tuple, dict, deque, types.MappingProxyType)
_GENERATED = ("<string>", "<attrs generated")  # the file names of methods that dataclasses and attrs generate


def comparison(aux: Any) -> Comparison:
    """What `==` compares in auxiliary data that holds arrays: the first of these. Runs no user code.

    "arrays": arrays, whose `==` has no truth value, in containers or dataclass fields. "identity": objects that are
    equal only to themselves. "own": objects whose class defines `==`. "function": functions that captured the arrays.
    """
    comparisons: set[Comparison] = set()
    waiting, seen = deque([aux]), set[int]()
    while waiting and len(seen) < _MAX_COMPARED_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        cls = type(value)
        equal, fields = (class_attribute(cls, name, {}) for name in ("__eq__", "__dataclass_fields__"))
        is_generated = type(equal) is types.FunctionType and equal.__code__.co_filename.startswith(_GENERATED)
        if has_base(cls, np.ndarray) or isinstance(value, jax.Array):
            comparisons.add("arrays" if guarded(lambda value=value: value.size != 1, lambda _: True) else "identity")
        elif is_generated if type(equal) is types.FunctionType else has_base(cls, *_CONTAINERS):
            ignored = lambda fields=fields: {f".{name}" for name, field in fields.items() if not field.compare}  # noqa: E731
            skipped = guarded(ignored, lambda _: set())
            waiting += [inner for path, inner in contents(value, _MAX_COMPARED_OBJECTS) if path not in skipped]
        elif arrays_in([("", value)], _MAX_COMPARED_OBJECTS).n_arrays:
            is_own = equal is not object.__eq__
            comparisons.add("function" if is_function(cls) else "own" if is_own else "identity")
    return next((way for way in get_args(Comparison) if way in comparisons), "own")


# Rules about the treedef of a node, which JAX compares and hashes at every call of a jitted function

_HASHED = frozenset(map(id, (str, int, float, bool, type(None))))  # by id: a metaclass may override ==
_OPENED = (tuple, list, dict, functools.partial)
_MAX_ITEMS = 100  # inspected in a static field
_MAX_WRAPPERS = 16
_MAX_OBJECTS = 2_000  # searched for arrays that one function refers to


@rule("T101", "error")
def array_in_static_data(checked: Checked) -> Iterator[Found]:
    """An array is in a static field, or in a list, dict or object there.

    JAX compares static data with `==` at each call of a jitted function. The first call passes. The next one with
    another array raises "The truth value of an array is ambiguous" or "Exception raised while checking equality of
    metadata", without a path; and with the same array, changed in place, it runs the old program (jax#28659). Make
    the field a child, or keep a tuple of numbers. Arrays in an object that JAX can compare do not raise, but each
    object that is not equal compiles again: info if its class defines `==`, or if it is a function or comes from an
    installed library, else a warning for `jit`, `grad` or a state.
    """
    for row, note in checked.noted("hidden"):
        facts = checked.facts(row)
        if facts.is_leaf or facts.kind == "closure" or LOST in note.text:
            continue
        example = "".join(f" {path} {text}" for path, text in note.details[:1])
        text = f"{note.text.partition(':')[0]}:{example}"
        node = checked.nodes[row]
        equality = comparison(guarded(lambda node=node: (one_level(node)[1] or (None, None))[1], lambda _: None))
        if equality == "arrays":
            yield Found(row, text, as_child(node), note=note)
        else:
            is_quiet = equality != "identity" or checked.use == "any" or _is_of_library(type(node))
            yield Found(row, f"{text}, {_COMPARED[equality]}", "", "info" if is_quiet else "warning", note)


_COMPARED = {
    "identity": "which jit compares as a whole: each new one compiles again, and a change in place is not seen",
    "own": "which jit compares by the == of its class: what is not equal compiles again",
    "function": "of a function, which is equal only to itself: each new one compiles again",
}


@rule("T102", "warning")
def mutable_static_data(checked: Checked) -> Iterator[Found]:
    """A static field is a list, a dict, a set, or another object that cannot be hashed.

    JAX asks for static data that can be hashed. Where the object changes in place, a jitted function does not see it
    and runs the old program: what it compiled for is compared with the same object. Where it does not change, it is
    harmless. A warning if the tree is for `jit`, `grad` or a state, and else an info; for nodes of installed libraries
    an info, and else nothing.
    """
    for rows, node, name, value in _static_fields(checked):
        is_described = bool(static_of(node))  # as the attributes of a model that a graphdef holds
        is_of_library = _is_of_library(type(node)) and not is_described
        is_noted = any(note.kind == "hidden" for note in checked.table.notes.get(rows[0], ()))
        if is_noted or (is_of_library and checked.use == "any") or not _is_unhashable(value):
            continue
        level = "info" if is_of_library or checked.use == "any" else None
        cls, kind, fix = type(value), class_name(type(value)), ""
        if has_base(cls, list, set, dict):
            place, owner = ("model", "its class") if is_described else ("self", class_name(type(node)))
            fix = f"{place}.{name} = tuple({place}.{name}{'.items()' * has_base(cls, dict)})  # in {owner}"
        elif guarded(lambda cls=cls: is_dataclass(cls) and cls.__hash__ is None, lambda _: False):
            fix = f"{kind} = dataclasses.dataclass(frozen=True)({kind})"
        text = f"is a {kind}, which cannot be hashed: a jitted function does not notice in-place changes"
        yield from (Found(row, f"the static field {name} {text}", fix, level) for row in rows)


def _is_of_library(cls: type) -> bool:
    """Whether the class is from an installed package, whose author chose the static data on purpose."""
    file = guarded(lambda: sys.modules[module_name(cls)].__file__, lambda _: None)
    return type(file) is str and is_installed(file)


def _is_unhashable(value: Any) -> bool:
    """Whether a value has no hash; of slices, which have one only since Python 3.12, the parts decide."""
    if id(type(value)) in _HASHED:
        return False
    if type(value) is slice:
        return _is_unhashable((value.start, value.stop, value.step))
    if not guarded(lambda: hash(value) is None, lambda _: True):
        return False
    return type(value) is not tuple or guarded(lambda: any(map(_is_unhashable, value)), lambda _: True)


@rule("T103", "warning")
def nan_in_static_data(checked: Checked) -> Iterator[Found]:
    """A static field is NaN.

    NaN is not equal to itself, so that a jitted function traces and compiles again for each node with another NaN
    object.
    """
    for rows, _, name, value in _static_fields(checked):
        if any(is_any(type(item), (float, np.float64, np.float32)) and item != item for item in _items(value)):
            text = f"the static field {name} {_is(value)} NaN: each new one compiles again"
            yield from (Found(row, text, f"self.{name} = None") for row in rows)


@rule("T104", "info")
def local_function_in_static_data(checked: Checked) -> Iterator[Found]:
    """A static function is a lambda, or was defined inside a function.

    Functions are equal only to themselves. A node that is made anew with a new lambda at each step compiles each time;
    one that is made once is fine. Functions of installed libraries are not named.
    """
    for rows, _, name, value in _static_fields(checked):
        for item in _items(value):
            if type(item) is not types.FunctionType or is_installed(item.__code__.co_filename):
                continue
            if "<lambda>" in item.__qualname__ or "<locals>" in item.__qualname__:
                text = f"the local function {function_name(item)}, equal only to itself"
                yield from (Found(row, f"the static field {name} {_is(value)} {text}") for row in rows)


@rule("T105", "warning")
def function_with_large_arrays(checked: Checked) -> Iterator[Found]:
    """A function captured arrays of 1 MiB or more, or uses global ones.

    They are constants of the program: JAX may copy them into each version that it compiles, compiling may take longer,
    and a new array under the same name is not seen. As arguments, `jax.tree_util.Partial(f, array)`, they are children.
    """
    functions: list[tuple[list[int], str, Any]] = []
    for row in checked.rows(lambda facts: facts.kind in ("function", "closure")):
        node = checked.nodes[row]
        if checked.facts(row).is_leaf:
            functions.append(([row], "", node))
        elif has_base(type(node), tree_util.Partial):
            functions.append(([row], "", guarded(lambda node=node: node.func, lambda _: None)))
    for rows, _, name, value in _static_fields(checked):
        if is_any(type(value), (types.FunctionType, types.MethodType)):
            functions.append((rows, f"in the static field {name}, ", value))
    for rows, prefix, function in functions:
        values = guarded(partial(captured_values, function), lambda _: [])
        arrays = arrays_in(((step_to(name), value) for name, value in [*values, *_globals(function)]), _MAX_OBJECTS)
        if arrays.n_bytes >= MIB:
            name, array = arrays.named[0]
            size = f"refers to {bytes_text(arrays.n_bytes)} of arrays, constants of what is compiled"
            text = f"{prefix}{function_name(function)} {size}: {name.strip('.()')} {array}"
            yield from (Found(row, text, "jax.tree_util.Partial(f, array)  # with f(array, x)") for row in rows)


def _globals(function: Any) -> list[tuple[str, Any]]:
    """(name, value) of the arrays of 1 MiB or more that the code of a function loads by global names."""
    for _ in range(_MAX_WRAPPERS):
        inner = guarded(lambda function=function: _inside(unboxed(function)), lambda _: None)
        if inner is None:
            break
        function = inner
    if type(function) is not types.FunctionType:
        return []
    code, scope = function.__code__, function.__globals__
    arrays = [(name, scope[name]) for name in code.co_names if isinstance(scope.get(name), jax.Array | np.ndarray)]
    return [(name, array) for name, array in arrays if array_bytes(array) >= MIB and name in _loaded_globals(code)]


def _inside(function: Any) -> Any:
    """The function that a partial, a method or a wrapper calls; None for others."""
    if has_base(type(function), functools.partial):
        return functools.partial.func.__get__(function)
    return function.__func__ if type(function) is types.MethodType else getattr(function, "__wrapped__", None)


@functools.lru_cache(maxsize=256)
def _loaded_globals(code: types.CodeType) -> frozenset[str]:
    return frozenset(each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")


def _is(value: Any) -> str:
    return "holds" if is_any(type(value), _OPENED) else "is"


def _items(value: Any) -> list[Any]:
    """The value, or the items in plain containers and the functions that partials call."""
    if not is_any(type(value), _OPENED):
        return [value]
    leaves, waiting = [], [value]
    for item in waiting:  # grows during the loop
        if type(item) is functools.partial:
            waiting.append(item.func)
        elif is_any(type(item), (tuple, list, dict)):
            waiting += islice(item.values() if type(item) is dict else item, _MAX_ITEMS)
        else:
            leaves.append(item)
        del waiting[_MAX_ITEMS:]
    return leaves


def _static_fields(checked: Checked) -> list[tuple[list[int], Any, str, Any]]:
    """Rows with the same facts, the first of their nodes, and the name and value of one of its static fields."""
    if "static" not in checked.cache:
        found = checked.cache["static"] = []
        rows_of_facts: dict[int, list[int]] = defaultdict(list)
        for row in checked.rows(lambda f: not f.is_leaf and bool(f.module) and bool(f.static)):
            rows_of_facts[int(checked.table.fact_codes[row])].append(row)
        for rows in rows_of_facts.values():
            node = checked.nodes[rows[0]]
            names = [name for name, _ in checked.facts(rows[0]).static if not name.endswith(DROPPED)]
            if described := static_of(node):
                fields = [*described]
            elif any(name.startswith("aux") for name in names):  # the parts of the auxiliary data have no names
                fields = aux_attributes(node)
            else:
                fields = [(name, value) for name in names if (value := stored_attribute(node, name)) is not MISSING]
            found += [(rows, node, name, value) for name, value in fields]
    return checked.cache["static"]


# Run the rules, and turn their findings into badges

_SIGNS: dict[Level, str] = {"error": "✕", "warning": "⚠", "info": "·"}
Result = tuple[Rule, list[Found]]


def run_rules(checked: Checked, *, roundtrip: bool = False, ignore: Collection[str] = ()) -> list[Result]:
    """The findings of each rule; rules about values run only if the table has statistics."""
    ready = {"", *(["values"] if "nan" in checked.table.columns else []), *(["roundtrip"] if roundtrip else [])}
    rules = [rule for code, rule in sorted(RULES.items()) if rule.needs in ready and code not in ignore]
    return [(rule, list(rule.run(checked))) for rule in rules]


def _worst_first(results: Sequence[Result]) -> list[tuple[Rule, Level, Found]]:
    every = [(source, found.level or source.level, found) for source, of_rule in results for found in of_rule]
    return sorted(every, key=lambda triple: LEVELS.index(triple[1]))


def findings(table: TreeTable, results: Sequence[Result]) -> Iterator[TreeFinding]:
    about = {source.code: source.about for source, _ in results}
    for source, level, found in _worst_first(results):
        yield TreeFinding(source.code, level, found.row, found.sentence, about[source.code], found.fix, table)


def with_badges(table: TreeTable, results: Sequence[Result]) -> TreeTable:
    """The table with a badge for each finding. Its code goes into a note of the walk about that problem, unless that
    links to another row and the finding is more than an info.
    """
    counts, coded, added = Counter[Level](), dict[int, tuple[str, Level]](), dict[int, list[Note]]()
    for source, level, found in _worst_first(results):
        counts[level] += 1
        if found.note is not None and (found.note.row < 0 or level == "info"):
            coded[id(found.note)] = source.code, level
        else:
            note = Note(level, f"{source.code}: {found.sentence}", severity=level, sign=_SIGNS[level])
            added.setdefault(found.row, []).append(note)

    def with_code(note: Note) -> Note:
        code, level = coded.get(id(note), ("", ""))
        return note._replace(text=f"{code}: {note.text}", severity=level) if code else note

    notes = {row: tuple(map(with_code, notes_of_row)) for row, notes_of_row in table.notes.items()}
    notes |= {row: (*badges, *notes.get(row, ())) for row, badges in added.items()}
    parts = [f"{n:,} {level}{'s' * (n > 1 and level != 'info')}" for level, n in counts.items()]
    checked = replace(table, notes=dict(sorted(notes.items())))
    return checked.with_headline(*table.headline, ", ".join(parts) or "checked: no finding")
