"""What is wrong with the trees of a call that failed inside JAX, by the function of JAX that raised.

A function of JAX that was renamed, or whose variables were, has no answer; nothing else is lost. To add one: a
function of the call and of those around it, innermost first, and the place of JAX's function in `_PLACES`.
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
from treeviz.api import lay_over
from treeviz.explainer import frames as caller
from treeviz.explainer.frames import Answer, Call, Calls, is_inexact, is_ref, leaves_of, remedy, what
from treeviz.explainer.frames import is_leaf_of_jax as is_of_jax
from treeviz.prepare import scanned
from treeviz.steps.compiles.types import JitType, LeafType, compare_places, compare_types, is_committed, jit_type
from treeviz.tree.leaves import describe_sharding
from treeviz.tree.runtime import PrivateName
from treeviz.tree.text import guarded, value_text
from treeviz.tree.walk import walk

# What does not fit where a call lays specs over trees: `vmap`, `pmap`, `shard_map`, shardings and placement.


class _Name(NamedTuple):
    """The key of a child that is called something of its own: "kwargs"."""

    text: str

    def __str__(self) -> str:
        return self.text


@tree_util.register_pytree_with_keys_class
class _Named:
    """A node of children with such keys."""

    def __init__(self, names: Iterable[str], children: Iterable[Any]) -> None:
        self._names, self._children = tuple(names), tuple(children)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        return [*zip(map(_Name, self._names), self._children, strict=True)], self._names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Iterable[Any]) -> _Named:
        return cls(names, children)


class _AxesOfEach(InAxes):
    """For arguments that are not in a tuple."""

    align = OutAxes.align


def _misfits(use: Use, names: Sequence[str], specs: Iterable[Any], trees: Iterable[Any]) -> Differences:
    """What does not fit where trees that have names have a spec each."""
    side = Side(*scanned(_Named(names, trees), None, "tree"))
    return overlaid(_Named(names, specs), side, use, None).differences


def of_vmap(calls: Calls) -> Answer:
    of = calls[0].variables
    args, kwargs, in_axes = of["args"], of["kwargs"], of["in_axes"]
    found = lay_over(in_axes, args, use="in_axes").differences
    if not found and kwargs:  # these are mapped along their first axis
        names = [*(f"[{i}]" for i in range(len(args))), "kwargs"]
        specs = [*(in_axes if type(in_axes) in (tuple, list) else [in_axes] * len(args)), 0]
        misfits = _misfits(_AxesOfEach(), names, specs, [*args, kwargs])
        found = Differences(each for each in misfits if each.kind in ("size", "axis"))
    return "in_axes does not fit the arguments", found


def of_vmapped(calls: Calls) -> Answer:
    """Of `vmap`: what the function returned."""
    of = calls[0].variables
    outs = of["outs"]
    out_tree = next(call.variables["out_tree"] for call in calls if call.function == "vmap_f")
    names = paths(out_tree())
    if not all(map(is_of_jax, outs)):
        return "vmap returns arrays and numbers alone", [
            f"result{path}: {what(leaf)}: {remedy(leaf)}"
            for path, leaf in zip(names, outs, strict=True)
            if not is_of_jax(leaf)
        ]
    avals = [jax.ShapeDtypeStruct(out.shape, out.dtype) if hasattr(out, "shape") else out for out in outs]
    return "out_axes does not fit the result", _misfits(OutAxes(), names, of["out_dim_dests"], avals)


def of_prefix(calls: Calls) -> Answer:
    """Of `out_axes`, `in_shardings`, `out_shardings` and `device_put`."""
    of = calls[0].variables
    if of.get("name") == "vmap in_axes":  # `of_vmap` knows more
        return "", ()
    return _no_prefix(of.get("name") or of.get("what") or "the prefix", of["axis_tree"], of["dummy_tree"])


def of_broadcast(calls: Calls) -> Answer:
    """Of `jax.tree.broadcast`, and of `shard_map` and `pmap`, which use it."""
    of = next(call.variables for call in calls if call.function == "broadcast_prefix")
    name = "out_specs" if any(map(_is_shard_map, calls)) else "the prefix"
    if any("infer_params" in call.variables for call in calls):
        name = "out_axes"
    return _no_prefix(name, of["prefix_tree"], of["full_tree"])


def _no_prefix(name: str, prefix: Any, tree: Any) -> Answer:
    found = map_mismatches(prefix, tree, is_leaf=lambda node: node is None)
    words = {"missing": "in the prefix, and not in the tree", "extra": "in the tree, and not in the prefix"}
    return f"{name} is no prefix of the tree", [
        f"{each.path or 'the root'}: {words[each.kind]}" if each.kind in words else each for each in found
    ]


def of_shardings(calls: Calls) -> Answer:
    """Of `in_shardings`, one for each argument, and `out_shardings`."""
    specs = calls[0].variables["shardings"]
    if not str(calls[0].variables["what"]).endswith("in_shardings"):
        return of_prefix(calls)
    specs = _as_given(specs)
    of = next(call.variables for call in calls if call.function == "_infer_params")
    args, static = of["args"], getattr(of["ji"], "static_argnums", ())
    args = tuple(arg for i, arg in enumerate(args) if i not in {each % len(args) for each in static})
    title = "in_shardings does not fit the arguments"
    if type(specs) is not tuple:
        found = lay_over((specs,), args, use="shardings").differences
        hint = "" if found else ": put it into a tuple, in_shardings=(…,)"
        return title, [f"the root: it has one spec for each argument, and is no tuple{hint}"]
    return title, _each_argument(specs, args, "shardings")


def _as_given(specs: Any) -> Any:
    """With None again, where JAX has put a marker into dicts, lists and tuples."""
    if type(specs) is dict:
        return {key: _as_given(spec) for key, spec in specs.items()}
    if type(specs) in (list, tuple):
        return type(specs)(map(_as_given, specs))
    return None if type(specs).__name__ == "UnspecifiedValue" else specs


def _each_argument(specs: tuple, args: tuple, use: str, mesh: Any = None) -> list[Any]:
    """What does not fit of specs for the arguments of a call, of which there may be too few, or too many."""
    names = [f"[{i}]" for i in range(max(len(specs), len(args)))]
    more = [f"{name}: {value_text(spec, 60)}: a spec for no argument" for name, spec in zip(names, specs, strict=False)]
    lacking = [
        f"{name}{path}: {what(leaf)}: no spec"
        for name, arg in zip(names[len(specs) :], args[len(specs) :], strict=True)
        for path, leaf in leaves_of(arg)
    ]
    n = min(len(specs), len(args))
    return [*lay_over(specs[:n], args[:n], use=use, mesh=mesh).differences, *more[len(args) :], *lacking]


def of_divided(calls: Calls) -> Answer:
    """Of shardings that do not divide their arrays: of `jit`, `device_put` and `with_sharding_constraint`."""
    of = calls[0].variables
    around = next((call for call in calls if call.function in ("device_put", "with_sharding_constraint")), calls[0])
    names, specs, avals = of.get("names") or (), of["shardings"], of["flat_avals"]
    if "x" in around.variables:
        names = [path or "the array" for path, _ in leaves_of(around.variables["x"])]
    if around.function == "device_put":
        specs, avals = around.variables["device_flat"], around.variables["x_avals"]
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    specs = [spec if isinstance(spec, jax.sharding.Sharding) else None for spec in specs]
    return "shardings do not fit the arrays", _misfits(Shardings(), [*map(str, names)], specs, avals)


def _is_shard_map(call: Call) -> bool:
    return call.function == "wrapped" and {"in_specs", "mesh", "args"} <= call.variables.keys()


def of_wrapped(calls: Calls) -> Answer:
    """Of `shard_map` and `pmap`, whose own trees are flat by the time that something fails."""
    of = calls[0].variables
    if _is_shard_map(calls[0]):
        return _of_arguments("shard_map", "in_specs", of["in_specs"], of["args"], of["mesh"])
    infer = of["infer_params"]
    around = dict(zip(infer.__code__.co_freevars, infer.__closure__, strict=True))
    if of["kwargs"] or around["static_broadcasted_tuple"].cell_contents:
        return "", ()
    in_axes, args = around["in_axes"].cell_contents, of["args"]
    title, found = _of_arguments("pmap", "in_axes", in_axes, args)
    if found:
        return title, found
    n = len(around["devices"].cell_contents or jax.local_devices())
    return _too_many(args, in_axes, n)


def _too_many(args: Sequence[Any], in_axes: Any, n: int) -> Answer:
    """The leaves whose axis is longer than there are devices."""
    if type(in_axes) is not int:
        return "", ()
    return f"pmap maps an axis over {n:,} {'device' if n == 1 else 'devices'}", [
        f"[{i}]{path}: {what(leaf)}: axis {in_axes} has {leaf.shape[in_axes]:,}"
        for i, arg in enumerate(args)
        for path, leaf in leaves_of(arg)
        if leaf.shape[in_axes] > n
    ]


def _of_arguments(function: str, name: str, specs: Any, args: Any, mesh: Any = None) -> Answer:
    no_arrays = [(path, leaf) for path, leaf in leaves_of(args) if not is_of_jax(leaf)]
    if no_arrays:
        return f"{function} takes arrays and numbers alone", [
            f"{path}: {what(leaf)}: {remedy(leaf)}" for path, leaf in no_arrays
        ]
    title, use = f"{name} does not fit the arguments", "shardings" if name == "in_specs" else name
    if type(specs) is tuple and len(specs) != len(args):
        return title, _each_argument(specs, args, use, mesh)
    return title, lay_over(specs, args, use=use, mesh=mesh).differences


def of_out_specs(calls: Calls) -> Answer:
    """Of `shard_map`: specs that do not fit what the function returns."""
    of, around = calls[0].variables, next(filter(_is_shard_map, calls)).variables
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in of["avals"]]
    names = [path or "the result" for path in paths(around["out_tree"])]
    return "out_specs does not fit the result", _misfits(Shardings(around["mesh"]), names, of["specs"], avals)


def of_devices(calls: Calls) -> Answer:
    """Of `jit`: the arrays that lie on other devices than most."""
    of = next(call.variables for call in calls if {"args", "kwargs", "args_flat"} <= call.variables.keys())
    trees = {f"argument {i}": arg for i, arg in enumerate(of["args"])} | of["kwargs"]
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
        f"{path}: {what(leaf)}, on {_device_text(devices)}" for path, leaf, devices in placed if devices != usual
    ] + ([] if usual is None else [f"the other {counts[0][1]:,} on {_device_text(usual)}"])


def _device_text(devices: Sequence[int]) -> str:
    return f"{'device' if len(devices) == 1 else 'devices'} {', '.join(map(str, devices))}"


def paths(treedef: Any) -> list[str]:
    """The key paths of its leaves."""
    return [leaf.keystr for leaf in walk(treedef).leaves]


# What does not fit in loops and branches: carries, conditions, lengths, and what branches return.


def of_carry(calls: Calls) -> Answer:
    """Of `scan`, `fori_loop` and `while_loop`: what of the carry comes out otherwise than it went in."""
    of = calls[0].variables
    if "out_carry" in of:
        mine, other = _type_of(of["in_carry"]), _type_of(of["out_carry"])
        init = next(_carry_in(call) for call in calls[1:] if call.function in ("scan", "while_loop"))
    else:  # jax < 0.5
        init, mine = of["in_carry"], jit_type(of["in_carry"])
        other = JitType(of["out_carry_tree"], [LeafType(aval) for aval in of["out_avals"]])
    around = [call.function for call in calls[1:]]
    within = ""  # the loop of fori_loop carries its counters, too
    if "fori_loop" in around:
        within = "[1]" if "scan" in around else "[2]"
    found = [
        Difference(path.removeprefix(within), *finding, tree=1) for path, finding in compare_types(init, mine, other)
    ]
    return "the carry comes out otherwise than it went in", found


def _carry_in(call: Call) -> Any:
    of = call.variables
    return of["args"].unflatten()[0] if call.function == "scan" else of["init_val_flat"].unflatten()


def of_branches(calls: Calls) -> Answer:
    """Of `cond` and `switch`."""
    of = calls[0].variables
    found = compare_types(of["outs1"], _type_of(of["out_avals1"]), _type_of(of["out_avals2"]))
    one, other = (re.sub(r"^branch(?=\d)", "branch ", of[name]) for name in ("name1", "name2"))
    title = f"what {one} and {other} return differs"
    return title, [Difference(path, *finding, tree=1) for path, finding in found]


def _type_of(flat: Any) -> JitType:
    """Of JAX's flat tree of types, without weak types: these make no difference to `cond` and loops."""
    return JitType(flat.tree, [LeafType(strong(aval)) for aval in flat.vals])


