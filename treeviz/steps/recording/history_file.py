"""Histories in files.

A history is a zip file, which `numpy.load` reads too. Its `header.json` is `{"format": "treeviz-history", "version": 2,
"run", "name", "tree", "inner": [n, noun], "n_appended", "max_bytes", "sources": [{"name", "paths", "sizes", "dtypes",
"has_number", "shapes", "stacks", "cut_off", "unscaled", "frozen", "drifts"}], "tracks": [{"source", "statistic",
"bucket_width"}], "scalars": {"n_appended", "tracks": [{"name", "bucket_width"}], "batches": [[step, ids or text, n,
weight]]}, "forward": {source: [leaf]}}`. A step is a call, and "inner" is the most inner steps that a call has and what
they are, such as "micro-batch"; "scalars" only if there are some, and "forward", the order in which the step uses the
leaves, only if that is known. The arrays of track i, of the tracks and then of those of the scalars, whose leaves are
the value and a code, are, oldest first:

- `i/exact_steps.npy` int64[2, n], the step, and its inner step from 0, or -1 for what a call has once; and
  `i/exact.npy` [n, leaves], or [n, leaves, 64] of histograms;
- `i/bucket_steps.npy` int64[5, k], the first step, the last, how many, and the inner steps of the first and the last;
  and `i/buckets.npy` [3, k, leaves], of floats the least, of counts the sum; the greatest; the last.

During a run there is a journal in the same folder, `name.journal`: the line `treeviz-journal 2 RUN`, then a record per
step, or row of scalars. A record is the lengths of its two parts as little-endian uint32; JSON in UTF-8, `{"n", "step",
"inner", "arrays": [[source, statistic]]}`, or `{"n", "step", "inner", "scalars": {name: [value]}, "batch": [ids or
text, n, weight]}` with the number of inner steps of the call as "inner"; the arrays, little-endian float64 or int64;
and the CRC-32 of all that as uint32. `n` is the number of records before, so that what is in both files is read once.
A truncated or damaged record ends the journal.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import logging
import os
import re
import secrets
import struct
import time
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from treeviz.steps.recording.history import (
    CODES,
    FEWEST_BUCKETS,
    FEWEST_EXACT,
    MOST_NAMES,
    TRACK_BYTES,
    History,
    Record,
    ScalarRow,
    Track,
    batch_fields,
    batch_of,
    with_inner,
)
from treeviz.steps.statistics import MeasuredTree, wholes
from treeviz.tree.files import parse_json
from treeviz.tree.series import InnerSteps
from treeviz.tree.text import printable, visible

# The records of a journal: one per step, each with its own checksum

_LENGTHS, _SUM = struct.Struct("<II"), struct.Struct("<I")


def first_line(history: History) -> bytes:
    return f"treeviz-journal {VERSION} {history.run}\n".encode()


def encode(n: int, step: int, record: Record | ScalarRow, inner: int = -1) -> bytes:
    """Encode the record of a step or an inner step, or of scalars, after `n` earlier records."""
    fields: dict[str, Any] = {"n": n, "step": int(step), "inner": int(inner)}
    body = b""
    if isinstance(record, ScalarRow):
        fields["inner"] = record.n_inner
        fields["scalars"] = {name: values.tolist() for name, values in record.values.items()}
        fields["batch"] = None if record.batch is None else batch_fields(record.batch)
    else:
        fields["arrays"] = [[source, statistic] for source, statistic, _ in record]
        body = b"".join(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes() for *_, values in record)
    head = json.dumps(fields).encode()
    data = _LENGTHS.pack(len(head), len(body)) + head + body
    return data + _SUM.pack(zlib.crc32(data))


def replay(history: History, file: BinaryIO, begin: int = 0) -> tuple[int, int]:
    """Add the journal's steps from byte `begin` on; returns their end and the bytes after; (0, 0): another run."""
    n_bytes, line = os.fstat(file.fileno()).st_size, file.readline(200)
    if line != first_line(history):
        return 0, 0
    position = file.seek(max(begin, len(line)))
    while len(lengths := file.read(_LENGTHS.size)) == _LENGTHS.size:
        n = sum(_LENGTHS.unpack(lengths)) + _SUM.size
        if _LENGTHS.size + n > n_bytes - position:
            break  # truncated; checked before reading, since a damaged length could ask for gigabytes
        record = lengths + file.read(n)
        if _SUM.unpack_from(record, len(record) - _SUM.size) != (zlib.crc32(memoryview(record)[: -_SUM.size]),):
            break
        try:
            _add(history, record)
        except Exception:  # the checksum is right but the content is not: a newer version, or crafted
            break
        position += len(record)
    return position, n_bytes - position


