"""The cells of a notebook, which Python knows as files with a number for a name. IPython is never imported for it."""

from __future__ import annotations

import sys


def cell_of(file: str) -> str:
    """ "Cell In[3]", as IPython's own tracebacks say; empty if the file is no cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    label = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return " ".join(label) if label else ""
