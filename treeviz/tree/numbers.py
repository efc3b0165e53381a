"""Format numbers for display. The front end formats them in the same way."""

from __future__ import annotations

import math

_COUNT_UNITS = ("K", "M", "B", "T", "P", "E")
_BYTES_UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")


_LARGEST = 1e24  # that is written with a unit


def count_text(n: float) -> str:
    """ "1,234", "124.4 M": exact below 100,000, one decimal above; "1e308", "inf"."""
    if not abs(n) < _LARGEST:
        return number_text(n)
    n = int(n)
    return f"{n:,}" if abs(n) < 100_000 else _scaled(n, _COUNT_UNITS)


def bytes_text(n: float) -> str:
    """ "512 B", "497.8 MB": a kB is 1000 bytes."""
    if not abs(n) < _LARGEST:
        return f"{number_text(n)} B"
    n = int(n)
    return f"{n} B" if abs(n) < 1000 else _scaled(n, _BYTES_UNITS)


def number_text(x: float) -> str:
    """Four significant digits: "0.02", "-1.234e-5", "12346", "1.235e6"."""
    x = float(x)
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    if 9999.5 <= abs(x) < 999_999.5:
        return f"{x:.0f}"
    digits, _, exponent = f"{x:.4g}".partition("e")
    if not exponent:
        return "0" if digits == "-0" else digits
    return f"{digits}e{int(exponent)}"


def percent_text(part: float, whole: float) -> str:
    """ "31 %", "<1 %"; "" if either is 0 or not finite."""
    if not part or not whole or not math.isfinite(part) or not math.isfinite(whole):
        return ""
    share = 100 * part / whole
    return "<1 %" if share < 1 else f"{math.floor(share + 0.5)} %"


def _scaled(n: int, units: tuple[str, ...]) -> str:
    """One decimal in the largest unit that keeps the number at least 1; halves round up."""
    sign, n = ("-", -n) if n < 0 else ("", n)
    for i, unit in enumerate(units):
        scale = 1000 ** (i + 1)
        tenths = (10 * n + scale // 2) // scale
        if tenths < 10_000 or i == len(units) - 1:
            return f"{sign}{tenths // 10}.{tenths % 10} {unit}"
    raise AssertionError("units is never empty")
