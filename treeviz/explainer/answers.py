"""Explain a call that failed inside JAX, by the function of JAX that raised.

If JAX renames a function or its variables, that error loses its explanation and nothing else breaks. To add an answer,
write a function of the failed call and its callers, innermost first, and list it in `ANSWERS`, and the place of JAX's
function in `jax_private.TO_EXPLAIN`, where a test sees that JAX has moved it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.analysis.overlay.overlaid import InAxes, OutAxes, Shardings, Use, overlaid
from treeviz.api import apply_prefix
from treeviz.explainer.frames import (
    Answer,
    Call,
    Calls,
    describe_value,
    is_inexact,
    is_jit_value,
    is_ref,
    leaves_of,
    names_of,
    remedy,
)
from treeviz.prepare import scanned
from treeviz.steps.compiles.types import JitType, LeafType, compare_places, compare_types, is_committed, jit_type
from treeviz.tree.keys import keystr
from treeviz.tree.leaves import describe_sharding
from treeviz.tree.text import guarded, is_any, value_text
from treeviz.tree.walk import walk

# Specs that do not match their trees: `vmap`, `pmap`, `shard_map`, shardings and placement.


class _TextKey(NamedTuple):
    """A key that is shown as its text alone: "kwargs"."""

    text: str

    def __str__(self) -> str:
        return self.text


@tree_util.register_pytree_with_keys_class
class _NamedChildren:
    """A node whose children have such keys."""

    def __init__(self, names: Iterable[str], children: Iterable[Any]) -> None:
        self._names, self._children = tuple(names), tuple(children)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        return [*zip(map(_TextKey, self._names), self._children, strict=True)], self._names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Iterable[Any]) -> _NamedChildren:
        return cls(names, children)


class _AxesOfArguments(InAxes):
    """`InAxes` for arguments that are not in a tuple."""

    align = OutAxes.align


def _spec_differences(use: Use, names: Sequence[str], specs: Iterable[Any], trees: Iterable[Any]) -> Differences:
    """The differences between trees and their specs, one spec per named tree."""
    side = Side(*scanned(_NamedChildren(names, trees), None, "tree"))
    return overlaid(_NamedChildren(names, specs), side, use, None).differences


def explain_vmap(calls: Calls) -> Answer:
    frame_vars = calls[0].variables
    args, kwargs, in_axes = frame_vars["args"], frame_vars["kwargs"], frame_vars["in_axes"]
    differences = apply_prefix(in_axes, args, use="in_axes").differences
    if not differences and kwargs:  # vmap maps keyword arguments along axis 0
        names = [*(f"[{i}]" for i in range(len(args))), "kwargs"]
        specs = [*(in_axes if is_any(type(in_axes), (tuple, list)) else [in_axes] * len(args)), 0]
        misfits = _spec_differences(_AxesOfArguments(), names, specs, [*args, kwargs])
        differences = Differences(misfit for misfit in misfits if misfit.kind in ("size", "axis"))
    return "in_axes does not fit the arguments", differences


def explain_vmap_result(calls: Calls) -> Answer:
    """`vmap`: the function returned a value that is not an array, or that `out_axes` does not match."""
    frame_vars = calls[0].variables
    outs = frame_vars["outs"]
    out_tree = next(call.variables["out_tree"] for call in calls if call.function == "vmap_f")
    names = paths(out_tree())
    if not all(map(is_jit_value, outs)):
        return "vmap returns only arrays and numbers", [
            f"result{path}: {describe_value(leaf)}: {remedy(leaf)}"
            for path, leaf in zip(names, outs, strict=True)
            if not is_jit_value(leaf)
        ]
    avals = [jax.ShapeDtypeStruct(out.shape, out.dtype) if hasattr(out, "shape") else out for out in outs]
    return "out_axes does not fit the result", _spec_differences(OutAxes(), names, frame_vars["out_dim_dests"], avals)


def explain_prefix(calls: Calls) -> Answer:
    """`out_axes`, `in_shardings`, `out_shardings` and `device_put`."""
    frame_vars = calls[0].variables
    if frame_vars.get("name") == "vmap in_axes":  # `explain_vmap` explains it better
        return "", ()
    return _explain_not_a_prefix(
        frame_vars.get("name") or frame_vars.get("what") or "the prefix",
        frame_vars["axis_tree"],
        frame_vars["dummy_tree"],
    )


def explain_broadcast(calls: Calls) -> Answer:
    """`jax.tree.broadcast`, and `shard_map` and `pmap`, which call it."""
    frame_vars = next(call.variables for call in calls if call.function == "broadcast_prefix")
    name = "out_specs" if any(map(_is_shard_map, calls)) else "the prefix"
    if any("infer_params" in call.variables for call in calls):
        name = "out_axes"
    return _explain_not_a_prefix(name, frame_vars["prefix_tree"], frame_vars["full_tree"])


def _explain_not_a_prefix(name: str, prefix: Any, tree: Any) -> Answer:
    differences = map_mismatches(prefix, tree, is_leaf=lambda node: node is None)
    words = {"missing": "in the prefix, but not in the tree", "extra": "in the tree, but not in the prefix"}
    return f"{name} is not a prefix of the tree", [
        f"{difference.path or 'the root'}: {words[difference.kind]}" if difference.kind in words else difference
        for difference in differences
    ]


def explain_shardings(calls: Calls) -> Answer:
    """`in_shardings`, with one spec per argument, and `out_shardings`."""
    specs = calls[0].variables["shardings"]
    if not str(calls[0].variables["what"]).endswith("in_shardings"):
        return explain_prefix(calls)
    specs = _with_none(specs)
    frame_vars = next(call.variables for call in calls if call.function == "_infer_params")
    args, static = frame_vars["args"], getattr(frame_vars["ji"], "static_argnums", ())
    args = tuple(arg for i, arg in enumerate(args) if i not in {n % len(args) for n in static})
    title = "in_shardings does not fit the arguments"
    if type(specs) is not tuple:
        differences = apply_prefix((specs,), args, use="shardings").differences
        hint = "" if differences else ": put it into a tuple, in_shardings=(…,)"
        return title, [f"the root: it must be a tuple with one spec for each argument{hint}"]
    return title, _argument_differences(specs, args, "shardings")


def _with_none(specs: Any) -> Any:
    """Restores the None values that JAX replaced by a marker in dicts, lists and tuples."""
    if type(specs) is dict:
        return {key: _with_none(spec) for key, spec in specs.items()}
    if is_any(type(specs), (list, tuple)):
        return type(specs)(map(_with_none, specs))
    return None if type(specs).__name__ == "UnspecifiedValue" else specs


def _argument_differences(specs: tuple, args: tuple, use: str, mesh: Any = None) -> list[Any]:
    """The differences between specs and arguments, including missing and surplus specs."""
    names = [f"[{i}]" for i in range(max(len(specs), len(args)))]
    surplus = [
        f"{name}: {value_text(spec, 60)}: a spec without an argument" for name, spec in zip(names, specs, strict=False)
    ]
    missing = [
        f"{name}{path}: {describe_value(leaf)}: no spec"
        for name, arg in zip(names[len(specs) :], args[len(specs) :], strict=True)
        for path, leaf in leaves_of(arg)
    ]
    n = min(len(specs), len(args))
    return [*apply_prefix(specs[:n], args[:n], use=use, mesh=mesh).differences, *surplus[len(args) :], *missing]


def explain_divisibility(calls: Calls) -> Answer:
    """`jit`, `device_put` and `with_sharding_constraint`: a sharding does not divide its array."""
    frame_vars = calls[0].variables
    outer = next((call for call in calls if call.function in ("device_put", "with_sharding_constraint")), calls[0])
    names, specs, avals = frame_vars.get("names") or (), frame_vars["shardings"], frame_vars["flat_avals"]
    if "x" in outer.variables:
        names = [path or "the array" for path, _ in leaves_of(outer.variables["x"])]
    if outer.function == "device_put":
        specs, avals = outer.variables["device_flat"], outer.variables["x_avals"]
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    specs = [spec if isinstance(spec, jax.sharding.Sharding) else None for spec in specs]
    return "shardings do not fit the arrays", _spec_differences(Shardings(), [*map(str, names)], specs, avals)


def _is_shard_map(call: Call) -> bool:
    return call.function == "wrapped" and {"in_specs", "mesh", "args"} <= call.variables.keys()


def explain_wrapper(calls: Calls) -> Answer:
    """`shard_map` and `pmap`, which have flattened their trees before the error is raised."""
    frame_vars = calls[0].variables
    if _is_shard_map(calls[0]):
        return _explain_arguments(
            "shard_map", "in_specs", frame_vars["in_specs"], frame_vars["args"], frame_vars["mesh"]
        )
    infer = frame_vars["infer_params"]
    closure = dict(zip(infer.__code__.co_freevars, infer.__closure__, strict=True))
    if frame_vars["kwargs"] or closure["static_broadcasted_tuple"].cell_contents:
        return "", ()
    in_axes, args = closure["in_axes"].cell_contents, frame_vars["args"]
    title, differences = _explain_arguments("pmap", "in_axes", in_axes, args)
    if differences:
        return title, differences
    n = len(closure["devices"].cell_contents or jax.local_devices())
    return _too_many(args, in_axes, n)


def _too_many(args: Sequence[Any], in_axes: Any, n: int) -> Answer:
    """The leaves whose mapped axis is longer than the number of devices."""
    if type(in_axes) is not int:
        return "", ()
    return f"pmap maps an axis over {n:,} {'device' if n == 1 else 'devices'}", [
        f"[{i}]{path}: {describe_value(leaf)}: axis {in_axes} has {leaf.shape[in_axes]:,}"
        for i, arg in enumerate(args)
        for path, leaf in leaves_of(arg)
        if leaf.shape[in_axes] > n
    ]


def _explain_arguments(function: str, name: str, specs: Any, args: Any, mesh: Any = None) -> Answer:
    no_arrays = [(path, leaf) for path, leaf in leaves_of(args) if not is_jit_value(leaf)]
    if no_arrays:
        return f"{function} accepts only arrays and numbers", [
            f"{path}: {describe_value(leaf)}: {remedy(leaf)}" for path, leaf in no_arrays
        ]
    title, use = f"{name} does not fit the arguments", "shardings" if name == "in_specs" else name
    if type(specs) is tuple and len(specs) != len(args):
        return title, _argument_differences(specs, args, use, mesh)
    return title, apply_prefix(specs, args, use=use, mesh=mesh).differences


def explain_out_specs(calls: Calls) -> Answer:
    """`shard_map`: the specs do not match the function's result."""
    frame_vars, outer_vars = calls[0].variables, next(filter(_is_shard_map, calls)).variables
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in frame_vars["avals"]]
    names = [path or "the result" for path in paths(outer_vars["out_tree"])]
    return "out_specs does not fit the result", _spec_differences(
        Shardings(outer_vars["mesh"]), names, frame_vars["specs"], avals
    )


