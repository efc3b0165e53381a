"""`.safetensors` files. The format: https://github.com/huggingface/safetensors, "Format"."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from treeviz.tree.files.entries import (
    At,
    LoadError,
    check_size_of_json,
    is_file,
    n_bytes_of,
    parse_json,
    read_bounded,
    refuse,
    without_repeats,
)
from treeviz.tree.safe_repr import visible
from treeviz.tree.stored import Stored

MAX_HEADER = 50_000_000  # bytes: of some 350,000 tensors. safetensors itself takes 100 MB
_INDEX = ".safetensors.index.json"
_NUMBERED = re.compile(r"(.*-)(\d{1,6})-of-(\d{1,6})\.safetensors")
_METADATA = re.compile(r'\{"__metadata__": ?')
_TENSOR = re.compile(
    r'[{,] ?"([^"\\\x00-\x1f]*)": ?\{"dtype": ?"(\w+)", ?"shape": ?\[([\d, ]*)\], ?'
    r'"data_offsets": ?\[(0|[1-9]\d{0,18}), ?(0|[1-9]\d{0,18})\]\}',
    re.ASCII,
)

_DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
# Those that older releases of ml_dtypes lack, and the bits that a number takes in the file.
_NEWER = {"F8_E8M0": ("float8_e8m0fnu", 8), "F6_E2M3": ("float6_e2m3fn", 6), "F6_E3M2": ("float6_e3m2fn", 6)}
_NEWER["F4"] = ("float4_e2m1fn", 4)


def read_safetensors(path: Path) -> Iterator[tuple[str, Stored]]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        if size < 8 or n_header > min(size - 8, MAX_HEADER):
            raise ValueError(f"its header would be {n_header:,} bytes long, the file has {size:,}")
        text = [file.read(n_header)]  # 12 MB for 100,000 tensors, which are let go
    n_data, start_of_data = size - 8 - n_header, 8 + n_header
    ranges: list[tuple[int, int, str]] = []
    known: dict[tuple[str, tuple[int, ...]], _Kind] = {}  # the arrays of a model have few shapes
    for key, dtype, shape, start, end in _tensors(text.pop()):
        ranges.append((start, end, key))
        kind = known.get((dtype, shape))
        if kind is None:
            kind = known[dtype, shape] = _kind(_shown(key), dtype, shape, end - start)
        if end - start != kind.n_bytes:
            raise ValueError(f"{_shown(key)} has {end - start:,} bytes, and needs {kind.n_bytes:,}")
        chunks = At(path, start_of_data + start)
        chunks = chunks if kind.values is None else partial(kind.values, chunks)
        yield key, Stored(kind.shape, kind.dtype, chunks, key, kind.n_bytes, kind.stored_as, kind.text)
    _check_ranges(ranges, n_data)


Pairs = Iterator[tuple[str, Any]]


def read_index(path: Path, read: Callable[[Path], Pairs] = read_safetensors) -> Pairs:
    """The tensors of `model.safetensors.index.json`, each from the file that the index names, in the same folder.

    Args:
      read: Reads such a file.
    """
    index = parse_json(read_bounded(path, MAX_HEADER))
    shard_of = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise ValueError("it has no weight_map, which names the file of each tensor")
    for shard in sorted(set(shard_of.values())):
        wanted = {name for name, where in shard_of.items() if where == shard}
        for name, stored in _shard(path.parent, shard, read):
            if name in wanted:
                wanted.remove(name)
                yield name, stored
        if wanted:
            raise ValueError(
                f"{visible(shard, 100)} has no tensor {visible(min(wanted), 100)!r}, which the index names"
            )


def read_shards(folder: Path, names: Sequence[str]) -> Pairs:
    """The tensors of a folder: by its index, or of every `.safetensors` file there."""
    indices = [name for name in names if name.endswith(_INDEX)]
    if len(indices) > 1:
        raise ValueError(
            f"it has {len(indices)} indices: name one of {', '.join(visible(each, 60) for each in indices)}"
        )
    if indices:
        yield from read_index(folder / indices[0])
    else:
        for name in [*names, *_missing(names)]:
            yield from _shard(folder, name, read_safetensors)


def _missing(names: Sequence[str]) -> Iterator[str]:
    """What is not there of files that are numbered, as "model-00001-of-00002.safetensors"."""
    found = next(filter(None, map(_NUMBERED.fullmatch, names)), None)
    if found is not None:
        before, number, n = found.groups()
        there = set(names)
        numbered = (f"{before}{i:0{len(number)}}-of-{n}.safetensors" for i in range(1, int(n) + 1))
        yield from (name for name in numbered if name not in there)


def _shard(folder: Path, name: str, read: Callable[[Path], Pairs]) -> Pairs:
    path, shown = folder / name, visible(name, 100)
    if "/" in name or "\\" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"the shard {shown!r} is not in its folder: nothing outside is read")
    if not is_file(path):
        raise LoadError(f"{visible(str(folder), 500)}: the shard {shown} is not there")
    try:
        yield from read(path)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"in the shard {shown}: {error}") from error


def _tensors(text: bytes) -> Iterator[tuple[str, str, tuple[int, ...], int, int]]:
    """The name, dtype, shape, start and end of each tensor.

    Entries as the library writes them are read one after the other, in a third of the time of a reader of JSON, and
    without its objects. It reads the rest, from the last such entry on.
    """
    check_size_of_json(text)
    header = text.decode("utf-8")
    del text
    shapes: dict[str, tuple[int, ...]] = {}
    last = at = 0
    if (found := _METADATA.match(header)) is not None:
        at = json.JSONDecoder().raw_decode(header, found.end())[1]
    while (found := _TENSOR.match(header, at)) is not None:
        key, dtype, sizes, start, end = found.groups()
        if sizes not in shapes:
            shapes[sizes] = tuple(json.loads(f"[{sizes}]"))
        yield key, dtype, shapes[sizes], int(start), int(end)
        last, at = at, found.end()
    if at and header[at:].strip(" \t\r\n") == "}":
        return
    others = parse_json(("{" + header[last + 1 :] if at else header).encode(), _compact)
    if not isinstance(others, dict):
        raise ValueError("its header is no JSON object")
    for i, (key, about) in enumerate(others.items()):
        if key == "__metadata__" or (at and i == 0):
            continue
        if type(about) is not tuple:
            raise ValueError(f"{_shown(key)} has no dtype, shape and data_offsets")
        dtype, shape, start, end = about
        if not (type(start) is int and type(end) is int and start >= 0 and end >= 0):
            raise ValueError(f"{_shown(key)} has no proper place")
        yield key, dtype, shape, start, end


def _compact(pairs: list[tuple[str, Any]]) -> Any:
    """The entry of a tensor as a tuple, which takes a third of the memory of a dict."""
    entry = without_repeats(pairs)
    if entry.keys() != {"dtype", "shape", "data_offsets"}:
        return entry
    start, end = entry["data_offsets"]
    return entry["dtype"], tuple(entry["shape"]), start, end


class _Kind(NamedTuple):
    """What the tensors of one dtype and shape have in common.

    Attributes:
      values: Makes values of the bytes; None: they are of the dtype.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    n_bytes: int
    stored_as: str = ""
    text: str = ""
    values: Any = None


