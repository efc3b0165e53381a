"""`%load_ext treeviz`, and the same from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from treeviz.api import render
from treeviz.plugin.in_marimo import MarimoDisplay, is_marimo
from treeviz.plugin.in_treescope import InTreescope
from treeviz.plugin.shown import Magics, Wrapper, is_shown, name_of, print_failure
from treeviz.plugin.trees_in_pdb import InShell
from treeviz.tree.runtime import ipython_shell

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
    _loaded.append(_Loaded(shell, display, Magics(shell, render), settings, treescope, InShell(shell)))
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
    """The shell of IPython; None in marimo."""
    shell = ipython_shell()
    if shell is None and not is_marimo():
        nowhere = "there is no IPython here, and no marimo"
        raise RuntimeError(f"{function}: {nowhere}. In a script, treeviz.render(tree).show() opens a page.")
    return shell