def explain_devices(calls: Calls) -> Answer:
    """`jit`: the arrays that are not on the devices of most others."""
    frame_vars = next(call.variables for call in calls if {"args", "kwargs", "args_flat"} <= call.variables.keys())
    trees = {f"argument {i}": arg for i, arg in enumerate(frame_vars["args"])} | frame_vars["kwargs"]
    placed = [
        (f"{name}{path}", leaf, place.device_ids)
        for name, tree in trees.items()
        for path, leaf in leaves_of(tree)
        if is_committed(leaf) and (place := describe_sharding(leaf.sharding)) is not None
    ]
    counts = Counter(devices for _, _, devices in placed).most_common()
    if len(counts) < 2:
        return "", ()
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    return "the arrays are committed to different devices", [
        f"{path}: {describe_value(leaf)}, on {_device_text(devices)}"
        for path, leaf, devices in placed
        if devices != usual
    ] + ([] if usual is None else [f"the other {counts[0][1]:,} on {_device_text(usual)}"])


def _device_text(devices: Sequence[int]) -> str:
    return f"{'device' if len(devices) == 1 else 'devices'} {', '.join(map(str, devices))}"


def paths(treedef: Any) -> list[str]:
    """The key paths of the leaves."""
    return [leaf.keystr for leaf in walk(treedef).leaves]


