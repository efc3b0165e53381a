"""The default display of an IPython shell: trees through treeviz, all else as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treeviz.plugin.shown import is_shown, name_of, tell


class DefaultDisplay:
    """Stands before the `format` of a shell's display formatter, until it is removed.

    It comes first whoever else registers formatters, before or after it, such as `treescope.register_as_default`.

    Args:
      render: Makes the view of a tree, from the tree and its name.
      before_others: Called before another display is asked.
    """

    def __init__(self, shell: Any, render: Callable[[Any, str], Any], before_others: Callable[[], None]) -> None:
        self._shell, self._render, self._before_others = shell, render, before_others
        self._formatter = shell.display_formatter
        self._before = self._formatter.format
        self._is_on = True
        self._formatter.format = self._ours = self._format

    def remove(self) -> None:
        """Leave all as it was; what others have put before it since then stays, and is passed through."""
        self._is_on = False
        if vars(self._formatter).get("format") is self._ours:
            del self._formatter.format
            if self._formatter.format != self._before:  # another's, that was there before
                self._formatter.format = self._before

    def _format(self, value: Any, include: Any = None, exclude: Any = None) -> Any:
        if self._is_on:
            try:
                if is_shown(value):
                    view = self._render(value, name_of(value, self._shell.user_ns))
                    return view._repr_mimebundle_(include=include, exclude=exclude), {}
            except Exception as error:
                tell("no tree is shown", error)
            self._before_others()
        return self._before(value, include=include, exclude=exclude)
