"""Explorers in a page without a notebook: real widgets in this process, the real module in the page, a post between."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from browser.conftest import TIMEOUT_MS

SCRIPT = Path(__file__).with_name("fake_model.js").read_text("utf-8")


class FakeKernel:
    """Carries what a page's models and widgets say to each other. Without `deliver` the kernel is busy."""

    def __init__(self, page: Any, *widgets: Any) -> None:
        self.page = page
        self.widgets = widgets
        self.sent: list[list[dict]] = [[] for _ in widgets]  # by the page
        self._boxes: list[list] = [[] for _ in widgets]
        for widget, box in zip(widgets, self._boxes, strict=True):
            widget._send = lambda message, buffers=None, box=box: box.append((message, buffers or []))
        states = [self._split(widget.get_state()) for widget in widgets]
        page.evaluate(SCRIPT)
        page.evaluate("([esm, states]) => fake.start(esm, states)", [widgets[0]._esm, states])

    def show(self, model: int = 0, place: str = "a") -> None:
        self.page.evaluate("([model, place]) => { fake.show(model, place); }", [model, place])

    @staticmethod
    def _split(state: dict) -> dict:
        kept = {name: value for name, value in state.items() if name != "layout" and name != "_esm"}
        binary = {name: b64encode(value).decode() for name, value in kept.items() if isinstance(value, bytes | memoryview)}
        return {"plain": {name: value for name, value in kept.items() if name not in binary}, "binary": binary}

    def deliver(self) -> bool:
        """Whether there was anything."""
        was_any = False
        for i, widget in enumerate(self.widgets):
            for message in self.page.evaluate("model => fake.drain(model)", i):
                was_any = True
                self.sent[i].append(message)
                if "state" in message:
                    widget.set_state(message["state"])
                else:
                    widget._handle_custom_msg(message["content"], [])
            for message, buffers in self._take(i):
                was_any = True
                if message["method"] == "update":
                    state = dict(message["state"])
                    for path, buffer in zip(message.get("buffer_paths", []), buffers, strict=True):
                        state[path[0]] = bytes(buffer)
                    self.page.evaluate("([model, state]) => fake.take(model, state)", [i, self._split(state)])
                elif message["method"] == "custom":
                    parts = [b64encode(part).decode() for part in buffers]
                    self.page.evaluate("([model, content, parts]) => fake.tell(model, content, parts)", [i, message["content"], parts])
        return was_any

    def _take(self, i: int) -> list:
        box = self._boxes[i][:]
        self._boxes[i].clear()
        return box

    def until(self, condition: Callable[[], Any]) -> None:
        """Deliver until something holds."""
        end = time.monotonic() + TIMEOUT_MS / 1000
        while not condition():
            assert time.monotonic() < end, "it did not come to that"
            if not self.deliver():
                self.page.evaluate("() => new Promise(requestAnimationFrame)")

    def rest(self) -> None:
        """Deliver until nobody has anything more to say."""
        for _ in range(50):
            self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(done))))")
            if not self.deliver():
                return
        raise AssertionError("they go on and on")
