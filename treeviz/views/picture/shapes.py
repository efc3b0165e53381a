"""The shapes of a picture, their colours and sizes."""

from __future__ import annotations

from typing import NamedTuple

from treeviz.views.text.terminal import display_width

FONT = 13
CHARACTER = 8  # at least a character's width: 0.60 of FONT in most fonts, rounded up by some programs
ROW, GAP = 22, 18

# role -> its light and its dark colour, as in the page
COLORS = {
    "paper": ("#ffffff", "#16181c"),
    "raised": ("#f6f7f9", "#1b1e23"),
    "ink": ("#1b1f24", "#e3e6ea"),
    "dim": ("#5b6470", "#a3acb8"),
    "line": ("#d9dde3", "#3a4049"),
    "bar": ("#e2ebf9", "#2b3a52"),
    "accent": ("#0b57d0", "#8ab4f8"),
    "violet": ("#6b3fa0", "#cbaaf5"),
    "warm": ("#9a3412", "#ffb68c"),
    "bad": ("#b3261e", "#ff9a92"),
}


class Text(NamedTuple):
    """A line of text; `y` is its baseline. `anchor` is "start" or "end"."""

    x: float
    y: float
    text: str
    role: str
    anchor: str = "start"
    is_bold: bool = False


class Box(NamedTuple):
    """A rectangle: filled, or its border only."""

    x: float
    y: float
    width: float
    height: float
    role: str
    radius: float = 0
    is_filled: bool = True


class Line(NamedTuple):
    x1: float
    y1: float
    x2: float
    y2: float
    role: str


class Curve(NamedTuple):
    """Separate polylines."""

    lines: list[list[tuple[float, float]]]
    role: str


Shape = Text | Box | Line | Curve


class Picture(NamedTuple):
    """Shapes in drawing order: later ones cover earlier ones."""

    title: str
    width: int
    height: int
    shapes: list[Shape]


def width_of(content: str) -> float:
    return CHARACTER * display_width(content)
