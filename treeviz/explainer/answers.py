"""What is wrong with the trees of a call that failed inside JAX, by the function of JAX that raised.

A function of JAX that was renamed, or whose variables were, has no answer; nothing else is lost. To add one: a
function of the call and of those around it, innermost first, and its name in `ANSWERS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import tree_util

from treeviz.analysis.compare.difference import Difference
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.explainer import caller, loops, placed
from treeviz.explainer.frames import Answer, Calls
from treeviz.explainer.leaves import is_inexact, is_of_jax, is_ref, leaves_of, remedy, what
from treeviz.explainer.loops import strong
from treeviz.steps.compiles.compare import compare_types
from treeviz.steps.compiles.jit_type import JitType, LeafType, compare_places, is_committed, jit_type
from treeviz.tree.safe_repr import guarded

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


ANSWERS: dict[str, Callable[[Calls], Answer]] = {
    "_check_carry_type": loops.of_carry,
    "_check_branch_outputs": loops.of_branches,
    "flatten_axes": placed.of_prefix,
    "flatten_axis_resources": placed.of_shardings,
    "vmap_f": placed.of_vmap,
    "_batch_inner": placed.of_vmapped,
    "pjit_check_aval_sharding": placed.of_divided,
    "broadcast_prefix": placed.of_broadcast,
    "f_wrapped": placed.of_broadcast,
    "_check_names": placed.of_out_specs,
    "_get_and_check_device_assignment": placed.of_devices,
    "_check_returned_jaxtypes": _of_returned,
    "call": _of_compiled,
    "check_array_xla_sharding_layout_match": _of_compiled_shardings,
    "_create_jaxpr": loops.of_cond_fun,
    "associative_scan": loops.of_associative_scan,
    "tree_map": _of_map,
    "tree_map_with_path": _of_map,
    "_jvp": _of_jvp,
    "_infer_params": _of_argument_types,
    "_vjp3_bwd": _of_pullback,
    "_vjp_pullback_wrapper": _of_pullback,
    "transposed_fun": _of_pullback,
    "value_and_grad_f": _of_differentiated,
    "jacfun": _of_differentiated,
    "tree_transpose": _of_transposed,
    "_infer_scan_length": loops.of_scanned,
    "_flatten_bwd": _of_custom_vjp,
    "_flatten_jvp": _of_custom_jvp,
    "typeof": _of_invalid,
    "shaped_abstractify": _of_invalid,
    "_check_if_deleted": _of_deleted,
}

# Of what calls JAX again for trees that it has made flat: these know the user's.
AROUND: dict[str, Callable[[Calls], Answer]] = {"wrapped": placed.of_wrapped}
