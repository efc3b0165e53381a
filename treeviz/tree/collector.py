"""Make many objects without a search for cycles among them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
