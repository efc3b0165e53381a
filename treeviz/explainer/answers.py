"""Explain a call that failed inside JAX, by the function of JAX that raised.

If JAX renames a function or its variables, that error loses its explanation and nothing else breaks. To add an answer,
write a function of the variables of the failed call and of the calls, innermost first, and list it in `ANSWERS`, and
the place of JAX's function in `jax_private.TO_EXPLAIN`, where a test sees that JAX has moved it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util

from treeviz import integrations
from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.analysis.overlay import InAxes, OutAxes, Shardings, Use, find_misfits
from treeviz.explainer.frames import (
    NO_ANSWER,
    Answer,
    Call,
    Calls,
    Variables,
    describe_value,
    is_inexact,
    is_jit_value,
    is_ref,
    leaves_of,
    leaves_of_arguments,
    names_of,
    refused,
)
from treeviz.steps.compiles.types import JitType, LeafType, compare_places, compare_types, is_committed, jit_type
from treeviz.tree.annotations import with_named_axes
from treeviz.tree.keys import keystr
from treeviz.tree.leaves import describe_sharding
from treeviz.tree.text import counted, guarded, is_any, value_text
from treeviz.tree.walk import scan, walk

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

    align = Use.align


def _spec_differences(use: Use, specs: Any, tree: Any, names: Sequence[str] = ()) -> Differences:
    """The differences between a tree and its specs; with names, between named trees and one spec for each."""
    integrations.load()
    table, nodes = scan(_NamedChildren(names, tree) if names else tree)
    side = Side(with_named_axes(table, nodes), nodes)
    return find_misfits(_NamedChildren(names, specs) if names else specs, side, use, None).differences


def explain_vmap(frame_vars: Variables, calls: Calls) -> Answer:
    args, kwargs, in_axes = frame_vars["args"], frame_vars["kwargs"], frame_vars["in_axes"]
    differences = _spec_differences(InAxes(), in_axes, args)
    if not differences and kwargs:  # vmap maps keyword arguments along axis 0
        names = [*(f"[{i}]" for i in range(len(args))), "kwargs"]
        specs = [*(in_axes if is_any(type(in_axes), (tuple, list)) else [in_axes] * len(args)), 0]
        misfits = _spec_differences(_AxesOfArguments(), specs, [*args, kwargs], names)
        differences = Differences(misfit for misfit in misfits if misfit.kind in ("size", "axis"))
    return "in_axes does not fit the arguments", differences


def explain_vmap_result(frame_vars: Variables, calls: Calls) -> Answer:
    """`vmap`: the function returned a value that is not an array, or that `out_axes` does not match."""
    outs = frame_vars["outs"]
    out_tree = next(call.variables["out_tree"] for call in calls if call.function == "vmap_f")
    names = paths(out_tree())
    if lines := refused(zip((f"result{path}" for path in names), outs, strict=True)):
        return "vmap returns only arrays and numbers", lines
    avals = [jax.ShapeDtypeStruct(out.shape, out.dtype) if hasattr(out, "shape") else out for out in outs]
    return "out_axes does not fit the result", _spec_differences(OutAxes(), frame_vars["out_dim_dests"], avals, names)


def explain_prefix(frame_vars: Variables, calls: Calls) -> Answer:
    """`out_axes`, `in_shardings`, `out_shardings` and `device_put`."""
    if frame_vars.get("name") == "vmap in_axes":  # `explain_vmap` explains it better
        return NO_ANSWER
    name = frame_vars.get("name") or frame_vars.get("what") or "the prefix"
    return _explain_not_a_prefix(name, frame_vars["axis_tree"], frame_vars["dummy_tree"])


def explain_broadcast(frame_vars: Variables, calls: Calls) -> Answer:
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


def explain_shardings(frame_vars: Variables, calls: Calls) -> Answer:
    """`in_shardings`, with one spec per argument, and `out_shardings`."""
    if not str(frame_vars["what"]).endswith("in_shardings"):
        return explain_prefix(frame_vars, calls)
    specs = _with_none(frame_vars["shardings"])
    frame_vars = next(call.variables for call in calls if call.function == "_infer_params")
    args, static = frame_vars["args"], getattr(frame_vars["ji"], "static_argnums", ())
    args = tuple(arg for i, arg in enumerate(args) if i not in {n % len(args) for n in static})
    title = "in_shardings does not fit the arguments"
    if type(specs) is not tuple:
        differences = _spec_differences(Shardings(), (specs,), args)
        hint = "" if differences else ": put it into a tuple, in_shardings=(…,)"
        return title, [f"the root: it must be a tuple with one spec for each argument{hint}"]
    return title, _argument_differences(specs, args, Shardings())


def _with_none(specs: Any) -> Any:
    """Restores the None values that JAX replaced by a marker in dicts, lists and tuples."""
    if type(specs) is dict:
        return {key: _with_none(spec) for key, spec in specs.items()}
    if is_any(type(specs), (list, tuple)):
        return type(specs)(map(_with_none, specs))
    return None if type(specs).__name__ == "UnspecifiedValue" else specs


def _argument_differences(specs: Any, args: tuple, use: Use) -> list[Any]:
    """The differences between specs and arguments, including missing and surplus specs."""
    if type(specs) is not tuple:
        return _spec_differences(use, specs, args)
    n = min(len(specs), len(args))
    surplus = [f"[{i}]: {value_text(spec, 60)}: a spec without an argument" for i, spec in enumerate(specs[n:], n)]
    missing = [
        f"{path}: {describe_value(leaf)}: no spec"
        for i, arg in enumerate(args[n:], n)
        for path, leaf in leaves_of(arg, f"[{i}]")
    ]
    return [*_spec_differences(use, specs[:n], args[:n]), *surplus, *missing]


def explain_divisibility(frame_vars: Variables, calls: Calls) -> Answer:
    """`jit`, `device_put` and `with_sharding_constraint`: a sharding does not divide its array."""
    outer = next((call for call in calls if call.function in ("device_put", "with_sharding_constraint")), calls[0])
    names, specs, avals = frame_vars.get("names") or (), frame_vars["shardings"], frame_vars["flat_avals"]
    if "x" in outer.variables:
        names = [path or "the array" for path, _ in leaves_of(outer.variables["x"])]
    if outer.function == "device_put":
        specs, avals = outer.variables["device_flat"], outer.variables["x_avals"]
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    specs = [spec if isinstance(spec, jax.sharding.Sharding) else None for spec in specs]
    return "shardings do not fit the arrays", _spec_differences(Shardings(), specs, avals, [*map(str, names)])


def _is_shard_map(call: Call) -> bool:
    return call.function == "wrapped" and {"in_specs", "mesh", "args"} <= call.variables.keys()


def explain_wrapper(frame_vars: Variables, calls: Calls) -> Answer:
    """`shard_map` and `pmap`, which have flattened their trees before the error is raised."""
    args = frame_vars["args"]
    if _is_shard_map(calls[0]):
        use = Shardings(frame_vars["mesh"])
        return _explain_arguments("shard_map", "in_specs", frame_vars["in_specs"], args, use)
    infer = frame_vars["infer_params"]
    closure = dict(zip(infer.__code__.co_freevars, infer.__closure__, strict=True))
    if frame_vars["kwargs"] or closure["static_broadcasted_tuple"].cell_contents:
        return NO_ANSWER
    in_axes = closure["in_axes"].cell_contents
    title, differences = _explain_arguments("pmap", "in_axes", in_axes, args, InAxes())
    if differences:
        return title, differences
    n = len(closure["devices"].cell_contents or jax.local_devices())
    return f"pmap maps an axis over {counted(n, 'device')}", [
        f"{path}: {describe_value(leaf)}: axis {in_axes} has {leaf.shape[in_axes]:,}"
        for path, leaf in leaves_of(args)
        if leaf.shape[in_axes] > n
    ]


def _explain_arguments(function: str, name: str, specs: Any, args: Any, use: Use) -> Answer:
    if lines := refused(leaves_of(args)):
        return f"{function} accepts only arrays and numbers", lines
    return f"{name} does not fit the arguments", _argument_differences(specs, args, use)


def explain_out_specs(frame_vars: Variables, calls: Calls) -> Answer:
    """`shard_map`: the specs do not match the function's result."""
    outer_vars = next(filter(_is_shard_map, calls)).variables
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in frame_vars["avals"]]
    names = [path or "the result" for path in paths(outer_vars["out_tree"])]
    differences = _spec_differences(Shardings(outer_vars["mesh"]), frame_vars["specs"], avals, names)
    return "out_specs does not fit the result", differences


