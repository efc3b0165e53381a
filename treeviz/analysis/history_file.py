"""Histories in files.

A history is a zip file, which `numpy.load` reads too. Its `header.json` is `{"format": "treeviz-history", "version": 1,
"run", "n_appended", "max_bytes", "sources": [{"name", "paths", "sizes", "dtypes", "has_number", "shapes"}],
"tracks": [{"source", "statistic", "bucket_width"}]}`. The arrays of track i are, oldest first:

- `i/exact_steps.npy` int64[n] and `i/exact.npy` [n, leaves], or [n, leaves, 64] of histograms;
- `i/bucket_steps.npy` int64[3, k], the first step, the last and how many, and `i/buckets.npy` [3, k, leaves], of floats
  the least, of counts the sum; the greatest; the last.

A journal lies beside it, as `name.journal`, while a run goes on: the line `treeviz-journal 1 RUN`, then a record per
step. A record is the lengths of its two parts as little-endian uint32; JSON `{"n", "step", "arrays":
[[source, statistic]]}` in UTF-8; the arrays, little-endian float64 or int64; and the CRC-32 of all that as uint32.
`n` is how many steps came before, so that those which are in both files are read once. A record that is cut or damaged
ends the journal.
"""

from __future__ import annotations

import io
import json
import os
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from treeviz.analysis.gradients import Source

if TYPE_CHECKING:
    from treeviz.analysis.history import History

FORMAT, VERSION = "treeviz-history", 1
_ARRAYS = ("exact_steps", "exact", "bucket_steps", "buckets")
_LENGTHS, _SUM = struct.Struct("<II"), struct.Struct("<I")


def save(history: History, path: str | os.PathLike) -> None:
    path = Path(path)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "run": history.run,
        "n_appended": history.n_appended,
        "max_bytes": history.max_bytes,
        "sources": [source._asdict() for source in history.sources.values()],
        "tracks": [
            {"source": source, "statistic": statistic, "bucket_width": track.bucket_width}
            for (source, statistic), track in history.tracks.items()
        ],
    }
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                archive.writestr("header.json", json.dumps(header))
                for i, track in enumerate(history.tracks.values()):
                    order = (track.oldest + np.arange(track.n_exact)) % len(track.exact_steps)
                    n = track.n_buckets
                    arrays = (track.exact_steps[order], track.exact[order], track.bucket_steps[:, :n])
                    for name, array in zip(_ARRAYS, (*arrays, track.buckets[:, :n]), strict=True):
                        with archive.open(f"{i}/{name}.npy", "w", force_zip64=True) as member:
                            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def load(path: str | os.PathLike) -> History:
    from treeviz.analysis.history import History

    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read("header.json"))
            if header["format"] != FORMAT or header["version"] > VERSION:
                raise ValueError(f"version {header['version']} of {header['format']}")
            fields = [[source["name"], *map(tuple, list(source.values())[1:])] for source in header["sources"]]
            sources = [Source._make(values) for values in fields]
            history = History(sources, header["max_bytes"])
            history.run, history.n_appended = str(header["run"]), int(header["n_appended"])
            for i, entry in enumerate(header["tracks"]):
                track = history.new_track(entry["source"], entry["statistic"])
                arrays = [np.load(io.BytesIO(archive.read(f"{i}/{name}.npy")), allow_pickle=False) for name in _ARRAYS]
                track.restore(arrays, int(entry["bucket_width"]))
    except (zipfile.BadZipFile, KeyError, TypeError, AttributeError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"load: {path} is no history that this version of treeviz can read: {error}") from error
    journal = journal_of(path)
    if journal.exists():
        _replay(history, journal)
    return history


def journal_of(path: str | os.PathLike) -> Path:
    return Path(f"{os.fspath(path)}.journal")


def _first_line(history: History) -> bytes:
    return f"treeviz-journal 1 {history.run}\n".encode()


class Journal:
    """Writes each step behind a saved history, and saves it anew when the journal has grown as large as the history."""

    def __init__(self, history: History, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._process = os.getpid()
        self._file: io.FileIO | None = None
        self._start(history)

    def _start(self, history: History) -> None:
        save(history, self.path)
        if self._file is not None:
            self._file.close()
        self._file = io.FileIO(journal_of(self.path), "w")
        self._file.write(_first_line(history))
        self._n_first = self._file.tell()
        self._n_bytes = 0

    def write(self, history: History, step: int, record: list[tuple[str, str, np.ndarray]]) -> None:
        if os.getpid() != self._process:  # a forked child: the file is its parent's
            return
        if self._n_bytes > max(history.max_bytes, 1 << 20):
            self._start(history)
        names = [[source, statistic] for source, statistic, _ in record]
        head = json.dumps({"n": history.n_appended, "step": int(step), "arrays": names}).encode()
        body = b"".join(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes() for *_, values in record)
        data = _LENGTHS.pack(len(head), len(body)) + head + body
        data += _SUM.pack(zlib.crc32(data))
        self._n_bytes += len(data)
        self._file.write(data)  # type: ignore[union-attr]

    def saved(self, path: str | os.PathLike) -> None:
        """The history was saved: if in place of this journal's, its records are not needed any more."""
        if Path(path).absolute() == self.path.absolute() and os.getpid() == self._process:
            self._file.seek(self._n_first)  # type: ignore[union-attr]
            self._file.truncate()  # type: ignore[union-attr]
            self._n_bytes = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    __del__ = close


def _replay(history: History, journal: Path) -> None:
    with open(journal, "rb") as file:
        if file.readline(200) != _first_line(history):
            return
        while len(lengths := file.read(_LENGTHS.size)) == _LENGTHS.size:
            n_head, n_body = _LENGTHS.unpack(lengths)
            rest = file.read(n_head + n_body + _SUM.size)
            whole = lengths + rest[: -_SUM.size]
            if len(rest) < n_head + n_body + _SUM.size or zlib.crc32(whole) != int.from_bytes(
                rest[-_SUM.size :], "little"
            ):
                return
            head = json.loads(rest[:n_head])
            if head["n"] == history.n_appended:
                history.add(head["step"], list(_arrays(history, head["arrays"], rest[n_head : n_head + n_body])))


def _arrays(history: History, names: list[list[str]], body: bytes):
    at = 0
    for source, statistic in names:
        shape, dtype = history.kind_of(source, statistic)
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        yield (
            source,
            statistic,
            np.frombuffer(body[at : at + n_bytes], np.dtype(dtype).newbyteorder("<")).reshape(shape),
        )
        at += n_bytes
