"""Lines of source inside the backward rules of `jax.custom_vjp`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jax.extend import source_info_util

from treeviz.steps.tracing.jax_private import get_ready, traced_anew, transposes
from treeviz.tree.runtime import Lock

get_ready()

_here = threading.local()  # .traces: whether this thread is within `lines_of_backward_rules`
_lock = Lock()
_n_tracing = 0
_originals: list[tuple[dict, Any, Callable]] = []  # table, primitive and rule, while some thread traces


RUNS_RULES = __file__  # the frames of a rule end at one in this file


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
