"""Series of a training run that went wrong in known ways, made without training anything."""

from __future__ import annotations

import numpy as np

import treeviz
from treeviz.tree.series import FindingMark, Series
from treeviz.tree.table import TreeTable

NAN_FROM, EXPLODES_FROM = 60, 50  # columns
WIDTH = 10  # steps of a column


def layers(n_layers: int = 4) -> TreeTable:
    """Eight leaves a layer."""
    names = ("q", "k", "v", "o", "up", "down", "gate", "bias")
    layers = [{name: np.zeros((4, 4), np.float32) for name in names} for _ in range(n_layers)]
    return treeviz.walk({"embed": np.zeros((9, 4), np.float32), "layers": layers}, name="params")


def leaf(table: TreeTable, path: str) -> int:
    (row,) = [row.number for row in table.leaves if row.path == path]
    return row


def run(table: TreeTable, n_columns: int = 100, *, healthy: bool = False) -> list[Series]:
    """The gradient's norm and its ratio to the parameters' norm.

    Unless it is healthy: layers/1/up explodes, layers/2/down is NaN from a column on (and what is above it),
    layers/0/bias is always zero.
    """
    rng = np.random.default_rng(7)
    steps = np.arange(n_columns) * WIDTH
    size = 10.0 ** rng.uniform(-3, 0, (len(table), 1))
    values = size * np.exp(-np.arange(n_columns) / 60) * np.exp(rng.normal(0, 0.2, (len(table), n_columns)))
    bad = np.zeros(values.shape, bool)
    marks: list[FindingMark] = []
    if not healthy:
        up, down, bias = (leaf(table, f"layers/{path}") for path in ("1/up", "2/down", "0/bias"))
        values[up, EXPLODES_FROM:] *= 1.5 ** np.minimum(np.arange(n_columns - EXPLODES_FROM), 50)
        values[bias] = 0
        bad[down, NAN_FROM:] = True
        marks = [
            FindingMark(
                down, NAN_FROM, "nonfinite", "16 of 16 elements are NaN; the first leaf in backward order.", "error"
            ),
            FindingMark(up, EXPLODES_FROM + 9, "exploding", "The norm grows by 1.5 a step; try clipping.", "error"),
            FindingMark(bias, 0, "dead", "Always zero: no path from the loss."),
        ]
    values[~table.is_leaf] = 0
    for row in range(len(table) - 1, 0, -1):
        parent = table.parent[row]
        values[parent] = np.hypot(values[parent], values[row])
        bad[parent] |= bad[row]
    values = np.where(bad, np.nan, values).astype(np.float32)
    spread = np.exp(rng.uniform(0, 0.5, values.shape)).astype(np.float32)
    norm = Series(
        "grads.norm",
        "grads norm",
        steps,
        steps + WIDTH - 1,
        values,
        bad,
        low=values / spread,
        high=values * spread,
        marks=tuple(marks),
    )
    ratio = Series("grads.ratio", "grads ÷ params", steps, steps + WIDTH - 1, values / np.float32(7), bad)
    return [norm, ratio]
