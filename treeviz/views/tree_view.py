"""TreeView: the result of `render`, which displays itself in notebooks, terminals, files and treescope."""

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
from treeviz.views.text.terminal import glyphs_of, rows_of, terminal_color
from treeviz.views.text.text import lines, text
from treeviz.views.view import Content, View, open_page, publish, shell_of_notebook, shows_html, write

if TYPE_CHECKING:
    from treeviz.views.picture import Picture

# A tree view inside the output of treescope: a foldable box

# Pixels. treescope sizes its frame by the content, so the content needs a fixed size.
WIDTH, MIN_HEIGHT, MAX_HEIGHT = 960, 320, 600
_HEAD, _ROW = 110, 22


def box(name: str, summary: str, n_rows: int, fragment: str, lines: Sequence[str], path: str | None) -> Any:
    """The result of `__treescope_repr__`; NotImplemented if this version of treescope lacks a part that it needs.

    Args:
      name: The name of the class: "TreeView".
      summary: The text of the foldable line.
      n_rows: The number of rows of the tree, which determines the height of the box.
      fragment: The HTML of the view.
      lines: The view as text, for treescope's text output.
      path: treescope's path of the object, or None.
    """

    def made() -> Any:
        from treescope import rendering_parts as parts

        written = parts.on_separate_lines([parts.text(line) for line in lines])
        height = min(MAX_HEIGHT, max(MIN_HEIGHT, _HEAD + _ROW * n_rows))
        sized = f'<div style="width:{WIDTH}px;height:{height}px;overflow:auto">{fragment}</div>'
        frame = parts.embedded_iframe(sized, fallback_in_text_mode=written)
        inside = parts.fold_condition(collapsed=parts.text(" …"), expanded=parts.indented_children([frame]))
        return parts.build_custom_foldable_tree_node(
            label=parts.text(f"<{name} {summary}"),
            contents=parts.siblings(inside, parts.text(">")),
            path=path,
            expand_state=parts.ExpandState.EXPANDED,
        )

    return guarded(made, lambda _: NotImplemented)


MAX_ROWS = 60  # in a terminal, a Markdown table, a diagram


