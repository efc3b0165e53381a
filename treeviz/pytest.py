"""A plugin of pytest: `pytest -p treeviz.pytest` says of an error of JAX which leaves it is about."""

from __future__ import annotations

import traceback

import pytest

_before: list[str | None] = []


def pytest_configure() -> None:
    """Keep JAX's frames in tracebacks, marked as hidden, so that the trees can be found in them."""
    from treeviz.explainer.explain import keep_frames

    _before.append(keep_frames())


def pytest_unconfigure() -> None:
    """Set JAX's filtering as it was."""
    from treeviz.explainer.explain import set_filtering

    if _before:
        set_filtering(_before.pop())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Add the explanation to the report of a test that failed."""
    report = yield
    if call.excinfo is not None and report.failed:
        from treeviz.explainer.explain import add_explanation

        text = explain_comparison(call.excinfo.value) or add_explanation(call.excinfo.value)
        if text:
            report.sections.append(("treeviz", _in_terminal(text, item.config)))
    return report


def _in_terminal(text: str, config: pytest.Config) -> str:
    """An explanation in the width of pytest's own lines, if it writes to a terminal."""
    from treeviz.explainer.explain import fitted

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    is_shown = reporter is not None and reporter.isatty
    return fitted(text, config.get_terminal_writer().fullwidth if is_shown else None)


def explain_comparison(error: BaseException) -> str:
    """Every difference of the trees that a failed assertion compared; "" if it is none of those below.

    `chex.assert_trees_…`, and `jax.tree.map` of a function of `numpy.testing`, which stop at the first leaf. Compares
    with their tolerance, and reads the values once more.
    """
    if not isinstance(error, AssertionError):
        return ""
    trees, how = (), {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module, found = frame.f_globals.get("__name__", ""), frame.f_locals
        if module.startswith("chex.") and "Assertion assert_trees_" in str(error) and "args" in found:
            trees, how = tuple(found["args"]), found.get("kwargs", {})
        elif module.startswith("jax.") and frame.f_code.co_name == "tree_map" and "rest" in found:
            trees = (found["tree"], *found["rest"])
        elif module.startswith("numpy.testing"):
            how = how or found
            break
    else:
        trees = trees if "[Chex]" in str(error) else ()
    if len(trees) < 2:
        return ""
    from treeviz.differ import assert_same

    try:
        rtol, atol = (float(how.get(name) or 0) for name in ("rtol", "atol"))
        for other in trees[1:]:
            assert_same(trees[0], other, rtol=rtol, atol=atol)
    except AssertionError as difference:
        return str(difference)
    except Exception:  # of trees that cannot be compared, the error of the test says enough
        pass
    return ""
