"""A tree view in a file, or on the screen."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from treeviz.views.notebook import shell_of_notebook

if TYPE_CHECKING:
    from treeviz.views.tree_view import TreeView

SUFFIXES = (".html", ".txt", ".json", ".svg", ".png")


def save(view: TreeView, path: Path) -> Path:
    """Write the view in the format that the suffix names, and return the path.

    The file is there as a whole or not at all: what stood there before is replaced in one step.

    Raises:
      ValueError: The suffix is none of `SUFFIXES`.
      ImportError: A PNG is asked for, and matplotlib is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"save: the suffix of {path.name!r} is {path.suffix!r}; treeviz writes {', '.join(SUFFIXES)}. "
            "For a page, name it 'tree.html'."
        )
    if suffix == ".png":
        from treeviz.views.pixels import png

        data = png(view.picture())
    elif suffix == ".svg":
        from treeviz.views.picture import svg

        data = _encoded(svg(view.picture()))
    elif suffix == ".html":
        data = _encoded(view.html())
    elif suffix == ".json":
        data = _encoded(view.json() + "\n")
    else:
        data = _encoded(view.text() + "\n")
    _replace(Path(os.path.realpath(path)), data)
    return path


def show(view: TreeView) -> Path | None:
    """Show the view below the cell of a notebook (None), or as a page in the browser (its path).

    The page lies in a folder of its own, which is not taken away: the browser may read it later. Over
    ssh, or where there is no display, its path is printed instead.
    """
    shell = shell_of_notebook()
    if shell is not None:
        _display(view, shell)
        return None
    name = re.sub(r"\W+", "-", view.table.name).strip("-")[:40] or "tree"
    page = save(view, Path(tempfile.mkdtemp(prefix="treeviz-")) / f"{name}.html")
    if not (_has_browser() and webbrowser.open(page.as_uri())):
        print(page)
    return page


def _display(view: TreeView, shell) -> None:
    bundle = view._repr_mimebundle_(include=["text/plain", "text/html"])
    shell.display_pub.publish(data=bundle, metadata={})


def _has_browser() -> bool:
    """Whether a browser can open where the user sits.

    On a Linux machine without a display `webbrowser` would find a browser for the terminal, which takes it
    over; BROWSER says that somebody wants one.
    """
    if os.environ.get("SSH_CONNECTION"):
        return False
    has_display = sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return has_display or bool(os.environ.get("BROWSER"))


def _encoded(text: str) -> bytes:
    # A lone surrogate has no UTF-8.
    return text.encode("utf-8", "backslashreplace")


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name[:80]}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:  # with the permissions of any new file
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
