"""Who is told when a run has new numbers."""

from __future__ import annotations

from typing import Protocol

from treeviz.steps.recording.history import History


class Listener(Protocol):
    """Follows a run, e.g. for a widget. Its methods run in the threads that record and read."""

    def arrived(self) -> bool:
        """A measurement was taken in. Returns whether to read now what can be read without waiting."""
        ...

    def was_read(self) -> None:
        """The history has new numbers. No other thread reads meanwhile."""
        ...


class Alarm(Protocol):
    """Searches what was read for findings, and may end the run; see `treeviz.steps.findings.alarm`."""

    def was_read(self, history: History, bad_sources: set[str], *, is_flush: bool) -> bool: ...

    def postpone(self) -> None: ...

    def begin(self) -> None: ...
