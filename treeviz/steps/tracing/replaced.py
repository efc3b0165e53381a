"""Functions of a module that are replaced for a while, and what they were."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from treeviz.tree.forks import Lock

_lock = Lock()  # held for some assignments, never while tracing
_n_replacing: Counter[str] = Counter()  # how many contexts replace a function
_originals: dict[str, Any] = {}  # by name; kept, since another thread may be about to call one


@contextlib.contextmanager
def replaced(module: Any, replacements: Mapping[str, Callable]) -> Iterator[None]:
    """Functions of a module are replaced within this context, for all threads."""
    with _lock:
        for name, replacement in replacements.items():
            if not _n_replacing[name]:
                _originals[name] = getattr(module, name)
                setattr(module, name, replacement)
            _n_replacing[name] += 1
    try:
        yield
    finally:
        with _lock:
            for name in replacements:
                _n_replacing[name] -= 1
                if not _n_replacing[name]:
                    setattr(module, name, _originals[name])


def original_of(name: str) -> Any:
    """What a function that is `replaced` was before."""
    return _originals[name]
