"""Checkpoints of Orbax and Flax: the structure from JSON or msgpack, the shapes from the metadata of each array.

Orbax itself would open each array to get its shape.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from treeviz.integrations import not_installed
from treeviz.tree.files import (
    LoadError,
    Unread,
    check_link,
    check_size_of_json,
    fetch_ahead,
    is_file,
    n_bytes_of,
    naming,
    nested,
    parse_json,
    read_bounded,
    read_msgpack,
    roots,
    scan,
)
from treeviz.tree.stored import CHUNK, Saved, Stored, Verbatim, metadata_of, stamp
from treeviz.tree.text import class_name, guarded, visible

# Arrays written by TensorStore: in folders or in one database.

_MOST_HEADER = 1_000_000  # bytes of the metadata of an array
_AT_ONCE = 1_000  # concurrent reads
_READ_S = 60  # the longest wait for the file system
_CACHE = 128 << 20  # bytes of decoded chunks; a large chunk is read from it in parts
_MOST_ALWAYS = 64 << 20  # bytes of values of an array, in a checkpoint of any size
_MOST_PACKED = 33_000  # bytes of values for a byte in the files: zstd writes 128 KiB of zeros in 4 bytes
_MOST_CHUNKS = 10_000  # of an array, in a checkpoint of any size
HEADERS = {".zarray": "zarr", "zarr.json": "zarr3"}  # header file -> driver of TensorStore


def folders(folder: Path) -> list[str]:
    with scan(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


class Headers:
    """The metadata of the arrays in a folder, which TensorStore stores in one database or in one folder per array."""

    has_all_chunks = False  # so a missing chunk is lost. Otherwise it has zeros, which older releases do not store

    def __init__(self, folder: Path) -> None:
        self._folder, self._roots = folder, roots.get()
        self.has_database = (folder / "manifest.ocdbt").is_file()
        self._manifest = self._read_manifest()

    def names(self) -> list[str]:
        """The names of the arrays, if no other file lists them."""
        if not self.has_database:
            return folders(self._folder)
        keys = (key.decode("utf-8", "replace") for key in self._database().list().result(_READ_S))
        return sorted({name for key in keys for name, _, last in [key.rpartition("/")] if last in HEADERS})

    def read(self, names: Sequence[str]) -> dict[str, Stored]:
        """The arrays by name; missing ones are left out."""
        is_local = isinstance(self._folder, Path)  # elsewhere TensorStore reads many at once
        in_database = self.has_database or not is_local
        for name in () if self.has_database else names:
            if "\0" in name or os.path.isabs(name) or ".." in Path(name).parts:
                raise ValueError(f"the array {visible(name, 100)!r} is not in its folder: nothing outside is read")
        arrays: dict[str, Stored] = {}
        for header in HEADERS:
            remaining, values = [name for name in names if name not in arrays], _Values(self, header)
            known: dict[bytes, tuple[tuple[int, ...], np.dtype]] = {}  # the arrays of a model have few shapes
            files = ((name, self._folder / name / header) for name in remaining)
            in_files = ((name, read_bounded(path, _MOST_HEADER)) for name, path in files if is_file(path))
            for name, text in self._from_database(remaining, header) if in_database else in_files:
                known[text] = known.get(text) or _shape_and_dtype(name, text, header)
                arrays[name] = Stored(*known[text], values, name)
        return arrays

    def _from_database(self, names: Sequence[str], header: str) -> Iterator[tuple[str, bytes]]:
        database: Any = self._database() if names else None
        for i in range(0, len(names), _AT_ONCE):
            for name, future in [(name, database.read(f"{name}/{header}")) for name in names[i : i + _AT_ONCE]]:
                if (result := future.result(_READ_S)).state == "value":
                    yield name, result.value

    def _database(self) -> Any:
        if isinstance(self._folder, Path):
            for _ in self._database_files():  # are files
                pass
        return _tensorstore().KvStore.open(self._kvstore(), context=self._context()).result(_READ_S)

    def _read_manifest(self) -> bytes:
        """The root of the database, which has a new identifier in every checkpoint."""
        if not self.has_database:
            return b""
        path = self._folder / "manifest.ocdbt"
        getattr(path, "forget", bool)()  # what was read of it before
        return read_bounded(path, _MOST_HEADER)

    def _context(self) -> Any:
        if self._read_manifest() != self._manifest:
            raise ValueError("the checkpoint was rewritten after it was read: read it again")
        return _context(self._folder, self._manifest)

    def _kvstore(self) -> dict[str, Any]:
        local = lambda: {"driver": "file", "path": f"{self._folder.absolute()}/"}  # noqa: E731
        files = getattr(self._folder, "tensorstore", local)()
        return {"driver": "ocdbt", "base": files} if self.has_database else files

    def opened(self, header: str, stored: Stored) -> Any:
        """Opens the array in TensorStore."""
        kvstore = self._kvstore()
        kvstore["path"] = f"{kvstore.get('path', '')}{stored.name}/"
        spec: dict[str, Any] = {"driver": HEADERS[header], "kvstore": kvstore}
        if self.has_all_chunks:
            spec["fill_missing_data_reads"] = False
        array = _tensorstore().open(spec, open=True, read=True, context=self._context()).result(_READ_S)
        if tuple(array.shape) != stored.shape or array.dtype.numpy_dtype != stored.dtype:
            raise ValueError("the array in the checkpoint is another now")
        self._check_size(array, stored)
        return array

    def _check_size(self, array: Any, stored: Stored) -> None:
        """Raise a ValueError if the values take more time or memory than those in files of this size can take."""
        n_stored = 0
        for path in self._database_files() if self.has_database else self._files_of(stored.name):
            status = path.stat()
            # On the disk: the file may have a hole, and say that it is larger.
            n_stored += min(status.st_size, max(512 * getattr(status, "st_blocks", 1 << 54), 4096))
        chunk = array.chunk_layout.read_chunk.shape or stored.shape  # None for a scalar
        n_chunks = math.prod(-(-size // n) for size, n in zip(stored.shape, chunk, strict=True) if n)
        n_bytes = n_chunks * math.prod(chunk) * stored.dtype.itemsize
        if n_bytes > _MOST_ALWAYS + _MOST_PACKED * n_stored or n_chunks > _MOST_CHUNKS + n_stored:
            chunks = f"{n_bytes:,} bytes in chunks of {tuple(chunk)}"
            raise ValueError(f"it would have {chunks}, and its files have {n_stored:,}")

    def _database_files(self) -> Iterator[Path]:
        for path in (*self._folder.glob("d/*"), *self._folder.glob("ocdbt.process_*/d/*")):
            yield self._checked(path)

    def _files_of(self, name: str) -> Iterator[Path]:
        if not isinstance(self._folder, Path):
            yield from (self._folder / name).all_files()
            return
        for folder, inner, names in os.walk(self._folder / name):
            for path in map(Path(folder).joinpath, inner):
                if path.is_symlink():  # `walk` does not follow it, but TensorStore would
                    raise ValueError(f"{visible(path.name, 100)} in it is a link to a folder")
            yield from (self._checked(Path(folder, name)) for name in names)

    def _checked(self, path: Path) -> Path:
        if not path.is_file():  # TensorStore would wait for a pipe
            raise ValueError(f"{visible(path.name, 100)} in it is not a file")
        check_link(path, self._roots)
        return path


class _Values(NamedTuple):
    headers: Headers
    header: str

    def part(self, stored: Stored, place: tuple[slice, ...]) -> np.ndarray:
        return np.asarray(self.headers.opened(self.header, stored)[place].read().result(_READ_S))

    def __call__(self, stored: Stored) -> Iterator[np.ndarray]:
        array = self.headers.opened(self.header, stored)
        if not stored.shape:
            yield np.asarray(array.read().result()).reshape(-1)
            return
        n_together = max(1, array.chunk_layout.read_chunk.shape[0])  # rows per chunk
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


@lru_cache(maxsize=2)  # a diff reads two checkpoints
def _context(folder: Path, manifest: bytes) -> Any:
    """TensorStore's caches for one state of a folder. With others in them, it would compare their identifiers."""
    return _tensorstore().Context({"cache_pool": {"total_bytes_limit": _CACHE}})