def explain_devices(frame_vars: Variables, calls: Calls) -> Answer:
    """`jit`: the arrays that are not on the devices of most others."""
    frame_vars = next(call.variables for call in calls if {"args", "kwargs", "args_flat"} <= call.variables.keys())
    placed = [
        (path, leaf, place.device_ids)
        for path, leaf in leaves_of_arguments(frame_vars["args"], frame_vars["kwargs"])
        if is_committed(leaf) and (place := describe_sharding(leaf.sharding)) is not None
    ]
    counts = Counter(devices for _, _, devices in placed).most_common()
    if len(counts) < 2:
        return NO_ANSWER
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


def explain_carry(frame_vars: Variables, calls: Calls) -> Answer:
    """`scan`, `fori_loop` and `while_loop`: the carry changes type between input and output."""
    if "out_carry" in frame_vars:
        flats = (frame_vars[name] for name in ("in_carry", "out_carry"))
        type_in, type_out = (_strong(flat.tree, flat.vals) for flat in flats)
        loop = next(call for call in calls[1:] if call.function in ("scan", "while_loop"))
        init = loop.variables["args" if loop.function == "scan" else "init_val_flat"].unflatten()
        init = init[0] if loop.function == "scan" else init
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


def explain_branches(frame_vars: Variables, calls: Calls) -> Answer:
    """`cond` and `switch`: the branches return different types."""
    types = (_strong(flat.tree, flat.vals) for flat in (frame_vars["out_avals1"], frame_vars["out_avals2"]))
    differences = compare_types(frame_vars["outs1"], *types)
    first, second = (re.sub(r"^branch(?=\d)", "branch ", frame_vars[name]) for name in ("name1", "name2"))
    title = f"what {first} and {second} return differs"
    return title, [Difference(path, *finding, tree=1) for path, finding in differences]


