"""What looking at gradients costs, as a multiple of the plain step: python tests/benchmarks/gradients.py [--only STEP]

The same step of four models: the multilayer perceptron of JAX's documentation, whose step is little more than its
dispatch; a transformer of 15 million parameters; 1,000 small leaves; and 126 layers of 12 leaves that are scanned over,
of which `watch` measures each layer. And small steps that others have published: what `watch` adds is seen best there.
One of them is sharded, on two devices. Each is run plain, with `watch` every step and every 10, with the program that
`watch` makes of it alone, every 10, which is the part that no Python of treeviz takes, with a copy of itself, every 10,
which is what it costs that two programs run in turn, even if both are the same, and the models with one
`jax.debug.callback` for all leaves; the first also with treeviz's other doors (`watch` in a second run, `measure` with
`record`, `inspect_gradients` in an optax chain, which is compared with the same chain without it), and with what else
people do: a `jax.debug.callback` per leaf, and `numpy.linalg.norm` of gradients that the step returns.

Each step in processes of its own, made for a machine with other work. In a process its variants take turns in blocks of
some tens of steps, hundreds of times, in random order, since what a block leaves in the caches makes the next one
slower. Each block begins with the same arrays, and runs the same program where nothing is inspected, so that neither
heap nor memory differ. A variant's time is that of its quick block, the one that a fifth of its blocks beat, and what
it takes to read as many measurements together as a run does. Before, `watch` has inspected 250 steps, or had 4 s, so
that the comparison with the step itself and the looks at its parameters are done.

One process says little: where its programs lie in memory makes some per cent of a short step. So all steps take turns,
process after process, until the minutes are over. A figure is the median over the processes of the ratio to the plain
step, and behind it stands where the middle half of them lies. "wall" is what a training run feels; "CPU", the time of
all threads, is the steadier figure, but also counts what runs beside the step. glibc keeps the memory that is freed, as
other allocators do: that it gives back the end of its heap makes some hundred page faults in a step of Haiku, or none,
by what lies there, which is not what is measured.

"first step" is the CPU time to trace, compile and run it when JAX is warm and its caches are empty: the variants in
turn, and the least of each in a process. "norms by hand" is what it takes without treeviz: of the same step, which also
returns, as users write it, the norm, the largest magnitude and the count of non-finite numbers of as many leaves.

Then how many programs each compiles and how many of them a second process finds in the persistent cache; the table of
README; and the goals with "reached" or "missed", or "unclear" where a goal lies in the middle half.
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
from random import Random
from statistics import median, quantiles
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.monitoring
from gradient_steps import MODELS, VARIANTS, Run, memory_of, of_published
from published_steps import N_DEVICES, PUBLISHED, SHARDED

START = time.perf_counter()
COMPILED = "/jax/core/compile/backend_compile_duration"
PLAIN, WATCH, EVERY_10, CALLBACK = "plain", "watch, every step", "watch, every 10", "one callback, packed"
ALONE, COPY, BY_HAND = "its program alone, every 10", "its own copy, every 10", "norms by hand"
GOALS = {"transformer": (1.10, 1.02), "1,000 leaves": (1.2, 1.05), "126 layers": (1.2, 1.05)}  # every step, every 10
EVERY_STEP, EVERY_SHORT_STEP, SHORT_MS, EVERY_10TH = 1.35, 1.5, 0.2, 1.05  # of the others
TIMES_LESS, FIRST_STEP = 3.0, 1.3
SLOW = {"callback per leaf", CALLBACK, "NumPy on the host"}  # shorter blocks do, in which their numbers arrive
ALWAYS = (PLAIN, WATCH, EVERY_10, ALONE, COPY, BY_HAND)
ACTIVATIONS, OF_ACTIVATIONS, FIRST_OF_ACTIVATIONS = "watch, activations", {"mlp": 1.25, "transformer": 1.05}, 1.5
ONCE = {name: (*VARIANTS,) if name == "mlp" else (*ALWAYS, CALLBACK) for name in MODELS}  # in the first process
ONCE["transformer"] += (ACTIVATIONS,)
STEPS = list(dict.fromkeys(("mlp", *PUBLISHED, *MODELS)))  # those that take long come last
FIRST_STEPS_OF = (PLAIN, WATCH, "measure and record", CALLBACK)  # in the cache
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}  # of glibc
BLOCK_S, MOST_STEPS = 0.01, 40  # of a block
FEWEST_ROUNDS, BLOCKS_S = 3, 6.0  # in a process
N_FIRST_STEPS, FIRST_STEPS_S = 4, 4.0
N_WARMING, WARMING_S = 251, 4.0  # inspected steps before the first block
CACHE_S = 15.0  # that the persistent cache takes

Runs = dict[str, Callable[[], Run]]  # by variant


class Seconds(NamedTuple):
    """What a step takes in one process, its first too, and how many programs were compiled for it."""

    wall: float | None = None
    cpu: float | None = None
    first: float | None = None
    n_programs: int | None = None


class Figure(NamedTuple):
    """The median of some processes, and the ends of their middle half."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def _cell(figure: Figure | None) -> str:
    return f"{'' if figure is None else str(figure):18}"


