"""What is shown of measured gradients: nothing yet, a run that goes on, or all that is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treeviz.analysis.findings import Finding
from treeviz.analysis.gradient_columns import gradient_columns, ratio_columns
from treeviz.analysis.gradient_series import gradient_histograms, gradient_series, table_of_source
from treeviz.analysis.history import History
from treeviz.analysis.live import main_source
from treeviz.analysis.sizes import headline, size_columns
from treeviz.tree.from_paths import table_of_paths
from treeviz.tree.quote import visible
from treeviz.views.terminal import paragraph
from treeviz.views.tree_view import TreeView

MOST_PRINTED = 5  # findings


def waiting_view(name: str) -> TreeView:
    """The root alone, before anything was measured."""
    return TreeView(table_of_paths(name, [], []).with_headline("waiting for the first step"), [])


def running_view(history: History, name: str, found: Sequence[Finding] = ()) -> TreeView:
    """The tree of the main source with its norms until now, to which a page can append columns."""
    source = main_source(history)
    _, newest = history.last(source)
    table = table_of_source(history, source, name)
    of_table = gradient_columns(table, {source: {k: newest[k] for k in ("norm", "nonfinite") if k in newest}})
    table = table.with_columns(*size_columns(table), *of_table).with_headline(*headline(table))
    shown = [column for column in of_table if column.name.endswith("_norm")]
    return TreeView(table, shown, series=gradient_series(history, table, source, found)[:1])


def whole_view(
    history: History, name: str, found: Sequence[Finding], *, source: str | None = None, n_dropped: int = 0
) -> TreeView:
    """The tree of gradients: the newest numbers in columns, and every leaf and subtree over the steps.

    Args:
      found: What was found in the history.
      source: Which tree; by default the main source.
      n_dropped: How many measurements were lost.
    """
    source = source or main_source(history)
    table = table_of_source(history, source, name)
    step, numbers = history.last(source)
    numbers = {name: values for name, values in numbers.items() if name != "rms"}
    norm, *others = gradient_columns(table, {source: numbers})
    measured = (norm, *ratio_columns(table, history, source), *others)
    table = table.with_columns(*size_columns(table), *measured)
    words = f"{len(found)} finding{'s' * (len(found) != 1)}"
    dropped = [f"{n_dropped} dropped"] if n_dropped else []
    table = table.with_headline(*headline(table), f"{len(history):,} steps", f"step {step:,}", words, *dropped)
    series = gradient_series(history, table, source, found)
    histograms = gradient_histograms(history, table, source)
    columns = [*(column.name for column in measured), "parameters"]
    return TreeView(table, table.chosen(columns), series=series, histograms=histograms)


def finding_lines(found: Sequence[Finding], notes: Iterable[str]) -> list[str]:
    """The worst that was found, and notes below it, for a terminal."""
    more = [f"  and {len(found) - MOST_PRINTED} more in inspector.findings"] if len(found) > MOST_PRINTED else []
    lines = ["findings"] if found else []
    for finding in found[:MOST_PRINTED]:
        lines += paragraph(visible(str(finding), 2000))
    return [*lines, *more, *(line for note in notes for line in paragraph(visible(note, 2000), ""))]
