"""The visual debugger for JAX pytrees."""

from importlib import import_module as _import_module
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
    from treeviz.steps.cost import StepCost as StepCost
    from treeviz.steps.cost import cost as cost
    from treeviz.steps.findings.finding import Finding as Finding
    from treeviz.steps.findings.finding import Thresholds as Thresholds
    from treeviz.steps.measure import measure as measure
    from treeviz.steps.statistics import FULL as FULL
    from treeviz.steps.statistics import HISTOGRAM as HISTOGRAM
    from treeviz.steps.statistics import LIGHT as LIGHT
    from treeviz.steps.statistics import StopTraining as StopTraining
    from treeviz.steps.tracing.jitted import tap as tap
    from treeviz.steps.tracing.watch import CannotWatch as CannotWatch
    from treeviz.steps.trained import trained as trained
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
    "StepCost",
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
    "cost",
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
    "trained",
    "unregister",
    "walk",
    "watch_compiles",
]

# Imported at first use: showing a file needs little of it, and no JAX.
_LATER = {
    "analysis.checks.rule": ("TreeFinding",),
    "analysis.compare.difference": ("Difference",),
    "analysis.user_columns": ("column",),
    "api": ("TreeOverlay", "check", "explore", "overlay", "render", "stackable", "walk"),
    "differ": ("TreeDiff", "assert_same", "diff", "explain_map"),
    "explainer.explain": ("explain_errors",),
    "inspector.inspector": ("GradientInspector",),
    "integrations.optax": ("inspect_gradients",),
    "plugin.extension": ("load_ipython_extension", "register_as_default", "unload_ipython_extension", "unregister"),
    "reader": ("read",),
    "steps.compiles.forecast": ("forecast",),
    "steps.compiles.watch": ("watch_compiles",),
    "steps.cost": ("StepCost", "cost"),
    "steps.findings.finding": ("Finding", "Thresholds"),
    "steps.measure": ("measure",),
    "steps.statistics": ("FULL", "HISTOGRAM", "LIGHT", "StopTraining"),
    "steps.tracing.jitted": ("tap",),
    "steps.tracing.watch": ("CannotWatch",),
    "steps.trained": ("trained",),
    "tree.describers": ("Description", "describes"),
    "tree.facts": ("Column",),
    "tree.level": ("child",),
    "tree.table": ("TreeTable",),
    "views.tree_view": ("TreeView",),
}


_library_loaders.append(lambda: _import_module("treeviz.integrations").load())


def __getattr__(name: str):
    for module, names in _LATER.items():
        if name in names:
            value = globals()[name] = getattr(_import_module(f"treeviz.{module}"), name)
            return value
    raise AttributeError(f"module 'treeviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
