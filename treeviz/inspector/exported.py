"""The numbers of a run as plain Python values, for data frames."""

from __future__ import annotations

from typing import Any

from treeviz.steps.findings.finding import SCALARS
from treeviz.steps.recording.history import History


def to_records(history: History, source: str) -> list[dict[str, Any]]:
    """A dict for each leaf with numbers and each step that is kept; see `GradientInspector.to_records`."""
    if source == SCALARS and SCALARS not in history.sources:
        return _scalar_records(history)
    what = history.sources[source]
    entries: dict[tuple[int, int], dict[str, Any]] = {}
    for statistic in history.statistics(source):
        line = history.values(source, statistic)
        latest = line.latest if line.total is None else line.total
        for first, until, values in zip(line.first.tolist(), line.until.tolist(), latest.tolist(), strict=True):
            entries.setdefault((first, until), {})[statistic] = values
    leaves = [leaf for leaf, has in enumerate(what.has_number) if has]
    return [
        {"first_step": first, "step": until, "path": what.paths[leaf]}
        | {statistic: values[leaf] for statistic, values in of.items()}
        for (first, until), of in sorted(entries.items())
        for leaf in leaves
    ]


def _scalar_records(history: History) -> list[dict[str, Any]]:
    """A dict for each step, with the scalars that were recorded of it."""
    entries: dict[tuple[int, int], dict[str, Any]] = {}
    for name in history.scalars.tracks:
        line = history.scalars.values(name)
        for first, until, value in zip(line.first.tolist(), line.until.tolist(), line.latest.tolist(), strict=True):
            entries.setdefault((first, until), {})[name] = value
    return [{"first_step": first, "step": until} | of for (first, until), of in sorted(entries.items())]
