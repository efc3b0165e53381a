"""An array in a file: its shape and dtype are known, its values are read on demand."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treeviz.tree.text import error_text, guarded, printable, visible

if TYPE_CHECKING:
    from treeviz.tree.table import TreeTable

CHUNK = 1 << 20  # bytes
on_read: list[Callable[[int], object]] = []  # called with the number of bytes of every chunk that is read
on_fetch: list[Callable[[int], object]] = []  # the same of every part of a file at an address


class Refused(ValueError):
    """Values that treeviz does not read, though the file is whole; the message says why."""


Metadata = tuple[tuple[str, str], ...]


class Saved(NamedTuple):
    """How an array was placed when it was saved."""

    spec: tuple[str | tuple[str, ...] | None, ...] = ()  # the axes of the mesh that split each axis of the array
    mesh: tuple[tuple[str, int], ...] = ()  # the axes and their sizes
    device: str = ""  # "cpu:0", if it was on one device
    memory: str = ""


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Stored:
    """An array whose values stay in a file; `np.asarray(stored)` reads them.

    Attributes:
      shape: The array's shape.
      dtype: The dtype of the values when read.
      name: The name in the file: "model.layers.0.self_attn.q_proj.weight".
      nbytes: The size in the file, uncompressed.
      stored_as: The format in the file, if it is not a dtype: "Q4_K".
      text: Details of the format: "256 numbers in 144 bytes".
      chunks_of: Reads the values; see `chunks`.
      order: "C", or "F" if the first axis changes fastest in the file.
      metadata: What the file says of itself: names and bounded texts. The arrays of a file share them.
      saved: How the array was sharded when it was saved, if the file says so.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    chunks_of: Callable[[Stored], Iterator[np.ndarray]]
    name: str = ""
    nbytes: int = -1
    stored_as: str = ""
    text: str = ""
    order: str = "C"
    metadata: Metadata = ()
    saved: Saved | None = None

    def __repr__(self) -> str:
        sizes = ",".join(map(str, self.shape))
        return f"Stored({self.name!r}: {self.stored_as or self.dtype}[{sizes}])"

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            self.nbytes = self.size * self.dtype.itemsize

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def astype(self, dtype: Any) -> np.ndarray:
        return np.asarray(self, dtype)

    def chunks(self) -> Iterator[np.ndarray]:
        """Read the values in the order of the file, as flat arrays of at most some MiB."""
        for chunk in self.chunks_of(self):
            for report in on_read:
                report(chunk.nbytes)
            yield chunk

    def part(self, place: tuple[slice, ...]) -> np.ndarray:
        """Read a part of a few thousand values; alone if the format allows it, else along with all values before it.

        Args:
          place: A slice for each axis, of at least one index and without steps.
        """
        read = getattr(self.chunks_of, "part", None)
        if read is not None:
            return read(self, place)
        places, position = places_of(self, place), 0
        values, last = np.empty(places.shape, self.dtype), places.max()
        for chunk in self.chunks():
            is_here = (places >= position) & (places < position + len(chunk))
            values[is_here] = chunk[places[is_here] - position]
            position += len(chunk)
            if position > last:
                break
        return values

    def __getitem__(self, i: int) -> np.ndarray:
        """The values at an index of the first axis, such as a layer of a stack."""
        i, shape = range(self.shape[0])[i], self.shape[1:]
        n, reader_at = math.prod(shape), getattr(self.chunks_of, "later", None)
        if reader_at is not None and self.order == "C":
            return np.asarray(Stored(shape, self.dtype, reader_at(i * n * self.dtype.itemsize), self.name))
        return self.part((slice(i, i + 1), *(slice(0, size) for size in shape)))[0]

    __iter__ = None  # otherwise Python would treat it as a sequence

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("the values of an array in a file cannot be returned without a copy")
        values, position = np.empty(self.size, self.dtype), 0
        for chunk in self.chunks():
            values[position : position + len(chunk)] = chunk
            position += len(chunk)
        values = values.reshape(self.shape, order=self.order)  # type: ignore[call-overload]
        return values if dtype is None else values.astype(dtype)