Measured = list[dict[str, Seconds]]  # by process, of each variant


class Goal(NamedTuple):
    """What is to be reached, what was measured, and, as `floors`, names and figures of less than `watch` does."""

    what: str
    limit: float
    wall: Figure | None
    cpu: Figure | None
    at_least: bool = False
    floors: tuple[tuple[str, Figure | None, Figure | None], ...] = ()


def main() -> None:
    arguments = _arguments()
    if arguments.in_cache:
        _report_cache(arguments.in_cache)
        return
    if arguments.as_json:
        _warm_jax()
        print(json.dumps(_of_step(arguments.as_json, arguments.variant)))
        return
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {os.cpu_count()} cores, {platform.machine()}")
    names = [name for name in STEPS if name in (arguments.only or STEPS)]
    has_cache = arguments.cache and not arguments.only
    measured = _in_processes(names, arguments.variant or (), 60 * arguments.minutes - (CACHE_S if has_cache else 0))
    for name, processes in measured.items():
        _print_step(name, processes)
        if ACTIVATIONS in processes[0]:
            for program, (temporary, output) in memory_of(MODELS[name]).items():
                print(f"  {program:28}  {temporary:13,} temporary bytes  {output:13,} of outputs", flush=True)
    if has_cache:
        _print_cache()
    _print_for_readme(measured)
    goals = [goal for name, processes in measured.items() for goal in _goals(name, processes)]
    print(f"\n{'goals':64} {'by wall time':27}  by CPU time")
    for goal in goals:
        sign = ">=" if goal.at_least else "<="
        print(f"  {goal.what:54} {sign} {goal.limit:.2f}  {_verdict(goal, goal.wall)}  {_verdict(goal, goal.cpu)}")
        for what, wall, cpu in goal.floors:
            print(f"  {'    ' + what:62}  {_cell(wall)}           {_cell(cpu)}")