def of_cond_fun(calls: Calls) -> Answer:
    """Of `while_loop`: a condition that is no boolean scalar, and what of the carry makes it one of other numbers."""
    of = calls[0].variables
    closed = of["cond_jaxpr"]
    tree = of["cond_out_avals"].tree if "cond_out_avals" in of else of["cond_tree"]
    of_tree, avals, title = paths(tree), closed.out_avals, "cond_fun of while_loop must return one boolean"
    if not tree_util.treedef_is_leaf(tree) or len(avals) != 1:
        found = [f"{path} of the result: {aval.str_short()}" for path, aval in zip(of_tree, avals, strict=True)]
        return title, found or ["it returns nothing"]
    aval = avals[0]
    if aval.shape == () and aval.dtype == bool:
        return "", ()
    how = "reduce it, as by .all() or .any()" if aval.shape else "compare it, as by != 0"
    carry = next(call for call in calls[1:] if call.function == "while_loop").variables
    names = _carry_names(carry)
    made_of = [names[i] for i in _made_of(closed.jaxpr) if closed.jaxpr.invars[i].aval.shape == aval.shape != ()]
    return title, [
        f"the result: {aval.str_short()}: {how}",
        *(f"it is made of the carry{name}: {what(leaf)}" for name, leaf in made_of),
    ]


