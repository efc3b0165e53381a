"""`%load_ext treeviz`, and the same from Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from treeviz.analysis.checks.rule import Checked
from treeviz.analysis.checks.rules import run_rules
from treeviz.api import render
from treeviz.plugin.shown import InShell, Magics, Wrapper, is_shown, is_tree, name_of, print_failure
from treeviz.prepare import scanned
from treeviz.tree.describers import DISPLAY
from treeviz.tree.runtime import PrivateName, ipython_shell, missing_names, why_missing
from treeviz.tree.table import TreeTable
from treeviz.tree.text import bytes_text, count_text, counted, is_any
from treeviz.views.tree_view import TreeView

# The default display of an IPython shell: trees through treeviz, other values unchanged.


class DefaultDisplay(Wrapper):
    """Wraps the `format` of a shell's display formatter.

    It has priority over formatters registered before or after it, such as by `treescope.register_as_default`.
    `render` makes the view of a tree, from the tree and its name; `before_others` is called before another display.
    """

    def __init__(self, shell: Any, render: Callable[[Any, str], Any], before_others: Callable[[], None]) -> None:
        self._shell, self._render, self._before_others = shell, render, before_others
        super().__init__(shell.display_formatter, "format", self._format)

    def _format(self, value: Any, include: Any = None, exclude: Any = None) -> Any:
        if self._is_on:
            try:
                if is_shown(value):
                    view = self._render(value, name_of(value, self._shell.user_ns))
                    return view._repr_mimebundle_(include=include, exclude=exclude), {}
            except Exception as error:
                print_failure("no tree is shown", error)
            self._before_others()
        return self._before(value, include=include, exclude=exclude)


# The default display of marimo

# marimo selects formatters by class, but whether a dict is a tree depends on its contents.
PRIVATE = tuple(
    PrivateName(f"marimo._output.formatting:{name}", "trees are not displayed by default")
    for name in ("FORMATTERS.get_formatter", "get_formatter", "try_format")
)


def is_marimo() -> bool:
    """Whether this process is a marimo notebook."""
    return "marimo" in sys.modules and sys.modules["marimo"].running_in_notebook()


class MarimoDisplay(Wrapper):
    """Wraps the `get_formatter` of marimo's formatters. `render` makes the view, from a tree and its name."""

    def __init__(self, render: Callable[[Any, str], Any]) -> None:
        if missing := missing_names(PRIVATE):
            raise RuntimeError(f"register_as_default: {why_missing(missing)}")
        from marimo._output import formatting

        self._render, self._marimo = render, formatting
        super().__init__(formatting.FORMATTERS, "get_formatter", self._get_formatter)

    def _get_formatter(self, obj: Any) -> Any:
        try:
            if self._is_on and is_shown(obj):
                return self._format
        except Exception as error:
            print_failure("no tree is shown", error)
        return self._before(obj)

    def _format(self, value: Any) -> Any:
        try:
            view: Any = self._render(value, name_of(value, vars(sys.modules["__main__"])))
            formatter: Any = self._marimo.get_formatter(view)
            return formatter(view)
        except Exception as error:
            print_failure("no tree is shown", error)
        self._is_on = False
        try:
            output = self._marimo.try_format(value)
            return output.mimetype, output.data
        finally:
            self._is_on = True


# A comment on each pytree node in treescope's output: the leaves, elements, bytes and findings in it

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})  # most nodes: a fast path


class InTreescope:
    """Extends treescope's active renderer, through its public API, once this process has imported treescope."""

    def __init__(self) -> None:
        # For the current rendering: id of a node -> the node, to keep it alive, and its comment.
        self._comments: dict[int, tuple[Any, str]] | None = None
        self._has_failed = False

    def update(self, info: Any = None) -> None:
        """Extend the renderer once treescope is imported; before each cell. A line reports once that this failed."""
        active = _active_renderer()
        try:
            if active is not None and not self._has_failed and self._hook not in active.get().wrapper_hooks:
                extended = active.get().extended_with(wrapper_hooks=[self._hook], context_builders=[self._rendering])
                active.set_globally(extended)
        except Exception as error:
            self._has_failed = True
            print_failure("nothing is added to treescope's output", error)

    def remove(self) -> None:
        """Remove the extensions from the renderer; those that others added stay."""
        active = _active_renderer()
        if active is not None and not self._has_failed:
            renderer = active.get()
            hooks = [hook for hook in renderer.wrapper_hooks if hook != self._hook]
            builders = [builder for builder in renderer.context_builders if builder != self._rendering]
            active.set_globally(replace(renderer, wrapper_hooks=hooks, context_builders=builders))

    @contextmanager
    def _rendering(self) -> Iterator[None]:
        outer, self._comments = self._comments, {}
        try:
            yield
        finally:
            self._comments = outer

    def _hook(self, node: Any, path: str | None, node_renderer: Any) -> Any:
        if isinstance(node, TreeView):
            # treescope would show its HTML below its repr
            return node.__treescope_repr__(path, node_renderer)
        try:
            comment_text = "" if is_any(type(node), _PLAIN) else self._comment_for(node)
            if not comment_text:
                return NotImplemented
            from treescope import rendering_parts as parts

            comment = parts.comment_color(parts.text(f"  # {comment_text}"))
            with_comment = partial(parts.siblings_with_annotations, extra_annotations=(comment,))
        except Exception as error:
            print_failure("nothing is added to treescope's output", error)
            return NotImplemented
        return with_comment(node_renderer(node, path=path))

    def _comment_for(self, node: Any) -> str:
        """The comment for a node. At the root of a tree, the comments for all its nodes are made."""
        if self._comments is None:  # a part that treescope draws later
            return ""
        if id(node) not in self._comments:
            self._comments[id(node)] = node, ""
            if is_tree(node):
                table, nodes = scanned(node, None, "tree", DISPLAY)
                self._comments |= {id(nodes[row]): (nodes[row], text) for row, text in summaries(table, nodes).items()}
        return self._comments[id(node)][1]