def _add(history: History, record: bytes) -> None:
    n_head, n_body = _LENGTHS.unpack_from(record)
    begin = _LENGTHS.size + n_head
    head = json.loads(record[_LENGTHS.size : begin])
    if head["n"] > history.n_records:
        raise ValueError("there is a gap")
    if head["n"] < history.n_records:
        return  # the history already has it
    # These raise before the history is changed.
    step, inner = int(np.int64(head["step"])), _checked_inner(int(head["inner"]))
    if "scalars" in head:
        named = itertools.islice(head["scalars"].items(), MOST_NAMES)
        values = {printable(name): np.array(numbers, np.float64).reshape(-1) for name, numbers in named}
        batch = None if head["batch"] is None else batch_of(head["batch"])
        history.append_scalars([ScalarRow(step, values, batch, max(inner, 1))])
        return
    arrays, end = [], begin + n_body
    for source, statistic in head["arrays"]:
        shape, dtype = history.kind_of(source, statistic)
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        data = record[begin : min(begin + n_bytes, end)]
        arrays.append((source, statistic, np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(1, *shape)))
        begin += n_bytes
    history.add(with_inner([step], [inner]), arrays)


def _checked_inner(inner: int) -> int:
    if not -1 <= inner < _MOST_INNER:
        raise ValueError(f"no call has an inner step {inner:,}")
    return inner


FORMAT, VERSION = "treeviz-history", 2
_MOST_INNER = 1 << 31
_MOST_NEXT = 100  # runs of one name that are looked for
STOPPED_S = 5.0  # without a step, while another run of the name is written: then this one has stopped
_ARRAYS = ("exact_steps", "exact", "bucket_steps", "buckets")
_MOST_HEADER = 1 << 28  # bytes
_MOST_ALWAYS = 1 << 27  # bytes that a small file may inflate to
_MOST_PACKED = 100  # the largest compression ratio; zeros alone reach 1,000


def save(history: History, path: str | os.PathLike) -> None:
    """Write a history to one file, atomically, and clear this file's journal, since the file contains its records."""
    path = Path(path)
    write(history, path)
    if history.journal is not None:
        history.journal.saved(history, path)


