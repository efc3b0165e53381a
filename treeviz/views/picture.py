"""Draw the first rows of a view as shapes in pixels, and write the picture as SVG or PNG."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from io import BytesIO
from itertools import groupby
from math import nan
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treeviz.tree.facts import KINDS, Column, Facts
from treeviz.tree.series import Series, thinned
from treeviz.tree.table import TreeTable
from treeviz.tree.text import number_text, visible
from treeviz.views.html.page import attribute
from treeviz.views.html.page import text as escaped
from treeviz.views.text.cells import (
    BAD,
    Shapes,
    columns_of_cells,
    fact_parts,
    last_texts,
    marks_by_row,
    marks_inside,
    note_part,
    series_of,
    shapes_of,
    times_text,
    type_cells,
)
from treeviz.views.text.rows import first_rows
from treeviz.views.text.terminal import Glyphs, cut, display_width
from treeviz.views.text.text import LeftOut, guides, in_brief, key_labels
from treeviz.views.view import View

# The shapes of a picture, their colours and sizes

FONT = 13
CHARACTER = 8  # at least a character's width: 0.60 of FONT in most fonts, rounded up by some programs
ROW, GAP = 22, 18

# role -> light and dark colour, as in the page
COLORS = {
    "paper": ("#ffffff", "#141619"),
    "raised": ("#fafbfc", "#191c20"),
    "ink": ("#1c2024", "#e6e8eb"),
    "dim": ("#636b76", "#9aa3ae"),
    "line": ("#e3e6ea", "#2d3238"),
    "bar": ("#a9c2f5", "#4166a8"),
    "accent": ("#1f5be0", "#7aa7ff"),
    "violet": ("#7c3aed", "#b79cff"),
    "warm": ("#9a4a00", "#f2b04b"),
    "bad": ("#c5221f", "#ff8a80"),
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
    """A rectangle, filled or only its border."""

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
    """Rectangles (x, y, width, height) in a color of the heat map, which is the same on light and dark paper."""

    rectangles: list[tuple[float, float, float, float]]
    color: str


Shape = Text | Box | Line | Curve | Cells


class Picture(NamedTuple):
    """Shapes in drawing order: later ones cover earlier ones."""

    title: str
    width: int
    height: int
    shapes: list[Shape]
    description: str = ""  # the contents in words, for screen readers
    inches: float | None = None  # the width on paper; None: as wide as on a screen


def inches_of(width: str) -> float:
    """The inches in "84mm", "8.4cm" or "3.3in"; raises ValueError for another format, or less than an inch."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+) ?(mm|cm|in)", width)
    inches = float(match[1]) / {"mm": 25.4, "cm": 2.54, "in": 1}[match[2]] if match else 0.0
    if inches < 1:
        raise ValueError(f"save: width={width!r}: give the width of a picture on paper, as '84mm', '8.4cm' or '3.3in'.")
    return inches


def width_of(content: str) -> float:
    return CHARACTER * display_width(content)


# The columns of a picture: the shapes of each cell

GLYPHS = Glyphs("+--", "`--", "|  ", "   ", "…", " · ", "▏▎▍▌▋▊▉█", " ▁▂▃▄▅▆▇█")
_TITLE = 32  # characters at most
LOG_SCALE = ", log scale"
_N_POINTS, _POINT = 64, 2  # points of a sparkline; pixels between two points
_CROSS, _CROSSES = 2.5, 7  # pixels: half a cross; minimum distance of two crosses


