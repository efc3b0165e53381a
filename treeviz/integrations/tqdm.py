"""tqdm: a progress bar in a terminal."""

from __future__ import annotations

import sys
from typing import Any


def bytes_bar(delay_s: float) -> Any:
    """A progress bar of bytes on standard error after `delay_s`, erased at the end; None without tqdm or a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=0, unit="B", unit_scale=True, delay=delay_s, leave=False, file=sys.stderr, desc="reading")
