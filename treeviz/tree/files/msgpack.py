"""Flax' msgpack files: `flax.serialization.to_bytes`. Arrays are passed over, which msgpack's own readers cannot.

The formats: https://github.com/msgpack/msgpack/blob/master/spec.md and `flax/serialization.py`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from treeviz.tree.files.entries import At, Unread, n_bytes_of
from treeviz.tree.safe_repr import visible
from treeviz.tree.stored import Stored

_MOST_VALUES = 1_600_000  # an array has eight
_MOST_LEVELS = 200
_AT_ONCE = 4096  # bytes that are read
_UNKNOWN = ((), np.dtype(np.void), -100)  # what stands before an array that is met for the first time
_LONGEST_HEAD, _MOST_LENGTHS = 64, 16  # of what stands in an array before its bytes
_LONGEST_TEXT = 100_000  # bytes
_LONGEST_KEY = 32  # bytes of a short text, with the one before it
_NDARRAY, _COMPLEX, _SCALAR = 1, 2, 3  # Flax' extensions
_CHUNKED = "__msgpack_chunked_array__"  # an array of more than 1 GiB, as a dict of flat parts
_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_NUMBERS |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_LENGTHS = {"bin": (0xC4, 0xC5, 0xC6), "ext": (0xC7, 0xC8, 0xC9), "str": (0xD9, 0xDA, 0xDB)}
_LENGTHS |= {"array": (None, 0xDC, 0xDD), "map": (None, 0xDE, 0xDF)}
_KIND_OF = {code: (kind, 1 << i) for kind, codes in _LENGTHS.items() for i, code in enumerate(codes)}


class _Bytes(NamedTuple):
    """Where bytes stand that were passed over."""

    start: int
    n: int


def read_msgpack(path: Path) -> Any:
    """The tree that Flax wrote; dicts with the keys of a list are lists."""
    with open(path, "rb") as file:
        scanner = _Scanner(path, file)
        tree = scanner.value()
        if scanner.n_left:
            raise ValueError(f"{scanner.n_left:,} bytes follow its end")
    return tree


class _Scanner:
    """Reads msgpack values from a file, and passes over the bytes of arrays."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self._size = os.fstat(file.fileno()).st_size
        self._at = self._n_values = 0
        self._buffer, self._from = b"", 0  # a few bytes of the file, from there on
        self._known: dict[bytes, tuple[tuple[int, ...], np.dtype, int]] = {}  # arrays by what stands before their bytes
        self._lengths: dict[int, None] = {}  # of these keys
        self._keys: dict[bytes, str] = {}  # of dicts, each once
        self._is_inside = False  # of an extension: bytes there are an array's

    @property
    def n_left(self) -> int:
        return self._size - self._at

    def value(self, name: str = "", level: int = 0) -> Any:
        self._n_values += 1
        if self._n_values > _MOST_VALUES or level > _MOST_LEVELS:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values, or {_MOST_LEVELS} levels")
        code = self._read(1)[0]
        if 0x80 <= code < 0x90:
            return self._map(code & 15, name, level)
        if code in _KIND_OF:
            kind, width = _KIND_OF[code]
            n = int.from_bytes(self._read(width), "big")
            return self._ext(n, name, level) if kind == "ext" else getattr(self, f"_{kind}")(n, name, level)
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 0x100
        if code < 0xC0:
            return self._array(code & 15, name, level) if code < 0xA0 else self._str(code & 31, name, level)
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])
        if 0xD4 <= code <= 0xD8:
            return self._ext(1 << (code - 0xD4), name, level)
        if code == 0xC1:
            raise ValueError("it is no msgpack")
        return {0xC0: None, 0xC2: False, 0xC3: True}[code]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._read(struct.calcsize(form)))[0]

    def _read(self, n: int) -> bytes:
        start = self._at - self._from
        data = self._buffer[start : start + n]
        if len(data) < n:
            data = self._peek(n)
            if len(data) < n:
                raise ValueError(f"it is cut: {n:,} more bytes were to come")
        self._at += n
        return data

    def _peek(self, n: int) -> bytes:
        """The next `n` bytes; fewer at the end."""
        start = self._at - self._from
        if start > len(self._buffer) - n and n <= self.n_left:
            self._file.seek(self._at)
            self._buffer, self._from, start = self._file.read(max(n, _AT_ONCE)), self._at, 0
        return self._buffer[start : start + n]

    def _skip(self, n: int) -> _Bytes:
        start = self._at
        if n > self._size - start:
            raise ValueError(f"it is cut: {n:,} more bytes were to come, and {self._size - start:,} are there")
        self._at += n
        return _Bytes(start, n)

    def _bin(self, n: int, name: str, level: int) -> Any:
        where = self._skip(n)
        return where if self._is_inside else Unread("bytes", f"{n:,} bytes")

    def _str(self, n: int, name: str, level: int) -> Any:
        if n > _LONGEST_TEXT:
            self._skip(n)
            return Unread("str", f"{n:,} bytes of text")
        return self._read(n).decode("utf-8")

    def _array(self, n: int, name: str, level: int) -> list[Any]:
        if n > self.n_left:
            raise ValueError(f"it is cut: a list of {n:,} was to come")
        return [self.value(f"{name}/{i}" if name else str(i), level + 1) for i in range(n)]

    def _map(self, n: int, name: str, level: int) -> Any:
        if n > self.n_left:
            raise ValueError(f"it is cut: a dict of {n:,} was to come")
        found: dict[Any, Any] = {}
        above = f"{name}/" if name else ""
        for _ in range(n):
            key = self._key(level)
            if key in found:
                raise ValueError(f"it has {visible(f'{name}/{key}', 200)!r} twice")
            found[key] = self.value(f"{above}{key}", level + 1)
        if _CHUNKED in found:
            return self._chunked(found, name)
        if "0" in found and all(str(i) in found for i in range(len(found))):
            return [found[str(i)] for i in range(len(found))]
        return found

    def _key(self, level: int) -> str | int:
        start = self._at - self._from
        head = self._buffer[start : start + _LONGEST_KEY]
        n = head[0] - 0xA0 if head else -1
        if 0 <= n < len(head):  # a short text, which ends in the buffer
            text = head[1 : n + 1]
            key = self._keys.get(text)
            if key is None:
                key = self._keys[text] = text.decode("utf-8")
            self._at += n + 1
            self._n_values += 1
            return key
        key = self.value(level=level + 1)
        if not isinstance(key, str | int):
            raise ValueError(f"a key of a dict is no text: {visible(str(key), 100)}")
        return key

    def _ext(self, n: int, name: str, level: int) -> Any:
        kind = self._read(1)[0]
        start, end = self._at, self._at + n
        if end > self._size:
            self._skip(n)
        if kind in (_NDARRAY, _SCALAR):
            at = start - self._from
            for length in self._lengths:
                shape, dtype, n_bytes = self._known.get(self._buffer[at : at + length], _UNKNOWN)
                if length + n_bytes == n:
                    self._at, self._n_values = end, self._n_values + 4 + len(shape)
                    return Stored(shape, dtype, At(self._path, start + length), name, n_bytes)
        elif kind != _COMPLEX:
            self._skip(n)
            return Unread("extension", f"{n:,} bytes of the kind {kind - 256 * (kind > 127)}")
        self._is_inside = True
        parts = self.value(level=level + 1)
        self._is_inside = False
        if self._at != end:
            raise ValueError(f"{visible(name, 200)!r} is damaged")
        if kind == _COMPLEX:
            real, imaginary = parts
            return complex(float(real), float(imaginary))
        stored = self._stored(name, *parts)
        length, at = n - stored.nbytes, start - self._from
        head = self._buffer[at : at + length] if 0 < length <= _LONGEST_HEAD and at >= 0 else b""
        if len(head) == length and len(self._lengths) < _MOST_LENGTHS:
            self._known[head] = stored.shape, stored.dtype, stored.nbytes
            self._lengths[length] = None
        return stored

    def _stored(self, name: str, shape: Any, dtype_name: Any, data: Any) -> Stored:
        shown = visible(name, 200)
        if not (type(shape) is list and type(dtype_name) is str and type(data) is _Bytes):
            raise ValueError(f"{shown!r} is damaged")
        dtype = np.dtype(getattr(ml_dtypes, dtype_name, None) or dtype_name)
        if dtype.hasobject or n_bytes_of(shown, shape, dtype) != data.n:
            raise ValueError(f"{shown!r} has {data.n:,} bytes, and needs others for {tuple(shape)} of {dtype}")
        return Stored(tuple(shape), dtype, At(self._path, data.start), name)

    def _chunked(self, found: dict[Any, Any], name: str) -> Stored:
        shown = visible(name, 200)
        shape, parts = found.get("shape"), found.get("chunks")
        if not (type(shape) is list and type(parts) is list and parts and all(type(each) is Stored for each in parts)):
            raise ValueError(f"{shown!r} is damaged")
        dtype = parts[0].dtype
        n_bytes = n_bytes_of(shown, shape, dtype)
        if n_bytes != sum(each.nbytes for each in parts) or any(each.dtype != dtype for each in parts):
            raise ValueError(f"{shown!r} is damaged: its parts do not make up its shape")
        return Stored(tuple(shape), dtype, partial(_of_parts, parts), name)


def _of_parts(parts: list[Stored], _: Stored) -> Iterator[np.ndarray]:
    return chain.from_iterable(part.chunks() for part in parts)
