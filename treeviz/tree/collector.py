"""Make many objects without a search for cycles among them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30  # searches of newer objects, until all are searched


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the search for cycles: among 100,000 new objects it takes as long as making them, and finds none.

    So many would be followed by a search, at times one among all objects of the process: 0.4 s where 200,000 arrays
    are. Here it is one among the new ones; the other stays due to whoever makes the next objects.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_threshold()[0]:  # 0 turns it off, too
                gc.collect(0)
            gc.enable()


@contextmanager
def full_searches_put_off() -> Iterator[None]:
    """Search only new objects for cycles: while a program is traced and lowered, all of the process are searched often.

    Each of these searches takes some 0.1 s where JAX and two more libraries are.
    """
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        if gc.get_threshold()[2] == _NEVER != before[2]:  # else another thread has it put off, or somebody has set it
            gc.set_threshold(*before)
