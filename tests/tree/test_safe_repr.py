"""Any value and any name becomes text that is bounded, printable, and the same in every run."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from hostile_objects import EVIL_TEXTS, Color, boom
from hypothesis import given
from hypothesis import strategies as st
from sample_nodes import Special

from treeviz.tree.text import class_name, error_text, guarded, has_base, module_name, value_text, visible


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
