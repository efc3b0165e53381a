"""The default display of marimo: trees through treeviz, other values unchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from treeviz.plugin.shown import Wrapper, is_shown, name_of, print_failure
from treeviz.tree.runtime import PrivateName, missing_names, why_missing

# marimo selects formatters by class, but whether a dict is a tree depends on its contents.
PRIVATE = tuple(
    PrivateName(f"marimo._output.formatting:{name}", "trees are not displayed by default")
    for name in ("FORMATTERS.get_formatter", "get_formatter", "try_format")
)


def is_marimo() -> bool:
    """Whether this process is a marimo notebook."""
    return "marimo" in sys.modules and sys.modules["marimo"].running_in_notebook()


class MarimoDisplay(Wrapper):
    """Wraps the `get_formatter` of marimo's formatters. `render` makes the view of a tree, from the tree and its name.

    Raises:
      RuntimeError: This release of marimo has moved its formatters.
    """

    def __init__(self, render: Callable[[Any, str], Any]) -> None:
        missing = missing_names(PRIVATE)
        if missing:
            raise RuntimeError(f"register_as_default: {why_missing(missing)}")
        from marimo._output import formatting

        self._render, self._marimo = render, formatting
        super().__init__(formatting.FORMATTERS, "get_formatter", self._get_formatter)

    def _get_formatter(self, obj: Any) -> Any:
        try:
            if self._is_on and is_shown(obj):
                return self._format
        except Exception as error:
            print_failure("no tree is shown", error)
        return self._before(obj)

    def _format(self, value: Any) -> Any:
        try:
            view: Any = self._render(value, name_of(value, vars(sys.modules["__main__"])))
            formatter: Any = self._marimo.get_formatter(view)
            return formatter(view)
        except Exception as error:
            print_failure("no tree is shown", error)
        self._is_on = False
        try:
            output = self._marimo.try_format(value)
            return output.mimetype, output.data
        finally:
            self._is_on = True
