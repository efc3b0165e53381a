"""A loop that is followed: a panel is shown when it begins, and is whole when it ends, however it ends."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from treeviz.analysis.recorder import Recorder, StopTraining
from treeviz.live_panel import LivePanel
from treeviz.views.notebook import shell_of_notebook

if TYPE_CHECKING:
    from treeviz.inspector import GradientInspector
    from treeviz.views.widget import TreeWidget


class Live:
    """What `inspector.live()` gives: around a loop it shows the panel, and after it the whole picture."""

    def __init__(self, inspector: GradientInspector, recorder: Recorder, total: int | None) -> None:
        self._inspector, self._recorder, self._total = inspector, recorder, total
        self._panel: LivePanel | None = None

    def __enter__(self) -> TreeWidget | None:
        """The widget; None where there is no notebook."""
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
                with contextlib.suppress(Exception):
                    self._recorder.flush()
        finally:
            if panel is not None:
                with contextlib.suppress(StopTraining):  # it was heard of
                    panel.settle("done" if kind is None else "stopped", "" if kind is None else kind.__name__)
                panel.detach()
