"""Keys and key paths: what people read, copy and paste. Labels, never identities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Key(NamedTuple):
    """One step of a key path.

    Attributes:
      label: What stands in the tree: "kernel", ".mu", "[3]".
      keystr: What `jax.tree_util.keystr` writes for it: "['kernel']", ".mu", "[3]".
      segment: What a query's glob sees: "kernel", "mu", "3".
      steps: How Python gets there. A string is put behind the expression of the node; a number n means
        `treeviz.child(node, n)`, for nodes that have no notation of their own.
    """

    label: str
    keystr: str
    segment: str
    steps: tuple[str | int, ...]


def index_key(position: int) -> Key:
    """The key of the element at `position` of a list or tuple."""
    text = f"[{position}]"
    return Key(text, text, str(position), (text,))


def python_expression(name: str, path: Iterable[Key]) -> str:
    """Python that goes from the tree called `name` along `path`."""
    expression = name
    for key in path:
        for step in key.steps:
            expression = expression + step if isinstance(step, str) else f"treeviz.child({expression}, {step})"
    return expression