# Loops and branches: carries, conditions, lengths, and results of branches.


def explain_carry(calls: Calls) -> Answer:
    """`scan`, `fori_loop` and `while_loop`: the carry changes type between input and output."""
    frame_vars = calls[0].variables
    if "out_carry" in frame_vars:
        type_in, type_out = _type_of(frame_vars["in_carry"]), _type_of(frame_vars["out_carry"])
        init = next(_carry_in(call) for call in calls[1:] if call.function in ("scan", "while_loop"))
    else:  # jax < 0.5
        init, type_in = frame_vars["in_carry"], jit_type(frame_vars["in_carry"])
        type_out = JitType(frame_vars["out_carry_tree"], [LeafType(aval) for aval in frame_vars["out_avals"]])
    outer_names = [call.function for call in calls[1:]]
    carry_path = ""  # fori_loop also carries its counters
    if "fori_loop" in outer_names:
        carry_path = "[1]" if "scan" in outer_names else "[2]"
    differences = [
        Difference(path.removeprefix(carry_path), *finding, tree=1)
        for path, finding in compare_types(init, type_in, type_out)
    ]
    return "the carry changes type between input and output", differences


def _carry_in(call: Call) -> Any:
    frame_vars = call.variables
    return frame_vars["args"].unflatten()[0] if call.function == "scan" else frame_vars["init_val_flat"].unflatten()


