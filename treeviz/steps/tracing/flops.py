"""The floating-point operations of an equation, counted as XLA's `HloCostAnalysis` counts those of its instruction.

A multiply-add is two operations; a product that only reads padding is none; functions such as `exp` are counted apart,
as transcendentals. Source: https://github.com/openxla/xla/blob/main/xla/service/hlo_cost_analysis.cc
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from treeviz.steps.tracing.primitives import (
    COND,
    DEVICE_SUMS,
    GATHERS,
    IDENTITY,
    RESHAPES,
    SCAN,
    open_jaxpr,
    programs,
    scan_parts,
    size_of,
)


class Work(NamedTuple):
    """The operations of one equation, without those of programs inside it."""

    flops: float
    transcendentals: float = 0
    is_known: bool = True  # False: this primitive calls code that is no program of JAX


_NOTHING = Work(0)
# The result has elements of the operands, or none that are computed.
_MOVES = (IDENTITY | RESHAPES | GATHERS) | {
    *(
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "concatenate",
        "pad",
        "split",
        "select_and_gather_add",
    ),
    *("iota", "real", "imag", "complex", "empty", "broadcast", "ppermute", "all_to_all"),
    *("axis_index", "random_wrap", "random_unwrap", "random_clone", "create_token", "scatter", "tie_in", "pbroadcast"),
    *("debug_callback", "debug_print", "treeviz_sow", "partition_id", "all_gather_reduced", "unreduced_psum", "name"),
    *("get", "ref_get", "swap", "empty2", "optimization_barrier", "split_replica"),
}
_TRANSCENDENTALS = frozenset(
    [
        *("exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "logistic", "erf", "erfc", "erf_inv"),
        *("rsqrt", "sqrt", "cbrt", "pow", "atan2", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
        *("lgamma", "digamma", "polygamma", "igamma", "igammac", "bessel_i0e", "bessel_i1e", "zeta"),
        "regularized_incomplete_beta",
    ]
)  # fmt: skip
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1}  # JAX lowers no operation with this literal
_WITHIN = {"logistic": 3.0, "erf_inv": 37.0}  # what XLA makes of them has other operations, too
_REDUCTIONS = {
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
    "reduce_xor",
    "reduce",
}
_UNKNOWN = {
    "pallas_call",
    "custom_call",
    "ffi_call",
    "pure_callback",
    "io_callback",
    "tpu_custom_call",
    "cuda_custom_call",
}


def _dot(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return 2.0 * size_of(eqn.outvars[0]) * math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)


def _convolution(eqn: Any) -> float:
    """2 for each product of an element of the input with one of the kernel; what is padded or dilated is no element."""
    p, numbers = eqn.params, eqn.params["dimension_numbers"]
    lhs, rhs, out = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    axes = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    n_valid = 1.0
    for i, (of_lhs, of_rhs, of_out) in enumerate(axes):
        kernel = np.arange(rhs[of_rhs]) * p["rhs_dilation"][i] - p["padding"][i][0]
        places = np.add.outer(np.arange(out[of_out]) * p["window_strides"][i], kernel)
        dilation = p["lhs_dilation"][i]
        is_element = (places % dilation == 0) & (places >= 0) & (places <= (lhs[of_lhs] - 1) * dilation)
        n_valid *= float(is_element.sum())
    n_features = rhs[numbers.rhs_spec[0]] * rhs[numbers.rhs_spec[1]]  # the second is of one group
    return 2.0 * n_valid * n_features * out[numbers.out_spec[0]]


def _gather(eqn: Any) -> float:
    """What decides, with `mode="fill"`, as of `jnp.take` and embeddings, which indices are within bounds."""
    if "FILL" not in str(eqn.params["mode"]):
        return 0.0
    n_indices, shape = size_of(eqn.invars[1]), eqn.invars[1].aval.shape
    return 4.0 * n_indices - n_indices / max(shape[-1], 1) + size_of(eqn.outvars[0])


def _window(eqn: Any) -> float:
    return size_of(eqn.outvars[0]) * max(math.prod(eqn.params["window_dimensions"]) - 1, 0)


def _power(eqn: Any) -> float:
    """By repeated squaring; 1 more for a division."""
    n = abs(eqn.params["y"])
    return size_of(eqn.outvars[0]) * (max(n.bit_length() - 1, 0) + max(n.bit_count() - 1, 0) + (eqn.params["y"] < 0))


def _sort(eqn: Any) -> float:
    n = eqn.invars[0].aval.shape[eqn.params["dimension"]] if eqn.invars[0].aval.shape else 1
    return size_of(eqn.invars[0]) * math.ceil(math.log2(max(n, 2)))


def _square_matrix(factor: float) -> Callable[[Any], float]:
    """`factor` n³ for each n × n matrix."""

    def flops(eqn: Any) -> float:
        *batch, m, n = eqn.invars[0].aval.shape
        return factor * math.prod(batch) * m * n * min(m, n)

    return flops


_RULES: dict[str, Callable[[Any], float]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "integer_pow": _power,
    "sort": _sort,
    "top_k": lambda eqn: size_of(eqn.invars[0]) * math.ceil(math.log2(max(eqn.params["k"], 2))),
    **dict.fromkeys(("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), _window),
    **{name: lambda eqn: size_of(eqn.outvars[0]) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    **{
        name: lambda eqn: size_of(eqn.invars[-1])
        for name in ("scatter-add", "scatter-mul", "scatter-min", "scatter-max")
    },
    **{name: lambda eqn: sum(map(size_of, eqn.invars)) for name in (*DEVICE_SUMS, "pmax", "pmin", "reduce_scatter")},
    **{name: lambda eqn: 9.0 * (size_of(eqn.invars[0]) - size_of(eqn.outvars[0])) for name in ("argmax", "argmin")},
    "cholesky": _square_matrix(1 / 3),
    "lu": _square_matrix(2 / 3),
    "geqrf": _square_matrix(4 / 3),
    "householder_product": _square_matrix(4 / 3),
    "eigh": _square_matrix(9),
    "svd": _square_matrix(12),
    "triangular_solve": lambda eqn: 1.0 * eqn.invars[0].aval.shape[-1] * size_of(eqn.invars[1]),
    "fft": lambda eqn: 5.0 * size_of(eqn.outvars[0]) * math.log2(max(math.prod(eqn.params["fft_lengths"]), 2)),
    "custom_linear_solve": lambda eqn: flops_in(eqn.params["jaxprs"].solve),
    "random_bits": lambda eqn: 31.0 * size_of(eqn.outvars[0]),  # of threefry2x32, on jax 0.12
}


def work_of(eqn: Any) -> Work:
    """What one equation computes; nothing for one that only moves, and one operation per element by default."""
    name, neutral = eqn.primitive.name, _NEUTRAL.get(eqn.primitive.name)
    literals = [x.val for x in eqn.invars[name == "sub" :] if isinstance(x, Literal)]
    if name in _MOVES or (neutral is not None and neutral in literals):
        return _NOTHING
    if name in _TRANSCENDENTALS:
        return Work(_WITHIN.get(name, 0) * size_of(eqn.outvars[0]), size_of(eqn.outvars[0]))
    if name in _REDUCTIONS:
        return Work(max(size_of(eqn.invars[0]) - size_of(eqn.outvars[0]), 0))
    if name in _RULES:
        return Work(float(_RULES[name](eqn)))
    if name in _UNKNOWN:
        cost = eqn.params.get("cost_estimate")
        return Work(0, 0, False) if cost is None else Work(cost.flops, cost.transcendentals)
    return Work(sum(map(size_of, eqn.outvars)))


def flops_in(program: Any) -> float:
    """The FLOPs of a program on one device; of a while loop one turn, of a `cond` the branch with the most."""
    total = 0.0
    for eqn in open_jaxpr(program).eqns:
        inner = [flops_in(inner) for inner, _ in programs(eqn, eqn.invars)]
        times = scan_parts(eqn, eqn.invars).length if eqn.primitive.name == SCAN else 1
        total += times * (max(inner) if eqn.primitive.name == COND else sum(inner)) if inner else work_of(eqn).flops
    return total