def _kind(shown: str, name: str, shape: tuple[int, ...], n_given: int) -> _Kind:
    if name in _DTYPES:
        dtype = np.dtype(_DTYPES[name])
        return _Kind(shape, dtype, n_bytes_of(shown, shape, dtype))
    newer, n_bits = _NEWER.get(name, ("", 0))
    n_numbers = n_bytes_of(shown, shape, np.dtype(np.uint8))
    n_bytes = (n_numbers * n_bits + 7) // 8 if n_bits else n_given
    known = getattr(ml_dtypes, newer, None)
    if known is None or n_bits == 6:
        stored_as = visible(str(name), 20)
        unknown = refuse(f"treeviz does not read the values of {stored_as}")
        return _Kind(shape, np.dtype(np.void), n_bytes, stored_as, "", lambda _, stored: unknown(stored))
    if n_bits == 8:
        return _Kind(shape, np.dtype(known), n_bytes)
    return _Kind(shape, np.dtype(known), n_bytes, "", "2 numbers in a byte", _nibbles)


def _shown(key: str) -> str:
    return f"the tensor {visible(key, 100)!r}"


def _nibbles(chunks: Any, stored: Stored) -> Iterator[np.ndarray]:
    n_left = stored.size
    for chunk in chunks(Stored((stored.nbytes,), np.dtype(np.uint8), chunks)):
        yield np.stack([chunk & 15, chunk >> 4], axis=-1).reshape(-1)[:n_left].view(stored.dtype)
        n_left -= 2 * len(chunk)


def _check_ranges(ranges: list[tuple[int, int, str]], n_data: int) -> None:
    """Raise a ValueError unless the tensors follow each other without gap or overlap, as the format demands."""
    last = 0
    for start, end, key in sorted(ranges):
        if start != last or end < start:
            what = "overlaps another" if start < last else "does not follow the one before"
            raise ValueError(f"{_shown(key)} {what}: its bytes are {start:,} to {end:,}, and {last:,} was next")
        last = end
    if last != n_data:
        raise ValueError(f"its tensors have {last:,} bytes, and the file {n_data:,}")
