"""A user's own function of a leaf, as a column."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from treeviz.analysis.sizes import whole_numbers
from treeviz.tree.column import Column, Format, Rollup
from treeviz.tree.quote import error_text, function_name, guarded, has_base, value_text, visible
from treeviz.tree.table import TreeTable

_N_TITLE = 40  # characters
_NAMES = re.compile(r"[^a-z0-9_.-]+")
# words of a query that mean something else
_FIELDS = frozenset({"key", "kind", "type", "dtype", "sharding", "shape", "is", "depth", "params"})
_STATISTICS = frozenset({"min", "max", "mean", "std", "rms", "zeros", "nan", "inf", "posinf", "neginf", "histogram"})
_FORMATS = ("label", "count", "bytes", "number")
_ROLLUPS = ("sum", "max", "min", "any", "norm", "none")


@dataclass(frozen=True)
class LeafFunction:
    """A function of a leaf and how its results are shown; made by `treeviz.column`."""

    function: Callable[[Any], Any]
    title: str
    format: Format | None
    rollup: Rollup
    help: str


def column(
    function: Callable[[Any], Any],
    *,
    title: str = "",
    format: Format | None = None,
    rollup: Rollup = "none",
    help: str = "",
) -> LeafFunction:
    """A column of your own for `render(tree, columns=[...])`: what a function says of each leaf.

        tv.render(params, columns=["bytes", tv.column(lambda x: abs(x).max(), title="max |x|", rollup="max")])

    The function is called once for each leaf, in the tree's order, with the leaf itself. Numbers make a column
    of numbers, also where they are scalars of JAX, which are fetched in one transfer for all; anything else is
    shown as text. What the function raises for a leaf is shown in that leaf's row.

    Args:
      function: Takes a leaf. Costs what it costs: nothing limits it but ctrl-C.
      title: What stands above the column; by default the function's name.
      format: "count", "bytes", "number" or "label"; by default what the results suggest.
      rollup: How a node's value follows from those below it: "sum", "max", "min", "any", "norm" (the root of the
        sum of squares), or "none": a node has no value.
      help: One sentence for a tooltip.

    Raises:
      TypeError: `function` cannot be called.
      ValueError: There is no such format or roll-up.
    """
    if not callable(function):
        raise TypeError(f"column: a function of a leaf is wanted, and not {value_text(function)}")
    for what, value, known in (("format", format, (None, *_FORMATS)), ("rollup", rollup, _ROLLUPS)):
        if value not in known:
            raise ValueError(f"column: there is no {what} {value!r}; there are {', '.join(map(repr, known))}.")
    title = visible(title, _N_TITLE) if title else _title(function)
    return LeafFunction(function, title, format, rollup, visible(help) if help else f"{title} of the leaf")


def function_columns(
    table: TreeTable, nodes: Sequence[object], functions: Sequence[LeafFunction], taken: Collection[str]
) -> list[list[Column]]:
    """For each function its column, and behind it one of texts where some results are no numbers.

    Args:
      table: As walked.
      nodes: The node or leaf of each of its rows.
      taken: Names that the columns are not to have.
    """
    rows = np.flatnonzero(table.is_leaf).tolist()
    answers = [_Answers([_call(each.function, nodes[row]) for row in rows]) for each in functions]
    _fetch(answers)
    columns, taken = [], {*_FIELDS, *_STATISTICS, *(name.lower() for name in taken)}
    for each, answer in zip(functions, answers, strict=True):
        name = _name(each.title, taken)
        taken |= {name, f"{name}.text"}
        columns.append(_columns(table, rows, each, answer.results, name))
    return columns


class _Text(str):
    """What stands in a cell instead of a number: an error, a result of another type."""


class _Answers:
    """What a function said of each leaf, and which of that is still on its way from a device."""

    def __init__(self, results: list[Any]) -> None:
        self.results = [self._plain(result) for result in results]
        self.waiting = [i for i, result in enumerate(self.results) if isinstance(result, jax.Array)]

    @staticmethod
    def _plain(result: Any) -> Any:
        """A bool, int, float, text, None, or a scalar of JAX that is to be fetched."""
        cls = type(result)
        if any(cls is plain for plain in (bool, int, float, _Text, type(None))):  # no metaclass is asked
            return result
        if has_base(cls, str):
            return visible(str.__str__(result))
        try:
            if has_base(cls, jax.core.Tracer):
                return _Text("traced: no value yet")
            if isinstance(result, jax.Array):
                if result.shape == () and not jnp.issubdtype(result.dtype, jax.dtypes.extended):
                    return result
                return _Text(value_text(result))
            if has_base(cls, np.generic, np.ndarray) and result.shape == ():
                return _number(result)
        except Exception as error:
            return _Text(error_text(error))
        return _Text(value_text(result))


def _call(function: Callable[[Any], Any], leaf: Any) -> Any:
    try:
        return function(leaf)
    except Exception as error:
        return _Text(error_text(error))


def _fetch(answers: list[_Answers]) -> None:
    """All scalars of all functions in one transfer."""
    waiting = [(answer.results, i) for answer in answers for i in answer.waiting]
    if not waiting:
        return

    from treeviz.analysis.stats_device import fetch

    scalars = [results[i] for results, i in waiting]
    try:
        fetched: list[Any] = fetch(scalars)
    except Exception:  # one of them failed: which?
        fetched = [_one(fetch, scalar) for scalar in scalars]
    for (results, i), value in zip(waiting, fetched, strict=True):
        results[i] = value if type(value) is _Text else _number(value)


def _one(fetch: Callable, scalar: jax.Array) -> Any:
    try:
        return fetch([scalar])[0]
    except Exception as error:
        return _Text(error_text(error))


def _number(scalar: Any) -> Any:
    """A Python number of a scalar of NumPy, or its text."""
    array = np.asarray(scalar)
    if array.dtype.kind in "biuf":
        return array.item() if array.dtype.kind != "f" else float(array)
    if array.dtype.kind == "V" and jnp.issubdtype(array.dtype, np.number):  # bfloat16, int4 and their like
        return float(array.astype(np.float64))
    return _Text(value_text(array.item() if array.dtype.kind in "cUS" else scalar))


def _columns(table: TreeTable, rows: list[int], of: LeafFunction, results: list[Any], name: str) -> list[Column]:
    wants_numbers = of.format in ("count", "bytes", "number") or of.rollup != "none"
    numeric = (int, float, bool) if wants_numbers else (int, float)
    are_numbers = [type(result) in numeric for result in results]
    if of.format == "label" or not any(are_numbers):
        return [_labels(table, rows, of, results, name, of.title)]
    numbers = [result if is_number else None for result, is_number in zip(results, are_numbers, strict=True)]
    columns = [_numbers(table, rows, of, numbers, name)]
    others = [
        "NaN" if result != result else None if is_number else result
        for result, is_number in zip(results, are_numbers, strict=True)
    ]
    if any(text is not None for text in others):
        columns.append(_labels(table, rows, of, others, f"{name}.text", f"{of.title}: no number"))
    return columns


def _numbers(table: TreeTable, rows: list[int], of: LeafFunction, numbers: list[Any], name: str) -> Column:
    given = [number for number in numbers if number is not None]
    are_whole = all(type(number) is not float for number in given)
    format: Format = of.format or ("count" if are_whole else "number")
    own = [np.nan if number is None else _float(number) for number in numbers]
    levels = np.full(len(table), np.nan)
    levels[rows] = own
    if format in ("count", "bytes"):
        # these are written as whole numbers: what is none of them is not there
        levels[~np.isfinite(levels)] = np.nan
    if of.rollup == "any":
        levels = np.nan_to_num(levels)
    if of.rollup == "sum" and format in ("count", "bytes") and are_whole and len(given) == len(numbers):
        magnitudes = [abs(int(number)) for number in given]
        dtype = whole_numbers(magnitudes, len(table)).dtype if max(magnitudes, default=0) < 2**63 else np.float64
        levels = np.zeros(len(table), dtype)
        levels[rows] = own if dtype == np.float64 else [int(number) for number in given]
    return Column(name, of.title, levels, None, format, of.rollup, of.help)


def _float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return np.inf if number > 0 else -np.inf


def _labels(table: TreeTable, rows: list[int], of: LeafFunction, results: list[Any], name: str, title: str) -> Column:
    known: dict[str, int] = {"": 0}
    codes = np.zeros(len(table), np.int32)
    codes[rows] = [known.setdefault(_label(result), len(known)) for result in results]
    return Column(name, title, list(known), codes, help=of.help)


def _label(result: Any) -> str:
    return "" if result is None else str.__str__(result) if isinstance(result, str) else value_text(result)


def _title(function: Callable) -> str:
    name = guarded(lambda: getattr(function, "__name__", None), lambda _: None)  # a ufunc, a partial may have none
    return visible(name if type(name) is str else function_name(function), _N_TITLE)


def _name(title: str, taken: Collection[str]) -> str:
    """The title as a field of a query; with a number where that is taken."""
    name = _NAMES.sub("_", title.lower()).strip("_.-") or "function"
    name = name if name[0].isalpha() else f"_{name}"
    unique, n = name, 1
    while unique in taken or f"{unique}.text" in taken:
        n += 1
        unique = f"{name}_{n}"
    return unique
