"""The views of measured gradients: before, during and after a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treeviz.analysis.facts import headline, size_columns
from treeviz.steps.findings.finding import Finding
from treeviz.steps.recording.history import History, main_source
from treeviz.steps.series import (
    gradient_columns,
    gradient_histograms,
    gradient_series,
    ratio_columns,
    scalar_series,
    table_of_source,
)
from treeviz.steps.statistics import is_beside, result_kind, section_of, sibling_name
from treeviz.tree.facts import Column
from treeviz.tree.paths import table_of_paths
from treeviz.tree.table import TreeTable
from treeviz.tree.text import number_text, visible
from treeviz.views.text.terminal import paragraph
from treeviz.views.tree_view import TreeView

MOST_PRINTED = 5  # findings
_LONGEST, _LONGEST_NAME = 500, 100  # characters of a diagnosis, and of the name of a run


def waiting_view(name: str) -> TreeView:
    """The root alone, before the first measurement."""
    return TreeView(table_of_paths(name, [], []).with_headline("waiting for the first step"), [])


def running_view(history: History, name: str, found: Sequence[Finding] = ()) -> TreeView:
    """The tree of the main source with its norms until now, to which a page can append buckets."""
    source = main_source(history)
    _, newest = history.last(source)
    table = table_of_source(history, source, name)
    of_table = gradient_columns(table, {source: {k: newest[k] for k in ("norm", "nonfinite") if k in newest}})
    table = table.with_columns(*size_columns(table), *of_table)
    table = table.with_headline(*headline(table), *_run(history))
    shown = [column for column in of_table if column.name.endswith("_norm")]
    series = gradient_series(history, table, source, found)[:1]
    return TreeView(table, shown, series=series, scalars=scalar_series(history, found))


def whole_view(
    history: History,
    name: str,
    found: Sequence[Finding],
    *,
    source: str | None = None,
    lost: Sequence[str] = (),
    keeps_inputs: bool = False,
) -> TreeView:
    """The tree of gradients: the newest numbers as columns, and the norm of every leaf and subtree as a series.

    Args:
      found: The findings in the history.
      source: The tree to show; by default the main source.
      lost: How many measurements were lost, what the file of the run lacks, which gradient this is, and whether
        measuring changes bits.
      keeps_inputs: Whether `locate_nan` has inputs of steps.
    """
    source = source or main_source(history)
    table = table_of_source(history, source, name)
    step, numbers = history.last(source)
    norm, *others = gradient_columns(table, {source: numbers})
    measured = (norm, *_received(table, history, source), *ratio_columns(table, history, source), *others)
    table = table.with_columns(*size_columns(table), *measured)
    summary = f"{len(found)} finding{'s' * (len(found) != 1)}"
    if found and found[0].severity == "info":
        summary += " for information"
    n_steps = int(history.values(source, history.statistics(source)[0]).n.sum())
    steps = f"{n_steps:,} step{'s' * (n_steps != 1)}", f"step {step:,}"
    trees = trees_in(history)
    which = [f"{section_of(source)[0]}, 1 of {len(trees)} trees"] if len(trees) > 1 else []
    section = [f"another tree{section}" for section in section_of(source)[1:] if section]
    table = table.with_headline(
        *headline(table),
        *_run(history),
        *steps,
        *newest_scalars(history),
        *which,
        *section,
        summary,
        *map(visible, lost),
        *diagnosis(found, keeps_inputs),
    )
    series = gradient_series(history, table, source, found)
    histograms = gradient_histograms(history, table, source)
    columns = [*(column.name for column in measured), "elements"]
    scalars = scalar_series(history, found)
    return TreeView(table, table.chosen(columns), series=series, histograms=histograms, scalars=scalars)


def _run(history: History) -> list[str]:
    return [f"run {visible(history.name, _LONGEST_NAME)}"] if history.name else []


def newest_scalars(history: History) -> list[str]:
    """The newest value of the first scalars."""
    last = history.scalars.last()
    named = [f"{visible(name, _LONGEST_NAME)} {number_text(value)}" for name, (_, value) in last.items()]
    return named[:MOST_PRINTED] + [f"and {len(named) - MOST_PRINTED} more scalars"] * (len(named) > MOST_PRINTED)


def _received(table: TreeTable, history: History, source: str) -> list[Column]:
    """The norms of what the optimizer receives, where it is measured."""
    name = sibling_name(source, "received")
    if name == source or name not in history.sources or history.sources[name].paths != history.sources[source].paths:
        return []
    step, numbers = history.last(name)
    return gradient_columns(table, {name: numbers})[:1] if step == history.last(source)[0] else []


def diagnosis(found: Sequence[Finding], keeps_inputs: bool) -> list[str]:
    """What went wrong first, in a sentence, and the call that says where it was made; empty if nothing is wrong."""
    if not found or found[0].severity == "info":
        return []
    first, how = found[0], ""
    if first.kind == "nonfinite":
        kept = "" if keeps_inputs else "With GradientInspector(keep_inputs=True), "
        how = f" {kept}inspector.locate_nan() names the operation that made it."
    return [visible(f"{first.severity}: {first.sentence}{how}", _LONGEST)]


def trees_in(history: History) -> dict[str, list[str]]:
    """The trees that have a view of their own, and the names of their sections: gradients, taps, what was recorded."""
    trees: dict[str, list[str]] = {}
    for name in history.sources:
        if history.statistics(name) and not is_beside(name) and not result_kind(name):
            trees.setdefault(section_of(name)[0], []).append(name)
    return trees


def tree_notes(history: History) -> list[str]:
    """Which trees there are; and for each that changed during the run, which steps are where."""
    trees = trees_in(history)
    shown = section_of(main_source(history))[0] if trees else ""
    others = [tree for tree in trees if tree != shown]
    more = f" and {len(others) - MOST_PRINTED} more" if len(others) > MOST_PRINTED else ""
    several = [
        f"{len(trees)} trees are measured. {shown!r} is shown first; inspector.render(name) shows another: "
        f"{', '.join(map(repr, others[:MOST_PRINTED]))}{more}."
    ]
    return several[: len(others)] + [
        f"{tree}: leaves were added, removed or reshaped, so it is {len(names)} trees: "
        + ", ".join(f"{name!r} (steps {_first(history, name):,} to {history.last(name)[0]:,})" for name in names)
        + ". The last one is shown; inspector.render(name) shows another."
        for tree, names in trees.items()
        if len(names) > 1
    ]


def _first(history: History, source: str) -> int:
    return int(history.values(source, history.statistics(source)[0], resolution=1).first[0])


def finding_lines(found: Sequence[Finding], notes: Iterable[str]) -> list[str]:
    """The worst findings and the notes, for a terminal."""
    more = [f"  and {len(found) - MOST_PRINTED} more in inspector.findings"] if len(found) > MOST_PRINTED else []
    lines = ["findings"] if found else []
    for finding in found[:MOST_PRINTED]:
        lines += paragraph(visible(str(finding), 2000))
    return [*lines, *more, *(line for note in notes for line in paragraph(visible(note, 2000), ""))]
