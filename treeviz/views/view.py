"""View: a table with the options of its display; the shell that displays it; and writing files and opening pages."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from treeviz.tree.facts import Column
from treeviz.tree.runtime import computed_once, ipython_shell
from treeviz.tree.series import Histograms, Series, with_steps
from treeviz.tree.table import TreeTable


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """A table with the options of its display. Every output is a function of a view.

    Attributes:
      table: One row for each node.
      columns: The columns to show first, in this order. The page also offers the table's other columns.
      depth: The number of levels that are open at first; None: as many as fit.
      whole: Put all rows and columns into a page of any size.
      values: Displays of the values of some rows, by row number: HTML documents, which the page runs in a sandbox, or
        drawings of `treeviz.analysis.details`, which the page draws itself.
      series: Values of the rows over the steps. A series without steps is left out.
      histograms: Distributions of the values inside the rows over the steps; shown only with series.
      scalars: Series of one row, shown above the rows of a page with series.
      diff: Additional contents of a page that compares trees; see `treeviz.differ`.
      footer: A line below the rows: what folding has left out.
    """

    table: TreeTable
    columns: Sequence[Column] = ()
    _: KW_ONLY
    depth: int | None = None
    whole: bool = False
    values: Mapping[int, str | Mapping[str, Any]] | None = None
    series: Sequence[Series] = ()
    histograms: Sequence[Histograms] = ()
    scalars: Sequence[Series] = ()
    diff: Mapping[str, Any] | None = None
    footer: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "series", tuple(with_steps(self.series)))
        object.__setattr__(self, "histograms", tuple(self.histograms))
        object.__setattr__(self, "scalars", tuple(with_steps(self.scalars)))

    @property
    def brief(self) -> View:
        """The view that texts, pictures and the static rows of a page show."""
        return self

    @computed_once
    def part(self) -> str:
        """The front end that its page needs in addition to the tree, one of `PARTS` of views/html/bundle.py.

        That of differences also shows findings.
        """
        if not all(isinstance(shown, str) for shown in (self.values or {}).values()):
            return "drawn"
        if self.series:
            return "series"
        formats = ("histogram", "number")[: 2 - (self.diff is not None)]  # whose numbers are no statistics of arrays
        has_values = bool(self.values) or any(
            column.format in formats or column.name.endswith(("norm", "rms", ".dtype"))
            for column in (*self.columns, *self.table.columns.values())
        )
        if self.diff is not None or any(note.severity for notes in self.table.notes.values() for note in notes):
            return "checked" if has_values else "diff"
        return "values" if has_values else ""

    @property
    def columns_without_last_value(self) -> tuple[Column, ...]:
        """The columns without the last values of the first series, which are shown next to its sparklines."""
        source, _, statistic = self.series[0].name.rpartition(".") if self.series else ("", "", "")
        return tuple([column for column in self.columns if not source or column.name != f"{source}_{statistic}"])

    @property
    def title(self) -> str:
        """The tree's name and headline in one line."""
        return " · ".join((self.table.name, *self.table.headline))


# The IPython shell of a notebook or terminal, if any; IPython is never imported


def shell_of_notebook() -> Any | None:
    """The IPython shell if it runs in a kernel, so that outputs appear below a cell; otherwise None."""
    shell = ipython_shell()
    return shell if getattr(shell, "kernel", None) is not None else None


def shows_html() -> bool:
    """Whether HTML is displayed. IPython in a terminal shows only text."""
    formatter = getattr(ipython_shell(), "display_formatter", None)
    return "text/html" in getattr(formatter, "active_types", ["text/html"])


def publish(
    data: Mapping[str, Any], metadata: Mapping[str, Any], *, display_id: str | None = None, update: bool = False
) -> None:
    """Send a MIME bundle to the running cell, or with `update` to the output with this `display_id`."""
    shell = ipython_shell()
    if shell is not None:
        transient = {"display_id": display_id} if display_id else {}
        shell.display_pub.publish(data=dict(data), metadata=dict(metadata), transient=transient, update=update)


def outputs_share_a_page() -> bool:
    """Whether a script in one output can access the others; in Colab each output is a separate frame."""
    return "google.colab" not in sys.modules


# Write content to a file, or open it in the browser

# pandas writes these formats.
_TABLES = {
    ".csv": "to_csv({!r})",
    ".feather": "to_feather({!r})",
    ".jsonl": "to_json({!r}, orient='records', lines=True)",
    ".parquet": "to_parquet({!r})",
}
Content = str | bytes | Iterable[str]  # parts, for a text too long to hold at once


def write(path: Path, makers: Mapping[str, Callable[[], Content]]) -> Path:
    """Write the content for the suffix of `path`, and return `path`.

    The write is atomic: on an error the previous file is unchanged. A symbolic link is followed.

    Args:
      makers: A function that returns the content, for each suffix (".html"). Text is encoded as UTF-8.

    Raises:
      ValueError: `makers` lacks the suffix.
      OSError: The file cannot be written.
    """
    suffix = path.suffix.lower()
    make = makers.get(suffix)
    if make is None:
        instead = "For a page, name it 'tree.html'."
        if suffix in _TABLES:
            instead = f"Instead of .save(…), write .to_pandas().{_TABLES[suffix].format(str(path))}"
        known = ", ".join(makers)
        raise ValueError(f"save: the suffix of {path.name!r} is {path.suffix!r}; treeviz writes {known}. {instead}")
    content = make()
    _replace(Path(os.path.realpath(path)), [content] if isinstance(content, str | bytes) else content)
    return path


def open_page(name: str, html: Callable[[], str]) -> Path:
    """Write a page to a new temporary folder, open it in the browser, and return its path.

    The folder is not deleted, since the browser may read the page later. Over ssh or without a display, the path is
    printed instead.
    """
    import webbrowser

    stem = re.sub(r"\W+", "-", name).strip("-")[:40] or "tree"
    page = write(Path(tempfile.mkdtemp(prefix="treeviz-")) / f"{stem}.html", {".html": html})
    # Without a display on Linux, `webbrowser` would start a text browser that takes over the terminal.
    has_browser = sys.platform in ("win32", "darwin") or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    )
    if os.environ.get("SSH_CONNECTION") or not has_browser or not webbrowser.open(page.as_uri()):
        print(page)
    return page


def _replace(path: Path, parts: Iterable[str | bytes]) -> None:
    temporary = path.with_name(f".{path.name[:80]}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:  # "x" creates it with the default permissions, unlike tempfile
            for part in parts:
                # UTF-8 cannot encode a lone surrogate, so it is written as an escape sequence.
                file.write(part.encode("utf-8", "backslashreplace") if isinstance(part, str) else part)
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the path that the user gave
        temporary.unlink(missing_ok=True)
        raise
