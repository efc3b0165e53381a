"""Histories in files.

A history is a zip file, which `numpy.load` reads too. Its `header.json` is `{"format": "treeviz-history", "version": 1,
"run", "name", "n_appended", "max_bytes", "sources": [{"name", "paths", "sizes", "dtypes", "has_number", "shapes",
"stacks", "cut_off", "unscaled"}], "tracks": [{"source", "statistic", "bucket_width"}], "scalars": {"n_appended",
"tracks": [{"name", "bucket_width"}], "batches": [[step, ids or text, n, weight]]}, "forward": {source: [leaf]}}`;
"scalars" only if there are some, and "forward", the order in which the step uses the leaves, only if that is known. The
arrays of track i, of the tracks and then of those of the scalars, whose leaves are the value and a code, are, oldest
first:

- `i/exact_steps.npy` int64[n] and `i/exact.npy` [n, leaves], or [n, leaves, 64] of histograms;
- `i/bucket_steps.npy` int64[3, k], the first step, the last and how many, and `i/buckets.npy` [3, k, leaves], of floats
  the least, of counts the sum; the greatest; the last.

During a run there is a journal in the same folder, `name.journal`: the line `treeviz-journal 1 RUN`, then a record per
step, or row of scalars. A record is the lengths of its two parts as little-endian uint32; JSON in UTF-8, `{"n", "step",
"arrays": [[source, statistic]]}` or `{"n", "step", "scalars": {name: [value]}, "batch": [ids or text, n, weight]}`; the
arrays, little-endian float64 or int64; and the CRC-32 of all that as uint32. `n` is the number of records before, so
that what is in both files is read once. A truncated or damaged record ends the journal.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import zipfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from treeviz.steps.measure import MeasuredTree
from treeviz.steps.measured_tree import wholes
from treeviz.steps.recording.history import History
from treeviz.steps.recording.records import replay
from treeviz.steps.recording.scalars import TRACK_BYTES
from treeviz.steps.recording.track import FEWEST_BUCKETS, FEWEST_EXACT, Track
from treeviz.tree.files.entries import parse_json
from treeviz.tree.safe_repr import printable, visible

FORMAT, VERSION = "treeviz-history", 1
_ARRAYS = ("exact_steps", "exact", "bucket_steps", "buckets")
_MOST_HEADER = 1 << 28  # bytes
_MOST_ALWAYS = 1 << 27  # bytes that a small file may inflate to
_MOST_PACKED = 100  # times; nothing but zeros is a thousandth


def save(history: History, path: str | os.PathLike) -> None:
    """Write a history to one file, atomically.

    The records of a journal of this file are dropped, since the file contains them.
    """
    path = Path(path)
    write(history, path)
    if history.journal is not None:
        history.journal.saved(history, path)


def write(history: History, path: Path) -> None:
    """Write a history to one file, atomically, and leave its journal as it is."""
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
    """All but the arrays, as JSON."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "run": history.run,
        "name": history.name,
        "n_appended": history.n_appended,
        "max_bytes": history.max_bytes,
        "sources": [_fields(source) for source in history.sources.values()],
        "tracks": [
            {"source": source, "statistic": statistic, "bucket_width": track.bucket_width}
            for (source, statistic), track in history.tracks.items()
        ],
        **({"scalars": history.scalars.fields()} if history.scalars else {}),
        **({"forward": forward} if (forward := _orders(history)) else {}),
    }


def _orders(history: History) -> dict[str, list[int]]:
    """The leaves of each source in the order in which the step uses them."""
    known = {name: {path: i for i, path in enumerate(of.paths)} for name, of in history.sources.items()}
    return {
        name: [known[name][path] for path in paths if path in known[name]]
        for name, paths in history.forward.items()
        if name in known
    }


def _fields(source: MeasuredTree) -> dict[str, Any]:
    """Its fields by name, without the last ones that it does not have, so that older versions read it."""
    kept = len(source)
    while not source[kept - 1] and kept > source._fields.index("stacks"):
        kept -= 1
    return dict(zip(source._fields[:kept], source, strict=False))


class _NewArchive(zipfile.ZipFile):
    """An archive that is closed when it is complete: else an error of zipfile would hide a Ctrl-C."""

    def __exit__(self, kind, *_: object) -> None:
        if kind is None:
            self.close()

    def __del__(self) -> None:
        pass


