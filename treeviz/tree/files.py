"""Files of arrays, whose values are read on demand: `.npy`, `.npz`, `.eqx`, `.safetensors` and msgpack of Flax."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import stat
import struct
import warnings
import weakref
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from treeviz.tree.describers import Description, describes
from treeviz.tree.stored import Refused, Stored, chunks_from, metadata_of, places_of, stamp
from treeviz.tree.text import error_text, guarded, visible

_PAGE, _FAR_PAGE = 4096, 1 << 18  # bytes that are read along rather than skipped; the same at an address
_FILES_AT_ONCE = 64  # files at an address
_MOST_AXES = 64
MOST_TOKENS = 6_000_000  # commas and brackets in JSON; an array of a checkpoint has some ten


class LoadError(ValueError):
    """A file that treeviz cannot or will not read; the message gives the reason."""


@dataclass(frozen=True)
class Unread:
    """A placeholder for an entry of the file that cannot be a JAX array."""

    type: str
    text: str


@describes(Unread)
def _(unread: Unread) -> Description:
    return Description(kind="opaque", type=unread.type, text=unread.text, transparent=True)


REWRITTEN = "the file was rewritten after it was read: read it again"


def size_of(file: Any) -> int:
    """The number of bytes of an open file, also of one at an address."""
    size = getattr(getattr(file, "raw", file), "size", None)
    return os.fstat(file.fileno()).st_size if size is None else size


def state_of(file: Any) -> tuple[Any, ...]:
    """Changes when the file at this path is written or replaced. Of one at an address, what reads it compares it."""
    if (state := getattr(getattr(file, "raw", file), "state", None)) is not None:
        return state
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def check_unchanged(file: IO[bytes], state: tuple[Any, ...]) -> None:
    """Raise a ValueError if the file is not in this state, so that what was known of it may be wrong."""
    if state_of(file) != state:
        raise ValueError(REWRITTEN)


class At(NamedTuple):
    """Reads the values in a file from `start` on."""

    path: Path
    start: int
    state: tuple[Any, ...]  # of the file when its header was read

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        with self.path.open("rb") as file:
            check_unchanged(file, self.state)
            file.seek(self.start)
            yield file

    def __call__(self, stored: Stored) -> Iterator[np.ndarray]:
        return chunks_from(self.opened, stored)

    def part(self, stored: Stored, place: tuple[slice, ...]) -> np.ndarray:
        """A part of the array; reads a few pages of the file for each row, and more at once where a read takes long."""
        places, size = places_of(stored, place), stored.dtype.itemsize
        ordered = np.sort(places, axis=None)
        values = np.empty(ordered.shape, stored.dtype)
        most = _PAGE if isinstance(self.path, Path) else _FAR_PAGE
        runs = np.flatnonzero(np.diff(ordered) * size > most) + 1  # each is one read
        with self.opened() as file:
            for i, j in zip([0, *runs], [*runs, len(ordered)], strict=True):
                first, n = int(ordered[i]), int(ordered[j - 1] - ordered[i]) + 1
                file.seek(self.start + first * size)
                values[i:j] = np.frombuffer(file.read(n * size), stored.dtype, n)[ordered[i:j] - first]
        return values[np.searchsorted(ordered, places)]


def refuse(why: str) -> Callable[[Stored], Iterator[np.ndarray]]:
    """A reader that raises, for an array with a shape whose values cannot or may not be read."""

    def chunks(_: Stored) -> Iterator[np.ndarray]:
        raise Refused(why)

    return chunks


def n_bytes_of(name: str, shape: Sequence[Any], dtype: np.dtype) -> int:
    """The bytes that the values take; raises ValueError if no array can have this shape."""
    if len(shape) > _MOST_AXES:
        raise ValueError(f"{name} has {len(shape):,} dimensions; NumPy has {_MOST_AXES} at most")
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"{name} has the shape {visible(str(tuple(shape)), 100)}")
    return math.prod(shape) * dtype.itemsize


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict; raises ValueError if a name occurs twice."""
    named = dict(pairs)
    if len(named) < len(pairs):
        (twice, n), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {visible(twice, 100)!r} {n} times")
    return named


