"""How two leaves differ in what is known without reading their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from treeviz.analysis.compare.nodes import Finding
from treeviz.analysis.facts import shape_text, sharding_text
from treeviz.tree.facts import Facts, Sharding
from treeviz.tree.safe_repr import guarded

REVERSED = "the same axes in reverse order: a transpose?"
_WITHOUT_A_TYPE = ("abstract", "stored", "tracer", "deleted", "placeholder")  # they stand for an array of any type


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
            hint = REVERSED if is_reversed else ""
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
