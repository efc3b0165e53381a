"""How two leaves differ in what is known without reading their values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from treeviz.analysis.compare.nodes import Finding
from treeviz.analysis.facts import shape_text, sharding_text
from treeviz.tree.facts import Facts, Sharding
from treeviz.tree.safe_repr import guarded

REVERSED = "the same axes in reverse order: a transpose?"
_WITHOUT_A_TYPE = ("shape only", "stored", "tracer", "deleted", "placeholder")  # they stand for an array of any type


def transposing(
    shape: tuple[int, ...], other: tuple[int, ...], among: Collection[tuple[int, ...]] = ()
) -> tuple[int, ...] | None:
    """The order of axes by which an array of a shape was transposed to another shape; None if the shapes do not tell.

    Arrays of four axes and more are kernels of convolutions: those of space are last in PyTorch, and first in libraries
    of JAX, and the two others are in reverse order. All others have all axes in reverse order.

    Args:
      among: The only orders to try, if there are any.
    """
    n = len(shape)
    convolutions = ((*range(2, n), 1, 0), (n - 1, n - 2, *range(n - 2)))
    orders = among or (convolutions if n > 3 else [tuple(range(n))[::-1]])
    fitting = [order for order in orders if tuple(shape[i] for i in order) == other]
    return fitting[0] if len(fitting) == 1 else None


def transpose_code(array: str, order: tuple[int, ...], numpy: str = "jnp") -> str:
    is_reversed = order == tuple(range(len(order)))[::-1]
    return f"{numpy}.transpose({array}{'' if is_reversed else f', {order}'})"


def _moved_axis(shape: tuple[int, ...], other: tuple[int, ...]) -> str:
    """The code that moves the one axis that stands elsewhere; "" where the shapes do not tell which."""
    n = len(shape)
    if n != len(other) or n < 3 or sorted(shape) != sorted(other):
        return ""
    moves = [
        (i, k)
        for i in range(n)
        for k in range(n)
        if abs(i - k) != 1 or i < k  # of two neighbors the first moves
        if _moved(shape, i, k) == other
    ]
    return f"one axis stands elsewhere: jnp.moveaxis(x, {moves[0][0]}, {moves[0][1]})?" if len(moves) == 1 else ""


def _moved(shape: tuple[int, ...], i: int, k: int) -> tuple[int, ...]:
    others = shape[:i] + shape[i + 1 :]
    return (*others[:k], shape[i], *others[k:])


class LeafCodes:
    """A code for all facts between which `compare_facts` finds no difference.

    Attributes:
      facts: One of those with each code.
    """

    def __init__(self) -> None:
        self.facts: list[Facts] = []
        self._codes: dict[tuple[Any, ...], int] = {}

    def of(self, facts: Iterable[Facts]) -> list[int]:
        codes = []
        for each in facts:
            key = each.kind, each.type, each.elements, each.bytes, each.shape, each.dtype, each.weak, each.sharding
            code = self._codes.setdefault(key, len(self.facts))
            if code == len(self.facts):
                self.facts.append(each)
            codes.append(code)
        return codes


def compare_facts(left: Facts, right: Facts, are_equivalent: Callable[[], bool]) -> list[Finding]:
    """The differences in Python type, shape, dtype, weak type, sharding, and of a deleted array.

    Args:
      are_equivalent: Whether the shardings place the arrays alike; called only where they are written differently.
    """
    found: list[Finding] = []
    if left.type != right.type and not {left.kind, right.kind} & {*_WITHOUT_A_TYPE}:
        found.append(("python type", left.type, right.type, ""))
    if None not in (left.shape, right.shape):
        if left.shape != right.shape:
            is_reversed = left.shape == right.shape[::-1]  # type: ignore[index]
            hint = REVERSED if is_reversed else _moved_axis(left.shape, right.shape)  # type: ignore[arg-type]
            found.append(("shape", shape_text(left.shape), shape_text(right.shape), hint))
        if left.dtype != right.dtype:
            found.append(("dtype", left.dtype, right.dtype, ""))
        if left.weak != right.weak:
            texts = ["weakly typed" if each.weak else "not weakly typed" for each in (left, right)]
            found.append(("weak type", *texts, "jit compiles again for the other"))
    if (left.kind == "deleted") != (right.kind == "deleted"):
        found.append(
            ("deleted", *("deleted or donated" if each.kind == "deleted" else "alive" for each in (left, right)), "")
        )
    if left.sharding is not None and right.sharding is not None:
        found += _compare_shardings(left, right, are_equivalent)
    return found


def _compare_shardings(left: Facts, right: Facts, are_equivalent: Callable[[], bool]) -> list[Finding]:
    a, b = left.sharding, right.sharding
    assert a is not None and b is not None
    if a == b:
        return []
    if _place(a) != _place(b) or (a.text != b.text and not are_equivalent()):
        return [("sharding", sharding_text(left), sharding_text(right), "")]
    if a.committed is not b.committed and None not in (a.committed, b.committed):
        texts = ("committed" if each.committed else "not committed" for each in (a, b))
        return [("sharding", *texts, "jit compiles again for the other")]
    return []


def _place(sharding: Sharding) -> tuple[Any, ...]:
    return sharding.device_ids, sharding.platform, sharding.memory


def shardings_are_equivalent(left: Any, right: Any) -> bool:
    """Whether JAX places two arrays alike, whatever their shardings are called."""
    return guarded(lambda: bool(left.sharding.is_equivalent_to(right.sharding, len(left.shape))), lambda _: False)
