"""What treeviz does and costs on a GPU: python tests/benchmarks/gpu.py [--small] [--minutes 4]

Each line says what holds, or is a ratio of two times of this run, beside its goal where there is one; memory is in
bytes. The exit status is 1 if a line FAILS: a transfer that nobody asked for, bits that change in silence, a donation
that is lost, a copy that stays on the host, wrong numbers, names or places. Times never make it fail. "absent" is what
this machine does not have.

Without an accelerator, and with `--small`, all is tiny and takes half a minute. On a CPU values lie in host memory, so
no guard fires when they are read, and the times say nothing of a GPU. The script ends after `--minutes`, whatever
hangs: no part begins in the last fifth of them, and a part that was left out counts as failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax  # before `gradients`, which would choose the CPU
import jax.monitoring
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gradient_steps import MODELS, VARIANTS, Model
from gradients import COMPILED, EVERY_10, PLAIN, WATCH, first_steps, in_turn, ready, run_steps, took
from trees import jax_zeros, layers
from watched import copies, same_bytes

import treeviz as tv
from treeviz.analysis.details import MOST, window
from treeviz.steps.nan_origin.locate import locate_nan

N_STEPS = 20  # whose results are compared; a watched step compares itself from the 16th on
N_DONATED = 5
RAN_OUT = 0.8  # of the time: no part begins after that
READ_ONCE, EVERY_STEP, EVERY_10TH, FIRST_STEP = 1.3, 1.35, 1.05, 1.3  # goals


class Size(NamedTuple):
    """How much is measured.

    Attributes:
      width: Of each of 60 square arrays whose values are read.
      models: The steps that are watched.
      seconds: For the steps of a model to take turns; half of that to warm up, and for the first steps.
    """

    width: int
    models: dict[str, Model]
    seconds: float


WHOLE = Size(4096, {name: MODELS[name] for name in ("mlp", "transformer")}, 8.0)
# Two layers of three: a third layer and the transformer take the same way, and seconds to compile.
SMALL = Size(128, {"mlp": MODELS["mlp"]._replace(make=lambda: MODELS["mlp"].make()[::2])}, 0.0)


class Report:
    """Prints a line for each thing, and knows which do not hold."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def holds(self, what: str, is_so: bool, more: str = "") -> None:
        if not is_so:
            self.failed.append(what)
        self._line("holds" if is_so else "FAILS", what, more)

    def ratio(self, what: str, ratio: float, goal: float | None = None) -> None:
        verdict = "" if goal is None else f"goal <= {goal:g}x: {'reached' if ratio <= goal else 'missed'}"
        self._line(f"{ratio:.2f}x", what, verdict)

    def absent(self, what: str, why: str) -> None:
        self._line("absent", what, why)

    def memory(self, what: str, before: dict[str, int] | None, after: dict[str, int] | None) -> None:
        """The peaks of the first device; a peak never falls, so what took more before hides what follows."""
        if not before or not after:
            return self.absent(f"memory {what}", "memory_stats() says nothing here")
        peaks = [each.get("peak_bytes_in_use", 0) for each in (before, after)]
        self._line("bytes", f"peak memory {what}", f"{peaks[0]:,} before, {peaks[1]:,} after")

    @staticmethod
    def _line(sign: str, what: str, more: str) -> None:
        print(f"  {sign:8} {what}{f': {more}' if more else ''}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny arrays; always without an accelerator")
    parser.add_argument("--minutes", type=float, default=4, help="it ends by then, whatever hangs")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(60 * arguments.minutes, exit=True)
    jax.config.update("jax_numpy_rank_promotion", "allow")
    device, begin = jax.devices()[0], time.perf_counter()
    is_small = arguments.small or device.platform == "cpu"
    print(f"jax {jax.__version__} on {device.device_kind} ({device.platform}), {os.cpu_count()} cores")
    if is_small:
        print("small: what is printed as a ratio says nothing of a GPU")
    size, report = SMALL if is_small else WHOLE, Report()
    parts: dict[str, Callable[[Report, Size], None]] = {  # first what a peak of memory is read of, largest last
        "1,000 arrays on the device": look_at_arrays,
        **{f"a watched step: {name}": partial(watch_step, model=size.models[name]) for name in size.models},
        "explore: a window of values": move_window,
        "locate_nan": find_nan,
        "kinds of memory": name_memories,
        "the values of 60 arrays": read_values,
    }
    for name, part in parts.items():
        print(f"\n{name}")
        if time.perf_counter() - begin > RAN_OUT * 60 * arguments.minutes:
            report.holds(name, False, "left out, since the time is nearly over")
            continue
        try:
            part(report, size)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            report.holds(name, False, "it raised")
    print("\nall that can be checked holds" if not report.failed else f"\n{len(report.failed)} FAILED:")
    for what in report.failed:
        print(f"  {what}")
    faulthandler.cancel_dump_traceback_later()
    return min(len(report.failed), 1)


