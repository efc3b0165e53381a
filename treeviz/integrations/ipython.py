"""The line magic `%tree expression`, which `%load_ext treeviz` adds. IPython is not imported."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

_replaced: dict[int, Any] = {}  # by the id of the shell: its earlier `%tree`, if any


def add_magic(shell: Any, render: Callable[..., Any]) -> None:
    """Add the line magic `%tree expression`, which calls `render` with the value of the expression. Idempotent."""

    def tree(line: str) -> Any:
        """Show the pytree that an expression evaluates to: %tree params["layers"]"""
        expression = line.strip()
        if not expression:
            print('%tree shows the pytree that an expression evaluates to: %tree params["layers"]')
            return None
        return render(shell.ev(expression), name=expression if _is_primary(expression) else f"({expression})")

    _replaced.setdefault(id(shell), shell.magics_manager.magics["line"].get("tree"))
    shell.register_magic_function(tree, "line", "tree")


def remove_magic(shell: Any) -> None:
    """Remove `%tree`, and restore the magic that had that name before. Idempotent."""
    if id(shell) not in _replaced:
        return
    magics, before = shell.magics_manager.magics["line"], _replaced.pop(id(shell))
    if before is None:
        magics.pop("tree", None)
    else:
        magics["tree"] = before


def _is_primary(expression: str) -> bool:
    """Whether a subscript binds to all of it: "model.layers[0]", but not "a + b"."""
    node = ast.parse(expression, mode="eval").body
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
