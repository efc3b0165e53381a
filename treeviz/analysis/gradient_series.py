"""A history as series of a table: every leaf over the steps, and every subtree with what its leaves add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from treeviz.analysis.findings import Finding
from treeviz.analysis.history import History
from treeviz.analysis.history_track import Series as Recorded
from treeviz.analysis.source_names import beside, kind_of
from treeviz.analysis.stats_summary import FIRST_EXPONENT, N_BINS
from treeviz.tree.from_paths import table_of_paths
from treeviz.tree.rollup import roll
from treeviz.tree.series import Histograms, Mark, Series
from treeviz.tree.table import Facts, TreeTable

COLUMNS = 400  # of a series: as many steps as a screen has room for
_MOST_COUNTS = 4_000_000  # of all histograms
_EDGES = 2.0 ** np.arange(FIRST_EXPONENT, FIRST_EXPONENT + N_BINS + 1)


def table_of_source(history: History, source: str, name: str) -> TreeTable:
    """The tree whose leaves were measured, as far as it is known from their paths, sizes and dtypes."""
    what = history.sources[source]
    shapes = [tuple(map(int, filter(None, shape.split(",")))) for shape in what.shapes] or [None] * len(what.paths)
    leaves = [
        Facts(
            "array" if has_number else "opaque",
            "jax.Array" if has_number else "no gradient",
            True,
            1,
            parameters=size if has_number else 0,
            shape=shape,
            dtype=dtype,
        )
        for size, shape, dtype, has_number in zip(what.sizes, shapes, what.dtypes, what.has_number, strict=True)
    ]
    return table_of_paths(name, what.paths, leaves)


def gradient_series(
    history: History, table: TreeTable, source: str = "grads", findings: Iterable[Finding] = (), columns: int = COLUMNS
) -> tuple[Series, ...]:
    """The norm of every row of `table` over the steps, and its ratios to the parameters', as far as they were measured.

    A subtree's norm is the root of the sum of its leaves' squares; it is not finite if one of them is not.

    Args:
      table: With the leaves of `source`, in order.
      findings: Shown at the row and step where each begins, if they are of the same leaves: of the parameters and
        updates beside `source`, too. What is said of a ratio is shown in the series of it.
      columns: Neighbouring steps are joined until there are no more than these.
    """
    leaf_rows = np.flatnonzero(table.is_leaf)
    norm = history.values(source, "norm", resolution=columns)
    bad = _bad(history, table, leaf_rows, norm, source)
    series = [_norm_series(table, leaf_rows, norm, bad, f"{source}.norm", f"{_plain(source)} norm")]
    paths = {name: each.paths for name, each in history.sources.items()}
    found = [finding for finding in findings if paths.get(finding.source) == paths[source]]
    to = beside(source, "params")
    ratios = {beside(source, "updates"): "update / parameter"}
    if kind_of(source) not in ("params", "updates"):
        ratios[source] = f"{_plain(source)} / parameter"
    for of, title in ratios.items():
        if of in history.sources and to in history.sources and history.ratio(of, to) is not None:
            tops = history.values(of, "norm", resolution=columns)
            bad = _bad(history, table, leaf_rows, tops, of, to)
            top = _rolled(table, leaf_rows, tops.latest)
            bottom = _rolled(table, leaf_rows, history.values(to, "norm", resolution=columns).latest)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = _as_float32(top / np.where(bottom == 0, np.nan, bottom))
            values = _without_zeros(ratio, bad)
            series.append(Series(f"{of}.ratio", title, tops.first, tops.until, values, bad, unit="ratio"))
    return _with_marks(series, found, leaf_rows)


def gradient_histograms(history: History, table: TreeTable, source: str = "grads") -> tuple[Histograms, ...]:
    """How often each power of two occurred in every row over the steps, if it was measured."""
    if "histogram" not in history.statistics(source):
        return ()
    columns = min(max(_MOST_COUNTS // (len(table) * N_BINS), 4), COLUMNS)
    recorded = history.values(source, "histogram", resolution=columns)
    assert recorded.total is not None
    counts = np.zeros((len(table), len(recorded.until), N_BINS), np.int64)
    counts[table.is_leaf] = np.moveaxis(np.maximum(recorded.total, 0), 0, 1)
    name, title = f"{source}.histogram", f"magnitudes of {_plain(source)}"
    return (Histograms(name, title, recorded.first, recorded.until, roll(table, counts, "sum"), _EDGES),)


def _with_marks(series: list[Series], findings: list[Finding], leaf_rows: np.ndarray) -> tuple[Series, ...]:
    marks: list[list[Mark]] = [[] for _ in series]
    names = [each.name for each in series]
    for finding in findings:
        ratio = f"{finding.source}.ratio" if finding.kind in ("ratio", "frozen") else ""
        place = names.index(ratio) if ratio in names else 0
        row = 0 if finding.leaf < 0 else int(leaf_rows[finding.leaf])
        column = min(int(np.searchsorted(series[place].last_steps, finding.first)), len(series[place].last_steps) - 1)
        marks[place].append(Mark(row, column, finding.kind, f"{finding.sentence} {finding.advice}"))
    return tuple(replace(each, marks=tuple(found)) for each, found in zip(series, marks, strict=True))


def _norm_series(
    table: TreeTable, leaf_rows: np.ndarray, norm: Recorded, bad: np.ndarray, name: str, title: str
) -> Series:
    is_single = bool((norm.n == 1).all())
    latest, low, high = (
        None if part is None else _as_float32(_rolled(table, leaf_rows, part))
        for part in (norm.latest, None if is_single else norm.low, None if is_single else norm.high)
    )
    assert latest is not None
    low, high = (None if part is None else _without_zeros(part, bad) for part in (low, high))
    latest = _without_zeros(latest, bad)
    return Series(name, title, norm.first, norm.until, latest, bad, low, high, unit="L2 norm")


def _without_zeros(values: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Nothing where all numbers may be NaN: what was measured is the norm of the finite ones, and so 0."""
    values[bad & (values == 0)] = np.nan
    return values


def _as_float32(values: np.ndarray) -> np.ndarray:
    largest = np.finfo(np.float32).max
    return np.clip(values, -largest, largest).astype(np.float32)


def _rolled(table: TreeTable, leaf_rows: np.ndarray, of_leaves: np.ndarray) -> np.ndarray:
    """[n_rows, steps] from [steps, leaves]; NaN where a subtree has no numbers."""
    values = np.full((len(table), of_leaves.shape[0]), np.nan)
    values[leaf_rows] = of_leaves.T
    return roll(table, values, "norm")


def _bad(history: History, table: TreeTable, leaf_rows: np.ndarray, columns: Recorded, *sources: str) -> np.ndarray:
    """bool[n_rows, columns]: whether something was not finite in these sources at the steps of the columns."""
    bad = np.zeros((len(table), len(columns.until)), dtype=bool)
    for source in sources:
        # Its buckets may be others than those of the norms.
        nonfinite = history.values(source, "nonfinite")
        n_before = np.concatenate([np.zeros((1, len(leaf_rows)), int), np.cumsum(nonfinite.high > 0, axis=0)])
        start = np.searchsorted(nonfinite.until, columns.first)
        stop = np.maximum(np.searchsorted(nonfinite.first, columns.until, side="right"), start)
        bad[leaf_rows] |= (n_before[stop] > n_before[start]).T
    return roll(table, bad, "any")


def _plain(source: str) -> str:
    return source.replace("grads", "gradient", 1) if source.startswith("grads") else source
