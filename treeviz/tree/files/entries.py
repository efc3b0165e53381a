"""The leaves of a file: arrays that are read later, and entries that are none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from treeviz.tree.describers import Description, describes
from treeviz.tree.safe_repr import visible

NUMBERS = "biufc"  # kinds of dtypes
_CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Unread:
    """A placeholder for an entry of the file that cannot be a JAX array."""

    type: str
    text: str


@describes(Unread)
def _(unread: Unread) -> Description:
    return Description(kind="opaque", type=unread.type, text=unread.text, transparent=True)


@dataclass(frozen=True, eq=False)
class Stored:
    """An array of numbers whose values stay in the file. No memory map: a file that shrinks would end the process.

    Attributes:
      open: Opens the file where the values begin.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    open: Callable[[], AbstractContextManager[IO[bytes]]] = field(repr=False)

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def chunks(self) -> Iterator[np.ndarray]:
        """Read the values, in the order in which they stand in the file, as flat arrays of at most 1 MiB."""
        n_left, n_chunk = self.n_bytes, _CHUNK - _CHUNK % self.dtype.itemsize
        with self.open() as file:
            while n_left:
                data = file.read(min(n_left, n_chunk))
                if not data or len(data) % self.dtype.itemsize:
                    raise EOFError(f"its last {n_left:,} bytes are not there")
                n_left -= len(data)
                yield np.frombuffer(data, self.dtype)
            file.read(1)  # at its end an archive compares the checksum


@describes(Stored)
def _(stored: Stored) -> Description:
    dtype = str(stored.dtype)
    return Description(kind="numpy", type="ndarray", shape=stored.shape, dtype=dtype, bytes=stored.n_bytes)


@contextmanager
def open_at(path: Path, start: int) -> Iterator[IO[bytes]]:
    with open(path, "rb") as file:
        file.seek(start)
        yield file


def unread_array(shape: tuple[int, ...], dtype: np.dtype) -> Unread:
    """The placeholder of an array whose dtype JAX does not have."""
    if dtype.hasobject:
        return Unread("pickle", f"{shape}: pickled Python objects, which treeviz does not open")
    hint = " (NumPy writes bfloat16 and float8 like this)" if dtype.kind == "V" and dtype.names is None else ""
    return Unread("np.ndarray", f"{shape} of {visible(str(dtype), 80)}: not a JAX dtype{hint}")


def n_bytes_of(name: str, shape: Sequence[Any], dtype: np.dtype) -> int:
    """How many bytes the values take.

    Raises:
      ValueError: No array has this shape.
    """
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"{name} has the shape {visible(str(tuple(shape)), 100)}")
    return math.prod(shape) * dtype.itemsize


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict.

    Raises:
      ValueError: A name occurs twice: a dict would lose one of its values.
    """
    named = dict(pairs)
    if len(named) < len(pairs):
        (twice, n), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {visible(twice, 100)!r} {n} times")
    return named