def places_of(stored: Stored, place: tuple[slice, ...]) -> np.ndarray:
    """The positions in the file, counted in values, of a part of the array."""
    if not place:
        return np.zeros((), np.int64)
    indices = np.ix_(*(np.arange(part.start, part.stop) for part in place))
    return np.asarray(np.ravel_multi_index(indices, stored.shape, order=stored.order))  # type: ignore[call-overload]


def chunks_from(open_values: Callable[[], AbstractContextManager[IO[bytes]]], stored: Stored) -> Iterator[np.ndarray]:
    """Read the values from an open file. Not a memory map: a file that shrinks would crash the process.

    Raises:
      EOFError: The file ends before the last value.
    """
    dtype = stored.dtype
    n_left, n_chunk = stored.nbytes, CHUNK - CHUNK % dtype.itemsize
    with open_values() as file:
        while n_left:
            data = file.read(min(n_left, n_chunk))
            if not data or len(data) % dtype.itemsize:
                raise EOFError(f"its last {n_left:,} bytes are not there")
            n_left -= len(data)
            yield np.frombuffer(data, dtype)
        file.read(1)  # reaching the end makes an archive compare the checksum


# What a file says of itself: `__metadata__` of safetensors, the key-values of GGUF, `custom_metadata` of Orbax

_MOST_PAIRS = 100
_LONGEST, _START = 100, 60  # characters of a value, and of the start of a longer one


class Verbatim(str):
    """A text in metadata that is shown without quotes."""

    __repr__ = str.__str__


def metadata_of(values: Any) -> Metadata:
    """The metadata of a file as printable texts: bounded, and equal exactly if the values are.

    The text of a long value is its start and a checksum.
    """
    items = [*(values if isinstance(values, Mapping) else {"metadata": values}).items()]
    rest = {"…": Verbatim(f"{len(items) - _MOST_PAIRS:,} more, {_checksum(repr(items))}")}
    shown = [*items[:_MOST_PAIRS], *(rest.items() if len(items) > _MOST_PAIRS else ())]
    return tuple((visible(str(name)), _text_of(value)) for name, value in shown)


def _text_of(value: Any) -> str:
    text = printable(guarded(lambda: repr(value), error_text))
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_START]}… ({len(text):,} characters, {_checksum(text)})"


def _checksum(text: str) -> str:
    return f"CRC-32 {zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def stamp(arrays: Iterable[Any], metadata: Metadata) -> None:
    """Give arrays the metadata of their file, after what they have of their own."""
    known: dict[int, Metadata] = {}  # so that they share one object
    for array in arrays:
        if metadata and type(array) is Stored:
            own = array.metadata
            array.metadata = known.setdefault(id(own), (*own, *metadata))


def with_metadata(table: TreeTable, nodes: Sequence[Any]) -> TreeTable:
    """The table with what each file says of itself, in the highest row that has only arrays of this file."""
    is_array = [facts.is_leaf and facts.shape is not None and facts.kind != "scalar" for facts in table.facts]
    by_id: dict[int, int] = {}
    groups: dict[Metadata, int] = {(): 0}
    owner = np.full(len(table), -1)
    for row in np.flatnonzero(np.array(is_array)[table.fact_codes]).tolist():
        metadata = nodes[row].metadata if type(nodes[row]) is Stored else ()
        if id(metadata) not in by_id:
            by_id[id(metadata)] = groups.setdefault(metadata, len(groups))
        owner[row] = by_id[id(metadata)]
    at: dict[int, list[Metadata]] = {}
    for metadata, group in [*groups.items()][1 : 1 + _MOST_PAIRS]:
        row, *_ = own_rows = np.flatnonzero(owner == group).tolist()
        n_others = np.append(0, np.cumsum((owner >= 0) & (owner != group)))
        while (above := int(table.parent[row])) >= 0:
            if table.end[row] > own_rows[-1] and n_others[above] < n_others[table.end[above]]:
                break  # it has all of them, and the node above has others
            row = above
        at.setdefault(row, []).append(metadata)
    if not at:
        return table
    codes, facts = table.fact_codes.copy(), [*table.facts]
    for row, found in at.items():
        own = facts[codes[row]]
        codes[row] = len(facts)
        facts.append(own._replace(static=tuple(dict.fromkeys(chain(own.static, *found)))))
    return replace(table, fact_codes=codes, facts=tuple(facts))
