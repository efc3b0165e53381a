"""Follow a loop: show a widget when it begins, and complete the widget however it ends."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from treeviz.inspector.backend import Inspector
from treeviz.inspector.panel import LivePanel
from treeviz.inspector.progress import checked_total
from treeviz.steps.recording.recorder import Recorder
from treeviz.steps.stop import StopTraining
from treeviz.views.notebook import shell_of_notebook

if TYPE_CHECKING:
    from treeviz.views.widget.widget import TreeWidget


class Live:
    """The context manager that `inspector.live()` returns."""

    def __init__(self, inspector: Inspector, recorder: Recorder, total: int | None) -> None:
        self._inspector, self._recorder, self._total = inspector, recorder, checked_total(total)
        self._panel: LivePanel | None = None

    def __enter__(self) -> TreeWidget | None:
        """The widget, displayed. None outside a notebook."""
        if shell_of_notebook() is None:
            return None
        self._panel = LivePanel(self._inspector, self._recorder, total=self._total)
        widget = self._panel.begin()
        widget._ipython_display_()
        return widget

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        panel, self._panel = self._panel, None
        try:
            if kind is None:
                self._recorder.flush()
            else:
                with contextlib.suppress(Exception):  # the error of the loop is the one to report
                    self._recorder.flush()
        finally:
            if panel is not None:
                with contextlib.suppress(StopTraining):  # `flush` has raised it already
                    panel.finish("done" if kind is None else "stopped", "" if kind is None else kind.__name__)
                panel.detach()
