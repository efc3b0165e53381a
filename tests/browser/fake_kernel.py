"""Explorers in a page without a notebook: real widgets in this process, the real module in the page, a post between."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from browser.conftest import TIMEOUT_MS
from browser.driving import settled

from treeviz.views.html.bundle import widget_module_text

PAGE = """<!DOCTYPE html><html lang="en"><meta name="color-scheme" content="light dark"><title>explorers</title>
<main><h1>Explorers</h1><div id="a"></div><div id="b"></div></main></html>"""
SCRIPT = Path(__file__).with_name("fake_model.js").read_text("utf-8")
# Tests ask of the views what other modules will ask.
MODULE = widget_module_text() + "additions.push({ name: 'test', start: (view) => fake.views.push(view) });"


class FakeKernel:
    """Carries what a page's models and widgets say to each other. While nobody delivers the kernel is busy."""

    def __init__(self, page: Any, *widgets: Any) -> None:
        self.page = page
        self.widgets = widgets
        self.sent: list[list[dict]] = [[] for _ in widgets]  # by the page
        self._boxes: list[list] = [[] for _ in widgets]
        for widget, box in zip(widgets, self._boxes, strict=True):
            widget._send = lambda message, buffers=None, box=box: box.append((message, buffers or []))
        page.evaluate(SCRIPT)
        states = [_as_sent(widget.get_state()) for widget in widgets]
        page.evaluate("([esm, states]) => fake.start(esm, states)", [MODULE, states])

    def show(self, model: int = 0, place: str = "a") -> None:
        self.page.evaluate("([model, place]) => fake.show(model, place)", [model, place])
        self.page.wait_for_function("place => document.querySelector(`#${place} .treeviz`).shadowRoot", arg=place)
        self.rest()

    def deliver(self) -> bool:
        """Whether there was anything to deliver."""
        was_any = False
        for i, widget in enumerate(self.widgets):
            for message in self.page.evaluate("model => fake.drain(model)", i):
                was_any = True
                self.sent[i].append(message)
                widget._handle_msg({"content": {"data": message}, "buffers": []})
            box, self._boxes[i][:] = self._boxes[i][:], []
            for message, buffers in box:
                was_any = True
                self._to_page(i, message, [bytes(buffer) for buffer in buffers])
        return was_any

    def _to_page(self, model: int, message: dict, buffers: list[bytes]) -> None:
        if message["method"] == "update":
            binary = {path[0]: data for path, data in zip(message.get("buffer_paths", []), buffers, strict=True)}
            self.page.evaluate(
                "([model, state]) => fake.take(model, state)", [model, _as_sent(message["state"] | binary)]
            )
        elif message["method"] == "custom":
            parts = [b64encode(data).decode() for data in buffers]
            message_parts = [model, message["content"], parts]
            self.page.evaluate("([model, content, parts]) => fake.send(model, content, parts)", message_parts)

    def until(self, condition: Callable[[], Any]) -> None:
        """Deliver until something holds."""
        end = time.monotonic() + TIMEOUT_MS / 1000
        while not condition():
            assert time.monotonic() < end, "it did not come to that"
            self.rest()

    def rest(self) -> None:
        """Deliver until nobody has anything more to say."""
        for _ in range(50):
            settled(self.page)
            if not self.deliver():
                return
        raise AssertionError("they go on and on")


def _as_sent(state: dict) -> dict:
    kept = {name: value for name, value in state.items() if name not in ("layout", "_esm")}
    binary = {name: b64encode(value).decode() for name, value in kept.items() if isinstance(value, bytes | memoryview)}
    return {"plain": {name: value for name, value in kept.items() if name not in binary}, "binary": binary}