def _warm_jax() -> None:
    for variant in FIRST_STEPS_OF:
        _first_step(VARIANTS[variant](MODELS["mlp"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=STEPS)
    parser.add_argument("--variant", action="append", choices=[*VARIANTS], help="beside the plain one and watch's")
    parser.add_argument("--minutes", type=float, default=10, help="for all; each step has one process at least")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="leave the persistent cache out")
    parser.add_argument("--in-cache", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--as-json", metavar="STEP", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_processes(names: Sequence[str], variants: Sequence[str], seconds: float) -> dict[str, Measured]:
    """Of each step, in turn, until the time is over."""
    measured: dict[str, Measured] = {name: [] for name in names}
    took = dict.fromkeys(names, 0.0)
    while names:
        for name in names:
            start, n = time.perf_counter(), len(measured[name])
            if n and start + took[name] > START + seconds:
                continue
            if (found := _in_process(name, (*variants, *(() if n else ONCE.get(name, ()))))) is None:
                print(f"{name} is left out, since its library is not installed", flush=True)
                continue
            measured[name].append(found)
            print(_so_far(name, measured[name]), flush=True)  # what a run that is stopped leaves
            took[name] = time.perf_counter() - start
        now = time.perf_counter()
        names = [name for name in names if measured[name] and now + took[name] <= START + seconds]
    return {name: processes for name, processes in measured.items() if processes}


def _in_process(name: str, variants: Sequence[str]) -> dict[str, Seconds] | None:
    """Of a step, in a process of its own: what ran before, and lies in memory, makes half of a step of many leaves."""
    more = f" --xla_force_host_platform_device_count={N_DEVICES}" if name in SHARDED else ""
    chosen = [text for variant in dict.fromkeys(variants) for text in ("--variant", variant)]
    env = {**MALLOC, **os.environ, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + more}
    command = [sys.executable, __file__, "--as-json", name, *chosen]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout)
    return found and {variant: Seconds(*each) for variant, each in found.items()}


def _of_step(name: str, variants: Sequence[str] | None) -> dict[str, Seconds] | None:
    """All that is measured in this process; None without the step's library."""
    made = _published(name) if name in PUBLISHED else _modelled(name, variants or ())
    of_first = (*(FIRST_STEPS_OF if name == "mlp" else (PLAIN, WATCH)), ACTIVATIONS, BY_HAND)
    try:
        first = first_steps({variant: make for variant, make in made.items() if variant in of_first})
    except ImportError:
        return None
    runs, n_programs = ready(made)
    quick = in_turn(runs)
    return {v: Seconds(*quick.get(v, (None, None)), first.get(v), n_programs.get(v)) for v in made}


def _modelled(name: str, variants: Sequence[str]) -> Runs:
    plain_too = {"plain optax"} if any("optax" in variant for variant in variants) else set()
    chosen = [variant for variant in VARIANTS if variant in {*ALWAYS, *plain_too, *variants}]
    return {variant: partial(VARIANTS[variant], MODELS[name]) for variant in chosen}


def _published(name: str) -> Runs:
    whens = {PLAIN: None, WATCH: 1, EVERY_10: 10, ALONE: 10, COPY: 10, BY_HAND: None}
    hows = {ALONE: "alone", COPY: "copy", BY_HAND: "by hand"}
    return {v: partial(of_published, PUBLISHED[name], n, hows.get(v, "watch")) for v, n in whens.items()}


def first_steps(variants: Runs, seconds: float = FIRST_STEPS_S) -> dict[str, float]:
    """The CPU seconds of each."""
    least: dict[str, float] = {}
    end = time.perf_counter() + seconds
    for _ in range(N_FIRST_STEPS):
        for variant, make in variants.items():
            run = make()
            jax.clear_caches()
            least[variant] = min(took(lambda run=run: _first_step(run))[1], least.get(variant, float("inf")))
        if time.perf_counter() > end:
            break
    return least


def ready(variants: Runs, seconds: float = WARMING_S) -> tuple[dict[str, Run], dict[str, int]]:
    """Every variant, warm, and how many programs it compiled for that."""
    compilations: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compilations.append(event) if event == COMPILED else None
    )
    runs, n_programs = {}, {}
    for variant, make in variants.items():
        if variant == BY_HAND:
            continue
        run = runs[variant] = make()
        compilations.clear()
        run_steps(run, 3)
        n_programs[variant] = len(compilations)
        end, n_steps = time.perf_counter() + seconds, 10 if variant == EVERY_10 else 1
        for _ in range(N_WARMING if "watch" in variant else 20):  # others do the same in each step
            if time.perf_counter() < end:
                run_steps(run, n_steps)
        run_steps(run, 5)  # so that what is inspected is not the first step of a block
        run.read()
    jax.monitoring.clear_event_listeners()
    return runs, n_programs