def _tensorstore() -> Any:
    try:
        import tensorstore

        return tensorstore
    except ImportError as error:
        raise not_installed(error, "orbax") from error


# The structure of an Orbax checkpoint: the JSON of its `_METADATA`.

_SEQUENCE = 1  # the type of a key in a list
_MOST_LEVELS = 300


class _JsonForm(NamedTuple):
    """The syntax of a JSON container, for reading its values one by one."""

    type: type  # of Python
    next: re.Pattern[str]  # matches the text before each value
    before: str  # makes valid JSON of the text after the last value


_DICT = _JsonForm(dict, re.compile(r'\s*[{,]\s*"[^"\\]*(?:\\.[^"\\]*)*"\s*:\s*'), '{"":{')
_LIST = _JsonForm(list, re.compile(r"\s*[\[,]\s*(?=[^\]\s])"), '{"":[0')


class Entry(NamedTuple):
    """The metadata of one leaf or one empty node."""

    keys: tuple[tuple[str, int], ...]  # (key, type of the key)
    kind: str  # "jax.Array", "scalar", "None"

    @property
    def name(self) -> str:
        return ".".join(key for key, _ in self.keys)


def entries_of(text: bytes, others: dict[str, Any]) -> Iterator[Entry]:
    """The metadata of each leaf, one by one, since all would need 200 MB; what else the text says is in `others`."""
    check_size_of_json(text)
    json_text = text.decode("utf-8")
    del text
    interned: dict[tuple[str, int], tuple[str, int]] = {}  # one object for equal keys
    for entry in _values_of(json_text, "tree_metadata", _DICT, others):
        keys = [(str(key["key"]), int(key["key_type"])) for key in entry["key_metadata"]]
        if len(keys) > _MOST_LEVELS:
            raise ValueError(f"its tree has more than {_MOST_LEVELS} levels")
        kind = sys.intern(str(entry["value_metadata"]["value_type"]))
        yield Entry(tuple([interned.setdefault(key, key) for key in keys]), kind)