def explain_branches(calls: Calls) -> Answer:
    """`cond` and `switch`: the branches return different types."""
    frame_vars = calls[0].variables
    differences = compare_types(
        frame_vars["outs1"], _type_of(frame_vars["out_avals1"]), _type_of(frame_vars["out_avals2"])
    )
    first, second = (re.sub(r"^branch(?=\d)", "branch ", frame_vars[name]) for name in ("name1", "name2"))
    title = f"what {first} and {second} return differs"
    return title, [Difference(path, *finding, tree=1) for path, finding in differences]


def _type_of(flat: Any) -> JitType:
    """The type of JAX's flat tree of avals, without weak types, which `cond` and loops ignore."""
    return JitType(flat.tree, [LeafType(without_weak_type(aval)) for aval in flat.vals])


def explain_cond_fun(calls: Calls) -> Answer:
    """`while_loop`: the condition is not a boolean scalar. Also lists the carry leaves it is computed from."""
    frame_vars = calls[0].variables
    closed = frame_vars["cond_jaxpr"]
    tree = frame_vars["cond_out_avals"].tree if "cond_out_avals" in frame_vars else frame_vars["cond_tree"]
    tree_paths, avals, title = paths(tree), closed.out_avals, "cond_fun of while_loop must return one boolean"
    if not tree_util.treedef_is_leaf(tree) or len(avals) != 1:
        lines = [f"{path} of the result: {aval.str_short()}" for path, aval in zip(tree_paths, avals, strict=True)]
        return title, lines or ["it returns nothing"]
    aval = avals[0]
    if aval.shape == () and aval.dtype == bool:
        return "", ()
    fix = "reduce it, as by .all() or .any()" if aval.shape else "compare it, as by != 0"
    carry = next(call for call in calls[1:] if call.function == "while_loop").variables
    names = _carry_names(carry)
    sources = [names[i] for i in _used_inputs(closed.jaxpr) if closed.jaxpr.invars[i].aval.shape == aval.shape != ()]
    return title, [
        f"the result: {aval.str_short()}: {fix}",
        *(f"it is made of the carry{name}: {describe_value(leaf)}" for name, leaf in sources),
    ]


def _carry_names(frame_vars: dict[str, Any]) -> list[tuple[str, Any]]:
    return leaves_of(
        frame_vars["init_val_flat"].unflatten() if "init_val_flat" in frame_vars else frame_vars["init_val"]
    )


