"""Read a checkpoint as a tree: the implementation of `read`, by suffix, by folder, or by a Python name."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np

from treeviz.tree.files import (
    LoadError,
    mode_of,
    nested,
    only_below,
    read_eqx,
    read_index,
    read_msgpack,
    read_npy,
    read_npz,
    read_safetensors,
    read_shards,
    scan,
    with_scales,
    without_repeats,
)
from treeviz.tree.keys import keystr
from treeviz.tree.runtime import gc_paused
from treeviz.tree.stored import Stored
from treeviz.tree.text import counted, error_text, visible

# The arrays of a file without names, in the tree that was saved

_NUMBERS = (bool, int, float, complex, np.generic)


def in_tree_like(like: Any, arrays: Any, file: str) -> Any:
    """The tree `like` with its arrays replaced by those of a file, in leaf order; an error names the first mismatch."""
    if type(arrays) is not list or not all(type(array) is Stored for array in arrays):
        raise LoadError(f"{file} has names: like= is for files without, .eqx")
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
    rest, filled = iter(arrays), []
    for path, leaf in leaves:
        has_shape = isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
        if not has_shape and not isinstance(leaf, _NUMBERS):
            filled.append(leaf)
            continue
        path_text, stored = keystr(path), next(rest, None)
        shape = tuple(leaf.shape) if has_shape else ()
        if stored is None or stored.shape != shape:
            has = "nothing more" if stored is None else f"the shape {stored.shape}"
            raise LoadError(f"{file} has {has} where like= has the shape {shape}: at {path_text}")
        dtype = stored.dtype
        if has_shape and dtype.kind == "V" and dtype.itemsize == leaf.dtype.itemsize:  # the file has lost bfloat16
            dtype = np.dtype(leaf.dtype)
        filled.append(replace(stored, dtype=dtype, name=path_text))
    n_more = sum(1 for _ in rest)
    if n_more:
        raise LoadError(f"{file} has {counted(n_more, 'array')} more than like=")
    return treedef.unflatten(filled)


_PICKLES = (".pkl", ".pickle", ".joblib")
_ATTRIBUTE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_ADDRESS = re.compile(r"[A-Za-z][\w+.:-]+://")
_FLAX = re.compile(r"checkpoint(_\d+)?")  # of flax.training.checkpoints
_TORCH_INDEX = ".bin.index.json"
_MODELS = (_TORCH_INDEX, "pytorch_model.bin", "flax_model.msgpack")  # in folders of Hugging Face
_MOST_FILES = 100_000  # names read from a folder


def _by_library(module: str, reader: str) -> Callable[[Path], Any]:
    return lambda path: getattr(import_module(f"treeviz.integrations.{module}"), reader)(path)


_read_torch, _read_flax = _by_library("torch_files", "read_torch"), _by_library("orbax", "read_checkpoint")
# A reader returns a tree, or (name, array) pairs.
READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": read_safetensors,
    ".safetensors.index.json": read_index,
    ".npz": read_npz,
    ".npy": read_npy,
    ".msgpack": read_msgpack,
    ".eqx": read_eqx,
    ".gguf": _by_library("gguf", "read_gguf"),
    **dict.fromkeys((".pt", ".pth", ".bin"), _read_torch),
    _TORCH_INDEX: _by_library("torch_files", "read_torch_index"),
    ".ckpt": _read_torch,
}


def read(path: str | os.PathLike[str], *, like: Any = None, follow_links: bool = False) -> Any:
    """Read a checkpoint without its values, as a tree to render, compare, check and explore.

        params = {"layers": [{"w": np.ones((3, 4)), "b": np.zeros(4)}]}
        np.savez("params.npz", **{"layers.0.w": params["layers"][0]["w"], "layers.0.b": np.zeros(4)})
        tree = tv.read("params.npz")
        tree["layers"][0]["w"].shape                # (3, 4); also .dtype, .nbytes, .name
        np.asarray(tree["layers"][0]["w"])          # reads the values
        assert not tv.diff(tree, params).differences
        tv.render(tree, stats=True)                 # reads the values, one array at a time

    The formats are `.safetensors` (also a folder or an index of several files); `.npz` and `.npy`; folders written by
    Orbax (also with several steps); `.msgpack` of Flax, and checkpoints of its `save_checkpoint` and of T5X; `.eqx` of
    Equinox; `.gguf`; and `.pt`, `.pth`, `.bin` and `.ckpt` of PyTorch (also an index of several files, or a folder with
    one). "package.module:name" is a tree in Python, or a function that returns one; then only the shapes are computed.
    Orbax, GGUF and PyTorch need their libraries.

    Names such as "layers.0.w" or "layers/0/w" become nested dicts, and lists if the parts are numbers from 0. Takes
    about 10 µs per array, and reads no values. Pickles are never loaded, except those of PyTorch files, by PyTorch with
    `weights_only`. Links in a folder that lead out of it are refused, except to the blobs of a Hugging Face cache.

    What a file says of itself, such as `__metadata__` of safetensors, the key-values of GGUF, or the step and the
    `custom_metadata` of Orbax, is in the `.metadata` of its arrays; views show it in the row of its tree, and `diff`
    compares it. The arrays of Orbax also know how they were sharded when they were saved: `.saved`.

    An address is read by ranges, through fsspec (`jax-treeviz[remote]`): "s3://bucket/run/100", and gs://, hf://,
    az:// and https:// likewise. Only headers are fetched, many files at once; values follow when they are asked for,
    in parts of at most 8 MB. TensorStore reads the arrays of Orbax, at gs://, s3:// and https://. PyTorch reads only
    local files. Credentials and other settings are those of fsspec.

    Args:
      path: A file, a folder, an address of one, or "package.module:name".
      like: For `.eqx`, which stores no names: the model, its shapes from `eqx.filter_eval_shape`, or
        "package.module:name". Without it, the tree is a list.
      follow_links: Also read what links in a folder lead to, wherever it is.

    Returns:
      A tree of the text and numbers in the checkpoint, and of leaves with `.shape`, `.dtype`, `.nbytes` and `.name`,
      which `np.asarray` reads.

    Raises:
      ValueError: The format is unknown, or the file is a pickle or broken; the message names the file and the reason.
      OSError: The file cannot be read: there is none, no permission, or no network.
      ImportError: The library of the format is not installed; the message names it.
    """
    if is_in_python(path):
        return from_python(os.fspath(path))
    place = path_of(path)
    shown = visible(str(place), 1000)
    if stat.S_ISDIR(mode_of(place)):
        reader, format_name = _of_folder(place), "checkpoint"
    else:
        suffix, reader = _of_file(place)
        format_name = f"{suffix} file"
    try:
        is_free = follow_links or not isinstance(place, Path)  # there are no links at an address
        with gc_paused(), nullcontext() if is_free else only_below(place):
            contents = reader(place)
            tree = nested(with_scales(without_repeats(list(contents)))) if isinstance(contents, Iterator) else contents
        if like is None:
            return tree
        like = from_python(like) if isinstance(like, str) else like
    except LoadError:
        raise
    except ImportError as error:
        raise ImportError(f"{shown}: {error}", name=error.name) from error
    except Exception as error:
        # For broken files, the parsers raise some twenty kinds of exceptions.
        if isinstance(error, OSError) and error.filename is not None:
            raise
        message = visible(str(error), 300) if type(error) is ValueError else error_text(error)
        raise LoadError(f"{shown} is not a whole {format_name}: {message}") from error
    try:
        return in_tree_like(like, tree, shown)
    except LoadError:
        raise
    except Exception as error:  # from the user's classes
        raise LoadError(f"{shown}: like= is not a tree that can be filled: {error_text(error)}") from error


def identifier(path: str | os.PathLike[str]) -> str:
    """A Python identifier from the file's name."""
    from keyword import iskeyword

    of_python = isinstance(path, str) and _ATTRIBUTE.fullmatch(path)
    name = re.sub(r"\W+", "_", str(path) if of_python else Path(path).stem).strip("_")
    return name if name.isidentifier() and not iskeyword(name) else "tree"