def _strong(treedef: Any, avals: Iterable[Any]) -> JitType:
    """A type without weak types, which `cond`, loops and tangents ignore."""
    strong = [guarded(lambda aval=aval: aval.strip_weak_type(), lambda _, aval=aval: aval) for aval in avals]
    return JitType(treedef, [LeafType(aval) for aval in strong])


def _strong_type(tree: Any) -> JitType:
    given = jit_type(tree)
    return _strong(given.treedef, [leaf.aval for leaf in given.leaves])


def explain_cond_fun(frame_vars: Variables, calls: Calls) -> Answer:
    """`while_loop`: the condition is not a boolean scalar. Also lists the carry leaves it is computed from."""
    closed = frame_vars["cond_jaxpr"]
    tree = frame_vars["cond_out_avals"].tree if "cond_out_avals" in frame_vars else frame_vars["cond_tree"]
    tree_paths, avals, title = paths(tree), closed.out_avals, "cond_fun of while_loop must return one boolean"
    if not tree_util.treedef_is_leaf(tree) or len(avals) != 1:
        lines = [f"{path} of the result: {aval.str_short()}" for path, aval in zip(tree_paths, avals, strict=True)]
        return title, lines or ["it returns nothing"]
    aval = avals[0]
    if aval.shape == () and aval.dtype == bool:
        return NO_ANSWER
    fix = "reduce it, as by .all() or .any()" if aval.shape else "compare it, as by != 0"
    carry = next(call for call in calls[1:] if call.function == "while_loop").variables
    names = leaves_of(carry["init_val_flat"].unflatten() if "init_val_flat" in carry else carry["init_val"])
    jaxpr = closed.jaxpr
    needed = set(map(id, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        if any(id(var) in needed for var in eqn.outvars):
            needed.update(map(id, eqn.invars))
    inputs = zip(names, jaxpr.invars, strict=False)
    sources = [name for name, var in inputs if id(var) in needed and var.aval.shape == aval.shape != ()]
    return title, [
        f"the result: {aval.str_short()}: {fix}",
        *(f"it is made of the carry{name}: {describe_value(leaf)}" for name, leaf in sources),
    ]


def explain_scanned(frame_vars: Variables, calls: Calls) -> Answer:
    """`scan`: the leaves of `xs` whose first axis differs in length from most others."""
    frame_vars = next(call.variables for call in calls if call.function == "scan")
    xs = frame_vars["args"].unflatten()[1] if "args" in frame_vars else frame_vars["xs"]
    return _explain_lengths("scan runs along the first axis", leaves_of(xs, "xs"), 0, frame_vars.get("length"))


def explain_associative_scan(frame_vars: Variables, calls: Calls) -> Answer:
    axis = frame_vars["axis"]
    return _explain_lengths(f"associative_scan runs along axis {axis}", leaves_of(frame_vars["elems"]), axis)


def _explain_lengths(title: str, leaves: Sequence[tuple[str, Any]], axis: int, usual: int | None = None) -> Answer:
    """The leaves that are not as long as `usual`, or as most others."""
    lengths = [leaf.shape[axis] if getattr(leaf, "shape", ()) else None for _, leaf in leaves]
    if not usual:
        most = Counter(n for n in lengths if n is not None).most_common(2)
        usual = most[0][0] if len(most) < 2 or most[0][1] > most[1][1] else None
    return title + (f", here of {usual}" if usual else ""), [
        f"{path or 'the argument'}: {describe_value(leaf)}"
        for (path, leaf), n in zip(leaves, lengths, strict=True)
        if n != usual
    ]


_TAKE_ARRAYS = {
    "vmap_f": "args",
    "scan": "args",
    "cond": "operands",
    "while_loop": "init_val_flat",
    "fun_remat": "args",
    "device_put": "x",
}
_IN_CALL = {"[0]": "args", "[1]": "kwargs"}


def _explain_map(frame_vars: Variables, calls: Calls) -> Answer:
    differences = map_mismatches(frame_vars["tree"], *frame_vars["rest"], is_leaf=frame_vars["is_leaf"])
    several = len(frame_vars["rest"]) > 1
    return "the trees do not match", [
        f"tree {difference.tree}: {difference}" if several else difference for difference in differences
    ]


def _explain_jvp(frame_vars: Variables, calls: Calls) -> Answer:
    """`jvp`, and a `custom_jvp` rule."""
    is_rule = "py_primals_out" in frame_vars
    primals, tangents = ("py_primals_out", "py_tangents_out") if is_rule else ("primals", "tangents")
    primals_type = jit_type(frame_vars[primals])
    avals = [leaf.aval for leaf in primals_type.leaves]
    names = ("primals", "tangents")
    differences = _tangent_differences(frame_vars[tangents], primals_type.treedef, avals, names)
    return f"primals and tangents {'that the custom_jvp rule returns ' * is_rule}do not match", differences


def _explain_pullback(frame_vars: Variables, calls: Calls) -> Answer:
    """The functions that `vjp` and `linear_transpose` return: the cotangent does not match."""
    if "in_tree_expected" in frame_vars:  # jax < 0.8
        tree, given, avals = frame_vars["in_tree_expected"], frame_vars["py_args"], frame_vars["out_primal_avals"]
    else:
        tree, given = frame_vars["out_tree"], frame_vars["out_ct" if "out_ct" in frame_vars else "out_cotangent"]
        tree = tree() if callable(tree) else tree  # of linear_transpose
        avals = frame_vars["out_primal_avals" if "out_primal_avals" in frame_vars else "out_avals"]
    differences = _tangent_differences(given, tree, avals, ("result", "cotangent"))
    return "the cotangent does not match the result", [
        difference
        for difference in differences
        if (difference.kind, difference.left) != ("dtype", "float0")  # JAX accepts any dtype here
    ]


def _explain_custom_vjp(frame_vars: Variables, calls: Calls) -> Answer:
    """A `custom_vjp` rule. JAX accepts None, and a leaf in place of a node."""
    given, names = frame_vars["py_cts_in"], ("arguments", "result")
    differences = _tangent_differences(given, frame_vars["in_tree"], frame_vars["in_avals"], names)
    leaves = dict(leaves_of(given))
    return "the result of the custom_vjp rule does not match the arguments", [
        difference
        for difference in differences
        if (difference.kind, difference.right) != ("none", "None")
        and not (difference.kind == "leaf" and difference.path in leaves)
    ]


def _tangent_differences(tree: Any, treedef: Any, avals: Iterable[Any], names: tuple[str, str]) -> list[Difference]:
    """The differences between tangents or cotangents and their primals, which have float0 for integers."""
    to_tangents = [
        getattr(aval, "to_tangent_aval", None) or getattr(aval, "at_least_vspace", lambda aval=aval: aval)
        for aval in avals
    ]
    wanted = _strong(treedef, [to_tangent() for to_tangent in to_tangents])
    findings, float0 = compare_types(tree, wanted, _strong_type(tree), is_right=True), str(jax.dtypes.float0)
    return [
        Difference(path, *("float0" if text == float0 else text for text in finding), tree=1, names=names)
        for path, finding in findings
    ]


def _explain_transpose(frame_vars: Variables, calls: Calls) -> Answer:
    """`jax.tree.transpose`: where the tree differs from the outer one, or the inner trees from the first one."""
    outer, inner, tree = (frame_vars[name] for name in ("outer_treedef", "inner_treedef", "pytree_to_transpose"))
    misfits = map_mismatches(_of_zeros(outer), tree)
    if misfits:
        return "outer_treedef is no prefix of the tree", misfits
    parts = outer.flatten_up_to(tree)
    like = next((part for part in parts if tree_util.tree_structure(part) == inner), None)
    if like is None and inner is not None:
        like = _of_zeros(inner)
    ids = {*map(id, parts)}
    paths = tree_util.tree_flatten_with_path(outer.unflatten(parts), is_leaf=lambda node: id(node) in ids)[0]
    return "the trees to transpose do not match", [
        f"in {keystr(path)}: {difference}"
        for (path, _), part in zip(paths, parts, strict=True)
        for difference in map_mismatches(like, part)
    ]


def _of_zeros(treedef: Any) -> Any:
    return treedef.unflatten([0] * treedef.num_leaves)


def _explain_argument_types(frame_vars: Variables, calls: Calls) -> Answer:
    """`jit`: the leaves that are not arrays."""
    if "static arguments" in str(calls[0].error):  # `raised.explain_hashes` explains it
        return NO_ANSWER
    args, kwargs, options = (frame_vars[name] for name in ("args", "kwargs", "ji"))
    static = {i % len(args) for i in getattr(options, "static_argnums", ()) if -len(args) <= i < len(args)}
    args = [None if i in static else arg for i, arg in enumerate(args)]
    kwargs = {name: arg for name, arg in kwargs.items() if name not in getattr(options, "static_argnames", ())}
    return "jit accepts only arrays and numbers", refused(leaves_of_arguments(args, kwargs))


def _explain_returned(frame_vars: Variables, calls: Calls) -> Answer:
    """A traced function: the leaves of its result that are not arrays."""
    paths = getattr(frame_vars["dbg"], "result_paths", None)
    outs = frame_vars["out_tracers"]
    names = [*map(str, paths)] if isinstance(paths, tuple | list) else [""] * len(outs)
    leaves = zip([name or "the result" for name in names], outs, strict=True)
    return "the function returns a non-array", refused(leaves)


def _explain_compiled(frame_vars: Variables, calls: Calls) -> Answer:
    """A function compiled ahead of time: the arguments differ from those it was compiled for."""
    compiled = next(call.variables["self"] for call in calls if call.function == "__call__")
    given = frame_vars["args"], frame_vars["kwargs"]
    leaves, treedef = tree_util.tree_flatten(compiled.args_info)
    wanted = _strong(treedef, [leaf._aval for leaf in leaves])
    return "the step was compiled for other arguments", [
        Difference(_IN_CALL.get(path[:3], "") + path[3:], *finding, tree=1, names=("compiled", "given"))
        for path, finding in compare_types(given, wanted, _strong_type(given), is_right=True)
    ]


def _explain_compiled_shardings(frame_vars: Variables, calls: Calls) -> Answer:
    """A function compiled ahead of time: the arguments whose sharding changed."""
    wanted = frame_vars["in_shardings" if "in_shardings" in frame_vars else "in_xla_shardings"]
    given = frame_vars["args" if "args" in frame_vars else "args_after_dce"]  # the arguments that the program reads
    call_vars = next(call.variables for call in calls if call.function == "__call__")
    leaves = leaves_of((call_vars["args"], call_vars["kwargs"]))
    if len(leaves) == len(given):
        paths = [path for path, _ in leaves]
    else:  # an array passed twice has two names, and which one the program reads is unknown
        n_of, path_of = Counter(id(leaf) for _, leaf in leaves), {id(leaf): path for path, leaf in leaves}
        paths = [path_of.get(id(leaf), "") if n_of[id(leaf)] == 1 else "" for leaf in given]
    return "the step was compiled for arrays placed elsewhere", [
        Difference(_IN_CALL[path[:3]] + path[3:], *finding, tree=1, names=("compiled", "given"))
        for path, leaf, sharding in zip(paths, given, wanted, strict=True)
        if path and is_committed(leaf) and not leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        for finding in compare_places(LeafType(None, sharding), LeafType(None, leaf.sharding))
    ]


def _explain_invalid(frame_vars: Variables, calls: Calls) -> Answer:
    """Loops, branches, `vmap`, `checkpoint` and `device_put`: the leaves that are not arrays."""
    call = next(call for call in calls if _TAKE_ARRAYS.get(call.function) in call.variables)
    tree, name = call.variables[_TAKE_ARRAYS[call.function]], call.function
    tree = tree.unflatten() if hasattr(tree, "unflatten") else tree
    labels = {"[0]": "the initial carry", "[1]": "xs"} if name == "scan" else {}
    if any(call.function == "fori_loop" for call in calls):
        labels, name = {"[0][1]": "", "[2]": ""}, "fori_loop"  # fori_loop also carries its counters
    if name == "fun_remat":
        if call.variables.get("static_argnums"):  # JAX removed them, which shifts the positions
            return NO_ANSWER
        name = "checkpoint"
    lines = []
    for path, leaf in leaves_of(tree):
        if not is_jit_value(leaf):
            prefix = next((label for label in labels if path.startswith(label)), "")
            place = labels.get(prefix, "") + path.removeprefix(prefix)
            lines.append(f"{place or 'the argument'}: {describe_value(leaf)}")
    return f"{name.removesuffix('_f')} accepts only arrays and numbers", lines


def _explain_deleted(frame_vars: Variables, calls: Calls) -> Answer:
    """`jit` and `device_get`: the arrays that were deleted or donated to another call."""
    frame_vars = next((call.variables for call in calls if call.function in ("cache_miss", "device_get")), {})
    if "args" in frame_vars:
        trees = {f"argument {i}": arg for i, arg in enumerate(frame_vars["args"])} | frame_vars["kwargs"]
    else:
        trees = {"the argument": frame_vars["x"]}
    deleted = [
        (name, path, leaf)
        for name, tree in trees.items()
        for path, leaf in leaves_of(tree)
        if isinstance(leaf, jax.Array) and guarded(leaf.is_deleted, lambda _: False)
    ]
    if not any(path for _, path, _ in deleted):  # such as x + y: JAX's own message has the shape
        return NO_ANSWER
    names = guarded(lambda: names_of(calls[0].error), lambda _: {})  # names in the user's call
    return "arrays that were deleted, or donated to an earlier call", [
        f"{names.get(id(leaf), name + path)}: {describe_value(leaf)}" for name, path, leaf in deleted
    ]


def _explain_differentiated(frame_vars: Variables, calls: Calls) -> Answer:
    """`grad`, `value_and_grad`, `jacfwd` and `jacrev`: the leaves that have no derivative."""
    if frame_vars.get("allow_int"):
        return NO_ANSWER
    are_refs = "Ref-typed" in str(calls[0].error)  # since jax 0.11
    return "grad needs arrays, not references" if are_refs else "grad needs floating-point leaves", [
        f"{f'argument {i}' if len(frame_vars['dyn_args']) > 1 else 'the argument'}{path}: {describe_value(leaf)}"
        for i, tree in enumerate(frame_vars["dyn_args"])
        for path, leaf in leaves_of(tree)
        if (is_ref(leaf) if are_refs else not is_inexact(leaf))
    ]


# The functions of JAX that raise -> the answer. `jax_private.TO_EXPLAIN` lists their places.
ANSWERS: dict[str, Callable[[Variables, Calls], Answer]] = {
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
    "_flatten_jvp": _explain_jvp,
    "typeof": _explain_invalid,
    "shaped_abstractify": _explain_invalid,
    "_check_if_deleted": _explain_deleted,
}
# Functions that flatten the user's trees before they call JAX again.
OUTER_ANSWERS: dict[str, Callable[[Variables, Calls], Answer]] = {"wrapped": explain_wrapper}
