"""What looking at gradients costs, as a multiple of the plain step: python tests/benchmarks/gradients.py [--only STEP]

The same step of four models: the multilayer perceptron of JAX's documentation, whose step is little more than its
dispatch; a transformer of 15 million parameters; 1,000 small leaves; and 126 layers of 12 leaves that are scanned over,
of which `watch` measures each layer. Each is run plain, with `watch` every step and every 10, with the program that
`watch` makes of it alone, every 10, which is the part that no Python of treeviz takes, with a copy of itself, every 10,
which is what it costs that two programs run in turn, even if both are the same, and with one `jax.debug.callback` for
all leaves; the first also with treeviz's other doors (`watch` in a second run, `measure` with
`record`, `inspect_gradients` in an optax chain, which is compared with the same chain without it), and with what else
people do: a `jax.debug.callback` per leaf, and `numpy.linalg.norm` of gradients that the step returns. Then small steps
that others have published, plain and with `watch`: what it adds is seen best there. One of them is sharded, on two
devices.

Each step in a process of its own, and made for a machine with other work: its variants run in turn in short blocks of
steps, round after round, and a variant's figure is its quick block, the one that a fifth of its blocks beat, by that of
the plain step. Where a program and its arrays lie in memory makes some per cent of a short step, and 15 of one with
1,000 leaves, of which what is made first has the best place; so those with `watch` and without are made four times, or
twice if they compile slowly, in one order and then in the other, and the mean counts. Each is warm before: 250 of its
steps were inspected, so that the comparison with the step itself and the looks at its parameters are done, or it has
had 4 s; "warming" is what that took, by the plain step's 250. A block ends when all its steps are computed and all
their numbers are read; one with `watch` every 10 has as many steps as are read together in a run. "wall" is what a
training run feels; "CPU", the time of all threads, is the steadier figure, but also counts what runs beside the step.
glibc keeps the memory that is freed, as other allocators do: that it gives back the end of its heap makes some hundred
page faults in a step of Haiku, or none, by what lies there, which is not what is measured.
The rounds end when each quick block is within 1 % of the quickest, or when the step has had its part of the minutes.

"first step" is the CPU time to trace, compile and run it when JAX is warm and its caches are empty: the variants in
turn, and the least of each. "norms by hand" is what it takes without treeviz: of the same step, which also returns, as
users write it, the norm, the largest magnitude and the count of non-finite numbers of as many leaves.

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
from math import nan
from statistics import fmean
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.monitoring
from gradient_steps import MODELS, VARIANTS, Run, of_published
from published_steps import N_DEVICES, PUBLISHED, SHARDED

from treeviz.steps.recording.pace import BATCH, LARGE_BATCH

START = time.perf_counter()
COMPILED = "/jax/core/compile/backend_compile_duration"
WATCH, EVERY_10, CALLBACK = "watch, every step", "watch, every 10", "one callback, packed"
ALONE, COPY, BY_HAND = "its program alone, every 10", "its own copy, every 10", "norms by hand"
GOALS = {"transformer": (1.10, 1.02), "1,000 leaves": (1.2, 1.05), "126 layers": (1.2, 1.05)}  # every step, every 10
EVERY_STEP, EVERY_SHORT_STEP, SHORT_MS, EVERY_10TH = 1.35, 1.5, 0.2, 1.05  # of the others
TIMES_LESS, FIRST_STEP = 3.0, 1.3
SLOW = {"callback per leaf", CALLBACK, "NumPy on the host"}  # shorter blocks do
ALWAYS = ("plain", WATCH, EVERY_10, ALONE, COPY)
USUAL = {name: (*VARIANTS,) if name == "mlp" else (*ALWAYS, CALLBACK) for name in MODELS}
STEPS = list(dict.fromkeys(("mlp", *PUBLISHED, *MODELS)))  # those that take long come last
FIRST_STEPS_OF = ("plain", WATCH, "measure and record", CALLBACK)
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}  # of glibc
BLOCK_S = 0.05
FEWEST_ROUNDS, MOST_ROUNDS, SETTLED = 3, 30, 1.01
FIRST_STEPS_SHARE = 0.4  # of the time of a step
N_MADE, N_MADE_SLOWLY, QUICKLY_MADE_S = 4, 2, 0.5  # how often a step is made, and one that takes longer to compile
N_WARMING, WARMING_S = 251, 4.0  # inspected steps before the first block
CACHE_S = 15.0  # that the persistent cache takes

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
    """What is to be reached, what was measured, and, as `floors`, names and figures of less than `watch` does."""

    what: str
    limit: float
    wall: float | None
    cpu: float | None
    at_least: bool = False
    floors: tuple[tuple[str, float | None, float | None], ...] = ()


def main() -> None:
    arguments = _arguments()
    if arguments.in_cache:
        _report_cache(arguments.in_cache)
        return
    if arguments.as_json:
        _warm_jax()
        print(json.dumps(_of_step(arguments.as_json, arguments.variant, arguments.seconds)))
        return
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {os.cpu_count()} cores, {platform.machine()}")
    names = [name for name in STEPS if name in (arguments.only or STEPS)]
    has_cache = arguments.cache and not arguments.only
    measured: dict[str, dict[str, Ratios]] = {}
    for n, name in enumerate(names):
        if name in PUBLISHED and (n == 0 or names[n - 1] in MODELS):
            print(f"\n{'':24}{'plain':>10}{WATCH:>22}{EVERY_10:>20}{ALONE:>32}{COPY:>26}")
            both = "wall   CPU"
            print(
                f"{'published steps':24}{'ms/step':>10}{both:>22}{both:>20}{both:>32}{both:>26}  first step   by hand",
                flush=True,
            )
        left = 60 * arguments.minutes - (time.perf_counter() - START) - (CACHE_S if has_cache else 0)
        measured[name] = _in_process(name, arguments.variant or (), max(left / (len(names) - n), 0))
    measured = {name: ratios for name, ratios in measured.items() if ratios}
    if has_cache:
        _print_cache()
    _print_for_readme(measured)
    goals = [goal for name, ratios in measured.items() for goal in _goals(name, ratios)]
    print(f"\n{'goals':66} {'by wall time':14}  by CPU time")
    for goal in goals:
        sign = ">=" if goal.at_least else "<="
        print(f"  {goal.what:56} {sign} {goal.limit:.2f}  {_verdict(goal, goal.wall)}  {_verdict(goal, goal.cpu)}")
        for what, *figures in goal.floors:
            wall, cpu = ("" if figure is None else f"{figure:.2f}" for figure in figures)
            print(f"  {'    ' + what:64} {wall:>6}          {cpu:>6}")


def _warm_jax() -> None:
    for variant in FIRST_STEPS_OF:
        VARIANTS[variant](MODELS["mlp"]).step()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=STEPS)
    parser.add_argument("--variant", action="append", choices=[*VARIANTS], help="beside the plain one and watch's")
    parser.add_argument("--minutes", type=float, default=3.5, help="for all steps together, where they do not settle")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="leave the persistent cache out")
    parser.add_argument("--in-cache", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--as-json", metavar="STEP", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(name: str, chosen: Sequence[str], seconds: float) -> dict[str, Ratios]:
    end, model = time.perf_counter() + seconds, MODELS[name]
    leaves = jax.tree.leaves(model.make())
    print(f"\n{name}: {len(leaves)} leaves, {sum(leaf.size for leaf in leaves):,} parameters", flush=True)
    plain_too = {"plain optax"} if any("optax" in variant for variant in chosen) else set()
    chosen = [variant for variant in VARIANTS if variant in {*ALWAYS, BY_HAND, *plain_too, *chosen}]
    variants: Runs = {variant: partial(VARIANTS[variant], model) for variant in chosen}
    of_first = (*(FIRST_STEPS_OF if name == "mlp" else ("plain", WATCH)), BY_HAND)
    first = _first_steps({v: make for v, make in variants.items() if v in of_first}, seconds)
    by_hand = first[BY_HAND] / first["plain"]
    runs, n_programs, warming = _ready({v: make for v, make in variants.items() if v != BY_HAND}, first["plain"])
    quick = _in_turn(runs, end)
    ratios = {}
    print(f"  {'':28}  ms/step  wall   CPU  first step  programs  warming")
    for variant, each in quick.items():
        base = quick["plain optax" if "optax" in variant else "plain"]
        of_first = first[variant] / first["plain"] if variant in first else None
        ratios[variant] = Ratios(each.wall / base.wall, each.cpu / base.cpu, of_first, 1e3 * base.wall)
        print(
            f"  {variant:28} {1e3 * each.wall:8.2f}  {each.wall / base.wall:4.2f}  {each.cpu / base.cpu:4.2f}"
            f"  {'' if of_first is None else f'{of_first:.2f}':>10}  {n_programs[variant]:8}"
            f"  {warming[variant] / warming['plain']:7.2f}",
            flush=True,
        )
    print(f"  {BY_HAND:28} {by_hand:32.2f}", flush=True)
    return {**ratios, BY_HAND: Ratios(nan, nan, by_hand, ratios[WATCH].plain_ms)}


def _published(name: str, seconds: float) -> dict[str, Ratios]:
    """Of a published step, watched at every step and at every tenth."""
    end = time.perf_counter() + seconds
    whens = {"plain": None, WATCH: 1, EVERY_10: 10, ALONE: 10, COPY: 10, BY_HAND: None}
    hows = {ALONE: "alone", COPY: "copy", BY_HAND: "by hand"}
    try:
        made = {v: partial(of_published, PUBLISHED[name], n, hows.get(v, "watch")) for v, n in whens.items()}
        first = _first_steps({variant: made[variant] for variant in ("plain", WATCH, BY_HAND)}, seconds)
    except ImportError as error:
        print(f"  {name:22} is left out: {error}", flush=True)
        return {}
    quick = _in_turn(_ready({v: make for v, make in made.items() if v != BY_HAND}, first["plain"])[0], end)
    base = quick["plain"]
    every, every_10, alone, copy = (
        Ratios(quick[variant].wall / base.wall, quick[variant].cpu / base.cpu, None, 1e3 * base.wall)
        for variant in (WATCH, EVERY_10, ALONE, COPY)
    )
    every = every._replace(first=first[WATCH] / first["plain"])
    by_hand = Ratios(nan, nan, first[BY_HAND] / first["plain"], every.plain_ms)
    print(
        f"  {name:22}{every.plain_ms:10.3f}{every.wall:16.2f}{every.cpu:6.2f}"
        f"{every_10.wall:14.2f}{every_10.cpu:6.2f}{alone.wall:26.2f}{alone.cpu:6.2f}{copy.wall:20.2f}{copy.cpu:6.2f}"
        f"{every.first:12.2f}{by_hand.first:10.2f}",
        flush=True,
    )
    return {WATCH: every, EVERY_10: every_10, ALONE: alone, COPY: copy, BY_HAND: by_hand}


def _of_step(name: str, variants: Sequence[str] | None, seconds: float) -> dict[str, Ratios]:
    return _measure(name, variants or USUAL[name], seconds) if name in MODELS else _published(name, seconds)


def _in_process(name: str, variants: Sequence[str], seconds: float) -> dict[str, Ratios]:
    """Of a step, in a process of its own: what ran before, and lies in memory, makes half of a step of many leaves."""
    more = f" --xla_force_host_platform_device_count={N_DEVICES}" if name in SHARDED else ""
    chosen = [text for variant in variants for text in ("--variant", variant)]
    env = {**MALLOC, **os.environ, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + more}
    command = [sys.executable, __file__, "--as-json", name, "--seconds", str(seconds), *chosen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                return {variant: Ratios(*each) for variant, each in json.loads(line).items()}
            print(line, end="", flush=True)
    sys.exit(f"{name} failed")


def _in_turn(runs: dict[str, list[Run]], end: float) -> dict[str, Seconds]:
    """The quick block of each variant."""
    n_steps = 10.0
    for _ in range(3):
        n_steps = max(BLOCK_S / _seconds_per_step(runs["plain"][0], round(n_steps)).wall, 3)
    n_of = {variant: max(round(n_steps / 8 if variant in SLOW else n_steps), 3) for variant in runs}
    n_of[ALONE] = n_of[COPY] = 10 * max(round(n_steps / 10), 1)
    read_together = next((n for n in (LARGE_BATCH, BATCH) if n_steps > n), 1)
    n_of[EVERY_10] = 10 * max(round(n_steps / 10), read_together)
    blocks: dict[str, list[list[Seconds]]] = {variant: [[] for _ in alike] for variant, alike in runs.items()}
    for n in range(MOST_ROUNDS):
        if n >= FEWEST_ROUNDS and (time.perf_counter() > end or all(map(_has_settled, blocks.values()))):
            break
        for made in range(N_MADE):
            for variant, alike in runs.items():
                if made < len(alike):
                    blocks[variant][made].append(_seconds_per_step(alike[made], n_of[variant]))
    return {variant: _figures(of_made) for variant, of_made in blocks.items()}


def _figures(of_made: Sequence[Sequence[Seconds]]) -> Seconds:
    quick = [[_quick(each) for each in zip(*blocks, strict=True)] for blocks in of_made]
    return Seconds(*map(fmean, zip(*quick, strict=True)))


def _has_settled(of_made: Sequence[Sequence[Seconds]]) -> bool:
    """Whether more blocks would change little."""
    times = [each for blocks in of_made for each in zip(*blocks, strict=True)]
    return all(len(each) >= 10 and _quick(each) <= SETTLED * min(each) for each in times)


def _first_steps(variants: Runs, seconds: float) -> dict[str, float]:
    """The CPU seconds of each."""
    least: dict[str, float] = {}
    end = time.perf_counter() + FIRST_STEPS_SHARE * seconds
    for _ in range(5):
        for variant, make in variants.items():
            run = make()
            jax.clear_caches()
            start = time.process_time()
            run.step()
            run.finish()
            least[variant] = min(time.process_time() - start, least.get(variant, float("inf")))
        if time.perf_counter() > end:
            break
    return least


def _ready(variants: Runs, first_s: float) -> tuple[dict[str, list[Run]], dict[str, int], dict[str, float]]:
    """Every variant, warm, some several times; how many programs it compiled for that, and the seconds of a step."""
    compilations: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compilations.append(event) if event == COMPILED else None
    )
    runs, n_programs, warming = {}, {}, {}
    for made in range(N_MADE if first_s < QUICKLY_MADE_S else N_MADE_SLOWLY):
        for variant, make in list(variants.items())[:: -1 if made % 2 else 1]:
            if made and variant not in ALWAYS:
                continue
            run = make()
            runs.setdefault(variant, []).append(run)
            compilations.clear()
            for _ in range(3):
                run.step()
            run.finish()
            n_programs.setdefault(variant, len(compilations))
            warming.setdefault(variant, _warm(run, N_WARMING * (10 if variant == EVERY_10 else 1)))
    jax.monitoring.clear_event_listeners()
    return runs, n_programs, warming


def _warm(run: Run, n_steps: int) -> float:
    """Seconds per step."""
    n, start = 0, time.perf_counter()
    while n < n_steps and time.perf_counter() < start + WARMING_S:
        run.step()
        n += 1
    run.finish()
    return (time.perf_counter() - start) / n


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

    others = tuple((other, ratios[other].wall, ratios[other].cpu) for other in (ALONE, COPY))
    by_hand = BY_HAND, None, ratios[BY_HAND].first
    goals = [
        Goal(f"{name}: {WATCH}", every, ratios[WATCH].wall, ratios[WATCH].cpu),
        Goal(f"{name}: {EVERY_10}", every_10, ratios[EVERY_10].wall, ratios[EVERY_10].cpu, floors=others),
        Goal(f"{name}: first step", FIRST_STEP, None, ratios[WATCH].first, floors=(by_hand,)),
    ]
    if CALLBACK in ratios:
        what = f"{name}: overhead of {CALLBACK}, by watch's"
        goals.append(Goal(what, TIMES_LESS, less("wall"), less("cpu"), at_least=True))
    return goals


def _print_for_readme(measured: dict[str, dict[str, Ratios]]) -> None:
    print("\n| a step | plain | every step watched | every tenth | the first: CPU |\n|---|---|---|---|---|")
    for name, ratios in measured.items():
        every, every_10 = ratios[WATCH], ratios[EVERY_10]
        title = name.replace("mlp", "JAX's MLP").replace("mnist", "MNIST")
        print(f"| {title} | {every.plain_ms:.2g} ms | {every.wall:.2f}x | {every_10.wall:.2f}x | {every.first:.2f}x |")


def _verdict(goal: Goal, figure: float | None) -> str:
    if figure is None:
        return f"{'':14}"
    reached = figure >= goal.limit if goal.at_least else figure <= goal.limit
    return f"{figure:6.2f} {'reached' if reached else 'missed':7}"


def _print_cache() -> None:
    print("\npersistent cache, in a second process: programs found, not found", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--in-cache", folder]
        subprocess.run(command, check=True, capture_output=True)
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip(), flush=True)


def _report_cache(folder: str) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    for variant in FIRST_STEPS_OF:
        run = VARIANTS[variant](MODELS["mlp"])
        jax.clear_caches()
        events.clear()
        run.step()
        run.finish()
        found = events.count("/jax/compilation_cache/cache_hits")
        print(f"  {variant:36} {found}, {events.count('/jax/compilation_cache/compile_requests_use_cache') - found}")


if __name__ == "__main__":
    main()
