"""The magics `%tree expression` and `%%tree_errors`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any


class Magics:
    """The magics of a shell, until they are removed; then those that had the names before are back."""

    def __init__(self, shell: Any, render: Callable[..., Any]) -> None:
        def tree(line: str) -> Any:
            """Show the pytree that an expression evaluates to: %tree params["layers"]"""
            expression = line.strip()
            if not expression:
                print('%tree shows the pytree that an expression evaluates to: %tree params["layers"]')
                return None
            return render(shell.ev(expression), name=expression if is_primary(expression) else f"({expression})")

        def tree_errors(line: str, cell: str) -> None:
            """Run a cell, and say below an error of JAX which leaves of which tree it is about."""
            from treeviz.explainer.explain import explain_errors

            explained = explain_errors()
            try:
                shell.run_cell(cell)
            finally:
                explained.stop()

        self._magics = shell.magics_manager.magics
        ours = {("line", "tree"): tree, ("cell", "tree_errors"): tree_errors}
        self._before = {place: self._magics[place[0]].get(place[1]) for place in ours}
        for (kind, name), function in ours.items():
            shell.register_magic_function(function, kind, name)

    def remove(self) -> None:
        for (kind, name), before in self._before.items():
            if before is None:
                self._magics[kind].pop(name, None)
            else:
                self._magics[kind][name] = before


def is_primary(expression: str) -> bool:
    """Whether a subscript binds to all of it: "model.layers[0]", but not "a + b"."""
    node = ast.parse(expression, mode="eval").body
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