def in_turn(runs: dict[str, Run], seconds: float = BLOCKS_S) -> dict[str, tuple[float, float]]:
    """The wall and CPU seconds of a step of each variant."""
    n_steps = 10 * min(max(round(BLOCK_S / 10 / took(lambda: run_steps(runs[PLAIN], 10))[0]), 1), MOST_STEPS // 10)
    blocks: dict[str, list[tuple[float, float]]] = {variant: [] for variant in runs}
    reads: dict[str, list[tuple[float, float]]] = {variant: [] for variant in runs}
    n_unread, order = dict.fromkeys(runs, 0), Random(0)
    end, n_rounds = time.perf_counter() + seconds, 0
    while n_rounds < FEWEST_ROUNDS or time.perf_counter() < end:
        n_rounds += 1
        for variant, run in order.sample([*runs.items()], len(runs)):
            n = 3 if variant in SLOW else n_steps
            spent = took(lambda run=run, n=n, reads=variant in SLOW: run_steps(run, n, reads))
            blocks[variant].append((spent[0] / n, spent[1] / n))
            n_unread[variant] += n // 10 if variant == EVERY_10 else n
            if n_unread[variant] + n > run.n_together():  # before the inspector reads by itself
                _read(run, reads[variant], n_unread, variant)
    for variant, run in runs.items():
        if not reads[variant]:
            _read(run, reads[variant], n_unread, variant)
    quick = {}
    for variant in runs:
        of_step, of_read = (map(_quick, zip(*each, strict=True)) for each in (blocks[variant], reads[variant]))
        share = 0.1 if variant == EVERY_10 else 1.0
        wall, cpu = (step + share * read for step, read in zip(of_step, of_read, strict=True))
        quick[variant] = wall, cpu
    return quick


def _read(run: Run, reads: list[tuple[float, float]], n_unread: dict[str, int], variant: str) -> None:
    """Read what was measured, and note what each measurement took."""
    n, n_unread[variant] = n_unread[variant], 0
    wall, cpu = took(run.read)
    reads.append((wall / n, cpu / n))


def run_steps(run: Run, n_steps: int, reads: bool = False) -> None:
    state = run.start
    for _ in range(n_steps):
        state = run.step(state)
    jax.block_until_ready(state)
    if reads:
        run.read()


def _first_step(run: Run) -> None:
    run_steps(run, 1, reads=True)


def took(function: Callable[[], Any]) -> tuple[float, float]:
    """Its wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


def _quick(seconds: Sequence[float]) -> float:
    """What a fifth of the blocks beat: other work on the machine only adds."""
    return sorted(seconds)[len(seconds) // 5]


def _figure(values: Sequence[float]) -> Figure | None:
    if len(values) < 2:
        return Figure(values[0], values[0], values[0]) if values else None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Figure(median(values), low, high)


def _ratio(processes: Measured, variant: str, by: str) -> Figure | None:
    """To the plain step."""
    base = "plain optax" if "optax" in variant and by != "first" else PLAIN
    of = [(getattr(each[variant], by), getattr(each[base], by)) for each in processes if variant in each]
    return _figure([seconds / plain for seconds, plain in of if seconds is not None])


def _plain_ms(processes: Measured) -> float:
    return 1e3 * median(each[PLAIN].wall or 0.0 for each in processes)


def _print_step(name: str, processes: Measured) -> None:
    n, made = len(processes), processes[0]
    print(f"\n{name}: {_plain_ms(processes):.3g} ms a step, {n} process{'es' * (n > 1)}")
    print(f"  {'':28}  {'wall':18}  {'CPU':18}  {'first step, CPU':18}  programs")
    for variant, each in made.items():
        figures = (_ratio(processes, variant, by) if variant != PLAIN else None for by in ("wall", "cpu", "first"))
        cells = "  ".join(map(_cell, figures))
        print(f"  {variant:28}  {cells}  {each.n_programs or ''}", flush=True)


def _so_far(name: str, processes: Measured) -> str:
    """The medians of all processes until now, in a line."""
    of = (WATCH, "wall"), (EVERY_10, "wall"), (WATCH, "first")
    figures = ", ".join(f"{figure.median:.2f}x" for each in of if (figure := _ratio(processes, *each)))
    return (
        f"{name}, process {len(processes)}: {_plain_ms(processes):.3g} ms; every step, every 10, the first: {figures}"
    )


def _goals(name: str, processes: Measured) -> list[Goal]:
    is_short = _plain_ms(processes) < SHORT_MS or name in SHARDED
    every, every_10 = GOALS.get(name, (EVERY_SHORT_STEP if is_short else EVERY_STEP, EVERY_10TH))

    def of(variant: str) -> tuple[Figure | None, Figure | None]:
        return _ratio(processes, variant, "wall"), _ratio(processes, variant, "cpu")

    def less(by: str) -> Figure | None:  # what costs nothing that can be measured counts as a hundredth
        callback, watch = (_ratio(processes[:1], variant, by) for variant in (CALLBACK, WATCH))
        return callback and watch and _figure([(callback.median - 1) / max(watch.median - 1, 0.01)])

    def beyond(by: str) -> Figure | None:
        more, watch = (_ratio(processes[:1], variant, by) for variant in (ACTIVATIONS, WATCH))
        return more and watch and _figure([1 + more.median - watch.median])

    by_hand = BY_HAND, None, _ratio(processes, BY_HAND, "first")
    first = _ratio(processes, WATCH, "first")
    goals = [
        Goal(f"{name}: {WATCH}", every, *of(WATCH)),
        Goal(f"{name}: {EVERY_10}", every_10, *of(EVERY_10), floors=tuple((v, *of(v)) for v in (ALONE, COPY))),
        Goal(f"{name}: first step", FIRST_STEP, None, first, floors=(by_hand,)),
    ]
    if ACTIVATIONS in processes[0]:
        limit = OF_ACTIVATIONS[name]
        goals.append(Goal(f"{name}: {ACTIVATIONS}, beyond every step", limit, beyond("wall"), beyond("cpu")))
        first = _ratio(processes[:1], ACTIVATIONS, "first")
        goals.append(Goal(f"{name}: {ACTIVATIONS}, first step", FIRST_OF_ACTIVATIONS, None, first))
    if CALLBACK in processes[0]:
        what = f"{name}: overhead of {CALLBACK}, by watch's"
        goals.append(Goal(what, TIMES_LESS, less("wall"), less("cpu"), at_least=True))
    return goals


def _print_for_readme(measured: dict[str, Measured]) -> None:
    print("\n| a step | plain | every step watched | every tenth | the first: CPU | norms by hand |")
    print("|---|---|---|---|---|---|")
    for name, processes in measured.items():
        of = (WATCH, "wall"), (EVERY_10, "wall"), (WATCH, "first"), (BY_HAND, "first")
        cells = [f"{figure.median:.2f}x" for each in of if (figure := _ratio(processes, *each))]
        title = name.replace("mlp", "JAX's MLP").replace("mnist", "MNIST")
        print(f"| {title} | {_plain_ms(processes):.2g} ms | {' | '.join(cells)} |")


def _verdict(goal: Goal, figure: Figure | None) -> str:
    if figure is None:
        return f"{'':27}"
    is_reached, could_be = (
        at >= goal.limit if goal.at_least else at <= goal.limit
        for at in (figure.median, figure.high if goal.at_least else figure.low)
    )
    return f"{_cell(figure)} {'reached' if is_reached else 'unclear' if could_be else 'missed':7}".ljust(27)


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
        _first_step(run)
        found = events.count("/jax/compilation_cache/cache_hits")
        print(f"  {variant:36} {found}, {events.count('/jax/compilation_cache/compile_requests_use_cache') - found}")


if __name__ == "__main__":
    main()
