"""Escape text for HTML: one function for each context."""

from __future__ import annotations

from html import escape


class Markup(str):
    """HTML that treeviz has built, which is not escaped again."""

    __slots__ = ()


def text(content: str) -> Markup:
    """Text between two tags."""
    if type(content) is Markup:
        return content
    return Markup(escape(_encodable(content), quote=False))


def attribute(value: str) -> Markup:
    """The value of an attribute, between its quotes."""
    return Markup(escape(_encodable(value)).replace("\n", "&#10;"))


def _encodable(content: str) -> str:
    """The text with lone surrogates, which UTF-8 does not have, as escape sequences."""
    return str.__str__(content).encode("utf-8", "backslashreplace").decode()
