"""Entries of files: arrays whose values are read on demand, placeholders for others, and nesting of flat names."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from treeviz.tree.describers import Description, describes
from treeviz.tree.stored import Refused, Stored, chunks_from, places_of
from treeviz.tree.text import error_text, visible

_PAGE, _FAR_PAGE = 4096, 1 << 18  # bytes that are read along rather than skipped; the same at an address
_AT_ONCE = 64  # files at an address
_MOST_AXES = 64
MOST_TOKENS = 6_000_000  # commas and brackets in JSON; an array of a checkpoint has some ten


class LoadError(ValueError):
    """A file that treeviz cannot or will not read; the message gives the reason."""


@dataclass(frozen=True)
class Unread:
    """A placeholder for an entry of the file that cannot be a JAX array."""

    type: str
    text: str


@describes(Unread)
def _(unread: Unread) -> Description:
    return Description(kind="opaque", type=unread.type, text=unread.text, transparent=True)


REWRITTEN = "the file was rewritten after it was read: read it again"


def size_of(file: Any) -> int:
    """The number of bytes of an open file, also of one at an address."""
    size = getattr(getattr(file, "raw", file), "size", None)
    return os.fstat(file.fileno()).st_size if size is None else size


def state_of(file: Any) -> tuple[Any, ...]:
    """Changes when the file at this path is written or replaced. Of one at an address, what reads it compares it."""
    if (state := getattr(getattr(file, "raw", file), "state", None)) is not None:
        return state
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def check_unchanged(file: IO[bytes], state: tuple[Any, ...]) -> None:
    """Raise a ValueError if the file is not in this state, so that what was known of it may be wrong."""
    if state_of(file) != state:
        raise ValueError(REWRITTEN)


class At(NamedTuple):
    """Reads the values in a file from `start` on."""

    path: Path
    start: int
    state: tuple[Any, ...]  # of the file when its header was read

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        with self.path.open("rb") as file:
            check_unchanged(file, self.state)
            file.seek(self.start)
            yield file

    def __call__(self, stored: Stored) -> Iterator[np.ndarray]:
        return chunks_from(self.opened, stored)

    def later(self, n_bytes: int) -> At:
        """A reader that starts `n_bytes` later."""
        return self._replace(start=self.start + n_bytes)

    def part(self, stored: Stored, place: tuple[slice, ...]) -> np.ndarray:
        """A part of the array; reads a few pages of the file for each row, and more at once where a read takes long."""
        places, size = places_of(stored, place), stored.dtype.itemsize
        ordered = np.sort(places, axis=None)
        values = np.empty(ordered.shape, stored.dtype)
        most = _PAGE if isinstance(self.path, Path) else _FAR_PAGE
        runs = np.flatnonzero(np.diff(ordered) * size > most) + 1  # each is one read
        with self.opened() as file:
            for i, j in zip([0, *runs], [*runs, len(ordered)], strict=True):
                first, n = int(ordered[i]), int(ordered[j - 1] - ordered[i]) + 1
                file.seek(self.start + first * size)
                values[i:j] = np.frombuffer(file.read(n * size), stored.dtype, n)[ordered[i:j] - first]
        return values[np.searchsorted(ordered, places)]


def refuse(why: str) -> Callable[[Stored], Iterator[np.ndarray]]:
    """A reader that raises, for an array with a shape whose values cannot or may not be read."""

    def chunks(_: Stored) -> Iterator[np.ndarray]:
        raise Refused(why)

    return chunks


def n_bytes_of(name: str, shape: Sequence[Any], dtype: np.dtype) -> int:
    """The bytes that the values take.

    Raises:
      ValueError: No array can have this shape.
    """
    if len(shape) > _MOST_AXES:
        raise ValueError(f"{name} has {len(shape):,} dimensions; NumPy has {_MOST_AXES} at most")
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"{name} has the shape {visible(str(tuple(shape)), 100)}")
    return math.prod(shape) * dtype.itemsize


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict.

    Raises:
      ValueError: A name occurs twice, so a dict would lose a value.
    """
    named = dict(pairs)
    if len(named) < len(pairs):
        (twice, n), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {visible(twice, 100)!r} {n} times")
    return named


def parse_json(text: bytes, hook: Callable[[list[tuple[str, Any]]], Any] | None = without_repeats) -> Any:
    """Decode JSON that takes at most some 100 MB in memory.

    Args:
      hook: Makes an object from its (name, value) pairs. None: a dict, in which the last value of a name wins.

    Raises:
      ValueError: Invalid JSON, too large, or a name occurs twice.
    """
    check_size_of_json(text)
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def check_size_of_json(text: bytes) -> None:
    """Raise a ValueError if the decoded JSON would take more than some 100 MB."""
    n_tokens = sum(map(text.count, (b",", b"[", b"{")))
    if n_tokens > MOST_TOKENS:
        raise ValueError(f"its JSON has {n_tokens:,} values and brackets; {MOST_TOKENS:,} is the most that is read")


@contextmanager
def naming(path: Path) -> Iterator[Path]:
    """Name the file in errors about its contents."""
    try:
        yield path
    except LoadError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        why = visible(str(error), 200) if type(error) is ValueError else error_text(error)
        raise ValueError(f"in {visible(path.name, 100)}: {why}") from error


