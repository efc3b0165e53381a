"""The columns of a picture: the shapes of each cell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.series import Series
from treeviz.tree.table import TreeTable
from treeviz.views.picture.shapes import CHARACTER, GAP, ROW, Box, Curve, Text, width_of
from treeviz.views.text.cells import columns_of_cells
from treeviz.views.text.sparklines import BAD, Shapes, last_texts, shapes_of
from treeviz.views.text.terminal import Glyphs, cut

GLYPHS = Glyphs("+--", "`--", "|  ", "   ", "…", " · ", "▏▎▍▌▋▊▉█", " ▁▂▃▄▅▆▇█")
_TITLE = 32  # most characters
LOG_SCALE = ", log scale"
_N_POINTS, _POINT = 64, 2  # points of a sparkline; pixels between two of them
_CROSS, _CROSSES = 2.5, 7  # pixels: half a cross; the least distance of two crosses


class SparklineColumn:
    """The last value and the sparkline of every row, with crosses where a value is NaN or Inf."""

    def __init__(self, series: Series, rows: np.ndarray) -> None:
        self.x = 0.0
        self._title = cut(series.title, _TITLE) + LOG_SCALE * series.log
        self._lasts = last_texts(series, rows)
        self._shapes = shapes_of(series, rows, _N_POINTS)
        n = self._shapes.heights.shape[1]
        self._step = _POINT * _N_POINTS / max(n, 1)
        self._last_width = max(map(width_of, self._lasts), default=0)
        self.width = max(self._last_width + GAP // 2 + _POINT * _N_POINTS, width_of(self._title))

    def title(self, y: float) -> Text:
        return Text(self.x, y, self._title, "dim")

    def shapes(self, shown: int, y: int) -> Iterator[Text | Curve]:
        if self._lasts[shown]:
            yield Text(self.x + self._last_width, y + 15, self._lasts[shown], _role(self._lasts[shown]), "end")
        start = self.x + self._last_width + GAP // 2
        xs = start + (np.arange(self._shapes.heights.shape[1]) + 0.5) * self._step
        yield from curves(xs, self._shapes, shown, y + 4, ROW - 9)


def curves(xs: np.ndarray, shapes: Shapes, row: int, top: float, height: float) -> Iterator[Curve]:
    """The line of a sparkline, and crosses where it is not finite."""
    heights, is_zero, is_bad = (part[row] for part in shapes)
    places = np.where(is_zero, 0.0, heights)
    points = [(float(x), top + height * (1 - place)) for x, place in zip(xs, places, strict=True)]
    runs = groupby(points, key=lambda point: bool(np.isnan(point[1])))
    lines = [_at_least_a_dash(list(run)) for is_nothing, run in runs if not is_nothing]
    if lines:
        yield Curve(lines, "accent")
    crosses = list(_crosses(xs[is_bad].tolist(), top + height / 2))
    if crosses:
        yield Curve(crosses, "bad")


def _at_least_a_dash(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A single point would be invisible."""
    (x, y), *rest = line
    return line if rest else [(x - 1, y), (x + 1, y)]


def _crosses(xs: list[float], y: float) -> Iterator[list[tuple[float, float]]]:
    """Two strokes for each cross; crosses that would overlap the previous one are omitted."""
    free = -np.inf
    for x in xs:
        if x < free:
            continue
        yield [(x - _CROSS, y - _CROSS), (x + _CROSS, y + _CROSS)]
        yield [(x + _CROSS, y - _CROSS), (x - _CROSS, y + _CROSS)]
        free = x + _CROSSES


def _role(content: str) -> str:
    return "bad" if content == BAD else "ink"


class CellColumn:
    """The cells of one column; a bar behind summed bytes shows their share."""

    def __init__(self, table: TreeTable, column: Column, rows: np.ndarray) -> None:
        self.x = 0.0
        cells = columns_of_cells(table, [column], rows, GLYPHS)[0]
        self.width = CHARACTER * cells.width
        self._title, self._texts = cells.title.strip(), cells.texts
        self._is_chart = column.format == "histogram"
        self._is_right = column.format not in ("histogram", "label")
        self._shares: np.ndarray | None = None
        if column.format == "bytes" and column.rollup == "sum":
            values = table.rolled(column)
            with np.errstate(all="ignore"):  # a sum may be infinite
                self._shares = values[rows] / max(1.0, float(values[0]))
            self.width = max(self.width, 9 * CHARACTER)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing, as zeros, which are not shown."""
        return not any(map(str.strip, self._texts))

    def title(self, y: float) -> Text:
        return self._text(self._title, y, "dim")

    def shapes(self, shown: int, y: int) -> Iterator[Text | Box]:
        if self._is_chart:
            for i, bar in enumerate(self._texts[shown]):
                height = 2 * GLYPHS.heights.index(bar)
                if height:
                    yield Box(self.x + i * CHARACTER, y + 19 - height, CHARACTER - 1, height, "accent")
            return
        if self._shares is not None and self._shares[shown] > 0:
            width = (self.width + 8) * min(1.0, float(self._shares[shown]))
            yield Box(self.x + self.width + 4 - width, y + 3, width, ROW - 6, "bar")
        content = self._texts[shown].strip()
        if content:
            yield self._text(content, y + 15, _role(content))

    def _text(self, content: str, y: float, role: str) -> Text:
        x = self.x + self.width if self._is_right else self.x
        return Text(x, y, content, role, "end" if self._is_right else "start")
