"""GGUF files: tensors of llama.cpp, most of them quantized.

The library `gguf` knows the blocks of each type and reads their values. The header is read here, since the library
believes what a damaged file claims. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from treeviz.integrations import not_installed
from treeviz.tree.files import At, n_bytes_of, size_of, state_of
from treeviz.tree.stored import CHUNK, Stored, Verbatim, metadata_of
from treeviz.tree.text import visible

_MOST_TENSORS = 1_000_000
_MOST_VALUES = 1_500_000  # in the metadata; most are words of a vocabulary
_LONGEST_NAME = 10_000  # bytes
_MOST_AXES = 8
_AT_ONCE = 4096  # bytes
_MOST_KEPT = 10_000  # values of the metadata
_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)  # bytes of a value in the header, by its type
_FORMS = "BbHhIif?  Qqd"  # of `struct`
_TEXT, _ARRAY = 8, 9
_CUT = "it is cut: its header goes on"
_FEW = 16  # values of an array in the metadata that are shown
_MOST_SUMMED = 64 << 20  # bytes of a value with a checksum
_PIECE = 1 << 20  # bytes of one read
_PLAIN: dict[str, Any] = {f"I{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)} | {"BF16": ml_dtypes.bfloat16}
_PLAIN |= {f"F{n}": np.dtype(f"float{n}") for n in (16, 32, 64)}


def read_gguf(path: Path) -> Iterator[tuple[str, Stored]]:
    """The tensors, by name. Their axes are in the order of NumPy, which is the reverse of the file's."""
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        raise not_installed(error, "gguf") from error
    with path.open("rb") as file:
        size, state, header = size_of(file), state_of(file), _Header(file)
        tensors, start = header.tensors()
        metadata = metadata_of(header.metadata)
    ranges: list[tuple[int, int, str]] = []
    known: dict[tuple[tuple[int, ...], int], _Kind] = {}  # the arrays of a model have few shapes
    for name, shape, code, offset in tensors:
        if (shape, code) not in known:
            type_ = GGMLQuantizationType(code)
            known[shape, code] = _kind(_shown(name), shape, type_, *GGML_QUANT_SIZES[type_])
        kind = known[shape, code]
        ranges.append((offset, offset + kind.n_bytes, name))
        at = At(path, start + offset, state)
        chunks = at if kind.blocks is None else _Blocks(at, kind.blocks)
        facts = kind.n_bytes, kind.stored_as, kind.text
        yield name, Stored(kind.shape, kind.dtype, chunks, name, *facts, metadata=metadata)
    _check_ranges(ranges, size - start)


def _shown(name: str) -> str:
    return f"the tensor {visible(name, 100)!r}"


class _Kind(NamedTuple):
    """The properties that tensors of one type and shape share."""

    shape: tuple[int, ...]
    n_bytes: int
    dtype: np.dtype
    stored_as: str = ""
    text: str = ""
    blocks: Any = None  # the type of the blocks; None if the tensor is not quantized


def _kind(shown: str, shape: tuple[int, ...], kind: Any, n_in_block: int, n_bytes_of_block: int) -> _Kind:
    n_numbers = n_bytes_of(shown, shape, np.dtype(np.uint8))
    if n_numbers % n_in_block or (shape and shape[-1] % n_in_block):
        raise ValueError(f"{shown} of {kind.name} has a last axis of {shape[-1]:,}, and blocks of {n_in_block}")
    n_bytes = n_numbers // n_in_block * n_bytes_of_block
    of_blocks = kind.name, f"blocks of {n_in_block} in {n_bytes_of_block} bytes", kind
    is_plain = kind.name in _PLAIN
    return _Kind(shape, n_bytes, np.dtype(_PLAIN.get(kind.name, np.float32)), *(() if is_plain else of_blocks))


