"""Files of `flax.training.checkpoints` and its like: a tree in msgpack, of whose arrays some stand beside it.

See `flax/training/checkpoints.py`, `orbax/checkpoint/aggregate_handlers.py` and `t5x/checkpoints.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from treeviz.integrations.tensorstore import HEADERS, Headers
from treeviz.tree.files.entries import Unread, naming
from treeviz.tree.files.msgpack import read_msgpack

STEP = re.compile(r"checkpoint_(\d{1,18})")
_PLACEHOLDERS = ("PLACEHOLDER://", "//GDAPlaceholder:")  # of Orbax and of Flax, before the name of an array
_BESIDE = "_gda"


def read_checkpoint(path: Path) -> Any:
    """The tree of a file, with the arrays in its folder, or in one of its name."""
    beside = path.with_name(path.name + _BESIDE)
    return filled(read_msgpack(path), beside if beside.is_dir() else path.parent)


def read_steps(folder: Path, names: Iterable[str]) -> dict[int, Any]:
    """The trees of the files of a folder, by their steps."""
    found: dict[int, Any] = {}
    for step, name in sorted((int(match[1]), name) for name in names if (match := STEP.fullmatch(name))):
        with naming(folder / name) as path:
            found[step] = read_checkpoint(path)
    return found


def filled(tree: Any, folder: Path) -> Any:
    """The tree, with the arrays that its placeholders name: each is in a folder of its own there."""
    names: list[str] = []

    def walk(node: Any, leaf_of: Callable[[str], Any]) -> Any:
        name = _placed(node)
        if name is not None:
            return leaf_of(name)
        if isinstance(node, dict):
            return {key: walk(child, leaf_of) for key, child in node.items()}
        return [walk(child, leaf_of) for child in node] if isinstance(node, list) else node

    walk(tree, names.append)
    if not names:
        return tree
    found = Headers(folder).read(names)
    return walk(tree, lambda name: found.get(name, Unread("jax.Array", "its values are not in the checkpoint")))


def _placed(node: Any) -> str | None:
    """The name of the array that a placeholder stands for; None: it is none."""
    if isinstance(node, str):
        return next((node.removeprefix(each) for each in _PLACEHOLDERS if node.startswith(each)), None)
    if not isinstance(node, dict) or node.get("driver") not in HEADERS.values():
        return None
    store = node.get("kvstore")  # T5X writes what TensorStore needs to open the array
    path = store.get("path", node.get("path")) if isinstance(store, dict) else None
    return path.rstrip("/") if type(path) is str else None
