"""The values that are displayed as trees, the settings of that display, the magics, and debuggers that print trees."""

from __future__ import annotations

import ast
import os
import pdb
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from traitlets import Bool, Int, observe
from traitlets.config import Configurable

from treeviz.api import render
from treeviz.tree.level import one_level
from treeviz.tree.stored import Stored
from treeviz.tree.text import error_text, is_any

_BUILTIN = (dict, list, tuple, OrderedDict, defaultdict, deque)
_ARRAYS = (jax.Array, np.ndarray, jax.ShapeDtypeStruct, Stored)
_OWN_DISPLAY = ("_ipython_display_", "_repr_mimebundle_", "_repr_html_")
_MOST_INSPECTED = 1000  # children


def is_shown(value: Any) -> bool:
    """Whether a value is a tree of a class without its own display."""
    return is_tree(value) and not any(callable(getattr(type(value), name, None)) for name in _OWN_DISPLAY)


def is_tree(value: Any) -> bool:
    """Whether a value is a node of a registered class, or a builtin container with an array or such a node in it.

    Inspects at most 1,000 values; runs the flatten functions of registered classes.
    """
    pending, n_seen = deque([value]), 0
    while pending and n_seen < _MOST_INSPECTED:
        node = pending.popleft()
        n_seen += 1
        is_namedtuple = isinstance(node, tuple) and isinstance(getattr(type(node), "_fields", None), tuple)
        if is_any(type(node), _BUILTIN) or is_namedtuple:
            children = list(node.values()) if isinstance(node, dict) else list(node)
            pending.extend(children[: _MOST_INSPECTED - n_seen])
        elif isinstance(node, _ARRAYS):
            if n_seen > 1:
                return True
        elif node is not None and one_level(node)[1] is not None:  # of a registered class
            return True
    return False


def name_of(value: Any, variables: dict[str, Any]) -> str:
    """The name of the user's variable that holds the value, so that copied expressions run; "tree" if none does."""
    names = (name for name, other in list(variables.items()) if other is value and not name.startswith("_"))
    return next(names, "tree")


def print_failure(consequence: str, error: Exception) -> None:
    """Print one line on standard error: a display failed, and what follows from that."""
    print(f"treeviz: {consequence}, since it failed with {error_text(error)}", file=sys.stderr)


class Wrapper:
    """Replaces a method of an object, until it is removed; then wrappers that others put around it stay."""

    def __init__(self, owner: Any, name: str, ours: Callable) -> None:
        self._owner, self._name, self._ours = owner, name, ours
        self._before: Any = getattr(owner, name)
        self._is_on = True
        setattr(owner, name, ours)

    def remove(self) -> None:
        """Restore the original."""
        self._is_on = False
        if vars(self._owner).get(self._name) is self._ours:
            delattr(self._owner, self._name)
            if getattr(self._owner, self._name) != self._before:  # it was wrapped before
                setattr(self._owner, self._name, self._before)


# The settings of the default display: `%config TreeViz`.


class TreeViz(Configurable):
    """The options of the default display of trees, see `treeviz.render`, and whether errors of JAX are explained."""

    stats = Bool(False, help="Read the values of arrays: min, max, mean, NaN, a histogram …").tag(config=True)
    values = Bool(False, help="Draw the values of arrays in the details of the rows.").tag(config=True)
    check = Bool(False, help="Show problems as badges.").tag(config=True)
    depth = Int(None, allow_none=True, help="The number of levels that are open at first; None: as many as fit.").tag(
        config=True
    )
    whole = Bool(False, help="Walk, read and send the whole tree, however large.").tag(config=True)

    explain_errors = Bool(False, help="Name the leaves that caused an error of JAX.").tag(config=True)

    def options(self) -> dict:
        """The options of `treeviz.render`."""
        return {name: getattr(self, name) for name in self.class_own_traits(config=True) if name != "explain_errors"}

    @observe("explain_errors")
    def _explain_errors(self, change: Any) -> None:
        from treeviz.explainer.explain import explain_errors

        explained = explain_errors()
        if not change.new:
            explained.stop()


