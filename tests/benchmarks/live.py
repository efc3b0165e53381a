"""What the live panel costs a loop: its time by that of the same loop without it, both in one run.

    python tests/benchmarks/live.py

Steps take 10 ms; of each leaf the norm is recorded. The panel's own part is also measured by the CPU time of what it
does, which other programs do not change.
"""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp

import treeviz as tv
from treeviz.inspector.panel import LiveBackend, LivePanel

STEP_S = 0.01
N_STEPS = 300


def loop(n_leaves: int, *, with_panel: bool, n_steps: int = N_STEPS, step_s: float = STEP_S) -> tuple[float, float]:
    """Seconds for the loop, and how many of them the panel took of its thread's CPU time."""
    inspector = tv.GradientInspector()
    params = {f"layer{i}": jnp.full((4,), 1.0 + i) for i in range(n_leaves)}
    step = jax.jit(lambda scale: tv.measure(grads=jax.tree.map(lambda leaf: leaf * scale, params)))
    jax.block_until_ready(step(1.0))
    widget = inspector.explore(total=n_steps) if with_panel else None
    spent = [0.0]
    if widget is not None:
        backend = widget._backend
        assert isinstance(backend, LiveBackend)
        panel = backend.panel
        assert isinstance(panel, LivePanel)
        send_updates = panel.send_updates

        def timed() -> None:
            before = time.thread_time()
            send_updates()
            spent[0] += time.thread_time() - before

        setattr(panel, "send_updates", timed)  # noqa: B010
    began = time.perf_counter()
    for i in range(n_steps):
        until = time.perf_counter() + step_s
        inspector.record(step(float(i)))
        while time.perf_counter() < until:
            pass
    took = time.perf_counter() - began
    if widget is not None:
        widget.close()
    return took, spent[0]


def ratios(n_leaves: int, n_rounds: int = 3) -> dict[str, float]:
    """ "loop": its time with a panel by that without; "share": the panel's CPU time by the loop's time."""
    pairs, shares = [], []
    for _ in range(n_rounds):
        without, _ = loop(n_leaves, with_panel=False)
        took, spent = loop(n_leaves, with_panel=True)
        pairs.append(took / without)
        shares.append(spent / took)
    return {"loop": statistics.median(pairs), "share": statistics.median(shares)}


def main() -> None:
    for n_leaves in (100, 1000):
        found = ratios(n_leaves)
        print(
            f"{n_leaves:>6,} leaves, steps of {1000 * STEP_S:.0f} ms: the loop takes {found['loop']:.3f} of its time "
            f"without a panel; the panel's part is {100 * found['share']:.2f} % (goal: 2 %)"
        )


if __name__ == "__main__":
    main()
