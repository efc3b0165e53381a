"""What `treeviz.render` costs, beside its peers and the floor: python tests/benchmarks/render.py [--full] [--only NAME]

In one run, on the same trees: treeviz; treescope's page, whole and abbreviated, and its text; Equinox's `tree_pformat`;
PyTreeClass's `tree_summary`; and the floor, `tree_flatten_with_path` with `keystr` of every path.

For each tree and tool a process of its own is forked, everything imported and warmed up on a small tree. It prints
- CPU time of all threads (`time.process_time`), the best of some runs that take 0.6 s together; a single run where
  one takes longer. µs per leaf, and as a multiple of treeviz's time for the same kind of output;
- the bytes of the output, and how far the resident memory rose in the first run (VmHWM of Linux, reset before it);
- of the pages, in headless Chromium: CPU time of the main thread until the page is idle, over a blank page; elements
  in the document on open; one toggle; expand all; a keystroke in the search box. See browser.py.
Then what the statistics of 124 million floats cost, and how right they are; and the goals with "reached" or "missed".

CPU times on a busy machine are up to a half too high; ratios within one run hold better, so no time stands without one.
The default takes four minutes of CPU time. `--full` adds what takes minutes, and a million leaves. What takes longer
than `--limit` seconds is ended, and did not finish.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import peers
from goals import MB, Measured, goals
from python_side import LIMIT_S, Figures, in_a_fork, measure
from trees import TREES
from value_stats import N_FLOATS, StatisticsFigures, measure_statistics

STATISTICS = "statistics"
_MARKER = "<script type=text/plain>"


def main() -> None:
    arguments = _arguments()
    # Forked before JAX has started a thread, so its warning is about somebody else.
    warnings.filterwarnings("ignore", "os.fork|.*multi-threaded.*fork")
    names = arguments.only or [*TREES, STATISTICS]
    measured = Measured()
    start = time.monotonic()
    print(" · ".join(f"{name} {version(name)}" for name in ("jax", "treescope", "equinox", "pytreeclass")))
    with tempfile.TemporaryDirectory() as folder:
        for tree in TREES:
            if tree in names:
                _measure_python(tree, measured, Path(folder), arguments)
        if STATISTICS in names:
            measured.statistics = statistics = in_a_fork(measure_statistics)
            _print_statistics(statistics)
        if arguments.browser:
            _measure_browser(measured, Path(folder), arguments)
    _print_goals(measured)
    print(f"\n{time.monotonic() - start:.0f} s")
    if arguments.json:
        _save(measured, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*TREES, STATISTICS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--full", action="store_true", help="what takes minutes, too")
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="only the Python side")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="seconds for one tool on one tree")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def _measure_python(tree: str, measured: Measured, folder: Path, arguments: argparse.Namespace) -> None:
    """Measure the Python side of a tree, and print it block by block."""
    title, n_leaves, _ = TREES[tree]
    print(f"\n{title} ({tree}) · {n_leaves:,} leaves")
    titles = f"{'CPU ms':>11}{'µs/leaf':>9}{'x treeviz':>11}{'runs':>6}{'bytes':>13}{'x treeviz':>11}{'peak MiB':>10}"
    print(f"  {'':26}{titles}")
    for tools in (peers.WALKS, peers.HTML, peers.TEXT):
        ours = next(tool for tool in tools if tool.startswith("treeviz"))
        block: dict[str, Figures] = {}
        for tool in (ours, *(tool for tool in tools if tool != ours)):
            why_not = peers.is_left_out(tree, tool, arguments.full)
            page = _page_file(folder, tree, tool) if arguments.browser and tool in peers.HTML else None
            block[tool] = (
                Figures(trouble=f"not run ({why_not})") if why_not else measure(tree, tool, page, arguments.limit)
            )
            _print_figures(tool, block[tool], block[ours], n_leaves)
            if not why_not:
                measured.python[tree, tool] = block[tool]
    figures = measured.python.get((tree, "treeviz"))
    if figures and not figures.trouble:
        measured.static_bytes[tree] = in_a_fork(_n_static_bytes, tree)


def _page_file(folder: Path, tree: str, tool: str) -> Path:
    return folder / f"{tree}-{tool.replace(', ', '-')}.html"


def _n_static_bytes(tree: str) -> int:
    """How much of treeviz's page are the plain rows, which are there without scripts."""
    page = peers.HTML["treeviz"](TREES[tree].build())
    return len(page[: page.index(_MARKER)].encode("utf-8", "surrogatepass"))


def _print_figures(tool: str, figures: Figures, ours: Figures, n_leaves: int) -> None:
    if figures.trouble:
        print(f"  {tool:26} {figures.trouble}", flush=True)
        return
    cpu = f"{1e3 * figures.cpu_s:11,.2f}{1e6 * figures.cpu_s / n_leaves:9,.2f}{_ratio(figures.cpu_s, ours.cpu_s):>11}"
    n_bytes = f"{figures.n_bytes:13,}{_ratio(figures.n_bytes, ours.n_bytes):>11}" if figures.n_bytes else " " * 24
    print(f"  {tool:26}{cpu}{figures.n_runs:6}{n_bytes}{figures.peak_bytes / MB:10,.1f}", flush=True)


