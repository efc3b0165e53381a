"""A line of a terminal as several."""

from __future__ import annotations

import pytest

from treeviz.views.text.terminal import folded

LINES = {
    "words": ("['a']: shape: (3,) → (4,) and more", ["['a']: shape:", "  (3,) → (4,)", "  and more"]),
    "a key with blanks": ("in ['a key, long']: type", ["in", "  ['a key, long']:", "  type"]),
    "a text of Python": ("x = 'two words' + \"it's\" done", ["x =", "  'two words'", '  + "it\'s"', "  done"]),
    "an apostrophe": ("the user's trees are not", ["the user's", "  trees are", "  not"]),
    "an index of arrays": ("float32[3, 4] float32[3, 4]", ["float32[3, 4]", "  float32[3, 4]"]),
    "what is not closed": ("[ a ' b", ["[ a ' b"]),
    "what begins with blanks": ("  one two three", ["  one two", "  three"]),
    "wide characters": ("木木木木 木木木", ["木木木木", "  木木木"]),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_folded_at_blanks_and_never_inside_of_a_key_path(name):
    line, expected = LINES[name]
    assert folded(line, 13) == expected
    assert folded(line, None) == [line] == folded(line, 100)


@pytest.mark.parametrize("line", ["['" * 900, "[" * 900 + "'" * 900, "a" * 1_900, "[] '" * 400])
def test_all_that_stands_in_a_line_is_kept(line):
    assert "".join("".join(folded(line, 40)).split()) == "".join(line.split())
