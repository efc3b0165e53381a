"""The visual debugger for JAX pytrees."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from treeviz.analysis.leaf_functions import column as column
from treeviz.api import explore as explore
from treeviz.api import load_ipython_extension as load_ipython_extension
from treeviz.api import render as render
from treeviz.api import unload_ipython_extension as unload_ipython_extension
from treeviz.api import walk as walk
from treeviz.tree.column import Column as Column
from treeviz.tree.level import child as child
from treeviz.tree.looks import Look as Look
from treeviz.tree.looks import describes as describes
from treeviz.tree.table import TreeTable as TreeTable
from treeviz.views.tree_view import TreeView as TreeView

if _TYPE_CHECKING:
    from treeviz.analysis.gradients import FULL as FULL
    from treeviz.analysis.gradients import HISTOGRAM as HISTOGRAM
    from treeviz.analysis.gradients import LIGHT as LIGHT
    from treeviz.analysis.gradients import measure as measure
    from treeviz.inspector import GradientInspector as GradientInspector
    from treeviz.integrations.optax_inspect import inspect_gradients as inspect_gradients
    from treeviz.watching import CannotWatch as CannotWatch
    from treeviz.watching import StopTraining as StopTraining
    from treeviz.watching import tap as tap

__version__ = "0.1.0"

# Imported when they are asked for, so that `import treeviz` stays quick for those who only look at trees.
_LATER = {
    "FULL": "treeviz.analysis.gradients",
    "HISTOGRAM": "treeviz.analysis.gradients",
    "LIGHT": "treeviz.analysis.gradients",
    "measure": "treeviz.analysis.gradients",
    "GradientInspector": "treeviz.inspector",
    "inspect_gradients": "treeviz.integrations.optax_inspect",
    "CannotWatch": "treeviz.watching",
    "StopTraining": "treeviz.watching",
    "tap": "treeviz.watching",
}


def __getattr__(name: str):
    if name not in _LATER:
        raise AttributeError(f"module 'treeviz' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