class SparklineColumn:
    """The last value and the sparkline of every row, with crosses for NaN and Inf."""

    def __init__(self, series: Series, rows: np.ndarray) -> None:
        self.x = 0.0
        self._title = cut(series.title, _TITLE) + LOG_SCALE * series.log
        self._lasts = last_texts(series, rows)
        self._shapes = shapes_of(series, rows, _N_POINTS)
        n = self._shapes.heights.shape[1]
        self._step = _POINT * _N_POINTS / max(n, 1)
        self._last_width = max(map(width_of, self._lasts), default=0)
        self.width = max(self._last_width + GAP // 2 + _POINT * _N_POINTS, width_of(self._title))

    def title(self, y: float) -> Iterator[Text]:
        yield Text(self.x, y, self._title, "dim")

    def shapes(self, shown: int, y: int) -> Iterator[Text | Curve]:
        if last := self._lasts[shown]:
            yield Text(self.x + self._last_width, y + 15, last, _content_role(last), "end")
        start = self.x + self._last_width + GAP // 2
        xs = start + (np.arange(self._shapes.heights.shape[1]) + 0.5) * self._step
        yield from curves(xs, self._shapes, shown, y + 4, ROW - 9)


def curves(xs: np.ndarray, shapes: Shapes, row: int, top: float, height: float) -> Iterator[Curve]:
    """The line of a sparkline, and crosses for values that are not finite."""
    heights, is_zero, is_bad = (part[row] for part in shapes)
    levels = np.where(is_zero, 0.0, heights)
    points = [(float(x), top + height * (1 - level)) for x, level in zip(xs, levels, strict=True)]
    runs = groupby(points, key=lambda point: bool(np.isnan(point[1])))
    lines = [list(run) for is_gap, run in runs if not is_gap]
    if lines:
        # A single point would be invisible.
        yield Curve([line if line[1:] else [(x - 1, y), (x + 1, y)] for line in lines for x, y in line[:1]], "accent")
    yield from _crosses(xs[is_bad].tolist(), top + height / 2, _CROSS)


def _crosses(xs: list[float], y: float, half: float) -> Iterator[Curve]:
    """Two strokes for each cross; crosses that would overlap the previous one are omitted."""
    free, strokes = -math.inf, list[list[tuple[float, float]]]()
    for x in xs:
        if x >= free:
            strokes.append([(x - half, y - half), (x + half, y + half)])
            strokes.append([(x + half, y - half), (x - half, y + half)])
            free = x + _CROSSES
    if strokes:
        yield Curve(strokes, "bad")


def _content_role(content: str) -> str:
    return "bad" if content == BAD else "ink"


class CellColumn:
    """The cells of one column; bars behind summed bytes show their share."""

    def __init__(self, table: TreeTable, column: Column, rows: np.ndarray) -> None:
        self.x = 0.0
        cells = columns_of_cells(table, [column], rows, GLYPHS)[0]
        self.width = CHARACTER * cells.width
        self._title, self._texts = cells.title.strip(), cells.texts
        self.is_empty = not any(map(str.strip, cells.texts))  # as if all values are zeros, which are not shown
        self._is_chart = column.format == "histogram"
        self._is_right = column.format not in ("histogram", "label")
        self._shares: np.ndarray | None = None
        if column.format == "bytes" and column.rollup == "sum":
            values = table.rolled(column)
            with np.errstate(all="ignore"):  # a sum may be infinite
                self._shares = values[rows] / max(1.0, float(values[0]))
            self.width = max(self.width, 9 * CHARACTER)

    def title(self, y: float) -> Iterator[Text]:
        yield self._text(self._title, y, "dim")

    def shapes(self, shown: int, y: int) -> Iterator[Text | Box]:
        if self._is_chart:
            for i, bar in enumerate(self._texts[shown]):
                height = 2 * GLYPHS.heights.index(bar)
                if height:
                    yield Box(self.x + i * CHARACTER, y + 19 - height, CHARACTER - 1, height, "accent")
            return
        if self._shares is not None and self._shares[shown] > 0:
            width = (self.width + 8) * min(1.0, float(self._shares[shown]))
            yield Box(self.x + self.width + 4 - width, y + ROW - 4, width, 3, "bar")
        if content := self._texts[shown].strip():
            yield self._text(content, y + 15, _content_role(content))

    def _text(self, content: str, y: float, role: str) -> Text:
        x = self.x + self.width if self._is_right else self.x
        return Text(x, y, content, role, "end" if self._is_right else "start")


# The heat map: a strip of colors for each row, steps from left to right, as in the page

# Viridis, as in assets/series/colors.js.
STOPS = (
    "440154 481a6c 472f7d 414487 39568c 31688e 2a788e 23888e 1f988b 22a884 35b779 54c568 7ad151 a5db36 d2e21b fde725"
)
_COLORS = [f"#{stop}" for stop in STOPS.split()]
WIDTH, _N_CELLS = 256, 64
_HALF_CROSS = 3  # pixels: half a cross


class HeatMapColumn:
    """The strips of all rows, with crosses for NaN and Inf, and lines for zeros on a logarithmic scale.

    `ends` are the values of the first and last color, as text: the fences of a box plot (Tukey 1977).
    """

    def __init__(self, series: Series, rows: np.ndarray, width: float = WIDTH) -> None:
        self.x, self.width = 0.0, width
        thin = self._series = thinned(series_of(series, rows), _N_CELLS)
        values = thin.values.astype(np.float64)
        self._is_bad = thin.bad | np.isinf(values)
        known = np.isfinite(values) & ~self._is_bad & ((values > 0) | (not thin.log))
        self._is_zero = thin.log & (values == 0) & ~self._is_bad
        levels = np.full(values.shape, np.nan)
        levels[known] = np.log10(values[known]) if thin.log else values[known]
        low, high = _ends(levels[known])
        self.ends = tuple(number_text(float(f"{10**end if thin.log else end:.2g}")) for end in (low, high))
        color_index = np.nan_to_num((levels - low) / max(high - low, 1e-9)).clip(0, 1)
        self._codes = np.where(known, (color_index * (len(_COLORS) - 1)).round(), -1).astype(int)

    @property
    def description(self) -> str:
        """The contents in words, for screen readers."""
        series = self._series
        scale = ", log scale" if series.log else ""
        steps = series.inner.span_text(int(series.first_steps[0]), int(series.last_steps[-1]))
        values = f"the {series.title} of each row over {steps}"
        return f"A heat map shows {values}, from {self.ends[0]}, dark, to {self.ends[1]}, light{scale}."

    def place(self, steps: np.ndarray) -> np.ndarray:
        """The x of each step."""
        first, last = self._series.first_steps, self._series.last_steps
        index = np.maximum(np.searchsorted(first, steps, side="right") - 1, 0)
        fraction = ((steps + 0.5 - first[index]) / (last[index] - first[index] + 1)).clip(0, 1)
        return self.x + self.width * (index + fraction) / len(first)

    def title(self, y: float) -> Iterator[Text]:
        series = self._series
        first, last = series.inner.text(series.first_steps[0]), series.inner.short_text(series.last_steps[-1])
        yield Text(self.x, y, first, "dim")
        if width_of(first) + width_of(last) < self.width:
            yield Text(self.x + self.width, y, last, "dim", "end")

    def legend(self, y: float) -> Iterator[Text | Cells]:
        """The colors and the values that they represent, below the strips."""
        side, middle = self.width / 3, self.width / 3 / len(_COLORS)
        yield Text(self.x + side - 6, y + 15, f"≤ {self.ends[0]}", "dim", "end")
        for i, color in enumerate(_COLORS):
            yield Cells([(self.x + side + i * middle, y + 5, middle + 0.3, ROW - 10)], color)
        yield Text(self.x + 2 * side + 6, y + 15, f"≥ {self.ends[1]}", "dim")

    def shapes(self, shown: int, y: int) -> Iterator[Cells | Curve | Line]:
        n = self._codes.shape[1]
        step = self.width / max(n, 1)
        strips: dict[int, list[tuple[float, float, float, float]]] = {}
        for code, run in groupby(enumerate(self._codes[shown].tolist()), key=itemgetter(1)):
            (first, _), *others = run
            if code >= 0:
                place = (self.x + first * step, y + 1, (1 + len(others)) * step, ROW - 2)
                strips.setdefault(code, []).append(place)
        for code, rectangles in sorted(strips.items()):
            yield Cells(rectangles, _COLORS[code])
        edges = np.flatnonzero(np.diff(self._is_zero[shown], prepend=False, append=False))
        for start, end in edges.reshape(-1, 2).tolist():
            yield Line(self.x + start * step, y + ROW / 2, self.x + end * step, y + ROW / 2, "dim")
        bad = [self.x + (column + 0.5) * step for column in np.flatnonzero(self._is_bad[shown]).tolist()]
        yield from _crosses(bad, y + ROW / 2, _HALF_CROSS)


def _ends(levels: np.ndarray) -> tuple[float, float]:
    """The fences of a box plot, or the lowest and highest level if closer."""
    if not levels.size:
        return 0.0, 1.0
    first, third = np.percentile(levels, [25, 75])
    reach = 1.5 * (third - first)
    return float(max(levels.min(), first - reach)), float(min(levels.max(), third + reach))


# Write a picture as SVG


def svg(picture: Picture) -> str:
    """The picture as SVG, light or dark as set in the reader's system. It makes no network requests."""
    dark = "".join(f".{role}{{fill:{color}}}.{role}-line{{stroke:{color}}}" for role, (_, color) in COLORS.items())
    width, height = str(picture.width), str(picture.height)
    if picture.inches is not None:
        width, height = f"{picture.inches:.4g}in", f"{picture.inches * picture.height / picture.width:.4g}in"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {picture.width} {picture.height}" role="img" xml:space="preserve" font-size="{FONT}" '
        "font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\">",
        f"<title>{escaped(_printable(picture.title))}</title>",
        f"<desc>{escaped(_printable(picture.description))}</desc>",
        f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>",
        *map(_element, picture.shapes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _element(shape: Shape) -> str:
    """Light colours are attributes, which every SVG reader supports; dark ones need a style sheet."""
    if isinstance(shape, Cells):
        path = "".join(f"M{x:.1f} {y:g}h{w:.1f}v{h:g}h-{w:.1f}z" for x, y, w, h in shape.rectangles)
        return f'<path d="{path}" fill="{shape.color}"/>'
    light = COLORS[shape.role][0]
    if isinstance(shape, Curve):
        path = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line) for line in shape.lines)
        return f'<path d="{path}" class="{shape.role}-line" stroke="{light}" stroke-width="1.2" fill="none"/>'
    if isinstance(shape, Line):
        places = f'x1="{shape.x1:g}" y1="{shape.y1:g}" x2="{shape.x2:g}" y2="{shape.y2:g}"'
        return f'<line {places} class="{shape.role}-line" stroke="{light}"/>'
    if isinstance(shape, Box):
        places = f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"'
        border = f'class="{shape.role}-line" stroke="{light}" fill="none"'
        color = f'class="{shape.role}" fill="{light}"' if shape.is_filled else border
        radius = f'rx="{shape.radius:g}" ' if shape.radius else ""
        return f"<rect {places} {radius}{color}/>"
    style = ' text-anchor="end"' * (shape.anchor == "end") + ' font-weight="bold"' * shape.is_bold
    place, content = f'x="{shape.x:g}" y="{shape.y:g}"', escaped(_printable(shape.text))
    return f'<text {place} class="{attribute(shape.role)}" fill="{light}"{style}>{content}</text>'


