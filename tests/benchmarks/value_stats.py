"""What the statistics of all values cost, and how right they are."""

from __future__ import annotations

import gc
import time
from typing import Any, NamedTuple

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import treescope
from python_side import short
from trees import real_gpt2

import treeviz

COMPILED = "/jax/core/compile/backend_compile_duration"
DTYPES = (
    *("bool", "int2", "int4", "uint4", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32"),
    *("float8_e4m3fn", "float8_e5m2", "complex64"),
)
N_VALUES = 1_000_003
N_FLOATS = 124_439_808


class StatisticsFigures(NamedTuple):
    """What was measured.

    Attributes:
      cpu_s: Of `render(tree, stats=True)._repr_html_()` on GPT-2, best of two.
      floor_s: NumPy's min, max, sum and dot of the same arrays, which say less.
      n_compilations: Of programs by XLA, during the first.
      errors: By dtype, the greatest relative error of min, max, mean, std and rms against NumPy in float64;
        infinite where a count of zeros, NaN or infinities is wrong.
      treescope_s: treescope's page of the same arrays, whose summaries leave out the large ones.
      trouble: What was raised.
    """

    cpu_s: float = float("nan")
    floor_s: float = float("nan")
    n_compilations: int = -1
    errors: dict[str, float] = {}  # noqa: RUF012
    treescope_s: float = float("nan")
    trouble: str = ""


def measure_statistics() -> StatisticsFigures:
    """In this process: run it in one of its own."""
    try:
        return _measure()
    except Exception as error:
        return StatisticsFigures(trouble=short(error))


def _measure() -> StatisticsFigures:
    compiled: list[str] = []
    tree = real_gpt2()
    jax.block_until_ready(tree)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event == COMPILED else None
    )
    runs = [_cpu(lambda: treeviz.render(tree, stats=True)._repr_html_()) for _ in range(2)]
    n_compilations = len(compiled)
    floor_s = min(_cpu(lambda: [_few(leaf) for leaf in jax.tree.leaves(tree)]) for _ in range(2))
    treescope_s = _cpu(lambda: treescope.render_to_html(tree))
    return StatisticsFigures(min(runs), floor_s, n_compilations, {name: error_of(name) for name in DTYPES}, treescope_s)


def _cpu(function: Any) -> float:
    gc.collect()
    start = time.process_time()
    function()
    return time.process_time() - start


def _few(array: jax.Array) -> tuple[Any, ...]:
    values = np.asarray(memoryview(array)).reshape(-1)  # type: ignore[arg-type]
    return values.min(), values.max(), values.sum(), np.dot(values, values)


def error_of(dtype: str) -> float:
    """The greatest relative error for a million values, with NaN and infinities where the dtype has them."""
    rng = np.random.default_rng(0)
    if dtype == "bool":
        values = rng.random(N_VALUES) < 0.3
    elif jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        values = rng.integers(info.min, info.max, N_VALUES, dtype=np.int64, endpoint=True)
    elif dtype == "complex64":
        values = rng.normal(1, 3, N_VALUES) + 1j * rng.normal(0, 3, N_VALUES)
    else:
        values = rng.normal(1, 0.02 if "float8" in dtype else 300, N_VALUES)
        values[:7] = 0
        if dtype != "float8_e4m3fn":
            values[7:10] = np.nan, np.inf, -np.inf
    array = jnp.asarray(values.astype(jnp.dtype(dtype)))
    root = treeviz.render(array, stats=True).table[0]
    return _greatest_error(root, np.asarray(array))


def _greatest_error(row: Any, array: np.ndarray) -> float:
    wide = np.abs(array.astype(np.complex128)) if array.dtype.kind == "c" else array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    counts = {"zeros": (wide == 0).sum(), "nan": np.isnan(wide).sum(), "inf": np.isinf(wide).sum()}
    if any(row[name] != n for name, n in counts.items()):
        return float("inf")
    truth = {
        "min": finite.min(),
        "max": finite.max(),
        "mean": finite.mean(),
        "std": finite.std(),
        "rms": np.sqrt((finite**2).mean()),
    }
    return float(max(abs(row[name] - value) / max(abs(value), 1e-300) for name, value in truth.items() if value))
