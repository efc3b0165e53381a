"""A history of a long run, held to its bounds: python tests/benchmarks/history.py [--steps 1000000] [--leaves 1000]

The light statistics of every leaf are appended step by step, as an inspector appends what it has read. Printed are what
one append costs as a multiple of copying its numbers, the last tenth of the run beside the first, the memory that the
process took, and whether a spike and a NaN in the middle of the run are still where they were. A minute on one core.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator

import numpy as np

from treeviz.steps.findings.find import findings
from treeviz.steps.measure import MeasuredTree
from treeviz.steps.recording.history import History

MAX_BYTES = 64_000_000  # the default of an inspector
SPIKE = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--leaves", type=int, default=1000)
    arguments = parser.parse_args()
    n_steps, n_leaves = arguments.steps, arguments.leaves
    paths = tuple(f"['layers'][{i}]" for i in range(n_leaves))
    source = MeasuredTree("grads", paths, (4096,) * n_leaves, ("float32",) * n_leaves, (True,) * n_leaves)
    history, before = History([source], MAX_BYTES), _peak_bytes()
    tenths = list(_tenths(history, n_steps, n_leaves))
    held = _peak_bytes() - before
    copied = _copying(n_leaves)
    found_s = _cpu_s(lambda: findings(history))

    middle, norms = n_steps // 2, history.values("grads", "norm", 3)
    at = int(np.argmax(norms.high))
    bad = history.values("grads", "nonfinite", 5)
    bad_at = np.flatnonzero(bad.high)
    is_kept = norms.high[at] == SPIKE and norms.first[at] <= middle <= norms.until[at]
    is_kept &= len(bad_at) == 1 and bool(bad.first[bad_at[0]] <= middle <= bad.until[bad_at[0]])
    is_whole = norms.n.sum() == n_steps == bad.n.sum()
    print(f"{n_steps:,} steps of {n_leaves:,} leaves, {len(norms.n):,} entries of each norm, numpy {np.__version__}")
    each = sum(tenths) / n_steps
    _report("memory, as a part of the 64 MB", held / MAX_BYTES, 1.0)
    _report("the last tenth's appends by the first's", tenths[-1] / tenths[0], 1.2)
    _report("an append by copying its numbers", each / copied, 20.0)
    _report("all findings by a thousand appends", found_s / (1000 * each), 50.0)
    print(f"  every step is counted: {is_whole}; spike and NaN are still at their step: {is_kept}")


def _tenths(history: History, n_steps: int, n_leaves: int) -> Iterator[float]:
    """The CPU time of each tenth of the run."""
    norms = np.random.default_rng(0).lognormal(size=(64, n_leaves))
    rows = [{"norm": row, "max_abs": row / 9, "nonfinite": np.zeros(n_leaves, np.int64)} for row in norms]
    planted = {name: values.copy() for name, values in rows[0].items()}
    planted["norm"][3], planted["nonfinite"][5] = SPIKE, 1
    for tenth in range(10):
        start = time.process_time()
        for step in range(tenth * n_steps // 10, (tenth + 1) * n_steps // 10):
            history.append(step, {"grads": planted if step == n_steps // 2 else rows[step % 64]})
        yield time.process_time() - start


def _copying(n_leaves: int) -> float:
    """The seconds that it takes to copy as many numbers as an append is given."""
    numbers, place = np.ones((3, n_leaves)), np.empty((3, n_leaves))

    def copy_many() -> None:
        for _ in range(10_000):
            for row, values in zip(place, numbers, strict=True):
                row[...] = values

    return _cpu_s(copy_many) / 10_000


def _cpu_s(function) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _report(what: str, ratio: float, limit: float) -> None:
    print(f"  {what:42} {ratio:6.2f} <= {limit:5.2f}  {'reached' if ratio <= limit else 'missed'}")


if __name__ == "__main__":
    main()
