"""The names of JAX's primitives and their parameters, and how to read and bind their equations.

A primitive that no set names computes something new from its operands. To teach treeviz a new one, add its name to
the set that describes it; one that holds a jaxpr and is no plain call also needs a rule in `reap_rules`. What only one
rule reads is in its file: arithmetic in `new_params`, the options of a `shard_map` in `reap_shard_map`.

A primitive whose name differs between releases (jax 0.4.36 to 0.12.0) is listed with each of its names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, NamedTuple

from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

# Result i is operand i, bit for bit.
IDENTITY = frozenset(
    [
        *("copy", "copy_p", "device_put", "optimization_barrier", "stop_gradient"),
        *("sharding_constraint", "reshard", "mesh_cast"),
        *("pvary", "pcast", "pbroadcast"),  # over which axes of a `shard_map` the value varies
    ]
)
# Result i is operand i in another dtype or precision.
CASTS = frozenset(["convert_element_type", "reduce_precision"])
# The result has the elements of its one operand, in another shape or order.
RESHAPES = frozenset(["broadcast_in_dim", "expand_dims", "reshape", "rev", "squeeze", "transpose"])
# Result i is the same leaf as operand i, so that a gradient with respect to one is a gradient with respect to both.
SAME_LEAF = IDENTITY | CASTS

# The result is a sum over the devices of a `shard_map`; their axes are `params["axes"]`.
DEVICE_SUMS = frozenset(["psum", "psum2", "psum_invariant", "psum_p", "all_reduce"])
# Each device gets the parts of all: `params["all_gather_dimension"]` is longer if `params["tiled"]`, else new.
GATHERS = frozenset(["all_gather", "all_gather_invariant"])
# They add updates into an array by index, as the gradient of an embedding does.
SCATTER_ADDS = frozenset(["scatter-add"])
# Each element of the result comes from one of each operand. XLA merges these with what uses the result.
ELEMENTWISE = CASTS | frozenset(
    [
        *("abs", "add", "add_any", "copy", "div", "exp", "integer_pow", "log", "logistic", "max", "min", "mul", "neg"),
        *("one_minus_square", "rsqrt", "select_n", "sign", "sqrt", "square", "sub", "tanh"),
        *("and", "eq", "ge", "gt", "le", "lt", "ne", "not", "or"),
    ]
)
# Element-wise functions and sums that never give an infinity of one sign for an infinity of the other: exp(-Inf) is 0.
KEEPS_SIGN_OF_INFINITY = frozenset(
    [
        *(
            "exp",
            "exp2",
            "expm1",
            "log",
            "log1p",
            "log2",
            "sqrt",
            "add",
            "add_any",
            "max",
            "min",
            "convert_element_type",
        ),
        *("reduce_sum", "reduce_max", "reduce_min", "cumsum", "cumlogsumexp"),
    ]
)
# They call the host to show something, and have no results.
DEBUG_CALLBACKS = frozenset(["debug_callback", "debug_print"])
# They have a meaning inside a compiled program only.
COMPILED_ONLY = frozenset(["shard_map", "xla_pmap"])

# Calls: each runs one jaxpr, once, on all its operands, and gives its results.
JITS = frozenset(["jit", "pjit"])
REMATS = frozenset(["remat2", "checkpoint"])
# Those with a derivative rule, which a traced step does not need any more: it is differentiated already.
CUSTOM_DERIVATIVES = frozenset(["custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"])
CALLS = JITS | REMATS | CUSTOM_DERIVATIVES | {"eval_jaxpr", "closed_call", "core_closed_call", "core_call"}

COND, SCAN, SHARD_MAP, WHILE = "cond", "scan", "shard_map", "while"


# Jaxprs inside an equation

# Each equation is asked several times, so most are told apart by name; and no unions, which are slower.
_LISTS, _JAXPRS = (tuple, list), (Jaxpr, ClosedJaxpr)
_WITHOUT_JAXPR = ELEMENTWISE | RESHAPES | SAME_LEAF | {"dot_general", "reduce_max", "reduce_sum", "treeviz_sow"}


def inner_jaxprs(eqn: Any) -> list[Any]:
    """Every jaxpr, open or closed, among the parameters of an equation."""
    found: list[Any] = []
    if eqn.primitive.name in _WITHOUT_JAXPR:
        return found
    for value in eqn.params.values():
        if isinstance(value, _LISTS):
            found += [x for x in value if isinstance(x, _JAXPRS)]
        elif isinstance(value, _JAXPRS):
            found.append(value)
    return found


def effects_in(program: ClosedJaxpr) -> set[str]:
    """The names of the primitives in a program that do more than return results, as `io_callback` does."""

    def names(jaxpr: Any) -> Iterator[str]:
        for eqn in open_jaxpr(jaxpr).eqns:
            inner = inner_jaxprs(eqn)
            if eqn.effects and not inner:
                yield eqn.primitive.name
            for one in inner:
                yield from names(one)

    return set(names(program)) if program.jaxpr.effects else set()


def open_jaxpr(jaxpr: Any) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def consts_of(jaxpr: Any) -> Sequence[Any]:
    return jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else ()


def called_jaxpr(eqn: Any) -> Any:
    """The jaxpr of one of `CALLS`, of a scan, or of a `shard_map`."""
    return inner_jaxprs(eqn)[0]


def programs(eqn: Any, operands: Sequence[Any]) -> list[tuple[Any, Sequence[Any]]]:
    """The jaxprs that an equation runs, each with its operands; none for an unknown primitive.

    Args:
      operands: One value of any type for each operand of the equation.
    """
    name = eqn.primitive.name
    if name == COND:
        return [(branch, operands[1:]) for branch in eqn.params["branches"]]
    if name == WHILE:
        parts = while_parts(eqn, operands)
        return [
            (parts.condition, [*parts.cond_consts, *parts.carry]),
            (parts.body, [*parts.body_consts, *parts.carry]),
        ]
    return [(called_jaxpr(eqn), operands)] if name in CALLS or name in (SCAN, SHARD_MAP) else []


class ScanParts(NamedTuple):
    """A scan's body, which takes `(*consts, *carry, *x)`, its operands by their role, and its options."""

    body: ClosedJaxpr
    consts: Sequence[Any]
    carry: Sequence[Any]
    xs: Sequence[Any]
    length: int
    reverse: bool
    unroll: Any


