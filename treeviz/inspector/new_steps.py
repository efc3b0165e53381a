"""What a history has gained since it was last looked at, as numbers with names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from treeviz.steps.findings.finding import SCALARS
from treeviz.steps.names import kind_of, result_kind, sibling_name
from treeviz.steps.recording.history import History
from treeviz.steps.recording.track import Timeline, Track
from treeviz.steps.series import table_of_source


@dataclass
class Step:
    """What was measured in a step, as "grads norm/layers/0/w"; without a path it is of the whole tree.

    Attributes:
      numbers: Values by name.
      histograms: Counts of each power of two by name.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, np.ndarray] = field(default_factory=dict)


class NewSteps:
    """Remembers how much of a history was seen."""

    def __init__(self) -> None:
        self._run = ""
        self._n_seen: dict[tuple[str, str], int] = {}
        self._paths: dict[str, list[tuple[int, str]]] = {}

    def of(self, history: History) -> dict[int, Step]:
        """The steps since the last call, by number. Of steps that were merged meanwhile, the last of each bucket.

        Norms and ratios of norms of each leaf and of the whole, "NaN" where a number in it is not finite; how many
        those are; the largest magnitude. Costs a float and a name for each leaf, statistic and step.
        """
        if history.run != self._run:
            self._run, self._n_seen, self._paths = history.run, {}, {}
        steps: dict[int, Step] = {}
        norms: dict[tuple[str, int], np.ndarray] = {}
        for source in history.sources:
            if result_kind(source):
                continue
            counts = {int(step): values for step, values in self._new(history, source, "nonfinite")}
            for step, values in self._new(history, source, "norm"):
                bad = np.maximum(counts.get(step, np.zeros(len(values), np.int64)), 0)
                norms[source, step] = values = np.where(bad > 0, np.nan, values)
                self._put(steps, step, history, f"{source} norm", source, values)
                steps[step].numbers[f"{source} nonfinite"] = float(bad.sum())
            for step, values in self._new(history, source, "max_abs"):
                of = steps.setdefault(step, Step()).numbers
                of[f"{source} max_abs"] = float(np.nanmax(values, initial=-np.inf))
            for step, values in self._new(history, source, "histogram"):
                histograms = steps.setdefault(step, Step()).histograms
                histograms |= {f"{source} log2/{path}": values[leaf] for leaf, path in self._leaves(history, source)}
        for (source, step), values in norms.items():
            params = norms.get((sibling_name(source, "params"), step))
            if kind_of(source) == "updates" and params is not None and params.shape == values.shape:
                with np.errstate(divide="ignore", invalid="ignore"):
                    self._put(steps, step, history, f"{source} ratio", source, values, params)
        for name, track in history.scalars.tracks.items():
            for step, (value, code) in self._entries(track, (SCALARS, name)):
                steps.setdefault(step, Step()).numbers[f"{SCALARS}/{name}"] = float(np.nan if code else value)
        return steps

    def _new(self, history: History, source: str, statistic: str) -> Iterator[tuple[int, np.ndarray]]:
        track = history.tracks.get((source, statistic))
        if track is not None:
            yield from self._entries(track, (source, statistic))

    def _entries(self, track: Track, of: tuple[str, str]) -> Iterator[tuple[int, np.ndarray]]:
        n_new = track.n_steps - self._n_seen.get(of, 0)
        self._n_seen[of] = track.n_steps
        new: Timeline = track.newest(n_new)
        values = new.latest if new.total is None else new.total
        yield from zip(new.until.tolist(), values, strict=True) if n_new else ()

    def _put(self, steps, step: int, history: History, name: str, source: str, values, by=None) -> None:
        leaves = self._leaves(history, source)
        numbers = steps.setdefault(step, Step()).numbers
        shown = values if by is None else values / by
        numbers |= {f"{name}/{path}": float(shown[leaf]) for leaf, path in leaves}
        of = [leaf for leaf, _ in leaves]
        total = np.linalg.norm(values[of])
        numbers[name] = float(total if by is None else total / np.linalg.norm(by[of]))

    def _leaves(self, history: History, source: str) -> list[tuple[int, str]]:
        """The number and the path of each leaf that is measured."""
        if source not in self._paths:
            table = table_of_source(history, source, source)
            paths = [table[row].path for row in table.measured.tolist()]
            has_number = history.sources[source].has_number
            self._paths[source] = [(i, path) for i, path in enumerate(paths) if has_number[i]]
        return self._paths[source]
