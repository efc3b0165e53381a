"""What is wrong with the trees of a call that failed inside JAX, by the function of JAX that raised.

A function of JAX that was renamed, or whose variables were, has no answer; nothing else is lost. To add one: a
function of the call and of those around it, innermost first, and its name in `ANSWERS`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from treeviz.analysis.compare.difference import Difference
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.explainer.frames import Call
from treeviz.overlaid import lay_over
from treeviz.steps.compiles.compare import compare_types
from treeviz.steps.compiles.jit_type import JitType, LeafType, jit_type
from treeviz.tree.safe_repr import array_text, class_name, guarded, value_text

_ARGS, _KWARGS = "treeviz: args", "treeviz: kwargs"  # the two parts of a tree of both
_TAKE_ARRAYS = {
    "vmap_f": "args",
    "scan": "args",
    "cond": "operands",
    "while_loop": "init_val_flat",
    "fun_remat": "args",
}
Calls = Sequence[Call]
Answer = tuple[str, Sequence[Any]]  # a title, and a line for each leaf


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
    found, leaves = _given(of["py_cts_in"], wanted, ("arguments", "result")), dict(_leaves(of["py_cts_in"]))
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
    mine = JitType(mine.treedef, [LeafType(_strong(leaf.aval)) for leaf in mine.leaves])
    found = compare_types(tree, wanted, mine, is_right=True)
    return [Difference(path, *map(_float0, finding), tree=1, names=names) for path, finding in found]


def _float0(text: str) -> str:
    return "float0" if text == str(jax.dtypes.float0) else text


def _of_tangent(aval: Any) -> LeafType:
    """The type of what is a tangent or a cotangent of an array: of an integer, float0."""
    to_tangent = getattr(aval, "to_tangent_aval", None) or getattr(aval, "at_least_vspace", None)
    return LeafType(_strong(to_tangent() if to_tangent else aval))


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


def _of_vmap(calls: Calls) -> Answer:
    of = calls[0].variables
    title = "in_axes does not fit the arguments"
    found = lay_over(of["in_axes"], of["args"], use="in_axes", is_leaf=None).differences
    if found or not of["kwargs"]:
        return title, found
    both = lay_over(({_ARGS: of["in_axes"], _KWARGS: 0},), {_ARGS: of["args"], _KWARGS: of["kwargs"]}, use="in_axes")
    short = {f"[0][{_ARGS!r}]": "", f"[0][{_KWARGS!r}]": "kwargs"}
    return title, [_replaced(str(each), short) for each in both.differences if each.kind in ("size", "axis")]


def _replaced(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def _of_prefix(calls: Calls) -> Answer:
    """Of `out_axes`, `in_shardings`, `out_shardings` and `device_put`."""
    of = calls[0].variables
    if of.get("name") == "vmap in_axes":  # `_of_vmap` knows more
        return "", ()
    found = map_mismatches(of["axis_tree"], of["dummy_tree"], is_leaf=lambda node: node is None)
    words = {"missing": "in the prefix, and not in the tree", "extra": "in the tree, and not in the prefix"}
    name = of.get("name") or of.get("what") or "the prefix"
    return f"{name} is no prefix of the tree", [
        f"{each.path or 'the root'}: {words[each.kind]}" if each.kind in words else each for each in found
    ]


def _of_carry(calls: Calls) -> Answer:
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


def _of_branches(calls: Calls) -> Answer:
    """Of `cond` and `switch`."""
    of = calls[0].variables
    found = compare_types(of["outs1"], _type_of(of["out_avals1"]), _type_of(of["out_avals2"]))
    one, other = (re.sub(r"^branch(?=\d)", "branch ", of[name]) for name in ("name1", "name2"))
    title = f"what {one} and {other} return differs"
    return title, [Difference(path, *finding, tree=1) for path, finding in found]


def _type_of(flat: Any) -> JitType:
    """Of JAX's flat tree of types, without weak types: these make no difference to `cond` and loops."""
    return JitType(flat.tree, [LeafType(_strong(aval)) for aval in flat.vals])


def _strong(aval: Any) -> Any:
    return guarded(lambda: aval.strip_weak_type(), lambda _: aval)


