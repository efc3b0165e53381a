"""What looking at gradients costs, as a multiple of the plain step: python tests/benchmarks/gradients.py [--only MODEL]

The same step of four models: the multilayer perceptron of JAX's documentation, whose step is little more than its
dispatch; a transformer of 15 million parameters; 1,000 small leaves; and 126 layers of 12 leaves that are scanned over,
of which `watch` measures each layer. Each is run plain, with treeviz's doors (`watch` every step, every 10 and in a
second run, `measure` with `record`, `inspect_gradients` in an optax chain, which is compared with the same chain
without it), and with what people do otherwise: a `jax.debug.callback` per leaf, one for all, and `numpy.linalg.norm` of
gradients that the step returns.

In one process, and made for a machine with other work: the variants run in turn in short blocks of steps, round after
round, and a variant's figure is its quick block, the one that a fifth of its blocks beat, by that of the plain step. A
block ends when all its steps are computed and all their numbers are read. "wall" is what a training run feels; "CPU",
the time of all threads, is the steadier figure, but also counts what runs beside the step.

"first step" is the CPU time to trace, compile and run it when JAX is warm and its caches are empty: the variants in
turn, and the least of each.

Then how many programs each compiles and how many of them a second process finds in the persistent cache; and the goals
with "reached" or "missed".
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from gradient_steps import MODELS, VARIANTS, Run
from value_stats import COMPILED

BASES = {name: "plain optax" if "optax" in name else "plain" for name in VARIANTS}
WATCH, EVERY_10, CALLBACK = "watch, every step", "watch, every 10", "one callback, packed"
GOALS = {  # of watch every step, and every 10
    "mlp": (1.35, 1.06),
    "transformer": (1.10, 1.02),
    "1,000 leaves": (1.2, 1.05),
    "126 layers": (1.2, 1.05),
}
TIMES_LESS, FIRST_STEP = 3.0, 1.3
SLOW = {"callback per leaf", CALLBACK, "NumPy on the host"}  # shorter blocks do
FIRST_STEPS_OF = ("plain", WATCH, "measure and record", CALLBACK)


class Seconds(NamedTuple):
    """What a step took."""

    wall: float
    cpu: float


class Ratios(NamedTuple):
    """A variant's time by the plain one's."""

    wall: float
    cpu: float
    first: float | None


class Goal(NamedTuple):
    """What is to be reached, and what was measured."""

    what: str
    limit: float
    wall: float | None
    cpu: float | None
    at_least: bool = False


def main() -> None:
    arguments = _arguments()
    if arguments.in_cache:
        _report_cache(arguments.in_cache)
        return
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {os.cpu_count()} cores, {platform.machine()}")
    goals = [
        goal
        for model in arguments.only or MODELS
        for goal in _goals(model, _measure(model, arguments.rounds, arguments.first_steps))
    ]
    if arguments.cache:
        _print_cache()
    print(f"\n{'goals':66} {'by wall time':14}  by CPU time")
    for goal in goals:
        sign = ">=" if goal.at_least else "<="
        print(f"  {goal.what:56} {sign} {goal.limit:.2f}  {_verdict(goal, goal.wall)}  {_verdict(goal, goal.cpu)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each variant")
    parser.add_argument("--first-steps", type=int, default=5, help="compilations of each variant")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="leave the persistent cache out")
    parser.add_argument("--in-cache", nargs=2, metavar=("FOLDER", "VARIANT"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(name: str, n_rounds: int, n_first_steps: int) -> dict[str, Ratios]:
    model = MODELS[name]
    leaves = jax.tree.leaves(model.make())
    print(f"\n{name}: {len(leaves)} leaves, {sum(leaf.size for leaf in leaves):,} parameters, {n_rounds} rounds")
    first = _first_steps(name, n_first_steps)
    runs, n_programs = _ready(name)
    blocks: dict[str, list[Seconds]] = {variant: [] for variant in VARIANTS}
    for _ in range(n_rounds):
        for variant, run in runs.items():
            n_steps = max(model.n_steps // 8, 3) if variant in SLOW else model.n_steps
            blocks[variant].append(_seconds_per_step(run, n_steps))
    quick = {variant: Seconds(*map(_quick, zip(*of_variant, strict=True))) for variant, of_variant in blocks.items()}

    ratios = {}
    print(f"  {'':28}  ms/step  wall   CPU  first step  programs")
    for variant, seconds in quick.items():
        base = quick[BASES[variant]]
        of_first = first[variant] / first["plain"] if variant in first else None
        ratios[variant] = each = Ratios(seconds.wall / base.wall, seconds.cpu / base.cpu, of_first)
        print(
            f"  {variant:28} {1e3 * seconds.wall:8.2f}  {each.wall:4.2f}  {each.cpu:4.2f}"
            f"  {'' if of_first is None else f'{of_first:.2f}':>10}  {n_programs[variant]:8}",
            flush=True,
        )
    return ratios


def _first_steps(name: str, n_times: int) -> dict[str, float]:
    """The CPU seconds of each; the first time, which warms JAX, does not count."""
    least: dict[str, float] = {}
    for n in range(n_times + 1):
        for variant in FIRST_STEPS_OF:
            run = VARIANTS[variant](MODELS[name])
            jax.clear_caches()
            start = time.process_time()
            run.step()
            run.finish()
            seconds = time.process_time() - start
            if n:
                least[variant] = min(seconds, least.get(variant, seconds))
    return least


def _ready(name: str) -> tuple[dict[str, Run], dict[str, int]]:
    """Every variant, warm, and how many programs it compiled for that."""
    compilations: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compilations.append(seconds) if event == COMPILED else None
    )
    runs, n_programs = {}, {}
    for variant, make in VARIANTS.items():
        runs[variant] = run = make(MODELS[name])
        compilations.clear()
        for _ in range(3):
            run.step()
        run.finish()
        n_programs[variant] = len(compilations)
    jax.monitoring.clear_event_listeners()
    return runs, n_programs


def _quick(seconds: Sequence[float]) -> float:
    """What a fifth of the blocks beat: other work on the machine only adds."""
    return sorted(seconds)[len(seconds) // 5]


def _seconds_per_step(run: Run, n_steps: int) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(n_steps):
        run.step()
    run.finish()
    return Seconds((time.perf_counter() - wall) / n_steps, (time.process_time() - cpu) / n_steps)


def _goals(model: str, ratios: dict[str, Ratios]) -> list[Goal]:
    every, every_10 = GOALS[model]

    def less(by: str) -> float:  # what costs nothing that can be measured counts as a hundredth
        return (getattr(ratios[CALLBACK], by) - 1) / max(getattr(ratios[WATCH], by) - 1, 0.01)

    return [
        Goal(f"{model}: {WATCH}", every, ratios[WATCH].wall, ratios[WATCH].cpu),
        Goal(f"{model}: {EVERY_10}", every_10, ratios[EVERY_10].wall, ratios[EVERY_10].cpu),
        Goal(f"{model}: overhead of {CALLBACK}, by watch's", TIMES_LESS, less("wall"), less("cpu"), at_least=True),
        Goal(f"{model}: first step", FIRST_STEP, None, ratios[WATCH].first),
    ]


def _verdict(goal: Goal, figure: float | None) -> str:
    if figure is None:
        return f"{'':14}"
    reached = figure >= goal.limit if goal.at_least else figure <= goal.limit
    return f"{figure:6.2f} {'reached' if reached else 'missed':7}"


def _print_cache() -> None:
    print("\npersistent cache, in a second process: programs found, not found")
    for variant in ("plain", WATCH, "measure and record", CALLBACK):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--in-cache", folder, variant]
            subprocess.run(command, check=True, capture_output=True)
            print(
                f"  {variant:36} {subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()}"
            )


def _report_cache(folder_and_variant: list[str]) -> None:
    folder, variant = folder_and_variant
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    events: list[str] = []
    run = VARIANTS[variant](MODELS["mlp"])
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    run.step()
    run.finish()
    found = events.count("/jax/compilation_cache/cache_hits")
    print(f"{found}, {events.count('/jax/compilation_cache/compile_requests_use_cache') - found}")


if __name__ == "__main__":
    main()