def path_of(path: str | os.PathLike[str]) -> Any:
    """The path of a file, or of an address such as "s3://bucket/model.safetensors", which has the same methods."""
    if not isinstance(path, str | os.PathLike):
        return path
    if not (isinstance(path, str) and _ADDRESS.match(path)):
        return Path(path)
    from treeviz.integrations.fsspec import remote_path

    return remote_path(path)


def _of_file(path: Path) -> tuple[str, Callable[[Path], Any]]:
    name, shown = path.name.lower(), visible(str(path), 1000)
    if path.suffix.lower() in _PICKLES:
        raise LoadError(
            f"{shown} looks like a pickle. treeviz does not open pickles, since that runs the code in the "
            "file. Load it yourself, if you trust it, and call treeviz.render(tree)."
        )
    if path.suffix.lower() == ".treeviz":
        raise LoadError(
            f"{shown} is a recorded run, not a tree: `treeviz grads` shows it, and treeviz.GradientInspector.load "
            "reads it."
        )
    if _FLAX.fullmatch(name):
        return "msgpack", _read_flax
    for suffix in sorted(READERS, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix, READERS[suffix]
    raise LoadError(
        f"{shown}: treeviz reads {', '.join(READERS)} files and folders of Orbax; `treeviz grads` reads recorded runs. "
        "Load other files yourself, and call treeviz.render(tree)."
    )


def names_a_format(name: str) -> bool:
    """Whether a file of this name may be a checkpoint, a recorded run or its journal, or a module with a tree."""
    return (
        name.lower().endswith((*READERS, *_PICKLES, ".treeviz", ".journal", ".py"))
        or _FLAX.fullmatch(name.lower()) is not None
    )


def _of_folder(folder: Path) -> Callable[[Path], Any]:
    from treeviz.integrations.orbax import STEP, is_orbax, read_orbax, read_steps

    with scan(folder) as entries:
        names = [entry.name for entry in islice(entries, _MOST_FILES + 1)]
    shards = sorted(name for name in names if name.endswith((".safetensors", ".safetensors.index.json")))
    steps = [name for name in names if STEP.fullmatch(name) and (folder / name).is_file()]
    if steps:
        return lambda folder: read_steps(folder, steps)
    if is_orbax(folder, names):
        return read_orbax
    if shards:
        return lambda folder: read_shards(folder, shards)
    models = [folder / name for name in names if name.endswith(_MODELS) and (folder / name).is_file()]
    if len(models) == 1:
        return lambda _: _of_file(models[0])[1](models[0])
    raise LoadError(
        f"{visible(str(folder), 1000)} is not a known checkpoint: it has neither Orbax's metadata nor "
        ".safetensors files. Name a file in it, or the folder of a checkpoint."
    )


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is one checkpoint, which `read` reads, and not a folder of some."""
    try:
        _of_folder(folder)
    except (LoadError, OSError):
        return False
    return True


def is_in_python(path: str | os.PathLike[str]) -> bool:
    """Whether the path is no file but "package.module:name"."""
    return isinstance(path, str) and _ATTRIBUTE.fullmatch(path) is not None and not os.path.exists(path)


def named_object(name: str) -> Any:
    """The object "package.module:name"."""
    module, _, attributes = name.partition(":")
    try:
        value: Any = import_module(module)
        for attribute in attributes.split("."):
            value = getattr(value, attribute)
    except (Exception, SystemExit) as error:  # the module may do anything
        raise LoadError(f"{visible(name, 300)}: {error_text(error)}") from error
    return value


def from_python(name: str) -> Any:
    """The tree "package.module:name", or the result of that function, of which only the shapes are computed."""
    value = named_object(name)
    if not callable(value) or not jax.tree_util.all_leaves([value]):
        return value  # an Equinox module is callable, and a tree
    try:
        return _shapes_of(value)
    except (Exception, SystemExit) as error:
        raise LoadError(f"{visible(name, 300)} was called, and raised {error_text(error)}") from error


def _shapes_of(make: Callable[[], Any]) -> Any:
    """The result of a function, with shapes in place of arrays, which are never computed."""
    others: list[Any] = []

    def arrays() -> Any:
        leaves, treedef = jax.tree_util.tree_flatten(make())
        others[:] = [None if isinstance(leaf, jax.Array) else (leaf,) for leaf in leaves]
        others.append(treedef)
        return [leaf for leaf in leaves if isinstance(leaf, jax.Array)]

    shapes = iter(jax.eval_shape(arrays))
    *kept, treedef = others
    return treedef.unflatten(next(shapes) if boxed is None else boxed[0] for boxed in kept)