def _ratio(mine: float, ours: float) -> str:
    ratio = mine / ours if ours else float("nan")
    if math.isnan(ratio):
        return "–"
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _measure_browser(measured: Measured, folder: Path, arguments: argparse.Namespace) -> None:
    from browser import open_bench

    with open_bench(folder, arguments.limit) as bench:
        measured.blank_s = bench.blank_s
        print("\nIn Chromium: ms of main-thread CPU, in brackets x treeviz;", end=" ")
        print(f"a blank page takes {1e3 * bench.blank_s:.1f}")
        titles = f"{'ready, over blank':>19}{'elements':>19}{'toggle':>17}{'expand all':>17}"
        print(f"  {'':42}{titles}{'by bytes':>10}{'again':>8}{'by name':>9}{'keystroke':>11}{'slowest':>9}")
        for tree in TREES:
            for tool in peers.HTML:
                file = _page_file(folder, tree, tool)
                if not file.exists():
                    continue
                if (tree, tool) == ("abstract-10k", "treescope") and not arguments.full:
                    print(f"  {tree + ', ' + tool:42} not run (slow: --full runs it)")
                    continue
                measured.pages[tree, tool] = bench.measure(file, tool)
                _print_page(tree, tool, measured)


def _print_page(tree: str, tool: str, measured: Measured) -> None:
    page, ours = measured.pages[tree, tool], measured.pages[tree, "treeviz"]
    name = f"  {tree + ', ' + tool:42}"
    if page.trouble:
        print(f"{name} {page.trouble}", flush=True)
        return

    def cell(attribute: str, width: int) -> str:
        value, other = getattr(page, attribute), getattr(ours, attribute)
        text = f"{value:,.0f}" if attribute == "elements" else f"{1e3 * value:,.1f}"
        if math.isnan(value):
            return "–".rjust(width)
        return " " + f"{text} ({_ratio(value, other)})".rjust(width - 1)

    cells = cell("ready_s", 19) + cell("elements", 19) + cell("toggle_s", 17) + cell("expand_all_s", 17)
    alone = ((page.sort_s, 10), (page.sort_again_s, 8), (page.sort_names_s, 9))
    ours_alone = "".join(
        f"{'–' if math.isnan(seconds) else format(1e3 * seconds, '.1f'):>{width}}"
        for seconds, width in (*alone, (page.keystroke_s, 11), (page.slowest_keystroke_s, 9))
    )
    print(f"{name}{cells}{ours_alone}", flush=True)


def _print_statistics(figures: StatisticsFigures) -> None:
    print(f"\nStatistics of GPT-2's {N_FLOATS / 1e6:.0f} M float32, render(tree, stats=True) ({STATISTICS})")
    if figures.trouble:
        print(f"  {figures.trouble}")
        return
    for name, seconds in (
        ("treeviz", figures.cpu_s),
        ("NumPy's min, max, sum, dot", figures.floor_s),
        ("treescope (large arrays left out)", figures.treescope_s),
    ):
        print(f"  {name:36}{seconds:8.3f} s CPU{_ratio(seconds, figures.cpu_s):>8} x treeviz")
    print(f"  treeviz, ns an element: {1e9 * figures.cpu_s / N_FLOATS:.1f}")
    print(f"  programs that XLA compiled: {figures.n_compilations}")
    errors = ", ".join(f"{dtype} {error:.1g}" for dtype, error in figures.errors.items())
    print(f"  greatest relative error against NumPy in float64: {errors}")


def _print_goals(measured: Measured) -> None:
    print(f"\n{'Goals':74}{'measured':>12}{'goal':>12}")
    for goal in goals(measured):
        number = (
            "–"
            if goal.measured is None
            else f"{goal.measured:,.3g}"
            if goal.measured < 1000
            else f"{goal.measured:,.0f}"
        )
        limit = f"{'≥' if goal.at_least else '≤'} {goal.limit:,g}"
        print(f"  {goal.figure[:70]:72}{number:>12}{limit:>12} {goal.unit:8} {goal.verdict:8} {goal.beside}".rstrip())


def _save(measured: Measured, file: Path) -> None:
    def plain(value: float) -> float | None:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def figures(each) -> dict:
        return {name: plain(value) for name, value in each._asdict().items()}

    everything = {
        "argv": sys.argv[1:],
        "python": [{"tree": tree, "tool": tool, **figures(f)} for (tree, tool), f in measured.python.items()],
        "blank_s": plain(measured.blank_s),
        "pages": [{"tree": tree, "tool": tool, **figures(f)} for (tree, tool), f in measured.pages.items()],
        "static_bytes": measured.static_bytes,
        "statistics": figures(measured.statistics) if measured.statistics else None,
        "goals": [{**figures(goal), "verdict": goal.verdict} for goal in goals(measured)],
    }
    file.write_text(json.dumps(everything, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
