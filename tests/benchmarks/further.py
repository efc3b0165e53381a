"""Further published steps, healthy and with planted faults: python tests/benchmarks/further.py

Each step of `planted.FURTHER` in `tests/wild` runs `planted.N_STEPS` times under an inspector and must have no warning.
Then the faults of `tests/wild/planted.py` run; the finding that names the cause must come first. It is
no part of the test suite, whose time it would double.

    python tests/benchmarks/further.py --healthy                      # or --faults
    python tests/benchmarks/further.py brax_ppo a_misspelled_mask     # these steps and faults alone
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from compiling import quick_environment

os.environ["XLA_FLAGS"] = quick_environment()["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"

import jax
from wild import planted
from wild.published import PUBLISHED, Published

import treeviz as tv


def inspected(
    published: Published, *, at=lambda step, state: state, n_steps: int = planted.N_STEPS
) -> tv.GradientInspector:
    """The inspector of a run; `at` changes the state before a step."""
    step, state, batch, _ = published
    inspector = tv.GradientInspector(updates=True, keep_inputs=True)
    watched = inspector.watch(step)
    for number in range(n_steps):
        state = at(number, state)
        results = watched(*state, *batch(number))
        results = results if isinstance(results, tuple) else (results,)
        state, rest = results[: len(state)], results[len(state) :]
        if rest:
            inspector.record_scalars(loss=rest[0]["loss"] if isinstance(rest[0], dict) else rest[0])
    inspector.flush()
    if watched.trouble:
        raise RuntimeError(watched.trouble)
    return inspector


def said(inspector: tv.GradientInspector) -> list[str]:
    return [f"[{found.severity}] {found.source} {found.first}-{found.until}: {found}" for found in inspector.findings]


def healthy(name: str) -> list[str]:
    """What is wrong: warnings and errors of a healthy run."""
    inspector = inspected(PUBLISHED[name][1]())
    return [text for text in said(inspector) if not text.startswith("[info]")]


def faulty(name: str) -> list[str]:
    """What is wrong: all findings, if the first is not the cause."""
    fault = planted.FAULTS[name]
    published = PUBLISHED[fault.step][1](**fault.arguments)
    published = published._replace(batch=functools.partial(fault.batch, published.batch))
    inspector = inspected(published, at=fault.state)
    return [] if fault.is_found(inspector) else [f"expected {fault.expected!r} at {fault.first}", *said(inspector)]


def table(title: str, names: list[str], wrong_of) -> None:
    n_right = 0
    for name in names:
        before = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                wrong = wrong_of(name)
            except Exception:
                wrong = [f"raised {traceback.format_exc()}"]
        n_right += not wrong
        print(f"{name:40} {time.process_time() - before:5.1f} CPU s  {'WRONG' if wrong else 'right'}", flush=True)
        for text in wrong:
            print(f"    {text}", flush=True)
        jax.clear_caches()
    print(f"{title}: {n_right} of {len(names)}\n", flush=True)


def main() -> None:
    jax.config.update("jax_numpy_rank_promotion", "allow")
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    steps = [name for name in PUBLISHED if PUBLISHED[name][1].__module__ in planted.FURTHER]
    if "--faults" not in sys.argv:
        table("healthy without a warning", [name for name in steps if not names or name in names], healthy)
    if "--healthy" not in sys.argv:
        faults = [name for name in planted.FAULTS if not names or name in names]
        table("faults with the cause first", faults, faulty)


if __name__ == "__main__":
    main()
