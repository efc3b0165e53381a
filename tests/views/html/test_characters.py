"""Bytes as text in a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeviz.views.html.characters import from_characters, in_characters


@given(st.binary(max_size=60))
def test_bytes_come_back_from_characters_that_nothing_escapes(data):
    text = in_characters(data)
    assert from_characters(text) == data
    assert len(text) == -(-16 * len(data) // 13)
    assert text.isascii() and text.isprintable() and not set(text) & set('<"\\$')


@pytest.mark.parametrize(("data", "text"), [(b"", ""), (b"\x00", "##"), (b"\x01\x20", " # "), (b"\xff" * 13, 8 * " }")])
def test_two_characters_hold_13_bits(data, text):
    assert in_characters(data) == text
