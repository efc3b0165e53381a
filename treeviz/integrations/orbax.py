"""Checkpoints of Orbax: the structure stands in JSON, the shapes in the metadata of each array.

Orbax itself opens the arrays one by one, to tell their shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from treeviz.integrations.flax_files import read_checkpoint
from treeviz.integrations.tensorstore import HEADERS, Headers, folders
from treeviz.tree.files.entries import LoadError, Unread, naming, parse_json, read_bounded
from treeviz.tree.files.msgpack import read_msgpack
from treeviz.tree.files.nested import nested
from treeviz.tree.files.orbax_metadata import Entry, built, entries_of, random_keys_of
from treeviz.tree.safe_repr import class_name, visible

_MOST_JSON = 100_000_000  # bytes
_UNFINISHED = ".orbax-checkpoint-tmp"
_STEP = re.compile(r"(?:.*_)?(\d{1,18})")
_ALONE = ("default", "state", "pytree")  # an item that stands for all; the others in a folder with this file
_VERSION_1 = "orbax.checkpoint"
_ARRAY_HANDLER = ".ArrayCheckpointHandler"
_RANDOM_KEY, _RANDOM_KEY_OF_NUMPY = "jax_random_key", "np_random_key"
_EMPTY: dict[str, Callable[[], Any]] = {"Dict": dict, "List": list, "Tuple": tuple, "NamedTuple": tuple}
_EMPTY["None"] = lambda: None


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
    """The tree; of a step with several items a dict of them; of a folder of steps a dict by their numbers."""
    if _UNFINISHED in folder.name:
        raise _unfinished(folder)
    handlers = _handlers(folder)
    if _is_tree(folder):
        return _read_item(folder, handlers)
    below = folders(folder)
    steps = {int(match[1]): folder / name for name in below if (match := _STEP.fullmatch(name))}
    steps = {step: path for step, path in sorted(steps.items()) if _is_step(path) or _is_tree(path)}
    if steps:
        return {step: read_orbax(path) for step, path in steps.items()}
    if any(_UNFINISHED in name for name in below):
        raise _unfinished(folder)
    items = _read_items(folder, below, handlers)
    if not items:
        raise ValueError("it has neither arrays nor steps")
    alone = _ALONE if (folder / _VERSION_1).is_file() else _ALONE[:1]
    return next(iter(items.values())) if len(items) == 1 and not items.keys().isdisjoint(alone) else items


def tree_of_metadata(metadata: Any, name: str) -> tuple[Any, str]:
    """The tree that Orbax' metadata of a step or of its items is about; anything else as it is."""
    if class_name(type(metadata)) == "StepMetadata":  # of Orbax 0.9 and later; before, it was the tree
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


def _handlers(folder: Path) -> Any:
    """Orbax' name of the class that wrote the tree in a folder, or a dict of those of the items of a step."""
    path = folder / "_CHECKPOINT_METADATA"
    try:
        found = parse_json(read_bounded(path, _MOST_JSON), None) if path.is_file() else None
    except ValueError:  # Orbax, too, restores without it
        return None
    return found.get("item_handlers") if isinstance(found, dict) else None


def _read_items(folder: Path, names: Iterable[str], handlers: Any) -> dict[str, Any]:
    of_item = handlers if isinstance(handlers, dict) else {}
    items = {name: _read_item(folder / name, of_item.get(name)) for name in names}
    return {name: item for name, item in items.items() if item is not _NO_ITEM}


def _read_item(folder: Path, handler: Any) -> Any:
    if _is_tree(folder):
        tree = _read_tree(folder)
        is_key = folder.name == _RANDOM_KEY and (folder.parent / f"{_RANDOM_KEY}_metadata").is_dir()
        return _array_of(tree) if is_key or str(handler).endswith(_ARRAY_HANDLER) else tree
    if (folder / "metadata").is_file():  # of the handler of JSON
        return parse_json(read_bounded(folder / "metadata", _MOST_JSON))
    below = folders(folder)
    is_key = _RANDOM_KEY in below or _RANDOM_KEY_OF_NUMPY in below  # an item that has items
    return (is_key and _read_items(folder, below, None)) or _NO_ITEM


def _array_of(tree: Any) -> Any:
    """The array that was saved as such, which Orbax keeps in a dict, and restores without it."""
    array = next(iter(tree.values())) if isinstance(tree, dict) and len(tree) == 1 else tree
    return tree if isinstance(array, dict | list) else array


def _read_tree(folder: Path) -> Any:
    headers = Headers(folder)
    if not headers.has_database and any(folder.glob("ocdbt.process_*/manifest.ocdbt")):  # to be joined at the end
        raise _unfinished(folder)
    if (folder / "_METADATA").is_file():
        keys = _random_keys(folder)  # first: what reads them takes room
        with naming(folder / "_METADATA") as path:
            entries = [*entries_of(read_bounded(path, _MOST_JSON))]
        texts = _texts(folder) if any(entry.kind == "string" for entry in entries) else {}
        names = [entry.name for entry in entries if entry.kind not in (*_EMPTY, "string")]
        found = headers.read(names)
        if len(found) < len(names) and (folder / "checkpoint").is_file():  # aggregated
            found = {**_by_names(read_msgpack(folder / "checkpoint")), **found}
        for name, text in keys.items():
            if name in found:
                found[name] = replace(found[name], text=text)
        leaves = {entry.keys: _leaf(entry, found, texts) for entry in entries}
        if len(leaves) < len(entries):
            raise ValueError("its metadata has a name twice")
        return built(leaves)
    if (folder / "checkpoint").is_file():
        return read_checkpoint(folder / "checkpoint")
    tree = nested(headers.read(headers.names()))
    is_array = tree.keys() == {"checkpoint"} and not headers.has_database  # of releases without _METADATA
    return _array_of(tree) if is_array else tree


def _by_names(tree: Any) -> dict[str, Any]:
    """The leaves of a tree of dicts and lists, by their keys with dots between them."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path): leaf for path, leaf in paths}


def _random_keys(folder: Path) -> dict[str, str]:
    """What there is to say of each array that was a PRNG key, by its name."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("array_metadatas/process_*"))[:1]:  # the others say the same
        with naming(path):
            for name, kind in random_keys_of(read_bounded(path, _MOST_JSON)):
                found[name] = f"the data of a PRNG key, {visible(kind, 50)}"
    return found


def _texts(folder: Path) -> dict[str, Any]:
    path = folder / "_strings.json"
    texts = parse_json(read_bounded(path, _MOST_JSON)) if path.is_file() else {}
    return texts if isinstance(texts, dict) else {}


def _leaf(entry: Entry, found: dict[str, Any], texts: dict[str, Any]) -> Any:
    name = entry.name
    if entry.kind in _EMPTY:
        return _EMPTY[entry.kind]()
    if entry.kind == "string":
        return texts.get(name, "")
    return found.get(name, Unread(visible(entry.kind, 50), "its values are not in the checkpoint"))