def _active_renderer() -> Any:
    """treescope's active renderer; None if treescope is not imported."""
    return getattr(sys.modules.get("treescope"), "active_renderer", None)


def summaries(table: TreeTable, nodes: list[Any]) -> dict[int, str]:
    """For each row of a node: "12 leaves · 1.2 M elements · 4.8 MB · 2 findings: T101"; with one leaf, the findings."""
    n_leaves, n_elements, n_bytes = (table.rolled(table.columns[name]) for name in ("leaves", "elements", "bytes"))
    counts_by_rule: dict[str, np.ndarray] = {}
    for rule, findings in run_rules(Checked(table, nodes)):
        rows = [finding.row for finding in findings if (finding.level or rule.level) != "info"]
        before = np.append(0, np.cumsum(np.bincount(np.array(rows, int), minlength=len(table))))
        counts_by_rule |= {rule.code: before[table.end] - before[:-1]} if rows else {}
    texts = {}
    for row in np.flatnonzero(~table.is_leaf).tolist():
        n_by_rule = {code: int(n[row]) for code, n in counts_by_rule.items() if n[row]}
        parts = []
        if n_bytes[row] and (n_leaves[row] > 1 or row == 0):
            counts = [(n_leaves, "leaf", "leaves"), (n_elements, "element", "elements")]
            parts = [f"{count_text(int(n[row]))} {one if n[row] == 1 else more}" for n, one, more in counts]
            parts.append(bytes_text(int(n_bytes[row])))
        if n_by_rule:
            parts.append(f"{counted(sum(n_by_rule.values()), 'finding')}: {', '.join(sorted(n_by_rule))}")
        texts[row] = " · ".join(parts)
    return texts


# Load and unload


class _Loaded(NamedTuple):
    shell: Any
    display: DefaultDisplay
    magics: Magics
    settings: Any
    treescope: InTreescope
    debugger: InShell


_loaded: list[_Loaded] = []  # one per shell
_in_marimo: list[MarimoDisplay] = []  # at most one


def load_ipython_extension(shell: Any) -> None:
    """Display trees through treeviz, and add magics; `%load_ext treeviz` calls this.

        %load_ext treeviz
        params                              # displayed as `treeviz.render(params)`
        %tree params["layers"] + [extra]    # any expression as a tree, whatever it is
        %config TreeViz.stats = True        # as `treeviz.render(params, stats=True)`; %config TreeViz lists all
        %%tree_errors                       # explain the errors of a cell; see `treeviz.explain_errors`
        %config TreeViz.explain_errors = True   # of all cells

    Nodes of registered classes are displayed, and dicts, lists and tuples that contain an array. Bare arrays,
    containers of plain values and objects with their own display stay as they are. If treeviz fails, the previous
    display is used, with a line on standard error. Loading twice has no further effect. `%debug` and `breakpoint()`
    print trees too, and treescope's output shows the size of each pytree.
    """
    if any(loaded.shell is shell for loaded in _loaded):
        return
    from treeviz.plugin.shown import TreeViz

    settings = TreeViz(parent=shell)
    shell.configurables.append(settings)
    treescope = InTreescope()
    treescope.update()
    # treescope may be imported later.
    shell.events.register("pre_run_cell", treescope.update)
    make_view = lambda tree, name: render(tree, name=name, **settings.options())  # noqa: E731
    display = DefaultDisplay(shell, make_view, before_others=treescope.update)
    _loaded.append(_Loaded(shell, display, Magics(shell), settings, treescope, InShell(shell)))
    if not settings.explain_errors:
        print("treeviz: trees are displayed. %config TreeViz.explain_errors = True also explains errors of JAX.")


def unload_ipython_extension(shell: Any) -> None:
    """Restore the shell; `%unload_ext treeviz` calls this."""
    for loaded in _loaded[:]:
        if loaded.shell is shell:
            _loaded.remove(loaded)
            loaded.display.remove()
            loaded.magics.remove()
            shell.events.unregister("pre_run_cell", loaded.treescope.update)
            loaded.treescope.remove()
            loaded.debugger.remove()
            loaded.settings.explain_errors = False
            if loaded.settings in shell.configurables:
                shell.configurables.remove(loaded.settings)


def register_as_default() -> None:
    """Display trees through treeviz from now on, as `%load_ext treeviz` does, in IPython and in marimo.

        tv.register_as_default()
        {"w": jnp.ones((3, 4))}   # a tree in the last line of a cell

    In marimo, only the display changes.

    Raises:
      RuntimeError: This process is neither IPython nor a notebook of marimo.
    """
    shell = _shell("register_as_default")
    if shell is not None:
        load_ipython_extension(shell)
    elif not _in_marimo:
        _in_marimo.append(MarimoDisplay(lambda tree, name: render(tree, name=name)))


def unregister() -> None:
    """Display trees as before `register_as_default` or `%load_ext treeviz`.

        tv.register_as_default()
        tv.unregister()

    Raises:
      RuntimeError: This process is neither IPython nor a notebook of marimo.
    """
    shell = _shell("unregister")
    if shell is not None:
        unload_ipython_extension(shell)
    elif _in_marimo:
        _in_marimo.pop().remove()


def _shell(function: str) -> Any:
    shell = ipython_shell()
    if shell is None and not is_marimo():
        nowhere = "there is no IPython here, and no marimo"
        raise RuntimeError(f"{function}: {nowhere}. In a script, treeviz.render(tree).show() opens a page.")
    return shell
