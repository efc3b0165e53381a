"""Scalars that a step has returned and that may not be computed yet: checked at once, read later, in order."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from treeviz.steps.recording.decode import Arrived, is_ready, n_inner_steps
from treeviz.steps.recording.history import History
from treeviz.steps.recording.scalars import MOST_IDS, MOST_NAMES, Batch, ScalarRow
from treeviz.tree.safe_repr import class_name, printable

MOST_WAITING = 4096  # if more wait, the oldest are dropped


class _Waiting(NamedTuple):
    """Scalars that were taken in.

    Attributes:
      step: Its number, or that of the call with `of`, whose inner steps count as steps.
      of: The measurement before; None: `step` is the number of the step.
    """

    step: int
    of: Arrived | None
    values: Mapping[str, Any]
    batch: Any

    def is_ready(self) -> bool:
        arrays = (*self.values.values(), self.batch)
        return all(is_ready(x) for x in arrays if isinstance(x, jax.Array) and not x.is_deleted())


class WaitingScalars:
    """Takes scalars in without waiting for them.

    Attributes:
      n_dropped: Rows that were lost: their step failed, or their arrays were donated before they were read.
      bad: The names of those with NaN or infinity.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._names: set[str] = set()
        self.n_dropped = 0
        self.bad: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, step: int, of: Arrived | None, values: Mapping[str, Any], batch: Any, *, copies_early: bool) -> None:
        """Take scalars in.

        Raises:
          TypeError: A value is no number, or traced; or a batch is neither whole numbers nor text.
          ValueError: A value has more than one axis, or there are too many names.
        """
        self._names |= values.keys()
        if len(self._names) > MOST_NAMES:
            raise ValueError(f"record_scalars: there are more than {MOST_NAMES} names; the newest: {sorted(values)}.")
        checked = {printable(name): _checked(name, value) for name, value in values.items()}
        batch = None if batch is None else _checked_batch(batch)
        if copies_early:
            with jax.transfer_guard_device_to_host("allow"):
                for array in (*checked.values(), batch):
                    if isinstance(array, jax.Array):
                        array.copy_to_host_async()
        self._waiting.append(_Waiting(step, of, checked, batch))
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self.n_dropped += 1

    def read_into(self, history: History, *, wait: bool) -> bool:
        """Move what is ready into a history, or with `wait` all. Returns whether there was any."""
        rows: list[ScalarRow] = []
        if self._waiting:
            with jax.transfer_guard("allow"):  # which takes as long as reading
                while self._waiting and (wait or self._waiting[0].is_ready()):
                    self._read(self._waiting.popleft(), rows)
            self.bad |= history.append_scalars(rows)
        return bool(rows)

    def _read(self, waiting: _Waiting, rows: list[ScalarRow]) -> None:
        try:
            rows.append(_row(waiting))
        except RuntimeError:  # a step failed, or an array was donated
            self.n_dropped += 1


def _checked(name: str, value: Any) -> Any:
    """A device's array as it is; else float64[n], a copy."""
    what = f"record_scalars: {name} is"
    if isinstance(value, Tracer):
        raise TypeError(f"{what} traced. Call record_scalars outside the jitted step, with what the step returns.")
    shape = getattr(value, "shape", ())
    if len(shape) > 1:
        raise ValueError(f"{what} an array of {shape}. Give a number, as its mean, or the values of the last n steps.")
    array = value if isinstance(value, jax.Array) else np.array(value)
    if not _is_real(array.dtype):
        raise TypeError(f"{what} a {class_name(type(value))} of {array.dtype}, no real number.")
    return array if array is value else array.astype(np.float64).reshape(-1)


@functools.cache
def _is_real(dtype: Any) -> bool:
    return any(jax.numpy.issubdtype(dtype, kind) for kind in (np.floating, np.integer, np.bool_))


def _checked_batch(batch: Any) -> Any:
    """A device's array as it is; else a copy, or a text."""
    if isinstance(batch, Tracer):
        raise TypeError("record_scalars: batch is traced. Call record_scalars outside the jitted step.")
    if isinstance(batch, str):
        return printable(batch[:MOST_IDS])
    if isinstance(batch, list | tuple) and any(isinstance(each, str) for each in batch[:1]):
        return printable(", ".join(map(str, batch[:MOST_IDS]))[:MOST_IDS])
    ids = batch if isinstance(batch, jax.Array) else np.array(batch)
    if not jax.numpy.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"record_scalars: batch is {ids.dtype}. Give the ids of its examples, as int32[n], or a text.")
    return ids


def _row(waiting: _Waiting) -> ScalarRow:
    values = {name: np.asarray(value, np.float64).reshape(-1) for name, value in waiting.values.items()}
    ids = waiting.batch
    if ids is not None and not isinstance(ids, str):
        ids = np.asarray(ids).reshape(-1)
    weight = next((float(of[-1]) for of in values.values() if len(of)), 0.0)
    n = 0 if ids is None or isinstance(ids, str) else len(ids)
    kept = ids if isinstance(ids, str) or ids is None else ids[:MOST_IDS].astype(np.int64)
    batch = None if kept is None else Batch(kept, n, weight if math.isfinite(weight) else math.inf)
    k = 1 if waiting.of is None else n_inner_steps(waiting.of)
    return ScalarRow(waiting.step * k + k - 1, {name: of for name, of in values.items() if len(of)}, batch)
