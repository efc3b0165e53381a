"""Runs that are followed, without a device and without waiting: time passes when a test says so."""

from __future__ import annotations

import numpy as np

import treeviz as tv
from treeviz.inspector.panel import LivePanel
from treeviz.steps.measure import MeasuredTree
from treeviz.steps.recording.history import ScalarRow

PATHS = tuple(f"['layers'][{i}]['{name}']" for i in range(4) for name in ("b", "w"))
SOURCE = MeasuredTree(
    "grads", PATHS, (100,) * len(PATHS), ("float32",) * len(PATHS), (True,) * len(PATHS), ("10,10",) * len(PATHS)
)


class Clock:
    """Seconds that pass on demand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Run:
    """An inspector, a panel that follows it, and what was appended.

    Args:
      cost_s: What each telling costs, as the panel measures it.

    Attributes:
      scalars: What else is recorded in each step: 1, the first norm, its square, and so on.
    """

    def __init__(self, *, total: int | None = None, cost_s: float = 0.0, **options) -> None:
        self.clock, self._cpu = Clock(), Clock()
        self.cost_s = cost_s
        self.inspector = tv.GradientInspector(name="net", **options)
        self.recorder = self.inspector._recorder
        self.norms: list[np.ndarray] = []
        self.bad: list[np.ndarray] = []
        self.scalars: tuple[str, ...] = ()
        self.panel = LivePanel(self.inspector, self.recorder, total=total, clock=self.clock, cpu_clock=self._pay)
        self.panel._ticker.stop()  # a test says when
        self.widget = self.panel.begin()
        self.sent: list[tuple[dict, list[bytes]]] = []
        self._rng = np.random.default_rng(3)

    def _pay(self) -> float:
        """Asked before and after each telling."""
        self._cpu.now += self.cost_s
        return self._cpu()

    def listen(self) -> None:
        """Keep the messages of the widget in place of sending them."""
        self.widget.send_message = lambda message, buffers=(): self.sent.append((message, list(buffers)))  # type: ignore[method-assign]

    def step(self, n: int = 1, *, every_s: float = 0.01, bad: int | None = None) -> None:
        """Measure so many steps, one after the other, each read at once."""
        history = self.recorder.history
        history.add_sources([SOURCE], 64_000_000)
        for _ in range(n):
            self.clock.now += every_s
            norm = 10.0 ** self._rng.uniform(-3, 1, len(PATHS))
            nonfinite = np.zeros(len(PATHS), np.int64)
            if bad is not None:
                nonfinite[bad] = 2
            history.append(len(self.norms), {"grads": {"norm": norm, "max_abs": norm / 10, "nonfinite": nonfinite}})
            if self.scalars:
                powers = [norm[:1] ** i for i in range(len(self.scalars))]
                history.append_scalars([ScalarRow(len(self.norms), dict(zip(self.scalars, powers, strict=True)), None)])
            self.norms.append(norm)
            self.bad.append(nonfinite > 0)
            for listener in self.recorder.listeners:
                listener.arrived()
                listener.was_read()

    def columns(self) -> list[dict[str, np.ndarray]]:
        """The columns of each message."""
        return [read_columns(message["n"], buffers) for message, buffers in self.sent if message["n"]]


def read_columns(n: int, buffers: list[bytes]) -> dict[str, np.ndarray]:
    first, until, count = (np.frombuffer(part, "<f8") for part in buffers[:3])
    bits = np.frombuffer(buffers[3], np.uint8).reshape(n, -1)
    bad = np.unpackbits(bits, axis=1, bitorder="little")[:, : len(PATHS)].astype(bool)
    norms = [np.frombuffer(part, "<f4").reshape(n, len(PATHS)) for part in buffers[4:]]
    latest, low, high = norms if len(norms) == 3 else norms * 3
    return {"first": first, "until": until, "n": count, "bad": bad, "latest": latest, "low": low, "high": high}
