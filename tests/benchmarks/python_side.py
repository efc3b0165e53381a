"""CPU time, memory and size of what a tool makes of a tree, in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import re
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from peers import TOOLS, page_of
from trees import TREES, mlp

ENOUGH_S = 0.6  # of runs of one tool on one tree
MOST_RUNS = 20
LIMIT_S = 1200.0  # for one tool on one tree; and for one page in the browser


class Figures(NamedTuple):
    """What was measured of a tool on a tree.

    Attributes:
      cpu_s: The best run's CPU time, of all threads, user and system.
      n_runs: Of so many, after a first one.
      n_bytes: What was made, in UTF-8.
      peak_bytes: How far the resident memory rose above what it was with the tree built, in the first run.
      trouble: What the tool raised, or why it was not run; then there is no figure.
    """

    cpu_s: float = float("nan")
    n_runs: int = 0
    n_bytes: int = 0
    peak_bytes: int = 0
    trouble: str = ""


def measure(tree: str, tool: str, page: Path | None = None, limit_s: float = LIMIT_S) -> Figures:
    """Build the tree and run the tool in a process that is forked for it, with everything imported.

    Args:
      page: Where the page for the browser is written.
      limit_s: The process is ended after so many seconds; then there is no figure.
    """
    return in_a_fork(_measure, tree, tool, page, limit_s=limit_s)


def in_a_fork(function: Any, *args: Any, limit_s: float = LIMIT_S) -> Any:
    """What `function` gives in a process that then ends: JAX starts there, and peers may break it."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, function, args))
    process.start()
    there.close()
    if not here.poll(limit_s):
        process.kill()
        process.join()
        return Figures(trouble=not_finished(limit_s))
    try:
        answer = here.recv()
    except EOFError:
        answer = None
    process.join()
    if answer is None:
        return Figures(trouble=f"the process ended with {process.exitcode}")
    return answer


def _send(there: Connection, function: Any, args: tuple) -> None:
    there.send(function(*args))


def _measure(tree_name: str, tool_name: str, page: Path | None) -> Figures:
    tool = TOOLS[tool_name]
    try:
        tool(mlp())  # what is imported and cached with the first call
        tree = TREES[tree_name].build()
        gc.collect()
        before = _reset_peak()
        cpu_s, made = _timed(tool, tree)
        peak_bytes = _peak() - before
        runs = [cpu_s] if cpu_s > ENOUGH_S else []
        while sum(runs) < ENOUGH_S and len(runs) < MOST_RUNS:
            runs.append(_timed(tool, tree)[0])
        n_bytes = len(made.encode("utf-8", "surrogatepass")) if isinstance(made, str) else 0
        if page is not None:
            page.write_text(page_of(tool_name, tree), "utf-8", "surrogatepass")
        return Figures(min(runs), len(runs), n_bytes, peak_bytes)
    except Exception as error:
        return Figures(trouble=short(error))


def _timed(tool: Any, tree: Any) -> tuple[float, Any]:
    start = time.process_time()
    made = tool(tree)
    return time.process_time() - start, made


def short(error: BaseException) -> str:
    """What was raised, in a few words."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:90]


def not_finished(limit_s: float) -> str:
    """What stands in the place of a figure that took too long."""
    return f"did not finish within {limit_s:g} s"


def _reset_peak() -> int:
    """Forget the peak of the resident memory, and say what it is now. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, field
    return int(found[1]) * 1024
