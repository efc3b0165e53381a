"""`.npy`, `.npz` and `.eqx` files: NumPy's arrays. See `numpy.lib.format` for the format."""

from __future__ import annotations

import io
import os
import struct
import warnings
import weakref
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from treeviz.tree.files.entries import At, Unread, n_bytes_of, refuse
from treeviz.tree.safe_repr import visible
from treeviz.tree.stored import Stored, chunks_from

MAX_HEADER = 10_000  # bytes; the limit of numpy.load. A compressed header can claim 4 GB.
_MAX_DIRECTORY = 24_000_000  # bytes of an archive's list of members: of some 200,000 arrays
_MAX_ARRAYS = 1_000_000  # in one .eqx file
_MAX_LINE = 1_000_000  # bytes before the arrays of an .eqx file
_USUAL = 1024  # bytes of the beginning of an array in an archive
_ENCRYPTED = 0x1  # a flag of a zip file's member


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype
    order: str
    n_bytes: int  # of the values
    start: int  # of the values

    def stored(self, chunks: Any, name: str) -> Stored:
        text = "pickled Python objects, which treeviz does not open" if self.dtype.hasobject else ""
        return Stored(self.shape, self.dtype, refuse(text) if text else chunks, name, text=text, order=self.order)


def read_npy(path: Path) -> Stored:
    with open(path, "rb") as file:
        header = _read_header(file, "the array")
        _check_size("the array", header, os.fstat(file.fileno()).st_size)
    return header.stored(At(path, header.start), path.name)


def read_npz(path: Path) -> Iterator[tuple[str, Any]]:
    file = _Bounded(path)
    try:
        archive = zipfile.ZipFile(file)
    except BaseException:
        file.close()
        raise
    weakref.finalize(archive, file.close)  # with the last of its arrays
    members = archive.infolist()
    n_same = Counter(member.filename for member in members)
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name != member.filename:
            entry = _entry(archive, member, name)
        else:
            entry = Unread("file", "not an array")
            if f"{name}.npy" in n_same:
                name = f"{name} (not an array)"
        n_same[member.filename] -= 1
        if n_same[member.filename]:
            name = f"{name} (hidden {n_same[member.filename]})"
            entry = Unread("hidden", "numpy.load gives a later array of the same name")
        yield name, entry
    archive.filelist.clear()
    archive.NameToInfo.clear()


def read_eqx(path: Path) -> list[Stored]:
    """The arrays of a file of `equinox.tree_serialise_leaves`, in their order: the model says which is which."""
    arrays: list[Stored] = []
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(1) == b"{":  # hyperparameters, as Equinox' documentation has it
            file.readline(_MAX_LINE)
        else:
            file.seek(0)
        while (start := file.tell()) < size:
            if len(arrays) >= _MAX_ARRAYS:
                raise ValueError(f"it has more than {_MAX_ARRAYS:,} arrays")
            name = f"array {len(arrays)}"
            header = _read_header(file, name)
            header = header._replace(start=start + header.start)
            _check_size(name, header, size)
            arrays.append(header.stored(At(path, header.start), name))
            file.seek(header.start + header.n_bytes)
    return arrays


class _Member(NamedTuple):
    """Reads the values of an array in an archive, whose own records of 100,000 arrays would take 50 MB."""

    archive: zipfile.ZipFile
    start: int  # of the values
    name: str
    header_offset: int
    flag_bits: int
    compress_type: int
    CRC: int
    compress_size: int
    file_size: int

    def __call__(self, stored: Stored) -> Iterator[np.ndarray]:
        @contextmanager
        def open_values() -> Iterator[IO[bytes]]:
            member = zipfile.ZipInfo(self.name)
            for each in _Member._fields[3:]:
                setattr(member, each, getattr(self, each))
            with self.archive.open(member) as file:
                file.read(self.start)  # `seek` would give up the checksum
                yield file

        return chunks_from(open_values, stored)


class _Bounded(io.FileIO):
    """A file whose list of members fills no memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY:
            raise ValueError(f"its list of arrays would be {size:,} bytes long")
        return super().read(size)


def _entry(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Any:
    if member.flag_bits & _ENCRYPTED:
        return Unread("file", "encrypted: treeviz asks for no password")
    shown = visible(member.filename, 100)
    with _beginning(archive, member) as file:
        header = _read_header(file, shown)
    _check_size(shown, header, member.file_size)
    place = (member.orig_filename, *(getattr(member, each) for each in _Member._fields[3:]))
    return header.stored(_Member(archive, header.start, *place), name)


def _beginning(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    """Where the header of an array can be read: of one that is not compressed in a tenth of the time of `open`."""
    if member.compress_type == zipfile.ZIP_STORED and archive.fp is not None:
        archive.fp.seek(member.header_offset)
        data = archive.fp.read(_USUAL)
        if data[:4] == b"PK\x03\x04":
            n_before = 30 + sum(struct.unpack("<HH", data[26:30]))  # the name, and what else there is
            array = data[n_before : n_before + member.file_size]
            if int.from_bytes(array[8:10], "little") < len(array) - 12:  # all of the header, unless it is very long
                return io.BytesIO(array)
    return archive.open(member)


def _read_header(file: IO[bytes], name: str) -> _Header:
    """The header at the start of a file; never reads more than `MAX_HEADER` bytes."""
    magic = file.read(8)
    version = np.lib.format.read_magic(io.BytesIO(magic))
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"{name} has the version {version[0]}.{version[1]} of the format, which is not known")
    n_length = 2 if version == (1, 0) else 4
    n_text = int.from_bytes(file.read(n_length), "little")
    if n_text > MAX_HEADER:
        raise ValueError(f"the header of {name} would be {n_text:,} bytes long")
    text = file.read(n_text)
    if version == (3, 0):  # in UTF-8; NumPy has a public reader of Latin-1 alone, which takes escapes
        text = text.decode("utf-8").encode("ascii", "backslashreplace")
    shape, is_fortran, dtype = _parsed(text)
    if len(shape) > 64:
        raise ValueError(f"{name} has {len(shape):,} dimensions; NumPy has 64 at most")
    order = "F" if is_fortran else "C"
    return _Header(shape, dtype, order, n_bytes_of(name, shape, dtype), 8 + n_length + n_text)


@lru_cache(maxsize=1000)  # the arrays of a model have few shapes, and NumPy runs Python's parser
def _parsed(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    whole = io.BytesIO(len(text).to_bytes(4, "little") + text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's parser, and of NumPy about files of Python 2
        return np.lib.format.read_array_header_2_0(whole, max_header_size=8 * MAX_HEADER)


def _check_size(name: str, header: _Header, n_stored: int) -> None:
    n_left = max(0, n_stored - header.start)
    if n_left < header.n_bytes and not header.dtype.hasobject:
        raise ValueError(f"{name} is cut: {header.n_bytes:,} bytes of values, and {n_left:,} are there")