def random_keys_of(text: bytes) -> Iterator[tuple[str, str]]:
    """The names and PRNG implementations of the arrays that hold data of PRNG keys, from `array_metadatas`."""
    if b'"random_key_impl"' not in text:
        return
    check_size_of_json(text)
    for entry in _values_of(text.decode("utf-8"), "array_metadatas", _LIST, {}):
        array_metadata = entry["array_metadata"]
        if kind := (array_metadata["ext_metadata"] or {}).get("random_key_impl"):
            yield str(array_metadata["param_name"]), str(kind)


def _values_of(text: str, name: str, form: _JsonForm, others: dict[str, Any]) -> Iterator[Any]:
    """Yields the values of the container with this name, the only or the first entry of the JSON; adds the others."""
    match = re.compile(rf'\s*\{{\s*"{name}"\s*:\s*').match(text)
    if match is None:  # Orbax writes it first
        metadata = parse_json(text.encode(), None)
        if not isinstance(metadata, dict) or not isinstance(metadata.get(name), form.type):
            raise ValueError(f"it has no {name}")
        others.update(metadata)
        values = others.pop(name)
        yield from values.values() if isinstance(values, dict) else values
        return
    decode, position, before = json.JSONDecoder().raw_decode, match.end(), '{"":'
    while (match := form.next.match(text, position)) is not None:
        value, position = decode(text, match.end())
        yield value
        before = form.before
    others.update(parse_json((before + text[position:]).encode(), None))


def tree_from_leaves(leaves: dict[tuple[tuple[str, int], ...], Any]) -> Any:
    """The tree with these leaves, given by their keys and the types of the keys."""
    if list(leaves) == [()]:
        return leaves[()]
    root: dict[Any, Any] = _Node()
    inner: list[tuple[dict[Any, Any], Any]] = []  # the parent and key of each dict below, parents first
    for keys, leaf in leaves.items():
        node = root
        for key in keys[:-1]:
            if key not in node:
                node[key] = _Node()
                inner.append((node, key))
            if type(node := node[key]) is not _Node:
                break
        if not keys or type(node) is not _Node or keys[-1] in node:
            raise ValueError("its metadata has a leaf above others")
        node[keys[-1]] = leaf
    for parent, key in reversed(inner):
        parent[key] = _plain(parent[key])
    return _plain(root)


class _Node(dict):
    """A node whose keys still include their types."""


def _plain(node: dict[Any, Any]) -> Any:
    """A list if the keys are the indices of one, else a dict."""
    if node and all(kind == _SEQUENCE for _, kind in node):
        by_index = {int(key): child for (key, _), child in node.items()}
        if by_index.keys() == set(range(len(node))):
            return [by_index[i] for i in range(len(node))]
    return {key: child for (key, _), child in node.items()}