def _printable(content: str) -> str:
    """The text without control characters, which XML cannot hold even as escapes."""
    return visible(content, 2000)


# Write a picture as PNG, drawn by matplotlib in its own font, DejaVu Sans Mono

SCALE = 2  # image pixels per picture pixel, for high-density screens
_PNG_POINT = 72 / 100  # points per picture pixel: the figure has 100 pixels per inch


def png(picture: Picture) -> bytes:
    """The picture in light colours, drawn by matplotlib. Characters that the font lacks become escape sequences."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "save: a PNG is drawn by matplotlib, which is not installed: pip install 'jax-treeviz[png]'. "
            "The same picture as .svg needs nothing."
        ) from error
    # pyplot would keep the figure. The user's rcParams are not read.
    figure = Figure((picture.width / 100, picture.height / 100), dpi=100 * SCALE, facecolor=COLORS["paper"][0])
    for order, shape in enumerate(picture.shapes):
        figure.add_artist(_artist(shape, picture.height, order), clip=False)
    data = BytesIO()
    texts = {"Title": _printable(picture.title), "Description": _printable(picture.description)}
    dpi = 100 * SCALE if picture.inches is None else picture.width * SCALE / picture.inches
    FigureCanvasAgg(figure).print_png(data, metadata={"Software": None, **texts}, pil_kwargs={"dpi": (dpi, dpi)})
    return data.getvalue()


def _artist(shape: Shape, height: int, order: int):
    from matplotlib import collections, lines, patches, text
    from matplotlib.transforms import Affine2D

    options: dict = {"transform": Affine2D().translate(0, -height).scale(SCALE, -SCALE), "zorder": order}
    if isinstance(shape, Cells):
        corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in shape.rectangles]
        style = {"facecolor": shape.color, "linewidth": 0, "antialiased": False}
        return collections.PolyCollection(corners, **style, **options)
    color = COLORS[shape.role][0]
    if isinstance(shape, Line):
        xs, ys = (shape.x1, shape.x2), (shape.y1, shape.y2)
        return lines.Line2D(xs, ys, color=color, linewidth=_PNG_POINT, **options)
    if isinstance(shape, Box):
        style = f"round,pad=0,rounding_size={shape.radius}" if shape.radius else "square,pad=0"
        face, edge = (color, "none") if shape.is_filled else ("none", color)
        options |= {"facecolor": face, "edgecolor": edge, "linewidth": _PNG_POINT}
        return patches.FancyBboxPatch((shape.x, shape.y), shape.width, shape.height, style, **options)
    if isinstance(shape, Curve):
        points = [point for line in shape.lines for point in (*line, (nan, nan))]  # NaN lifts the pen
        xs, ys = zip(*points, strict=True)
        return lines.Line2D(xs, ys, color=color, linewidth=1.2 * _PNG_POINT, **options)
    font, known = _font(shape.is_bold)
    as_escape = lambda c: c.encode("unicode_escape", "surrogatepass").decode()  # noqa: E731
    content = "".join(c if c.isascii() or ord(c) in known else as_escape(c) for c in shape.text)
    place = shape.x * SCALE, (height - shape.y) * SCALE
    options = {"ha": "right" if shape.anchor == "end" else "left", "va": "baseline", "fontproperties": font}
    options |= {"parse_math": False, "usetex": False, "wrap": False, "transform": Affine2D(), "zorder": order}
    return text.Text(*place, content, color=color, **options)


@cache
def _font(is_bold: bool) -> tuple[Any, frozenset[int]]:
    """A font, and the code points in the one that is not bold."""
    from matplotlib import font_manager, get_data_path

    file = str(Path(get_data_path(), "fonts", "ttf", f"DejaVuSansMono{'-Bold' * is_bold}.ttf"))
    known = _font(False)[1] if is_bold else frozenset(font_manager.get_font(file).get_charmap())
    return font_manager.FontProperties(fname=file, size=FONT * _PNG_POINT), known


# The scalars of a run: one line each above the rows, over the steps of the heat map, as in the page

LINE = 32  # pixels, as in the page
_MOST, _NAME, _N_SCALAR_POINTS = 6, 32, 128  # lines; characters of a name; points of a curve
_ROW = np.zeros(1, int)


class ScalarLines:
    """The names, the last values and the curves of the first six scalars."""

    def __init__(self, scalars: Sequence[Series], heat_map: HeatMapColumn) -> None:
        self._all = [thinned(scalar, _N_SCALAR_POINTS) for scalar in scalars[:_MOST]]
        self._heat_map = heat_map
        self.height = LINE * len(self._all)

    @property
    def description(self) -> str:
        """The contents in words, for screen readers."""
        texts = [f"{scalar.title} (last {last_texts(scalar, _ROW)[0]}, {_range(scalar)})" for scalar in self._all]
        return f"Curves above it show {', '.join(texts)}." if texts else ""

    def shapes(self, left: float, top: float) -> Iterator[Text | Line | Curve]:
        heat_map = self._heat_map
        for i, scalar in enumerate(self._all):
            y = top + i * LINE
            (last,), name = last_texts(scalar, _ROW), cut(scalar.title, _NAME)
            yield Line(left, y + LINE, heat_map.x + heat_map.width, y + LINE, "line")
            yield Text(left, y + 21, name, "ink")
            yield Text(left + width_of(name) + GAP / 2, y + 21, last, "ink", is_bold=True)
            if left + width_of(name) + width_of(last) + width_of(_range(scalar)) + 2 * GAP < heat_map.x:
                yield Text(heat_map.x - GAP, y + 21, _range(scalar), "dim", "end")
            steps = (scalar.first_steps + scalar.last_steps) / 2
            yield from curves(heat_map.place(steps), shapes_of(scalar, _ROW, _N_SCALAR_POINTS), 0, y + 4, LINE - 8)
            for mark in scalar.marks:
                (x,) = heat_map.place(steps[mark.column : mark.column + 1])
                yield Line(x, y + 2, x, y + LINE - 2, "bad")


def _range(series: Series) -> str:
    low = series.values if series.low is None else series.low
    high = series.values if series.high is None else series.high
    ends = np.fmin.reduce(low, axis=None, initial=np.inf), np.fmax.reduce(high, axis=None, initial=-np.inf)
    text = f"{number_text(float(ends[0]))} … {number_text(float(ends[1]))}{LOG_SCALE * series.log}"
    return text if ends[0] < ends[1] else ""


MAX_ROWS = 80
LEVEL, MARGIN = 16, 14  # pixels
_MAX_LEVELS = 24
_KEY, _TYPE, _DETAIL, _LINE = 72, 56, 56, 110  # characters of a key, a type, a badge, a line above the tree

_BADGE_ROLES = {"error": "bad", "cycle": "bad", "hidden": "bad", "info": "dim"}
IN_EVERY_ROW = ("key", "type", "kind", "shape", "dtype")  # columns that every row shows

_POINTS = 7  # the height of text on paper
_PARTS = ((_KEY, 0.34), (_TYPE, 0.3), (_LINE, 0.9))  # shares of the width on paper, for keys, types and the headline
_DETAILS_PART, _HEAT_MAP_PART = 0.45, 0.3  # largest share of the badges, without and with a heat map
_MOST_DESCRIBED = 5  # findings and notes in the description

AnyColumn = SparklineColumn | CellColumn | HeatMapColumn
Badge = tuple[str, str]  # a text and a role


def draw(view: View, *, inches: float | None = None) -> Picture:
    """Draw `MAX_ROWS` rows, the first ones of every subtree: the cells of the text view, the first series, badges.

    On paper of a width in `inches`, where text is 7 points high, names are shortened and some columns left out.
    """
    scalars, view = view.scalars, in_brief(view, fold=True)
    room = math.inf if inches is None else int(inches * 72 / _POINTS * FONT)
    table = view.table
    truncated = first_rows(view, MAX_ROWS, view.depth)
    rows, codes = truncated.rows, table.fact_codes[truncated.rows].tolist()
    n_key, n_type, n_line = (int(min(most, room * part / CHARACTER)) for most, part in _PARTS)
    labels = [cut(label, n_key) for label in key_labels(table, rows, _MAX_LEVELS, GLYPHS)[0]]
    types = [cut(type_.rstrip(), n_type) for type_ in type_cells(table, rows, GLYPHS).texts]
    left_out = LeftOut(table, view.columns, truncated, GLYPHS.dots)
    omitted = {shown: left_out.text(shown) for shown in left_out.closed}
    badges = list(row_badges(view, rows, omitted))

    headline = _headline(table, [times_text(series) for series in view.series[:1]], n_line)
    top = MARGIN + ROW * len(headline) + ROW // 2  # of the titles
    indents = (LEVEL * np.minimum(table.depth[rows], _MAX_LEVELS + 2)).tolist()
    type_x = MARGIN + max(i + width_of(label) for i, label in zip(indents, labels, strict=True)) + GAP
    widest = max((width_of(text) + GAP for row in badges for text, _ in row), default=0)
    until = room - MARGIN - min(widest, (_HEAT_MAP_PART if view.series else _DETAILS_PART) * room)
    columns, details_x = _columns(view, rows, type_x + max(map(width_of, types)) + GAP, until)
    heat_maps = [column for column in columns if isinstance(column, HeatMapColumn)]
    above = [ScalarLines(scalars, column) for column in heat_maps]
    behind: list[Shape] = [shape for lines in above for shape in lines.shapes(MARGIN, top)]
    top += sum(lines.height for lines in above)
    titles = [Text(MARGIN, top + 15, "name", "dim"), Text(type_x, top + 15, "type", "dim")]
    for column in columns:
        titles += column.title(top + 15)

    shapes: list[Shape] = [
        Text(MARGIN, MARGIN + i * ROW + 15, line, "dim" if i else "ink", is_bold=not i)
        for i, line in enumerate(headline)
    ]
    y, right = top, max(map(width_of, headline)) + MARGIN
    for prefix, shown, is_row in guides(table, left_out, _MAX_LEVELS, GLYPHS):
        y += ROW
        shapes += _guide_lines(prefix, y)
        start = MARGIN + LEVEL * min(len(prefix) // 3, _MAX_LEVELS + 2)
        if not is_row:
            line = Text(start, y + 15, left_out.text(shown), "dim")
            shapes.append(line)
            right = max(right, _right(line))
            continue
        facts = table.facts[codes[shown]]
        is_bold = not (facts.is_leaf or KINDS[facts.kind].group == "part")
        shapes.append(Text(start, y + 15, labels[shown], "ink", is_bold=is_bold))
        shapes.append(Text(type_x, y + 15, types[shown], _role(facts)))
        for column in columns:
            shapes += column.shapes(shown, y)
        n_details = int(min(2 * _DETAIL, (room - MARGIN - details_x) / CHARACTER - 2))
        details = list(_details(badges[shown], omitted.get(shown), facts, details_x, y, n_details))
        shapes += details
        right = max([right, details_x - GAP, *map(_right, details)])
    if view.footer:
        y += ROW
        shapes.append(Text(MARGIN, y + 15, view.footer, "dim"))
    for column in heat_maps:
        y += ROW
        shapes += column.legend(y)
    width, height = int(right) + MARGIN if inches is None else int(room), y + ROW + MARGIN
    head = [Box(0, top, width, ROW, "raised"), Line(0, top + ROW, width, top + ROW, "line"), *titles]
    described = _description(view, len(rows), [part.description for part in (*heat_maps, *above)])
    shapes = [Box(0, 0, width, height, "paper"), *behind, *head, *shapes]
    return Picture(view.title, width, height, shapes, described, inches)


def _description(view: View, n_rows: int, heat_maps: list[str]) -> str:
    table = view.table
    remarks = [f"{mark.kind}: {mark.text}" for series in view.series for mark in series.marks]
    for row, notes in table.notes.items():
        remarks += [f"{table[row].path or table.name}: {note_part(table, note).text}" for note in notes]
    if len(remarks) > _MOST_DESCRIBED:
        remarks[_MOST_DESCRIBED:] = [f"and {len(remarks) - _MOST_DESCRIBED} more"]
    summary = f"{n_rows} of {len(table)} rows of a tree, with their types and sizes."
    parts = [f"{', '.join(table.headline).rstrip('.')}.", summary, *heat_maps, "; ".join(remarks)]
    return _printable(" ".join(filter(None, parts)))


def _columns(view: View, rows: np.ndarray, x: float, room: float) -> tuple[list[AnyColumn], float]:
    """The columns that fit between `x` and `room`, and the x after the last one."""
    columns: list[AnyColumn] = [SparklineColumn(series, rows) for series in view.series[:1]]
    shown = [column for column in view.columns_without_last_value if column.name not in IN_EVERY_ROW]
    columns += [cells for column in shown if not (cells := CellColumn(view.table, column, rows)).is_empty]
    heat_maps = [HeatMapColumn(series, rows, min(WIDTH, max(room - x, 0))) for series in view.series[:1]]
    room -= sum(heat_map.width + GAP for heat_map in heat_maps)
    fitting: list[AnyColumn] = []
    for column in columns:
        if x + column.width > room:
            break
        column.x, x = x, x + column.width + GAP
        fitting.append(column)
    for column in heat_maps:
        column.x, x = x, x + column.width + GAP
    return [*fitting, *heat_maps], x


def row_badges(view: View, rows: np.ndarray, closed: Container[int]) -> Iterator[list[Badge]]:
    """The notes and findings of each row, and for a closed node the number of findings inside."""
    marks, counts = marks_by_row(view.series), marks_inside(view.table, view.series, rows)
    for shown, row in enumerate(rows.tolist()):
        notes = view.table.notes.get(row, ())
        badges = [(note_part(view.table, note).text, _BADGE_ROLES.get(note.kind, "warm")) for note in notes]
        for series, mark in marks.get(row, ()):
            text = f"{mark.kind} at {series.steps_text(mark.column)}"
            badges.append((text, _BADGE_ROLES.get(mark.severity, "warm")))
        if shown in closed and counts[shown]:
            badges.append((counts[shown], "warm"))
        yield badges


def _headline(table: TreeTable, more: Sequence[str], n_line: int) -> list[str]:
    lines = [cut(visible(table.name), n_line), ""]
    for part in table.headline:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        lines[-1:] = [longer] if display_width(longer) <= n_line else [lines[-1], cut(part, n_line)]
    return [line for line in (*lines, *(cut(visible(line), n_line) for line in more)) if line]


def _right(shape: Text | Box) -> float:
    return shape.x + (shape.width if isinstance(shape, Box) else width_of(shape.text))


def _role(facts: Facts) -> str:
    kind = KINDS[facts.kind]
    if kind.group == "trouble" or facts.kind == "deleted":
        return "bad"
    of_part = "dim" if kind.group == "part" else "ink" if facts.is_leaf else "accent"
    return "violet" if kind.is_abstract else of_part


def _guide_lines(prefix: str, y: int) -> Iterator[Text | Line]:
    """The guide of a row as lines: one for each ancestor, and its own branch."""
    above, own, half = prefix[:-3], prefix[-3:], y + ROW / 2
    n, x = 0, MARGIN + 5
    while above[3 * n : 3 * n + 3] in (GLYPHS.bar, GLYPHS.blank):
        if above[3 * n] == "|":
            yield Line(x, y, x, y + ROW, "line")
        n, x = n + 1, x + LEVEL
    if own:
        number = above[3 * n :].strip()
        if number:  # the depth, if too deep to be drawn
            yield Text(x, y + 15, number, "dim")
            return
        yield Line(x, y, x, half if own == GLYPHS.last else y + ROW, "line")
        yield Line(x, half, x + LEVEL - 8, half, "line")


def _details(
    badges: Iterable[Badge], omitted: str | None, facts: Facts, x: float, y: int, room: int
) -> Iterator[Text | Box]:
    """The end of a row: badges, the number of omitted children, the text and the static fields."""
    for badge, role in badges:
        badge = cut(badge, min(_DETAIL, room))
        width = width_of(badge) + 12
        if room > 0:
            yield Box(x + 0.5, y + 3.5, width, ROW - 7, role, 7, False)
            yield Text(x + 6, y + 15, badge, role)
        x, room = x + width + 8, room - len(badge)
    for part in (omitted, *(part.text for part in fact_parts(facts))):
        part = cut(part or "", min(_DETAIL, room))
        if part and room > 0:
            yield Text(x, y + 15, part, "dim")
            x, room = x + width_of(part) + GAP, room - len(part)
