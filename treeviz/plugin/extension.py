"""`%load_ext treeviz`, and the same from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from treeviz.api import render
from treeviz.plugin.in_marimo import MarimoDisplay, is_marimo
from treeviz.plugin.in_treescope import InTreescope
from treeviz.plugin.shown import Magics, is_shown, name_of, tell
from treeviz.plugin.trees_in_pdb import InShell
from treeviz.tree.runtime import ipython_shell

# The default display of an IPython shell: trees through treeviz, all else as before.


class DefaultDisplay:
    """Stands before the `format` of a shell's display formatter, until it is removed.

    It comes first whoever else registers formatters, before or after it, such as `treescope.register_as_default`.

    Args:
      render: Makes the view of a tree, from the tree and its name.
      before_others: Called before another display is asked.
    """

    def __init__(self, shell: Any, render: Callable[[Any, str], Any], before_others: Callable[[], None]) -> None:
        self._shell, self._render, self._before_others = shell, render, before_others
        self._formatter = shell.display_formatter
        self._before = self._formatter.format
        self._is_on = True
        self._formatter.format = self._ours = self._format

    def remove(self) -> None:
        """Leave all as it was; what others have put before it since then stays, and is passed through."""
        self._is_on = False
        if vars(self._formatter).get("format") is self._ours:
            del self._formatter.format
            if self._formatter.format != self._before:  # another's, that was there before
                self._formatter.format = self._before

    def _format(self, value: Any, include: Any = None, exclude: Any = None) -> Any:
        if self._is_on:
            try:
                if is_shown(value):
                    view = self._render(value, name_of(value, self._shell.user_ns))
                    return view._repr_mimebundle_(include=include, exclude=exclude), {}
            except Exception as error:
                tell("no tree is shown", error)
            self._before_others()
        return self._before(value, include=include, exclude=exclude)


class _Loaded(NamedTuple):
    shell: Any
    display: DefaultDisplay
    magics: Magics
    settings: Any
    treescope: InTreescope
    debugger: InShell


_loaded: list[_Loaded] = []  # one for each shell
_in_marimo: list[MarimoDisplay] = []  # one at most


def load_ipython_extension(shell: Any) -> None:
    """Display trees through treeviz, and add magics; `%load_ext treeviz` calls this.

        %load_ext treeviz
        params                              # displayed as `treeviz.render(params)`
        %tree params["layers"] + [extra]    # any expression as a tree, whatever it is
        %config TreeViz.stats = True        # as `treeviz.render(params, stats=True)`; %config TreeViz lists all
        %%tree_errors                       # explain the errors of a cell; see `treeviz.explain_errors`

    A node of a registered class is displayed, and a dict, list or tuple with an array in it. Bare arrays, containers of
    plain values and objects with a display of their own stay as they are. Where treeviz fails, the display that was
    there before is used, with a line on standard error. Loading twice is the same as once. `%debug` and `breakpoint()`
    print trees, too, and treescope's output says what each pytree holds.
    """
    if any(each.shell is shell for each in _loaded):
        return
    from treeviz.plugin.shown import TreeViz

    settings = TreeViz(parent=shell)
    shell.configurables.append(settings)
    treescope = InTreescope()
    treescope.update()
    # treescope may be imported later
    shell.events.register("pre_run_cell", treescope.update)
    display = DefaultDisplay(
        shell, lambda tree, name: render(tree, name=name, **settings.options()), before_others=treescope.update
    )
    _loaded.append(_Loaded(shell, display, Magics(shell, render), settings, treescope, InShell(shell)))


def unload_ipython_extension(shell: Any) -> None:
    """Leave the shell as it was; `%unload_ext treeviz` calls this."""
    for each in _loaded[:]:
        if each.shell is shell:
            _loaded.remove(each)
            each.display.remove()
            each.magics.remove()
            shell.events.unregister("pre_run_cell", each.treescope.update)
            each.treescope.remove()
            each.debugger.remove()
            if each.settings in shell.configurables:
                shell.configurables.remove(each.settings)


def register_as_default() -> None:
    """Display trees through treeviz from now on, as `%load_ext treeviz` does, in IPython and in marimo.

        tv.register_as_default()
        {"w": jnp.ones((3, 4))}   # a tree in the last line of a cell

    In marimo it changes the display alone.

    Raises:
      RuntimeError: This process is neither IPython nor a notebook of marimo.
    """
    shell = ipython_shell()
    if shell is not None:
        load_ipython_extension(shell)
    elif not is_marimo():
        raise _no_notebook("register_as_default")
    elif not _in_marimo:
        _in_marimo.append(MarimoDisplay(lambda tree, name: render(tree, name=name)))


def unregister() -> None:
    """Display trees as before `register_as_default` or `%load_ext treeviz`.

        tv.register_as_default()
        tv.unregister()

    Raises:
      RuntimeError: This process is neither IPython nor a notebook of marimo.
    """
    shell = ipython_shell()
    if shell is not None:
        unload_ipython_extension(shell)
    elif not is_marimo():
        raise _no_notebook("unregister")
    elif _in_marimo:
        _in_marimo.pop().remove()


def _no_notebook(function: str) -> RuntimeError:
    return RuntimeError(
        f"{function}: there is no IPython here, and no marimo. In a script, treeviz.render(tree).show() opens a page."
    )