def _carry_names(of: dict[str, Any]) -> list[tuple[str, Any]]:
    return leaves_of(of["init_val_flat"].unflatten() if "init_val_flat" in of else of["init_val"])


def _made_of(jaxpr: Any) -> list[int]:
    """The positions of the inputs that the results of a program are made of."""
    needed = set(map(id, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        if any(id(each) in needed for each in eqn.outvars):
            needed.update(map(id, eqn.invars))
    return [i for i, each in enumerate(jaxpr.invars) if id(each) in needed]


def of_scanned(calls: Calls) -> Answer:
    """Of `scan`: the leaves of `xs` whose first axis is of another length than that of most."""
    of = next(call.variables for call in calls if call.function == "scan")
    leaves = leaves_of(of["args"].unflatten()[1] if "args" in of else of["xs"])
    lengths = [(path, leaf.shape[0] if getattr(leaf, "shape", ()) else None, leaf) for path, leaf in leaves]
    usual = of.get("length") or _most(Counter(n for _, n, _ in lengths if n is not None))
    return f"scan goes along the first axis{f', here of {usual}' if usual else ''}", [
        f"xs{path}: {what(leaf)}" for path, n, leaf in lengths if n != usual
    ]


def of_associative_scan(calls: Calls) -> Answer:
    of = calls[0].variables
    axis = of["axis"]
    lengths = [(path, leaf.shape[axis], leaf) for path, leaf in leaves_of(of["elems"])]
    usual = _most(Counter(n for _, n, _ in lengths))
    return f"associative_scan goes along axis {axis}{f', here of {usual}' if usual else ''}", [
        f"{path or 'the argument'}: {what(leaf)}" for path, n, leaf in lengths if n != usual
    ]


def _most(counts: Counter) -> Any:
    """What there is the most of; None if two things are as many."""
    first = counts.most_common(2)
    return first[0][0] if len(first) < 2 or first[0][1] > first[1][1] else None


def strong(aval: Any) -> Any:
    """A type without its weak type."""
    return guarded(lambda: aval.strip_weak_type(), lambda _: aval)


_TAKE_ARRAYS = {
    "vmap_f": "args",
    "scan": "args",
    "cond": "operands",
    "while_loop": "init_val_flat",
    "fun_remat": "args",
}


def _of_map(calls: Calls) -> Answer:
    of = calls[0].variables
    found = map_mismatches(of["tree"], *of["rest"], is_leaf=of["is_leaf"])
    several = len(of["rest"]) > 1
    return "the trees do not match", [f"tree {each.tree}: {each}" if several else each for each in found]


def _of_jvp(calls: Calls) -> Answer:
    of = calls[0].variables
    mine = jit_type(of["primals"])
    of_tangents = JitType(mine.treedef, [_of_tangent(leaf.aval) for leaf in mine.leaves])
    return "primals and tangents do not match", _given(of["tangents"], of_tangents, ("primals", "tangents"))


def _of_pullback(calls: Calls) -> Answer:
    """Of what `vjp` and `linear_transpose` return."""
    of = calls[0].variables
    if "in_tree_expected" in of:  # jax < 0.8
        tree, given, avals = of["in_tree_expected"], of["py_args"], of["out_primal_avals"]
    else:
        tree, given = of["out_tree"], of["out_ct" if "out_ct" in of else "out_cotangent"]
        tree = tree() if callable(tree) else tree  # of linear_transpose
        avals = of["out_primal_avals" if "out_primal_avals" in of else "out_avals"]
    found = _given(given, JitType(tree, [_of_tangent(aval) for aval in avals]), ("result", "cotangent"))
    return "the cotangent does not match the result", [
        each
        for each in found
        if (each.kind, each.left) != ("dtype", "float0")  # JAX takes any
    ]


def _of_custom_vjp(calls: Calls) -> Answer:
    """Of the rule of a `custom_vjp`: None, and a leaf in place of a node, are taken for what they stand for."""
    of = calls[0].variables
    wanted = JitType(of["in_tree"], [_of_tangent(aval) for aval in of["in_avals"]])
    found, leaves = _given(of["py_cts_in"], wanted, ("arguments", "result")), dict(leaves_of(of["py_cts_in"]))
    return "the result of the custom_vjp rule does not match the arguments", [
        each
        for each in found
        if (each.kind, each.right) != ("none", "None") and not (each.kind == "leaf" and each.path in leaves)
    ]


def _of_custom_jvp(calls: Calls) -> Answer:
    of = calls[0].variables
    mine = jit_type(of["py_primals_out"])
    wanted = JitType(mine.treedef, [_of_tangent(leaf.aval) for leaf in mine.leaves])
    found = _given(of["py_tangents_out"], wanted, ("primals", "tangents"))
    return "primals and tangents that the custom_jvp rule returns do not match", found


def _given(tree: Any, wanted: JitType, names: tuple[str, str]) -> list[Difference]:
    """How a tree of tangents or cotangents differs from what is wanted; weak types make no difference."""
    mine = jit_type(tree)
    mine = JitType(mine.treedef, [LeafType(strong(leaf.aval)) for leaf in mine.leaves])
    found = compare_types(tree, wanted, mine, is_right=True)
    return [Difference(path, *map(_float0, finding), tree=1, names=names) for path, finding in found]


def _float0(text: str) -> str:
    return "float0" if text == str(jax.dtypes.float0) else text


def _of_tangent(aval: Any) -> LeafType:
    """The type of what is a tangent or a cotangent of an array: of an integer, float0."""
    to_tangent = getattr(aval, "to_tangent_aval", None) or getattr(aval, "at_least_vspace", None)
    return LeafType(strong(to_tangent() if to_tangent else aval))


def _of_transposed(calls: Calls) -> Answer:
    """Of `jax.tree.transpose`: the inner trees that differ from the first of them."""
    of = calls[0].variables
    outer, inner = of["outer_treedef"], of["inner_treedef"]
    parts = outer.flatten_up_to(of["pytree_to_transpose"])
    like = next((part for part in parts if tree_util.tree_structure(part) == inner), None)
    if like is None and inner is not None:
        return "", ()
    paths = [
        tree_util.keystr(path)
        for path, _ in tree_util.tree_flatten_with_path(outer.unflatten(parts), is_leaf=_is_any(parts))[0]
    ]
    found = [(path, each) for path, part in zip(paths, parts, strict=True) for each in map_mismatches(like, part)]
    return "the trees to transpose are not alike", [f"in {path}: {each}" for path, each in found]


def _of_argument_types(calls: Calls) -> Answer:
    """Of `jit`: the leaves that are no arrays."""
    of = calls[0].variables
    if "static arguments" in str(calls[0].error):  # told with those that raise before
        return "", ()
    args, kwargs = of["args"], of["kwargs"]
    static = {i % len(args) for i in getattr(of["ji"], "static_argnums", ()) if -len(args) <= i < len(args)}
    trees = {f"argument {i}": arg for i, arg in enumerate(args) if i not in static} | {
        name: arg for name, arg in kwargs.items() if name not in getattr(of["ji"], "static_argnames", ())
    }
    return "jit takes arrays and numbers alone", [
        f"{name}{path}: {what(leaf)}: {remedy(leaf)}"
        for name, tree in trees.items()
        for path, leaf in leaves_of(tree)
        if not is_of_jax(leaf)
    ]


def _of_returned(calls: Calls) -> Answer:
    """Of a function that JAX traced: what of its result is no array."""
    of = calls[0].variables
    paths = getattr(of["dbg"], "result_paths", None)
    outs = of["out_tracers"]
    names = [*map(str, paths)] if isinstance(paths, tuple | list) else [""] * len(outs)
    return "the function returns what is no array", [
        f"{name or 'the result'}: {what(leaf)}: {remedy(leaf)}"
        for name, leaf in zip(names, outs, strict=True)
        if not is_of_jax(leaf)
    ]


def _of_compiled(calls: Calls) -> Answer:
    """Of a function that was compiled ahead of time: how the arguments differ from those it was compiled for."""
    compiled = next(call.variables["self"] for call in calls if call.function == "__call__")
    args, kwargs = calls[0].variables["args"], calls[0].variables["kwargs"]
    leaves, treedef = tree_util.tree_flatten(compiled.args_info)
    wanted = JitType(treedef, [LeafType(strong(leaf._aval)) for leaf in leaves])
    mine = jit_type((args, kwargs))
    mine = JitType(mine.treedef, [LeafType(strong(leaf.aval)) for leaf in mine.leaves])
    names = {"[0]": "args", "[1]": "kwargs"}
    return "the step was compiled for other arguments", [
        Difference(names.get(path[:3], "") + path[3:], *finding, tree=1, names=("compiled", "given"))
        for path, finding in compare_types((args, kwargs), wanted, mine, is_right=True)
    ]


def _of_compiled_shardings(calls: Calls) -> Answer:
    """Of a function that was compiled ahead of time: which arguments lie elsewhere now."""
    of = calls[0].variables
    wanted = of["in_shardings" if "in_shardings" in of else "in_xla_shardings"]
    given = of["args" if "args" in of else "args_after_dce"]  # those that the program reads
    around = next(call.variables for call in calls if call.function == "__call__")
    leaves = leaves_of((around["args"], around["kwargs"]))
    if len(leaves) == len(given):
        paths = [path for path, _ in leaves]
    else:  # an array that is given twice has two names: which of them is read, is not known
        n_of, path_of = Counter(id(leaf) for _, leaf in leaves), {id(leaf): path for path, leaf in leaves}
        paths = [path_of.get(id(leaf), "") if n_of[id(leaf)] == 1 else "" for leaf in given]
    names = {"[0]": "args", "[1]": "kwargs"}
    return "the step was compiled for arrays that lie elsewhere", [
        Difference(names[path[:3]] + path[3:], *finding, tree=1, names=("compiled", "given"))
        for path, leaf, sharding in zip(paths, given, wanted, strict=True)
        if path and is_committed(leaf) and not leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        for finding in compare_places(LeafType(None, sharding), LeafType(None, leaf.sharding))
    ]


def _of_invalid(calls: Calls) -> Answer:
    """Of loops, branches, `vmap` and `checkpoint`: the leaves that are no arrays."""
    call = next((call for call in calls if _TAKE_ARRAYS.get(call.function) in call.variables), None)
    if call is None:
        return "", ()
    tree, name = call.variables[_TAKE_ARRAYS[call.function]], call.function
    tree = tree.unflatten() if hasattr(tree, "unflatten") else tree
    words = {"[0]": "the initial carry", "[1]": "xs"} if name == "scan" else {}
    if any(each.function == "fori_loop" for each in calls):
        words, name = {"[0][1]": "", "[2]": ""}, "fori_loop"  # it carries its counters, too
    if name == "fun_remat":
        if call.variables.get("static_argnums"):  # JAX has taken these out: others stand in their places
            return "", ()
        name = "checkpoint"
    found = []
    for path, leaf in leaves_of(tree):
        if not is_of_jax(leaf):
            start = next((each for each in words if path.startswith(each)), "")
            found.append(f"{words.get(start, '') + path.removeprefix(start) or 'the argument'}: {what(leaf)}")
    return f"{name.removesuffix('_f')} takes arrays and numbers alone", found


def _of_deleted(calls: Calls) -> Answer:
    """Of `jit` and `device_get`: the arrays that were deleted, or donated to another call."""
    of = next((call.variables for call in calls if call.function in ("cache_miss", "device_get")), {})
    args, kwargs = (of["args"], of["kwargs"]) if "args" in of else ((of["x"],), {})
    trees = {f"argument {i}": arg for i, arg in enumerate(args)} | kwargs
    if len(trees) == 1 and "x" in of:
        trees = {"the argument": of["x"]}
    found = [
        (name, path, leaf)
        for name, tree in trees.items()
        for path, leaf in leaves_of(tree)
        if isinstance(leaf, jax.Array) and guarded(leaf.is_deleted, lambda _: False)
    ]
    if not any(path for _, path, _ in found):  # as of x + y: JAX says which shape it has
        return "", ()
    names = guarded(lambda: caller.names_of(calls[0].error), lambda _: {})  # as they are in the call
    return "arrays that were deleted, or donated to a call before", [
        f"{names.get(id(leaf), name + path)}: {what(leaf)}" for name, path, leaf in found
    ]


def _of_differentiated(calls: Calls) -> Answer:
    """Of `grad`, `value_and_grad`, `jacfwd` and `jacrev`: the leaves that have no derivative."""
    of = calls[0].variables
    if of.get("allow_int"):
        return "", ()
    are_refs = "Ref-typed" in str(calls[0].error)  # since jax 0.11
    return "grad needs arrays, and no references" if are_refs else "grad needs floating-point leaves", [
        f"{f'argument {i}' if len(of['dyn_args']) > 1 else 'the argument'}{path}: {what(leaf)}"
        for i, tree in enumerate(of["dyn_args"])
        for path, leaf in leaves_of(tree)
        if (is_ref(leaf) if are_refs else not is_inexact(leaf))
    ]


def _is_any(objects: Sequence[Any]) -> Callable[[Any], bool]:
    ids = set(map(id, objects))
    return lambda node: id(node) in ids


# Where the functions stand that raise, and what answers for them. " or " separates the places in different releases.
_PLACES: dict[str, Callable[[Calls], Answer]] = {
    "jax._src.lax.control_flow.loops:_check_carry_type": of_carry,
    "jax._src.lax.control_flow.conditionals:_check_branch_outputs": of_branches,
    "jax._src.api_util:flatten_axes": of_prefix,
    "jax._src.api_util:flatten_axis_resources or jax._src.pjit:flatten_axis_resources": of_shardings,
    "jax._src.api:vmap.<locals>.vmap_f": of_vmap,
    "jax._src.interpreters.batching:_batch_inner": of_vmapped,
    "jax._src.pjit:pjit_check_aval_sharding": of_divided,
    "jax._src.tree_util:broadcast_prefix": of_broadcast,
    "jax._src.api_util:argnums_partial2.<locals>.f_wrapped": of_broadcast,
    "jax._src.shard_map:_check_names or jax.experimental.shard_map:_check_names": of_out_specs,
    "jax._src.interpreters.pxla:_get_and_check_device_assignment": of_devices,
    "jax._src.interpreters.partial_eval:_check_returned_jaxtypes": _of_returned,
    "jax._src.stages:Compiled.call": _of_compiled,
    "jax._src.interpreters.pxla:check_array_xla_sharding_layout_match": _of_compiled_shardings,
    "jax._src.lax.control_flow.loops:while_loop.<locals>._create_jaxpr": of_cond_fun,
    "jax._src.lax.control_flow.loops:associative_scan": of_associative_scan,
    "jax._src.tree_util:tree_map": _of_map,
    "jax._src.tree_util:tree_map_with_path": _of_map,
    "jax._src.api:_jvp": _of_jvp,
    "jax._src.pjit:_infer_params": _of_argument_types,
    "jax._src.api:_vjp3_bwd or jax._src.api:_vjp_pullback_wrapper": _of_pullback,
    "jax._src.api:linear_transpose.<locals>.transposed_fun": _of_pullback,
    "jax._src.api:value_and_grad.<locals>.value_and_grad_f": _of_differentiated,
    "jax._src.api:jacrev.<locals>.jacfun": _of_differentiated,
    "jax._src.tree_util:tree_transpose": _of_transposed,
    "jax._src.lax.control_flow.loops:_infer_scan_length": of_scanned,
    "jax._src.custom_derivatives:_flatten_bwd": _of_custom_vjp,
    "jax._src.custom_derivatives:_flatten_jvp": _of_custom_jvp,
    "jax._src.core:typeof": _of_invalid,
    "jax._src.core:shaped_abstractify or jax._src.api_util:shaped_abstractify": _of_invalid,
    "jax._src.array:ArrayImpl._check_if_deleted": _of_deleted,
}
# What calls JAX again for trees that it has flattened: these functions know the user's trees.
_PLACES_AROUND: dict[str, Callable[[Calls], Answer]] = {
    "jax._src.shard_map:_shard_map.<locals>.wrapped or jax.experimental.shard_map:_shard_map.<locals>.wrapped": of_wrapped
}
ANSWERS, AROUND = (
    {re.split("[.:]", place)[-1]: answer for places, answer in table.items() for place in places.split(" or ")}
    for table in (_PLACES, _PLACES_AROUND)
)
PRIVATE = tuple(
    PrivateName(places, "explain_errors says less about the errors that these functions raise")
    for places in (*_PLACES, *_PLACES_AROUND)
)
