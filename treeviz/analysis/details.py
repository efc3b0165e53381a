"""Details of one node or leaf on request, as plain data within a budget of time and bytes.

A section is a dict: its kind, mostly a title, and the fields of the kind. Kinds and their fields:
"text" (text, tone), "pairs" and "numbers" (pairs), "code" (text), "outline" (lines), "bars" (heights, edges), "grid"
(columns, cells), "button" (label, operation), and "window", which `treeviz.explorer` adds. Texts are bounded
and printable, but not trusted: a page must escape them.
"""

from __future__ import annotations

import gc
import inspect
import json
import linecache
import os
import re
import sys
import time
import types
from base64 import b64encode
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.stats import FIRST_EXPONENT, fetch, host_view, lies_on_host, part_of, value_statistics
from treeviz.tree.describers import array_inside
from treeviz.tree.facts import KINDS
from treeviz.tree.keys import stored_attributes
from treeviz.tree.leaves import describe_sharding, id_text, why_unreduced
from treeviz.tree.opaque import captured_values, code_of, contents
from treeviz.tree.runtime import cell_of
from treeviz.tree.stored import Stored
from treeviz.tree.text import (
    array_text,
    class_name,
    count_text,
    counted,
    error_text,
    function_name,
    guarded,
    has_base,
    is_function,
    module_name,
    namespace,
    number_text,
    qualified_name,
    value_text,
    visible,
)
from treeviz.tree.walk import scan

# The contents of an object that is a leaf for JAX, as an outline. Runs no code of its class.

MOST_LINES = 60
_MOST_DEPTH = 4
_MOST_OF_ONE = 24

Line = tuple[int, str, str, bool]  # depth, name, text, whether it is an array


def outline(named: Iterable[tuple[str, Any]], goes_on: Callable[[], bool]) -> tuple[list[Line], bool]:
    """Lines for named values and their contents, each object once, while `goes_on`; and whether these are all."""
    lines: list[Line] = []
    waiting = [(0, name, value) for name, value in reversed(list(named))]
    opened: set[int] = set()
    while waiting:
        if len(lines) >= MOST_LINES or not goes_on():
            return lines, False
        depth, name, value = waiting.pop()
        if value is _MORE:
            lines.append((depth, "", name, False))
            continue
        array = array_text(value)
        may_open = not array and depth + 1 < _MOST_DEPTH and not is_function(type(value)) and id(value) not in opened
        inner = guarded(lambda value=value: inside(value), lambda _: []) if may_open else []
        is_builtin = inner and id(type(value)) in _BUILTIN
        n_inner = len(value) if is_builtin else len(inner)
        text = f"{type(value).__name__} of {n_inner:,}" if is_builtin else None
        lines.append((depth, visible(name, 60), array or text or value_text(value, 100), array is not None))
        opened.add(id(value))
        if len(inner) > _MOST_OF_ONE:
            inner = [*inner[: _MOST_OF_ONE - 1], (f"… {n_inner - _MOST_OF_ONE + 1:,} more", _MORE)]
        waiting += [(depth + 1, name, below) for name, below in reversed(inner)]
    return lines, True


