"""Views of measured gradients before, during and after a run; headline lines, notes and findings as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from treeviz.analysis.facts import headline, size_columns
from treeviz.steps.findings.finding import Finding
from treeviz.steps.recording.history import History, main_source, source_named
from treeviz.steps.series import (
    activation_columns,
    gradient_columns,
    gradient_histograms,
    gradient_series,
    ratio_columns,
    scalar_series,
    table_of_source,
)
from treeviz.steps.statistics import MeasuredTree, is_beside, result_kind, section_of, sibling_name, wholes
from treeviz.tree.facts import Column
from treeviz.tree.paths import table_of_paths
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

    Args:
      source: The tree to show; by default the main source.
      notes: For the headline: lost measurements, what the file lacks, which gradient is shown, and whether measuring
        changes bits.
      keeps_inputs: Whether inputs are kept for `locate_nan`.
    """
    source = source_named(history, source)
    table = table_of_source(history, source, name)
    _, numbers = history.last(source)
    norm, *others = gradient_columns(table, {source: numbers})
    measured = [norm, *_optimizer_input(table, history, source), *ratio_columns(table, history, source), *others]
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
    texts = [*_run(history), *steps, *newest_scalars(history), *_trained(history.sources[source]), *labels, summary]
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


def _trained(source: MeasuredTree) -> list[str]:
    """How many leaves are trained, if some are frozen, or would be in a usual LoRA."""
    n, n_frozen = sum(source.has_number), sum(source.frozen)
    if n_frozen:
        return [f"{n - n_frozen} of {n} leaves are trained"]
    return [f"all {n} leaves are trained"] if _ADAPTER.search("".join(source.paths)) else []


def _run(history: History) -> list[str]:
    return [f"run {visible(history.name, _LONGEST_NAME)}"] if history.name else []


def newest_scalars(history: History) -> list[str]:
    """The newest values of the first scalars, as texts."""
    newest = history.scalars.last()
    texts = [f"{visible(name, _LONGEST_NAME)} {number_text(value)}" for name, (_, value) in newest.items()]
    return texts[:MOST_PRINTED] + [f"and {len(texts) - MOST_PRINTED} more scalars"] * (len(texts) > MOST_PRINTED)


def _optimizer_input(table: TreeTable, history: History, source: str) -> list[Column]:
    """The norm of the gradients that the optimizer receives, if measured in the same step."""
    name = sibling_name(source, "received")
    if name == source or name not in history.sources or history.sources[name].paths != history.sources[source].paths:
        return []
    step, numbers = history.last(name)
    return gradient_columns(table, {name: numbers})[:1] if step == history.last(source)[0] else []


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
