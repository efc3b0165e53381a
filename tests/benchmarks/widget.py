"""What the explorer costs in a real JupyterLab, beside its peers: python tests/benchmarks/widget.py

In one run, on trees of the same shape: `treeviz.explore`, ipytree, an accordion of core widgets, and treescope, each at
the sizes that it survives. Each has a JupyterLab and a Chromium of its own, and has shown a small tree before.

- interactive: from running the cell until the first row is on the screen, Python included; the best of some runs.
- expand: from the click on a node of n / 20 children until they are on the screen (two frames, 33 ms, are the least).
- elements: in the cell's output, shadow trees included, at the most; models: of ipywidgets, for this tree.
- selection: from the click until an observer in Python is called; search: until the matches are counted on the screen.

Then the goals, with "reached" or "missed". Wall time: on a busy machine it is several times too high, and ratios hold
better. What takes longer than `--limit` seconds is ended, and a peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUNS = {
    "treeviz": (1_000, 10_000, 100_000),
    "ipytree": (1_000,),  # at 3,000 leaves messages are lost, and it stays empty
    "accordion": (1_000,),  # likewise
    "treescope": (1_000, 10_000, 100_000),
}
COLUMNS = {"interactive": "ms", "python": "ms", "expand": "ms", "selection": "ms", "search": "ms"}
COUNTS = ("n_elements", "n_models")
Figures = dict[tuple[str, int], dict[str, Any]]


def main() -> None:
    arguments = _arguments()
    measured: Figures = {}
    print(f"{'':24}" + "".join(f"{name:>13}" for name in (*COLUMNS, "elements", "models")))
    for tool, sizes in RUNS.items():
        if arguments.only and tool not in arguments.only:
            continue
        if tool != "accordion" and find_spec(tool) is None:
            print(f"{tool}: not installed, and left out")
            continue
        for n_leaves in sizes:
            found = _measure(tool, n_leaves, arguments.limit)
            measured[tool, n_leaves] = found
            title = f"{tool}, {n_leaves:,} leaves"
            if trouble := found.get("trouble"):
                print(f"{title:24}   {trouble}", flush=True)
                continue
            cells = [f"{found[name]:,.0f} {unit}" if name in found else "" for name, unit in COLUMNS.items()]
            cells += [f"{found[name]:,}" for name in COUNTS]
            print(f"{title:24}" + "".join(f"{cell:>13}" for cell in cells), flush=True)
    _print_ratios(measured)
    _print_goals(measured, with_live=not arguments.only)
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if arguments.json:
        named = {f"{tool} {n_leaves}": found for (tool, n_leaves), found in measured.items()}
        arguments.json.write_text(json.dumps(named, indent=2))


def _measure(tool: str, n_leaves: int, limit_s: float) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "in_lab.py"), tool, str(n_leaves)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, trouble = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()  # its server and its browser end with it
        process.communicate()
        return {"trouble": f"not finished in {limit_s:.0f} s"}
    if process.returncode:
        lines = [line for line in trouble.splitlines() if line.strip()]
        return {"trouble": "failed: " + (lines[-1] if lines else str(process.returncode))[:100]}
    return json.loads(said.splitlines()[-1])


def _get(measured: Figures, tool: str, n_leaves: int, name: str) -> float | None:
    return measured.get((tool, n_leaves), {}).get(name)


def _print_ratios(measured: Figures) -> None:
    print()
    for name in ("interactive", "expand", "selection"):
        for (tool, n_leaves), found in measured.items():
            ours = _get(measured, "treeviz", n_leaves, name)
            if tool != "treeviz" and ours and name in found:
                print(
                    f"{name:12} {n_leaves:>8,} leaves: {tool} takes {found[name] / ours:.3g} times as long as treeviz"
                )


def _print_goals(measured: Figures, *, with_live: bool) -> None:
    rows: list[tuple[str, float | None, float, str]] = [
        ("interactive, 10,000 leaves", _get(measured, "treeviz", 10_000, "interactive"), 1000, "ms"),
        ("interactive, 100,000 leaves", _get(measured, "treeviz", 100_000, "interactive"), 2500, "ms"),
    ]
    for n_leaves in RUNS["treeviz"]:
        peers = [_get(measured, tool, n_leaves, "interactive") for tool in RUNS if tool != "treeviz"]
        alive = [peer for peer in peers if peer is not None]
        ours = _get(measured, "treeviz", n_leaves, "interactive")
        if ours is not None and alive:
            rows.append((f"interactive by the best peer, {n_leaves:,} leaves", ours / min(alive), 1 / 3, "x"))
    for name, title, limit, unit in (
        ("expand", "expand", 100, "ms"),
        ("n_elements", "elements", 600, ""),
        ("n_models", "models", 2, ""),
        ("selection", "selection seen in Python", 200, "ms"),
    ):
        worst = [found[name] for (tool, _), found in measured.items() if tool == "treeviz" and name in found]
        rows.append((f"{title}, any size", max(worst, default=None), limit, unit))
    rows.append(("search, 100,000 leaves", _get(measured, "treeviz", 100_000, "search"), 150, "ms"))
    if with_live:
        from live import ratios

        rows.append(("live panel's part of a 10 ms step, 100 leaves", 100 * ratios(100)["share"], 2, "%"))
        rows.append(("wheel", _wheel_bytes() / 1000, 200, "kB"))
    print()
    for title, figure, limit, unit in rows:
        verdict = "not run" if figure is None else "reached" if figure <= limit else "missed"
        shown = "" if figure is None else f"{figure:,.3g} {unit}" if figure < 10 else f"{figure:,.0f} {unit}"
        print(f"{title:50}{shown:>12}   goal {limit:,.3g} {unit:3} {verdict}")


def _wheel_bytes() -> int:
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(build, check=True, capture_output=True, cwd=HERE.parents[1])
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.stat().st_size


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=300, metavar="S", help="seconds for one tool on one tree")
    parser.add_argument("--only", nargs="*", choices=RUNS, metavar="TOOL", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
