"""Whether the published steps give the same bits under watch, at full optimization: python tests/benchmarks/bits.py

The tests compile quickly, so that the programs whose results they compare are not those that a user runs: their "same"
says that nothing but measuring is added. Here each step of `tests/wild` is compiled as XLA does by default. From the
same arguments it runs by itself, watched, and by itself again, 20 times in a row on its own results; all results are
compared byte by byte. A step that does not repeat its own bits is told apart. `tests/wild/test_steps.py` has the steps
in `PRECISE` compiled like this, too; those of `tests/benchmarks/further.py` come last.

    python tests/benchmarks/bits.py jax_mnist_vae    # these alone
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from watched import numbers_in, same_bytes
from wild import agents, densities, language, libraries, projects, sciences, sequences
from wild.published import PUBLISHED

import treeviz as tv

assert libraries and projects and sequences and agents and densities and language and sciences  # they register steps
N_STEPS = 20


def as_tuple(results) -> tuple:
    return results if isinstance(results, tuple) else (results,)


def copied(state: tuple) -> tuple:
    """The state, which a step may take as donated."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, state)


def largest_difference(results, others) -> float:
    """Of floats, beside the largest magnitude of their leaf."""
    found = 0.0
    for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(others), strict=True):
        a, b = numbers_in(a), numbers_in(b)
        if np.issubdtype(a.dtype, np.floating) and a.size:
            a, b = (x.astype(np.float64) for x in (a, b))
            found = max(found, float(np.nanmax(np.abs(a - b)) / (np.nanmax(np.abs(b)) or 1)))
    return found


def compared(name: str) -> str:
    step, plain, batch, _ = PUBLISHED[name][1]()
    n, inspector = len(plain), tv.GradientInspector()
    watched = inspector.watch(step)
    n_different, repeats, largest = 0, True, 0.0
    for number in range(N_STEPS):
        apart, measured, again = (as_tuple(run(*copied(plain), *batch(number))) for run in (step, watched, step))
        repeats = repeats and same_bytes(again, apart)
        if not same_bytes(measured, apart):
            n_different += 1
            largest = max(largest, largest_difference(measured, apart))
        plain = apart[:n]
    inspector.flush()
    is_told = any("changes bits" in note for note in inspector.notes)
    if watched.trouble:
        return f"not watched: {watched.trouble}"
    if not repeats:
        return f"does not repeat its own bits; {n_different} steps differ when measured"
    if not n_different:
        return "same" + (", though a note says otherwise" if is_told else "")
    return f"{n_different} of {N_STEPS} steps differ, by {largest:.1e} at most: {'announced' if is_told else 'SILENT'}"


def main() -> None:
    jax.config.update("jax_numpy_rank_promotion", "allow")
    names, found = sys.argv[1:] or list(PUBLISHED), []
    for name in names:
        before = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(compared(name))
        print(f"{name:36} {time.process_time() - before:6.1f} CPU s  {found[-1]}", flush=True)
        jax.clear_caches()
    n_same, n_told = (sum(text.startswith("same") for text in found), sum(text.endswith("announced") for text in found))
    print(f"{n_same} of {len(found)} the same in all {N_STEPS} steps, {n_told} announced")


if __name__ == "__main__":
    main()