def parse_json(text: bytes, hook: Callable[[list[tuple[str, Any]]], Any] | None = without_repeats) -> Any:
    """Decode JSON that takes at most some 100 MB, else raise ValueError. `hook` makes an object from its pairs; None: a
    dict, in which the last value of a name wins.
    """
    check_size_of_json(text)
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def check_size_of_json(text: bytes) -> None:
    """Raise a ValueError if the decoded JSON would take more than some 100 MB."""
    n_tokens = sum(map(text.count, (b",", b"[", b"{")))
    if n_tokens > MOST_TOKENS:
        raise ValueError(f"its JSON has {n_tokens:,} values and brackets; {MOST_TOKENS:,} is the most that is read")


@contextmanager
def naming(path: Path) -> Iterator[Path]:
    """Name the file in errors about its contents."""
    try:
        yield path
    except LoadError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = visible(str(error), 200) if type(error) is ValueError else error_text(error)
        raise ValueError(f"in {visible(path.name, 100)}: {why}") from error


def mode_of(path: Path) -> int:
    """The mode of a file or a folder; raises LoadError for others, since reading them might never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        shown = visible(str(path), 1000)
        raise LoadError(f"{shown} is not a file or folder but a device, a pipe or a socket.")
    return mode


# Where files may be read, links resolved; empty: everywhere. Set while a folder or a file is read.
roots: ContextVar[tuple[str, ...]] = ContextVar("roots", default=())


@contextmanager
def only_below(path: Path) -> Iterator[None]:
    """Refuse links that lead out of a folder, or out of the folder of a file.

    In a cache of Hugging Face, the files of a snapshot are links to blobs, so all of the model's cache is allowed.
    """
    real = Path(os.path.realpath(path if path.is_dir() else path.parent))
    snapshots = [folder for folder in (real, *real.parents) if folder.name == "snapshots"]
    caches = [str(folder.parent) for folder in snapshots if "--" in folder.parent.name]  # "models--google--gemma"
    token = roots.set((str(real), os.path.realpath(path), *caches))
    try:
        yield
    finally:
        roots.reset(token)


def check_link(path: Path, allowed: Sequence[str]) -> None:
    """Raise a LoadError if the path leads out of the allowed folders."""
    if not allowed:
        return
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(root) for root in allowed):
        raise LoadError(
            f"{visible(str(path), 500)} is a link to {visible(str(real), 500)}, which is not in the folder that is "
            "read. To follow it, pass follow_links=True, or --follow-links to the command."
        )


def scan(folder: Path) -> AbstractContextManager[Iterable[Any]]:
    """The entries of a folder, as `os.scandir` lists them."""
    return getattr(folder, "scandir", partial(os.scandir, folder))()


def fetch_ahead(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """The names of files that are read one after the other; at an address, the starts of the next ones come at once."""
    fetch = getattr(folder, "fetch_ahead", None)
    for i, name in enumerate(names):
        if fetch is not None and i % _FILES_AT_ONCE == 0:
            fetch(names[i : i + _FILES_AT_ONCE])
        yield name


def is_file(path: Path) -> bool:
    """Whether the path is a regular file; False for a name that is too long for the file system."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def read_bounded(path: Path, n_most: int) -> bytes:
    """The bytes of a file; ValueError if there are more than `n_most`."""
    if not is_file(path):  # reading a pipe would wait
        raise ValueError(f"{visible(path.name, 100)} is not a file")
    check_link(path, roots.get())
    with path.open("rb") as file:
        is_longer = size_of(file) > n_most
        data = b"" if is_longer else file.read(n_most + 1)
    if is_longer or len(data) > n_most:
        raise ValueError(f"{visible(path.name, 100)} has more than {n_most:,} bytes")
    return data


# Flat names of arrays as a nested tree

# Nodes allowed beyond ten for each array. More would exhaust the memory: a name of 4 MB may have 2,000,000 parts.
MOST_NODES = 200_000
# Suffixes that libraries append to the name of a quantized array to name its scale.
_SCALES = ("_scale", "_scale_inv", ".scale", ".weight_scale", ".absmax", ".SCB", "_scales")


