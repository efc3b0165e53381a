"""Ctrl-C at every line of what is tested, one after the other, without a signal or a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def interrupted_everywhere(
    prepare: Callable[[], T], do: Callable[[T], object], folder: Path, each: str = "line"
) -> Iterator[T]:
    """Raise KeyboardInterrupt in `do(prepare())`: before the first line of a file in `folder`, before the second, ….

    Yields what `prepare` made after each call that was interrupted.

    Args:
      each: "line"; or "opcode", as real signals do, which takes ten times as long.
    """
    for n in count():
        prepared = prepare()
        if not _is_interrupted(lambda prepared=prepared: do(prepared), n, str(folder), each):
            assert n > 10, "hardly anything of it is in this folder"
            return
        yield prepared


def _is_interrupted(do: Callable[[], object], n: int, folder: str, each: str) -> bool:
    """Whether `do` ran for so long that it was interrupted."""

    def in_function(_frame: FrameType, event: str, _: Any):
        nonlocal n
        if event == each:
            n -= 1
            if n == -1:
                raise KeyboardInterrupt
        return in_function

    def on_call(frame: FrameType, *_: Any):
        frame.f_trace_opcodes = each == "opcode"
        return in_function if frame.f_code.co_filename.startswith(folder) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        do()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
