"""What is to be reached, and whether it is: every goal with the figure that it is judged by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from browser import PageFigures
from peers import FLOOR
from python_side import Figures
from trees import TREES
from value_stats import StatisticsFigures

MB = 2**20


@dataclass
class Measured:
    """Everything that one run has measured."""

    python: dict[tuple[str, str], Figures] = field(default_factory=dict)  # by tree and tool
    static_bytes: dict[str, int] = field(default_factory=dict)  # by tree: of the plain rows in treeviz's page
    blank_s: float = float("nan")
    pages: dict[tuple[str, str], PageFigures] = field(default_factory=dict)
    statistics: StatisticsFigures | None = None

    def cpu_s(self, tree: str, tool: str) -> float | None:
        figures = self.python.get((tree, tool))
        return None if figures is None or figures.trouble else figures.cpu_s

    def page(self, tree: str, tool: str = "treeviz") -> PageFigures | None:
        figures = self.pages.get((tree, tool))
        return None if figures is None or figures.trouble else figures


class Goal(NamedTuple):
    """A goal and what was measured.

    Attributes:
      figure: What is measured, where.
      measured: None: was not measured.
      limit: What is to be reached: at most this, or at least this if `at_least`.
      beside: The same figure of others in the same run.
    """

    figure: str
    measured: float | None
    limit: float
    unit: str
    at_least: bool = False
    beside: str = ""

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not run"
        reached = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "reached" if reached else "missed"


def goals(all_of: Measured) -> Iterator[Goal]:
    """The goals, in the order of their table."""
    yield from _python_goals(all_of)
    yield from _browser_goals(all_of)
    figures = all_of.statistics
    if figures is not None and not figures.trouble:
        beside = f"{figures.cpu_s / figures.floor_s:.1f}x NumPy's min, max, sum and dot"
        yield Goal("statistics of GPT-2's 124 M floats", figures.cpu_s, 0.8, "s CPU", beside=beside)
        yield Goal("… XLA compilations", figures.n_compilations, 0, "")
        worst = max(figures.errors, key=lambda dtype: figures.errors[dtype])
        error = figures.errors[worst]
        yield Goal("… relative error, worst dtype", error, 1e-3, "", beside=f"{worst}, against NumPy in float64")
    deep = [all_of.python.get(("depth-200k", tool)) for tool in ("treeviz", "treeviz text")]
    if all(figures is not None for figures in deep):
        levels = 0 if any(figures and figures.trouble for figures in deep) else TREES["depth-200k"].n_leaves - 1
        yield Goal("nesting depth, HTML and text", levels, 200_000, "levels", at_least=True)


def _python_goals(all_of: Measured) -> Iterator[Goal]:
    def over(tree: str, tool: str, other: str) -> float | None:
        mine, theirs = all_of.cpu_s(tree, tool), all_of.cpu_s(tree, other)
        return None if mine is None or theirs is None else mine / theirs

    def beside(tree: str, tool: str, *others: str) -> str:
        ratios = [(other, over(tree, other, tool)) for other in others]
        return ", ".join(f"{other} {ratio:.3g}x that" for other, ratio in ratios if ratio is not None)

    llama = all_of.cpu_s("llama", "treeviz")
    yield Goal(
        "HTML, Llama 723",
        None if llama is None else 1e6 * llama / 723,
        15,
        "µs/leaf",
        beside=beside("llama", "treeviz", "treescope", FLOOR),
    )
    yield Goal("… times less than treescope", over("llama", "treescope", "treeviz"), 80, "x", True)
    yield Goal("… times the floor", over("llama", "treeviz", FLOOR), 6, "x")
    for tree, limit in (("abstract-10k", 120), ("jax-10k", 28)):
        yield Goal(
            f"HTML, {TREES[tree].title}: times less than treescope",
            over(tree, "treescope", "treeviz"),
            limit,
            "x",
            True,
        )
    large, huge = all_of.cpu_s("numpy-100k", "treeviz"), all_of.cpu_s("numpy-1m", "treeviz")
    others = beside("numpy-100k", "treeviz", "treescope", FLOOR)
    yield Goal("HTML, 100,000 leaves", large, 1.0, "s CPU", beside=others)
    growth = None if large is None or huge is None else huge / large
    others = ""
    if growth is not None:
        floor = over_trees(all_of, "numpy-1m", "numpy-100k", FLOOR)
        others = f"the floor grows {floor:.3g}x" if floor else ""
    yield Goal("… 1,000,000 leaves cost times that", growth, 12, "x", beside=others)

    for tree in TREES:
        text = all_of.cpu_s(tree, "treeviz text")
        if tree not in ("mlp", "depth-500", "depth-200k") and (text is not None or tree != "numpy-1m"):
            others = beside(tree, "treeviz text", "treescope text", "equinox tree_pformat", "PyTreeClass tree_summary")
            per_leaf = None if text is None else 1e6 * text / TREES[tree].n_leaves
            yield Goal(f"text, {TREES[tree].title}", per_leaf, 12, "µs/leaf", beside=others)

    for tree, n_static in all_of.static_bytes.items():
        figures = all_of.python[tree, "treeviz"]
        limit = 34_000 + 14 * TREES[tree].n_leaves  # of a wheel: a checkout serves the sources, a third more
        other = all_of.python.get((tree, "treescope"))
        others = f"treescope {other.n_bytes / figures.n_bytes:.3g}x all of it" if other and other.n_bytes else ""
        name = f"page bytes without the static rows, {TREES[tree].title}"
        yield Goal(name, figures.n_bytes - n_static, limit, "B", beside=others)

    figures = all_of.python.get(("numpy-100k", "treeviz"))
    peak = None if figures is None or figures.trouble else figures.peak_bytes / MB
    others = ""
    if figures is not None and figures.peak_bytes:
        floor = all_of.python.get(("numpy-100k", FLOOR))
        others = f"the floor {floor.peak_bytes / figures.peak_bytes:.3g}x that" if floor else ""
    yield Goal("peak memory, 100,000 leaves", peak, 40, "MiB", beside=others)


def over_trees(all_of: Measured, tree: str, other: str, tool: str) -> float | None:
    mine, theirs = all_of.cpu_s(tree, tool), all_of.cpu_s(other, tool)
    return None if mine is None or theirs is None else mine / theirs


def _browser_goals(all_of: Measured) -> Iterator[Goal]:
    def beside(tree: str, name: str) -> str:
        mine, theirs = all_of.page(tree), all_of.page(tree, "treescope")
        parts = []
        if mine and theirs and getattr(mine, name) and not math.isnan(getattr(theirs, name)):
            parts.append(f"treescope {getattr(theirs, name) / getattr(mine, name):.3g}x that")
        if mine and name.endswith("_s"):
            parts.append(f"a blank page {all_of.blank_s / max(getattr(mine, name), 1e-9):.2g}x")
        return ", ".join(parts)

    pages = {tree: page for tree in TREES if (page := all_of.page(tree)) is not None}
    most = max(pages, key=lambda tree: pages[tree].elements, default=None)
    name = "elements on open, any tree" if most is None else f"elements on open, any tree: {TREES[most].title}"
    n_elements = None if most is None else pages[most].elements
    yield Goal(name, n_elements, 600, "", beside="" if most is None else beside(most, "elements"))
    for tree, limit in (("llama", 50), ("abstract-10k", 75), ("jax-10k", 75), ("numpy-100k", 120)):
        page = pages.get(tree)
        measured = None if page is None else 1e3 * page.ready_s
        name = f"browser CPU to ready over a blank page, {TREES[tree].title}"
        yield Goal(name, measured, limit, "ms", beside=beside(tree, "ready_s"))
    page = pages.get("numpy-100k")
    for name, attribute, limit in (
        ("toggle, 100,000 leaves", "toggle_s", 16),
        ("expand all, 100,000 leaves", "expand_all_s", 50),
        ("a keystroke in the search, 100,000 leaves", "keystroke_s", 33),
        ("… the slowest of a word", "slowest_keystroke_s", 33),
    ):
        measured = None if page is None else 1e3 * getattr(page, attribute)
        yield Goal(name, measured, limit, "ms", beside=beside("numpy-100k", attribute))
