"""Numbers that a page shows with four digits, without the bits that it does not show: they do not deflate."""

from __future__ import annotations

import numpy as np

_BITS = 23  # of the fraction of a float32
_FEWEST = 10
_NEAR = 1e-6  # of the last digit: so near to the next text, a number is sent as it is


def four_digits(values: np.ndarray) -> np.ndarray:
    """The values, each with as few bits as give the same text in `number_text`.

    A value stays below, at or above its text. So it compares as before with each number of four digits, as in a query.
    Whole numbers, which are counts, and what float32 cannot hold stay as they are.
    """
    if values.dtype.kind != "f":
        return values
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = wide.astype(np.float32)
        sizes = np.abs(exact.astype(np.float64))
        is_normal = (sizes >= 2.0**-126) & (sizes < 3.4e38)
        if np.any((wide != 0) & np.isfinite(wide) & ~is_normal) or np.all(sizes == np.floor(sizes), where=is_normal):
            return values
        # Up to a million all digits before the point are shown.
        exponent = np.where((sizes > 9999) & (sizes < 1e6), 3, np.floor(np.log10(sizes)))
        scale = 10.0 ** (3 - exponent)
        shown = np.rint(sizes * scale)
        off = sizes * scale - shown
        found = exact.copy()
        is_open = is_normal & (np.abs(off) < 0.5 - _NEAR)
        for n_bits in range(_FEWEST, _BITS):
            n_cut = _BITS - n_bits
            fewer = (exact.view(np.uint32) + np.uint32(1 << (n_cut - 1))) >> np.uint32(n_cut) << np.uint32(n_cut)
            fewer = fewer.view(np.float32)
            there = np.abs(fewer.astype(np.float64)) * scale - shown
            fits = is_open & (np.abs(there) < 0.5 - _NEAR) & (np.sign(there) == np.sign(off))
            found[fits] = fewer[fits]
            is_open &= ~fits
    return found
