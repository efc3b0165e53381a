"""`.safetensors` files. The format: https://github.com/huggingface/safetensors, "Format"."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from treeviz.tree.files.entries import LoadError, at, n_bytes_of, parse_json, read_bounded, refuse, without_repeats
from treeviz.tree.safe_repr import visible
from treeviz.tree.stored import Stored

MAX_HEADER = 50_000_000  # bytes: of some 350,000 tensors. safetensors itself takes 100 MB
_INDEX = ".safetensors.index.json"

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
        text = file.read(n_header)
    header = parse_json(text, _compact)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    n_data = size - 8 - n_header
    dtypes = {name: np.dtype(dtype) for name, dtype in _DTYPES.items()}
    ranges = []
    for key, about in header.items():
        if key == "__metadata__":
            continue
        name = f"the tensor {visible(key, 100)!r}"
        if type(about) is not tuple:
            raise ValueError(f"{name} has no dtype, shape and data_offsets")
        dtype, shape, start, end = about
        if not (type(start) is int and type(end) is int and start >= 0 and end >= 0):
            raise ValueError(f"{name} has no proper place")
        ranges.append((start, end, key))
        if dtype in dtypes:
            n_bytes = n_bytes_of(name, shape, dtypes[dtype])
            stored = Stored(shape, dtypes[dtype], at(path, 8 + n_header + start), key, n_bytes)
        else:
            stored = _newer(path, key, str(dtype), shape, 8 + n_header + start, end - start)
        if end - start != stored.nbytes:
            raise ValueError(f"{name} has {end - start:,} bytes, and needs {stored.nbytes:,}")
        yield key, stored
    _check_ranges(ranges, n_data)


def read_index(path: Path) -> Iterator[tuple[str, Stored]]:
    """The tensors of `model.safetensors.index.json`, each from the file that the index names, in the same folder."""
    index = parse_json(read_bounded(path, MAX_HEADER))
    shard_of = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise ValueError("it has no weight_map, which names the file of each tensor")
    for shard in sorted(set(shard_of.values())):
        wanted = {name for name, where in shard_of.items() if where == shard}
        for name, stored in _shard(path.parent, shard):
            if name in wanted:
                wanted.remove(name)
                yield name, stored
        if wanted:
            raise ValueError(
                f"{visible(shard, 100)} has no tensor {visible(min(wanted), 100)!r}, which the index names"
            )


def read_shards(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Stored]]:
    """The tensors of a folder: by its index, or of every `.safetensors` file there."""
    indices = [name for name in names if name.endswith(_INDEX)]
    if len(indices) > 1:
        raise ValueError(
            f"it has {len(indices)} indices: name one of {', '.join(visible(each, 60) for each in indices)}"
        )
    if indices:
        yield from read_index(folder / indices[0])
    else:
        for name in names:
            yield from _shard(folder, name)


def _shard(folder: Path, name: str) -> Iterator[tuple[str, Stored]]:
    path, shown = folder / name, visible(name, 100)
    if "/" in name or "\\" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"the shard {shown!r} is not in its folder: nothing outside is read")
    if not path.is_file():
        raise LoadError(f"{visible(str(folder), 500)}: the shard {shown} is not there")
    try:
        yield from read_safetensors(path)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"in the shard {shown}: {error}") from error


def _compact(pairs: list[tuple[str, Any]]) -> Any:
    """The entry of a tensor as a tuple, which takes a third of the memory of a dict."""
    entry = without_repeats(pairs)
    if entry.keys() != {"dtype", "shape", "data_offsets"}:
        return entry
    start, end = entry["data_offsets"]
    return entry["dtype"], tuple(entry["shape"]), start, end


def _newer(path: Path, key: str, dtype: str, shape: tuple[int, ...], start: int, n_bytes: int) -> Stored:
    """A tensor of a dtype that NumPy has not, whose numbers may take less than a byte."""
    name, n_bits = _NEWER.get(dtype, ("", 0))
    known = getattr(ml_dtypes, name, None)
    if n_bits:
        n_bytes_of(f"the tensor {visible(key, 100)!r}", shape, np.dtype(np.uint8))
        n_bytes = (math.prod(shape) * n_bits + 7) // 8
    if known is None or n_bits == 6:
        unknown = refuse(f"treeviz does not read the values of {visible(dtype, 20)}")
        return Stored(shape, np.dtype(np.void), unknown, key, n_bytes, stored_as=visible(dtype, 20))
    if n_bits == 8:
        return Stored(shape, np.dtype(known), at(path, start), key, n_bytes)
    return Stored(shape, np.dtype(known), partial(_nibbles, at(path, start)), key, n_bytes, text="2 numbers in a byte")


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
            name = f"the tensor {visible(key, 100)!r}"
            raise ValueError(f"{name} {what}: its bytes are {start:,} to {end:,}, and {last:,} was next")
        last = end
    if last != n_data:
        raise ValueError(f"its tensors have {last:,} bytes, and the file {n_data:,}")
