"""`.npy`, `.npz` and `.eqx` files: NumPy's arrays. See `numpy.lib.format` for the format."""

from __future__ import annotations

import io
import os
import struct
import warnings
import weakref
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from operator import attrgetter
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
_LENGTHS = struct.Struct("<HH")  # of what stands between a member's record and its bytes
_read = io.BufferedReader.read  # in C: that of `_Bounded` would be called for each array


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype
    order: str
    n_bytes: int  # of the values
    start: int  # of the values

    def stored(self, chunks: Any, name: str) -> Stored:
        text = "pickled Python objects, which treeviz does not open" if self.dtype.hasobject else ""
        chunks = refuse(text) if text else chunks
        return Stored(self.shape, self.dtype, chunks, name, self.n_bytes, text=text, order=self.order)


def read_npy(path: Path) -> Stored:
    with open(path, "rb") as file:
        header = _read_header(file, "the array")
        _check_size("the array", header, os.fstat(file.fileno()).st_size)
    return header.stored(At(path, header.start), path.name)


def read_npz(path: Path) -> Iterator[tuple[str, Any]]:
    file = _Bounded(io.FileIO(path))
    try:
        archive = zipfile.ZipFile(file)
    except BaseException:
        file.close()
        raise
    weakref.finalize(archive, file.close)  # with the last of its arrays
    members = archive.infolist()
    is_twice = len(archive.NameToInfo) < len(members)
    n_same = Counter(map(attrgetter("filename"), members)) if is_twice else Counter()
    known: dict[bytes, _Header] = {}  # the arrays of a model have few shapes
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name != member.filename:
            entry = _entry(archive, member, name, known)
        else:
            entry = Unread("file", "not an array")
            if f"{name}.npy" in archive.NameToInfo:
                name = f"{name} (not an array)"
        if is_twice:
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


# Where a member stands. The archive's own records of 100,000 would take 50 MB.
_PLACE = ("orig_filename", "header_offset", "flag_bits", "compress_type", "CRC", "compress_size", "file_size")
_place_of = attrgetter(*_PLACE)


class _Member(NamedTuple):
    """Reads the values of an array in an archive."""

    archive: zipfile.ZipFile
    start: int  # of the values
    place: tuple[Any, ...]

    def __call__(self, stored: Stored) -> Iterator[np.ndarray]:
        @contextmanager
        def open_values() -> Iterator[IO[bytes]]:
            member = zipfile.ZipInfo(self.place[0])
            for name, value in zip(_PLACE[1:], self.place[1:], strict=True):
                setattr(member, name, value)
            with self.archive.open(member) as file:
                file.read(self.start)  # `seek` would give up the checksum
                yield file

        return chunks_from(open_values, stored)


_new_member = partial(tuple.__new__, _Member)  # in half the time of `_Member`


class _Bounded(io.BufferedReader):
    """A file whose list of members fills no memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY:
            raise ValueError(f"its list of arrays would be {size:,} bytes long")
        return super().read(size)


def _entry(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, known: dict[bytes, _Header]) -> Any:
    if member.flag_bits & _ENCRYPTED:
        return Unread("file", "encrypted: treeviz asks for no password")
    text = _header_text(archive, member)
    header = known.get(text)
    if header is None:
        with io.BytesIO(text) if text else archive.open(member) as file:
            header = _read_header(file, visible(member.filename, 100))
        if text:
            known[text] = header
    if member.file_size - header.start < header.n_bytes:
        _check_size(member.filename, header, member.file_size)
    return header.stored(_new_member((archive, header.start, _place_of(member))), name)


def _header_text(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The header of an array, in a tenth of the time of `open`; b"" if that is to be used."""
    stored, file = member.compress_type == zipfile.ZIP_STORED, archive.fp
    if not (stored or member.compress_type == zipfile.ZIP_DEFLATED) or file is None:
        return b""
    file.seek(member.header_offset)
    data = _read(file, _USUAL)  # type: ignore[arg-type]
    if data[:4] != b"PK\x03\x04" or len(data) < 30:
        return b""
    n_name, n_more = _LENGTHS.unpack_from(data, 26)
    start = 30 + n_name + n_more
    array = data[start : start + member.compress_size]
    if not stored:
        array = zlib.decompressobj(-zlib.MAX_WBITS).decompress(array, _USUAL)
    end = 10 + int.from_bytes(array[8:10], "little")
    is_whole = end <= min(len(array), member.file_size)
    return array[:end] if is_whole and array[6:8] == b"\x01\x00" else b""


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
        raise ValueError(f"{visible(name, 100)} is cut: {header.n_bytes:,} bytes of values, and {n_left:,} are there")
