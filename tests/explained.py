"""What is said below an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import treeviz as tv

_ERRORS = TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError


def explained(fail: Callable[[], Any]) -> BaseException:
    with pytest.raises(_ERRORS) as raised, tv.explain_errors():
        fail()
    return raised.value


def lines_of(error: BaseException) -> list[str]:
    (note,) = error.__notes__
    title, *lines = note.splitlines()
    assert title.startswith("treeviz: ") and title.endswith(":")
    return [line.strip() for line in lines]
