"""Write content to a file, or open it in the browser."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Content = str | bytes | Iterable[str]  # parts, as of a text that is too long to be made at once


def write(path: Path, makers: Mapping[str, Callable[[], Content]]) -> Path:
    """Write the content for the suffix of `path`, and return `path`.

    The write is atomic: on an error the previous file is unchanged. A symbolic link is followed.

    Args:
      makers: For each suffix (".html") a function that returns the content; text is encoded as UTF-8.

    Raises:
      ValueError: `makers` has no such suffix.
      OSError: The file cannot be written.
    """
    make = makers.get(path.suffix.lower())
    if make is None:
        raise ValueError(
            f"save: the suffix of {path.name!r} is {path.suffix!r}; treeviz writes {', '.join(makers)}. "
            "For a page, name it 'tree.html'."
        )
    content = make()
    _replace(Path(os.path.realpath(path)), [content] if isinstance(content, str | bytes) else content)
    return path


def open_page(name: str, html: Callable[[], str]) -> Path:
    """Write a page to a new temporary folder, open it in the browser, and return its path.

    The folder is not deleted, since the browser may read the page later. Over ssh, or without a display, the path is
    printed instead.
    """
    stem = re.sub(r"\W+", "-", name).strip("-")[:40] or "tree"
    page = write(Path(tempfile.mkdtemp(prefix="treeviz-")) / f"{stem}.html", {".html": html})
    if not (_has_browser() and webbrowser.open(page.as_uri())):
        print(page)
    return page


def _has_browser() -> bool:
    """Whether a browser can open on the user's screen.

    Without a display on Linux, `webbrowser` would start a text browser that takes over the terminal, so
    BROWSER must be set.
    """
    if os.environ.get("SSH_CONNECTION"):
        return False
    has_display = sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return has_display or bool(os.environ.get("BROWSER"))


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
            error.filename = str(path)  # what was asked for
        temporary.unlink(missing_ok=True)
        raise