# The magics `%tree expression` and `%%tree_errors`.


class Magics:
    """Registers the magics of a shell. `remove` restores the magics that had these names before."""

    def __init__(self, shell: Any) -> None:
        def tree(line: str) -> Any:
            """Show the pytree that an expression evaluates to: %tree params["layers"]"""
            if expression := line.strip():
                return render(shell.ev(expression), name=_primary(expression))
            print('%tree shows the pytree that an expression evaluates to: %tree params["layers"]')
            return None

        def tree_errors(line: str, cell: str) -> None:
            """Run a cell, and add to an error from JAX the paths of the leaves that caused it."""
            from treeviz.explainer.explain import explain_errors

            explained = explain_errors()
            try:
                shell.run_cell(cell)
            finally:
                explained.leave_cells()

        self._magics = shell.magics_manager.magics
        ours = {("line", "tree"): tree, ("cell", "tree_errors"): tree_errors}
        self._before = {place: self._magics[place[0]].get(place[1]) for place in ours}
        for (kind, name), function in ours.items():
            shell.register_magic_function(function, kind, name)

    def remove(self) -> None:
        for (kind, name), previous in self._before.items():
            if previous is None:
                self._magics[kind].pop(name, None)
            else:
                self._magics[kind][name] = previous


def _primary(expression: str) -> str:
    """The expression, in parentheses if a subscript appended to it would not apply to all of it: "(a + b)"."""
    node = ast.parse(expression, mode="eval").body
    is_primary = isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    return expression if is_primary else f"({expression})"


# A pdb class that prints trees as text, also as a mixin for other debuggers such as IPython's


def tree_text(value: Any, expression: str = "tree") -> str | None:
    """The first rows of a tree as text; None if the value is not a tree or rendering fails."""
    try:
        if is_tree(value):
            return repr(render(value, name=_primary(expression)))
    except Exception as error:
        print_failure("no tree is printed", error)
    return None


class TreesInPdb:
    """A mixin for pdb: `p`, `pp` and bare expressions print trees."""

    def displayhook(self, obj: Any) -> None:
        text = tree_text(obj)
        if text is None:
            super().displayhook(obj)  # type: ignore[misc]
        else:
            self.message(text)  # type: ignore[attr-defined]

    def _msg_val_func(self, arg: str, func: Callable[[Any], str]) -> None:
        def write(value: Any) -> str:
            text = tree_text(value, arg.strip())
            return func(value) if text is None else text

        super()._msg_val_func(arg, write)  # type: ignore[misc]


class Pdb(TreesInPdb, pdb.Pdb):
    """pdb whose `p params`, `pp params` and `params` print a tree as `treeviz.render` does.

    Tracers in a jitted function are shown by shape and dtype; nothing is computed. Use it with
    `pytest --pdb --pdbcls=treeviz.pdb:Pdb`.
    """


def set_trace(*, header: str | None = None) -> None:
    """Stop in the debugger, as `breakpoint()` does with `PYTHONBREAKPOINT=treeviz.pdb.set_trace`."""
    debugger = Pdb()
    if header is not None:
        debugger.message(header)
    debugger.set_trace(sys._getframe().f_back)


class InShell:
    """Makes `%debug`, `%pdb` and `breakpoint()` of an IPython shell print trees, until it is removed."""

    def __init__(self, shell: Any) -> None:
        self._tracebacks = shell.InteractiveTB
        self._before = self._tracebacks.debugger_cls
        self._ours = type(self._before.__name__, (TreesInPdb, self._before), {"__doc__": self._before.__doc__})
        self._set(self._ours)
        self._has_hook = sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT")
        if self._has_hook:
            sys.breakpointhook = set_trace

    def remove(self) -> None:
        if self._tracebacks.debugger_cls is self._ours:
            self._set(self._before)
        if self._has_hook and sys.breakpointhook is set_trace:
            sys.breakpointhook = sys.__breakpointhook__

    def _set(self, cls: type) -> None:
        self._tracebacks.debugger_cls, self._tracebacks.pdb = cls, None  # drop the debugger that IPython has kept
