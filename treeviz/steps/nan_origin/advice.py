"""Advice on an operation that produced NaN or Inf."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from treeviz.steps.nan_origin.numbers import Numbers

_WHERE = (
    "A branch that jnp.where does not take is differentiated all the same, and 0 * Inf is NaN: make its argument safe "
    "first, e.g. jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)."
)
_BY_PRIMITIVE = {
    "log": "Keep the argument above 0: jnp.log(x + eps), or for probabilities jax.nn.log_softmax.",
    "log1p": "Keep the argument above -1: jnp.log1p(jnp.maximum(x, -1 + eps)).",
    "sqrt": "Keep the argument at 0 or above: jnp.sqrt(jnp.maximum(x, 0)), and above 0 if it is differentiated.",
    "rsqrt": "Keep the argument above 0: jax.lax.rsqrt(x + eps).",
    "pow": "A negative base has no power with a fraction, and 0 none below 0: jnp.maximum(x, eps) ** p.",
    "acos": "Keep the argument within [-1, 1]: jnp.clip(x, -1 + eps, 1 - eps).",
    "asin": "Keep the argument within [-1, 1]: jnp.clip(x, -1 + eps, 1 - eps).",
    "atanh": "Keep the argument within (-1, 1): jnp.clip(x, -1 + eps, 1 - eps).",
    "acosh": "Keep the argument at 1 or above: jnp.maximum(x, 1).",
    "erf_inv": "Keep the argument within (-1, 1): jnp.clip(x, -1 + eps, 1 - eps).",
    "cholesky": "The matrix is not positive definite: add jitter to its diagonal, a + eps * jnp.eye(n).",
    "triangular_solve": "The matrix is singular: add jitter to its diagonal, a + eps * jnp.eye(n).",
    "eigh": "Equal eigenvalues have no derivative: add jitter to the diagonal.",
    "svd": "Equal singular values have no derivative: add jitter, or stop the gradient there.",
    "select_n": "A NaN was put there on purpose, by jnp.where or a function that marks wrong arguments with it.",
    "integer_pow": "A negative power of 0 is infinite, and a large one too large: bound the base.",
}
_BY_PRIMITIVE["log2"] = _BY_PRIMITIVE["log"]
_WHOLE = ("shard_map", "cond", "xla_pmap", "pallas_call", "scan", "while", "custom_partitioning", "custom_linear_solve")
_GROWS = ("exp", "exp2", "expm1", "sinh", "cosh")
_SUMS = (
    *("dot_general", "conv_general_dilated", "reduce_sum", "cumsum", "mul", "add", "sub", "square", "integer_pow"),
    *("add_any", "convert_element_type", "reduce_prod", "scatter-add"),
)


def advice(name: str, direction: str, source: str, inputs: Sequence[Numbers], outputs: Sequence[Numbers]) -> str:
    """What to try, by the primitive, its direction, its line of source, its operands and its results."""
    bad = next((x for x in outputs if x.nonfinite), None)
    infinite_inputs = any(x.n_posinf or x.n_neginf for x in inputs)
    if name in _WHOLE:
        return f"{name} was run as a whole: call locate_nan on the function that it runs to learn more."
    if bad and bad.n_nan and infinite_inputs:
        return (
            "Infinities that were there on purpose met: Inf - Inf and 0 * Inf are NaN. Has a row of a mask nothing but "
            "-Inf? Mask with a large finite number: jnp.finfo(x.dtype).min."
        )
    if direction == "backward":
        if "where" in source:
            return _WHERE
        if re.search(r"\ba(rc)?(cos|sin)\b", source):
            return (
                "The derivative of arccos and arcsin is infinite at -1 and 1: keep the argument between them, "
                "jnp.clip(x, -1 + 1e-6, 1 - 1e-6)."
            )
        if "sqrt" in source or "norm" in source:
            return (
                "The derivative of a square root, and so of a norm, is infinite at 0: jnp.sqrt(jnp.sum(x * x) + eps)."
            )
    if name in _GROWS and bad:
        limit = float(np.log(float(jnp.finfo(bad.dtype).max)))
        wider = ", or compute it in float32" * (jnp.finfo(bad.dtype).bits < 32)
        return (
            f"{name} of {bad.dtype} overflows above {limit:.4g}: subtract the maximum first (jax.nn.softmax, "
            f"jax.nn.logsumexp), or clip the argument{wider}."
        )
    if name in ("div", "rem"):
        if re.search(r"norm|\bstd\b|\bvar\b", source):
            return "A norm or deviation of 0 was divided by: x / (norm + eps), or jnp.where(norm > 0, norm, 1)."
        return "Keep the divisor away from 0: x / (y + eps), or x / jnp.where(y == 0, 1, y)."
    if name in _BY_PRIMITIVE:
        extra = f" {_WHERE}" if "where" in source and name != "select_n" else ""
        return _BY_PRIMITIVE[name] + extra
    if name in _SUMS and bad and not bad.n_nan:
        largest = float(jnp.finfo(bad.dtype).max)
        return (
            f"The result is above {largest:.4g}, the largest {bad.dtype}: lower the learning rate or clip the "
            "gradients if values grew over the steps, or compute this in a wider dtype."
        )
    return "Bound what goes into this line, and look at how it got so large or small: jax.debug.print, treeviz.tap."
