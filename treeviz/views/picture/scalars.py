"""The scalars of a run in a picture: a line of each above the rows, over the steps of the heat map, as in the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from treeviz.tree.numbers import number_text
from treeviz.tree.series import Series, thinned
from treeviz.views.picture.columns import LOG_SCALE, curves
from treeviz.views.picture.heat_map import HeatMapColumn
from treeviz.views.picture.shapes import GAP, Curve, Line, Text, width_of
from treeviz.views.text.sparklines import last_texts, shapes_of
from treeviz.views.text.terminal import cut

LINE = 32  # pixels, as in the page
_MOST, _NAME, _N_POINTS = 6, 32, 128  # lines; characters of a name; points of a curve
_ROW = np.zeros(1, int)


class ScalarLines:
    """The names, the last values and the curves of the first six scalars."""

    def __init__(self, scalars: Sequence[Series], heat_map: HeatMapColumn) -> None:
        self._all = [thinned(each, _N_POINTS) for each in scalars[:_MOST]]
        self._heat_map = heat_map
        self.height = LINE * len(self._all)

    @property
    def words(self) -> str:
        """What is to be seen, for readers who cannot."""
        said = [f"{each.title} (last {last_texts(each, _ROW)[0]}, {_range(each)})" for each in self._all]
        return f"Curves above it show {', '.join(said)}." if said else ""

    def shapes(self, left: float, top: float) -> Iterator[Text | Line | Curve]:
        heat_map = self._heat_map
        for i, each in enumerate(self._all):
            y = top + i * LINE
            (last,), name = last_texts(each, _ROW), cut(each.title, _NAME)
            yield Line(left, y + LINE, heat_map.x + heat_map.width, y + LINE, "line")
            yield Text(left, y + 21, name, "ink")
            yield Text(left + width_of(name) + GAP / 2, y + 21, last, "ink", is_bold=True)
            if left + width_of(name) + width_of(last) + width_of(_range(each)) + 2 * GAP < heat_map.x:
                yield Text(heat_map.x - GAP, y + 21, _range(each), "dim", "end")
            steps = (each.first_steps + each.last_steps) / 2
            yield from curves(heat_map.place(steps), shapes_of(each, _ROW, _N_POINTS), 0, y + 4, LINE - 8)
            for mark in each.marks:
                (x,) = heat_map.place(steps[mark.column : mark.column + 1])
                yield Line(x, y + 2, x, y + LINE - 2, "bad")


def _range(series: Series) -> str:
    low = series.values if series.low is None else series.low
    high = series.values if series.high is None else series.high
    ends = np.fmin.reduce(low, axis=None, initial=np.inf), np.fmax.reduce(high, axis=None, initial=-np.inf)
    said = f"{number_text(float(ends[0]))} … {number_text(float(ends[1]))}{LOG_SCALE * series.log}"
    return said if ends[0] < ends[1] else ""
