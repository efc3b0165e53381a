"""`.npy` and `.npz` files: NumPy's arrays. See `numpy.lib.format` for the format."""

from __future__ import annotations

import io
import os
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import numpy as np

from treeviz.tree.files.entries import NUMBERS, Stored, Unread, n_bytes_of, open_at, unread_array
from treeviz.tree.safe_repr import visible

MAX_HEADER = 10_000  # bytes; the limit of numpy.load. A compressed header can claim 4 GB.
_ENCRYPTED = 0x1  # a flag of a zip file's member


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype
    n_bytes: int  # of the values
    start: int  # of the values

    @property
    def is_number(self) -> bool:
        return self.dtype.kind in NUMBERS


def read_npy(path: Path, values: bool) -> Any:
    with open(path, "rb") as file:
        header = _read_header(file, "the array")
        if not header.dtype.hasobject:
            _check_size("the array", header, os.fstat(file.fileno()).st_size)
    if not header.is_number:
        return unread_array(header.shape, header.dtype)
    if values:
        return Stored(header.shape, header.dtype, partial(open_at, path, header.start))
    return jax.ShapeDtypeStruct(header.shape, header.dtype)


def read_npz(path: Path, values: bool) -> Iterator[tuple[str, Any]]:
    archive = zipfile.ZipFile(path)  # the last of its arrays closes it
    members = archive.infolist()
    n_same = Counter(member.filename for member in members)
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name != member.filename:
            entry = _entry(archive, member, values)
        else:
            entry = Unread("file", "not an array")
            if f"{name}.npy" in n_same:
                name = f"{name} (not an array)"
        n_same[member.filename] -= 1
        if n_same[member.filename]:
            name = f"{name} (hidden {n_same[member.filename]})"
            entry = Unread("hidden", "numpy.load gives a later array of the same name")
        yield name, entry


def _entry(archive: zipfile.ZipFile, member: zipfile.ZipInfo, values: bool) -> Any:
    if member.flag_bits & _ENCRYPTED:
        return Unread("file", "encrypted: treeviz asks for no password")
    name = visible(member.filename, 100)
    with archive.open(member) as file:
        header = _read_header(file, name)
    if not header.dtype.hasobject:
        _check_size(name, header, member.file_size)
    if not header.is_number:
        return unread_array(header.shape, header.dtype)
    if not values:
        return jax.ShapeDtypeStruct(header.shape, header.dtype)

    @contextmanager
    def open_values() -> Iterator[IO[bytes]]:
        with archive.open(member) as file:
            file.read(header.start)  # `seek` would give up the checksum
            yield file

    return Stored(header.shape, header.dtype, open_values)


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
    whole = io.BytesIO(len(text).to_bytes(4, "little") + text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's parser, and of NumPy about files of Python 2
        shape, _, dtype = np.lib.format.read_array_header_2_0(whole, max_header_size=8 * MAX_HEADER)
    if len(shape) > 64:
        raise ValueError(f"{name} has {len(shape):,} dimensions; NumPy has 64 at most")
    return _Header(shape, dtype, n_bytes_of(name, shape, dtype), 8 + n_length + n_text)


def _check_size(name: str, header: _Header, n_stored: int) -> None:
    n_left = max(0, n_stored - header.start)
    if n_left < header.n_bytes:
        raise ValueError(f"{name} is cut: {header.n_bytes:,} bytes of values, and {n_left:,} are there")