def best(function: Callable[[], Any], n: int = 5) -> float:
    """The wall seconds of the quickest of some calls, after a first one that may compile."""
    function()
    return min(took(function)[0] for _ in range(n))


def has_copies(tree: Any) -> bool:
    """Whether any array keeps a copy of its values on the host."""
    return any(x._npy_value is not None for x in jax.tree.leaves(tree) if isinstance(x, jax.Array))


def look_at_arrays(report: Report, size: Size) -> None:
    tree = layers(1000, jax_zeros, 8)
    jax.block_until_ready(tree)

    def page() -> str:
        return tv.render(tree)._repr_html_()

    is_guarded = False
    with jax.transfer_guard("disallow"):
        try:
            np.asarray(jax.tree.leaves(tree)[0])
        except Exception:  # the class of the error differs among releases
            is_guarded = True
        table, view = tv.walk(tree), tv.render(tree)
        shown = view.text(), view.html(), page()
    if is_guarded:
        report.holds("the guard forbids reading a value", True)
    else:
        report.absent("a guard of reading", "on a CPU values are seen where they lie, which is no transfer")
    n_leaves = sum(row.is_leaf for row in table)
    report.holds("walk, text and page of all arrays under a guard", n_leaves == 1000 and all(shown))
    report.holds("no array keeps a copy on the host", not has_copies(jax.tree.leaves(tree)[1:]))
    flattened = best(lambda: jax.tree_util.tree_flatten_with_path(tree))
    report.ratio("walk ÷ tree_flatten_with_path", best(lambda: tv.walk(tree)) / flattened)
    report.ratio("render to a page ÷ tree_flatten_with_path", best(page) / flattened)


def watch_step(report: Report, size: Size, model: Model) -> None:
    peaks = []
    for variant in (PLAIN, WATCH):
        run_steps(VARIANTS[variant](model), N_STEPS, reads=True)
        peaks.append(jax.devices()[0].memory_stats())
    report.memory(f"of {N_STEPS} steps, plain and watched", *peaks)
    compare_bits(report, model)
    check_donation(report, model)
    time_step(report, size, model)


def time_step(report: Report, size: Size, model: Model) -> None:
    runs = {variant: partial(VARIANTS[variant], model) for variant in (PLAIN, WATCH, EVERY_10)}
    firsts = first_steps({variant: runs[variant] for variant in (PLAIN, WATCH)}, size.seconds / 2)
    wall = {name: seconds[0] for name, seconds in in_turn(ready(runs, size.seconds / 2)[0], size.seconds).items()}
    report.ratio("every step watched ÷ plain", wall[WATCH] / wall[PLAIN], EVERY_STEP)
    report.ratio("every tenth watched ÷ plain", wall[EVERY_10] / wall[PLAIN], EVERY_10TH)
    report.ratio("first call watched ÷ plain, in CPU time", firsts[WATCH] / firsts[PLAIN], FIRST_STEP)


