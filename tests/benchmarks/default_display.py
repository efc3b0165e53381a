"""What the default display costs in a cell: CPU time as a share of 50 ms, the most that one display may take.

    python tests/benchmarks/default_display.py

Trees below 1,000 leaves, in a notebook, where a page is made, and in a terminal, where it is text; and values that are
no trees, beside what IPython takes for them alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from shells import ipython

import treeviz

MOST_S = 0.050
TREES = {
    "999 arrays in a dict": {f"layer_{i}": np.ones(3) for i in range(999)},
    "333 layers of a list": [{"w": jnp.ones((3, 4)), "b": jnp.zeros(4), "n": i} for i in range(333)],
    "3 levels, 990 different shapes": {
        f"block_{i}": {f"layer_{j}": [np.ones(10 * i + j), jnp.ones(3), "x"] for j in range(11)} for i in range(30)
    },
}
OTHERS = {
    "an array": jnp.ones(3),
    "a dict of 990 numbers": {f"key {i}": i for i in range(990)},
    "a list of 100,000 numbers": list(range(100_000)),
}


def cpu_s(call: Callable[[], object], n: int = 9) -> float:
    """The least CPU time of some calls, after one that warms up."""
    call()
    times = []
    for _ in range(n):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    print(f"jax {jax.__version__}; the share of {1000 * MOST_S:.0f} ms that a display takes")
    with ipython() as shell:
        for where, types in (("notebook", ["text/plain", "text/html"]), ("terminal", ["text/plain"])):
            shell.display_formatter.active_types = types
            formatted = shell.display_formatter.format
            alone = {name: cpu_s(lambda value=value: formatted(value)) for name, value in OTHERS.items()}
            treeviz.register_as_default()
            for name, tree in TREES.items():
                share = cpu_s(lambda tree=tree: shell.display_formatter.format(tree)) / MOST_S
                print(f"{where}: {name}: {share:.0%}")
            for name, value in OTHERS.items():
                more = cpu_s(lambda value=value: shell.display_formatter.format(value)) - alone[name]
                print(f"{where}: {name}: {more / MOST_S:+.1%} of it beside IPython alone")
            treeviz.unregister()


if __name__ == "__main__":
    main()
