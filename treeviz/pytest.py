"""A pytest plugin: `pytest -p treeviz.pytest` explains which leaves an error of JAX is about."""

from __future__ import annotations

import traceback

import pytest


def pytest_configure() -> None:
    """Keep JAX's frames in tracebacks, marked as hidden, so that the plugin finds the trees in them."""
    from treeviz.explainer.explain import keep_frames

    keep_frames()


def pytest_unconfigure() -> None:
    """Restore JAX's filtering of tracebacks."""
    from treeviz.explainer.explain import restore_filtering

    restore_filtering()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Add the explanation to the report of a test that failed."""
    report = yield
    if call.excinfo is not None and report.failed:
        from treeviz.explainer.explain import add_explanation, fitted

        text = explain_comparison(call.excinfo.value) or add_explanation(call.excinfo.value)
        if text:
            reporter = item.config.pluginmanager.get_plugin("terminalreporter")
            is_shown = reporter is not None and reporter.isatty
            width = item.config.get_terminal_writer().fullwidth if is_shown else None
            report.sections.append(("treeviz", fitted(text, width)))
    return report


def explain_comparison(error: BaseException) -> str:
    """Every difference between the trees that a failed assertion compared; "" for other errors.

    The assertions are `chex.assert_trees_…` and `jax.tree.map` of a `numpy.testing` function, which stop at the first
    leaf. Compares with their tolerance, which reads the values again.
    """
    if not isinstance(error, AssertionError):
        return ""
    trees, options = (), {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module, variables = frame.f_globals.get("__name__", ""), frame.f_locals
        if module.startswith("chex.") and "Assertion assert_trees_" in str(error) and "args" in variables:
            trees, options = tuple(variables["args"]), variables.get("kwargs", {})
        elif module.startswith("jax.") and frame.f_code.co_name == "tree_map" and "rest" in variables:
            trees = (variables["tree"], *variables["rest"])
        elif module.startswith("numpy.testing"):
            options = options or variables
            break
    else:
        trees = trees if "[Chex]" in str(error) else ()
    if len(trees) < 2:
        return ""
    from treeviz.differ import assert_same

    try:
        rtol, atol = (float(options.get(name) or 0) for name in ("rtol", "atol"))
        for other in trees[1:]:
            assert_same(trees[0], other, rtol=rtol, atol=atol)
    except AssertionError as difference:
        return str(difference)
    except Exception:  # trees that cannot be compared: the error of the test is enough
        pass
    return ""