def _used_inputs(jaxpr: Any) -> list[int]:
    """The positions of the inputs that the results of a program depend on."""
    needed = set(map(id, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        if any(id(var) in needed for var in eqn.outvars):
            needed.update(map(id, eqn.invars))
    return [i for i, var in enumerate(jaxpr.invars) if id(var) in needed]


def explain_scanned(calls: Calls) -> Answer:
    """`scan`: the leaves of `xs` whose first axis differs in length from most others."""
    frame_vars = next(call.variables for call in calls if call.function == "scan")
    leaves = leaves_of(frame_vars["args"].unflatten()[1] if "args" in frame_vars else frame_vars["xs"])
    lengths = [(path, leaf.shape[0] if getattr(leaf, "shape", ()) else None, leaf) for path, leaf in leaves]
    usual = frame_vars.get("length") or _most_common(Counter(n for _, n, _ in lengths if n is not None))
    return f"scan runs along the first axis{f', here of {usual}' if usual else ''}", [
        f"xs{path}: {describe_value(leaf)}" for path, n, leaf in lengths if n != usual
    ]


def explain_associative_scan(calls: Calls) -> Answer:
    frame_vars = calls[0].variables
    axis = frame_vars["axis"]
    lengths = [(path, leaf.shape[axis], leaf) for path, leaf in leaves_of(frame_vars["elems"])]
    usual = _most_common(Counter(n for _, n, _ in lengths))
    return f"associative_scan runs along axis {axis}{f', here of {usual}' if usual else ''}", [
        f"{path or 'the argument'}: {describe_value(leaf)}" for path, n, leaf in lengths if n != usual
    ]


def _most_common(counts: Counter) -> Any:
    """The most common key; None on a tie."""
    most = counts.most_common(2)
    return most[0][0] if len(most) < 2 or most[0][1] > most[1][1] else None


def without_weak_type(aval: Any) -> Any:
    """The aval, no longer weakly typed."""
    return guarded(lambda: aval.strip_weak_type(), lambda _: aval)


_TAKE_ARRAYS = {
    "vmap_f": "args",
    "scan": "args",
    "cond": "operands",
    "while_loop": "init_val_flat",
    "fun_remat": "args",
    "device_put": "x",
}


def _explain_map(calls: Calls) -> Answer:
    frame_vars = calls[0].variables
    differences = map_mismatches(frame_vars["tree"], *frame_vars["rest"], is_leaf=frame_vars["is_leaf"])
    several = len(frame_vars["rest"]) > 1
    return "the trees do not match", [
        f"tree {difference.tree}: {difference}" if several else difference for difference in differences
    ]


def _explain_jvp(calls: Calls) -> Answer:
    frame_vars = calls[0].variables
    primals_type = jit_type(frame_vars["primals"])
    tangents_type = JitType(primals_type.treedef, [_tangent_type(leaf.aval) for leaf in primals_type.leaves])
    return "primals and tangents do not match", _tangent_differences(
        frame_vars["tangents"], tangents_type, ("primals", "tangents")
    )


def _explain_pullback(calls: Calls) -> Answer:
    """The functions that `vjp` and `linear_transpose` return: the cotangent does not match."""
    frame_vars = calls[0].variables
    if "in_tree_expected" in frame_vars:  # jax < 0.8
        tree, given, avals = frame_vars["in_tree_expected"], frame_vars["py_args"], frame_vars["out_primal_avals"]
    else:
        tree, given = frame_vars["out_tree"], frame_vars["out_ct" if "out_ct" in frame_vars else "out_cotangent"]
        tree = tree() if callable(tree) else tree  # of linear_transpose
        avals = frame_vars["out_primal_avals" if "out_primal_avals" in frame_vars else "out_avals"]
    differences = _tangent_differences(
        given, JitType(tree, [_tangent_type(aval) for aval in avals]), ("result", "cotangent")
    )
    return "the cotangent does not match the result", [
        difference
        for difference in differences
        if (difference.kind, difference.left) != ("dtype", "float0")  # JAX accepts any dtype here
    ]


def _explain_custom_vjp(calls: Calls) -> Answer:
    """A `custom_vjp` rule. JAX accepts None, and a leaf in place of a node."""
    frame_vars = calls[0].variables
    wanted = JitType(frame_vars["in_tree"], [_tangent_type(aval) for aval in frame_vars["in_avals"]])
    differences, leaves = (
        _tangent_differences(frame_vars["py_cts_in"], wanted, ("arguments", "result")),
        dict(leaves_of(frame_vars["py_cts_in"])),
    )
    return "the result of the custom_vjp rule does not match the arguments", [
        difference
        for difference in differences
        if (difference.kind, difference.right) != ("none", "None")
        and not (difference.kind == "leaf" and difference.path in leaves)
    ]


def _explain_custom_jvp(calls: Calls) -> Answer:
    frame_vars = calls[0].variables
    primals_type = jit_type(frame_vars["py_primals_out"])
    wanted = JitType(primals_type.treedef, [_tangent_type(leaf.aval) for leaf in primals_type.leaves])
    differences = _tangent_differences(frame_vars["py_tangents_out"], wanted, ("primals", "tangents"))
    return "primals and tangents that the custom_jvp rule returns do not match", differences


def _tangent_differences(tree: Any, wanted: JitType, names: tuple[str, str]) -> list[Difference]:
    """The differences between a tree of tangents or cotangents and the expected type. Ignores weak types."""
    given = jit_type(tree)
    given = JitType(given.treedef, [LeafType(without_weak_type(leaf.aval)) for leaf in given.leaves])
    findings = compare_types(tree, wanted, given, is_right=True)
    return [Difference(path, *map(_float0, finding), tree=1, names=names) for path, finding in findings]


def _float0(text: str) -> str:
    return "float0" if text == str(jax.dtypes.float0) else text


def _tangent_type(aval: Any) -> LeafType:
    """The type of a tangent or cotangent: float0 for an integer array."""
    to_tangent = getattr(aval, "to_tangent_aval", None) or getattr(aval, "at_least_vspace", None)
    return LeafType(without_weak_type(to_tangent() if to_tangent else aval))


def _explain_transpose(calls: Calls) -> Answer:
    """`jax.tree.transpose`: where the tree differs from the outer one, or the inner trees from the first one."""
    frame_vars = calls[0].variables
    outer, inner, tree = (frame_vars[name] for name in ("outer_treedef", "inner_treedef", "pytree_to_transpose"))
    misfits = map_mismatches(_of_zeros(outer), tree)
    if misfits:
        return "outer_treedef is no prefix of the tree", misfits
    parts = outer.flatten_up_to(tree)
    like = next((part for part in parts if tree_util.tree_structure(part) == inner), None)
    if like is None and inner is not None:
        like = _of_zeros(inner)
    paths = [
        keystr(path) for path, _ in tree_util.tree_flatten_with_path(outer.unflatten(parts), is_leaf=_is_any(parts))[0]
    ]
    differences = [
        (path, difference) for path, part in zip(paths, parts, strict=True) for difference in map_mismatches(like, part)
    ]
    return "the trees to transpose do not match", [f"in {path}: {difference}" for path, difference in differences]


def _of_zeros(treedef: Any) -> Any:
    return treedef.unflatten([0] * treedef.num_leaves)


def _explain_argument_types(calls: Calls) -> Answer:
    """`jit`: the leaves that are not arrays."""
    frame_vars = calls[0].variables
    if "static arguments" in str(calls[0].error):  # `raised.explain_hashes` explains it
        return "", ()
    args, kwargs = frame_vars["args"], frame_vars["kwargs"]
    static = {i % len(args) for i in getattr(frame_vars["ji"], "static_argnums", ()) if -len(args) <= i < len(args)}
    trees = {f"argument {i}": arg for i, arg in enumerate(args) if i not in static} | {
        name: arg for name, arg in kwargs.items() if name not in getattr(frame_vars["ji"], "static_argnames", ())
    }
    return "jit accepts only arrays and numbers", [
        f"{name}{path}: {describe_value(leaf)}: {remedy(leaf)}"
        for name, tree in trees.items()
        for path, leaf in leaves_of(tree)
        if not is_jit_value(leaf)
    ]


def _explain_returned(calls: Calls) -> Answer:
    """A traced function: the leaves of its result that are not arrays."""
    frame_vars = calls[0].variables
    paths = getattr(frame_vars["dbg"], "result_paths", None)
    outs = frame_vars["out_tracers"]
    names = [*map(str, paths)] if isinstance(paths, tuple | list) else [""] * len(outs)
    return "the function returns a non-array", [
        f"{name or 'the result'}: {describe_value(leaf)}: {remedy(leaf)}"
        for name, leaf in zip(names, outs, strict=True)
        if not is_jit_value(leaf)
    ]


def _explain_compiled(calls: Calls) -> Answer:
    """A function compiled ahead of time: the arguments differ from those it was compiled for."""
    compiled = next(call.variables["self"] for call in calls if call.function == "__call__")
    args, kwargs = calls[0].variables["args"], calls[0].variables["kwargs"]
    leaves, treedef = tree_util.tree_flatten(compiled.args_info)
    wanted = JitType(treedef, [LeafType(without_weak_type(leaf._aval)) for leaf in leaves])
    given = jit_type((args, kwargs))
    given = JitType(given.treedef, [LeafType(without_weak_type(leaf.aval)) for leaf in given.leaves])
    names = {"[0]": "args", "[1]": "kwargs"}
    return "the step was compiled for other arguments", [
        Difference(names.get(path[:3], "") + path[3:], *finding, tree=1, names=("compiled", "given"))
        for path, finding in compare_types((args, kwargs), wanted, given, is_right=True)
    ]


def _explain_compiled_shardings(calls: Calls) -> Answer:
    """A function compiled ahead of time: the arguments whose sharding changed."""
    frame_vars = calls[0].variables
    wanted = frame_vars["in_shardings" if "in_shardings" in frame_vars else "in_xla_shardings"]
    given = frame_vars["args" if "args" in frame_vars else "args_after_dce"]  # the arguments that the program reads
    call_vars = next(call.variables for call in calls if call.function == "__call__")
    leaves = leaves_of((call_vars["args"], call_vars["kwargs"]))
    if len(leaves) == len(given):
        paths = [path for path, _ in leaves]
    else:  # an array passed twice has two names, and which one the program reads is unknown
        n_of, path_of = Counter(id(leaf) for _, leaf in leaves), {id(leaf): path for path, leaf in leaves}
        paths = [path_of.get(id(leaf), "") if n_of[id(leaf)] == 1 else "" for leaf in given]
    names = {"[0]": "args", "[1]": "kwargs"}
    return "the step was compiled for arrays placed elsewhere", [
        Difference(names[path[:3]] + path[3:], *finding, tree=1, names=("compiled", "given"))
        for path, leaf, sharding in zip(paths, given, wanted, strict=True)
        if path and is_committed(leaf) and not leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        for finding in compare_places(LeafType(None, sharding), LeafType(None, leaf.sharding))
    ]


def _explain_invalid(calls: Calls) -> Answer:
    """Loops, branches, `vmap`, `checkpoint` and `device_put`: the leaves that are not arrays."""
    call = next((call for call in calls if _TAKE_ARRAYS.get(call.function) in call.variables), None)
    if call is None:
        return "", ()
    tree, name = call.variables[_TAKE_ARRAYS[call.function]], call.function
    tree = tree.unflatten() if hasattr(tree, "unflatten") else tree
    labels = {"[0]": "the initial carry", "[1]": "xs"} if name == "scan" else {}
    if any(call.function == "fori_loop" for call in calls):
        labels, name = {"[0][1]": "", "[2]": ""}, "fori_loop"  # fori_loop also carries its counters
    if name == "fun_remat":
        if call.variables.get("static_argnums"):  # JAX removed them, which shifts the positions
            return "", ()
        name = "checkpoint"
    lines = []
    for path, leaf in leaves_of(tree):
        if not is_jit_value(leaf):
            prefix = next((label for label in labels if path.startswith(label)), "")
            lines.append(
                f"{labels.get(prefix, '') + path.removeprefix(prefix) or 'the argument'}: {describe_value(leaf)}"
            )
    return f"{name.removesuffix('_f')} accepts only arrays and numbers", lines


def _explain_deleted(calls: Calls) -> Answer:
    """`jit` and `device_get`: the arrays that were deleted or donated to another call."""
    frame_vars = next((call.variables for call in calls if call.function in ("cache_miss", "device_get")), {})
    args, kwargs = (frame_vars["args"], frame_vars["kwargs"]) if "args" in frame_vars else ((frame_vars["x"],), {})
    trees = {f"argument {i}": arg for i, arg in enumerate(args)} | kwargs
    if len(trees) == 1 and "x" in frame_vars:
        trees = {"the argument": frame_vars["x"]}
    deleted = [
        (name, path, leaf)
        for name, tree in trees.items()
        for path, leaf in leaves_of(tree)
        if isinstance(leaf, jax.Array) and guarded(leaf.is_deleted, lambda _: False)
    ]
    if not any(path for _, path, _ in deleted):  # such as x + y: JAX's own message has the shape
        return "", ()
    names = guarded(lambda: names_of(calls[0].error), lambda _: {})  # names in the user's call
    return "arrays that were deleted, or donated to an earlier call", [
        f"{names.get(id(leaf), name + path)}: {describe_value(leaf)}" for name, path, leaf in deleted
    ]


def _explain_differentiated(calls: Calls) -> Answer:
    """`grad`, `value_and_grad`, `jacfwd` and `jacrev`: the leaves that have no derivative."""
    frame_vars = calls[0].variables
    if frame_vars.get("allow_int"):
        return "", ()
    are_refs = "Ref-typed" in str(calls[0].error)  # since jax 0.11
    return "grad needs arrays, not references" if are_refs else "grad needs floating-point leaves", [
        f"{f'argument {i}' if len(frame_vars['dyn_args']) > 1 else 'the argument'}{path}: {describe_value(leaf)}"
        for i, tree in enumerate(frame_vars["dyn_args"])
        for path, leaf in leaves_of(tree)
        if (is_ref(leaf) if are_refs else not is_inexact(leaf))
    ]


def _is_any(objects: Sequence[Any]) -> Callable[[Any], bool]:
    ids = set(map(id, objects))
    return lambda node: id(node) in ids


# The functions of JAX that raise -> the answer. `jax_private.TO_EXPLAIN` lists their places.
ANSWERS: dict[str, Callable[[Calls], Answer]] = {
    "_check_carry_type": explain_carry,
    "_check_branch_outputs": explain_branches,
    "flatten_axes": explain_prefix,
    "flatten_axis_resources": explain_shardings,
    "vmap_f": explain_vmap,
    "_batch_inner": explain_vmap_result,
    "pjit_check_aval_sharding": explain_divisibility,
    "broadcast_prefix": explain_broadcast,
    "f_wrapped": explain_broadcast,
    "_check_names": explain_out_specs,
    "_get_and_check_device_assignment": explain_devices,
    "_check_returned_jaxtypes": _explain_returned,
    "call": _explain_compiled,
    "check_array_xla_sharding_layout_match": _explain_compiled_shardings,
    "_create_jaxpr": explain_cond_fun,
    "associative_scan": explain_associative_scan,
    "tree_map": _explain_map,
    "tree_map_with_path": _explain_map,
    "_jvp": _explain_jvp,
    "_infer_params": _explain_argument_types,
    "_vjp3_bwd": _explain_pullback,
    "_vjp_pullback_wrapper": _explain_pullback,
    "transposed_fun": _explain_pullback,
    "value_and_grad_f": _explain_differentiated,
    "jacfun": _explain_differentiated,
    "tree_transpose": _explain_transpose,
    "_infer_scan_length": explain_scanned,
    "_flatten_bwd": _explain_custom_vjp,
    "_flatten_jvp": _explain_custom_jvp,
    "typeof": _explain_invalid,
    "shaped_abstractify": _explain_invalid,
    "_check_if_deleted": _explain_deleted,
}
# Functions that flatten the user's trees before they call JAX again.
OUTER_ANSWERS: dict[str, Callable[[Calls], Answer]] = {"wrapped": explain_wrapper}
