"""The shapes of a picture, their colours and sizes."""

from __future__ import annotations

import re
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


class Cells(NamedTuple):
    """Rectangles of a color of the heat map, which is the same on light and dark: x, y, width and height of each."""

    rectangles: list[tuple[float, float, float, float]]
    color: str


Shape = Text | Box | Line | Curve | Cells


class Picture(NamedTuple):
    """Shapes in drawing order: later ones cover earlier ones.

    Attributes:
      description: What is to be seen, for readers who cannot.
      inches: How wide it is on paper; None: as wide as on a screen.
    """

    title: str
    width: int
    height: int
    shapes: list[Shape]
    description: str = ""
    inches: float | None = None


def inches_of(width: str) -> float:
    """The inches in "84mm", "8.4cm" or "3.3in".

    Raises:
      ValueError: It is none of these, or below an inch.
    """
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) ?(mm|cm|in)", width)
    inches = float(found[1]) / {"mm": 25.4, "cm": 2.54, "in": 1}[found[2]] if found else 0.0
    if inches < 1:
        raise ValueError(f"save: width={width!r}: give the width of a picture on paper, as '84mm', '8.4cm' or '3.3in'.")
    return inches


def width_of(content: str) -> float:
    return CHARACTER * display_width(content)
