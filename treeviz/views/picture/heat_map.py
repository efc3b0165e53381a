"""The heat map of a picture: a strip of colors for each row, steps from left to right, as in the page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from treeviz.tree.numbers import number_text
from treeviz.tree.series import Series, thinned
from treeviz.views.picture.shapes import ROW, Cells, Curve, Line, Text, width_of
from treeviz.views.text.sparklines import series_of

# Cividis, as in assets/series/colors.js.
STOPS = (
    "00224e 002e6a 1a386f 32436d 434e6c 535a6d 61656f 6f7073 7d7c78 "
    "8c8878 9b9476 aba072 bcae6c cdbb63 dec958 f0d846 fee838"
)
_COLORS = [f"#{stop}" for stop in STOPS.split()]
WIDTH, _N_CELLS = 256, 64
_CROSS = 3  # pixels: half a cross


class HeatMapColumn:
    """The strips of all rows; crosses where a value is NaN or Inf, a line where it is zero on a logarithmic scale.

    Attributes:
      ends: The values of the first and the last color, as text: the fences of a box plot (Tukey 1977), so that outliers
        have those colors, too.
    """

    def __init__(self, series: Series, rows: np.ndarray, width: float = WIDTH) -> None:
        self.x, self.width = 0.0, width
        few = self._series = thinned(series_of(series, rows), _N_CELLS)
        values = few.values.astype(np.float64)
        self._is_bad = few.bad | np.isinf(values)
        known = np.isfinite(values) & ~self._is_bad & ((values > 0) | (not few.log))
        self._is_zero = few.log & (values == 0) & ~self._is_bad
        levels = np.where(
            known, np.log10(values, out=np.zeros(values.shape), where=known) if few.log else values, np.nan
        )
        low, high = _ends(levels[known])
        self.ends = tuple(number_text(float(f"{10**end if few.log else end:.2g}")) for end in (low, high))
        place = np.nan_to_num((levels - low) / max(high - low, 1e-9)).clip(0, 1)
        self._codes = np.where(known, (place * (len(_COLORS) - 1)).round(), -1).astype(int)

    @property
    def words(self) -> str:
        """What is to be seen, for readers who cannot."""
        few = self._series
        scale = ", log scale" if few.log else ""
        of = f"the {few.title} of each row over steps {few.first_steps[0]} to {few.last_steps[-1]}"
        return f"A heat map shows {of}, from {self.ends[0]}, dark, to {self.ends[1]}, light{scale}."

    def place(self, steps: np.ndarray) -> np.ndarray:
        """The x of each step."""
        first, last = self._series.first_steps, self._series.last_steps
        at = np.maximum(np.searchsorted(first, steps, side="right") - 1, 0)
        part = ((steps + 0.5 - first[at]) / (last[at] - first[at] + 1)).clip(0, 1)
        return self.x + self.width * (at + part) / len(first)

    def title(self, y: float) -> Iterator[Text]:
        first, last = f"step {self._series.first_steps[0]}", str(self._series.last_steps[-1])
        yield Text(self.x, y, first, "dim")
        if width_of(first) + width_of(last) < self.width:
            yield Text(self.x + self.width, y, last, "dim", "end")

    def legend(self, y: float) -> Iterator[Text | Cells]:
        """The colors and the values that they stand for, below the strips."""
        low, high = (f"≤ {self.ends[0]}", f"≥ {self.ends[1]}")
        side, middle = self.width / 3, self.width / 3 / len(_COLORS)
        yield Text(self.x + side - 6, y + 15, low, "dim", "end")
        for i, color in enumerate(_COLORS):
            yield Cells([(self.x + side + i * middle, y + 5, middle + 0.3, ROW - 10)], color)
        yield Text(self.x + 2 * side + 6, y + 15, high, "dim")

    def shapes(self, shown: int, y: int) -> Iterator[Cells | Curve | Line]:
        n = self._codes.shape[1]
        step = self.width / max(n, 1)
        strips: dict[int, list[tuple[float, float, float, float]]] = {}
        at = 0
        for code, run in groupby(self._codes[shown].tolist()):
            length = len(list(run))
            if code >= 0:
                strips.setdefault(code, []).append((self.x + at * step, y + 1, length * step, ROW - 2))
            at += length
        for code, rectangles in sorted(strips.items()):
            yield Cells(rectangles, _COLORS[code])
        for start, end in _runs(self._is_zero[shown]):
            yield Line(self.x + start * step, y + ROW / 2, self.x + end * step, y + ROW / 2, "dim")
        bad = [self.x + (column + 0.5) * step for column in np.flatnonzero(self._is_bad[shown]).tolist()]
        free, crosses = -1.0, []
        for x in bad:
            if x - _CROSS >= free:
                crosses += [[(x - _CROSS, y + ROW / 2 - _CROSS), (x + _CROSS, y + ROW / 2 + _CROSS)]]
                crosses += [[(x - _CROSS, y + ROW / 2 + _CROSS), (x + _CROSS, y + ROW / 2 - _CROSS)]]
                free = x + _CROSS + 1
        if crosses:
            yield Curve(crosses, "bad")


def _ends(levels: np.ndarray) -> tuple[float, float]:
    """The fences of a box plot, or the least and the greatest level if these are nearer."""
    if not levels.size:
        return 0.0, 1.0
    first, third = np.percentile(levels, [25, 75])
    reach = 1.5 * (third - first)
    return float(max(levels.min(), first - reach)), float(min(levels.max(), third + reach))


def _runs(is_in: np.ndarray) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_in, [False]]).astype(int)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
