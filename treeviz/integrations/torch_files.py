"""Files of PyTorch, read by `torch.load(weights_only=True, mmap=True)`, which accepts only tensors and plain values."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from treeviz.integrations import not_installed
from treeviz.tree.files import (
    LoadError,
    Pairs,
    Unread,
    check_link,
    check_unchanged,
    nested,
    read_index,
    refuse,
    roots,
    state_of,
    with_scales,
)
from treeviz.tree.stored import CHUNK, Stored
from treeviz.tree.text import error_text, visible

_MOST_PICKLE = 64_000_000  # bytes of the pickle, which holds names and shapes but no values
_MOST_VALUES = 1_000_000
_MOST_LEVELS = 100


def read_torch(path: Path) -> Any:
    """The tree in the file; a dict with dotted names, as from `state_dict`, becomes nested."""
    contents, converter = _loaded(path)
    return converter.tree(contents, "", 0)


def read_torch_index(path: Path) -> Pairs:
    """The tensors of `pytorch_model.bin.index.json`, each from the file that the index names, in the same folder."""

    def named_tensors(path: Path) -> Pairs:
        contents, converter = _loaded(path)
        if not isinstance(contents, dict):
            raise ValueError("it has no names")
        return ((str(name), converter.tree(tensor, str(name), 1)) for name, tensor in contents.items())

    return read_index(path, named_tensors)


def _loaded(path: Path) -> tuple[Any, _Converter]:
    if not isinstance(path, Path):
        raise LoadError(f"{path}: PyTorch reads only local files. Copy it to a disk first.")
    check_link(path, roots.get())
    with open(path, "rb") as file:
        state = state_of(file)
        _check_archive(path, file)
    try:
        import torch
    except ImportError as error:
        raise not_installed(error, "torch") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about storages and sparse tensors
            contents = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        message = str(error)
        if "weights_only" not in message.lower() and "Unsupported" not in message:
            raise ValueError(error_text(error)) from None
        lines = [line.strip() for line in message.splitlines()]
        refused = next((line for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0])
        raise LoadError(
            f"{visible(str(path), 1000)} holds more than tensors and plain values. treeviz does not open it, since "
            "that runs the code in the file. Load it yourself, if you trust it, and call treeviz.render(tree). "
            f"({visible(refused, 200)})"
        ) from None
    return contents, _Converter(torch, path, state)


def _check_archive(path: Path, file: IO[bytes]) -> None:
    """Raise an error unless the file is an archive of PyTorch 1.6 or later: uncompressed, with a small pickle."""
    if file.read(4) != b"PK\x03\x04":
        raise LoadError(
            f"{visible(str(path), 1000)} is not an archive of PyTorch 1.6 or later. treeviz does not open plain "
            "pickles, since that runs the code in the file. Load it yourself, if you trust it, and save it again."
        )
    with zipfile.ZipFile(file) as archive:
        # PyTorch up to 2.5 takes whatever has constants.pkl for a program, and loads it whatever weights_only says.
        if any("/code/" in name or name.endswith("constants.pkl") for name in archive.namelist()):
            raise LoadError(
                f"{visible(str(path), 1000)} holds a TorchScript program, which treeviz does not open. Save only "
                "its tensors: torch.save(torch.jit.load(path).state_dict(), other_path)."
            )
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{visible(member.filename, 100)} in it is compressed, which torch.save does not do")
            if member.filename.endswith("data.pkl") and member.file_size > _MOST_PICKLE:
                raise ValueError(f"its pickle would be {member.file_size:,} bytes long")


class _Converter:
    """Converts tensors to leaves whose values stay in the file."""

    def __init__(self, torch: Any, path: Path, state: tuple[int, ...]) -> None:
        self._torch, self._path, self._state = torch, path, state
        self._n_values = 0

    def tree(self, value: Any, name: str, level: int) -> Any:
        self._n_values += 1
        if level > _MOST_LEVELS or self._n_values > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values, or {_MOST_LEVELS} levels")
        if isinstance(value, self._torch.Tensor):
            return self._stored(value, name)
        start = f"{name}." if name else ""
        if isinstance(value, dict):
            return _nested({key: self.tree(child, f"{start}{key}", level + 1) for key, child in value.items()})
        if isinstance(value, list | tuple):
            items = [self.tree(child, f"{start}{i}", level + 1) for i, child in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        return Unread(type(value).__name__, visible(str(value), 100))

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
        return Stored(shape, dtype, partial(self._values, tensor.detach()), name, n_bytes)

    def _values(self, tensor: Any, stored: Stored) -> Iterator[np.ndarray]:
        torch = self._torch
        if tensor.ndim == 0:
            tensor = tensor.reshape(1)
        words = {1: torch.uint8, 2: torch.int16}
        n_rows = max(1, CHUNK // max(1, tensor[:1].numel() * tensor.element_size()))
        for i in range(0, len(tensor), n_rows):
            with open(self._path, "rb") as file:  # PyTorch maps it: if it shrinks, reading would crash the process
                check_unchanged(file, self._state)
            rows = tensor[i : i + n_rows].contiguous()
            if stored.dtype.kind == "V":  # a dtype of ml_dtypes, which PyTorch cannot convert to NumPy
                yield rows.view(words[stored.dtype.itemsize]).numpy().reshape(-1).view(stored.dtype)
            else:
                yield rows.resolve_conj().resolve_neg().numpy().reshape(-1)


def _nested(children: dict[Any, Any]) -> Any:
    """A dict of arrays with dotted names as a nested tree; other dicts unchanged."""
    if children and all(isinstance(key, str) and type(child) is Stored for key, child in children.items()):
        return nested(with_scales(children))
    if children and set(children) == set(range(len(children))):  # the states of an optimizer
        return [children[i] for i in range(len(children))]
    return children
