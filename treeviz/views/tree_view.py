"""TreeView: the result of `render`, which displays itself in notebooks, terminals and files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from treeviz.tree.runtime import computed_once
from treeviz.tree.table import Row
from treeviz.tree.text import guarded
from treeviz.views.html.page import fallback, fragment, page
from treeviz.views.html.payload import pack
from treeviz.views.text.terminal import glyphs_of, terminal_color
from treeviz.views.text.text import lines, text
from treeviz.views.view import Content, View, open_page, publish, shell_of_notebook, shows_html, write

if TYPE_CHECKING:
    from treeviz.views.picture.draw import Picture

# A tree view inside the output of treescope: a foldable box.

# Pixels. treescope sizes its frame by the content, which therefore needs a fixed size.
WIDTH, MIN_HEIGHT, MAX_HEIGHT = 960, 320, 600
_HEAD, _ROW = 110, 22


def box(name: str, summary: str, n_rows: int, fragment: str, lines: Sequence[str], path: str | None) -> Any:
    """What `__treescope_repr__` returns: NotImplemented if treescope has moved what it is made of.

    Args:
      name: What is shown: "TreeView".
      summary: The text of the foldable line.
      n_rows: The number of rows of the tree, for the height of the box.
      fragment: The HTML of the view.
      lines: The view as text, for treescope's text output.
      path: treescope's path of the object, or None.
    """
    return guarded(lambda: _box(name, summary, n_rows, fragment, lines, path), lambda _: NotImplemented)


def _box(name: str, summary: str, n_rows: int, fragment: str, lines: Sequence[str], path: str | None) -> Any:
    from treescope import rendering_parts as parts

    written = parts.on_separate_lines([parts.text(line) for line in lines])
    height = min(MAX_HEIGHT, max(MIN_HEIGHT, _HEAD + _ROW * n_rows))
    sized = f'<div style="width:{WIDTH}px;height:{height}px;overflow:auto">{fragment}</div>'
    frame = parts.embedded_iframe(sized, fallback_in_text_mode=written)
    return parts.build_custom_foldable_tree_node(
        label=parts.text(f"<{name} {summary}"),
        contents=parts.siblings(
            parts.fold_condition(collapsed=parts.text(" …"), expanded=parts.indented_children([frame])),
            parts.text(">"),
        ),
        path=path,
        expand_state=parts.ExpandState.EXPANDED,
    )


MAX_ROWS = 60  # in a terminal, a table of Markdown, a diagram


class TreeView(View):
    """A snapshot of a pytree: a page in a notebook, text in a terminal, a file on request.

    It does not follow changes of the tree, and keeps no array alive.

        view = treeviz.render({"w": jnp.ones((3, 4))})
        view.save("tree.html")
        view.find("shape:3,*")

    Attributes:
      table: The `TreeTable` with one row for each node.
      columns: The columns that are shown at first.
      depth: How many levels are open at first; None: as many as fit.
      whole: Put all rows and columns into a page, whatever its size.
      values: What shows the values of some rows, by row number: HTML documents, mostly; see `View`.
      series: How values of the rows changed over the steps.
      histograms: How the values inside the rows were distributed over the steps; shown only with series.
      scalars: Series of one row, which stand above the rows of a page with series.
    """

    def find(self, query: str) -> list[Row]:
        """The rows that match a query, as in the search box; see `TreeTable.find`."""
        return self.table.find(query)

    def html(self) -> str:
        """The tree as a self-contained HTML document, which needs no network.

        It is UTF-8: `view.save("tree.html")` writes it so; `Path.write_text` on Windows needs `encoding="utf-8"`.
        """
        return page(self)

    def text(
        self,
        *,
        max_rows: int | None = None,
        width: int | None = None,
        color: bool = False,
        fold: bool = True,
        budget: int | None = None,
    ) -> str:
        """The tree as aligned text.

        Args:
          max_rows: The most rows: those with a finding, NaN or an error, the largest leaf, then the first ones of every
            subtree. None: all.
          width: The most columns of a line: names come first, columns that do not fit are left out. None: no limit.
          color: Write ANSI colours.
          fold: Show three or more siblings that are alike, such as layers, as one row: `[0…79] ×80`. Below it stands
            one of them, with the range of every number over all; those with a finding, NaN or an error have rows of
            their own. False: every row.
          budget: The most characters, for a program or a model that reads: the most telling rows, in the order of
            `max_rows`, so many as fit. The headline with its caveats and the root are there in any case.

        A log line, a prompt:

            treeviz.render({"w": jnp.ones((3, 4))}).text(budget=2000)
        """
        return text(self.brief, max_rows=max_rows, width=width, color=color, fold=fold, budget=budget)

    def lines(self, width: int | None = None) -> Iterator[str]:
        """The lines of `text(width=width, fold=False)`, one after the other: 100,000 leaves would take 60 MB."""
        return lines(self.brief, width)

    def json(self) -> str:
        """All rows as JSON; `treeviz.views.exports.to_json` documents the format."""
        from treeviz.views.exports import to_json

        return to_json(self)

    def to_records(self) -> list[dict[str, Any]]:
        """A dict for each row, depth first: its path, type, shape, dtype, sizes, and the value of each column.

            import pandas
            pandas.DataFrame(treeviz.render({"w": jnp.ones((3, 4))}, stats=True).to_records())

        A node's values are those of all below it: its "elements" are their sum. A missing value is NaN. Polars takes
        the same list.
        """
        from treeviz.views.exports import to_records

        return to_records(self)

    def to_pandas(self, series: str | None = None) -> Any:
        """The same as a `pandas.DataFrame`; or a series of the view, in a row for each node and step.

            treeviz.render({"w": jnp.ones((3, 4))}).to_pandas().set_index("path")

        Args:
          series: One of `view.series`, as "grads.norm". The columns are "first_step", "step", "path" (as categories),
            "value", the last of these steps, "low" and "high" in them, and whether a number was "nonfinite".

        Raises:
          ImportError: pandas is not installed.
          LookupError: The view has no such series.
        """
        from treeviz.tree.frame import data_frame
        from treeviz.views.exports import to_frame

        return data_frame(to_frame(self, series))

    def markdown(self, max_rows: int = MAX_ROWS) -> str:
        """The first rows as a table of Markdown, for a report or a pull request.

        treeviz.render({"w": jnp.ones((3, 4))}).markdown()
        """
        from treeviz.views.exports import markdown

        return markdown(self.brief, max_rows)

    def mermaid(self, max_rows: int = MAX_ROWS) -> str:
        """The first rows as a diagram of Mermaid, which GitHub draws between ```mermaid and ```.

        treeviz.render({"w": jnp.ones((3, 4))}).mermaid()
        """
        from treeviz.views.exports import mermaid

        return mermaid(self.brief, max_rows)

    def picture(self, width: str | None = None) -> Picture:
        """The first rows as a picture, for `.svg` and `.png`; see `save`."""
        from treeviz.views.picture.draw import draw, inches_of

        return draw(self.brief, inches=None if width is None else inches_of(width))

    def _drawn(self, kind: str, width: str | None) -> Content:
        from treeviz.views.picture import draw

        return getattr(draw, kind)(self.picture(width))

    def save(self, path: str | Path, *, width: str | None = None) -> Path:
        """Write the tree to a file, and return its path.

        The suffix chooses the format: `.html` a page that works offline, `.txt` all rows as text, `.json` all rows for
        programs, `.svg` and `.png` a picture of the first rows (`.png` needs matplotlib), `.md` and `.mmd` the same as
        a table of Markdown and a diagram of Mermaid.

        The write is atomic: on an error the previous file is unchanged. A picture says in words what is to be seen, as
        title and description, and beside the rows of a run it has a heat map.

        Args:
          width: Of a picture on paper, as "84mm" or "3.3in": text is 7 points high, and columns that do not fit are
            left out.

        Raises:
          ValueError: Any other suffix, or a width that is none.
          ImportError: The suffix is `.png`, and matplotlib is not installed.
        """
        return write(Path(path), self.outputs(width))

    def outputs(self, width: str | None = None) -> dict[str, Callable[[], Content]]:
        """What `save` writes, by suffix."""
        return {
            ".html": self.html,
            ".txt": lambda: (f"{line}\n" for line in self.lines()),
            ".json": lambda: self.json() + "\n",
            ".svg": lambda: self._drawn("svg", width),
            ".png": lambda: self._drawn("png", width),
            ".md": self.markdown,
            ".mmd": self.mermaid,
        }

    def show(self) -> Path | None:
        """Show the tree below the cell of a notebook, or from a script in the browser.

        Returns:
          The path of the page, or None in a notebook. Without a browser, as over ssh, the path is printed.
        """
        if shell_of_notebook() is None:
            return open_page(self.table.name, self.html)
        publish(self._repr_mimebundle_(include=["text/plain", "text/html"]), {})
        return None

    @computed_once
    def packed(self) -> bytes:
        """The tree as the front end reads it; see `treeviz.views.html.payload.pack`."""
        return pack(self)

    def fallback(self, token: str) -> str:
        """The HTML that a notebook stores with a widget, shown only if the widget with this token does not appear."""
        return fallback(self, self.packed, token=token)

    @computed_once
    def _fragment(self) -> str:
        return fragment(self)

    def _repr_html_(self) -> str:
        return self._fragment

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        makers: dict[str, Callable[[], str]] = {"text/plain": self._displayed_text, "text/html": self._repr_html_}
        if not include and not shows_html():  # IPython in a terminal would discard the page
            del makers["text/html"]
        wanted = [kind for kind in makers if (not include or kind in include) and kind not in (exclude or ())]
        return {kind: makers[kind]() for kind in wanted}

    def __treescope_repr__(self, path: str | None, subtree_renderer: object) -> Any:
        lines = self.text(max_rows=MAX_ROWS).split("\n")
        return box(type(self).__name__, self.title, len(self.table), self._fragment, lines, path)

    def __repr__(self) -> str:
        """The first rows in the width of the terminal, in colour if it has colours."""
        return self._first_rows(color=terminal_color(sys.stdout))

    def _displayed_text(self) -> str:
        """The same, but never coloured in a notebook, which stores it: ipykernel sets FORCE_COLOR."""
        return self._first_rows(color=shell_of_notebook() is None and terminal_color(sys.stdout))

    def _first_rows(self, *, color: bool) -> str:
        return text(
            self.brief,
            width=get_terminal_size((100, 24)).columns,
            max_rows=MAX_ROWS,
            color=color,
            glyphs=glyphs_of(sys.stdout),
            fold=True,
        )
