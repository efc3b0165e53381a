"""Each number beside its text: the front end's test reads the same pairs."""

import math

import pytest

from treeviz.tree.text import bytes_text, count_text, number_text, percent_text

COUNTS = [
    (0, "0"),
    (7, "7"),
    (1234, "1,234"),
    (99_999, "99,999"),
    (100_000, "100.0 K"),
    (589_824, "589.8 K"),
    (999_949, "999.9 K"),
    (999_950, "1.0 M"),
    (124_439_808, "124.4 M"),
    (1_250_000, "1.3 M"),
    (70_553_706_496, "70.6 B"),
    (10**18, "1.0 E"),
    (10**23, "100000.0 E"),
    (-1234, "-1,234"),
    (-2_000_000, "-2.0 M"),
    (3.0, "3"),
    (1e24, "1e24"),
    (-1e308, "-1e308"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
    (math.nan, "NaN"),
]
BYTES = [
    (0, "0 B"),
    (999, "999 B"),
    (1000, "1.0 kB"),
    (1024, "1.0 kB"),
    (999_949, "999.9 kB"),
    (999_950, "1.0 MB"),
    (497_759_232, "497.8 MB"),
    (141_107_412_992, "141.1 GB"),
    (1e308, "1e308 B"),
    (math.inf, "inf B"),
]
NUMBERS = [
    (0.0, "0"),
    (-0.0, "0"),
    (1.0, "1"),
    (0.5, "0.5"),
    (0.02, "0.02"),
    (3.14159265, "3.142"),
    (-12.3456, "-12.35"),
    (1234.5678, "1235"),
    (9999.4, "9999"),
    (9999.9, "10000"),
    (12345.6, "12346"),
    (999_999.0, "999999"),
    (999_999.9, "1e6"),
    (1_234_567.0, "1.235e6"),
    (0.0001234, "0.0001234"),
    (0.00001234, "1.234e-5"),
    (-6.02e23, "-6.02e23"),
    (5e-324, "4.941e-324"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
    (math.nan, "NaN"),
]


@pytest.mark.parametrize(("n", "text"), COUNTS)
def test_a_count_is_exact_when_small_and_has_one_decimal_when_large(n, text):
    assert count_text(n) == text


@pytest.mark.parametrize(("n", "text"), BYTES)
def test_bytes_are_in_powers_of_1000(n, text):
    assert bytes_text(n) == text


@pytest.mark.parametrize(("x", "text"), NUMBERS)
def test_a_number_has_four_significant_digits(x, text):
    assert number_text(x) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 10, ""),
        (1, 0, ""),
        (1, 1000, "<1 %"),
        (1, 2, "50 %"),
        (995, 1000, "100 %"),
        (5, 5, "100 %"),
        (1, 8, "13 %"),
        (math.inf, math.inf, ""),
    ],
)
def test_a_share_is_a_whole_percent(part, whole, text):
    assert percent_text(part, whole) == text
