"""A history as a table: its series and histograms over the steps, and the numbers of one step as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import numpy as np

from treeviz.steps.findings.finding import SCALARS, Finding
from treeviz.steps.recording.history import History, Timeline, occurs_in
from treeviz.steps.statistics import (
    ROLES,
    STATISTICS,
    MeasuredTree,
    Statistic,
    is_beside,
    kind_of,
    result_kind,
    section_of,
    sibling_name,
    title_of,
    wholes,
)
from treeviz.tree.facts import Column, Facts
from treeviz.tree.layers import open_stacks
from treeviz.tree.paths import table_of_paths
from treeviz.tree.series import FIRST_EXPONENT, N_BINS, FindingMark, Histograms, Series
from treeviz.tree.table import TreeTable

MOST_BUCKETS = 400  # per series: about what fits on a screen
_LOG_FROM = 30  # times the least value; beyond it, a scalar's scale is logarithmic
_AT_ONCE = 1 << 18  # norms that are rolled up in one call
_MOST_COUNTS = 4_000_000  # of all histograms
_EDGES = 2.0 ** np.arange(FIRST_EXPONENT, FIRST_EXPONENT + N_BINS + 1)


def table_of_source(history: History, source: str, name: str) -> TreeTable:
    """Rebuild the measured tree from the paths, sizes, shapes and dtypes of its leaves."""
    return _table(history.sources[source], name)


@lru_cache(maxsize=4)  # all views of a run have the same rows
def _table(tree: MeasuredTree, name: str) -> TreeTable:
    paths, facts, axes = [], [], {}
    known: dict[Facts, Facts] = {}  # so that equal facts are one object
    for leaf in wholes(tree):
        is_measured = tree.has_number[leaf.first]
        kind = ("array", "jax.Array") if is_measured else ("opaque", "no gradient")
        dtype, n = tree.dtypes[leaf.first], leaf.size if is_measured else 0
        fact = Facts(*kind, True, 1, elements=n, shape=leaf.shape, dtype=dtype)
        axes |= {} if leaf.axis is None else {len(paths): leaf.axis}
        paths.append(leaf.path)
        facts.append(known.setdefault(fact, fact))
    table = table_of_paths(name, paths, facts, chains=True)
    rows = np.flatnonzero(table.is_leaf).tolist()
    return open_stacks(table, {rows[leaf]: axis for leaf, axis in axes.items()})[0]


def gradient_series(
    history: History, table: TreeTable, source: str = "grads", findings: Iterable[Finding] = ()
) -> tuple[Series, ...]:
    """The norm of every row of `table` over the steps, and its ratio to the parameter norm if known.

    The norm of a subtree is the root of the sum of squares of its leaves. Buckets with NaN or Inf are marked as bad.
    A finding is shown at the row and step where it begins, one about results at the root.
    """
    paths = {name: tree.paths for name, tree in history.sources.items()}
    received = sibling_name(source, "received")
    has_received = received != source and paths.get(received) == paths[source]
    series = [_norm_series(history, table, name) for name in [source, received][: 1 + has_received]]
    series += [_rms_series(history, table, name) for name in activations_of(history, source)]
    shown_tree = section_of(source)[1], paths[source]
    shown_findings = [
        finding
        for finding in findings
        if is_of_step(finding) or (section_of(finding.source)[1], paths.get(finding.source)) == shown_tree
    ]
    params = _params_of(history, source)
    ratios = {sibling_name(source, "updates"): "updates ÷ params"}
    if not is_beside(source):
        ratios[source] = f"{title_of(source)} ÷ params"
    for name, title in ratios.items():
        if history.has_ratio(name, params):
            norms, bad = _norms(history, table, name, params)
            of_params = history.values(params, "finite_norm", resolution=MOST_BUCKETS).latest
            ratio = _divided(rolled_norms(table, norms.latest), rolled_norms(table, of_params))
            values, steps = _without_zeros(as_float32(ratio), bad), (norms.begins, norms.ends)
            series.append(Series(f"{name}.ratio", title, *steps, values, bad, unit="ratio", inner=norms.numbering))
    return _with_marks(series, shown_findings, history, table.measured)


def activations_of(history: History, source: str) -> list[str]:
    """The trees of `ROLES` for the parameters that a tree is the gradient of, if measured; those of each use."""
    if kind_of(source) != "grads":
        return []
    main = [sibling_name(source, role) for role in ROLES]
    return [
        name
        for name, tree in history.sources.items()
        if kind_of(name) in ROLES
        and sibling_name(name, kind_of(name)) in main
        and tree.paths == history.sources[source].paths
    ]


def _params_of(history: History, source: str) -> str:
    """The parameters with the leaves of a tree; "" if there are none, as for a tap."""
    tree, name = history.sources[source], sibling_name(source, "params")
    params = history.sources.get(name)
    is_same = params is not None and params.sizes == tree.sizes and (kind_of(source) or params.paths == tree.paths)
    return name if is_same else ""


def position_of(finding: Finding, history: History) -> int:
    """The position of the first step of a finding; see `treeviz.tree.series.InnerSteps`."""
    return int(history.inner.position(finding.first, -1 if finding.first_inner is None else finding.first_inner))


def is_of_step(finding: Finding) -> bool:
    """Whether a finding is about a result or a scalar, which have no leaf: it is shown at the root."""
    return bool(result_kind(finding.source)) or finding.source == SCALARS


def scalar_series(
    history: History,
    findings: Iterable[Finding] = (),
    buckets: int = MOST_BUCKETS,
    most: int | None = None,
    only: str | None = None,
) -> tuple[Series, ...]:
    """Return the first `most` recorded scalars, or `only` this one, each as a series with one row."""
    series = []
    for name in islice(history.scalars.tracks, most) if only is None else (only,):
        timeline, bad = history.scalars.values_and_bad(name, resolution=buckets)
        parts = timeline.latest, timeline.low, timeline.high
        latest, low, high = (np.where(np.isfinite(part), part, np.nan)[None] for part in parts)
        is_wide = np.nanmin(low, initial=np.inf) > 0 and np.nanmax(high) > _LOG_FROM * np.nanmin(low)
        steps, inner = (timeline.begins, timeline.ends), timeline.numbering
        scalar = Series(name, name, *steps, latest, bad[None], low, high, bool(is_wide), unit="scalar", inner=inner)
        scalar_findings = [finding for finding in findings if (finding.source, finding.path) == (SCALARS, name)]
        series += _with_marks([scalar], scalar_findings, history)
    return tuple(series)


def gradient_histograms(history: History, table: TreeTable, source: str = "grads") -> tuple[Histograms, ...]:
    """Return the counts of powers of two in every row over the steps; empty if not measured."""
    if "histogram" not in history.statistics(source):
        return ()
    buckets = min(max(_MOST_COUNTS // (len(table) * N_BINS), 4), MOST_BUCKETS)
    recorded = history.values(source, "histogram", resolution=buckets)
    assert recorded.total is not None
    counts = np.zeros((len(table), len(recorded.until), N_BINS), np.int64)
    counts[table.measured] = np.moveaxis(np.maximum(recorded.total, 0), 0, 1)
    name, title = f"{source}.histogram", f"magnitudes of {title_of(source)}"
    counts, steps = table.roll(counts, "sum"), (recorded.begins, recorded.ends)
    return (Histograms(name, title, *steps, counts, _EDGES, recorded.numbering),)


def _with_marks(
    series: list[Series], findings: list[Finding], history: History, leaf_rows: Sequence[int] | np.ndarray = ()
) -> tuple[Series, ...]:
    marks: list[list[FindingMark]] = [[] for _ in series]
    names = [row_series.name for row_series in series]
    for finding in findings:
        ratio = f"{finding.source}.ratio" if finding.kind in ("ratio", "frozen") else ""
        i = names.index(ratio) if ratio in names else 0
        row = 0 if finding.leaf < 0 or is_of_step(finding) else int(leaf_rows[finding.leaf])
        bucket = int(np.searchsorted(series[i].last_steps, position_of(finding, history)))
        bucket = min(bucket, len(series[i].last_steps) - 1)
        text = f"{finding.sentence} {finding.advice}"
        marks[i].append(FindingMark(row, bucket, finding.kind, text, finding.severity))
    return tuple(replace(line, marks=tuple(line_marks)) for line, line_marks in zip(series, marks, strict=True))


def _norm_series(history: History, table: TreeTable, source: str) -> Series:
    norm, bad = _norms(history, table, source)
    parts = (norm.latest,) if (norm.n == 1).all() else (norm.latest, norm.low, norm.high)
    latest, *rest = (_without_zeros(as_float32(rolled_norms(table, part)), bad) for part in parts)
    low, high = rest or (None, None)
    name, title, steps = f"{source}.norm", f"{title_of(source)} norm", (norm.begins, norm.ends)
    return Series(name, title, *steps, latest, bad, low, high, unit="L2 norm", inner=norm.numbering)


def _rms_series(history: History, table: TreeTable, source: str) -> Series:
    """The root mean square of activations, in a subtree the largest."""
    rms, bad = _norms(history, table, source, statistic="finite_rms")
    values = np.full((len(table), len(rms.until)), np.nan)
    values[table.measured] = rms.latest.T
    values = _without_zeros(as_float32(table.roll(values, "max")), bad)
    name, title = f"{source}.rms", f"{title_of(source)} rms"
    return Series(name, title, rms.begins, rms.ends, values, bad, unit="rms", inner=rms.numbering)


def _norms(
    history: History, table: TreeTable, source: str, *others: str, statistic: str = "finite_norm"
) -> tuple[Timeline, np.ndarray]:
    """The norms of a source, and bool[n_rows, k]: whether it, or another one, had non-finite values there."""
    norm = history.values(source, statistic, resolution=MOST_BUCKETS)
    bad = np.zeros((len(table), len(norm.until)), dtype=bool)
    for name in (source, *others):
        bad[table.measured] |= occurs_in(history.values(name, "nonfinite"), norm).T
    return norm, table.roll(bad, "any")


def _divided(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return numerator / np.where(denominator == 0, np.nan, denominator)


def _without_zeros(values: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Replace zeros by NaN if there are non-finite values, since the norm covers only finite ones."""
    values[bad & (values == 0)] = np.nan
    return values


