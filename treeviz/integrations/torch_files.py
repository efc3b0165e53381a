"""Files of PyTorch: `torch.load(weights_only=True, mmap=True)`, which takes tensors and plain values alone."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from treeviz.integrations import not_installed
from treeviz.tree.files.arrays import Pairs, read_index
from treeviz.tree.files.entries import LoadError, Unread, nested, refuse, with_scales
from treeviz.tree.stored import CHUNK, Stored
from treeviz.tree.text import error_text, visible

_MOST_PICKLE = 64_000_000  # bytes of the pickle, which holds names and shapes, and no value
_MOST_VALUES = 1_000_000
_MOST_LEVELS = 100


def read_torch(path: Path) -> Any:
    """The tree in the file; a dict of dotted names, as of `state_dict`, is nested."""
    torch, found = _loaded(path)
    return _Converter(torch).tree(found, "", 0)


def read_torch_index(path: Path) -> Pairs:
    """The tensors of `pytorch_model.bin.index.json`, each from the file that the index names, in the same folder."""
    return read_index(path, _named)


def _named(path: Path) -> Pairs:
    torch, found = _loaded(path)
    if not isinstance(found, dict):
        raise ValueError("it has no names")
    convert = _Converter(torch).tree
    return ((str(name), convert(each, str(name), 1)) for name, each in found.items())


def _loaded(path: Path) -> tuple[Any, Any]:
    """PyTorch, and what it finds in a file."""
    _check_archive(path)
    try:
        import torch
    except ImportError as error:
        raise not_installed(error, "torch") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of storages and of sparse tensors
        try:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            why = str(error)
            if "weights_only" in why.lower() or "Unsupported" in why:
                raise LoadError(
                    f"{visible(str(path), 1000)} holds more than tensors and plain values, which treeviz does not "
                    "open: that runs whatever code the file contains. Load it yourself, if you trust it, and call "
                    f"treeviz.render(tree). ({visible(_cause(why), 200)})"
                ) from None
            raise ValueError(error_text(error)) from None
    return torch, found


def _cause(why: str) -> str:
    """The line of PyTorch's message that names what it refuses."""
    lines = [line.strip() for line in why.splitlines()]
    return next((line for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0] if lines else "")


def _check_archive(path: Path) -> None:
    """Raise an error unless the file is an archive as PyTorch 1.6 and later write it: stored, and its pickle small."""
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise LoadError(
                f"{visible(str(path), 1000)} is no archive of PyTorch 1.6 or later. A plain pickle is not opened: that "
                "runs whatever code the file contains. Load it yourself, if you trust it, and save it again."
            )
    with zipfile.ZipFile(path) as archive:
        if any("/code/" in member.filename for member in archive.infolist()):
            raise LoadError(
                f"{visible(str(path), 1000)} holds a program of TorchScript, which treeviz does not open. Save its "
                "tensors alone: torch.save(torch.jit.load(path).state_dict(), other_path)."
            )
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{visible(member.filename, 100)} in it is compressed, which torch.save does not do")
            if member.filename.endswith("data.pkl") and member.file_size > _MOST_PICKLE:
                raise ValueError(f"its pickle would be {member.file_size:,} bytes long")


class _Converter:
    """Makes leaves of tensors, whose values stay in the file."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._n_values = 0

    def tree(self, found: Any, name: str, level: int) -> Any:
        self._n_values += 1
        if level > _MOST_LEVELS or self._n_values > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values, or {_MOST_LEVELS} levels")
        if isinstance(found, self._torch.Tensor):
            return self._stored(found, name)
        if isinstance(found, dict):
            below = {key: self.tree(each, self._join(name, key), level + 1) for key, each in found.items()}
            return _nested(below)
        if isinstance(found, list | tuple):
            items = [self.tree(each, self._join(name, i), level + 1) for i, each in enumerate(found)]
            return items if isinstance(found, list) else tuple(items)
        if found is None or isinstance(found, bool | int | float | complex | str):
            return found
        return Unread(type(found).__name__, visible(str(found), 100))

    def _join(self, name: str, key: Any) -> str:
        return f"{name}.{key}" if name else str(key)

    def _stored(self, tensor: Any, name: str) -> Stored:
        torch, kind = self._torch, str(tensor.dtype).removeprefix("torch.")
        known = getattr(ml_dtypes, kind, None) or getattr(np, "bool_" if kind == "bool" else kind, None)
        shape = tuple(map(int, tensor.shape))
        n_bytes = tensor.numel() * tensor.element_size()
        if known is None or tensor.layout != torch.strided or tensor.is_quantized:
            layout = str(tensor.layout).removeprefix("torch.")
            refused = refuse(f"treeviz does not read the values of {kind} tensors that are {layout}")
            text = "" if layout == "strided" else layout
            return Stored(shape, np.dtype(np.void), refused, name, n_bytes, kind, text)
        dtype = np.dtype(known)
        return Stored(shape, dtype, partial(_values, torch, tensor.detach()), name, n_bytes)


def _nested(found: dict[Any, Any]) -> Any:
    """A dict of arrays by dotted names as a tree; any other stays as it is."""
    are_arrays = found and all(isinstance(key, str) and type(each) is Stored for key, each in found.items())
    if are_arrays:
        return nested(with_scales(found))
    if found and set(found) == set(range(len(found))):  # the states of an optimizer
        return [found[i] for i in range(len(found))]
    return found


def _values(torch: Any, tensor: Any, stored: Stored) -> Iterator[np.ndarray]:
    if tensor.ndim == 0:
        tensor = tensor.reshape(1)
    words = {1: torch.uint8, 2: torch.int16}
    n_rows = max(1, CHUNK // max(1, tensor[:1].numel() * tensor.element_size()))
    for i in range(0, len(tensor), n_rows):
        rows = tensor[i : i + n_rows].contiguous()
        if stored.dtype.kind == "V":  # of ml_dtypes, which PyTorch's arrays cannot name
            yield rows.view(words[stored.dtype.itemsize]).numpy().reshape(-1).view(stored.dtype)
        else:
            yield rows.resolve_conj().resolve_neg().numpy().reshape(-1)
