"""Lines of source of a program, also inside the backward rules of `jax.custom_vjp`."""

from __future__ import annotations

import contextlib
import linecache
import os
import sysconfig
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jaxlib
from jax.extend import source_info_util

from treeviz.steps.tracing.jax_private import get_ready, traced_anew, transposes
from treeviz.steps.tracing.primitives import JITS, called_jaxpr, open_jaxpr
from treeviz.tree.runtime import Lock, cell_of, is_installed
from treeviz.tree.text import visible

get_ready()

_here = threading.local()  # .traces: whether this thread is within `lines_of_backward_rules`
_lock = Lock()
_n_tracing = 0
_originals: list[tuple[dict, Any, Callable]] = []  # table, primitive and rule, while some thread traces


_RUNS_RULES = __file__  # the frames of a rule end at one in this file


class _RuleOf(str):
    """A name in the name stack of what a backward rule computes."""

    traceback: Any  # of the call of the `custom_vjp` function


def call_of_rule(eqn: Any) -> Any:
    """For what a backward rule computes, the traceback of the call that it belongs to; None if it is not known."""
    names = (getattr(part, "name", None) for part in eqn.source_info.name_stack.stack)
    return next((name.traceback for name in names if isinstance(name, _RuleOf)), None)


class _NoTraceback:
    """Stands for a traceback that is not known yet: what is traced then takes that of its own call."""

    def __bool__(self) -> bool:
        return False

    def as_python_traceback(self) -> None:
        """Of an exception in the rule."""


@contextlib.contextmanager
def lines_of_backward_rules() -> Iterator[None]:
    """In this context, what this thread traces of a backward rule has its lines, not those of the `custom_vjp` call."""
    global _n_tracing
    with _lock:
        if _n_tracing == 0:
            rules = ((table, p, rule) for table in transposes() for p, rule in table.items())
            _originals.extend(originals for originals in rules if originals[1].name == "custom_lin")
            for table, primitive, rule in _originals:
                table[primitive] = _with_lines(rule)
        _n_tracing += 1
    before, _here.traces = getattr(_here, "traces", False), True
    try:
        with traced_anew("lines of backward rules"):
            yield
    finally:
        _here.traces = before
        with _lock:
            _n_tracing -= 1
            if _n_tracing == 0:
                for table, primitive, rule in _originals:
                    table[primitive] = rule
                _originals.clear()


def _with_lines(rule: Callable) -> Callable:
    def transpose(*args, **params):
        if not getattr(_here, "traces", False):
            return rule(*args, **params)
        call = source_info_util.current()
        name = _RuleOf("backward_rule")
        name.traceback = call.traceback
        with source_info_util.user_context(_NoTraceback(), name_stack=call.name_stack.extend(name)):
            return rule(*args, **params)

    return transpose


# Source lines of equations

_JAX = tuple(os.path.dirname(str(module.__file__)) + os.sep for module in (jax, jaxlib))
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep


class SourceLine(NamedTuple):
    """A source line; empty if unknown."""

    file: str = ""
    line: int = 0
    function: str = ""

    @property
    def source(self) -> str:
        return visible(linecache.getline(self.file, self.line).strip(), 200) if self.file else ""

    def __str__(self) -> str:
        if not self.file:
            return "an unknown place"
        cell = cell_of(self.file)
        line = f"{cell}, line {self.line}" if cell else f"{visible(os.path.basename(self.file), 80)}:{self.line}"
        return f"{line} in {visible(self.function, 80)}"


def is_jax_jit(eqn: Any) -> bool:
    """Whether the equation calls a function that JAX itself has jitted."""
    if eqn.primitive.name not in JITS:
        return False
    inner = open_jaxpr(called_jaxpr(eqn))
    function_source = getattr(getattr(inner, "debug_info", None), "func_src_info", None)
    if function_source is not None:
        return any(folder in function_source for folder in _JAX)
    # jax 0.4 has no func_src_info; the frames of the equations inside show it
    tracebacks = (inner_eqn.source_info.traceback for inner_eqn in inner.eqns)
    frames = (frame for traceback in tracebacks if traceback for frame in traceback.frames)
    files = (f.file_name for f in frames if f.function_name.rpartition(".")[2] == eqn.params["name"])
    return next(files, "").startswith(_JAX)


def frames_of(traceback: Any) -> list[SourceLine]:
    """Frames outside JAX, treeviz and the standard library, the innermost first; in a backward rule, only its own."""
    lines = []
    for frame in traceback.frames if traceback is not None else ():
        file = frame.file_name
        if file == _RUNS_RULES:
            break
        standard = file.startswith(_STANDARD) and not is_installed(file)
        if not file.startswith((*_JAX, _HERE)) and not standard and not file.startswith("<frozen"):
            lines.append(SourceLine(file, frame.line_num, frame.function_name.rpartition(".")[2]))
    return lines