def scan_parts(eqn: Any, operands: Sequence[Any]) -> ScanParts:
    p = eqn.params
    if "ft_in" in p:  # from jax 0.11 on: a flat tree of the consts, the carry and the xs
        n_consts, n_carry, _ = map(len, p["ft_in"].unpack())
    else:
        n_consts, n_carry = p["num_consts"], p["num_carry"]
    consts, carry = operands[:n_consts], operands[n_consts : n_consts + n_carry]
    xs = operands[n_consts + n_carry :]
    return ScanParts(p["jaxpr"], consts, carry, xs, p["length"], p["reverse"], p["unroll"])


class WhileParts(NamedTuple):
    """A while loop's jaxprs, which take `(*consts, *carry)`, and its operands by their role."""

    condition: ClosedJaxpr
    body: ClosedJaxpr
    cond_consts: Sequence[Any]
    body_consts: Sequence[Any]
    carry: Sequence[Any]


def while_parts(eqn: Any, operands: Sequence[Any]) -> WhileParts:
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    body_consts, carry = operands[n_cond : n_cond + n_body], operands[n_cond + n_body :]
    return WhileParts(eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"], operands[:n_cond], body_consts, carry)


def is_recomputed(eqn: Any) -> bool:
    """Whether an equation is the second run of a `jax.checkpoint`, made for the backward pass."""
    return bool(eqn.params.get("differentiated"))


def is_scalar(atom: Any) -> bool:
    return getattr(atom.aval, "shape", None) == ()


def shape_and_dtype(atom: Any) -> tuple[tuple[int, ...] | None, Any]:
    """None for what has none, as types of `jax.experimental.hijax`."""
    return getattr(atom.aval, "shape", None), getattr(atom.aval, "dtype", None)


def size_of(atom: Any) -> int:
    """The number of elements; 0 where there is none."""
    return getattr(atom.aval, "size", 0)


# Running a jaxpr equation by equation


def bind(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Apply an equation's primitive to other operands. Returns a list, also for a single result."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # until jax 0.8 or so: the functions that come before the operands, and the parameters
    functions, params = params if isinstance(params, tuple) else ((), params)
    results = eqn.primitive.bind(*functions, *operands, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


@contextmanager
def context_of(eqn: Any) -> Iterator[None]:
    """A context in which new equations get the name stack, source line and JAX settings of an existing one."""
    names = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
        yield


def last_uses(
    jaxpr: Jaxpr, kept: AbstractSet[Any] = frozenset(), without: AbstractSet[int] = frozenset()
) -> dict[int, list[Any]]:
    """By the number of an equation, the variables that are not needed after it, so that their values can be freed.

    Args:
      kept: Variables that are needed to the end, as the jaxpr's results are.
      without: The numbers of equations that are not run.
    """
    last: dict[Any, int] = {}
    for n, eqn in enumerate(jaxpr.eqns):
        if n not in without:
            last.update((v, n) for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal))
    kept = kept | {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    used: dict[int, list[Any]] = {}
    for variable, n in last.items():
        if variable not in kept:
            used.setdefault(n, []).append(variable)
    return used