def write(history: History, path: Path) -> None:
    """Write a history to one file, atomically, without changing its journal."""
    history.finish()
    header = header_of(history)
    tracks = (*history.tracks.values(), *history.scalars.tracks.values())
    temporary = path.parent / f".{path.name[:100]}.{secrets.token_hex(4)}"
    try:
        with io.BufferedWriter(FileIO(temporary, "x")) as file:  # "x" creates it with the default permissions
            with _NewArchive(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                archive.writestr("header.json", json.dumps(header))
                for i, track in enumerate(tracks):
                    for name, array in zip(_ARRAYS, track.arrays(), strict=True):
                        with archive.open(f"{i}/{name}.npy", "w", force_zip64=True) as member:
                            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def header_of(history: History) -> dict[str, Any]:
    """Everything except the arrays, as JSON."""
    leaf_at = {name: {path: i for i, path in enumerate(source.paths)} for name, source in history.sources.items()}
    forward = {
        name: [leaf_at[name][path] for path in paths if path in leaf_at[name]]
        for name, paths in history.forward.items()
        if name in leaf_at
    }
    sources = [source._asdict() for source in history.sources.values()]
    for fields in sources:  # without trailing empty ones, so that older versions can read them
        while len(fields) > MeasuredTree._fields.index("stacks") and not [*fields.values()][-1]:
            fields.popitem()
    return {
        "format": FORMAT,
        "version": VERSION,
        **{field: getattr(history, field) for field in ("run", "name", "tree")},
        "inner": list(history.inner),
        "n_appended": history.n_appended,
        "max_bytes": history.max_bytes,
        "sources": sources,
        "tracks": [
            {"source": source, "statistic": statistic, "bucket_width": track.bucket_width}
            for (source, statistic), track in history.tracks.items()
        ],
        **({"scalars": history.scalars.fields()} if history.scalars else {}),
        **({"forward": forward} if forward else {}),
    }


class _NewArchive(zipfile.ZipFile):
    """An archive that is closed only when complete; otherwise an error of zipfile would hide a Ctrl-C."""

    def __exit__(self, kind, *_: object) -> None:
        if kind is None:
            self.close()

    def __del__(self) -> None:
        pass


def load(file: str | os.PathLike | Copied) -> History:
    """Read a history that `save` or `keep` wrote. ValueError if it is none, is damaged, or has another version."""
    followed = Followed(file)
    followed.read(is_final=True)
    assert followed.history is not None
    return followed.history


class Copied(Protocol):
    """A copy of a run that is elsewhere. Its text is the address."""

    path: Path

    def update(self) -> None: ...


class Followed:
    """A run in a file, or in a copy, that another process may be writing.

    The file changes if the run stops and another one begins in "run-2.treeviz", as `keep` names it.
    """

    def __init__(self, file: str | os.PathLike | Copied) -> None:
        self._copy = None if isinstance(file, str | os.PathLike) else file
        self.path = Path(file) if isinstance(file, str | os.PathLike) else file.path
        self.history: History | None = None  # what was read so far
        self.n_unread = 0  # bytes at the end of the journal that are no step, or not yet
        self._saved: tuple[int, ...] = ()  # identifies the content of the file that was read
        self._journal: tuple[int, ...] = ()
        self._end = 0  # of what was read in the journal
        self._others = {self._next(n).name for n in range(1, _MOST_NEXT) if self._next(n).exists()}

    def read(self, *, is_final: bool = False) -> bool:
        """Add the steps that were written since the last call. Returns whether there are any.

        Args:
          is_final: Say in `history.damage` what cannot be read, since nobody will complete it.

        Raises:
          OSError: The file cannot be opened, or is not there yet.
          ValueError: It is not a run, or is damaged; what was read before stays.
        """
        if self._copy is not None:
            self._copy.update()
        history, n_before = self.history, 0 if self.history is None else self.history.n_records
        with open(self.path, "rb") as file:
            if (saved := _content_of(file)) != self._saved:
                try:
                    history = _history_in(file)
                except Exception as error:  # a damaged zip file makes zipfile, zlib and NumPy raise nearly anything
                    reason, name = visible(str(error), 300) or type(error).__name__, visible(str(self.path), 1000)
                    text = f"load: {name} is not a run that this version of treeviz can read: {reason}"
                    raise ValueError(text) from error
                self._end, self._saved = 0, saved
        assert history is not None
        journal = journal_of(self.path)
        if journal.is_file():  # a pipe would be waited for
            with contextlib.suppress(FileNotFoundError), open(journal, "rb") as file:
                status = os.fstat(file.fileno())
                identity = status.st_dev, status.st_ino
                begin = self._end if identity == self._journal and self._end <= status.st_size else 0
                (self._end, self.n_unread), self._journal = replay(history, file, begin), identity
            if self.n_unread and is_final:
                where = visible(str(journal), 1000)
                history.damage = (
                    f"The last {self.n_unread:,} bytes of {where} cannot be read: the steps in them are missing."
                )
        is_new = history is not self.history or history.n_records > n_before
        self.history = history
        return is_new

    def update(self) -> tuple[bool, str]:
        """`read`, or `move_on` after a stop. Returns whether anything is new, and why nothing can be read."""
        name = visible(str(self._copy or self.path), 1000)
        try:
            is_new, trouble = self.read(), ""
        except FileNotFoundError:
            is_new, trouble = False, f"waiting for {name}" if self.history is None else f"{name} is gone"
        except (OSError, ValueError) as error:  # `keep` first makes an empty file
            is_empty = self.history is None and self.path.exists() and not self.path.stat().st_size
            is_new, trouble = False, f"waiting for the first step in {name}" if is_empty else visible(str(error), 1000)
        return (is_new, trouble) if is_new or not self.move_on() else self.update()

    @property
    def written(self) -> float:
        """When the file was last written, in seconds since 1970; 0.0 if it is not there."""
        return max(map(_written, (self.path, journal_of(self.path))))

    def move_on(self) -> bool:
        """Follow a run of this name that began in "run-2.treeviz" after this one stopped, if there is one."""
        stopped = self.written
        for n in range(1, _MOST_NEXT if self._copy is None else 1):
            path = self._next(n)
            if path.name not in self._others and _written(journal_of(path)) > stopped + STOPPED_S:
                others = self._others | {self.path.name}
                Followed.__init__(self, path)
                self._others |= others
                return True
        return False

    def _next(self, n: int) -> Path:
        """The name of the n-th run that is kept under the name of this one."""
        stem = re.sub(r"-\d+$", "", self.path.stem)
        return _numbered(self.path.with_name(stem + self.path.suffix), n)


def _content_of(file: BinaryIO) -> tuple[int, ...]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _written(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _numbered(path: Path, n: int) -> Path:
    """ "run.treeviz", "run-2.treeviz", …"""
    return path if n == 1 else path.with_name(f"{path.stem}-{n}{path.suffix}")


def run_in(path: Path) -> str:
    """Return the identifier of the run in a file; empty if it is not a history. Takes well below a millisecond."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return ""
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return str(_header(archive)["run"])
    except Exception:
        return ""


def journal_of(path: str | os.PathLike) -> Path:
    return Path(f"{os.fspath(path)}.journal")


def _history_in(file: BinaryIO) -> History:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        n_bytes, n_packed = sum(x.file_size for x in members), sum(x.compress_size for x in members)
        if n_bytes > max(_MOST_ALWAYS, _MOST_PACKED * n_packed):
            raise ValueError(f"it would take {n_bytes:,} bytes of memory, and the file has {n_packed:,}")
        history, tracks = history_of(_header(archive))
        n_least = sum(8 * int(np.prod(track.shape)) * (FEWEST_EXACT + 3 * FEWEST_BUCKETS) for track, _ in tracks)
        n_left = 2 * (history.max_bytes + n_least + len(history.scalars.tracks) * TRACK_BYTES)
        n_left += (1 << 16) * len(tracks)  # bytes; a history has no more
        for i, (track, bucket_width) in enumerate(tracks):
            arrays = []
            for name in _ARRAYS:
                data = _content(archive, f"{i}/{name}.npy", n_left)
                n_left -= len(data)
                arrays.append(_array(data))
            track.restore(arrays, bucket_width)
    # What the header or the codes of scalars say, the arrays must have.
    n_steps = [track.n_steps for track in history.tracks.values()]
    if not max(n_steps, default=0) <= history.n_appended <= sum(n_steps):  # a step may lack some of the statistics
        raise ValueError(f"it would have {history.n_appended:,} steps, and its arrays have {max(n_steps, default=0):,}")
    if not 0 <= history.scalars.n_appended < 1 << 53:  # a row may lack values
        raise ValueError(f"it would have {history.scalars.n_appended:,} rows of scalars")
    for track in (*history.tracks.values(), *history.scalars.tracks.values()):
        inner = track.entry_steps()[3:]
        _checked_inner(int(inner.max(initial=-1)))
        _checked_inner(int(inner.min(initial=-1)))
        history.scalars.inner = history.inner.up_to(inner)
    for track in history.scalars.tracks.values():
        if not all(np.isin(array[..., 1], range(len(CODES))).all() for array in track.arrays()[1::2]):
            raise ValueError("a scalar is neither a number, NaN nor infinite")
    return history


def history_of(header: dict[str, Any]) -> tuple[History, list[tuple[Track, int]]]:
    """Return the history of a header, and its tracks, still empty, with the widths of their buckets."""
    history = History(list(_sources(header["sources"])), int(header["max_bytes"]))
    history.run, history.n_appended = str(header["run"]), int(header["n_appended"])
    history.name, history.tree = (printable(str(header.get(field, ""))) for field in ("name", "tree"))
    n_inner, noun = header["inner"]
    history.scalars.inner = InnerSteps(max(_checked_inner(int(n_inner)), 1), printable(str(noun)))
    tracks = [
        (history.new_track(printable(track["source"]), track["statistic"]), int(track["bucket_width"]))
        for track in header["tracks"]
    ]
    for name, order in header.get("forward", {}).items():
        paths = history.sources[printable(str(name))].paths
        history.forward[printable(str(name))] = tuple(paths[range(len(paths))[i]] for i in order)
    if "scalars" in header:
        tracks += history.scalars.restore(header["scalars"])
    return history, tracks


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    if "header.json" not in archive.namelist():
        raise ValueError("it holds no run; `treeviz show` shows a file of arrays")
    header = parse_json(_content(archive, "header.json", _MOST_HEADER), None)
    if header["format"] != FORMAT or header["version"] != VERSION:
        raise ValueError(f"it has version {header['version']} of {header['format']}, and this treeviz reads {VERSION}")
    return header


def _sources(fields: list[dict[str, Any]]) -> Iterator[MeasuredTree]:
    for name, *leaf_fields in (list(source.values()) for source in fields):
        source = MeasuredTree(str(name), *map(tuple, leaf_fields))
        is_consistent = len({len(values) for values in source[1:5]}) == 1
        is_consistent &= {*map(len, source[7:-1])} <= {0, len(source.paths)} and not source.feeds
        for values, kind in zip(source[1:-1], (str, int, str, int, str, str, int, int, int, int), strict=True):
            is_consistent &= all(isinstance(value, kind) for value in values)
        if not is_consistent:
            raise ValueError(f"the leaves of {source.name!r} do not fit together")
        fields_of_text = ("paths", "dtypes", "shapes", "stacks")
        texts: Any = {field: tuple(map(printable, getattr(source, field))) for field in fields_of_text}
        source = source._replace(name=printable(source.name), **texts)
        list(wholes(source))  # raises if the layers are inconsistent
        yield source


def _content(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Return the content of a member, if it has at most `most` bytes."""
    member = archive.getinfo(name)
    if member.file_size > most or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} has {member.file_size:,} bytes in compression {member.compress_type}")
    with archive.open(member) as file:  # `archive.read` would inflate more than the directory says
        return file.read(member.file_size)


def _array(data: bytes) -> np.ndarray:
    """Return the array in a .npy file. Allocates no memory for a shape larger than the data."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array has another format")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "if" or is_fortran or min(shape, default=0) < 0:
        raise ValueError(f"an array is {dtype} of {shape}")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)


# The file of a running run: written after the numbers are in memory; its errors do not reach the run

CHECK_EVERY_S = 1.0  # between checks that the files still exist
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # until the next attempt
SHARE = 0.02  # of wall time, for failing attempts
_logger = logging.getLogger("treeviz")


def keep(history: History, path: str | os.PathLike, *, clock: Callable[[], float] = time.monotonic) -> Path:
    """Write the history to `path` and each further step to `path.journal`; see `GradientInspector.keep`."""
    journal = Journal(history, path, clock=clock)
    if history.journal is not None:
        history.journal.close()
    history.journal = journal
    return journal.path


class Journal:
    """Appends each step to a file, and rewrites the whole history when the file exceeds the history's memory.

    If the disk is full or the file is gone, one warning is logged, and the whole history is rewritten later, so that
    only a crash in between loses steps.
    """

    def __init__(self, history: History, path: str | os.PathLike, *, clock: Callable[[], float]) -> None:
        self.trouble = ""  # why the file lacks steps; empty if it has all
        self._clock, self._process = clock, os.getpid()
        self._file: FileIO | None = None
        self._has_warned = False
        self._wait_s = self._try_again = 0.0
        self._take(history, Path(path))

    def write(self, history: History, step: int, record: Record | ScalarRow, inner: int = -1) -> None:
        """Write the newest step or scalars. Disk errors are logged, not raised."""
        if os.getpid() == self._process:  # in a forked process, the file belongs to the parent
            self._attempt(self._append, history, lambda: encode(history.n_records - 1, step, record, inner))

    def catch_up(self, history: History, *, now: bool = False) -> None:
        """Retry to write what the file lacks, if a retry is due, or `now`."""
        if os.getpid() == self._process and self.lacks(history)[0] and (now or self._clock() >= self._try_again):
            self._attempt(self._rewrite, history)

    def lacks(self, history: History) -> tuple[int, str]:
        """The number of steps and rows of scalars that the file lacks, and the reason."""
        return history.n_records - self._n_records if os.getpid() == self._process else 0, self.trouble

    def saved(self, history: History, path: Path) -> None:
        """Clear the journal if the history was saved to its path."""
        if path.absolute() == self.path.absolute() and os.getpid() == self._process:
            self._n_records = history.n_records
            self._attempt(self._begin, history)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    __del__ = close

    def _attempt(self, function: Callable[..., None], history: History, *arguments) -> None:
        began = self._clock()
        try:
            function(history, *arguments)
        except Exception as error:  # no error of the file may stop the run
            now = self._clock()
            self.trouble = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._wait_s = min(max(2 * self._wait_s, FIRST_WAIT_S), LONGEST_WAIT_S)
            self._try_again = now + max(self._wait_s, (now - began) / SHARE)
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
        is_continued = not self.trouble and is_next and has_room
        assert self._file is not None
        if is_continued and self._clock() >= self._check_again:  # raises FileNotFoundError if one of the files is gone
            is_continued = os.path.samestat(os.stat(self.path), self._snapshot)
            is_continued &= os.path.samestat(os.stat(journal_of(self.path)), os.fstat(self._file.fileno()))
            self._check_again = self._clock() + CHECK_EVERY_S
        if not is_continued:
            self._rewrite(history)
            return
        data = encoded()
        self._file.seek(self._end)  # after the last complete record; a partial one is overwritten
        write_all(self._file, data)
        self._end += len(data)
        self._n_records = history.n_records  # last, so that an interrupt before it causes a full rewrite

    def _rewrite(self, history: History) -> None:
        """Rewrite the whole history; to a new file if another run has taken this one."""
        if self.path.exists() and run_in(self.path) != history.run:
            taken = self.path
            self._take(history, taken)
            _logger.warning("keep: %s now belongs to another run; this one continues in %s.", taken, self.path)
        else:
            write(history, self.path)
            self._n_records = history.n_records
            self._begin(history)

    def _take(self, history: History, path: Path) -> None:
        """Write the whole history to a file that no other run uses: `path`, "run-2.treeviz", …"""
        run, is_new, taken = history.run, False, path
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        for n in itertools.count(1):
            path = _numbered(taken, n)
            if os.path.lexists(journal_of(path)) and not os.path.lexists(path):  # of another run, whose file was moved
                continue
            try:
                with open(path, "xb"):
                    is_new = True
                    break
            except FileExistsError:
                with contextlib.suppress(OSError, ValueError):
                    if run_in(path) == run and load(path).n_records <= history.n_records:
                        break  # the history has everything in the file
        try:
            if not is_new:  # so that another program that loaded this file does not also continue it
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
        """Begin an empty journal next to a file that has the whole history."""
        self._end = 0  # until the new journal is written
        self.close()
        journal = journal_of(self.path)
        journal.unlink(missing_ok=True)  # another program that has it open must not write into the new one
        self._file = FileIO(journal, "x")
        line = first_line(history)
        write_all(self._file, line)
        self._snapshot = os.stat(self.path)
        self._check_again = self._clock() + CHECK_EVERY_S
        self._n_sources = len(history.sources)
        self._end, self.trouble, self._wait_s = len(line), "", 0.0


def write_all(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]  # a nearly full disk writes only a part
