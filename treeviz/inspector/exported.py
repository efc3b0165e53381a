"""The numbers of a run as columns, for data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treeviz.steps.findings.finding import SCALARS
from treeviz.steps.recording.history import History
from treeviz.steps.recording.track import Timeline
from treeviz.tree.frame import Frame, Labels, records


def to_records(history: History, source: str) -> list[dict[str, Any]]:
    """A dict for each leaf with numbers and each step that is kept; see `GradientInspector.to_records`."""
    return list(records(to_frame(history, source)))


def to_frame(history: History, source: str) -> Frame:
    """The same as columns: "first_step", "step", "path" and each statistic; of scalars, each of them by its name."""
    if source == SCALARS and SCALARS not in history.sources:
        lines = {name: history.scalars.values(name) for name in history.scalars.tracks}
        entries, columns = _joined({name: (line, line.latest[:, None]) for name, line in lines.items()})
        return _steps(entries, 1) | {name: values[:, 0] for name, values in columns.items()}
    what = history.sources[source]
    leaves = np.flatnonzero(what.has_number)
    lines = {statistic: history.values(source, statistic) for statistic in history.statistics(source)}
    entries, columns = _joined(
        {name: (of, (of.latest if of.total is None else of.total)[:, leaves]) for name, of in lines.items()}
    )
    paths = Labels(np.tile(np.arange(len(leaves)), len(entries)), [what.paths[leaf] for leaf in leaves])
    flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in columns.items()}
    return _steps(entries, len(leaves)) | {"path": paths} | flat


def _steps(entries: Sequence[tuple[int, int]], n: int) -> dict[str, Any]:
    first, until = np.array(entries, np.int64).reshape(-1, 2).T
    return {"first_step": np.repeat(first, n), "step": np.repeat(until, n)}


def _joined(
    lines: dict[str, tuple[Timeline, np.ndarray]],
) -> tuple[list[tuple[int, int]], dict[str, np.ma.MaskedArray]]:
    """The first and the last step of each entry of any line, and the values of all lines there, [entries, …]."""
    steps = {
        name: list(zip(line.first.tolist(), line.until.tolist(), strict=True)) for name, (line, _) in lines.items()
    }
    entries = sorted({entry for of in steps.values() for entry in of})
    place = {entry: i for i, entry in enumerate(entries)}
    columns = {}
    for name, (_, values) in lines.items():
        columns[name] = np.ma.array(np.zeros((len(entries), *values.shape[1:]), values.dtype), mask=True)
        columns[name][[place[entry] for entry in steps[name]]] = values
    return entries, columns
