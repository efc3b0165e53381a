"""Views of measured gradients before, during and after a run, and of two runs; notes and findings as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treeviz.analysis.facts import headline, size_columns
from treeviz.steps.findings.finding import Finding
from treeviz.steps.recording.history import History, main_source, occurs_in, source_named
from treeviz.steps.series import (
    MOST_BUCKETS,
    activation_columns,
    as_float32,
    gradient_columns,
    gradient_histograms,
    gradient_series,
    ratio_columns,
    rolled_norms,
    scalar_series,
    table_of_source,
)
from treeviz.steps.statistics import MeasuredTree, is_beside, result_kind, section_of, sibling_name, wholes
from treeviz.tree.facts import Column
from treeviz.tree.paths import table_of_paths
from treeviz.tree.series import FindingMark, InnerSteps, Series, thinned
from treeviz.tree.table import TreeTable
from treeviz.tree.text import number_text, visible
from treeviz.views.text.terminal import RED, paragraph
from treeviz.views.tree_view import TreeView

MOST_PRINTED = 5  # findings
_ADAPTER = re.compile(r"lora|adapter", re.IGNORECASE)
_LONGEST, _LONGEST_NAME = 500, 100  # characters of a diagnosis, and of the name of a run


def waiting_view(name: str) -> TreeView:
    """Show the root alone, before the first measurement."""
    return TreeView(table_of_paths(name, [], []).with_headline("waiting for the first step"), [])


def running_view(history: History, name: str, findings: Sequence[Finding] = ()) -> TreeView:
    """Show the main source with its norms so far; a page can append buckets to it."""
    source = main_source(history)
    _, newest = history.last(source)
    table = table_of_source(history, source, name)
    shown = {statistic: newest[statistic] for statistic in ("norm", "nonfinite") if statistic in newest}
    newest_columns = gradient_columns(table, {source: shown})
    table = table.with_columns(*size_columns(table), *newest_columns)
    table = table.with_headline(*headline(table), *_run(history))
    norms = [column for column in newest_columns if column.name.endswith("_norm")]
    series = gradient_series(history, table, source, findings)[:1]
    return TreeView(table, norms, series=series, scalars=scalar_series(history, findings))


def whole_view(
    history: History,
    name: str,
    findings: Sequence[Finding],
    *,
    source: str | None = None,
    notes: Sequence[str] = (),
    keeps_inputs: bool = False,
) -> TreeView:
    """Show the tree of gradients: the newest numbers as columns, and the norm of every leaf and subtree as a series.

    The notes are for the headline: what was lost, which gradient is shown, and whether measuring changes bits.
    """
    source = source_named(history, source)
    table = table_of_source(history, source, name)
    _, numbers = history.last(source)
    norm, *others = gradient_columns(table, {source: numbers})
    received, of_optimizer = sibling_name(source, "received"), list[Column]()
    known = history.sources.get(received)
    if received != source and known is not None and known.paths == history.sources[source].paths:
        step, of_received = history.last(received)
        if step == history.last(source)[0]:  # measured in the same step
            of_optimizer = gradient_columns(table, {received: of_received})[:1]
    measured = [norm, *of_optimizer, *ratio_columns(table, history, source), *others]
    measured += [*activation_columns(table, history, source), *_trained_column(table, history.sources[source])]
    table = table.with_columns(*size_columns(table), *measured)
    summary = f"{len(findings)} finding{'s' * (len(findings) != 1)}"
    if findings and findings[0].severity == "info":
        summary += " for information"
    recorded = history.values(source, history.statistics(source)[0])
    numbering = recorded.numbering
    steps = numbering.count_text(int(recorded.n.sum())), numbering.text(recorded.ends[-1])
    trees = trees_in(history)
    labels = [f"{section_of(source)[0]}, 1 of {len(trees)} trees"] if len(trees) > 1 else []
    labels += [f"another tree{section}" for section in section_of(source)[1:] if section]
    labels += ["norms joined over vmapped members"] * _is_joined(history, source)
    n, n_frozen = sum(history.sources[source].has_number), sum(history.sources[source].frozen)
    is_lora = _ADAPTER.search("".join(history.sources[source].paths)) is not None  # of which most leaves are frozen
    n_trained = f"{n - n_frozen} of {n}" if n_frozen else f"all {n}"
    trained = [f"{n_trained} leaves are trained"] * bool(n_frozen or is_lora)
    texts = [*_run(history), *steps, *newest_scalars(history), *trained, *labels, summary]
    table = table.with_headline(*headline(table), *texts, *map(visible, notes), *diagnosis(findings, keeps_inputs))
    series = gradient_series(history, table, source, findings)
    histograms = gradient_histograms(history, table, source)
    columns = [*(column.name for column in measured), "elements"]
    scalars = scalar_series(history, findings)
    return TreeView(table, table.chosen(columns), series=series, histograms=histograms, scalars=scalars)


def _trained_column(table: TreeTable, source: MeasuredTree) -> list[Column]:
    """Whether the step trains each leaf, if its program shows that it does not train some; see `treeviz.trained`."""
    if not source.frozen and not source.cut_off:
        return []
    texts = [""] * len(table)
    for row, leaf in zip(np.flatnonzero(table.is_leaf).tolist(), wholes(source), strict=True):
        cut_off, frozen = (bool(flags) and flags[leaf.first] for flags in (source.cut_off, source.frozen))
        texts[row] = "no gradient" if cut_off else "returned unchanged" if frozen else "yes"
    return [Column("trained", "trained", texts, help="Whether the step trains the leaf, as its program shows")]


def _run(history: History) -> list[str]:
    return [f"run {visible(history.name, _LONGEST_NAME)}"] if history.name else []


def newest_scalars(history: History) -> list[str]:
    newest = history.scalars.last()
    texts = [f"{visible(name, _LONGEST_NAME)} {number_text(value)}" for name, (_, value) in newest.items()]
    return texts[:MOST_PRINTED] + [f"and {len(texts) - MOST_PRINTED} more scalars"] * (len(texts) > MOST_PRINTED)


def diagnosis(findings: Sequence[Finding], keeps_inputs: bool) -> list[str]:
    """The first problem in a sentence, and the call that locates its origin; empty if there is none."""
    if not findings or findings[0].severity == "info":
        return []
    first, advice = findings[0], ""
    if first.kind == "nonfinite" and "locate_nan" in first.advice:
        kept = "" if keeps_inputs else "With GradientInspector(keep_inputs=True), "
        advice = f" {kept}inspector.locate_nan() names the operation that produced it."
    return [visible(f"{first.severity}: {first.sentence}{advice}", _LONGEST)]


def _is_joined(history: History, source: str) -> bool:
    """Whether each norm is that of all members of a `vmap`."""
    return "least" in history.statistics(source)


def trees_in(history: History) -> dict[str, list[str]]:
    """The sources of each tree with its own view (gradients, taps, recorded trees), by tree; one for each structure."""
    trees: dict[str, list[str]] = {}
    for name in history.sources:
        if history.statistics(name) and not is_beside(name) and not result_kind(name):
            trees.setdefault(section_of(name)[0], []).append(name)
    return trees


def tree_notes(history: History) -> list[str]:
    """Notes: which trees exist, which are joined, and for each one whose structure changed, which source holds what."""
    trees = trees_in(history)
    shown = section_of(main_source(history))[0] if trees else ""
    other_trees = [tree for tree in trees if tree != shown]
    more = f" and {len(other_trees) - MOST_PRINTED} more" if len(other_trees) > MOST_PRINTED else ""
    joined = [tree for tree, names in trees.items() if _is_joined(history, names[-1])]
    notes = []
    if other_trees:
        notes.append(
            f"{len(trees)} trees are measured. {shown!r} is shown first; inspector.render(name) shows another: "
            f"{', '.join(map(repr, other_trees[:MOST_PRINTED]))}{more}."
        )
    if joined:
        notes.append(
            f"{', '.join(joined[:MOST_PRINTED])}: norms are joined over the members of a vmap. "
            'GradientInspector(members="each") shows a row for each member.'
        )
    for tree, names in trees.items():
        if len(names) > 1:
            firsts = [history.values(x, history.statistics(x)[0], resolution=1).first[0] for x in names]
            spans = [f"(steps {first:,} to {history.last(x)[0]:,})" for first, x in zip(firsts, names, strict=True)]
            sources = ", ".join(map("{!r} {}".format, names, spans))
            notes.append(
                f"{tree}: leaves were added, removed or reshaped, so there are {len(names)} trees: {sources}. The last "
                "one is shown; inspector.render(name) shows another."
            )
    return notes


def finding_lines(findings: Sequence[Finding], notes: Iterable[str], *, color: bool) -> list[str]:
    """The worst findings and the notes, as lines for a terminal. Errors are red."""
    more = [f"  and {len(findings) - MOST_PRINTED} more in inspector.findings"] if len(findings) > MOST_PRINTED else []
    lines = ["findings"] if findings else []
    for finding in findings[:MOST_PRINTED]:
        style = RED if color and finding.severity == "error" else ""
        lines += paragraph(visible(f"{finding.kind}: {finding.sentence}", 2000), style=style)
        lines += paragraph(visible(finding.advice, 2000), "    ", "") if finding.advice else []
    return [*lines, *more, *(line for note in notes for line in paragraph(visible(note, 2000), ""))]


# Two runs: where they diverge, and the ratio of their norms over the steps.

MUCH = 0.01  # of the larger norm
_LONGEST_NAME_OF_TWO = 40


class Parting(NamedTuple):
    """The first step at which norms of two runs differ."""

    step: int  # or the last of several that were merged; a step is a call
    entry: int  # its place among the compared entries
    when: str  # "step 5"; "call 5, micro-batch 2"
    row: int  # the leaf whose norms differ most, as a row of the view's table
    norms: tuple[float, float]  # of that leaf in the first and the second run; NaN if some values are not finite
    n_leaves: int  # that differ at that step


class TwoRuns(NamedTuple):
    view: TreeView  # the tree with the ratio of the norms, second to first, over the steps
    parting: Parting | None  # where norms first differ, in any bit; None if they never do
    is_equal: bool  # neither norms, scalars nor updates differ, and both runs have the same leaves and entries


def compare_runs(first: History, other: History, names: tuple[str, str], tree: str | None = None) -> TwoRuns:
    """Compare the norms of a tree in two runs, and their scalars; ValueError if they have no leaf or step in common."""
    sources = source_named(first, tree), source_named(other, tree)
    table = table_of_source(first, sources[0], tree or "grads")
    left, right = first.sources[sources[0]], other.sources[sources[1]]
    index = {path: i for i, path in enumerate(right.paths) if right.has_number[i]}
    # The index in the other run of each leaf; -1 if it is missing there.
    counterparts = [index.get(path, -1) if left.has_number[i] else -1 for i, path in enumerate(left.paths)]
    if max(counterparts, default=-1) < 0:
        raise ValueError("the two runs have no measured leaf in common")
    common = _aligned(first, other, sources, counterparts)
    if not len(common.stops):
        raise ValueError(f"{names[0]} and {names[1]} have no step in common")
    partings = [_parting(common, table, rtol) for rtol in (0.0, MUCH)]
    series = [
        _ratio_of_norms(table, common, names),
        *_ratio_of_updates(first, other, sources, counterparts, table, names),
    ]
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
    return [replace(_ratio_of_norms(table, updates, names, "updates ÷ params", by), name="updates.ratio")]


def _scalars(first: History, other: History, names: tuple[str, str]) -> tuple[list[Series], list[str], bool]:
    """The scalars of both runs, a curve for each run; a line about where each first differs; and whether any does."""
    curves, lines, any_differs = list[Series](), list[str](), first.scalars.tracks.keys() != other.scalars.tracks.keys()
    for name in [name for name in first.scalars.tracks if name in other.scalars.tracks]:
        shown = visible(name, _LONGEST_NAME_OF_TWO)
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


def _ratio_of_norms(
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
