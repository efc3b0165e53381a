"""What a terminal can show, against the conventions that others keep to."""

import io
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treeviz
from treeviz.views.text.terminal import (
    ASCII,
    UNICODE,
    cut,
    display_width,
    glyphs_of,
    paragraph,
    terminal_color,
    wrapped,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def plain(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return monkeypatch


def test_a_terminal_has_colours_and_a_file_has_none(plain):
    assert terminal_color(Terminal())
    assert not terminal_color(io.StringIO())


def test_a_dumb_terminal_has_no_colours(plain):
    plain.setenv("TERM", "dumb")
    assert not terminal_color(Terminal())


def test_no_color_and_force_color_are_obeyed_unless_empty(plain):
    plain.setenv("NO_COLOR", "")
    plain.setenv("FORCE_COLOR", "")
    assert terminal_color(Terminal()) and not terminal_color(io.StringIO())
    plain.setenv("FORCE_COLOR", "1")
    assert terminal_color(io.StringIO())
    plain.setenv("NO_COLOR", "1")
    assert not terminal_color(Terminal())


def test_a_stream_that_is_closed_or_no_file_has_no_colours(plain):
    closed = io.StringIO()
    closed.close()
    assert not terminal_color(closed)
    assert not terminal_color(object())


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [
        ("utf-8", UNICODE),
        ("UTF-16", UNICODE),
        ("ascii", ASCII),
        ("latin-1", ASCII),
        ("cp1252", ASCII),
        ("no-such", ASCII),
        ("gbk", UNICODE._replace(encoding="gbk")),
        ("big5", UNICODE._replace(encoding="big5")),
    ],
)
def test_ascii_is_for_streams_that_cannot_encode_the_branches(encoding, glyphs):
    class Stream:
        pass

    Stream.encoding = encoding
    assert glyphs_of(Stream()) == glyphs


def test_a_stream_without_an_encoding_takes_everything():
    assert glyphs_of(io.StringIO()) == UNICODE


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("abc", 3), ("漢字", 4), ("한", 2), ("Ａ", 2), ("é", 1), ("e\u0301", 1), ("…", 1), ("█", 1), ("🙂", 2)],
)
def test_wide_characters_take_two_columns_and_marks_none(text, width):
    assert display_width(text) == width


def test_a_cut_text_ends_in_dots_and_never_splits_a_wide_character():
    assert cut("kernel", 6) == "kernel"
    assert cut("kernel", 5) == "kern…"
    assert cut("漢字漢字", 6) == "漢字…"
    assert cut("漢字漢字", 7) == "漢字漢…"
    assert cut("kernel", 5, "...") == "ke..."
    assert cut("kernel", 2, "...") == ".."
    assert cut("kernel", 0) == ""


@given(st.text(), st.integers(0, 20), st.sampled_from(["…", "..."]))
def test_no_cut_text_is_too_wide(text, width, dots):
    shown = cut(text, width, dots)
    assert display_width(shown) <= width
    assert shown == text or shown.endswith(dots[:width])


def test_every_branch_is_three_columns_wide():
    for glyphs in (UNICODE, ASCII):
        assert {display_width(glyph) for glyph in glyphs[:4]} == {3}
        assert {unicodedata.combining(c) for c in "".join(glyphs)} == {0}
    assert "".join(ASCII).isascii()


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
    assert wrapped(line, 13) == expected
    assert wrapped(line, None) == [line] == wrapped(line, 100)


def test_no_key_path_is_cut_below_a_tree_nor_in_a_summary(monkeypatch):
    shared = np.ones(3, np.float32)
    tree = {"self attention": {"query-key norm of a head": {"all kernel weights": shared}}, "the other one": shared}
    path = "['self attention']['query-key norm of a head']['all kernel weights']"
    lines = treeviz.render(tree).text(width=len(path) + 20).splitlines()
    assert lines[-2:] == ["['the other one']: shared with", f"  {path}"]
    monkeypatch.setenv("COLUMNS", "60")
    lines = paragraph(f"the norm of {path} is 13,600 times that of the step before")
    assert lines == ["  the norm of", f"    {path}", "    is 13,600 times that of the step before"]


@pytest.mark.parametrize("line", ["['" * 900, "[" * 900 + "'" * 900, "a" * 1_900, "[] '" * 400])
def test_all_that_stands_in_a_line_is_kept(line):
    assert "".join("".join(wrapped(line, 40)).split()) == "".join(line.split())
