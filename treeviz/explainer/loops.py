"""What does not fit in loops and branches: carries, conditions, lengths, and what branches return."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from jax import tree_util

from treeviz.analysis.compare.difference import Difference
from treeviz.explainer import placed
from treeviz.explainer.frames import Answer, Call, Calls
from treeviz.explainer.leaves import leaves_of, what
from treeviz.steps.compiles.compare import compare_types
from treeviz.steps.compiles.jit_type import JitType, LeafType, jit_type
from treeviz.tree.safe_repr import guarded


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
    paths, avals, title = placed.paths(tree), closed.out_avals, "cond_fun of while_loop must return one boolean"
    if not tree_util.treedef_is_leaf(tree) or len(avals) != 1:
        found = [f"{path} of the result: {aval.str_short()}" for path, aval in zip(paths, avals, strict=True)]
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