def nested(arrays: Mapping[str, Any]) -> Any:
    """Flat names as nested dicts or lists: "a/b", or "a.b" if none has a slash. Names that cannot nest stay flat."""
    separator = "/" if any("/" in name for name in arrays) else "."
    if sum(name.count(separator) for name in arrays) > MOST_NODES + 10 * len(arrays):
        return dict(arrays)
    root: dict[str, Any] = {}
    dicts_with_zero: list[tuple[dict[str, Any], str]] = []  # the parent and key of each dict with a "0", parents first
    leaf_dicts = {id(array) for array in arrays.values() if type(array) is dict}
    keys: dict[str, str] = {}  # so that equal keys share one string
    for name, array in arrays.items():
        *steps, last = name.split(separator)
        node, parent, key = root, None, ""
        for step in steps:
            below = node.get(step)
            if below is None and step not in node:
                step = keys.setdefault(step, step)
                below = node[step] = {}
                if step == "0" and parent is not None:
                    dicts_with_zero.append((parent, key))
            elif type(below) is not dict or id(below) in leaf_dicts:
                return dict(arrays)  # "a" is an array, and "a.b" exists
            node, parent, key = below, node, step
        if last in node:
            return dict(arrays)
        node[keys.setdefault(last, last)] = array
        if last == "0" and parent is not None:
            dicts_with_zero.append((parent, key))
    for parent, key in reversed(dicts_with_zero):
        parent[key] = _as_list(parent[key])
    return _as_list(root)


