"""Parameters of a test so chosen that every pair of values meets, in fewer cases than all combinations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, product
from typing import Any

import pytest


def all_pairs(**values: Iterable[Any] | Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize with combinations in which every two values of two parameters occur together.

    Most defects that depend on parameters depend on one or two of them. The choice is the same in every run.

    Args:
      values: Of each parameter; a mapping gives each a name for the test's id.
    """
    ids = {name: [str(value) for value in of] for name, of in values.items()}
    of = {name: list(each.values()) if isinstance(each, Mapping) else list(each) for name, each in values.items()}
    cases = list(product(*(range(len(each)) for each in of.values())))
    missing = {pair for case in cases for pair in _pairs(case)}
    chosen = []
    while missing:
        case = max(cases, key=lambda case: len(_pairs(case) & missing))  # the first of the best
        missing -= _pairs(case)
        chosen.append(case)
    params = [
        pytest.param(
            *(each[i] for each, i in zip(of.values(), case, strict=True)),
            id="-".join(filter(None, (names[i] for names, i in zip(ids.values(), case, strict=True)))),
        )
        for case in chosen
    ]
    return pytest.mark.parametrize(list(of), params)


def _pairs(case: tuple[int, ...]) -> set[tuple]:
    return set(combinations(enumerate(case), 2))
