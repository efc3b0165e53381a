"""An IPython shell inside this process, as in a notebook."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ipython() -> Iterator[Any]:
    """The shell that `get_ipython()` gives, and at the end none."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    before = set(vars(builtins))
    config = Config({"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}})
    shell = InteractiveShell.instance(config=config)
    shell.display_formatter.active_types = ["text/plain", "text/html"]
    try:
        yield shell
    finally:
        InteractiveShell.clear_instance()
        for name in set(vars(builtins)) - before:
            delattr(builtins, name)
