"""A plugin of pytest: `pytest -p treeviz.pytest` says of an error of JAX which leaves it is about."""

from __future__ import annotations

import sys

import pytest

_before: list[object] = []


def pytest_configure() -> None:
    """Keep JAX's frames in tracebacks, marked as hidden, so that the trees can be found in them."""
    import jax

    _before.append(getattr(jax.config, "jax_traceback_filtering"))  # noqa: B009  # its type does not know it
    jax.config.update("jax_traceback_filtering", "tracebackhide")


def pytest_unconfigure() -> None:
    """Set JAX's filtering as it was."""
    if _before and "jax" in sys.modules:
        import jax

        jax.config.update("jax_traceback_filtering", _before.pop())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Add the explanation to the report of a test that failed."""
    report = yield
    if call.excinfo is not None and report.failed:
        from treeviz.explainer.explain import add_explanation

        text = add_explanation(call.excinfo.value)
        if text:
            report.sections.append(("treeviz", text))
    return report
