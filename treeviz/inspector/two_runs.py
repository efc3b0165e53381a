"""Two runs side by side: where they part, and the ratio of their norms over the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeviz.analysis.facts import headline, size_columns
from treeviz.steps.recording.history import History, Timeline, main_source, occurs_in
from treeviz.steps.series import MOST_BUCKETS, as_float32, rolled_norms, table_of_source
from treeviz.steps.statistics import section_of
from treeviz.tree.series import FindingMark, Series, thinned
from treeviz.tree.table import TreeTable
from treeviz.views.tree_view import TreeView

MUCH = 0.01  # of the larger norm


class Parting(NamedTuple):
    """The first step at which norms of two runs differ.

    Attributes:
      step: Or the last of several that were merged.
      row: In the table of the view: the leaf whose norms differ most.
      norms: Of that leaf in the first run and in the other; NaN if some of its values are not finite.
      n_leaves: How many leaves differ at that step.
    """

    step: int
    row: int
    norms: tuple[float, float]
    n_leaves: int


class TwoRuns(NamedTuple):
    """How two runs differ.

    Attributes:
      view: The tree with the ratio of the norms, second to first, over the steps.
      parting: Where norms differ first, in any bit; None if they never do.
    """

    view: TreeView
    parting: Parting | None


def compare_runs(first: History, other: History, names: tuple[str, str]) -> TwoRuns:
    """Compare the norms of the gradients of two runs, at the steps and leaves that both have.

    Args:
      names: What the runs are called.

    Raises:
      ValueError: They have no leaf, or no step, in common.
    """
    sources = main_source(first), main_source(other)
    table = table_of_source(first, sources[0], "grads")
    of_other = _counterparts(first, other, sources)
    both = _norms(first, sources[0], list(range(len(of_other)))), _norms(other, sources[1], of_other)
    spans = [list(zip(line.first.tolist(), line.until.tolist(), strict=True)) for line, _ in both]
    at = [{span: i for i, span in enumerate(of)} for of in spans]
    common = [span for span in spans[0] if span in at[1]]
    if not common:
        raise ValueError(f"{names[0]} and {names[1]} have no step in common")
    mine, theirs = (norms[[places[span] for span in common]] for (_, norms), places in zip(both, at, strict=True))
    starts, stops = (np.array(part, np.int64) for part in zip(*common, strict=True))
    rows = table.measured
    partings = [_parting(stops, rows, mine, theirs, rtol) for rtol in (0.0, MUCH)]
    series = _ratio(table, rows, mine, theirs, starts, stops, partings[0], names)
    lines = _lines(table, partings, names, len(common), int(stops[-1]))
    lines += _left_out(first, other, sources, sum(leaf >= 0 for leaf in of_other), spans, len(common), names)
    table = table.with_columns(*size_columns(table))
    table = table.with_headline(*headline(table), *lines)
    return TwoRuns(TreeView(table, table.chosen(["elements"]), series=[series]), partings[0])


def _counterparts(first: History, other: History, sources: tuple[str, str]) -> list[int]:
    """The number of each leaf of the first run in the other; -1 where that lacks it."""
    mine, theirs = first.sources[sources[0]], other.sources[sources[1]]
    number = {path: i for i, (path, has) in enumerate(zip(theirs.paths, theirs.has_number, strict=True)) if has}
    of_other = [number.get(path, -1) if has else -1 for path, has in zip(mine.paths, mine.has_number, strict=True)]
    if max(of_other, default=-1) < 0:
        raise ValueError("the two runs have no measured leaf in common")
    return of_other


def _norms(history: History, source: str, leaves: list[int]) -> tuple[Timeline, np.ndarray]:
    """[entries, leaves]: the norms; infinite where values are not finite, NaN where there is no number."""
    line = history.values(source, "norm")
    bad = occurs_in(history.values(source, "nonfinite"), line)
    norms = np.where(bad, np.inf, line.latest)
    norms = np.concatenate([norms, np.full((len(norms), 1), np.nan)], axis=1)  # a leaf that is not there
    return line, norms[:, leaves]


def _parting(stops: np.ndarray, rows: np.ndarray, mine: np.ndarray, theirs: np.ndarray, rtol: float) -> Parting | None:
    known = ~(np.isnan(mine) | np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        gap = np.abs(mine - theirs) / np.maximum(np.maximum(mine, theirs), np.finfo(np.float64).tiny)
    gap = np.where(known & (mine != theirs), np.where(np.isnan(gap), 1.0, gap), 0.0)
    differs = gap > rtol
    steps = np.flatnonzero(differs.any(axis=1))
    if not len(steps):
        return None
    step = int(steps[0])
    leaf = int(np.argmax(gap[step]))
    left, right = (float(norms[step, leaf]) if np.isfinite(norms[step, leaf]) else np.nan for norms in (mine, theirs))
    return Parting(int(stops[step]), int(rows[leaf]), (left, right), int(differs[step].sum()))


def _ratio(
    table: TreeTable,
    rows: np.ndarray,
    mine: np.ndarray,
    theirs: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    parting: Parting | None,
    names: tuple[str, str],
) -> Series:
    bad = np.zeros((len(table), len(stops)), bool)
    bad[rows] = (np.isinf(mine) | np.isinf(theirs)).T
    both = ~(np.isnan(mine) | np.isnan(theirs))  # a subtree counts what both have
    top, bottom = (
        rolled_norms(table, rows, np.where(both & np.isfinite(norms), norms, np.nan)) for norms in (theirs, mine)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(top == bottom, np.where(np.isnan(top), np.nan, 1.0), top / bottom)
    ratio[~np.isfinite(ratio)] = np.nan  # of a norm of zero
    series = Series(
        "norm.ratio",
        f"norm, {names[1]} ÷ {names[0]}",
        starts,
        stops,
        as_float32(ratio),
        table.roll(bad, "any"),
        unit="ratio",
    )
    if parting is not None:
        mark = FindingMark(parting.row, int(np.searchsorted(stops, parting.step)), "parts", _sentence(table, parting))
        series = replace(series, marks=(mark,))
    return thinned(series, MOST_BUCKETS)


def _lines(
    table: TreeTable, partings: list[Parting | None], names: tuple[str, str], n_steps: int, last: int
) -> list[str]:
    any_bit, much = partings
    lines = [f"{n_steps:,} {'step' if n_steps == 1 else 'steps'} compared, until step {last:,}"]
    if any_bit is None:
        return [*lines, "no norm differs"]
    lines.append("they part at " + _sentence(table, any_bit))
    if much is None:
        lines.append("no norm differs by more than 1 %")
    elif much.step != any_bit.step or much.row != any_bit.row:
        lines.append("more than 1 % at " + _sentence(table, much))
    return lines


def _sentence(table: TreeTable, parting: Parting) -> str:
    left, right = ("not finite" if np.isnan(norm) else f"{norm:.6g}" for norm in parting.norms)
    others = parting.n_leaves - 1
    more = f", and {others:,} other {'leaf' if others == 1 else 'leaves'}" if others else ""
    return f"step {parting.step:,}: {table[parting.row].keystr or 'the root'}, norm {left} and {right}{more}"


def _left_out(
    first: History,
    other: History,
    sources: tuple[str, str],
    n_both: int,
    spans: list[list[tuple[int, int]]],
    n_common: int,
    names: tuple[str, str],
) -> list[str]:
    """What only one of them has, or where older steps were merged differently."""
    lines = []
    n_mine, n_theirs = (
        sum(history.sources[source].has_number) for history, source in zip((first, other), sources, strict=True)
    )
    for name, n in zip(names, (n_mine - n_both, n_theirs - n_both), strict=True):
        if n > 0:
            lines.append(f"{n:,} {'leaf' if n == 1 else 'leaves'} of {name} alone")
    for name, of in zip(names, spans, strict=True):
        if len(of) > n_common:
            lines.append(f"{len(of) - n_common:,} entries of {name} without a counterpart were not compared")
    if section_of(sources[0])[0] != section_of(sources[1])[0]:
        lines.append(f"{sources[0]} of {names[0]}, {sources[1]} of {names[1]}")
    return lines