def compare_bits(report: Report, model: Model) -> None:
    """The results of the step, of itself again and of the watched one, from the same arguments, step by step."""
    x, y = model.data()
    inspector = tv.GradientInspector()
    watched = inspector.watch(jax.jit(lambda params, x, y: descended(model, params, x, y)))
    plain = jax.jit(lambda params, x, y: descended(model, params, x, y))
    state, n_other, repeats = model.make(), 0, True
    for _ in range(N_STEPS):
        apart, measured, again = plain(state, x, y), watched(state, x, y), plain(state, x, y)
        repeats = repeats and same_bytes(apart, again)
        n_other += not same_bytes(apart, measured)
        state = apart
    inspector.flush()
    report.holds("the step is watched", not watched.trouble and len(inspector.history.steps()) == N_STEPS)
    is_told = any("changes bits" in note for note in inspector.notes)
    if not repeats:
        report.absent("bits of a watched step", f"the step does not repeat its own; {n_other} differ")
    else:
        more = f"{n_other} of {N_STEPS} differ, which {'a note tells' if is_told else 'nothing tells'}"
        report.holds(f"bits are the same in {N_STEPS} steps", not n_other or is_told, more if n_other else "")


def descended(model: Model, params: Any, x: Any, y: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 1e-4 * g, params, jax.grad(model.loss)(params, x, y))


def check_donation(report: Report, model: Model) -> None:
    x, y = model.data()
    step = jax.jit(lambda params, x, y: descended(model, params, x, y), donate_argnums=0)
    watched = tv.GradientInspector(every=2).watch(step)

    def n_kept(function: Callable) -> list[int]:
        state, kept = copies(model.make()), []
        for _ in range(N_DONATED):
            given, state = state, function(state, x, y)
            kept.append(sum(not leaf.is_deleted() for leaf in jax.tree.leaves(given)))
        return kept

    plain, ours = n_kept(step), n_kept(watched)
    report.holds("each step that donates leaves as many arrays as without watching", ours == plain, f"{ours}")
    state = copies(model.make())
    tv.render(state, stats=True).html()
    step(state, x, y)
    report.holds("a look keeps no array from being donated", all(leaf.is_deleted() for leaf in jax.tree.leaves(state)))


def move_window(report: Report, size: Size) -> None:
    values = np.arange(size.width**2, dtype=np.float32).reshape(size.width, size.width)
    array, compiled = jax.device_put(values), []
    end = size.width - MOST
    window(array)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event == COMPILED else None
    )
    with jax.transfer_guard("disallow"):
        parts = {start: window(array, (0, 1), (start, end - start)) for start in (0, end // 3, end)}
    jax.monitoring.clear_event_listeners()
    are_right = [
        np.array_equal(part.values, values[start : start + MOST, end - start : end - start + MOST])
        for start, part in parts.items()
    ]
    report.holds("its values are right, and are read under a guard", all(are_right))
    report.holds("to move it compiles nothing", not compiled)
    report.holds("the array keeps no copy on the host", not has_copies(array))
    part = parts[0]
    name = f"{jax.devices()[0].platform}:{jax.devices()[0].id}"
    report.holds("the device is named", part.devices == (name,), ", ".join(part.devices))
    whole = best(lambda: np.array(jax.device_put(array, may_alias=False)))
    report.ratio("a window ÷ a copy of the whole array on the host", best(lambda: window(array)) / whole)
    try:
        widget = tv.explore({"w": array})
    except ImportError as error:
        return report.absent("explore", str(error))
    sections = widget._backend.answer("statistics", (1,), lambda: False)[0]["sections"]
    widget.close()
    shown = str([section.get("pairs") for section in sections])
    report.holds("explore answers what the statistics of an array are", "max" in shown, shown[:60])


def find_nan(report: Report, size: Size) -> None:
    def loss(params, x):
        return jnp.mean(jnp.log(jnp.abs(x @ params["w"])) * params["scale"])

    step = jax.jit(lambda params, x: jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params, x)))
    width = min(size.width, 1024)
    params = jax.device_put({"w": np.eye(width, dtype=np.float32), "scale": np.ones(width, np.float32)})
    good = np.ones((8, width), np.float32)
    bad = good.copy()
    bad[3, 5] = 0
    good, bad = jax.device_put((good, bad))
    with jax.transfer_guard("disallow"):
        found, none = locate_nan(step, params, bad), locate_nan(step, params, good)
    report.holds("a step without a NaN has none", none is None)
    what = "" if found is None else str(found).partition(", which")[0]
    is_right = found is not None and found.primitive == "log" and "at [3, 5]" in what
    is_right = is_right and Path(__file__).name in what
    report.holds("a log of 0 is located, with its line and element", is_right, what)
    seconds = best(lambda: locate_nan(step, params, bad), 2)
    report.ratio("to locate it ÷ a step", seconds / best(lambda: jax.block_until_ready(step(params, bad))))


