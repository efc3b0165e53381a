"""`.safetensors` files. The format: https://github.com/huggingface/safetensors, "Format"."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from treeviz.tree.files.entries import Stored, Unread, n_bytes_of, open_at, without_repeats
from treeviz.tree.safe_repr import visible

MAX_HEADER = 100_000_000  # bytes; the limit of safetensors itself

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
}


def read_safetensors(path: Path, values: bool) -> Iterator[tuple[str, Any]]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        if size < 8 or n_header > min(size - 8, MAX_HEADER):
            raise ValueError(f"its header would be {n_header:,} bytes long, the file has {size:,}")
        text = file.read(n_header)
    header = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    n_data = size - 8 - n_header
    ranges = []
    for key, about in header.items():
        if key == "__metadata__":
            continue
        name = f"the tensor {visible(key, 100)!r}"
        shape, (start, end) = tuple(about["shape"]), about["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (start, end)):
            raise ValueError(f"{name} has no proper place")
        ranges.append((start, end, name))
        dtype = np.dtype(_DTYPES.get(about["dtype"], np.bool_))
        n_bytes = n_bytes_of(name, shape, dtype)
        if about["dtype"] not in _DTYPES:
            yield key, Unread("tensor", f"{shape} of {visible(str(about['dtype']), 20)}: not a dtype that JAX has")
            continue
        if end - start != n_bytes:
            raise ValueError(f"{name} has {end - start:,} bytes, and needs {n_bytes:,}")
        if values:
            yield key, Stored(shape, dtype, partial(open_at, path, 8 + n_header + start))
        else:
            yield key, jax.ShapeDtypeStruct(shape, dtype)
    _check_ranges(ranges, n_data)


def _check_ranges(ranges: Sequence[tuple[int, int, str]], n_data: int) -> None:
    """Raise a ValueError unless the tensors follow each other without gap or overlap, as the format demands."""
    at = 0
    for start, end, name in sorted(ranges):
        if start != at or end < start:
            what = "overlaps another" if start < at else "does not follow the one before"
            raise ValueError(f"{name} {what}: its bytes are {start:,} to {end:,}, and {at:,} was next")
        at = end
    if at != n_data:
        raise ValueError(f"its tensors have {at:,} bytes, and the file {n_data:,}")