def _of_argument_types(calls: Calls) -> Answer:
    """Of `jit`: the leaves that are no arrays."""
    of = calls[0].variables
    args, kwargs = of["args"], of["kwargs"]
    static = {i % len(args) for i in getattr(of["ji"], "static_argnums", ()) if -len(args) <= i < len(args)}
    trees = {f"argument {i}": arg for i, arg in enumerate(args) if i not in static} | {
        name: arg for name, arg in kwargs.items() if name not in getattr(of["ji"], "static_argnames", ())
    }
    return "jit takes arrays and numbers alone", [
        f"{name}{path}: {what(leaf)}: {remedy(leaf)}"
        for name, tree in trees.items()
        for path, leaf in _leaves(tree)
        if not is_array(leaf)
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
    for path, leaf in _leaves(tree):
        if not is_array(leaf):
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
        for path, leaf in _leaves(tree)
        if isinstance(leaf, jax.Array) and guarded(leaf.is_deleted, lambda _: False)
    ]
    if not any(path for _, path, _ in found):  # as of x + y: JAX says which shape it has
        return "", ()
    return "arrays that were deleted, or donated to a call before", [
        f"{name}{path}: {what(leaf)}" for name, path, leaf in found
    ]


def remedy(leaf: Any) -> str:
    if isinstance(leaf, str):
        return "make it static (static_argnames, or a meta field of the class), or take it out of the tree"
    if isinstance(leaf, np.ndarray | np.generic):
        return "convert it to numbers, make it static, or take it out"
    if callable(leaf):
        return "make it static, or partition the tree (eqx.filter_jit does)"
    return "register its class as a pytree node, make it static, or take it out"


def _of_differentiated(calls: Calls) -> Answer:
    """Of `grad`, `value_and_grad`, `jacfwd` and `jacrev`: the leaves that have no derivative."""
    of = calls[0].variables
    if of.get("allow_int"):
        return "", ()
    return "grad needs floating-point leaves", [
        f"{f'argument {i}' if len(of['dyn_args']) > 1 else 'the argument'}{path}: {what(leaf)}"
        for i, tree in enumerate(of["dyn_args"])
        for path, leaf in _leaves(tree)
        if not _is_inexact(leaf)
    ]


def _of_scanned(calls: Calls) -> Answer:
    """Of `scan`: the leaves of `xs` whose first axis is of another length than that of most."""
    of = next(call.variables for call in calls if call.function == "scan")
    leaves = _leaves(of["args"].unflatten()[1] if "args" in of else of["xs"])
    lengths = [(path, leaf.shape[0] if leaf.shape else None, leaf) for path, leaf in leaves if hasattr(leaf, "shape")]
    sizes = Counter(n for _, n, _ in lengths).most_common(2)
    usual = of.get("length") or (sizes[0][0] if len(sizes) < 2 or sizes[0][1] > sizes[1][1] else None)
    return f"scan goes along the first axis{f', here of {usual}' if usual else ''}", [
        f"xs{path}: {what(leaf)}" for path, n, leaf in lengths if n != usual
    ]


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(tree_util.keystr(path), leaf) for path, leaf in tree_util.tree_flatten_with_path(tree)[0]]


def what(leaf: Any) -> str:
    return guarded(lambda: array_text(leaf), lambda _: None) or f"{class_name(type(leaf))} {value_text(leaf, 40)}"


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex) or (
        hasattr(leaf, "dtype") and hasattr(leaf, "shape") and getattr(leaf.dtype, "kind", "f") not in "OSUM"
    )


def _is_inexact(leaf: Any) -> bool:
    return not isinstance(leaf, bool | int) and is_array(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def _is_any(objects: Sequence[Any]) -> Callable[[Any], bool]:
    ids = set(map(id, objects))
    return lambda node: id(node) in ids


ANSWERS: dict[str, Callable[[Calls], Answer]] = {
    "_check_carry_type": _of_carry,
    "_check_branch_outputs": _of_branches,
    "flatten_axes": _of_prefix,
    "flatten_axis_resources": _of_prefix,
    "vmap_f": _of_vmap,
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
    "_infer_scan_length": _of_scanned,
    "_flatten_bwd": _of_custom_vjp,
    "_flatten_jvp": _of_custom_jvp,
    "typeof": _of_invalid,
    "shaped_abstractify": _of_invalid,
    "_check_if_deleted": _of_deleted,
}