def name_memories(report: Report, size: Size) -> None:
    device = jax.devices()[0]
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    kinds = [memory.kind for memory in device.addressable_memories()]
    default = device.default_memory().kind
    for kind in kinds:
        place = jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
        try:
            array = jax.device_put(values, place)
        except Exception as error:
            report.absent(f"arrays in {kind}", str(error).splitlines()[0])
            continue
        with jax.transfer_guard("disallow"):
            view = tv.render({"w": array}, stats=True)
        (row,) = view.table.leaves
        told = row.facts.sharding.memory
        text = view.text()
        is_named = (told == "" and kind not in text) if kind == default else (told == kind and f"· {kind}" in text)
        report.holds(f"{kind} is named right", is_named, "the default, which goes without saying" * (kind == default))
        column = "device_bytes" if kind == default else f"{kind}.bytes"
        report.holds(f"the bytes in {kind} are counted there", view.table[0][column] == values.nbytes)
        numbers = [view.table[0][name] for name in ("min", "max", "mean")]
        report.holds(f"the statistics of an array in {kind} are right", numbers == [0, 5, 2.5])
        report.holds(f"an array in {kind} keeps no copy on the host", not has_copies(array))
    if "pinned_host" not in kinds:
        report.absent("pinned_host", f"this device has {', '.join(kinds)}")


def read_values(report: Report, size: Size) -> None:
    device, n = jax.devices()[0], 60
    before = device.memory_stats() or {}
    n_values = n * size.width**2
    has_room = before.get("bytes_limit", 1 << 40) - before.get("bytes_in_use", 0) > 6 * n_values
    dtype = jnp.float32 if has_room else jnp.bfloat16

    @jax.jit
    def make(seed):
        x = jax.random.normal(jax.random.key(seed), (size.width, size.width), dtype)
        return x.at[0, 0].set(jnp.where(seed == 7, jnp.nan, 1000.0).astype(dtype))

    tree = {f"w{i}": make(np.uint32(i)) for i in range(n)}
    sums = jax.jit(lambda tree: [jnp.sum(x, dtype=jnp.float32) for x in jax.tree.leaves(tree)])
    once = best(lambda: jax.block_until_ready(sums(tree)))
    before = device.memory_stats()
    with jax.transfer_guard("disallow"):
        root = tv.render(tree, stats=True).table[0]
    report.memory(f"of the statistics of {n_values:,} values in {np.dtype(dtype).name}", before, device.memory_stats())
    are_right = (root["nan"], root["inf"], root["max"]) == (1, 0, 1000.0) and abs(root["mean"]) < 0.1
    report.holds("one NaN among all values is counted, and the largest is right", are_right)
    report.holds("no array keeps a copy on the host", not has_copies(tree))
    statistics = best(lambda: tv.render(tree, stats=True), 3)
    report.ratio("render with stats=True ÷ to sum up each array once", statistics / once, READ_ONCE)
    looked = best(lambda: tv.check(tree), 3)
    report.ratio("check, which reads no value, ÷ to sum up each array once", looked / once)


if __name__ == "__main__":
    sys.exit(main())
