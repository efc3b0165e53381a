"""What looking at gradients costs, as a multiple of the plain step: python tests/benchmarks/gradients.py [--only MODEL]

The same step of three models: the multilayer perceptron of JAX's documentation, whose step is little more than its
dispatch; a transformer of 15 million parameters; and 1,000 small leaves. Each is run plain, with treeviz's doors
(`watch` every step and every 10, `measure` with `record`, `inspect_gradients` in an optax chain, which is compared with
the same chain without it), and with what people do otherwise: a `jax.debug.callback` per leaf, one for all, and
`numpy.linalg.norm` of gradients that the step returns.

Wall time, in one process: the variants run in turn, a block of steps each, and every block is compared with the plain
one of the same round; the figure is the median over the rounds. A block ends when all its steps are computed and all
their numbers are read. "compile" is XLA's time for the first step, "first step" the CPU time of tracing, compiling and
running it.

Then how many programs each compiles and how many of them a second process finds in the persistent cache; and the goals
with "reached" or "missed". On a busy machine a ratio moves by a tenth from run to run.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

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
}
TIMES_LESS, COMPILE = 3.0, 1.3
SLOW = {"callback per leaf", CALLBACK, "NumPy on the host"}  # shorter blocks do


def main() -> None:
    arguments = _arguments()
    if arguments.in_cache:
        _report_cache(arguments.in_cache)
        return
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {os.cpu_count()} cores, {platform.machine()}")
    verdicts = []
    for model in arguments.only or MODELS:
        ratios, compiled = _measure(model, arguments.rounds)
        verdicts += _goals(model, ratios, compiled)
    if arguments.cache:
        _print_cache()
    print("\ngoals")
    for what, figure, limit, at_least in verdicts:
        reached = figure >= limit if at_least else figure <= limit
        sign = ">=" if at_least else "<="
        print(f"  {what:50} {figure:6.2f}  {sign} {limit:.2f}  {'reached' if reached else 'missed'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="leave the persistent cache out")
    parser.add_argument("--in-cache", nargs=2, metavar=("FOLDER", "VARIANT"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(name: str, n_rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Of each variant: the ratio of a step to the plain one, and of the time to compile."""
    model = MODELS[name]
    leaves = jax.tree.leaves(model.make())
    print(f"\n{name}: {len(leaves)} leaves, {sum(leaf.size for leaf in leaves):,} parameters, {n_rounds} rounds")
    compilations: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compilations.append(seconds) if event == COMPILED else None
    )
    runs, first, compiled, n_programs = {}, {}, {}, {}
    for variant, make in VARIANTS.items():
        runs[variant] = run = make(model)
        compilations.clear()
        start = time.process_time()
        run.step()
        run.finish()
        first[variant] = time.process_time() - start
        compiled[variant] = sum(compilations)
        for _ in range(2):
            run.step()
        run.finish()
        n_programs[variant] = len(compilations)

    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    order = list(VARIANTS)
    for n in range(n_rounds):
        for variant in order[n % len(order) :] + order[: n % len(order)]:
            n_steps = max(model.n_steps // 8, 3) if variant in SLOW else model.n_steps
            seconds[variant].append(_seconds_per_step(runs[variant], n_steps))

    ratios = {}
    print(f"  {'':36}  ms/step  ratio  (quartiles)     compile  first step  programs")
    for variant in VARIANTS:
        each = sorted(mine / base for mine, base in zip(seconds[variant], seconds[BASES[variant]], strict=True))
        ratios[variant] = statistics.median(each)
        low, high = each[len(each) // 4], each[-1 - len(each) // 4]
        ms = 1e3 * statistics.median(seconds[variant])
        compile_ratio = compiled[variant] / compiled[BASES[variant]]
        first_ratio = first[variant] / first[BASES[variant]]
        print(
            f"  {variant:36} {ms:8.2f}  {ratios[variant]:5.2f}  ({low:.2f} to {high:.2f})"
            f"  {compile_ratio:8.2f}  {first_ratio:10.2f}  {n_programs[variant]:8}"
        )
    jax.monitoring.clear_event_listeners()
    return ratios, {name: compiled[name] / compiled[BASES[name]] for name in compiled}


def _seconds_per_step(run: Run, n_steps: int) -> float:
    start = time.perf_counter()
    for _ in range(n_steps):
        run.step()
    run.finish()
    return (time.perf_counter() - start) / n_steps


def _goals(model: str, ratios: dict[str, float], compiled: dict[str, float]) -> list[tuple[str, float, float, bool]]:
    every, every_10 = GOALS[model]
    # what costs nothing that can be measured counts as a hundredth
    less = (ratios[CALLBACK] - 1) / max(ratios[WATCH] - 1, 0.01)
    return [
        (f"{model}: {WATCH}", ratios[WATCH], every, False),
        (f"{model}: {EVERY_10}", ratios[EVERY_10], every_10, False),
        (f"{model}: times less overhead than one callback", less, TIMES_LESS, True),
        (f"{model}: time to compile", compiled[WATCH], COMPILE, False),
    ]


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
