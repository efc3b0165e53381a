"""Compare two runs: where they diverge, and the ratio of their norms over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeviz.analysis.facts import headline, size_columns
from treeviz.inspector.views import MOST_PRINTED
from treeviz.steps.recording.history import History, occurs_in, source_named
from treeviz.steps.series import MOST_BUCKETS, as_float32, rolled_norms, scalar_series, table_of_source
from treeviz.steps.statistics import section_of, sibling_name
from treeviz.tree.series import FindingMark, InnerSteps, Series, thinned
from treeviz.tree.table import TreeTable
from treeviz.tree.text import visible
from treeviz.views.tree_view import TreeView

MUCH = 0.01  # of the larger norm
_LONGEST_NAME = 40


class Parting(NamedTuple):
    """The first step at which norms of two runs differ."""

    step: int  # or the last of several that were merged; a step is a call
    entry: int  # its place among the compared entries
    when: str  # "step 5"; "call 5, micro-batch 2"
    row: int  # the leaf whose norms differ most, as a row of the view's table
    norms: tuple[float, float]  # of that leaf in the first and the second run; NaN if some values are not finite
    n_leaves: int  # that differ at that step


class TwoRuns(NamedTuple):
    """How two runs differ."""

    view: TreeView  # the tree with the ratio of the norms, second to first, over the steps
    parting: Parting | None  # where norms first differ, in any bit; None if they never do
    is_equal: bool  # neither norms, scalars nor updates differ, and both runs have the same leaves and entries


def compare_runs(first: History, other: History, names: tuple[str, str], tree: str | None = None) -> TwoRuns:
    """Compare the norms of a tree in two runs, at the steps and leaves that both have, and the scalars of the runs.

    Raises a ValueError if they have no leaf or no step in common, or no tree of this name.
    """
    sources = source_named(first, tree), source_named(other, tree)
    table = table_of_source(first, sources[0], tree or "grads")
    counterparts = _counterparts(first, other, sources)
    common = _aligned(first, other, sources, counterparts)
    if not len(common.stops):
        raise ValueError(f"{names[0]} and {names[1]} have no step in common")
    partings = [_parting(common, table, rtol) for rtol in (0.0, MUCH)]
    series = [_ratio(table, common, names), *_ratio_of_updates(first, other, sources, counterparts, table, names)]
    if (parting := partings[0]) is not None:
        mark = FindingMark(parting.row, parting.entry, "parts", _sentence(table, parting))
        series[0] = replace(series[0], marks=(mark,))
    series = [thinned(line, MOST_BUCKETS) for line in series]
    scalars, of_scalars, any_scalar_differs = _scalars(first, other, names)
    left_out = _left_out(first, other, sources, counterparts, common, names)
    is_equal = parting is None and not left_out and not any_scalar_differs
    is_equal = is_equal and all(bool((np.isnan(line.values) | (line.values == 1)).all()) for line in series)
    lines = _lines(table, partings, common)
    table = table.with_columns(*size_columns(table))
    about = lines[:1] if is_equal else [*lines, *left_out, *of_scalars]
    table = table.with_headline(*["the two runs are equal"] * is_equal, *headline(table), *about)
    return TwoRuns(TreeView(table, table.chosen(["elements"]), series=series, scalars=scalars), parting, is_equal)


class _Common(NamedTuple):
    """The norms of two runs at the entries that both have."""

    spans: list[list[tuple[int, int, int, int]]]  # of all entries of each run
    left: np.ndarray  # float64[entries, leaves]: infinite if values are not finite, NaN if unmeasured
    right: np.ndarray
    starts: np.ndarray  # the positions of the entries
    stops: np.ndarray
    numbering: InnerSteps

    @property
    def is_known(self) -> np.ndarray:
        """bool[entries, leaves]: whether both runs measured the leaf."""
        return ~(np.isnan(self.left) | np.isnan(self.right))


def _aligned(first: History, other: History, sources: Sequence[str], counterparts: list[int]) -> _Common:
    spans, all_norms = [], []
    for history, source, leaves in zip((first, other), sources, (range(len(counterparts)), counterparts), strict=True):
        timeline = history.values(source, "norm")
        bad = occurs_in(history.values(source, "nonfinite"), timeline)
        norms = np.pad(np.where(bad, np.inf, timeline.latest), ((0, 0), (0, 1)), constant_values=np.nan)
        spans.append(timeline.spans)
        all_norms.append(norms[:, [*leaves]])  # the last one is of missing leaves
    indices = [{span: i for i, span in enumerate(run_spans)} for run_spans in spans]
    common = [span for span in spans[0] if span in indices[1]]
    left, right = (norms[[at[span] for span in common]] for norms, at in zip(all_norms, indices, strict=True))
    numbering = first.numbering(sources[0])._replace(n=max(first.inner.n, other.inner.n))
    firsts, untils, inner_firsts, inner_untils = np.array(common, np.int64).reshape(-1, 4).T
    starts, stops = numbering.position(firsts, inner_firsts), numbering.position(untils, inner_untils)
    return _Common(spans, left, right, starts, stops, numbering)


def _ratio_of_updates(first, other, sources, counterparts, table: TreeTable, names) -> list[Series]:
    """The ratio of the updates to their parameters, in the second run relative to the first."""
    kinds = [[sibling_name(source, kind) for source in sources] for kind in ("updates", "params")]
    if any(
        name not in history.sources or history.sources[name].paths != history.sources[source].paths
        for pair in kinds
        for history, name, source in zip((first, other), pair, sources, strict=True)
    ):
        return []
    updates, params = (_aligned(first, other, pair, counterparts) for pair in kinds)
    if not len(updates.stops) or updates.spans != params.spans:
        return []
    norms = (np.where(np.isfinite(norms), norms, np.nan) for norms in (params.left, params.right))
    by = [rolled_norms(table, x) for x in norms]
    return [replace(_ratio(table, updates, names, "updates ÷ params", by), name="updates.ratio")]


def _scalars(first: History, other: History, names: tuple[str, str]) -> tuple[list[Series], list[str], bool]:
    """The scalars of both runs, a curve for each run; a line about where each first differs; and whether any does."""
    curves, lines, any_differs = list[Series](), list[str](), first.scalars.tracks.keys() != other.scalars.tracks.keys()
    for name in [name for name in first.scalars.tracks if name in other.scalars.tracks]:
        shown = visible(name, _LONGEST_NAME)
        runs = [history.scalars.values(name) for history in (first, other)]
        at = [dict(zip(run.spans, run.latest.tolist(), strict=True)) for run in runs]
        pairs = ((span, value, at[1][span]) for span, value in at[0].items() if span in at[1])
        apart = (span for span, x, y in pairs if not (x == y or (np.isnan(x) and np.isnan(y))))
        text = ""
        if (span := min(apart, default=None)) is not None:
            numbering = runs[0].numbering
            when = numbering.text(numbering.position(span[1], span[3]))
            text = f"{when}: {' and '.join(f'{values[span]:.6g}' for values in at)}".replace("nan", "NaN")
        lines.append(f"{shown} parts at {text}" if text else f"{shown} does not differ")
        any_differs |= bool(text)
        for run, history in zip(names, (first, other), strict=True):
            (curve,) = scalar_series(history, only=name)
            curves.append(replace(curve, name=f"{name}, {run}", title=f"{name}, {run}"))
    more = f"and {len(lines) - MOST_PRINTED} more scalars"
    return curves, [*lines[:MOST_PRINTED], *([more] if len(lines) > MOST_PRINTED else [])], any_differs


def _counterparts(first: History, other: History, sources: tuple[str, str]) -> list[int]:
    """The index in the other run of each leaf of the first; -1 if it is missing there."""
    left, right = first.sources[sources[0]], other.sources[sources[1]]
    index = {path: i for i, path in enumerate(right.paths) if right.has_number[i]}
    counterparts = [index.get(path, -1) if left.has_number[i] else -1 for i, path in enumerate(left.paths)]
    if max(counterparts, default=-1) < 0:
        raise ValueError("the two runs have no measured leaf in common")
    return counterparts


def _parting(common: _Common, table: TreeTable, rtol: float) -> Parting | None:
    left, right = common.left, common.right
    with np.errstate(invalid="ignore"):
        relative = np.abs(left - right) / np.maximum(np.maximum(left, right), np.finfo(np.float64).tiny)
    relative = np.where(common.is_known & (left != right), np.where(np.isnan(relative), 1.0, relative), 0.0)
    differs = relative > rtol
    entry = int(differs.any(axis=1).argmax())
    if not differs[entry].any():
        return None
    leaf, stop = int(np.argmax(relative[entry])), common.stops[entry]
    norms = [float(x[entry, leaf]) if np.isfinite(x[entry, leaf]) else np.nan for x in (left, right)]
    step, when = common.numbering.split(stop)[0], common.numbering.text(stop)
    return Parting(step, entry, when, int(table.measured[leaf]), (norms[0], norms[1]), int(differs[entry].sum()))


def _ratio(
    table: TreeTable, common: _Common, names: tuple[str, str], what: str = "norm", by: Sequence[np.ndarray] = ()
) -> Series:
    """The norms of the second run relative to the first; each is divided by its norms in `by`, if these are given."""
    rows, left, right = table.measured, common.left, common.right
    bad = np.zeros((len(table), len(common.stops)), bool)
    bad[rows] = (np.isinf(left) | np.isinf(right)).T
    numerator, denominator = (  # a subtree sums what both have
        rolled_norms(table, np.where(common.is_known & np.isfinite(norms), norms, np.nan)) for norms in (right, left)
    )
    if by:
        numerator, denominator = numerator * by[0], denominator * by[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(numerator == denominator, np.where(np.isnan(numerator), np.nan, 1.0), numerator / denominator)
    ratio[~np.isfinite(ratio)] = np.nan  # divided by a zero norm
    title, bad = f"{what}, {names[1]} ÷ {names[0]}", table.roll(bad, "any")
    steps, inner = (common.starts, common.stops), common.numbering
    return Series("norm.ratio", title, *steps, as_float32(ratio), bad, unit="ratio", inner=inner)


def _lines(table: TreeTable, partings: list[Parting | None], common: _Common) -> list[str]:
    any_bit, much = partings
    numbering, stops = common.numbering, common.stops
    lines = [f"{numbering.count_text(len(stops))} compared, until {numbering.text(stops[-1])}"]
    if any_bit is None:
        return [*lines, "no norm differs"]
    lines.append("they part at " + _sentence(table, any_bit))
    if much is None:
        lines.append("no norm differs by more than 1 %")
    elif much.entry != any_bit.entry or much.row != any_bit.row:
        lines.append("more than 1 % at " + _sentence(table, much))
    return lines


def _sentence(table: TreeTable, parting: Parting) -> str:
    left, right = ("not finite" if np.isnan(norm) else f"{norm:.6g}" for norm in parting.norms)
    others = parting.n_leaves - 1
    others_text = f", and {others:,} other {'leaf' if others == 1 else 'leaves'}" if others else ""
    return f"{parting.when}: {table[parting.row].keystr or 'the root'}, norm {left} and {right}{others_text}"


def _left_out(
    first: History, other: History, sources: tuple[str, str], counterparts: list[int], common: _Common, names
) -> list[str]:
    """Lines about leaves of one run only, and entries that were merged differently."""
    lines, n_common = [], len(common.stops)
    n_leaves = sum(leaf >= 0 for leaf in counterparts)
    for name, history, source in zip(names, (first, other), sources, strict=True):
        if (n := sum(history.sources[source].has_number) - n_leaves) > 0:
            lines.append(f"{n:,} {'leaf' if n == 1 else 'leaves'} of {name} alone")
    for name, spans in zip(names, common.spans, strict=True):
        if len(spans) > n_common:
            lines.append(f"{len(spans) - n_common:,} entries of {name} without a counterpart were not compared")
    if section_of(sources[0])[0] != section_of(sources[1])[0]:
        lines.append(f"{sources[0]} of {names[0]}, {sources[1]} of {names[1]}")
    return lines
