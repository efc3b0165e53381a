"""Put text into HTML: one function for each place that text can go to, and no other way in."""

from __future__ import annotations

_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ATTRIBUTE = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;", "\n": "&#10;"})


class Markup(str):
    """HTML that we have built: it is not escaped again."""

    __slots__ = ()


def text(content: str) -> Markup:
    """What stands between two tags."""
    if type(content) is Markup:
        return content
    # A lone surrogate has no UTF-8: it would break the file, so it is shown as its escape.
    content = str.__str__(content).encode("utf-8", "backslashreplace").decode()
    return Markup(content.translate(_TEXT))


def attribute(value: str) -> Markup:
    """What stands between the quotes of an attribute."""
    value = str.__str__(value).encode("utf-8", "backslashreplace").decode()
    return Markup(value.translate(_ATTRIBUTE))