def as_float32(values: np.ndarray) -> np.ndarray:
    """Convert to float32; values beyond its range become the largest finite number."""
    largest = np.finfo(np.float32).max
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    return np.clip(narrow, -largest, largest, out=narrow)


def rolled_norms(table: TreeTable, leaf_norms: np.ndarray) -> np.ndarray:
    """Roll norms [steps, leaves] up to [n_rows, steps]; NaN if a subtree has no numbers."""
    values = np.full((len(table), len(leaf_norms)), np.nan)
    values[table.measured] = leaf_norms.T
    at_once = max(1, _AT_ONCE // len(table))
    for start in range(0, len(leaf_norms), at_once):
        values[:, start : start + at_once] = table.roll(values[:, start : start + at_once], "norm")
    return values


# The numbers of one step as columns. Norms roll up exactly.


def gradient_columns(table: TreeTable, numbers: Mapping[str, Mapping[str, np.ndarray]]) -> list[Column]:
    """The columns "grads_norm", "grads_nonfinite", …, "updates_ratio" and "grads_ratio" (to "params") of one step.

    A row with non-finite values has no norm and is `bad`, since the measured norm covers only finite values.
    """
    rows = table.measured
    columns: list[Column] = []
    norms: dict[str, Column] = {}
    for source, statistics in numbers.items():
        is_bad = np.zeros(len(table), bool)
        for name, values in statistics.items():
            if name in STATISTICS and STATISTICS[name].counts_nonfinite:
                is_bad[rows] |= values > 0
        is_bad = table.roll(is_bad, "any")
        for name, values in statistics.items():
            record = STATISTICS.get(name)
            if values.shape != (record.shape(rows.size) if record else (rows.size,)):
                raise ValueError(f"{source} has {values.shape[-1:]} leaves, but {table.name} has {rows.size}.")
            if record is None or not record.title or (name == "rms" and "norm" in statistics):
                continue
            column = _column(table, rows, source, record, values, is_bad)
            columns.append(column)
            if name == "norm":
                norms[source] = column
    return columns + _ratios(table, norms)


def _column(
    table: TreeTable, rows: np.ndarray, source: str, record: Statistic, values: np.ndarray, is_bad: np.ndarray
) -> Column:
    title = f"{title_of(source)} {record.title}"
    name, help = f"{source}_{record.name}", f"{source}: {record.help}"
    if record.is_count:
        return Column(name, title, _spread(table, rows, np.maximum(values, 0), 0), None, "count", record.rollup, help)
    levels = _spread(table, rows, values, np.nan)
    if not is_bad.any():
        return Column(name, title, levels, None, "number", record.rollup, help)
    levels = np.where(is_bad, np.nan, table.roll(levels, record.rollup))
    return Column(name, title, levels, None, "number", "given", help, is_bad)


def _ratios(table: TreeTable, norms: Mapping[str, Column]) -> list[Column]:
    """Divide the norms of gradients and updates by those of their parameters."""
    columns = []
    for source, column in norms.items():
        params_column = norms.get(sibling_name(source, "params"))
        if kind_of(source) in ("grads", "updates") and params_column is not None:
            ratio = _divided(table.rolled(column), table.rolled(params_column))
            bad_rows = [norm_column.bad for norm_column in (column, params_column) if norm_column.bad is not None]
            is_bad = np.any(bad_rows, axis=0) if bad_rows else None
            help = f"{source} norm ÷ {sibling_name(source, 'params')} norm, of the whole subtree"
            title = f"{title_of(source)} ÷ params"
            columns.append(Column(f"{source}_ratio", title, ratio, None, "number", "given", help, is_bad))
    return columns


_FIRST = ("rms", "dead", "zero_share")  # of the columns of activations
_LIGHT = {"inputs": _FIRST, "outputs": _FIRST[:1]}  # in all measured steps
_LISTS = {
    "dead_at": ("dead features", "which features are zero in all examples"),
    "unread_at": ("unread rows", "which rows are not read"),
}
_HEAVY = {"nonfinite": "; 1 stands for any number, except in the steps of heavy_every"}  # the others are not in others


def activation_columns(table: TreeTable, history: History, source: str = "grads") -> list[Column]:
    """Return the columns of what goes into the parameters of a source, comes out and flows back, each at its newest."""
    columns: list[Column] = []
    for name in activations_of(history, source):
        known = [(statistic, history.tracks[name, statistic].latest()) for statistic in history.statistics(name)]
        numbers = {statistic: newest[1] for statistic, newest in known if newest is not None}
        for column in gradient_columns(table, {name: numbers}):
            statistic, light = column.name.removeprefix(f"{name}_"), _LIGHT.get(kind_of(name), ())
            more = (
                "" if statistic in light else (_HEAVY if light else {}).get(statistic, "; in the steps of heavy_every")
            )
            columns.append(replace(column, help=column.help + more))
        for key, (title, help) in _LISTS.items():
            if key not in numbers:
                continue
            n = numbers["dead"] if key == "dead_at" else np.array(history.sources[name].sizes) - numbers["rows_read"]
            lists = [[f"{place - 1}" for place in leaf.tolist() if place > 0] for leaf in numbers[key]]
            texts = [", ".join(x) + " …" * (0 < len(x) < of) for x, of in zip(lists, n.tolist(), strict=True)]
            levels = [""] * len(table)
            for row, text in zip(table.measured.tolist(), texts, strict=True):
                levels[row] = text
            name_of_column = f"{name}_{title.replace(' ', '_')}"
            columns.append(Column(name_of_column, f"{title_of(name)} {title}", levels, help=f"{name}: {help}"))
    kinds = [column.name.partition("_")[2] for column in columns]
    order = sorted(range(len(columns)), key=lambda i: _FIRST.index(kinds[i]) if kinds[i] in _FIRST else len(_FIRST))
    return [columns[i] for i in order]


def ratio_columns(table: TreeTable, history: History, source: str = "grads") -> list[Column]:
    """Return the ratio columns of a source and its updates, at the newest step with parameters."""
    params = _params_of(history, source)
    names = dict.fromkeys([source, sibling_name(source, "updates"), params])
    newest = {name: history.last(name) for name in names if name in history.sources}
    same_step = {
        name: {statistic: values for statistic, values in numbers.items() if statistic in ("norm", "nonfinite")}
        for name, (step, numbers) in newest.items()
        if params in newest
        and step == newest[params][0]
        and history.sources[name].sizes == history.sources[params].sizes
    }
    return [column for column in gradient_columns(table, same_step) if column.name.endswith("_ratio")]


def _spread(table: TreeTable, rows: np.ndarray, values: np.ndarray, nothing) -> np.ndarray:
    spread = np.full(len(table), nothing, values.dtype)
    spread[rows] = values
    return spread
