"""Arrays that TensorStore wrote: in folders, or in one database.

Their shapes stand in the metadata of each array, which TensorStore reads in some 50 µs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from treeviz.integrations import not_installed
from treeviz.tree.files.entries import is_file, n_bytes_of, parse_json, read_bounded
from treeviz.tree.safe_repr import visible
from treeviz.tree.stored import CHUNK, Stored

_MOST_HEADER = 1_000_000  # bytes of the metadata of an array
_AT_ONCE = 1_000  # reads
_READ_S = 60  # the longest wait for an answer of the file system
_CACHE = 256 << 20  # bytes of decoded chunks, which a large chunk is read from in parts
HEADERS = {".zarray": "zarr", "zarr.json": "zarr3"}  # and the drivers of TensorStore


def folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


class Headers:
    """The metadata of the arrays of a folder, which TensorStore keeps in one database or in a folder for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.has_database = (folder / "manifest.ocdbt").is_file()

    def names(self) -> list[str]:
        """The names of the arrays, where no other file tells them."""
        if not self.has_database:
            return folders(self._folder)
        keys = (key.decode("utf-8", "replace") for key in self._database().list().result(_READ_S))
        return sorted({name for key in keys for name, _, last in [key.rpartition("/")] if last in HEADERS})

    def read(self, names: Sequence[str]) -> dict[str, Stored]:
        """The arrays by name; those that are not there are left out."""
        read = self._from_database if self.has_database else self._from_folders
        found: dict[str, Stored] = {}
        for header in HEADERS:
            left, values = [name for name in names if name not in found], _Values(self, header)
            known: dict[bytes, tuple[tuple[int, ...], np.dtype]] = {}  # the arrays of a model have few shapes
            for name, text in read(left, header):
                if text not in known:
                    known[text] = _shape_and_dtype(name, text, header)
                found[name] = Stored(*known[text], values, name)
        return found

    def _from_database(self, names: Sequence[str], header: str) -> Iterator[tuple[str, bytes]]:
        if not names:
            return
        database = self._database()
        for i in range(0, len(names), _AT_ONCE):
            some = names[i : i + _AT_ONCE]
            for name, future in [(name, database.read(f"{name}/{header}")) for name in some]:
                result = future.result(_READ_S)
                if result.state == "value":
                    yield name, result.value

    def _from_folders(self, names: Iterable[str], header: str) -> Iterator[tuple[str, bytes]]:
        root = self._folder.resolve()
        for name in names:
            path = self._folder / name / header
            if "\0" in name or not path.resolve().is_relative_to(root):
                raise ValueError(f"the array {visible(name, 100)!r} is not in its folder: nothing outside is read")
            if is_file(path):
                yield name, read_bounded(path, _MOST_HEADER)

    def _database(self) -> Any:
        for path in (*self._folder.glob("d/*"), *self._folder.glob("ocdbt.process_*/d/*")):
            if not path.is_file():  # TensorStore would wait for a pipe
                raise ValueError(f"{visible(path.name, 100)} in it is no file")
        return _tensorstore().KvStore.open(self._kvstore(), context=_context()).result(_READ_S)

    def _kvstore(self) -> dict[str, Any]:
        files = {"driver": "file", "path": f"{self._folder.absolute()}/"}
        return {"driver": "ocdbt", "base": files} if self.has_database else files

    def opened(self, header: str, stored: Stored) -> Any:
        """The array in TensorStore."""
        kvstore = self._kvstore()
        kvstore["path"] = f"{kvstore.get('path', '')}{stored.name}/"
        spec = {"driver": HEADERS[header], "kvstore": kvstore}
        array = _tensorstore().open(spec, open=True, read=True, context=_context()).result(_READ_S)
        if tuple(array.shape) != stored.shape or array.dtype.numpy_dtype != stored.dtype:
            raise ValueError("the array in the checkpoint is another now")
        return array


class _Values(NamedTuple):
    """Reads the values of arrays."""

    headers: Headers
    header: str

    def part(self, stored: Stored, place: tuple[slice, ...]) -> np.ndarray:
        return np.asarray(self.headers.opened(self.header, stored)[place].read().result(_READ_S))

    def __call__(self, stored: Stored) -> Iterator[np.ndarray]:
        array = self.headers.opened(self.header, stored)
        if not stored.shape:
            yield np.asarray(array.read().result()).reshape(-1)
            return
        n_together = max(1, array.chunk_layout.read_chunk.shape[0])  # rows that are decoded together
        n_bytes = max(1, stored.nbytes // max(1, stored.shape[0]))
        n_rows = n_together if n_together * n_bytes > _CACHE else max(1, CHUNK // n_bytes)
        for i in range(0, stored.shape[0], n_rows):
            yield np.asarray(array[i : min(i + n_rows, stored.shape[0])].read().result()).reshape(-1)


def _shape_and_dtype(name: str, text: bytes, header: str) -> tuple[tuple[int, ...], np.dtype]:
    shown = f"the array {visible(name, 100)!r}"
    if len(text) > _MOST_HEADER:
        raise ValueError(f"the metadata of {shown} has {len(text):,} bytes")
    metadata = parse_json(text)
    shape, dtype_name = metadata["shape"], metadata["dtype" if header == ".zarray" else "data_type"]
    if type(shape) is not list or type(dtype_name) is not str:
        raise ValueError(f"the metadata of {shown} has no shape and dtype")
    dtype = np.dtype(getattr(ml_dtypes, dtype_name, None) or dtype_name)
    n_bytes_of(shown, shape, dtype)
    return tuple(shape), dtype


@lru_cache(maxsize=1)
def _context() -> Any:
    return _tensorstore().Context({"cache_pool": {"total_bytes_limit": _CACHE}})


def _tensorstore() -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise not_installed(error, "orbax") from error
    return tensorstore