class TreeView(View):
    """A snapshot of a pytree: a page in a notebook, text in a terminal, a file on request.

    It does not change when the tree changes, and keeps no references to arrays.

        view = treeviz.render({"w": jnp.ones((3, 4))})
        view.save("tree.html")
        view.find("shape:3,*")

    Attributes:
      table: The `TreeTable` with one row for each node.
      columns: The columns to show first.
      depth: The number of levels that are open at first; None: as many as fit.
      whole: Put all rows and columns into a page of any size.
      values: Displays of the values of some rows, by row number, usually HTML documents; see `View`.
      series: Values of the rows over the steps.
      histograms: Distributions of the values inside the rows over the steps; shown only with series.
      scalars: Series of one row, shown above the rows of a page with series.
    """

    def find(self, query: str) -> list[Row]:
        """The rows that match a query of the search box; see `TreeTable.find`."""
        return self.table.find(query)

    def html(self) -> str:
        """The tree as a self-contained HTML document that works offline.

        Its encoding is UTF-8, which `view.save("tree.html")` uses. `Path.write_text` on Windows needs
        `encoding="utf-8"`.
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
          max_rows: The maximum number of rows: first those with a finding, NaN or an error, then the largest leaf, then
            the first rows of every subtree. None: all rows.
          width: The maximum width of a line: names have priority, and columns that do not fit are left out. None: no
            limit.
          color: Write ANSI colours.
          fold: Collapse three or more identical siblings, such as layers, into one row: `[0…79] ×80`. One of them is
            shown below it, with the range of every number over all of them. Siblings with a finding, NaN or an error
            keep their own rows. A subtree that shows the same as a sibling, such as Adam's `nu`, is one row, "like mu".
            Three or more fields that are None are one line below the tree. False: show every row.
          budget: The maximum number of characters, for a program or a language model: as many rows as fit, in the
            order of `max_rows`. The headline with its caveats and the root are always included.

        For a log line or a prompt:

            treeviz.render({"w": jnp.ones((3, 4))}).text(budget=2000)
        """
        return text(self.brief, max_rows=max_rows, width=width, color=color, fold=fold, budget=budget)

    def lines(self, width: int | None = None) -> Iterator[str]:
        """Iterate over the lines of `text(width=width, fold=False)`, which takes 60 MB for 100,000 leaves."""
        return lines(self.brief, width)

    def json(self) -> str:
        """All rows as JSON; `treeviz.views.exports.to_json` documents the format."""
        from treeviz.views.exports import to_json

        return to_json(self)

    def to_records(self) -> list[dict[str, Any]]:
        """One dict per row, depth first: path, type, shape, dtype, sizes, and the value of each column.

            import pandas
            pandas.DataFrame(treeviz.render({"w": jnp.ones((3, 4))}, stats=True).to_records())

        A node's values cover everything below it: its "elements" are a sum. Missing values are NaN. Polars accepts
        the same list.
        """
        from treeviz.views.exports import to_records

        return to_records(self)

    def to_pandas(self, series: str | None = None) -> Any:
        """`to_records()` as a `pandas.DataFrame`; or a series of the view, with one row per node and step.

            treeviz.render({"w": jnp.ones((3, 4))}).to_pandas().set_index("path")

        Args:
          series: The name of one of `view.series`, such as "grads.norm". The columns are "first_step" and "step" (the
            range of steps), "path" (categorical), "value" (of the last step), "low" and "high" (within the range), and
            "nonfinite" (whether a number was NaN or infinite).

        Raises:
          ImportError: pandas is not installed.
          LookupError: The view does not have this series.
        """
        from treeviz.tree.frame import data_frame
        from treeviz.views.exports import to_frame

        return data_frame(to_frame(self, series))

    def markdown(self, max_rows: int = MAX_ROWS) -> str:
        """The first rows as a Markdown table, for a report or a pull request.

        treeviz.render({"w": jnp.ones((3, 4))}).markdown()
        """
        from treeviz.views.exports import markdown

        return markdown(self.brief, max_rows)

    def mermaid(self, max_rows: int = MAX_ROWS) -> str:
        """The first rows as a Mermaid diagram, which GitHub draws between ```mermaid and ```.

        treeviz.render({"w": jnp.ones((3, 4))}).mermaid()
        """
        from treeviz.views.exports import mermaid

        return mermaid(self.brief, max_rows)

    def picture(self, width: str | None = None) -> Picture:
        """The first rows as a picture, for `.svg` and `.png`; see `save`."""
        from treeviz.views.picture import draw, inches_of

        return draw(self.brief, inches=None if width is None else inches_of(width))

    def _drawn(self, kind: str, width: str | None) -> Content:
        from treeviz.views import picture

        return getattr(picture, kind)(self.picture(width))

    def save(self, path: str | Path, *, width: str | None = None) -> Path:
        """Write the tree to a file, and return its path.

        The suffix selects the format: `.html` is a page that works offline, `.txt` all rows as text, `.json` all rows
        for programs. The first rows are a picture in `.svg` and `.png` (which needs matplotlib), a Markdown table in
        `.md`, and a Mermaid diagram in `.mmd`.

        The write is atomic: on an error the previous file is unchanged. A picture has a title and a description for
        screen readers, and a heat map next to the rows of a run.

        Args:
          width: The width of a picture on paper, such as "84mm" or "3.3in": text is 7 points high, and columns that do
            not fit are left out.

        Raises:
          ValueError: The suffix is unknown, or the width is invalid.
          ImportError: The suffix is `.png`, and matplotlib is not installed.
        """
        return write(Path(path), self.outputs(width))

    def outputs(self, width: str | None = None) -> dict[str, Callable[[], Content]]:
        """The functions that make the content that `save` writes, by suffix."""
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
        """Show the tree below the notebook cell, or in a script, in the browser.

        Returns:
          The path of the page, or None in a notebook. Without a browser, such as over ssh, the path is printed.
        """
        if shell_of_notebook() is None:
            return open_page(self.table.name, self.html)
        publish(self._repr_mimebundle_(include=["text/plain", "text/html"]), {})
        return None

    @computed_once
    def packed(self) -> bytes:
        """The tree in the format of the front end; see `treeviz.views.html.payload.pack`."""
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
        """The first rows in the terminal's width, coloured if the terminal supports it."""
        return self._first_rows(color=terminal_color(sys.stdout))

    def _displayed_text(self) -> str:
        """The first rows as text, never coloured in a notebook, which stores it: ipykernel sets FORCE_COLOR."""
        return self._first_rows(color=shell_of_notebook() is None and terminal_color(sys.stdout))

    def _first_rows(self, *, color: bool) -> str:
        return text(
            self.brief,
            width=get_terminal_size((100, 24)).columns,
            max_rows=rows_of(sys.stdout, MAX_ROWS),
            color=color,
            glyphs=glyphs_of(sys.stdout),
            fold=True,
        )
