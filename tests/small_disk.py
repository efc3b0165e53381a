"""A disk that has room for so many bytes, or fails: what treeviz writes of a run goes through it."""

from __future__ import annotations

import errno
import io
import os

import pytest

from treeviz.steps.recording import history_file
from treeviz.steps.recording import history_file as journal


class Disk:
    """Where histories and journals are written in a test.

    Attributes:
      n_left: How many bytes it has room for; a last write is cut to that.
      error: What it raises then.
      n_failed: How often it has.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        disk, self.n_left, self.error, self.n_failed = self, 1 << 40, errno.ENOSPC, 0

        class File(io.FileIO):
            def write(self, data) -> int:
                if disk.n_left <= 0:
                    disk.n_failed += 1
                    raise OSError(disk.error, os.strerror(disk.error))
                n_written = super().write(memoryview(data)[: disk.n_left])
                disk.n_left -= n_written
                return n_written

        for module in (history_file, journal):
            monkeypatch.setattr(module, "FileIO", File)
