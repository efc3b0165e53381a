"""What is unread when an inspector goes, or Python ends: its findings are told all the same."""

from __future__ import annotations

import atexit
import warnings
import weakref
from typing import Any

import jax

from treeviz.steps.recording.recorder import Recorder
from treeviz.steps.stop import StopTraining

_followed: weakref.WeakSet[Recorder] = weakref.WeakSet()
_left: list[Recorder] = []  # whose owners have gone


def tell_at_the_end(owner: Any, recorder: Recorder) -> None:
    """Tell the findings of what a recorder has not read when Python ends, also if its owner has gone by then."""
    _tell_what_is_left()
    _followed.add(recorder)
    weakref.finalize(owner, _leave, recorder)


def _leave(recorder: Recorder) -> None:
    if len(recorder):  # not read here: the garbage collector may have been called anywhere
        _left.append(recorder)


def _tell_what_is_left() -> None:
    while _left:
        _tell(_left.pop())


@atexit.register  # before JAX's own, which is older: the last steps can still be read
def _at_exit() -> None:
    for recorder in [*_followed]:
        _tell(recorder)
    _left.clear()  # they were followed, too


def _tell(recorder: Recorder) -> None:
    if recorder.is_empty:
        return
    try:
        if jax.process_count() == 1:
            recorder.flush()
        else:  # a step that waits for a process that has failed would never end
            recorder.read_what_is_ready(tells=True)
    except StopTraining as error:
        warnings.warn(
            f"inspector: the run has ended, and would have been stopped: {error}", RuntimeWarning, stacklevel=2
        )
    except RuntimeError:  # a step has failed, which was reported
        return