def mode_of(path: Path) -> int:
    """The mode of a file or a folder.

    Raises:
      LoadError: It is neither, and reading it might never end.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        shown = visible(str(path), 1000)
        raise LoadError(f"{shown} is not a file or folder but a device, a pipe or a socket.")
    return mode


# Where files may be read, links resolved; empty: everywhere. Set while a folder or a file is read.
roots: ContextVar[tuple[str, ...]] = ContextVar("roots", default=())


@contextmanager
def only_below(path: Path) -> Iterator[None]:
    """Refuse links that lead out of a folder, or out of the folder of a file.

    In a cache of Hugging Face, the files of a snapshot are links to blobs, so all of the model's cache is allowed.
    """
    real = Path(os.path.realpath(path if path.is_dir() else path.parent))
    snapshots = [folder for folder in (real, *real.parents) if folder.name == "snapshots"]
    caches = [str(folder.parent) for folder in snapshots if "--" in folder.parent.name]  # "models--google--gemma"
    token = roots.set((str(real), os.path.realpath(path), *caches))
    try:
        yield
    finally:
        roots.reset(token)


def check_link(path: Path, allowed: Sequence[str]) -> None:
    """Raise a LoadError if the path leads out of the allowed folders."""
    if not allowed:
        return
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(root) for root in allowed):
        raise LoadError(
            f"{visible(str(path), 500)} is a link to {visible(str(real), 500)}, which is not in the folder that is "
            "read. To follow it, pass follow_links=True, or --follow-links to the command."
        )


def scan(folder: Path) -> AbstractContextManager[Iterable[Any]]:
    """The entries of a folder, as `os.scandir` lists them."""
    return getattr(folder, "scandir", partial(os.scandir, folder))()


def fetch_ahead(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """The names of files that are read one after the other; at an address, the starts of the next ones come at once."""
    fetch = getattr(folder, "fetch_ahead", None)
    for i, name in enumerate(names):
        if fetch is not None and i % _AT_ONCE == 0:
            fetch(names[i : i + _AT_ONCE])
        yield name


def is_file(path: Path) -> bool:
    """Whether the path is a regular file; False for a name that is too long for the file system."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def read_bounded(path: Path, n_most: int) -> bytes:
    """The bytes of a file; ValueError if there are more than `n_most`."""
    if not is_file(path):  # reading a pipe would wait
        raise ValueError(f"{visible(path.name, 100)} is not a file")
    check_link(path, roots.get())
    with path.open("rb") as file:
        is_longer = size_of(file) > n_most
        data = b"" if is_longer else file.read(n_most + 1)
    if is_longer or len(data) > n_most:
        raise ValueError(f"{visible(path.name, 100)} has more than {n_most:,} bytes")
    return data


# Flat names of arrays as a nested tree

# Nodes allowed beyond ten for each array. More would exhaust the memory: a name of 4 MB may have 2,000,000 parts.
MOST_NODES = 200_000
# Suffixes that libraries append to the name of a quantized array to name its scale.
_SCALES = ("_scale", "_scale_inv", ".scale", ".weight_scale", ".absmax", ".SCB", "_scales")


def nested(arrays: Mapping[str, Any]) -> Any:
    """Flat names as nested dicts: "a/b", or "a.b" if no name has a slash. Names that do not nest stay flat.

    Dicts whose keys are numbers from 0 on become lists.
    """
    separator = "/" if any("/" in name for name in arrays) else "."
    if sum(name.count(separator) for name in arrays) > MOST_NODES + 10 * len(arrays):
        return dict(arrays)
    root: dict[str, Any] = {}
    dicts_with_zero: list[tuple[dict[str, Any], str]] = []  # the parent and key of each dict with a "0", parents first
    leaf_dicts = {id(array) for array in arrays.values() if type(array) is dict}
    keys: dict[str, str] = {}  # so that equal keys share one string
    for name, array in arrays.items():
        *steps, last = name.split(separator)
        node, parent, key = root, None, ""
        for step in steps:
            below = node.get(step)
            if below is None and step not in node:
                step = keys.setdefault(step, step)
                below = node[step] = {}
                if step == "0" and parent is not None:
                    dicts_with_zero.append((parent, key))
            elif type(below) is not dict or id(below) in leaf_dicts:
                return dict(arrays)  # "a" is an array, and "a.b" exists
            node, parent, key = below, node, step
        if last in node:
            return dict(arrays)
        node[keys.setdefault(last, last)] = array
        if last == "0" and parent is not None:
            dicts_with_zero.append((parent, key))
    for parent, key in reversed(dicts_with_zero):
        parent[key] = _as_list(parent[key])
    return _as_list(root)


def with_scales(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays; a quantized one that has a scale names it in its text."""
    scaled: dict[str, Any] = {}
    for name, array in arrays.items():
        if type(array) is not Stored or array.text:
            continue
        is_packed = name.endswith("qweight")
        if not (is_packed or (array.dtype.itemsize == 1 and array.dtype != np.bool_)):
            continue
        prefix = name.rpartition(".")[0]
        candidates = [f"{name}{ending}" for ending in _SCALES] + [f"{prefix}.scales"] * is_packed
        scale = next(filter(arrays.__contains__, candidates), None)
        if scale is not None:
            scaled[name] = replace(array, text=f"scaled by {scale.removeprefix(f'{prefix}.')}")
    return arrays | scaled


def _as_list(node: dict[str, Any]) -> Any:
    numbers = [str(i) for i in range(len(node))]
    return [node[i] for i in numbers] if node and node.keys() == set(numbers) else node
