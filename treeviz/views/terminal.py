"""What a terminal can show: how wide a text is there, which signs it has, whether it has colours."""

from __future__ import annotations

import os
import sys
import unicodedata
from functools import lru_cache
from shutil import get_terminal_size
from textwrap import wrap
from typing import NamedTuple, TextIO


class Glyphs(NamedTuple):
    """The signs that a tree is drawn with. All of `branch`, `last`, `bar` and `blank` are three wide."""

    branch: str
    last: str
    bar: str
    blank: str
    dots: str
    separator: str
    eighths: str  # of a block, from the left; the last is the whole block
    heights: str  # of a bar in a small chart; the first is nothing

    def fit(self, text: str) -> str:
        """The text, in ASCII if these signs are."""
        return text if text.isascii() or not self.dots.isascii() else ascii_text(text)


UNICODE = Glyphs("├─ ", "└─ ", "│  ", "   ", "…", " · ", "▏▎▍▌▋▊▉█", " ▁▂▃▄▅▆▇█")
ASCII = Glyphs("|- ", "`- ", "|  ", "   ", "...", " - ", "#", " .:-=+*#@")

RESET = "\x1b[0m"
DIM, BOLD, RED, GREEN, YELLOW, CYAN = (f"\x1b[{code}m" for code in ("2", "1", "31", "32", "33", "36"))


def terminal_color(stream: TextIO) -> bool:
    """Whether colours are wanted on the stream.

    NO_COLOR says no, then FORCE_COLOR says yes (both as soon as they are not empty), then it has to be a
    terminal, and not a dumb one: https://no-color.org, https://force-color.org.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and _is_terminal(stream)


def terminal_ascii(stream: TextIO) -> bool:
    """Whether the stream cannot write the signs of a tree, so that ASCII has to do."""
    encoding = getattr(stream, "encoding", None)
    if not isinstance(encoding, str):
        return False
    try:
        "".join(UNICODE).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def ascii_text(text: str) -> str:
    """The text with escapes for what is not ASCII."""
    return text.replace("…", "...").replace("×", "x").replace("→", "->").encode("ascii", "backslashreplace").decode()


def paragraph(text: str, indent: str = "  ") -> list[str]:
    """The lines of a text for standard output: as wide as the terminal, and in its signs."""
    width = max(get_terminal_size((100, 24)).columns, 40)
    text = ascii_text(text) if terminal_ascii(sys.stdout) else text
    return wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ")


def display_width(text: str) -> int:
    """How many columns the text takes: two for wide East Asian characters, none for combining marks."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def cut(text: str, width: int, dots: str = "…") -> str:
    """The text, or as much of it as leaves room for the dots, in at most `width` columns."""
    if display_width(text) <= width:
        return text
    room = width - len(dots)
    if room < 0:
        return dots[: max(0, width)]
    if text.isascii():
        return text[:room] + dots
    for i, character in enumerate(text):
        room -= _character_width(character)
        if room < 0:
            return text[:i] + dots
    return text


@lru_cache(4096)
def _character_width(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # not a file, or closed
        return False