# Files of `flax.training.checkpoints` and similar: a tree in msgpack; some of its arrays are in other files.

STEP = re.compile(r"checkpoint_(\d{1,18})")
_PLACEHOLDERS = ("PLACEHOLDER://", "//GDAPlaceholder:")  # prefixes of Orbax and Flax, before the name of an array
_ARRAYS_SUFFIX = "_gda"


def read_checkpoint(path: Path) -> Any:
    """The tree of a file, with the arrays in its folder or in the folder FILE_gda."""
    arrays_folder = path.with_name(path.name + _ARRAYS_SUFFIX)
    return filled(read_msgpack(path), arrays_folder if arrays_folder.is_dir() else path.parent)


def read_steps(folder: Path, names: Iterable[str]) -> dict[int, Any]:
    """The trees of the files of a folder, by their steps."""
    trees: dict[int, Any] = {}
    for step, name in sorted((int(match[1]), name) for name in names if (match := STEP.fullmatch(name))):
        with naming(folder / name) as path:
            trees[step] = read_checkpoint(path)
    return trees


def filled(tree: Any, folder: Path) -> Any:
    """The tree with its placeholders replaced by the arrays in the folder."""
    names: list[str] = []

    def walk(node: Any, leaf_of: Callable[[str], Any]) -> Any:
        name = _placeholder_name(node)
        if name is not None:
            return leaf_of(name)
        if isinstance(node, dict):
            return {key: walk(child, leaf_of) for key, child in node.items()}
        return [walk(child, leaf_of) for child in node] if isinstance(node, list) else node

    walk(tree, names.append)
    if not names:
        return tree
    arrays = Headers(folder).read(names)
    return walk(tree, lambda name: arrays.get(name, Unread("jax.Array", "its values are not in the checkpoint")))


def _placeholder_name(node: Any) -> str | None:
    """The name of the array that a placeholder stands for; None if the node is not a placeholder."""
    if isinstance(node, str):
        return next((node.removeprefix(prefix) for prefix in _PLACEHOLDERS if node.startswith(prefix)), None)
    if not isinstance(node, dict) or node.get("driver") not in HEADERS.values():
        return None
    store = node.get("kvstore")  # T5X writes the TensorStore spec of the array
    path = store.get("path", node.get("path")) if isinstance(store, dict) else None
    return path.rstrip("/") if type(path) is str else None


_MOST_JSON = 100_000_000  # bytes
_UNFINISHED = ".orbax-checkpoint-tmp"
_STEP = re.compile(r"(?:.*_)?(\d{1,18})")
_ALONE = ("default", "state", "pytree")  # items that may be the whole checkpoint; the last two in version 1 only
_VERSION_1 = "orbax.checkpoint"
_ARRAY_HANDLER = ".ArrayCheckpointHandler"
_RANDOM_KEY, _RANDOM_KEY_OF_NUMPY = "jax_random_key", "np_random_key"
_EMPTY_NODES: dict[str, Callable[[], Any]] = {"Dict": dict, "List": list, "Tuple": tuple, "NamedTuple": tuple}
_EMPTY_NODES["None"] = lambda: None


def is_orbax(folder: Path, names: Sequence[str]) -> bool:
    """Whether Orbax wrote the folder: a tree, a step with several, or the steps of a manager."""
    return (
        _UNFINISHED in folder.name
        or not {"_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt"}.isdisjoint(names)
        or _is_tree(folder)
        or any(_STEP.fullmatch(name) and _is_step(folder / name) for name in names)
        or any(_UNFINISHED in name for name in names)
        or _is_step(folder)
    )


