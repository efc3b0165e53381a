"""A plugin of pytest: `pytest -p treeviz.pytest` says of an error of JAX which leaves it is about."""

from __future__ import annotations

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

        text = add_explanation(call.excinfo.value)
        if text:
            report.sections.append(("treeviz", text))
    return report
