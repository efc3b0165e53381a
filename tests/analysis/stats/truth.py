"""Value statistics the plain way, in float64 and all at once, to compare with."""

import jax
import ml_dtypes
import numpy as np

from treeviz.analysis.stats import value_statistics
from treeviz.tree.walk import scan

FLOATS = ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"]
INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "int4", "uint4", "int2"]
COMPLEX = ["complex64", "complex128"]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def statistics(tree, **how):
    """The columns by name, and the notes."""
    table, nodes = scan(tree)
    columns, notes = value_statistics(table, nodes, **how)
    return {column.name: column for column in columns}, notes


def told(columns, row: int = 0) -> dict:
    """What the columns say of one row."""
    return {name: column[row] for name, column in columns.items()}


def on_device(array: jax.Array) -> bool:
    """Takes the place of `lies_on_host`: every array is reduced by a compiled program, as on a GPU."""
    return False


def truth(*arrays) -> dict:
    """The same of all numbers of these arrays together."""
    every = []
    for array in arrays:
        x = np.asarray(array)
        if x.dtype.kind == "c":
            x = x.astype(np.complex128)
            x = np.where(np.isnan(x), np.nan, np.abs(x))
        every.append(x.astype(np.float64).reshape(-1))
    x = np.concatenate(every)
    finite = x[np.isfinite(x)]
    nonzero = np.abs(finite[finite != 0])
    histogram = np.zeros(64)
    np.add.at(histogram, np.clip(np.frexp(nonzero)[1] - 1 + 40, 0, 63), 1)
    exact = finite.astype(np.longdouble)
    nan = np.nan
    return {
        "min": finite.min() if finite.size else nan,
        "max": finite.max() if finite.size else nan,
        "mean": float(exact.mean()) if finite.size else nan,
        "std": float(exact.std()) if finite.size else nan,
        "rms": float(np.sqrt((exact * exact).mean())) if finite.size else nan,
        "zeros": np.sum(x == 0),
        "nan": np.isnan(x).sum(),
        "inf": np.isinf(x).sum(),
        "posinf": (x == np.inf).sum(),
        "neginf": (x == -np.inf).sum(),
        "histogram": histogram,
        # The magnitude of a complex number is a square root of a sum, which NumPy and XLA round each in their own way.
        "max_error": 2**-52 * any(np.asarray(array).dtype.kind == "c" for array in arrays),
    }


def assert_same(found: dict, expected: dict, *, rtol: float = 1e-9):
    """Counts, least and greatest exactly; the others to `rtol` of the largest magnitude that went into them.

    The least and greatest magnitude of complex numbers: to a unit in the last place.
    """
    for name in ("zeros", "nan", "inf", "posinf", "neginf", "histogram"):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    for name in ("min", "max"):
        np.testing.assert_allclose(found[name], expected[name], rtol=expected["max_error"], err_msg=name)
    np.testing.assert_allclose(found["rms"], expected["rms"], rtol=rtol, err_msg="rms")
    for name in ("mean", "std"):  # of numbers that cancel, as good as their size allows
        np.testing.assert_allclose(
            found[name], expected[name], rtol=rtol, atol=rtol * np.nan_to_num(expected["rms"]), err_msg=name
        )