def read_orbax(folder: Path) -> Any:
    """The tree; for a step with several items, a dict of them; for a folder of steps, a dict by step number."""
    if _UNFINISHED in folder.name:
        raise _unfinished(folder)
    metadata: Any = {}
    if (path := folder / "_CHECKPOINT_METADATA").is_file():  # Orbax also restores without it
        with contextlib.suppress(ValueError):
            metadata = parse_json(read_bounded(path, _MOST_JSON), None)
    metadata = metadata if isinstance(metadata, dict) else {}
    tree = _read_step(folder, metadata.get("item_handlers"))
    if metadata:  # its step, when it was written, metrics and the user's own entries
        at, metrics, custom = map(metadata.get, ("commit_timestamp_nsecs", "metrics", "custom_metadata"))
        about: dict[str, Any] = {"step": int(step[1])} if (step := _STEP.fullmatch(folder.name)) else {}
        if type(at) is int and 0 < at < 1 << 63:
            about["saved"] = Verbatim(f"{np.datetime64(at, 'ns').astype('datetime64[s]')} UTC")
        about |= {"metrics": metrics} if metrics else {}
        about |= custom if isinstance(custom, dict) else {"custom_metadata": custom} if custom else {}
        stamp(jax.tree.leaves(tree), metadata_of(about))
    return tree


def _read_step(folder: Path, handlers: Any) -> Any:
    """The contents; `handlers` is Orbax' name of the class that wrote the folder, or a dict of these names by item."""
    if _is_tree(folder):
        return _read_item(folder, handlers)
    names = [*fetch_ahead(folder, folders(folder))]
    steps = {int(match[1]): folder / name for name in names if (match := _STEP.fullmatch(name))}
    steps = {step: path for step, path in sorted(steps.items()) if _is_step(path) or _is_tree(path)}
    if steps:
        return {step: read_orbax(path) for step, path in steps.items()}
    if any(_UNFINISHED in name for name in names):
        raise _unfinished(folder)
    items = _read_items(folder, names, handlers)
    if not items:
        raise ValueError("it has neither arrays nor steps")
    alone = _ALONE if (folder / _VERSION_1).is_file() else _ALONE[:1]
    return next(iter(items.values())) if len(items) == 1 and not items.keys().isdisjoint(alone) else items


def tree_of_metadata(metadata: Any, name: str) -> tuple[Any, str]:
    """The tree that Orbax' metadata of a step or of its items describes; other objects unchanged."""
    if class_name(type(metadata)) == "StepMetadata":  # since Orbax 0.9; before, the metadata was the tree
        metadata, name = metadata.item_metadata, f"{name}.item_metadata"
    if class_name(type(metadata)) == "Composite":
        metadata = dict(metadata.items())
    return metadata, name


def _unfinished(folder: Path) -> LoadError:
    return LoadError(f"{visible(str(folder), 1000)}: the checkpoint is being written, or what wrote it did not end.")


def _is_tree(folder: Path) -> bool:
    if any((folder / name).is_file() for name in ("_METADATA", "manifest.ocdbt", "checkpoint")):
        return True
    return any((folder / name / header).is_file() for name in folders(folder) for header in HEADERS)


def _is_step(folder: Path) -> bool:
    return folder.is_dir() and (
        (folder / "_CHECKPOINT_METADATA").is_file()
        or any(_is_tree(folder / name) or (folder / name / "metadata").is_file() for name in folders(folder))
    )


_NO_ITEM = object()


def _read_items(folder: Path, names: Iterable[str], handlers: Any) -> dict[str, Any]:
    item_handlers = handlers if isinstance(handlers, dict) else {}
    items = {name: _read_item(folder / name, item_handlers.get(name)) for name in names}
    return {name: item for name, item in items.items() if item is not _NO_ITEM}


def _read_item(folder: Path, handler: Any) -> Any:
    if _is_tree(folder):
        tree = _read_tree(folder)
        is_key = folder.name == _RANDOM_KEY and (folder.parent / f"{_RANDOM_KEY}_metadata").is_dir()
        return _array_of(tree) if is_key or str(handler).endswith(_ARRAY_HANDLER) else tree
    if (folder / "metadata").is_file():  # written by the JSON handler
        return parse_json(read_bounded(folder / "metadata", _MOST_JSON))
    names = folders(folder)
    is_key = not {_RANDOM_KEY, _RANDOM_KEY_OF_NUMPY}.isdisjoint(names)  # an item that contains items
    return (is_key and _read_items(folder, names, None)) or _NO_ITEM


def _array_of(tree: Any) -> Any:
    """The array that was saved by itself, which Orbax stores in a dict and restores without it."""
    array = next(iter(tree.values())) if isinstance(tree, dict) and len(tree) == 1 else tree
    return tree if isinstance(array, dict | list) else array


