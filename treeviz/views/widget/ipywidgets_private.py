"""The private names of ipywidgets that the widget overrides or uses, and what is lost without them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anywidget
import ipywidgets

from treeviz.tree.private_names import PrivateName, warn_of_missing

_MIXED_UP = "what two threads set in a widget at the same time may be lost"
PRIVATE = (
    *(PrivateName(f"ipywidgets:Widget.{n}", _MIXED_UP) for n in ("_property_lock", "_holding_sync", "_states_to_send")),
    PrivateName("ipywidgets:Widget._handle_msg", "messages of the page are not checked before ipywidgets reads them"),
    PrivateName("ipywidgets:Widget._msg_callbacks", "a closed widget keeps its callback for messages"),
)


class _State(threading.local):
    """The state of ipywidgets while it receives or sends a change, one for each thread."""

    def __init__(self) -> None:
        self.from_the_page: dict[str, Any] = {}
        self.is_holding = False
        self.to_send: set[str] = set()


class ThreadSafeWidget(anywidget.AnyWidget, ipywidgets.ValueWidget):
    """A widget whose traits several threads may set, such as a training loop and the handler of page messages.

    ipywidgets 8 stores in attributes of the widget which values came from the page and which are delayed. If threads
    shared them, a change by one would be sent late or never. In a release without these names the properties are
    unused, and the widget is as safe as any other of ipywidgets.
    """

    def __init__(self, **traits: Any) -> None:
        warn_of_missing(PRIVATE)
        self._of_thread = _State()
        super().__init__(**traits)

    @property
    def _property_lock(self) -> dict[str, Any]:
        return self._of_thread.from_the_page

    @_property_lock.setter
    def _property_lock(self, properties: dict[str, Any]) -> None:
        self._of_thread.from_the_page = properties

    @property
    def _holding_sync(self) -> bool:
        return self._of_thread.is_holding

    @_holding_sync.setter
    def _holding_sync(self, is_holding: bool) -> None:
        self._of_thread.is_holding = is_holding

    @property
    def _states_to_send(self) -> set[str]:
        return self._of_thread.to_send

    @contextmanager
    def hold_trait_notifications(self) -> Iterator[None]:
        """Do not hold notifications: traitlets would hold those of all threads, and lose what another thread sets.

        `set_state` of ipywidgets enters this context.
        """
        yield

    def notify_change(self, change: Any) -> None:
        """Send a change and what follows from it in one message; a partial one would be echoed back and overwrite
        newer state.
        """
        with self.hold_sync():
            super().notify_change(change)

    def set_what_follows(self, name: str, value: Any) -> None:
        """Set a trait to what follows from another. A page that has set that one is not told: it knows, and may have
        moved on.
        """
        if self._of_thread.from_the_page:
            self._of_thread.from_the_page.setdefault(name, value)
        self.set_trait(name, value)

    def close(self) -> None:
        """Close the comm, and release all callbacks. A closed widget can still be displayed, as text."""
        layout = self.layout
        super().close()
        vars(self).pop("_repr_mimebundle_", None)  # ipywidgets 8 sets it to None
        layout.close()
        self.unobserve_all()
        callbacks = getattr(self, "_msg_callbacks", None)
        if callbacks is not None:
            callbacks.callbacks.clear()

    def _handle_msg(self, msg: Any) -> None:
        """Called with every message of the comm."""
        if self._is_valid(msg):
            super()._handle_msg(msg)

    def _is_valid(self, message: Any) -> bool:
        """Whether ipywidgets may read a message."""
        raise NotImplementedError
