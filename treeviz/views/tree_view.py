"""What `render` gives: a tree that shows itself wherever it lands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from treeviz.tree.column import Column
from treeviz.tree.series import Histograms, Series
from treeviz.tree.table import Row, TreeTable
from treeviz.views import files
from treeviz.views.json import to_json
from treeviz.views.notebook import shell_of_notebook, shows_html
from treeviz.views.page import fragment, page, stand_in
from treeviz.views.payload import pack
from treeviz.views.picture import Picture, draw
from treeviz.views.terminal import terminal_ascii, terminal_color
from treeviz.views.text import text
from treeviz.views.treescope_box import box

MAX_ROWS_IN_TERMINAL = 60


class TreeView:
    """A snapshot of a pytree: a page in a notebook, text in a terminal, a file on request.

    It shows the same for ever, whatever happens to the tree, and keeps no array alive.

    Attributes:
      table: The `TreeTable` behind it.
      columns: The columns that are shown at first.
      series: How values of the rows went over time.
      histograms: How the values inside the rows were distributed over time; the page shows them beside series.
      depth: How many levels are open at first; None: as many as fit.
    """

    def __init__(
        self,
        table: TreeTable,
        columns: Sequence[Column],
        *,
        depth: int | None = None,
        values: dict[int, str] | None = None,
        series: Sequence[Series] = (),
        histograms: Sequence[Histograms] = (),
    ) -> None:
        self.table = table
        self.columns = tuple(columns)
        self.depth = depth
        self._values = values
        self.series = tuple(series)
        self.histograms = tuple(histograms)

    def find(self, query: str) -> list[Row]:
        """The rows that match a query, as in the search box; see `TreeTable.find`."""
        return self.table.find(query)

    def html(self) -> str:
        """The tree as a whole HTML document, which needs nothing beside it."""
        return page(self.table, self.columns, **self._of_page)

    def text(self, *, max_rows: int | None = None, width: int | None = None, color: bool = False) -> str:
        """The tree as aligned text: all of it, or `max_rows` rows, of every subtree the first ones."""
        return text(
            self.table,
            self.columns,
            series=self.series,
            width=width,
            max_rows=max_rows,
            depth=self.depth,
            color=color,
        )

    def json(self) -> str:
        """All rows for programs, see `treeviz.views.json.to_json`."""
        return to_json(self.table, self.columns, self.series)

    def picture(self) -> Picture:
        """The first rows as a picture, for `.svg` and `.png`."""
        return draw(self.table, self.columns, self.series, depth=self.depth)

    def save(self, path: str | Path) -> Path:
        """Write the tree to a file, and return its path.

        The suffix decides: `.html` a page that works offline, `.txt` all rows as text, `.json` all rows
        for programs, `.svg` and `.png` a picture of the first rows (`.png` needs matplotlib).

        Raises:
          ValueError: Any other suffix.
        """
        return files.save(self, Path(path))

    def show(self) -> Path | None:
        """Show the tree: in a notebook below the cell, from a script in the browser.

        Returns:
          The page that was written, or None in a notebook. Where there is no browser to open it in, as
          over ssh, its path is printed.
        """
        return files.show(self)

    @cached_property
    def packed(self) -> bytes:
        """The tree as the front end reads it; see `treeviz.views.payload.pack`."""
        return pack(self.table, self.columns, **self._of_page)

    def stand_in(self, token: str) -> str:
        """The tree as HTML beside the widget of this token: it shows itself only where no widget comes."""
        return stand_in(self.table, self.columns, self.packed, token=token, depth=self.depth, series=self.series)

    @cached_property
    def _fragment(self) -> str:
        return fragment(self.table, self.columns, **self._of_page)

    @property
    def _of_page(self) -> dict[str, Any]:
        return {
            "depth": self.depth,
            "values": self._values,
            "series": self.series,
            "histograms": self.histograms,
        }

    def _repr_html_(self) -> str:
        return self._fragment

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        makers: dict[str, Callable[[], str]] = {"text/plain": self._displayed_text, "text/html": self._repr_html_}
        if not include and not shows_html():  # a terminal's IPython would throw the page away
            del makers["text/html"]
        wanted = [kind for kind in makers if (not include or kind in include) and kind not in (exclude or ())]
        return {kind: makers[kind]() for kind in wanted}

    def __treescope_repr__(self, path: str | None, subtree_renderer: object) -> Any:
        summary = " · ".join((self.table.name, *self.table.headline))
        lines = self.text(max_rows=MAX_ROWS_IN_TERMINAL).split("\n")
        return box(summary, len(self.table), self._fragment, lines, path)

    def __repr__(self) -> str:
        """The first rows, for the terminal; coloured only on a terminal that has colours."""
        return self._first_rows(color=terminal_color(sys.stdout))

    def _displayed_text(self) -> str:
        """The same, but never coloured in a notebook, which keeps it: its kernel says that it has colours."""
        return self._first_rows(color=shell_of_notebook() is None and terminal_color(sys.stdout))

    def _first_rows(self, *, color: bool) -> str:
        return text(
            self.table,
            self.columns,
            series=self.series,
            width=get_terminal_size((100, 24)).columns,
            max_rows=MAX_ROWS_IN_TERMINAL,
            depth=self.depth,
            color=color,
            ascii=terminal_ascii(sys.stdout),
        )
