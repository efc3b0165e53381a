"""A tree view in a file, or on the screen."""

from __future__ import annotations

from pathlib import Path


def save(view, path: Path) -> Path:
    if path.suffix == ".html":
        path.write_text(view.html(), encoding="utf-8")
    return path


def show(view) -> Path | None:
    raise NotImplementedError