class _Blocks(NamedTuple):
    at: At
    kind: Any

    def __call__(self, stored: Stored) -> Iterator[np.ndarray]:
        from gguf import GGML_QUANT_SIZES
        from gguf.quants import dequantize

        n_bytes_of_block, rest = GGML_QUANT_SIZES[self.kind][1], np.empty(0, np.uint8)
        for chunk in self.at(Stored((stored.nbytes,), np.dtype(np.uint8), self.at)):
            blocks = np.concatenate([rest, chunk])
            n = len(blocks) - len(blocks) % n_bytes_of_block
            for i in range(0, n, n_step := max(1, CHUNK // 8 // n_bytes_of_block) * n_bytes_of_block):
                yield dequantize(blocks[i : min(i + n_step, n)], self.kind).reshape(-1)
            rest = blocks[n:]


def _check_ranges(ranges: list[tuple[int, int, str]], n_data: int) -> None:
    previous_end, previous_name = 0, ""
    for start, end, name in sorted(ranges):
        if start < previous_end and end > start:
            raise ValueError(f"{_shown(name)} overlaps {_shown(previous_name)}")
        if end > n_data:
            raise ValueError(f"{_shown(name)} ends at byte {end:,} of the values, and {max(n_data, 0):,} are there")
        previous_end, previous_name = max(previous_end, end), name


class _Header:
    """Reads the header. Of a long value in `metadata`, only the length and a checksum are kept."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._size = file, size_of(file)
        self._n_values = self._checksum = 0
        self.metadata: dict[str, Any] = {}

    def tensors(self) -> tuple[list[tuple[str, tuple[int, ...], int, int]], int]:
        """The name, shape, type and offset of each tensor; and the position of the first value."""
        magic, version = self._read(4), self._number("<I")
        if magic != b"GGUF" or version not in (2, 3):
            what = "its byte order is big-endian" if magic == b"GGUF" and version >> 24 in (2, 3) else "unknown"
            raise ValueError(f"it is not a GGUF file of version 2 or 3: {what}")
        n_tensors, n_values = self._number("<Q"), self._number("<Q")
        if n_tensors > _MOST_TENSORS:
            raise ValueError(f"it would have {n_tensors:,} tensors")
        for _ in range(n_values):  # a damaged count ends at the end of the file
            key = self._text()
            value = self._value(self._number("<I"))
            if len(self.metadata) < _MOST_KEPT:
                self.metadata[key] = value
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise ValueError(f"its alignment is {visible(str(alignment))}")
        tensors = []
        for _ in range(n_tensors):
            name, n_axes = self._text(), self._number("<I")
            if n_axes > _MOST_AXES:
                raise ValueError(f"{_shown(name)} has {n_axes:,} axes")
            *axes, kind, offset = struct.unpack(f"<{n_axes}QIQ", self._read(8 * n_axes + 12))
            tensors.append((name, tuple(axes[::-1]), kind, offset))
        return tensors, math.ceil(self._file.tell() / alignment) * alignment

    def _value(self, kind: int, level: int = 0) -> Any:
        """A value of the metadata; of a long one its length and a checksum."""
        self._n_values += 1
        if self._n_values > _MOST_VALUES:
            raise ValueError(f"its metadata has more than {_MOST_VALUES:,} values")
        if not level:
            self._checksum = 0
        if kind == _TEXT:
            n = self._number("<Q")
            text = self._taken(n)
            return self._summary(n, "bytes") if text is None else text.decode("utf-8", "backslashreplace")
        if kind != _ARRAY or level >= 4:
            (number,) = struct.unpack(f"<{_FORMS[kind]}", self._taken(self._size_of(kind)) or b"")
            return float(str(np.float32(number))) if _FORMS[kind] == "f" else number  # 1e-05, not 9.999999747378752e-06
        kind, n = self._number("<I"), self._number("<Q")
        if kind in (_TEXT, _ARRAY):
            first = [value for i in range(n) for value in [self._value(kind, level + 1)] if i < _FEW]
        else:
            numbers = self._taken(n * self._size_of(kind))
            first = [] if numbers is None or n > _FEW else [*struct.unpack(f"<{n}{_FORMS[kind]}", numbers)]
        return self._summary(n, "values") if n > _FEW else first

    def _summary(self, n: int, unit: str) -> Verbatim:
        return Verbatim(f"{n:,} {unit}, CRC-32 {self._checksum:08x}")

    def _size_of(self, kind: int) -> int:
        if kind >= len(_SIZES) or not _SIZES[kind]:
            raise ValueError(f"its metadata has a value of the unknown type {kind}")
        return _SIZES[kind]

    def _text(self) -> str:
        n = self._number("<Q")
        if n > _LONGEST_NAME:
            raise ValueError(f"a name in it would be {n:,} bytes long")
        return self._read(n).decode("utf-8")

    def _number(self, form: str) -> int:
        return struct.unpack(form, self._read(struct.calcsize(form)))[0]

    def _read(self, n: int) -> bytes:
        data = self._file.read(n)
        if len(data) < n:
            raise ValueError(_CUT)
        return data

    def _taken(self, n: int) -> bytes | None:
        """The next bytes; None if they are many. They change the checksum, unless they would take long to read."""
        if n <= _AT_ONCE:  # `tell` would ask the system, which takes ten times as long
            data = self._read(n)
            self._checksum = zlib.crc32(data, self._checksum)
            return data
        position = self._file.tell()
        if n > self._size - position:
            raise ValueError(f"it is cut: {n:,} more bytes were to come, and {self._size - position:,} are there")
        if n > _MOST_SUMMED:
            self._file.seek(n, os.SEEK_CUR)
            return None
        buffer = memoryview(bytearray(min(n, _PIECE)))
        while n:
            n_read = self._file.readinto(buffer[: min(n, _PIECE)])  # type: ignore[attr-defined]
            if not n_read:
                raise ValueError(_CUT)
            self._checksum, n = zlib.crc32(buffer[:n_read], self._checksum), n - n_read
        return None
