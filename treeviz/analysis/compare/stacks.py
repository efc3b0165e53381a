"""Layers of one tree against one stack of them in the other, and the code that converts one into the other."""

from __future__ import annotations

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.difference import Hint
from treeviz.analysis.compare.fingerprints import axis_of_stack
from treeviz.analysis.compare.nodes import MAPPINGS


def stacked(sides: tuple[Side, Side], mine: int, other: int) -> Hint | None:
    """Whether one of two nodes is a list of layers, and the other one stack of them."""
    left, right = sides
    for name, there, (side, row), (stack, one) in (
        ("first", "other", (left, mine), (right, other)),
        ("other", "first", (right, other), (left, mine)),
    ):
        layers = side.table.children(row)
        axis = axis_of_stack(stack, one, side, layers) if len(layers) > 1 else None
        if axis is not None:
            n, node = len(layers), left.table[mine].expression
            made = f"jax.tree.map({stacking(axis)}, *"
            code = f"[jax.tree.map(lambda x: x[{':, ' * axis}i], {node}) for i in range({n})]"
            text = f"{_text(n, axis, name, there)}, as made by {made}layers)"
            return Hint(text, f"{made}{node})" if name == "first" else code)
    return None


def stacked_dict(sides: tuple[Side, Side], row: int, other: int) -> Hint | None:
    """Whether all children of a node of the first tree are layers, and the other tree has one stack of them there."""
    (left, right), layers = sides, sides[0].table.children(row)
    axis = axis_of_stack(right, other, left, layers) if other != NONE else None
    if axis is None:
        return None
    n, node = len(layers), left.table[row].expression
    names = [left.table.key(each).segment for each in layers]
    start = names[0].rstrip("0123456789")
    is_numbered = set(names) == {f"{start}{i}" for i in range(n)} and type(left.nodes[row]) in MAPPINGS
    in_order = f"*({node}[{start!r} + str(i)] for i in range({n}))"
    return Hint(_text(n, axis, "first", "other"), f"jax.tree.map({stacking(axis)}, {in_order})" if is_numbered else "")


def _text(n: int, axis: int, here: str, there: str) -> str:
    along = f" along axis {axis}" if axis else ""
    return f"{n} layers in the {here}, and one stack of {n} such layers{along} in the {there}"


def stacking(axis: int) -> str:
    """Python of a function that stacks arrays."""
    return f"lambda *xs: jnp.stack(xs{f', axis={axis}' if axis else ''})"
