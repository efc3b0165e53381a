"""Value statistics of arrays on an accelerator: one program per shape and dtype, on the device of the array."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from jax import lax

from treeviz.analysis.stats.summary import BINS, FIRST_EXPONENT, N_BINS, NEGINF, Summaries, nothing

_NO_MESH = jax.sharding.Mesh(np.empty((), object), ())
_AT_ONCE = 1 << 16  # elements
MAX_ELEMENTS = 2**32 - 1  # of one shard: counts are uint32


def launch(shard: jax.Array, axis: int | None = None) -> tuple[jax.Array, bool]:
    """Start the reduction of a single-device array, or of each of its layers along an axis, without waiting for it.

    Returns:
      uint32[...] or uint32[layers, ...] on the same device, for `summary_of_bits`, and whether it contains float64.
    """
    (device,) = shard.sharding.device_set
    wide = has_float64(device)
    with undisturbed(), jax.default_device(device):
        return (_reduced(shard, wide=wide) if axis is None else _reduced_layers(shard, axis=axis, wide=wide)), wide


def has_float64(device) -> bool:
    return device.platform != "tpu"


def fetch(arrays: list[jax.Array]) -> list[np.ndarray]:
    """Copy the arrays to the host in one transfer."""
    with undisturbed():
        return jax.device_get(arrays)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run with JAX's default settings and outside of any trace, in this thread, whatever the user has set."""
    newest = jax if hasattr(jax, "enable_x64") else jax.experimental  # jax < 0.8
    with contextlib.ExitStack() as stack:
        for context in (
            jax.ensure_compile_time_eval(),
            newest.enable_x64(True),  # type: ignore[attr-defined]
            jax.debug_nans(False),
            jax.debug_infs(False),
            jax.disable_jit(False),
            jax.check_tracer_leaks(False),  # type: ignore[attr-defined]
            jax.transfer_guard("allow"),
            jax.numpy_rank_promotion("allow"),
            jax.numpy_dtype_promotion("standard"),
        ):
            stack.enter_context(context)
        if hasattr(jax, "set_mesh"):  # inside a mesh, JAX rejects arrays on a subset of its devices
            with contextlib.suppress(ValueError):  # a mesh cannot be left while something is traced
                stack.enter_context(jax.set_mesh(_NO_MESH))
        yield


@partial(jax.jit, static_argnames="wide")
def _reduced(x: jax.Array, *, wide: bool) -> jax.Array:
    """uint32[...]: the moments and the counts of x as bits, which `jax_debug_nans` ignores."""
    # Constants are NumPy arrays: under `ensure_compile_time_eval` each JAX constant would compile a program.
    values = _real(x, wide)
    n_mantissa, bias, word = (52, 1023, np.uint64) if values.dtype == jnp.float64 else (23, 127, np.uint32)
    # Tests use the bits, since XLA may flush denormal numbers to zero.
    bits = lax.bitcast_convert_type(values, word)
    magnitude = (bits << 1) >> 1
    infinity = word((2 * bias + 1) << n_mantissa)
    finite, zero = magnitude < infinity, magnitude == 0
    exponent = (magnitude >> n_mantissa).astype(jnp.int32)

    bins = jnp.clip(exponent - (bias + FIRST_EXPONENT), 0, N_BINS - 1)
    bins = jnp.where(finite & ~zero, bins, -1)
    counts = jnp.concatenate(
        [
            jnp.stack([_count(zero), _count(magnitude > infinity), _count(bits == infinity)]),
            jnp.stack([_count((magnitude == infinity) & (bits != infinity)), _count(finite)]),
            _histogram(bins),
        ]
    )
    # Values are scaled by a power of two before they are summed, so that no square overflows or underflows.
    top = jnp.clip(jnp.max(jnp.where(finite, exponent, 0)), 1, 2 * bias - 1)
    scale = lax.bitcast_convert_type((2 * bias - top).astype(word) << n_mantissa, values.dtype)
    wider = jnp.float64 if wide else jnp.float32
    scaled = jnp.where(finite, values * scale, 0).astype(wider)
    n = jnp.maximum(counts[4], 1).astype(wider)
    mean = jnp.sum(scaled) / n
    std = jnp.sqrt(jnp.sum(jnp.where(finite, scaled - mean, 0) ** 2) / n)
    least = jnp.min(jnp.where(finite, values, jnp.inf))
    greatest = jnp.max(jnp.where(finite, values, -jnp.inf))
    floats = jnp.stack([mean, std, least.astype(wider), greatest.astype(wider)])
    exponent_of_scale = (top - bias).astype(jnp.uint32)
    return jnp.concatenate([lax.bitcast_convert_type(floats, jnp.uint32).reshape(-1), exponent_of_scale[None], counts])


@partial(jax.jit, static_argnames=("axis", "wide"))
def _reduced_layers(x: jax.Array, *, axis: int, wide: bool) -> jax.Array:
    of_layer = lambda i: _reduced(lax.dynamic_index_in_dim(x, i, axis, keepdims=False), wide=wide)  # noqa: E731
    bits = np.zeros((x.shape[axis], *jax.eval_shape(of_layer, 0).shape), np.uint32)
    return lax.fori_loop(0, x.shape[axis], lambda i, bits: bits.at[i].set(of_layer(i)), bits)


def _real(x: jax.Array, wide: bool) -> jax.Array:
    """float32 or float64 with the values of x, or their magnitudes if x is complex."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        values = jnp.abs(x.astype(jnp.complex128) if wide else x)
        limit = jnp.finfo(values.dtype).max
        values = jnp.where(jnp.isfinite(x), jnp.minimum(values, limit), values)
        return jnp.where(jnp.isnan(x), jnp.nan, values)
    exact_in_float32 = x.dtype == jnp.float32 or x.dtype.itemsize < 4
    return x.astype(jnp.float64 if wide and not exact_in_float32 else jnp.float32)


def _histogram(bins: jax.Array) -> jax.Array:
    every_bin = np.arange(N_BINS, dtype=np.int32)
    if bins.size > _AT_ONCE:  # one pass per bin: bins × elements would be too large
        fill = lambda one, counts: counts.at[one].set(_count(bins == one))  # noqa: E731
        return lax.fori_loop(0, N_BINS, fill, np.zeros(N_BINS, np.uint32))
    one_each = bins[None] == every_bin.reshape(N_BINS, *(1,) * bins.ndim)
    return jnp.sum(one_each, axis=tuple(range(1, one_each.ndim)), dtype=jnp.uint32)


def _count(mask: jax.Array) -> jax.Array:
    return jnp.sum(mask, dtype=jnp.uint32)


def summary_of_bits(bits: np.ndarray, wide: bool) -> Summaries:
    """Decode the result of `launch`."""
    n_words = 8 if wide else 4
    mean, std, least, greatest = bits[:n_words].view(np.float64 if wide else np.float32).astype(np.float64)
    exponent = bits[n_words : n_words + 1].view(np.int32)[0]
    counts_and_n = bits[n_words + 1 :].astype(np.int64)
    moments, counts = summary = nothing(1)
    n = counts_and_n[NEGINF + 1]
    if n:
        moments[:, 0] = n, np.ldexp(mean, exponent), np.ldexp(std, exponent), least, greatest
    counts[0, : NEGINF + 1] = counts_and_n[: NEGINF + 1]
    counts[0, BINS:] = counts_and_n[NEGINF + 2 :]
    return summary
