"""ONE FILE PER LIBRARY: what treeviz knows about other people's trees.

A file is imported when its library has been imported by somebody else, never before.
"""

from __future__ import annotations

import sys
from importlib import import_module

# The library's module, which has to be there -> our file about it.
ADAPTERS: dict[str, str] = {}
_loaded: set[str] = set()


def load() -> None:
    """Let the libraries that this process uses say how their nodes and leaves look."""
    for library, adapter in ADAPTERS.items():
        if library in sys.modules and adapter not in _loaded:
            import_module(f"treeviz.integrations.{adapter}")
            _loaded.add(adapter)
