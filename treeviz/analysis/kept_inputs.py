"""The inputs of the steps whose numbers are not read yet, so that the first bad one can be run again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

Key = tuple[str, int]  # which step function, and the number of its call


class Inputs(NamedTuple):
    """What a step was called with.

    Attributes:
      step: The function.
      number: The number of the step.
      args, kwargs: Copies.
    """

    step: Callable
    number: int
    args: tuple
    kwargs: dict[str, Any]


class KeptInputs:
    """Keeps the inputs of a few steps until they are known to be finite, and those of the first that is not.

    Attributes:
      bad: The inputs of the first step whose gradients were not finite; None as long as there is none.
    """

    def __init__(self, most: int) -> None:
        self.bad: Inputs | None = None
        self._most = most
        self._kept: dict[Key, Inputs] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, key: Key, inputs: Callable[[], Inputs], read: Callable[[], None]) -> None:
        """Keep the inputs of a step that is about to run.

        Args:
          inputs: Makes the copies; is not called when there is a bad step already.
          read: Called when there are too many: reads what was measured, which frees those that are finite.
        """
        if self.bad is not None:
            return
        if len(self._kept) >= self._most:
            read()
        with self._lock:
            while len(self._kept) >= self._most:  # of steps that told nothing, such as one that raised
                del self._kept[next(iter(self._kept))]
            if self.bad is None:
                self._kept[key] = inputs()

    def seen(self, key: Key, is_bad: bool) -> None:
        """The numbers of a step are read."""
        with self._lock:
            inputs = self._kept.pop(key, None)
            if is_bad and self.bad is None:
                self.bad = inputs
                self._kept.clear()
