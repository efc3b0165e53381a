"""Text for terminals: colours, Unicode or ASCII characters, display width, wrapping and shortening."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from shutil import get_terminal_size
from typing import Any, NamedTuple, TextIO

from treeviz.tree.text import guarded, printable


class Glyphs(NamedTuple):
    """The characters that draw a tree. `branch`, `last`, `bar` and `blank` are three columns wide."""

    branch: str
    last: str
    bar: str
    blank: str
    dots: str
    separator: str
    eighths: str  # of a block, from the left; the last is the full block
    heights: str  # of a bar in a small chart; the first is blank
    encoding: str = ""  # of the stream; "" if it has all characters

    def fit(self, text: str) -> str:
        """The text without control characters and characters that the encoding of the stream lacks."""
        if text.isascii():
            return text if text.isprintable() else printable(text)
        text = ascii_text(text) if self.dots.isascii() else printable(text)
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding) if self.encoding else text


UNICODE = Glyphs("├─ ", "└─ ", "│  ", "   ", "…", " · ", "▏▎▍▌▋▊▉█", " ▁▂▃▄▅▆▇█")
ASCII = Glyphs("|- ", "`- ", "|  ", "   ", "...", " - ", "#", " .:-=+*#@")

RESET = "\x1b[0m"
DIM, BOLD, RED, GREEN, YELLOW, CYAN = (f"\x1b[{code}m" for code in ("2", "1", "31", "32", "33", "36"))
HUES = tuple(f"\x1b[{code}m" for code in (32, 35, 34, 36, 92, 95, 94, 96))  # red and yellow mark problems


def terminal_color(stream: TextIO) -> bool:
    """Whether to write colours to the stream.

    False if NO_COLOR is set and not empty; otherwise True if FORCE_COLOR is, or if the stream is a terminal and TERM is
    not "dumb". See https://no-color.org and https://force-color.org.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and _is_terminal(stream)


def glyphs_of(stream: TextIO) -> Glyphs:
    """The characters for a stream: ASCII if its encoding, such as cp437, lacks those that draw a tree."""
    encoding = getattr(stream, "encoding", None)
    if not isinstance(encoding, str):
        return UNICODE
    try:
        "".join(UNICODE).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE if encoding.lower().startswith("utf") else UNICODE._replace(encoding=encoding)


_IN_ASCII = str.maketrans({"…": "...", "×": "x", "→": "->", "←": "<-", "–": "-", "·": "-"})


def ascii_text(text: str) -> str:
    """The text in printable ASCII; other characters become escape sequences."""
    return printable(text).translate(_IN_ASCII).encode("ascii", "backslashreplace").decode()


def paragraph(text: str, indent: str = "  ", hanging: str = "  ", style: str = "", in_files: bool = True) -> list[str]:
    """The text wrapped for standard output: to the terminal's width, in ASCII if its encoding needs it.

    Args:
      hanging: The further indentation of all lines but the first.
      style: An ANSI sequence, or "".
      in_files: Also wrap if standard output is not a terminal.
    """
    width = width_of(sys.stdout) or (get_terminal_size((100, 24)).columns if in_files else None)
    text = indent + glyphs_of(sys.stdout).fit(text)
    lines = wrapped(text, None if width is None else max(width, 40), indent + hanging)
    return [f"{style}{line}{RESET}" for line in lines] if style else lines


def width_of(stream: Any) -> int | None:
    """The width of the terminal; None if the stream is not a terminal, such as a log."""
    return get_terminal_size().columns if _is_terminal(stream) else None


_LONGEST = 2_000
_FEWEST_ROWS, _OTHER_LINES = 30, 7
_KEYS = re.compile(r"(?<=\S)(?=\[|\.[^\W\d])")  # the start of a key in a path


def wrapped(text: str, width: int | None, indent: str = "  ") -> list[str]:
    """Wrap a line to at most `width` columns; all lines but the first start with `indent`.

    Key paths and Python strings are not broken, and a longer word keeps its own line. Lines of more than 2,000
    characters are not wrapped, nor any line if `width` is None.
    """
    if width is None or len(text) > _LONGEST or display_width(text) <= width:
        return [text]
    words = _words(text)
    words[0] = text[: len(text) - len(text.lstrip())] + words[0]
    return _filled(words, " ", width, indent)


def folded(text: str, width: int, indent: str) -> list[str]:
    """Wrap a text, and break key paths that do not fit before a key."""
    lines = wrapped(text, width, indent)
    return [
        piece
        for line in lines
        for piece in _filled(_KEYS.split(line) if display_width(line) > width else [line], "", width, indent)
    ]


def _filled(parts: Sequence[str], between: str, width: int, indent: str) -> list[str]:
    """Lines of as many parts as fit."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = lines[-1] + between + part
        lines[-1:] = [longer] if display_width(longer) <= width else [lines[-1], indent + part]
    return lines


def rows_of(stream: Any, most: int) -> int:
    """The number of rows of a tree to print, with its headline and what follows it on one screen: 30 to `most`."""
    return max(_FEWEST_ROWS, min(most, get_terminal_size().lines - _OTHER_LINES)) if _is_terminal(stream) else most


def _words(text: str) -> list[str]:
    """The words between spaces. An index or a Python string is one word, even with spaces: "['layer 0'].w"."""
    words, depth, quote, previous = [""], 0, "", " "
    for character in text:
        if character == " " and not (depth or quote):
            words.append("")
        else:
            words[-1] += character
        if quote:
            quote = "" if character == quote and previous != "\\" else quote
        elif character in "'\"" and previous in " ([{=,":
            quote = character
        else:
            depth += (character == "[") - (character == "]")
        previous = character
    return [*filter(None, words)] if not (depth or quote) else text.split()


_OURS = re.compile("[ -~…·×–←→─-▟]*")  # each takes one column


def display_width(text: str) -> int:
    """The columns that the text occupies: two for a wide East Asian character, none for a combining mark."""
    return len(text) if text.isascii() or _OURS.fullmatch(text) else sum(map(_character_width, text))


def cut(text: str, width: int, dots: str = "…") -> str:
    """The text, shortened to at most `width` columns; a shortened text ends with `dots`."""
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


def cut_inside(text: str, width: int, dots: str = "…", others: Sequence[str] = ()) -> str:
    """Shorten a text in the middle, since names with a common prefix differ at the end.

    If it differs from one of `others` in the part that would be cut, that part is kept instead of the end.
    """
    n_end = (width - len(dots)) * 2 // 3
    if display_width(text) <= width or n_end < 1 or display_width(text) != len(text):
        return cut(text, width, dots)
    n_start = width - len(dots) - n_end
    at = min([at for other in others if (at := n_alike(text, other)) >= n_start], default=len(text))
    end = text[-n_end:] if at >= len(text) - n_end else cut(text[at - n_end // 4 :], n_end, dots)
    return text[:n_start] + dots + end


def n_alike(text: str, other: str) -> int:
    """The length of the common prefix."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (one, another) in pairs if one != another), min(len(text), len(other)))


@lru_cache(4096)
def _character_width(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _is_terminal(stream: Any) -> bool:
    return guarded(lambda: stream.isatty(), lambda _: False)  # it may be no file, or be closed
