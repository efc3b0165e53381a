"""What looking at gradients costs, as a multiple of the plain step: python tests/benchmarks/gradients.py [--only STEP]

The same step of four models: the multilayer perceptron of JAX's documentation, whose step is little more than its
dispatch; a transformer of 15 million parameters; 1,000 small leaves; and 126 layers of 12 leaves that are scanned over,
of which `watch` measures each layer. Each is run plain, with treeviz's doors (`watch` every step, every 10 and in a
second run, `measure` with `record`, `inspect_gradients` in an optax chain, which is compared with the same chain
without it), and with what people do otherwise: a `jax.debug.callback` per leaf, one for all, and `numpy.linalg.norm` of
gradients that the step returns. Then small steps that others have published, plain and with `watch`: what it adds is
seen best there. One of them is sharded, and runs in a process of its own with two devices.

Nearly all in one process, and made for a machine with other work: the variants run in turn in short blocks of steps,
round after round, and a variant's figure is its quick block, the one that a fifth of its blocks beat, by that of the
plain step. A block ends when all its steps are computed and all their numbers are read. "wall" is what a training run
feels; "CPU", the time of all threads, is the steadier figure, but also counts what runs beside the step.

"first step" is the CPU time to trace, compile and run it when JAX is warm and its caches are empty: the variants in
turn, and the least of each.

Then how many programs each compiles and how many of them a second process finds in the persistent cache; the table of
README; and the goals with "reached" or "missed".
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from gradient_steps import MODELS, VARIANTS, Run, of_published
from published_steps import N_DEVICES, PUBLISHED, SHARDED
from value_stats import COMPILED

WATCH, EVERY_10, CALLBACK = "watch, every step", "watch, every 10", "one callback, packed"
GOALS = {"transformer": (1.10, 1.02), "1,000 leaves": (1.2, 1.05), "126 layers": (1.2, 1.05)}  # every step, every 10
EVERY_STEP, EVERY_SHORT_STEP, SHORT_MS, EVERY_10TH = 1.35, 1.5, 0.2, 1.05  # of the others
TIMES_LESS, FIRST_STEP = 3.0, 1.3
SLOW = {"callback per leaf", CALLBACK, "NumPy on the host"}  # shorter blocks do
FIRST_STEPS_OF = ("plain", WATCH, "measure and record", CALLBACK)
BLOCK_S = 0.04  # of a published step
MOST_S = 50.0  # for the rounds of one step

Runs = dict[str, Callable[[], Run]]  # by variant


class Seconds(NamedTuple):
    """What a step took."""

    wall: float
    cpu: float


class Ratios(NamedTuple):
    """A variant's time by the plain one's."""

    wall: float
    cpu: float
    first: float | None
    plain_ms: float


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
    if arguments.as_json:
        print(json.dumps(_published(arguments.as_json, arguments.rounds, arguments.first_steps)))
        return
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {os.cpu_count()} cores, {platform.machine()}")
    names = arguments.only or [*MODELS, *PUBLISHED]
    measured: dict[str, dict[str, Ratios]] = {}
    for name in MODELS:
        if name in names:
            measured[name] = _measure(name, arguments.rounds, arguments.first_steps)
    if set(names) & set(PUBLISHED):
        measured |= _measure_published([name for name in PUBLISHED if name in names], arguments)
    if arguments.cache and not arguments.only:
        _print_cache()
    _print_for_readme(measured)
    goals = [goal for name, ratios in measured.items() for goal in _goals(name, ratios)]
    print(f"\n{'goals':66} {'by wall time':14}  by CPU time")
    for goal in goals:
        sign = ">=" if goal.at_least else "<="
        print(f"  {goal.what:56} {sign} {goal.limit:.2f}  {_verdict(goal, goal.wall)}  {_verdict(goal, goal.cpu)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*MODELS, *PUBLISHED])
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each variant; twice as many of short steps")
    parser.add_argument("--first-steps", type=int, default=4, help="compilations of each variant")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="leave the persistent cache out")
    parser.add_argument("--in-cache", nargs=2, metavar=("FOLDER", "VARIANT"), help=argparse.SUPPRESS)
    parser.add_argument("--as-json", metavar="STEP", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(name: str, n_rounds: int, n_first_steps: int) -> dict[str, Ratios]:
    model = MODELS[name]
    leaves = jax.tree.leaves(model.make())
    print(f"\n{name}: {len(leaves)} leaves, {sum(leaf.size for leaf in leaves):,} parameters")
    variants: Runs = {variant: partial(make, model) for variant, make in VARIANTS.items()}
    first = _first_steps({variant: variants[variant] for variant in FIRST_STEPS_OF}, n_first_steps)
    runs, n_programs = _ready(variants)
    n_steps = {variant: max(model.n_steps // 8, 3) if variant in SLOW else model.n_steps for variant in runs}
    quick = _in_turn(runs, n_steps, n_rounds)
    ratios = {}
    print(f"  {'':28}  ms/step  wall   CPU  first step  programs")
    for variant, seconds in quick.items():
        base = quick["plain optax" if "optax" in variant else "plain"]
        of_first = first[variant] / first["plain"] if variant in first else None
        each = Ratios(seconds.wall / base.wall, seconds.cpu / base.cpu, of_first, 1e3 * base.wall)
        ratios[variant] = each
        print(
            f"  {variant:28} {1e3 * seconds.wall:8.2f}  {each.wall:4.2f}  {each.cpu:4.2f}"
            f"  {'' if of_first is None else f'{of_first:.2f}':>10}  {n_programs[variant]:8}",
            flush=True,
        )
    return ratios


def _measure_published(names: Sequence[str], arguments: argparse.Namespace) -> dict[str, dict[str, Ratios]]:
    print(f"\n{'':24}{'plain':>10}{WATCH:>22}{EVERY_10:>20}")
    print(f"{'published steps':24}{'ms/step':>10}{'wall   CPU':>22}{'wall   CPU':>20}  first step")
    measured = {}
    for name in names:
        try:
            every, every_10 = (
                _in_process(name, arguments)
                if name in SHARDED
                else _published(name, arguments.rounds, arguments.first_steps)
            )
        except ImportError as error:
            print(f"  {name:22} is left out: {error}")
            continue
        print(
            f"  {name:22}{every.plain_ms:10.3f}{every.wall:16.2f}{every.cpu:6.2f}"
            f"{every_10.wall:14.2f}{every_10.cpu:6.2f}{every.first:12.2f}",
            flush=True,
        )
        measured[name] = {WATCH: every, EVERY_10: every_10}
    return measured


def _published(name: str, n_rounds: int, n_first_steps: int) -> tuple[Ratios, Ratios]:
    """Of a published step, watched at every step and at every tenth."""
    whens = {"plain": None, WATCH: 1, EVERY_10: 10}
    variants: Runs = {variant: partial(of_published, PUBLISHED[name], every) for variant, every in whens.items()}
    first = _first_steps({variant: variants[variant] for variant in ("plain", WATCH)}, n_first_steps)
    runs, _ = _ready(variants)
    _seconds_per_step(runs["plain"], 100)
    seconds = _seconds_per_step(runs["plain"], 100).wall
    n_steps = dict.fromkeys(runs, max(10 * round(BLOCK_S / seconds / 10), 10))
    quick = _in_turn(runs, n_steps, 2 * n_rounds)
    base = quick["plain"]
    every, every_10 = (
        Ratios(quick[variant].wall / base.wall, quick[variant].cpu / base.cpu, None, 1e3 * base.wall)
        for variant in (WATCH, EVERY_10)
    )
    return every._replace(first=first[WATCH] / first["plain"]), every_10


def _in_process(name: str, arguments: argparse.Namespace) -> list[Ratios]:
    """As `_published`, in a process with the devices that the step needs."""
    command = [sys.executable, __file__, "--as-json", name, "--rounds", str(arguments.rounds)]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={N_DEVICES}"
    done = subprocess.run(
        [*command, "--first-steps", str(arguments.first_steps)],
        check=True, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": flags},
    )  # fmt: skip
    return [Ratios(*each) for each in json.loads(done.stdout)]


def _in_turn(runs: dict[str, Run], n_steps: dict[str, int], n_rounds: int) -> dict[str, Seconds]:
    """The quick block of each variant."""
    blocks: dict[str, list[Seconds]] = {variant: [] for variant in runs}
    start = time.perf_counter()
    for n in range(n_rounds):
        for variant, run in runs.items():
            blocks[variant].append(_seconds_per_step(run, n_steps[variant]))
        if n >= 5 and time.perf_counter() - start > MOST_S:
            break
    return {variant: Seconds(*map(_quick, zip(*of_variant, strict=True))) for variant, of_variant in blocks.items()}


def _first_steps(variants: Runs, n_times: int) -> dict[str, float]:
    """The CPU seconds of each; the first time, which warms JAX, does not count."""
    least: dict[str, float] = {}
    for n in range(n_times + 1):
        for variant, make in variants.items():
            run = make()
            jax.clear_caches()
            start = time.process_time()
            run.step()
            run.finish()
            seconds = time.process_time() - start
            if n:
                least[variant] = min(seconds, least.get(variant, seconds))
    return least


def _ready(variants: Runs) -> tuple[dict[str, Run], dict[str, int]]:
    """Every variant, warm, and how many programs it compiled for that."""
    compilations: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compilations.append(seconds) if event == COMPILED else None
    )
    runs, n_programs = {}, {}
    for variant, make in variants.items():
        runs[variant] = run = make()
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


def _goals(name: str, ratios: dict[str, Ratios]) -> list[Goal]:
    is_short = ratios[WATCH].plain_ms < SHORT_MS or name in SHARDED
    every, every_10 = GOALS.get(name, (EVERY_SHORT_STEP if is_short else EVERY_STEP, EVERY_10TH))

    def less(by: str) -> float:  # what costs nothing that can be measured counts as a hundredth
        return (getattr(ratios[CALLBACK], by) - 1) / max(getattr(ratios[WATCH], by) - 1, 0.01)

    goals = [
        Goal(f"{name}: {WATCH}", every, ratios[WATCH].wall, ratios[WATCH].cpu),
        Goal(f"{name}: {EVERY_10}", every_10, ratios[EVERY_10].wall, ratios[EVERY_10].cpu),
        Goal(f"{name}: first step", FIRST_STEP, None, ratios[WATCH].first),
    ]
    if CALLBACK in ratios:
        what = f"{name}: overhead of {CALLBACK}, by watch's"
        goals.append(Goal(what, TIMES_LESS, less("wall"), less("cpu"), at_least=True))
    return goals


def _print_for_readme(measured: dict[str, dict[str, Ratios]]) -> None:
    print("\n| a step | plain | every step watched | every tenth | the first: CPU |\n|---|---|---|---|---|")
    for name, ratios in measured.items():
        every, every_10 = ratios[WATCH], ratios[EVERY_10]
        print(f"| {name} | {every.plain_ms:.2g} ms | {every.wall:.2f}x | {every_10.wall:.2f}x | {every.first:.2f}x |")


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
