"""Numbers as short as they are shown: four digits, of which the bits compress better than those that nobody sees."""

from __future__ import annotations

import numpy as np

_BITS = 15  # of a fraction: 2**-16 of a number is less than half of the fourth digit of 9.999
_WHOLE = 9999.5  # from here on all digits of whole numbers are shown


def as_shown(numbers: np.ndarray) -> np.ndarray:
    """float32 numbers near the given ones, with few bits, whose four digits are the same; others stay as they are."""
    exact = numbers.astype(np.float64)
    with np.errstate(all="ignore"):
        least_digit = _least_digits(exact)
        fractions, exponents = np.frexp(np.rint(exact / least_digit) * least_digit)
        short = np.ldexp(np.rint(np.ldexp(fractions, _BITS)), exponents - _BITS)
        is_same = _is_shown_alike(exact, short) & (short.astype(np.float32) == short)
        # Those of bfloat16, for example, are short as they are.
        is_short = np.ldexp(np.frexp(exact)[0], _BITS) % 1 == 0
    return np.where(is_same & ~is_short & (np.abs(exact) < _WHOLE), short, numbers)


def as_shown_with_rms(mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`as_shown` of both, but where the rms that follows from them would be shown otherwise."""
    short_mean, short_std = as_shown(mean), as_shown(std)
    with np.errstate(all="ignore"):
        is_same = _is_shown_alike(np.hypot(mean, std), np.hypot(short_mean, short_std))
    return np.where(is_same, short_mean, mean), np.where(is_same, short_std, std)


def _least_digits(numbers: np.ndarray) -> np.ndarray:
    """What one in the fourth digit of each stands for."""
    return 10.0 ** (np.floor(np.log10(np.abs(numbers))) - 3)


def _is_shown_alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether both have the same four digits; not where these hang by a hair."""
    least_digit = _least_digits(one)
    digits = one / least_digit
    is_sure = np.abs(digits % 1 - 0.5) > 1e-6
    return is_sure & (np.rint(digits) == np.rint(other / least_digit))
