"""Read the arrays of a file as a tree: from what the file says of them, without their values."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from typing import Any, BinaryIO

import jax
import ml_dtypes
import numpy as np

from treeviz.tree.looks import Look, describes
from treeviz.tree.quote import visible

SUFFIXES = (".npz", ".npy", ".safetensors")
MAX_HEADER = 100_000_000  # bytes; the limit of safetensors itself
_NUMBERS = "biufc"  # kinds of dtypes
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".bin")

# https://github.com/huggingface/safetensors, "Format"
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


class LoadError(ValueError):
    """A file that treeviz cannot or will not read; the message says why."""


@dataclass(frozen=True)
class Unread:
    """Stands for what is in the file and cannot be an array of JAX."""

    type: str
    text: str


@describes(Unread)
def _(unread: Unread) -> Look:
    return Look(kind="opaque", type=unread.type, text=unread.text, transparent=True)


def load(path: Path, *, values: bool = False) -> Any:
    """The arrays of a `.npz`, `.npy` or `.safetensors` file as a tree.

    Names such as "layers/0/kernel" (or, without slashes, "layers.0.weight") become nested dicts, and
    lists where the names are numbers from 0 on.

    Args:
      values: Arrays with values, mapped from the file where they can be. Otherwise only the headers are
        read, and the leaves are `jax.ShapeDtypeStruct`.

    Raises:
      LoadError: A suffix that treeviz does not know, a pickle, or a file that is broken.
      OSError: The file cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise LoadError(
            f"{path} is a pickle by its name. treeviz does not open pickles: that runs whatever code the file "
            "contains. Load it yourself, if you trust it, and call treeviz.render(tree)."
        )
    if suffix not in SUFFIXES:
        raise LoadError(
            f"{path}: treeviz reads {', '.join(SUFFIXES)} files. Load any other one yourself, and call "
            "treeviz.render(tree)."
        )
    try:
        if suffix == ".npy":
            return _npy(path, values)
        return nested(dict(_npz(path, values) if suffix == ".npz" else _safetensors(path, values)))
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise LoadError(f"{path} is not a whole {suffix} file: {visible(str(error), 300)}") from error


def nested(arrays: Mapping[str, Any]) -> Any:
    """Flat names as nested dicts: "a/b", or "a.b" if no name has a slash. Names that do not nest stay flat."""
    separator = "/" if any("/" in name for name in arrays) else "."
    root: dict[str, Any] = {}
    above: list[tuple[dict[str, Any], str]] = []  # every dict but the root: where it stands, parents first
    dicts = {id(root)}
    for name, array in arrays.items():
        *steps, last = name.split(separator)
        node = root
        for step in steps:
            if step not in node:
                node[step] = {}
                dicts.add(id(node[step]))
                above.append((node, step))
            if id(node[step]) not in dicts:
                return dict(arrays)  # "a" is an array, and there is an "a.b"
            node = node[step]
        if last in node:
            return dict(arrays)
        node[last] = array
    for parent, key in reversed(above):
        parent[key] = _as_list(parent[key])
    return _as_list(root)


def _as_list(node: dict[str, Any]) -> Any:
    numbers = [str(i) for i in range(len(node))]
    return [node[i] for i in numbers] if node and node.keys() == set(numbers) else node


def _npy(path: Path, values: bool) -> Any:
    with open(path, "rb") as file:
        shape, dtype = _npy_header(file)
    if dtype.kind not in _NUMBERS:
        return _unread(shape, dtype)
    return np.load(path, mmap_mode="r", allow_pickle=False) if values else jax.ShapeDtypeStruct(shape, dtype)


def _npz(path: Path, values: bool) -> Iterator[tuple[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            if name == member:
                yield name, Unread("file", "not an array")
                continue
            with archive.open(member) as file:
                shape, dtype = _npy_header(file)  # type: ignore[arg-type]
            if dtype.kind not in _NUMBERS:
                yield name, _unread(shape, dtype)
            elif values:
                with archive.open(member) as file:
                    yield name, np.lib.format.read_array(file, allow_pickle=False)
            else:
                yield name, jax.ShapeDtypeStruct(shape, dtype)


def _npy_header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _unread(shape: tuple[int, ...], dtype: np.dtype) -> Unread:
    if dtype.hasobject:
        return Unread("pickle", f"{shape}: pickled Python objects, which treeviz does not open")
    hint = " (NumPy writes bfloat16 and float8 like this)" if dtype.kind == "V" and dtype.names is None else ""
    return Unread("np.ndarray", f"{shape} of {visible(str(dtype), 80)}: not a JAX dtype{hint}")


def _safetensors(path: Path, values: bool) -> Iterator[tuple[str, Any]]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        if size < 8 or n_header > min(size - 8, MAX_HEADER):
            raise ValueError(f"its header would be {n_header:,} bytes long, the file has {size:,}")
        header = json.loads(file.read(n_header))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    data = np.memmap(path, np.uint8, "r", 8 + n_header) if values and size > 8 + n_header else np.empty(0, np.uint8)
    for name, about in header.items():
        if name == "__metadata__":
            continue
        shape, (start, end) = tuple(about["shape"]), about["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, start, end)):
            raise ValueError(f"the tensor {visible(name)!r} has no proper shape or place")
        if about["dtype"] not in _DTYPES:
            yield name, Unread("tensor", f"{shape} of {visible(str(about['dtype']), 20)}: not a dtype that JAX has")
            continue
        aval = jax.ShapeDtypeStruct(shape, np.dtype(_DTYPES[about["dtype"]]))
        n_bytes = aval.size * aval.dtype.itemsize
        if end - start != n_bytes or end > size - 8 - n_header:
            raise ValueError(f"the tensor {visible(name)!r} has {end - start:,} bytes, and needs {n_bytes:,}")
        yield name, data[start:end].view(aval.dtype).reshape(shape) if values else aval


def identifier(path: Path) -> str:
    """What the tree of a file is called: a name that Python can have."""
    name = re.sub(r"\W+", "_", path.stem).strip("_")
    return name if name.isidentifier() and not iskeyword(name) else "tree"
