"""What treeviz cannot read of a step, as where a new JAX has moved something: it costs its own numbers, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from treeviz.tree.tested_jax import newer_than_tested, tested_range
from treeviz.tree.text import error_text

T = TypeVar("T")


class NotMeasured(Exception):
    """A step is not measured, for a reason that its message tells the user."""


def tested_with() -> str:
    """The jax that is here, and those that treeviz was tested with."""
    newer = ", which is newer" * newer_than_tested(jax.__version__)
    return f"jax {jax.__version__}{newer}; treeviz was tested with {tested_range()}"


def why_not_measured(error: BaseException) -> str:
    """What an error says: where treeviz itself is wrong, or JAX has moved what it reads, also how to report that."""
    if isinstance(error, NotMeasured):
        return str(error)
    if isinstance(error, jax.errors.JaxRuntimeError):  # as without memory
        return error_text(error)
    return f"{error_text(error)} ({tested_with()}). Please report this with what `treeviz doctor` prints"


class Unread:
    """Notes on what treeviz cannot read of one step."""

    def __init__(self) -> None:
        self._lost: dict[str, list[str]] = {}  # by the reason

    def note(self, lost: str, error: Exception) -> None:
        of_reason = self._lost.setdefault(why_not_measured(error), [])
        of_reason += [] if lost in of_reason else [lost]

    def attempt(self, lost: str, default: T, function: Callable[..., T], *args: Any) -> T:
        """What a function of ours returns; where it raises, `default` and a note on what is lost."""
        try:
            return function(*args)
        except Exception as error:  # never of the user's code, which has been traced by now
            self.note(lost, error)
            return default

    @property
    def notes(self) -> list[str]:
        return [f"{'; '.join(lost)}: {why}." for why, lost in self._lost.items()]
