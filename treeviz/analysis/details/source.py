"""The source of a function, and the docstring and file of a class. No code of theirs runs."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from treeviz.tree.functions import code_of
from treeviz.tree.safe_repr import class_name, guarded, module_name, qualified_name, visible
from treeviz.tree.source_lines import cell_of

MOST_LINES = 200
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
    shown = [visible(line, _MOST_CHARACTERS) for line in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        shown.append(f"… {len(lines) - MOST_LINES:,} more lines")
    return place_of(code.co_filename, code.co_firstlineno), "\n".join(shown)


def class_facts(cls: type) -> list[tuple[str, str]]:
    """(what, text) pairs about a class; none for classes of Python, JAX and NumPy."""
    if module_name(cls).partition(".")[0] in ("builtins", "jax", "jaxlib", "numpy", ""):
        return []
    facts = [("class", qualified_name(cls)), ("defined in", _class_place(cls))]
    doc = _own(cls).get("__doc__")
    # The generated docstring of a dataclass is its signature.
    if type(doc) is str and not doc.startswith(f"{class_name(cls)}("):
        lines = inspect.cleandoc(doc[:10_000]).strip().splitlines()
        text = "\n".join(visible(line, _MOST_CHARACTERS) for line in lines[:_MOST_OF_DOC])
        facts.append(("docstring", text + ("\n…" if len(lines) > _MOST_OF_DOC else "")))
    return [fact for fact in facts if fact[1]]


def _class_place(cls: type) -> str:
    module = sys.modules.get(module_name(cls))
    name = re.escape(class_name(cls).rpartition(".")[2])
    starts = re.compile(rf"\s*class\s+{name}\b")
    for file in _files(cls, module):
        for number, line in enumerate(_lines(file), 1):
            if starts.match(line):
                return place_of(file, number)
    return ""


def _files(cls: type, module: Any) -> Iterator[str]:
    """Files that may define the class; for a notebook class, from its methods."""
    for value in list(_own(cls).values()):
        is_method = type(value) is types.FunctionType and type(value.__module__) is str
        if is_method and value.__module__ == module_name(cls):
            yield value.__code__.co_filename
    file = guarded(lambda: object.__getattribute__(module, "__dict__").get("__file__"), lambda _: None)
    if type(file) is str:
        yield file


def _own(cls: type) -> Any:
    """The class's own namespace, read without running a descriptor."""
    return type.__dict__["__dict__"].__get__(cls)


def _lines(file: str) -> list[str]:
    """The lines of a file in Python's cache, or of a regular file of moderate size."""

    def read() -> list[str]:
        if file not in linecache.cache and not (os.path.isfile(file) and os.path.getsize(file) < _MOST_OF_FILE):
            return []
        return linecache.getlines(file)

    return guarded(read, lambda _: [])


def place_of(file: str, line: int) -> str:
    """ "layers/dense.py:12", "Cell In[3]:5"."""
    name = guarded(lambda: cell_of(file), lambda _: "") or "/".join(
        [part for part in PurePath(file).parts if part != "/"][-3:]
    )
    return f"{visible(name, 120)}:{line}"
