"""The visual debugger for JAX pytrees."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from treeviz.tree import library_loaders as _library_loaders

if _TYPE_CHECKING:
    from treeviz.analysis.checks.rule import TreeFinding as TreeFinding
    from treeviz.analysis.compare.difference import Difference as Difference
    from treeviz.analysis.user_columns import column as column
    from treeviz.api import TreeOverlay as TreeOverlay
    from treeviz.api import check as check
    from treeviz.api import explore as explore
    from treeviz.api import overlay as overlay
    from treeviz.api import render as render
    from treeviz.api import stackable as stackable
    from treeviz.api import walk as walk
    from treeviz.differ import TreeDiff as TreeDiff
    from treeviz.differ import assert_same as assert_same
    from treeviz.differ import diff as diff
    from treeviz.differ import explain_map as explain_map
    from treeviz.explainer.explain import explain_errors as explain_errors
    from treeviz.inspector.inspector import GradientInspector as GradientInspector
    from treeviz.integrations.optax import inspect_gradients as inspect_gradients
    from treeviz.plugin.extension import load_ipython_extension as load_ipython_extension
    from treeviz.plugin.extension import register_as_default as register_as_default
    from treeviz.plugin.extension import unload_ipython_extension as unload_ipython_extension
    from treeviz.plugin.extension import unregister as unregister
    from treeviz.reader import read as read
    from treeviz.steps.compiles.forecast import forecast as forecast
    from treeviz.steps.compiles.watch import watch_compiles as watch_compiles
    from treeviz.steps.findings.finding import Finding as Finding
    from treeviz.steps.findings.finding import Thresholds as Thresholds
    from treeviz.steps.measure import measure as measure
    from treeviz.steps.statistics import FULL as FULL
    from treeviz.steps.statistics import HISTOGRAM as HISTOGRAM
    from treeviz.steps.statistics import LIGHT as LIGHT
    from treeviz.steps.statistics import StopTraining as StopTraining
    from treeviz.steps.tracing.jitted import tap as tap
    from treeviz.steps.tracing.watch import CannotWatch as CannotWatch
    from treeviz.tree.describers import Description as Description
    from treeviz.tree.describers import describes as describes
    from treeviz.tree.facts import Column as Column
    from treeviz.tree.level import child as child
    from treeviz.tree.table import TreeTable as TreeTable
    from treeviz.views.tree_view import TreeView as TreeView

__version__ = "0.1.0"

# The names in `from treeviz import *`, `dir(treeviz)` and completion. Modules are imported by full name.
__all__ = [
    "FULL",
    "HISTOGRAM",
    "LIGHT",
    "CannotWatch",
    "Column",
    "Description",
    "Difference",
    "Finding",
    "GradientInspector",
    "StopTraining",
    "Thresholds",
    "TreeDiff",
    "TreeFinding",
    "TreeOverlay",
    "TreeTable",
    "TreeView",
    "assert_same",
    "check",
    "child",
    "column",
    "describes",
    "diff",
    "explain_errors",
    "explain_map",
    "explore",
    "forecast",
    "inspect_gradients",
    "measure",
    "overlay",
    "read",
    "register_as_default",
    "render",
    "stackable",
    "tap",
    "unregister",
    "walk",
    "watch_compiles",
]

# Imported at first use: showing a file needs little of it, and no JAX.
_LATER = {
    "TreeFinding": "treeviz.analysis.checks.rule",
    "Difference": "treeviz.analysis.compare.difference",
    "column": "treeviz.analysis.user_columns",
    "check": "treeviz.api",
    "explore": "treeviz.api",
    "overlay": "treeviz.api",
    "render": "treeviz.api",
    "stackable": "treeviz.api",
    "walk": "treeviz.api",
    "TreeDiff": "treeviz.differ",
    "assert_same": "treeviz.differ",
    "diff": "treeviz.differ",
    "explain_map": "treeviz.differ",
    "explain_errors": "treeviz.explainer.explain",
    "GradientInspector": "treeviz.inspector.inspector",
    "inspect_gradients": "treeviz.integrations.optax",
    "TreeOverlay": "treeviz.api",
    "load_ipython_extension": "treeviz.plugin.extension",
    "register_as_default": "treeviz.plugin.extension",
    "unload_ipython_extension": "treeviz.plugin.extension",
    "unregister": "treeviz.plugin.extension",
    "read": "treeviz.reader",
    "forecast": "treeviz.steps.compiles.forecast",
    "watch_compiles": "treeviz.steps.compiles.watch",
    "Finding": "treeviz.steps.findings.finding",
    "Thresholds": "treeviz.steps.findings.finding",
    "measure": "treeviz.steps.measure",
    "FULL": "treeviz.steps.statistics",
    "HISTOGRAM": "treeviz.steps.statistics",
    "LIGHT": "treeviz.steps.statistics",
    "StopTraining": "treeviz.steps.statistics",
    "tap": "treeviz.steps.tracing.jitted",
    "CannotWatch": "treeviz.steps.tracing.watch",
    "Column": "treeviz.tree.facts",
    "Description": "treeviz.tree.describers",
    "describes": "treeviz.tree.describers",
    "child": "treeviz.tree.level",
    "TreeTable": "treeviz.tree.table",
    "TreeView": "treeviz.views.tree_view",
}


def _load_libraries() -> None:
    from treeviz.integrations import load

    load()


_library_loaders.append(_load_libraries)


def __getattr__(name: str):
    if name not in _LATER:
        raise AttributeError(f"module 'treeviz' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
