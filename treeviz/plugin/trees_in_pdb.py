"""A pdb class that prints trees as text, also as a mixin for other debuggers such as IPython's."""

from __future__ import annotations

import os
import pdb
import sys
from collections.abc import Callable
from typing import Any

from treeviz.api import render
from treeviz.plugin.shown import is_primary, is_tree, print_failure


def tree_text(value: Any, expression: str = "tree") -> str | None:
    """The first rows of a tree as text; None if the value is not a tree or rendering fails."""
    try:
        if is_tree(value):
            return repr(render(value, name=expression if is_primary(expression) else f"({expression})"))
    except Exception as error:
        print_failure("no tree is printed", error)
    return None


class TreesInPdb:
    """A mixin for pdb: `p`, `pp` and bare expressions print trees."""

    def displayhook(self, obj: Any) -> None:
        text = tree_text(obj)
        if text is None:
            super().displayhook(obj)  # type: ignore[misc]
        else:
            self.message(text)  # type: ignore[attr-defined]

    def _msg_val_func(self, arg: str, func: Callable[[Any], str]) -> None:
        def write(value: Any) -> str:
            text = tree_text(value, arg.strip())
            return func(value) if text is None else text

        super()._msg_val_func(arg, write)  # type: ignore[misc]


class Pdb(TreesInPdb, pdb.Pdb):
    """pdb whose `p params`, `pp params` and `params` print a tree as `treeviz.render` does.

    Tracers in a jitted function are shown by shape and dtype; nothing is computed. Use it with
    `pytest --pdb --pdbcls=treeviz.pdb:Pdb`.
    """


def set_trace(*, header: str | None = None) -> None:
    """Stop in the debugger, as `breakpoint()` does with `PYTHONBREAKPOINT=treeviz.pdb.set_trace`."""
    debugger = Pdb()
    if header is not None:
        debugger.message(header)
    frame = sys._getframe().f_back
    debugger.set_trace(frame)


class InShell:
    """Makes `%debug`, `%pdb` and `breakpoint()` of an IPython shell print trees, until it is removed."""

    def __init__(self, shell: Any) -> None:
        self._tracebacks = shell.InteractiveTB
        self._before = self._tracebacks.debugger_cls
        self._ours = type(self._before.__name__, (TreesInPdb, self._before), {"__doc__": self._before.__doc__})
        self._set(self._ours)
        self._has_hook = sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT")
        if self._has_hook:
            sys.breakpointhook = set_trace

    def remove(self) -> None:
        if self._tracebacks.debugger_cls is self._ours:
            self._set(self._before)
        if self._has_hook and sys.breakpointhook is set_trace:
            sys.breakpointhook = sys.__breakpointhook__

    def _set(self, cls: type) -> None:
        self._tracebacks.debugger_cls, self._tracebacks.pdb = cls, None  # drop the debugger that IPython has kept
