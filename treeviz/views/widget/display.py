"""Display a widget, and a fallback page for hosts where it does not appear."""

from __future__ import annotations

from typing import Any

from treeviz.views.notebook import outputs_share_a_page, publish, shell_of_notebook, shows_html
from treeviz.views.widget.messages import PageWidget


class DisplayedWidget(PageWidget):
    """A widget that displays itself in notebooks and terminals."""

    _token: Any  # a trait: the fallback page finds its widget by it
    _is_displayed = False
    _fallback_is_old = False

    def _repr_mimebundle_(self, include=None, exclude=None, **kwargs) -> Any:
        if self._backend is None:
            return {"text/plain": repr(self)}, {}
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        static = {} if not shows_html() else {"text/html": self._backend.view._repr_html_}
        static["text/plain"] = self._text
        data = {kind: part for kind, part in data.items() if kind not in static}
        wanted = [kind for kind in (*data, *static) if (not include or kind in include) and kind not in (exclude or ())]
        return {kind: static[kind]() if kind in static else data[kind] for kind in wanted}, metadata

    def _ipython_display_(self) -> None:
        """Publish the widget, and as a second output its fallback page, which a later update can replace."""
        if shell_of_notebook() is None or self._backend is None or not outputs_share_a_page():
            publish(*self._repr_mimebundle_())
            return
        data, metadata = self._repr_mimebundle_(exclude={"text/html", "text/plain"})
        # Empty HTML, so that a host without widgets shows the second output only.
        publish({**data, "text/html": "", "text/plain": repr(self)}, metadata)
        publish(self._fallback(), {}, display_id=self._token)
        self._is_displayed = True

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """Its view: no widget comes alive in treescope's page."""
        if self._backend is None:
            return NotImplemented
        return self._backend.view.__treescope_repr__(path, subtree_renderer)

    def renew_page(self) -> None:
        """Update the fallback page in the notebook to the widget's tree."""
        if self._is_displayed and self._backend is not None and shell_of_notebook() is not None:
            publish(self._fallback(), {}, display_id=self._token, update=True)
        self._fallback_is_old = False

    def _renew_page_after_cell(self) -> None:
        """The same once, after the cell has run."""
        shell = shell_of_notebook()
        if shell is None or not self._is_displayed or self._fallback_is_old:
            return
        self._fallback_is_old = True

        def renew() -> None:
            shell.events.unregister("post_execute", renew)
            if self._fallback_is_old:
                self.renew_page()

        shell.events.register("post_execute", renew)

    def _fallback(self) -> dict[str, str]:
        return {"text/html": self._open_backend.view.fallback(self._token), "text/plain": self._text()}

    def _text(self) -> str:
        return self._open_backend.view._repr_mimebundle_(include={"text/plain"})["text/plain"]

    def __repr__(self) -> str:
        return "explore: closed" if self._backend is None else f"explore: {self._backend.view.title}"