def load(path: str | os.PathLike) -> History:
    """Read what `save` or `keep` wrote.

    Raises:
      OSError: There is no such file, or it may not be read.
      ValueError: The file is no history, is damaged, or has a newer format.
    """
    path = Path(path)
    with open(path, "rb") as file:
        try:
            history = _history_in(file)
        except Exception as error:  # a damaged zip file makes zipfile, zlib and NumPy raise nearly anything
            why = visible(str(error), 300) or type(error).__name__
            shown = visible(str(path), 1000)
            raise ValueError(f"load: {shown} is no history that this version of treeviz can read: {why}") from error
    journal = journal_of(path)
    if journal.is_file():
        replay(history, journal)
    return history


def run_in(path: Path) -> str:
    """The identifier of the run in a file; empty if it is no history. Takes well below a millisecond."""
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return str(_header(archive)["run"])
    except Exception:
        return ""


def journal_of(path: str | os.PathLike) -> Path:
    return Path(f"{os.fspath(path)}.journal")


def _history_in(file: BinaryIO) -> History:
    with zipfile.ZipFile(file) as archive:
        n_bytes, n_packed = (
            sum(getattr(each, of) for each in archive.infolist()) for of in ("file_size", "compress_size")
        )
        if n_bytes > max(_MOST_ALWAYS, _MOST_PACKED * n_packed):
            raise ValueError(f"it would take {n_bytes:,} bytes of memory, and the file has {n_packed:,}")
        history, tracks = history_of(_header(archive))
        n_least = sum(8 * int(np.prod(track.shape)) * (FEWEST_EXACT + 3 * FEWEST_BUCKETS) for track, _ in tracks)
        n_left = 2 * (history.max_bytes + n_least + len(history.scalars.tracks) * TRACK_BYTES) + (1 << 16) * len(
            tracks
        )  # of bytes; more is no history
        for i, (track, bucket_width) in enumerate(tracks):
            arrays = []
            for name in _ARRAYS:
                data = _content(archive, f"{i}/{name}.npy", n_left)
                n_left -= len(data)
                arrays.append(_array(data))
            track.restore(arrays, bucket_width)
    return history


def history_of(header: dict[str, Any]) -> tuple[History, list[tuple[Track, int]]]:
    """The history of `header_of`, and its tracks, which are empty, with the widths of their buckets."""
    history = History(list(_sources(header["sources"])), int(header["max_bytes"]))
    history.run, history.n_appended = str(header["run"]), int(header["n_appended"])
    history.name = printable(str(header.get("name", "")))
    tracks = [
        (history.new_track(printable(of["source"]), of["statistic"]), int(of["bucket_width"]))
        for of in header["tracks"]
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
    return checked(parse_json(_content(archive, "header.json", _MOST_HEADER), None))


def checked(header: dict[str, Any]) -> dict[str, Any]:
    """The header, if this version reads it."""
    if header["format"] != FORMAT or header["version"] > VERSION:
        raise ValueError(f"version {header['version']} of {header['format']}")
    return header


def _sources(fields: list[dict[str, Any]]) -> Iterator[MeasuredTree]:
    for name, *of_leaves in (list(source.values()) for source in fields):
        source = MeasuredTree(str(name), *map(tuple, of_leaves))
        is_whole = len({len(values) for values in source[1:5]}) == 1
        is_whole &= {len(source.cut_off), len(source.unscaled)} <= {0, len(source.paths)}
        for values, kind in zip(source[1:], (str, int, str, int, str, str, int, int), strict=True):
            is_whole &= all(isinstance(value, kind) for value in values)
        if not is_whole:
            raise ValueError(f"the leaves of {source.name!r} do not fit together")
        texts: dict[str, Any] = {
            field: tuple(map(printable, getattr(source, field))) for field in ("paths", "dtypes", "shapes", "stacks")
        }
        source = source._replace(name=printable(source.name), **texts)
        list(wholes(source))  # raises if they are no layers
        yield source


def _content(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """What a member contains, if that is at most `most` bytes."""
    member = archive.getinfo(name)
    if member.file_size > most or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} has {member.file_size:,} bytes in compression {member.compress_type}")
    with archive.open(member) as file:  # `archive.read` would inflate more than the directory says
        return file.read(member.file_size)


def _array(data: bytes) -> np.ndarray:
    """The array in a .npy file. Allocates nothing for a shape that the data does not have."""
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array has another format")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "if" or is_fortran or min(shape, default=0) < 0:
        raise ValueError(f"an array is {dtype} of {shape}")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)
