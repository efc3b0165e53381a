"""Numbers with as few bits as a page shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from treeviz.tree.numbers import number_text
from treeviz.views.html.short_numbers import four_digits

NUMBERS = arrays(np.float64, st.integers(1, 40), elements=st.floats(width=32))


def bits_of(values) -> list[int]:
    return [f"{bits:032b}".rstrip("0").count("") for bits in values.astype(np.float32).view(np.uint32).tolist()]


@given(NUMBERS)
def test_a_number_has_the_text_that_it_had(values):
    assert list(map(number_text, four_digits(values))) == list(map(number_text, values))


@given(NUMBERS, st.integers(-9999, 9999), st.integers(-12, 12))
def test_a_number_compares_as_it_did_with_numbers_of_four_digits(values, digits, exponent):
    limit = float(f"{digits}e{exponent}")
    some = np.append(values, np.float32([limit, limit * 0.99999, limit * 1.00001]))
    sent = four_digits(some).astype(np.float64)
    np.testing.assert_array_equal(np.sign(sent - limit), np.sign(some - limit))


def test_a_random_number_loses_a_third_of_its_bits():
    values = np.random.default_rng(0).normal(size=1_000).astype(np.float32)
    assert np.mean(bits_of(four_digits(values))) < 0.75 * np.mean(bits_of(values))


@pytest.mark.parametrize(
    "values",
    [[1.0, 65_537.0, np.nan], [1e300, 0.1234567], [1e-300, 0.1234567], [0.0, np.inf], [], np.arange(3)],
    ids=str,
)
def test_counts_and_what_needs_float64_stay_as_they_are(values):
    np.testing.assert_array_equal(four_digits(np.asarray(values)), values)
