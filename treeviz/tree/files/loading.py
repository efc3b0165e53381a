"""Read the arrays of a file as a tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from keyword import iskeyword
from pathlib import Path
from typing import Any

from treeviz.tree.files.entries import without_repeats
from treeviz.tree.files.nested import nested
from treeviz.tree.files.npy import read_npy, read_npz
from treeviz.tree.files.safetensors import read_safetensors
from treeviz.tree.safe_repr import error_text, visible

_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".bin")

# A reader returns a tree, or (name, array) pairs; without values only shapes, from the headers.
READERS: dict[str, Callable[[Path, bool], Any]] = {
    ".npz": read_npz,
    ".npy": read_npy,
    ".safetensors": read_safetensors,
}


class LoadError(ValueError):
    """A file that treeviz cannot or will not read; the message gives the reason."""


def load(path: Path, *, values: bool = False) -> Any:
    """The arrays of a `.npz`, `.npy` or `.safetensors` file as a tree.

    Names such as "layers/0/kernel" (or, without slashes, "layers.0.weight") become nested dicts, and
    lists where the names are numbers from 0 on. Takes memory for the headers alone.

    Args:
      values: The leaves are `Stored`, whose values can be read; otherwise `jax.ShapeDtypeStruct`.

    Raises:
      LoadError: A suffix that treeviz does not know, a pickle, or a file that is broken.
      OSError: The file cannot be read.
    """
    suffix, shown = path.suffix.lower(), visible(str(path), 1000)
    if suffix in _PICKLES:
        raise LoadError(
            f"{shown} is a pickle by its name. treeviz does not open pickles: that runs whatever code the file "
            "contains. Load it yourself, if you trust it, and call treeviz.render(tree)."
        )
    if suffix not in READERS:
        raise LoadError(
            f"{shown}: treeviz reads {', '.join(READERS)} files. Load any other one yourself, and call "
            "treeviz.render(tree)."
        )
    try:
        read = READERS[suffix](path, values)
        return nested(without_repeats(list(read))) if isinstance(read, Iterator) else read
    except Exception as error:
        # Whatever bytes stand in a file: the modules that take it apart raise some twenty kinds of exceptions.
        if isinstance(error, OSError) and error.filename is not None:
            raise
        message = visible(str(error), 300) if type(error) is ValueError else error_text(error)
        raise LoadError(f"{shown} is not a whole {suffix} file: {message}") from error


def identifier(path: Path) -> str:
    """A Python identifier from the file's name."""
    name = re.sub(r"\W+", "_", path.stem).strip("_")
    return name if name.isidentifier() and not iskeyword(name) else "tree"
