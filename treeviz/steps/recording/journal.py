"""The file that follows a run: it is written once the numbers are in memory, and its troubles do not reach the run."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import time
import uuid
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from treeviz.steps.recording.history import History, Record
from treeviz.steps.recording.history_file import journal_of, load, run_in, write
from treeviz.steps.recording.records import encode, encode_scalars, first_line
from treeviz.steps.recording.scalars import ScalarRow

LOOK_EVERY_S = 1.0  # whether the files are still there
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # until it is tried again
SHARE = 0.02  # of the time, for attempts that fail
_logger = logging.getLogger("treeviz")


def keep(history: History, path: str | os.PathLike, *, clock: Callable[[], float] = time.monotonic) -> Path:
    """Write the history to a file, and from now on every step once it is appended, so that a crash loses none.

    The file is `path` together with `path.journal`, which is merged into it when it has grown, and by
    `save(history, path)`. `load(path)` reads both.

    Returns:
      The path of the file: another one ("run-2.treeviz") if there is a file at `path` that this history does not
      continue.

    Raises:
      OSError: The file cannot be written.
    """
    journal = Journal(history, path, clock=clock)
    if history.journal is not None:
        history.journal.close()
    history.journal = journal
    return journal.path


class Journal:
    """Appends each step to a file, and writes the whole history again when that exceeds the history's memory.

    If the disk is full or the file is gone, one warning is logged, and the whole history is written again later, so
    that nothing is lost but by a crash in between.

    Attributes:
      path: Where the history is.
      trouble: Why it lacks steps; empty if it has all.

    Args:
      clock: In seconds.
    """

    def __init__(
        self, history: History, path: str | os.PathLike, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.trouble = ""
        self._clock, self._process = clock, os.getpid()
        self._file: FileIO | None = None
        self._has_warned = False
        self._wait_s = self._try_again = 0.0
        self._take(history, Path(path))

    def write(self, history: History, step: int, record: Record) -> None:
        """Write the step that was appended last. Errors of the disk are logged, and raise nothing."""
        if os.getpid() == self._process:  # else a forked child: the file belongs to the parent
            self._attempt(self._append, history, lambda: encode(history.n_records - 1, step, record))

    def write_scalars(self, history: History, row: ScalarRow) -> None:
        """The same for the scalars that were appended last."""
        if os.getpid() == self._process:
            self._attempt(self._append, history, lambda: encode_scalars(history.n_records - 1, row))

    def catch_up(self, history: History, *, now: bool = False) -> None:
        """Try again to write what the file lacks, if that is due, or `now`."""
        if os.getpid() == self._process and self.lacks(history)[0] and (now or self._clock() >= self._try_again):
            self._attempt(self._write_again, history)

    def lacks(self, history: History) -> tuple[int, str]:
        """How many steps, and rows of scalars, are not in the file, and why."""
        return history.n_records - self._n_records if os.getpid() == self._process else 0, self.trouble

    def saved(self, history: History, path: Path) -> None:
        """Drop the records if the history was saved to this journal's path."""
        if path.absolute() == self.path.absolute() and os.getpid() == self._process:
            self._n_records = history.n_records
            self._attempt(self._begin, history)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    __del__ = close

    def _attempt(self, do: Callable[..., None], history: History, *arguments) -> None:
        before = self._clock()
        try:
            do(history, *arguments)
        except Exception as error:  # whatever it is, the run goes on
            now = self._clock()
            self.trouble = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._wait_s = min(max(2 * self._wait_s, FIRST_WAIT_S), LONGEST_WAIT_S)
            self._try_again = now + max(self._wait_s, (now - before) / SHARE)
            if not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "keep: %s cannot be written: %s. The run goes on with its numbers in memory, and writing is tried "
                    "again; the inspector's view says what the file lacks.", self.path, self.trouble
                )  # fmt: skip

    def _append(self, history: History, encoded: Callable[[], bytes]) -> None:
        if self.trouble and self._clock() < self._try_again:
            return
        is_next = self._n_records == history.n_records - 1 and self._n_sources == len(history.sources)
        has_room = 0 < self._end <= max(history.max_bytes, 1 << 20)
        if self.trouble or not is_next or not has_room or not self._is_there():
            self._write_again(history)
            return
        data = encoded()
        assert self._file is not None
        self._file.seek(self._end)  # behind the last whole record, whatever was written of a later one
        write_all(self._file, data)
        self._end += len(data)
        self._n_records = history.n_records  # last: if an interrupt comes before, all is written again

    def _is_there(self) -> bool:
        """Whether the files are those that were written. Raises FileNotFoundError if one is gone."""
        if self._clock() < self._look_again:
            return True
        assert self._file is not None
        is_mine = os.path.samestat(os.stat(self.path), self._snapshot)
        is_mine &= os.path.samestat(os.stat(journal_of(self.path)), os.fstat(self._file.fileno()))
        self._look_again = self._clock() + LOOK_EVERY_S
        return is_mine

    def _write_again(self, history: History) -> None:
        """Write the whole history; to another file if another run has taken this one."""
        if self.path.exists() and run_in(self.path) != history.run:
            taken = self.path
            self._take(history, taken)
            _logger.warning("keep: %s is not this run's any more, which goes on in %s.", taken, self.path)
        else:
            write(history, self.path)
            self._n_records = history.n_records
            self._begin(history)

    def _take(self, history: History, path: Path) -> None:
        """Write the whole history to a file that no other run has: `path`, "run-2.treeviz", …"""
        run = history.run
        path, is_new = _claimed(history, path)
        try:
            if not is_new:  # so that another program that has loaded this file does not continue it, too
                history.run = uuid.uuid4().hex
            write(history, path)
        except BaseException:
            history.run = run
            if is_new:
                path.unlink(missing_ok=True)
            raise
        self.path, self._n_records = path, history.n_records
        self._begin(history)

    def _begin(self, history: History) -> None:
        """Begin an empty journal beside a file that has the whole history."""
        self._end = 0  # until there is one
        self.close()
        journal = journal_of(self.path)
        journal.unlink(missing_ok=True)  # another program may have it open, and shall not write into this one
        self._file = FileIO(journal, "x")
        line = first_line(history)
        write_all(self._file, line)
        self._snapshot = os.stat(self.path)
        self._look_again = self._clock() + LOOK_EVERY_S
        self._n_sources = len(history.sources)
        self._end, self.trouble, self._wait_s = len(line), "", 0.0


def write_all(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]  # on a disk that is nearly full, a part


def _claimed(history: History, path: Path) -> tuple[Path, bool]:
    """A file that no other run has, and whether it is a new one, which then exists: `path`, "run-2.treeviz", …"""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for n in itertools.count(1):
        file = path if n == 1 else path.with_name(f"{path.stem}-{n}{path.suffix}")
        try:
            with open(file, "xb"):
                return file, True
        except FileExistsError:
            if _continues(history, file):
                return file, False
    raise AssertionError


def _continues(history: History, file: Path) -> bool:
    """Whether a history has all that is in a file of its own run."""
    if run_in(file) != history.run:
        return False
    try:
        return load(file).n_records <= history.n_records
    except (OSError, ValueError):
        return False
