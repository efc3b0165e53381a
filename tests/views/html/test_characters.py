"""Bytes as text in a page."""

from __future__ import annotations

import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeviz.views.html.bundle import from_characters, in_characters, loader_text
from treeviz.views.html.payload import FORMAT


@given(st.binary(max_size=60))
def test_bytes_come_back_from_characters_that_nothing_escapes(data):
    text = in_characters(data)
    assert from_characters(text) == data
    assert not set(text) & {*'<"\\', *map(chr, range(32)), *map(chr, range(0x7F, 0xA0))}


@pytest.mark.parametrize("n_bytes", [511, 32_767, 32_768, 32_769, 70_000])
def test_much_data_come_back_from_chunks(n_bytes):
    for data in (random.Random(0).randbytes(n_bytes), bytes(n_bytes), b"\xff" * n_bytes):
        assert from_characters(in_characters(data)) == data


def test_a_byte_of_text_holds_more_than_six_and_three_quarters_bits():
    data = random.Random(0).randbytes(30_000)
    text = in_characters(data)
    assert 8 * len(data) / len(text.encode()) > 6.79
    # None is a surrogate, for private use, or no character at all.
    assert not {unicodedata.category(each) for each in text if ord(each) > 0x7FF} & {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def test_the_reader_of_a_page_has_the_number_of_its_format():
    assert f'Symbol.for("treeviz {FORMAT}")' in loader_text()
