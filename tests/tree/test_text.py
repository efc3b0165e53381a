"""Texts of any object, bounded and printable, and texts of numbers."""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hostile_objects import EVIL_TEXTS, Color, boom
from hypothesis import given
from hypothesis import strategies as st
from sample_nodes import Special

from treeviz.tree.text import (
    bytes_text,
    class_name,
    count_text,
    error_text,
    guarded,
    has_base,
    module_name,
    number_text,
    percent_text,
    value_text,
    visible,
)


@given(st.text(st.characters()))
def test_visible_text_is_printable_and_says_the_same(text):
    shown = visible(text, 10**6)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()
    assert all(c in shown for c in text if c.isprintable())


@pytest.mark.parametrize("text", EVIL_TEXTS.values(), ids=EVIL_TEXTS)
def test_every_bad_character_is_shown_as_its_escape(text):
    assert visible(text).isprintable()
    visible(text).encode()


def test_long_text_is_cut_and_says_how_long_it_was():
    assert visible("x" * 1000, 5) == "xxxxx… (1,000 characters)"


class Sly(str):
    def __str__(self):
        return "lies"

    __repr__ = __getitem__ = __len__ = isprintable = boom


def test_subclasses_of_str_are_read_as_the_strings_they_are():
    assert visible(Sly("truth")) == "truth"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, (2,), {"a": {3}}, None, ...], "[1, (2,), {'a': {3}}, None, Ellipsis]"),
        ({"b", "a"}, "{'a', 'b'}"),
        (set(), "set()"),
        ((), "()"),
        (list(range(1000)), None),
        ({i: i for i in range(1000)}, None),
        pytest.param("x" * 1000, None, id="long"),
        pytest.param(10**5000, "<int of 16,610 bits>", id="a huge int"),
        (np.ones((3, 4), np.float32), "float32[3,4]"),
        (jnp.ones(2), "float32[2]"),
        (Special(1, 2), "<sample_nodes.Special>"),
        (Special, "sample_nodes.Special"),
        (Color.RED, "Color.RED"),
        (Color.RED | Color.GREEN, "Color.RED|GREEN"),
        (Color(0), "Color.0"),
        (functools.partial(len), "partial(len, …)"),
        (Special(1, 2).__init__, "Special.__init__"),
        (object(), "<object>"),
    ],
)
def test_values_are_written_without_asking_their_class(value, text):
    shown = value_text(value)
    assert len(shown) <= 120 and shown.isprintable()
    assert text is None or shown == text


def test_nested_values_end():
    nested: list = []
    nested.append(nested)
    assert value_text(nested) == "[[[[…]]]]"
    for _ in range(100_000):
        nested = [nested]
    assert value_text(nested) == "[[[[…]]]]"


def test_errors_are_described_even_if_their_message_raises():
    class Bad(Exception):
        __str__ = __repr__ = boom

    assert error_text(Bad()) == "Bad: (its message cannot be shown)"
    assert error_text(ValueError("a\x00" * 1000)).isprintable()
    assert error_text(ValueError()) == "ValueError"


def test_ctrl_c_is_never_a_value():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(interrupt, lambda error: None)
    assert guarded(lambda: boom(), lambda error: type(error).__name__) == "_Boom"


def test_classes_are_known_without_asking_their_metaclass():
    meta = type("Meta", (type,), dict.fromkeys(("__eq__", "__hash__", "__getattribute__", "__repr__"), boom))
    cls = type.__new__(meta, "Name", (list,), {"__module__": "some\nmodule"})
    assert (class_name(cls), module_name(cls)) == ("Name", r"some\nmodule")
    assert has_base(cls, list) and not has_base(cls, dict)


# Each number beside its text: the front end's test reads the same pairs.


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