def _read_tree(folder: Path) -> Any:
    for _ in fetch_ahead(folder, ("manifest.ocdbt", "_METADATA", "_sharding", "_strings.json", "array_metadatas")):
        pass  # all that is read below
    headers = Headers(folder)
    if not headers.has_database and any(folder.glob("ocdbt.process_*/manifest.ocdbt")):  # not merged yet
        raise _unfinished(folder)
    if (folder / "_METADATA").is_file():
        keys: dict[str, str] = {}  # first, since reading them needs memory
        for path in sorted(folder.glob("array_metadatas/process_*"), key=str)[:1]:  # the others say the same
            with naming(path):
                keys = dict(random_keys_of(read_bounded(path, _MOST_JSON)))
        with naming(folder / "_METADATA") as path:
            text = [read_bounded(path, _MOST_JSON)]  # popped, so that it can be freed
            others: dict[str, Any] = {}
            entries = [*entries_of(text.pop(), others)]
            headers.has_all_chunks = others.get("store_array_data_equal_to_fill_value") is True
        texts: Any = {}
        if any(entry.kind == "string" for entry in entries) and (folder / "_strings.json").is_file():
            texts = parse_json(read_bounded(folder / "_strings.json", _MOST_JSON))
            texts = texts if isinstance(texts, dict) else {}
        names = [entry.name for entry in entries if entry.kind not in (*_EMPTY_NODES, "string")]
        arrays: dict[str, Any] = {**headers.read(names)}
        if len(arrays) < len(names) and (folder / "checkpoint").is_file():  # aggregated
            for path, leaf in jax.tree_util.tree_leaves_with_path(read_msgpack(folder / "checkpoint")):
                arrays.setdefault(".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path), leaf)
        for name, text in keys.items():
            if name in arrays:
                arrays[name] = replace(arrays[name], text=f"the data of a PRNG key, {visible(text, 50)}")
        for name, saved in _saved(folder):
            if type(array := arrays.get(name)) is Stored:
                array.saved = saved
        if custom := others.get("custom_metadata"):
            stamp(arrays.values(), metadata_of(custom))
        leaves = {entry.keys: _leaf(entry, arrays, texts) for entry in entries}
        if len(leaves) < len(entries):
            raise ValueError("its metadata has a name twice")
        return tree_from_leaves(leaves)
    if (folder / "checkpoint").is_file():
        return read_checkpoint(folder / "checkpoint")
    tree = nested(headers.read(headers.names()))
    is_array = tree.keys() == {"checkpoint"} and not headers.has_database  # of releases without _METADATA
    return _array_of(tree) if is_array else tree


def _saved(folder: Path) -> Iterator[tuple[str, Saved]]:
    """The names of arrays and how they were sharded when they were saved; Orbax also restores without this file."""
    if (path := folder / "_sharding").is_file():
        with contextlib.suppress(ValueError, AttributeError):
            for name, text in parse_json(read_bounded(path, _MOST_JSON)).items():
                if (saved := _sharding_of(text)) is not None:
                    yield base64.b64decode(name).decode(), saved


@lru_cache(maxsize=1000)  # a model has few distinct shardings
def _sharding_of(text: str) -> Saved | None:
    """How an array was sharded, from Orbax' JSON; None if it does not say so, or is damaged."""

    def read() -> Saved | None:
        about = parse_json(text.encode())
        if about["sharding_type"] == "SingleDeviceSharding":
            return Saved(device=visible(about["device_str"]))
        if about["sharding_type"] != "NamedSharding" or len(about["shape"]) != len(about["axis_names"]):
            return None
        spec = about["partition_spec"]
        axes = [axis if axis is None or type(axis) is str else tuple(map(str, axis)) for axis in spec]
        mesh = tuple(zip(map(visible, about["axis_names"]), map(operator.index, about["shape"]), strict=True))
        memory = "pinned_host" if about.get("memory_kind") == "pinned_host" else ""
        return Saved(tuple(axes), mesh, memory=memory) if all(n > 0 for _, n in mesh) else None

    return guarded(read, lambda _: None)


def _leaf(entry: Entry, arrays: dict[str, Any], texts: dict[str, Any]) -> Any:
    if entry.kind in _EMPTY_NODES:
        return _EMPTY_NODES[entry.kind]()
    if entry.kind == "string":
        return texts.get(entry.name, "")
    return arrays.get(entry.name, Unread(visible(entry.kind, 50), "its values are not in the checkpoint"))
