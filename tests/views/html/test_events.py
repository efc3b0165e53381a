"""The map of events at the top of mount.js is the truth: who sends each event, and who listens to it."""

from __future__ import annotations

import re

from treeviz.views.html import bundle

MODULES = {
    path.relative_to(bundle._ASSETS).as_posix(): path.read_text("utf-8") for path in bundle._ASSETS.rglob("*.js")
}
CELLS = [
    [cell.strip() for cell in line.removeprefix("//").split("|")]
    for line in MODULES["tree/mount.js"].splitlines()
    if line.startswith("//   ")
]
MAP = {event: (set(senders.split(", ")), set(listeners.split(", "))) for event, _, senders, listeners in CELLS[1:]}


def modules_with(call: str) -> dict[str, set[str]]:
    """For each event, the modules that call `view.emit("…")`, or whatever `call` says."""
    found: dict[str, set[str]] = {}
    for name, text in MODULES.items():
        for event in re.findall(rf'(?:view|this)\.{call}\("(\w+)"', text):
            found.setdefault(event, set()).add(name)
    return found


def test_the_map_names_who_sends_each_event():
    assert modules_with("emit") == {event: senders for event, (senders, _) in MAP.items()}


def test_the_map_names_who_listens_to_each_event():
    assert modules_with("on") == {event: listeners for event, (_, listeners) in MAP.items()}
