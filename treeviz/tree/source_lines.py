"""Source files that are notebook cells or installed. The only module that detects IPython; it never imports it."""

from __future__ import annotations

import sys
from typing import Any


def ipython_shell() -> Any | None:
    """The IPython shell of this process, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


def cell_of(file: str) -> str:
    """The name of a cell in IPython's own tracebacks, "Cell In[3]"; "" if the file is not a cell."""
    label = getattr(getattr(ipython_shell(), "compile", None), "format_code_name", lambda _: None)(file)
    return " ".join(label) if label else ""


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return "-packages/" in file.replace("\\", "/")