def with_scales(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays; a quantized one that has a scale names it in its text."""
    scaled: dict[str, Any] = {}
    for name, array in arrays.items():
        is_plain, is_packed = type(array) is Stored and not array.text, name.endswith("qweight")
        if is_plain and (is_packed or (array.dtype.itemsize == 1 and array.dtype != np.bool_)):
            prefix = name.rpartition(".")[0]
            candidates = [f"{name}{ending}" for ending in _SCALES] + [f"{prefix}.scales"] * is_packed
            if scale := next(filter(arrays.__contains__, candidates), None):
                scaled[name] = replace(array, text=f"scaled by {scale.removeprefix(f'{prefix}.')}")
    return arrays | scaled


def _as_list(node: dict[str, Any]) -> Any:
    numbers = [str(i) for i in range(len(node))]
    return [node[i] for i in numbers] if node and node.keys() == set(numbers) else node


# NumPy's `.npy` and `.npz` (see `numpy.lib.format`), and `.eqx`

MAX_HEADER = 10_000  # bytes; the limit of numpy.load. A compressed header can claim 4 GB.
_MAX_DIRECTORY = 24_000_000  # bytes of an archive's list of members, enough for some 200,000 arrays
_MAX_ARRAYS = 1_000_000  # in one .eqx file
_MAX_LINE = 1_000_000  # bytes before the arrays of an .eqx file
_USUAL = 1024  # bytes read at the start of an array in an archive, enough for most headers
_MOST_AHEAD = 20_000  # headers of arrays in an archive at an address that are fetched at once
_ENCRYPTED = 0x1  # a flag of a zip file's member
_LENGTHS = struct.Struct("<HH")  # of the two fields between a member's record and its bytes
_read = io.BufferedReader.read  # in C; `_Bounded.read` would be a Python call for each array


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
    with path.open("rb") as file:
        header, state = _read_header(file, "the array"), state_of(file)
        _check_size("the array", header, size_of(file))
    return header.stored(At(path, header.start, state), path.name)


def read_npz(path: Path) -> Iterator[tuple[str, Any]]:
    file = _Bounded(path.open("rb", buffering=0))
    try:
        archive = zipfile.ZipFile(file)
    except BaseException:
        file.close()
        raise
    weakref.finalize(archive, file.close)  # close the file with the last of its arrays
    members = archive.infolist()
    is_twice = len(archive.NameToInfo) < len(members)
    if hasattr(path, "fetch_parts"):  # at an address
        path.fetch_parts([member.header_offset for member in members[:_MOST_AHEAD]], _USUAL)
    n_later = Counter(map(attrgetter("filename"), members)) if is_twice else Counter()
    headers: dict[bytes, _Header] = {}  # a model has few distinct shapes
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name != member.filename:
            entry = _entry(archive, member, name, headers)
        else:
            entry = Unread("file", "not an array")
            name += " (not an array)" * (f"{name}.npy" in archive.NameToInfo)
        if is_twice:
            n_later[member.filename] -= 1
            if n := n_later[member.filename]:
                name += f" (hidden {n})"
                entry = Unread("hidden", "numpy.load gives a later array of the same name")
        yield name, entry
    archive.filelist.clear()
    archive.NameToInfo.clear()


def read_eqx(path: Path) -> list[Stored]:
    """The arrays of a file of `equinox.tree_serialise_leaves`, in order; the file has no names."""
    arrays: list[Stored] = []
    with path.open("rb") as file:
        size, state = size_of(file), state_of(file)
        if (line := file.read(1)) == b"{":  # hyperparameters in JSON, as in Equinox' documentation
            line += file.readline(_MAX_LINE)
        else:
            file.seek(0)
        while (start := file.tell()) < size:
            if len(arrays) >= _MAX_ARRAYS:
                raise ValueError(f"it has more than {_MAX_ARRAYS:,} arrays")
            header = _read_header(file, name := f"array {len(arrays)}")
            header = header._replace(start=start + header.start)
            _check_size(name, header, size)
            arrays.append(header.stored(At(path, header.start, state), name))
            file.seek(header.start + header.n_bytes)
    if line.startswith(b"{"):
        stamp(arrays, metadata_of(guarded(lambda: parse_json(line, None), lambda _: {"header": line})))
    return arrays


# The fields of a `ZipInfo` that locate a member. Keeping 100,000 `ZipInfo` would take 50 MB.
_PLACE = ("orig_filename", "header_offset", "flag_bits", "compress_type", "CRC", "compress_size", "file_size")
_place_of = attrgetter(*_PLACE)


class _Member(NamedTuple):
    archive: zipfile.ZipFile
    start: int  # of the values
    place: tuple[Any, ...]

    def __call__(self, stored: Stored) -> Iterator[np.ndarray]:
        @contextmanager
        def open_values() -> Iterator[IO[bytes]]:
            if (file := self.archive.fp) is not None:
                check_unchanged(file, file.state)  # type: ignore[attr-defined]
            member = zipfile.ZipInfo(self.place[0])
            for name, value in zip(_PLACE[1:], self.place[1:], strict=True):
                setattr(member, name, value)
            with self.archive.open(member) as file:
                file.read(self.start)  # `seek` would skip the checksum
                yield file

        return chunks_from(open_values, stored)


_new_member = partial(tuple.__new__, _Member)  # twice as fast as `_Member`


class _Bounded(io.BufferedReader):
    """A file that refuses to read a list of members that would exhaust the memory."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self.state = state_of(self)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY:
            raise ValueError(f"its list of arrays would be {size:,} bytes long")
        return super().read(size)


def _entry(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, headers: dict[bytes, _Header]) -> Any:
    if member.flag_bits & _ENCRYPTED:
        return Unread("file", "encrypted: treeviz asks for no password")
    text = _header_text(archive, member)
    if (header := headers.get(text)) is None:
        with io.BytesIO(text) if text else archive.open(member) as file:
            header = _read_header(file, visible(member.filename, 100))
        headers |= {text: header} if text else {}
    if member.file_size - header.start < header.n_bytes:
        _check_size(member.filename, header, member.file_size)
    return header.stored(_new_member((archive, header.start, _place_of(member))), name)


def _header_text(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The header of an array, in a tenth of the time of `open`; b"" if `open` must be used."""
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
    if version == (3, 0):  # in UTF-8; NumPy's public reader only takes Latin-1, but understands escapes
        text = text.decode("utf-8").encode("ascii", "backslashreplace")
    shape, is_fortran, dtype = _parsed(text)
    order = "F" if is_fortran else "C"
    return _Header(shape, dtype, order, n_bytes_of(name, shape, dtype), 8 + n_length + n_text)


@lru_cache(maxsize=1000)  # a model has few distinct shapes, and NumPy runs Python's parser
def _parsed(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    header = io.BytesIO(len(text).to_bytes(4, "little") + text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's parser, and of NumPy about files of Python 2
        return np.lib.format.read_array_header_2_0(header, max_header_size=8 * MAX_HEADER)


def _check_size(name: str, header: _Header, n_stored: int) -> None:
    n_left = max(0, n_stored - header.start)
    if n_left < header.n_bytes and not header.dtype.hasobject:
        raise ValueError(f"{visible(name, 100)} is cut: {header.n_bytes:,} bytes of values, and {n_left:,} are there")


# `.safetensors` files. The format: https://github.com/huggingface/safetensors, "Format".

MAX_SAFETENSORS_HEADER = 50_000_000  # bytes, enough for some 350,000 tensors; safetensors itself allows 100 MB
_INDEX = ".safetensors.index.json"
_NUMBERED = re.compile(r"(.*-)(\d{1,6})-of-(\d{1,6})\.safetensors")
_METADATA = re.compile(r'\{"__metadata__": ?')
_TENSOR = re.compile(
    r'[{,] ?"([^"\\\x00-\x1f]*)": ?\{"dtype": ?"(\w+)", ?"shape": ?\[([\d, ]*)\], ?'
    r'"data_offsets": ?\[(0|[1-9]\d{0,18}), ?(0|[1-9]\d{0,18})\]\}',
    re.ASCII,
)

_DTYPES: dict[str, Any] = {"BOOL": np.bool_, "BF16": ml_dtypes.bfloat16, "C64": np.complex64}
_DTYPES |= {f"{kind}{n}": f"{name}{n}" for kind, name in (("U", "uint"), ("I", "int")) for n in (8, 16, 32, 64)}
_DTYPES |= {f"F{n}": f"float{n}" for n in (16, 32, 64)}
_DTYPES |= {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
_DTYPES |= {"F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz}
# dtypes that older releases of ml_dtypes lack, and the bits of a number in the file
_NEWER = {"F8_E8M0": ("float8_e8m0fnu", 8), "F6_E2M3": ("float6_e2m3fn", 6), "F6_E3M2": ("float6_e3m2fn", 6)}
_NEWER["F4"] = ("float4_e2m1fn", 4)


def read_safetensors(path: Path) -> Iterator[tuple[str, Stored]]:
    with path.open("rb") as file:
        size, state = size_of(file), state_of(file)
        n_header = int.from_bytes(file.read(8), "little")
        if size < 8 or n_header > min(size - 8, MAX_SAFETENSORS_HEADER):
            raise ValueError(f"its header would be {n_header:,} bytes long, the file has {size:,}")
        text = [file.read(n_header)]  # 12 MB for 100,000 tensors; popped below, so that it can be freed
    n_data, start_of_data = size - 8 - n_header, 8 + n_header
    ranges, tensors = list[tuple[int, int, str]](), list[tuple[str, Stored]]()
    kinds: dict[tuple[str, tuple[int, ...]], _TensorType] = {}  # a model has few distinct shapes
    metadata: dict[str, Any] = {}
    for key, dtype, shape, start, end in _tensors(text.pop(), metadata):
        ranges.append((start, end, key))
        if (kind := kinds.get((dtype, shape))) is None:
            kind = kinds[dtype, shape] = _tensor_type(_shown(key), dtype, shape, end - start)
        if end - start != kind.n_bytes:
            raise ValueError(f"{_shown(key)} has {end - start:,} bytes, and needs {kind.n_bytes:,}")
        chunks = At(path, start_of_data + start, state)
        chunks = chunks if kind.values is None else partial(kind.values, chunks)
        tensors.append((key, Stored(kind.shape, kind.dtype, chunks, key, kind.n_bytes, kind.stored_as, kind.text)))
    _check_ranges(ranges, n_data)
    stamp((stored for _, stored in tensors), metadata_of(metadata))
    yield from tensors


Pairs = Iterator[tuple[str, Any]]


def read_index(path: Path, read: Callable[[Path], Pairs] = read_safetensors) -> Pairs:
    """The tensors of `model.safetensors.index.json`, each `read` from the file that it names, in the same folder."""
    index = parse_json(read_bounded(path, MAX_SAFETENSORS_HEADER))
    shard_of = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise ValueError("it has no weight_map, which maps tensors to files")
    for shard in fetch_ahead(path.parent, sorted(set(shard_of.values()))):
        wanted = {name for name, where in shard_of.items() if where == shard}
        for name, stored in _shard(path.parent, shard, read):
            if name in wanted:
                wanted.remove(name)
                yield name, stored
        if wanted:
            missing = visible(min(wanted), 100)
            raise ValueError(f"{visible(shard, 100)} has no tensor {missing!r}, which the index names")


def read_shards(folder: Path, names: Sequence[str]) -> Pairs:
    """The tensors of a folder: those in its index, or in every `.safetensors` file there."""
    indices = [name for name in names if name.endswith(_INDEX)]
    if len(indices) > 1:
        shown = ", ".join(visible(index, 60) for index in indices)
        raise ValueError(f"it has {len(indices)} indices: name one of {shown}")
    if indices:
        yield from read_index(folder / indices[0])
        return
    match, numbered = next(filter(None, map(_NUMBERED.fullmatch, names)), None), list[str]()
    if match is not None:  # of numbered files such as "model-00001-of-00002.safetensors" some may be missing
        before, number, n = match.groups()
        numbered = [f"{before}{i:0{len(number)}}-of-{n}.safetensors" for i in range(1, int(n) + 1)]
    for name in fetch_ahead(folder, [*dict.fromkeys([*names, *numbered])]):
        yield from _shard(folder, name, read_safetensors)


def _shard(folder: Path, name: str, read: Callable[[Path], Pairs]) -> Pairs:
    path, shown = folder / name, visible(name, 100)
    if "/" in name or "\\" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"the shard {shown!r} is not in its folder: nothing outside is read")
    if not is_file(path):
        raise LoadError(f"{visible(str(folder), 500)}: the shard {shown} is not there")
    check_link(path, roots.get())
    try:
        yield from read(path)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"in the shard {shown}: {error}") from error


def _tensors(text: bytes, metadata: dict[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...], int, int]]:
    """The name, dtype, shape, start and end of each tensor; what else the header says goes into `metadata`.

    Entries in the form that the library writes are matched one by one, in a third of the time of a JSON reader and
    without its objects. The rest, from the last such entry on, is read as JSON.
    """
    check_size_of_json(text)
    header = text.decode("utf-8")
    del text
    shapes: dict[str, tuple[int, ...]] = {}
    last = position = 0
    if (match := _METADATA.match(header)) is not None:
        about, position = json.JSONDecoder().raw_decode(header, match.end())
        metadata.update(about if isinstance(about, dict) else {"__metadata__": about})
    while (match := _TENSOR.match(header, position)) is not None:
        key, dtype, sizes, start, end = match.groups()
        if sizes not in shapes:
            shapes[sizes] = tuple(json.loads(f"[{sizes}]"))
        yield key, dtype, shapes[sizes], int(start), int(end)
        last, position = position, match.end()
    if position and header[position:].strip(" \t\r\n") == "}":
        return
    others = parse_json(("{" + header[last + 1 :] if position else header).encode(), _compact)
    if not isinstance(others, dict):
        raise ValueError("its header is not a JSON object")
    for i, (key, entry) in enumerate(others.items()):
        if key == "__metadata__":
            metadata.update(entry if isinstance(entry, dict) else {key: entry})
            continue
        if position and i == 0:
            continue
        if type(entry) is not tuple:
            raise ValueError(f"{_shown(key)} has no dtype, shape and data_offsets")
        dtype, shape, start, end = entry
        if not (type(start) is int and type(end) is int and start >= 0 and end >= 0):
            raise ValueError(f"{_shown(key)} has no proper place")
        yield key, dtype, shape, start, end


def _compact(pairs: list[tuple[str, Any]]) -> Any:
    """The entry of a tensor as a tuple, which takes a third of a dict's memory."""
    entry = without_repeats(pairs)
    if entry.keys() != {"dtype", "shape", "data_offsets"}:
        return entry
    start, end = entry["data_offsets"]
    return entry["dtype"], tuple(entry["shape"]), start, end


class _TensorType(NamedTuple):
    """The properties that tensors of one dtype and shape share."""

    shape: tuple[int, ...]
    dtype: np.dtype
    n_bytes: int
    stored_as: str = ""
    text: str = ""
    values: Any = None  # decodes values from bytes; None if the bytes have the dtype


def _tensor_type(shown: str, name: str, shape: tuple[int, ...], n_given: int) -> _TensorType:
    if name in _DTYPES:
        dtype = np.dtype(_DTYPES[name])
        return _TensorType(shape, dtype, n_bytes_of(shown, shape, dtype))
    newer, n_bits = _NEWER.get(name, ("", 0))
    n_numbers = n_bytes_of(shown, shape, np.dtype(np.uint8))
    n_bytes = (n_numbers * n_bits + 7) // 8 if n_bits else n_given
    known = getattr(ml_dtypes, newer, None)
    if known is None or n_bits == 6:
        stored_as = visible(str(name), 20)
        unknown = refuse(f"treeviz does not read the values of {stored_as}")
        return _TensorType(shape, np.dtype(np.void), n_bytes, stored_as, "", lambda _, stored: unknown(stored))
    text, values = ("2 numbers in a byte", _nibbles) if n_bits == 4 else ("", None)
    return _TensorType(shape, np.dtype(known), n_bytes, "", text, values)


def _shown(key: str) -> str:
    return f"the tensor {visible(key, 100)!r}"


def _nibbles(chunks: Any, stored: Stored) -> Iterator[np.ndarray]:
    n_left = stored.size
    for chunk in chunks(Stored((stored.nbytes,), np.dtype(np.uint8), chunks)):
        yield np.stack([chunk & 15, chunk >> 4], axis=-1).reshape(-1)[:n_left].view(stored.dtype)
        n_left -= 2 * len(chunk)


def _check_ranges(ranges: list[tuple[int, int, str]], n_data: int) -> None:
    """Raise a ValueError unless the tensors follow each other without gap or overlap, as the format requires."""
    last = 0
    for start, end, key in sorted(ranges):
        if start != last or end < start:
            problem = "overlaps another" if start < last else "does not follow the one before"
            raise ValueError(f"{_shown(key)} {problem}: its bytes are {start:,} to {end:,}, and {last:,} was next")
        last = end
    if last != n_data:
        raise ValueError(f"its tensors have {last:,} bytes, and the file {n_data:,}")


# Flax' msgpack files: `flax.serialization.to_bytes`. Skips the bytes of arrays, which msgpack's readers cannot.

_MOST_VALUES = 1_600_000  # an array has eight
_MOST_LEVELS = 200
_AT_ONCE = 4096  # bytes of one read
_UNKNOWN = ((), np.dtype(np.void), -100)  # for a head that was not seen before
_LONGEST_HEAD, _MOST_LENGTHS = 64, 16  # bytes of an array's head, before its values; distinct lengths of heads
_LONGEST_TEXT = 100_000  # bytes
_LONGEST_KEY = 32  # bytes of a short text and its length byte
_NDARRAY, _COMPLEX, _SCALAR = 1, 2, 3  # Flax' extensions
_CHUNKED = "__msgpack_chunked_array__"  # an array of more than 1 GiB, as a dict of flat parts
_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_NUMBERS |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_MSGPACK_LENGTHS = {"bin": (0xC4, 0xC5, 0xC6), "ext": (0xC7, 0xC8, 0xC9), "str": (0xD9, 0xDA, 0xDB)}
_MSGPACK_LENGTHS |= {"array": (None, 0xDC, 0xDD), "map": (None, 0xDE, 0xDF)}
_KIND_OF = {code: (kind, 1 << i) for kind, codes in _MSGPACK_LENGTHS.items() for i, code in enumerate(codes)}


class _Bytes(NamedTuple):
    start: int
    n: int


def read_msgpack(path: Path) -> Any:
    """The tree that Flax wrote; dicts with the keys of a list are lists."""
    check_link(path, roots.get())
    with path.open("rb") as file:
        scanner = _Scanner(path, file)
        tree = scanner.value()
        if scanner.n_left:
            raise ValueError(f"{scanner.n_left:,} bytes follow its end")
    return tree


class _Scanner:
    """Reads msgpack values from a file, and skips the bytes of arrays."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file, self._state = path, file, state_of(file)
        self._size = size_of(file)
        self._at = self._n_values = 0
        self._buffer, self._from = b"", 0  # a few bytes of the file, and their offset
        self._known: dict[bytes, tuple[tuple[int, ...], np.dtype, int]] = {}  # arrays by head
        self._lengths: dict[int, None] = {}  # of the heads
        self._keys: dict[bytes, str] = {}  # so that equal keys share one string
        self._is_inside = False  # an extension, where bytes are an array's values

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
            return getattr(self, f"_{kind}")(int.from_bytes(self._read(width), "big"), name, level)
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 0x100
        if code < 0xC0:
            return self._array(code & 15, name, level) if code < 0xA0 else self._str(code & 31, name, level)
        if code in _NUMBERS:
            return struct.unpack(_NUMBERS[code], self._read(struct.calcsize(_NUMBERS[code])))[0]
        if 0xD4 <= code <= 0xD8:
            return self._ext(1 << (code - 0xD4), name, level)
        if code == 0xC1:
            raise ValueError("it is not msgpack")
        return {0xC0: None, 0xC2: False, 0xC3: True}[code]

    def _read(self, n: int) -> bytes:
        start = self._at - self._from
        data = self._buffer[start : start + n]
        if len(data) < n <= self.n_left:
            self._file.seek(self._at)
            self._buffer, self._from = self._file.read(max(n, _AT_ONCE)), self._at
            data = self._buffer[:n]
        if len(data) < n:
            raise ValueError(f"it is cut: {n:,} more bytes were to come")
        self._at += n
        return data

    def _skip(self, n: int) -> _Bytes:
        start = self._at
        if n > self._size - start:
            raise ValueError(f"it is cut: {n:,} more bytes were to come, and {self._size - start:,} are there")
        self._at += n
        return _Bytes(start, n)

    def _bin(self, n: int, name: str, level: int) -> Any:
        skipped = self._skip(n)
        return skipped if self._is_inside else Unread("bytes", f"{n:,} bytes")

    def _str(self, n: int, name: str, level: int) -> Any:
        if n <= _LONGEST_TEXT:
            return self._read(n).decode("utf-8")
        self._skip(n)
        return Unread("str", f"{n:,} bytes of text")

    def _array(self, n: int, name: str, level: int) -> list[Any]:
        if n > self.n_left:
            raise ValueError(f"it is cut: a list of {n:,} was to come")
        return [self.value(f"{name}/{i}" if name else str(i), level + 1) for i in range(n)]

    def _map(self, n: int, name: str, level: int) -> Any:
        if n > self.n_left:
            raise ValueError(f"it is cut: a dict of {n:,} was to come")
        entries: dict[Any, Any] = {}
        prefix = f"{name}/" if name else ""
        for _ in range(n):
            key = self._key(level)
            if key in entries:
                raise ValueError(f"it has {visible(f'{name}/{key}', 200)!r} twice")
            entries[key] = self.value(f"{prefix}{key}", level + 1)
        if _CHUNKED in entries:
            return self._chunked(entries, name)
        if "0" in entries and all(str(i) in entries for i in range(len(entries))):
            return [entries[str(i)] for i in range(len(entries))]
        return entries

    def _key(self, level: int) -> str | int:
        start = self._at - self._from
        head = self._buffer[start : start + _LONGEST_KEY]
        n = head[0] - 0xA0 if head else -1
        if 0 <= n < len(head):  # a short text that ends in the buffer
            text = head[1 : n + 1]
            if (key := self._keys.get(text)) is None:
                key = self._keys[text] = text.decode("utf-8")
            self._at += n + 1
            self._n_values += 1
            return key
        key = self.value(level=level + 1)
        if not isinstance(key, str | int):
            raise ValueError(f"a key of a dict is not text: {visible(str(key), 100)}")
        return key

    def _ext(self, n: int, name: str, level: int) -> Any:
        kind = self._read(1)[0]
        start, end = self._at, self._at + n
        if end > self._size:
            self._skip(n)
        if kind in (_NDARRAY, _SCALAR):
            position = start - self._from
            for length in self._lengths:
                shape, dtype, n_bytes = self._known.get(self._buffer[position : position + length], _UNKNOWN)
                if length + n_bytes == n:
                    self._at, self._n_values = end, self._n_values + 4 + len(shape)
                    return Stored(shape, dtype, At(self._path, start + length, self._state), name, n_bytes)
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
        length, position = n - stored.nbytes, start - self._from
        head = self._buffer[position : position + length] if 0 < length <= _LONGEST_HEAD and position >= 0 else b""
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
        return Stored(tuple(shape), dtype, At(self._path, data.start, self._state), name)

    def _chunked(self, entries: dict[Any, Any], name: str) -> Stored:
        shown = visible(name, 200)
        shape, parts = entries.get("shape"), entries.get("chunks")
        if not (type(shape) is list and type(parts) is list and parts and all(type(part) is Stored for part in parts)):
            raise ValueError(f"{shown!r} is damaged")
        dtype = parts[0].dtype
        n_bytes = n_bytes_of(shown, shape, dtype)
        if n_bytes != sum(part.nbytes for part in parts) or any(part.dtype != dtype for part in parts):
            raise ValueError(f"{shown!r} is damaged: its parts do not make up its shape")
        return Stored(tuple(shape), dtype, lambda _: chain.from_iterable(part.chunks() for part in parts), name)
