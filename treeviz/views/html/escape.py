"""Escape text for HTML: one function for each context."""

from __future__ import annotations

_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ATTRIBUTE = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;", "\n": "&#10;"})


class Markup(str):
    """HTML that treeviz has built, which is not escaped again."""

    __slots__ = ()


def text(content: str) -> Markup:
    """Text between two tags."""
    if type(content) is Markup:
        return content
    # A lone surrogate cannot be encoded as UTF-8, so it is shown as its escape sequence.
    content = str.__str__(content).encode("utf-8", "backslashreplace").decode()
    return Markup(content.translate(_TEXT))


def attribute(value: str) -> Markup:
    """The value of an attribute, between its quotes."""
    value = str.__str__(value).encode("utf-8", "backslashreplace").decode()
    return Markup(value.translate(_ATTRIBUTE))