def inside(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of the contents, unless the value's text shows them."""
    is_plain = id(type(value)) in _SEQUENCES and all(id(type(part)) in _FLAT for part in value)
    if is_plain or id(type(value)) in _FLAT:
        return []
    return contents(value)


# Compared by id, since metaclasses may override hash.
_FLAT = frozenset(map(id, (str, bytes, bytearray, int, float, complex, bool, type(None), type, type(Ellipsis))))
_SEQUENCES = frozenset(map(id, (list, tuple, set, frozenset)))
_BUILTIN = _SEQUENCES | {id(dict)}
_MORE = object()

# The source of a function, and the docstring and file of a class. Runs none of their code.

MOST_SOURCE_LINES = 200
_MOST_CHARACTERS = 200  # of a line
_MOST_OF_FILE = 5_000_000  # bytes
_MOST_OF_DOC = 8  # lines


def function_source(function: Any) -> tuple[str, str] | None:
    """("where.py:12", its source). None if it is not written in Python or its file is missing."""
    code = code_of(function)
    if code is None or not _lines(code.co_filename):
        return None
    text = guarded(lambda: inspect.getsource(code), lambda _: "")
    if not text:
        return None
    lines = inspect.cleandoc(f"\n{text}").splitlines()
    shown = [visible(line, _MOST_CHARACTERS) for line in lines[:MOST_SOURCE_LINES]]
    if len(lines) > MOST_SOURCE_LINES:
        shown.append(f"… {len(lines) - MOST_SOURCE_LINES:,} more lines")
    return place_of(code.co_filename, code.co_firstlineno), "\n".join(shown)


def class_facts(cls: type) -> list[tuple[str, str]]:
    """(label, text) pairs about a class; none for classes of Python, JAX and NumPy."""
    module = module_name(cls)
    if module.partition(".")[0] in ("builtins", "jax", "jaxlib", "numpy", ""):
        return []
    functions = [value for value in list(namespace(cls).values()) if type(value) is types.FunctionType]
    is_own = lambda function: type(function.__module__) is str and function.__module__ == module  # noqa: E731
    files: list[Any] = [function.__code__.co_filename for function in filter(is_own, functions)]  # also of a notebook
    files.append(guarded(lambda: object.__getattribute__(sys.modules[module], "__dict__")["__file__"], lambda _: None))
    starts = re.compile(rf"\s*class\s+{re.escape(class_name(cls).rpartition('.')[2])}\b")
    lines = ((file, i, line) for file in files if type(file) is str for i, line in enumerate(_lines(file), 1))
    place = next((place_of(file, i) for file, i, line in lines if starts.match(line)), "")
    facts = [("class", qualified_name(cls)), ("defined in", place)]
    doc = namespace(cls).get("__doc__")
    # The generated docstring of a dataclass is its signature.
    if type(doc) is str and not doc.startswith(f"{class_name(cls)}("):
        lines_of_doc = inspect.cleandoc(doc[:10_000]).strip().splitlines()
        text = "\n".join(visible(line, _MOST_CHARACTERS) for line in lines_of_doc[:_MOST_OF_DOC])
        facts.append(("docstring", text + "\n…" * (len(lines_of_doc) > _MOST_OF_DOC)))
    return [fact for fact in facts if fact[1]]


def _lines(file: str) -> list[str]:
    """The lines of a file in Python's cache, or of a regular file of moderate size."""

    def read() -> list[str]:
        if file not in linecache.cache and not (os.path.isfile(file) and os.path.getsize(file) < _MOST_OF_FILE):
            return []
        return linecache.getlines(file)

    return guarded(read, lambda _: [])


def place_of(file: str, line: int) -> str:
    """ "layers/dense.py:12", "Cell In[3]:5"."""
    parts = [part for part in PurePath(file).parts if part != "/"]
    name = guarded(lambda: cell_of(file), lambda _: "") or "/".join(parts[-3:])
    return f"{visible(name, 120)}:{line}"


# The devices of each part of an array, as a grid. Reads no values.

MOST_CELLS = 64


def shard_section(array: Any) -> list[dict[str, Any]]:
    """A section with a cell for every distinct part of the array; none for a single device.

    Cells are laid out like the parts: the last partitioned axis from left to right, the others from top to bottom.
    """
    # A mutable reference, an abstract array or a boxed one may have no sharding; an abstract mesh has no devices.
    sharding = guarded(lambda: array.sharding, lambda _: None)
    if sharding is None or guarded(lambda: len(sharding.device_set), lambda _: 0) < 2:
        return []
    if why := why_unreduced(sharding):
        return [{"kind": "text", "text": why, "tone": "dim"}]
    shape = array.shape
    parts: dict[tuple, list[Any]] = {}
    for device, index in sharding.devices_indices_map(tuple(shape)).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
        parts.setdefault(bounds, []).append(device)
    n_devices = sum(map(len, parts.values()))
    cuts = [len({bounds[axis] for bounds in parts}) for axis in range(len(shape))]
    cut_axes = [axis for axis, n in enumerate(cuts) if n > 1]
    title = f"{counted(len(parts), 'part')} on {n_devices} devices"
    facts, along = describe_sharding(sharding), ", ".join(f"axis {axis} into {cuts[axis]}" for axis in cut_axes)
    title += f" in {facts.memory}" if facts is not None and facts.memory else ""
    title += f", cut along {along}" if cut_axes else ""
    cells = []
    for bounds in sorted(parts)[:MOST_CELLS]:
        ids = id_text(sorted(device.id for device in parts[bounds]))
        part = ", ".join(f"{low}:{high}" for low, high in bounds)
        cells.append([visible(f"{parts[bounds][0].platform}:{ids}"), f"[{part}]"])
    columns, n_more = cuts[cut_axes[-1]] if cut_axes else 1, max(len(parts) - MOST_CELLS, 0)
    return [{"kind": "grid", "title": title, "columns": columns, "cells": cells, "n_more": n_more}]


# A window on the values of an array along two of its axes. Only the window is copied.

MOST = 64  # rows, and columns
MOST_NAMED = 8  # devices of other processes


class Window(NamedTuple):
    """A part of an array."""

    values: np.ndarray  # [rows, columns]; an array with one axis is laid out in rows of 64
    is_here: np.ndarray  # bool: False beyond the end of the array, and for parts in another process
    axes: tuple[int, int]  # of the rows and of the columns; -1 where there is none
    starts: tuple[int, ...]  # the first index along every axis
    sizes: tuple[int, ...]  # the extent along every axis
    devices: tuple[str, ...]  # that the values were read from
    elsewhere: tuple[str, ...]  # devices of other processes, which hold the missing values


def window(array: jax.Array | np.ndarray | Stored, axes: Sequence[int] = (), starts: Sequence[int] = ()) -> Window:
    """The part of an array from `starts` on: 64 × 64 along two axes, by default the last, of size 1 along the others.

    A sharded array is not gathered: the overlap of each shard with the window is sliced on its device and
    transferred. Starts are reduced where the window would extend beyond the end. Raises ValueError for other axes.
    """
    n = len(array.shape)
    rows, columns = axes or (n - 2 if n > 1 else -1, n - 1)
    known = range(n)
    if rows == columns != -1 or (rows not in known) != (n < 2) or (columns not in known) != (n < 1):
        raise ValueError(f"window: an array with {n} axes has no rows along {rows} and columns along {columns}.")
    starts = starts or [0] * n
    if len(starts) != n:
        raise ValueError(f"window: {len(starts)} starts are not one for each of {n} axes.")
    most = [MOST if axis in (rows, columns) else 1 for axis in known] if n > 1 else [MOST * MOST] * n
    sizes = tuple(min(size, longest) for size, longest in zip(array.shape, most, strict=True))
    ends = [max(size - length, 0) for size, length in zip(array.shape, sizes, strict=True)]
    starts = tuple(min(max(start, 0), end) for start, end in zip(starts, ends, strict=True))

    values, is_here, devices, elsewhere = _read(array, starts, sizes)
    order = [axis for axis in known if axis not in (rows, columns)] + [axis for axis in (rows, columns) if axis >= 0]
    values, is_here = (in_rows(part.transpose(order)) for part in (values, is_here))
    return Window(values, is_here, (rows, columns), starts, sizes, devices, elsewhere)


def _read(array: Any, starts: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, tuple, tuple]:
    if not isinstance(array, jax.Array):
        place = tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
        if type(array) is Stored:
            return array.part(place) if 0 not in sizes else np.empty(sizes, array.dtype), np.ones(sizes, bool), (), ()
        return np.array(np.ndarray.view(array, np.ndarray)[place]), np.ones(sizes, bool), (), ()
    if why := why_unreduced(array.sharding):
        raise ValueError(f"window: the array is {why}.")
    values, is_here, devices = np.zeros(sizes, array.dtype), np.zeros(sizes, bool), []
    for shard in array.addressable_shards:
        place, inside = _common(shard.index, array.shape, starts, sizes)
        if not (_is_empty(place) or is_here[place].all()):
            values[place], is_here[place] = copied(shard.data, inside), True
            devices.append(shard.device)
    elsewhere, sharding = [], array.sharding
    if not is_here.all():
        parts = sharding.devices_indices_map(array.shape).items()
        far = [part for part in parts if part[0] not in sharding.addressable_devices]
        elsewhere = [x for x, index in far if not _is_empty(_common(index, array.shape, starts, sizes)[0])]
    own, others = (tuple([f"{x.platform}:{x.id}" for x in them]) for them in (devices, elsewhere[:MOST_NAMED]))
    return values, is_here, own, others


def _is_empty(place: tuple[slice, ...]) -> bool:
    return any(part.start >= part.stop for part in place)


def _common(index: Any, shape: Any, starts: Any, sizes: Any) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The overlap of a shard and the window: its slices in the window, and in the shard."""
    place, inside = [], []
    for part, length, start, size in zip(index, shape, starts, sizes, strict=True):
        low, high, _ = part.indices(length)
        first, last = max(low, start), min(high, start + size)
        place.append(slice(first - start, last - start))
        inside.append(slice(first - low, last - low))
    return tuple(place), tuple(inside)


def copied(shard: jax.Array, inside: tuple[slice, ...]) -> np.ndarray:
    """A part of a single-device array, sliced on its device, so that only the part is transferred."""
    if lies_on_host(shard):
        return np.array(host_view(shard)[inside])

    starts, sizes = [part.start for part in inside], [part.stop - part.start for part in inside]
    return fetch([part_of(shard, np.array(starts, int), sizes)])[0]


def in_rows(part: np.ndarray) -> np.ndarray:
    """The part as two axes; a long vector is wrapped into rows and padded with zeros."""
    if part.ndim == 1 and part.size > MOST:
        return np.pad(part, (0, -part.size % MOST)).reshape(-1, MOST)
    return part.reshape(part.shape[-2:] if part.ndim > 1 else (1, part.size))


# The referrers of an object: variables, attributes and containers, as the garbage collector tracks them.

MOST_HOLDERS = 24
_MOST_AT_ONCE = 40  # objects whose referrers are searched together
_MOST_LEVELS = 6
# Before Python 3.13, reading the local variables of a running function keeps them alive as long as it runs.
SEES_LOCALS = sys.version_info >= (3, 13)
_OURS = __name__.partition(".")[0]
_ATTRIBUTES = ".__dict__"
_ATTRIBUTE = re.compile(r"^\['(\w+)'\]")


class _Step(NamedTuple):
    """An object that leads to the searched one, and the rest of the path from there: "['w']"."""

    node: Any
    rest: str


def referrers(node: Any, goes_on: Callable[[], bool]) -> tuple[list[str], bool]:
    """The referrers of an object, as Python expressions where possible, and whether the search was complete.

    Searches up to six levels, to variables of modules and functions. Keeps nothing alive. Each level
    visits all objects that the garbage collector tracks, some 100 ms in a large process. Containers of
    only numbers and NumPy arrays are not tracked, but their referrers are. `goes_on` is called before each level.
    """
    modules = {id(vars(module)): name for name, module in list(sys.modules.items()) if type(module) is types.ModuleType}
    found: dict[str, None] = {}
    seen: set[tuple[int, int]] = set()
    level, is_all = [_Step(node, "")], True
    for _ in range(_MOST_LEVELS):
        if not level or len(found) >= MOST_HOLDERS:
            break
        if not goes_on():
            is_all = False
            break
        level, is_whole = _one_up(level, modules, seen, found)
        is_all &= is_whole
    # An object without a known referrer is reported by its class.
    for step in level:
        found.setdefault(f"{_class_label(step.node)}{step.rest}")
    return list(found)[:MOST_HOLDERS], is_all and len(found) <= MOST_HOLDERS


def _one_up(level: list[_Step], modules: dict[int, str], seen: set[tuple[int, int]], found: dict[str, None]) -> Any:
    """The referrers of the objects of a level, and whether these are all. Adds complete expressions to `found`."""
    wanted: dict[int, list[_Step]] = {}  # one object may lead to the searched one in several ways
    for step in level:
        wanted.setdefault(id(step.node), []).append(step)
    reached: set[int] = set()
    new: set[tuple[int, int]] = set()
    above: list[_Step] = []
    own = {id(level), id(wanted), id(above)} | set(map(id, level))
    for holder in _referrers([steps[0].node for steps in wanted.values()]):
        # The variables of a running module are found through the module.
        is_of_module = isinstance(holder, types.FrameType) and holder.f_code.co_name == "<module>"
        is_of_module = is_of_module and holder.f_locals is holder.f_globals and id(holder.f_globals) in modules
        if id(holder) in own or _is_our_code(holder) or is_of_module:
            continue
        if _is_ours(module_name(type(holder))):
            reached.update(map(id, gc.get_referents(holder)))
            found.setdefault("treeviz: a widget with keep=True, or a function that received the tree")
            continue
        for name, step in ((name, step) for name, below in _references(holder, wanted) for step in wanted[below]):
            rest = name + step.rest
            if name == _ATTRIBUTES:
                rest = _ATTRIBUTE.sub(r".\1", step.rest)
            reached.add(id(step.node))
            if id(holder) in modules:
                found.setdefault(_variable(modules[id(holder)], rest))
            elif isinstance(holder, types.FrameType):
                code = holder.f_code
                place = place_of(code.co_filename, code.co_firstlineno)
                name = _variable("__main__", rest) if rest else "a variable"
                found.setdefault(f"{name} in {visible(code.co_name, 60)} ({place}), which runs")
            elif isinstance(holder, types.FunctionType):
                found.setdefault(f"the function {function_name(holder)}{f', as …{rest}' if rest else ''}")
            elif (id(holder), id(step.node)) not in seen:
                new.add((id(holder), id(step.node)))
                above.append(_Step(holder, rest))
    seen |= new
    for step in level:
        if id(step.node) not in reached and step.rest:
            found.setdefault(f"{_class_label(step.node)}{step.rest}")
    return above[:_MOST_AT_ONCE], len(above) <= _MOST_AT_ONCE


def _referrers(nodes: list[Any]) -> list[Any]:
    arguments = tuple(nodes)  # Python 3.13 finds it among the referrers
    found = gc.get_referrers(*arguments)
    wanted = set(map(id, nodes))
    # A dict of NumPy arrays is not tracked, but its referrers are. Frames of running functions are not tracked either.
    for inner in () if all(map(gc.is_tracked, nodes)) else gc.get_referents(*gc.get_objects()):
        is_hidden = (type(inner) is dict or type(inner) is tuple) and not gc.is_tracked(inner)
        if is_hidden and any(id(value) in wanted for value in (inner.values() if type(inner) is dict else inner)):
            found.append(inner)
    for frame in sys._current_frames().values() if SEES_LOCALS else ():
        while frame is not None:
            if not _is_our_code(frame) and any(id(value) in wanted for value in frame.f_locals.values()):
                found.append(frame)
            frame = frame.f_back
    return [holder for holder in found if holder is not nodes and holder is not arguments]


def _is_our_code(holder: Any) -> bool:
    """Whether it is a frame or function of treeviz, which runs this search."""
    is_function = isinstance(holder, types.FunctionType)
    scope = holder.__globals__ if is_function else holder.f_globals if isinstance(holder, types.FrameType) else {}
    return _is_ours(scope.get("__name__"))


def _is_ours(module: Any) -> bool:
    return type(module) is str and module.partition(".")[0] == _OURS


def _references(holder: Any, wanted: Container[int]) -> Iterator[tuple[str, int]]:
    """("['w']", id) for each wanted object that the holder refers to."""
    if isinstance(holder, types.FrameType):
        pairs = ((f"[{name!r}]", value) for name, value in list(holder.f_locals.items()) if SEES_LOCALS)
    elif has_base(type(holder), dict):
        pairs = ((f"[{value_text(key, 60)}]", value) for key, value in list(dict.items(holder)))
    elif has_base(type(holder), list, tuple):
        values = list((list if has_base(type(holder), list) else tuple).__iter__(holder))
        pairs = (("" if type(value) is types.CellType else f"[{i}]", value) for i, value in enumerate(values))
    else:
        attributes = stored_attributes(holder)
        if id(attributes) in wanted:
            yield _ATTRIBUTES, id(attributes)
            return
        pairs = ((f".{visible(str(name), 60)}", value) for name, value in list(attributes.items()))
    is_named = False
    for name, value in islice(pairs, 1_000_000):
        if id(value) in wanted:
            is_named = True
            yield name, id(value)
    if not is_named:
        yield from (("", id(value)) for value in gc.get_referents(holder) if id(value) in wanted)


def _variable(module: str, rest: str) -> str:
    """ "params['w']", "numpy.random.x"; IPython's output caches are marked."""
    name, _, after = rest.removeprefix("['").partition("']")
    if module != "__main__":
        return f"{visible(module)}.{name}{after}"
    name = "Out" if name == "_oh" else name
    is_cache = name == "Out" or name.strip("_") == "" or name.strip("_i").isdigit()
    return f"{name}{after}{', which IPython keeps' * is_cache}"


def _class_label(node: Any) -> str:
    return f"<{class_name(node if type(node) is type else type(node))}>"


MOST_SECONDS = 1.0
MOST_BYTES = 512_000
MOST_ELEMENTS = 50_000_000  # with more, statistics are computed on request only

Section = dict[str, Any]
Part = Callable[[], list[Section]]


class Budget:
    """The limits of an answer: one second from the first `goes_on`, and 512 kB, until the page cancels the request."""

    def __init__(
        self, is_cancelled: Callable[[], bool] = lambda: False, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_cancelled, self._now, self._bytes_left = is_cancelled, now, MOST_BYTES
        self._end: float | None = None

    def goes_on(self) -> bool:
        now = self._now()
        self._end = now + MOST_SECONDS if self._end is None else self._end
        return now < self._end and not self.is_cancelled()

    def gather(self, parts: Iterable[Part]) -> list[Section]:
        """The sections of the parts, until the budget is spent; an exception becomes a section with its text."""
        gathered: list[Section] = []
        for i, part in enumerate(parts):
            if self.is_cancelled() or (i > 0 and not self.goes_on()):
                return [*gathered, text("There is more; listing it takes too long.")]
            for section in guarded(part, lambda error: [text(f"unknown: {error_text(error)}", "bad")]):
                self._bytes_left -= len(json.dumps(section))
                if self._bytes_left < 0:
                    return [*gathered, text("There is more than fits into one answer.")]
                gathered.append(section)
        return gathered


def text(content: str, tone: str = "dim") -> Section:
    return {"kind": "text", "text": content, "tone": tone}


def is_array(node: Any) -> bool:
    """Whether it is a NumPy or JAX array, even a deleted one."""
    return has_base(type(node), np.ndarray) or class_name(type(node)) == "ArrayImpl"


def has_values(node: Any) -> bool:
    """Whether it is an array, in memory or in a file, or a box of one, with values that can be read."""
    node = plain_array(node)
    is_near = has_base(type(node), np.ndarray) or type(node) is Stored
    return is_near or (is_array(node) and not why_unreduced(node.sharding))


def plain_array(node: Any) -> Any:
    """The array that a leaf is or contains; a subclass of `numpy.ndarray` is viewed as a plain one."""
    if not is_array(node) and type(node) is not Stored:
        inside = array_inside(node)
        node = node if inside is None else inside
    return np.ndarray.view(node, np.ndarray) if has_base(type(node), np.ndarray) else node


def buttons(kind: str) -> list[Section]:
    """Buttons for treescope's view of an opaque leaf, and for the search of referrers, which takes long."""
    treescope = {"kind": "button", "label": "show with treescope", "operation": "treescope"}
    referrers = {"kind": "button", "label": "what keeps this in memory?", "operation": "referrers"}
    return [treescope] * (kind == "opaque") + [referrers] * KINDS[kind].has_owner


def detail_parts(node: Any, kind: str, budget: Budget, *, stats: bool = True) -> Iterator[Part]:
    """The parts of the details of a node or leaf, the cheapest first; only `stats` reads values."""
    if kind != "function":
        yield lambda: [{"kind": "pairs", "title": "class", "pairs": x}] if (x := class_facts(type(node))) else []
    if kind in ("function", "closure"):
        yield lambda: [{"kind": "code", "title": x[0], "text": x[1]}] if (x := function_source(node)) else []
    if kind == "function":
        yield lambda: _outline_section("captured", captured_values(node), budget)
    if kind == "opaque" or (kind in ("shape only", "tensor") and not is_array(node)):
        yield lambda: _outline_section("inside (invisible to JAX)", contents(node), budget)
    if kind in ("key", "shape only", "ref") or class_name(type(node)) == "ArrayImpl":
        yield lambda: shard_section(node)
    if stats and has_values(node):
        yield lambda: statistics(node)


def _outline_section(title: str, named: Iterable[tuple[str, Any]], budget: Budget) -> list[Section]:
    lines, is_all = outline(named, budget.goes_on)
    rest = [] if is_all else [text("There is more inside.")]
    return [{"kind": "outline", "title": title, "lines": lines}, *rest] if lines else rest


def statistics(array: Any, *, most_elements: int = MOST_ELEMENTS) -> list[Section]:
    """Statistics and the histogram of magnitudes, computed on the array's device; a button for a huge array."""
    n_elements = int(plain_array(array).size)
    if n_elements > most_elements:
        label = f"compute the statistics of {count_text(n_elements)} elements"
        return [{"kind": "button", "label": label, "operation": "statistics"}]
    table, nodes = scan(array)
    columns, notes = value_statistics(table, nodes, max_elements=max(n_elements, 1))
    sections = [text(reason) for reason in notes.values()]
    *numbers, histogram = [(column, column.values[0]) for column in columns if column.name != "inf"]  # posinf + neginf
    pairs = [(c.title, number_text(x)) for c, x in numbers if c.format == "number" and not np.isnan(x)]
    pairs += [(c.title, f"{int(x):,}") for c, x in numbers if c.format == "count" and x > 0]
    if pairs:
        sections.append({"kind": "numbers", "title": "values", "pairs": pairs})
    used = np.flatnonzero(np.nan_to_num(histogram[1]))
    if len(used):
        first, end = int(used[0]), int(used[-1]) + 1
        bins = histogram[1][first:end]
        heights = np.ceil(255 * bins / bins.max()).astype(int).tolist()
        edges = [str(FIRST_EXPONENT + i) for i in (first, end)]
        sections.append({"kind": "bars", "title": "log₂|x|", "heights": heights, "edges": edges})
    return sections


def referrers_section(node: Any, budget: Budget) -> list[Section]:
    """The referrers of an object."""
    found, is_all = referrers(node, budget.goes_on)
    lines = [(0, line, "", False) for line in found] or [(0, "no owner found", "", False)]
    rest = [] if is_all else [text("The search stopped early; there may be more.")]
    if not SEES_LOCALS:
        rest.append(text("Before Python 3.13, the variables of running functions are not searched."))
    return [{"kind": "outline", "title": "held by", "lines": lines}, *rest]


# The values of a window as plain data, for the page to draw where treescope cannot

SIGMAS = 3  # as in treescope: values further out are outliers, which would leave little color range for the rest

Drawing = dict[str, Any]


def drawing(part: Window, values: np.ndarray, caption: str, why: str) -> Drawing:
    """The data for assets/drawn/drawing.js, some 22 kB for 64 × 64 values, which float32 must represent."""
    # Exclude the padding in the last row of a long vector.
    n = min(values.size, part.sizes[part.axes[1]]) if part.axes[0] < 0 <= part.axes[1] else values.size
    numbers = values.ravel()[:n].astype("<f4")
    is_here = part.is_here.ravel()[:n]
    return {
        "columns": values.shape[1],
        "cells": b64encode(numbers.tobytes()).decode(),
        "elsewhere": b64encode((~is_here).tobytes()).decode() if not is_here.all() else "",
        "range": [*color_range(numbers[is_here], trim=values.dtype.kind == "f")],
        "axes": part.axes,
        "starts": part.starts,
        "caption": caption,
        "why": why,
    }


def color_range(values: np.ndarray, *, trim: bool) -> tuple[float, float]:
    """The values of the first and last color, from finite values only; symmetric around zero if some are negative.

    `trim` excludes values further than three standard deviations from the mean, or from zero.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return 0.0, 1.0
    least, most = float(finite.min()), float(finite.max())
    center = float(finite.mean()) if least >= 0 else 0.0
    radius = SIGMAS * float(np.sqrt(np.mean(np.square(finite - center)))) if trim else np.inf
    if least < 0:
        high = min(max(-least, most), radius)
        return -high, high
    low, high = max(least, center - radius), min(most, center + radius)
    return (low, high) if low < high else (0.0, high or 1.0)  # all are equal
