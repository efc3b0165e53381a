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
    assert len(text.encode()) == 6 * -(-len(data) // 5) + -len(data) % 5
    assert not set(text) & {*'<"\\', *map(chr, range(32)), *map(chr, range(0x7F, 0xA0))}


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"", ""), (bytes(5), "######"), (b"\x10\x21", "\xa0####" + "###"), (b"\xff" * 10, 2 * "wz~}\u07df")],
)
def test_six_bytes_of_text_hold_40_bits(data, text):
    assert in_characters(data) == text
