"""Columns from a user's function of a leaf."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any

import jax
import numpy as np

from treeviz.analysis.facts import whole_numbers
from treeviz.tree.facts import Column, Format, Rollup
from treeviz.tree.query import ALIASES, ROW_FIELDS, VALUE_STATISTICS
from treeviz.tree.table import TreeTable
from treeviz.tree.text import error_text, function_name, guarded, has_base, is_any, value_text, visible

_N_TITLE = 40  # characters
_NAMES = re.compile(r"[^a-z0-9_.-]+")
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
    """A column of your own for `render(tree, columns=[...])`: the result of a function for each leaf.

        import jax.numpy as jnp, treeviz as tv

        params = {"w": jnp.ones((3, 4)), "b": jnp.zeros(4)}
        largest = tv.column(lambda x: abs(x).max(), title="max |x|", rollup="max")
        print(tv.render(params, columns=["bytes", largest]))

    The function is called once for each leaf, in the tree's order. Its result may be a Python or NumPy number, a JAX
    scalar, a string, None (an empty cell) or anything else, shown as a short text. JAX scalars of all leaves
    are fetched in one transfer. An exception is shown in the leaf's row only.

    Args:
      function: Takes a leaf. Its cost is not limited; ctrl-C interrupts it.
      title: The heading of the column, and in lower case its name in queries; by default the function's name.
      format: "count" and "bytes" for integers, "number" for floats, "label" for text; by default it follows from the
        results.
      rollup: How a node's value is computed from the leaves below it: "sum", "max", "min", "any", "norm" (the root of
        the sum of squares), or "none": a node has no value.
      help: One sentence for the tooltip: the definition and the unit.

    Raises:
      TypeError: `function` is not callable.
      ValueError: Unknown `format` or `rollup`.
    """
    if not callable(function):
        raise TypeError(f"column: pass a function of a leaf, not {value_text(function)}")
    for option, value, known in (("format", format, (None, *_FORMATS)), ("rollup", rollup, _ROLLUPS)):
        if value not in known:
            raise ValueError(f"column: there is no {option} {value!r}; there are {', '.join(map(repr, known))}.")
    title = visible(title, _N_TITLE) if title else _title(function)
    return LeafFunction(function, title, format, rollup, visible(help) if help else f"{title} of the leaf")


def function_columns(
    table: TreeTable, nodes: Sequence[object], functions: Sequence[LeafFunction], taken: Collection[str]
) -> list[list[Column]]:
    """For each function its column, and a column of texts if some results are not numbers; `taken` names are in use."""
    rows = np.flatnonzero(table.is_leaf).tolist()
    answers = [[_result(function.function, nodes[row]) for row in rows] for function in functions]
    _fetch(answers)
    columns, taken = [], {*ROW_FIELDS, *ALIASES, *VALUE_STATISTICS, *(name.lower() for name in taken)}
    for function, results in zip(functions, answers, strict=True):
        name = _name(function.title, taken)
        taken |= {name, f"{name}.text"}
        columns.append(_columns(table, rows, function, results, name))
    return columns


class _Text(str):
    """Text in a cell in place of a number: an error, or a result of another type."""


def _result(function: Callable[[Any], Any], leaf: Any) -> Any:
    """The result as a bool, int, float, text or None, or a JAX scalar that is fetched later."""
    from treeviz.tree.tracers import Tracer  # which imports JAX

    try:
        result = function(leaf)
        cls = type(result)
        if is_any(cls, (bool, int, float, type(None))):
            return result
        if has_base(cls, str):
            return visible(str.__str__(result))
        if has_base(cls, Tracer):
            return _Text("traced: no value yet")
        if isinstance(result, jax.Array):
            if result.shape == () and not jax.numpy.issubdtype(result.dtype, jax.dtypes.extended):
                return result
        elif has_base(cls, np.generic, np.ndarray) and result.shape == ():
            return _number(result)
        return _Text(value_text(result))
    except Exception as error:
        return _Text(error_text(error))


def _fetch(answers: list[list[Any]]) -> None:
    """Fetch the JAX scalars of all functions in one transfer."""
    waiting = [(results, i) for results in answers for i, x in enumerate(results) if isinstance(x, jax.Array)]
    if not waiting:
        return

    from treeviz.analysis.stats import fetch

    scalars, as_text = [results[i] for results, i in waiting], lambda error: [_Text(error_text(error))]
    fetched: Any = guarded(partial(fetch, scalars), lambda _: None)
    if fetched is None:  # one failed: fetch each alone to find it
        fetched = [guarded(partial(fetch, [scalar]), as_text)[0] for scalar in scalars]
    for (results, i), value in zip(waiting, fetched, strict=True):
        results[i] = value if type(value) is _Text else _number(value)


def _number(scalar: Any) -> Any:
    """A NumPy scalar as a Python number; as text if it is not a number."""
    array = np.asarray(scalar)
    if array.dtype.kind in "biuf":
        return array.item() if array.dtype.kind != "f" else float(array)
    if array.dtype.kind == "V" and jax.numpy.issubdtype(array.dtype, np.number):  # bfloat16, int4 …
        return float(array.astype(np.float64))
    return _Text(value_text(array.item() if array.dtype.kind in "cUS" else scalar))


def _columns(
    table: TreeTable, rows: list[int], leaf_function: LeafFunction, results: list[Any], name: str
) -> list[Column]:
    wants_numbers = leaf_function.format in ("count", "bytes", "number") or leaf_function.rollup != "none"
    numeric, title = (int, float, *(bool,) * wants_numbers), leaf_function.title
    numbers = [result if is_any(type(result), numeric) else None for result in results]
    if leaf_function.format == "label" or not any(number is not None for number in numbers):
        return [_labels(table, rows, leaf_function, results, name, title)]
    columns = [_numbers(table, rows, leaf_function, numbers, name)]
    others = [
        "NaN" if result != result else None if number is not None else result
        for result, number in zip(results, numbers, strict=True)
    ]
    if any(text is not None for text in others):
        columns.append(_labels(table, rows, leaf_function, others, f"{name}.text", f"{title}: no number"))
    return columns


def _numbers(table: TreeTable, rows: list[int], leaf_function: LeafFunction, numbers: list[Any], name: str) -> Column:
    given = [number for number in numbers if number is not None]
    are_whole = all(type(number) is not float for number in given)
    format: Format = leaf_function.format or ("count" if are_whole else "number")
    as_float = lambda number: guarded(lambda: float(number), lambda _: np.inf if number > 0 else -np.inf)  # noqa: E731
    own = [np.nan if number is None else as_float(number) for number in numbers]
    levels = np.full(len(table), np.nan)
    levels[rows] = own
    if leaf_function.rollup == "any":
        levels = np.nan_to_num(levels)
    if leaf_function.rollup == "sum" and format in ("count", "bytes") and are_whole and len(given) == len(numbers):
        magnitudes = [abs(int(number)) for number in given]
        dtype = whole_numbers(magnitudes, len(table)).dtype if max(magnitudes, default=0) < 2**63 else np.float64
        levels = np.zeros(len(table), dtype)
        levels[rows] = own if dtype == np.float64 else [int(number) for number in given]
    return Column(name, leaf_function.title, levels, None, format, leaf_function.rollup, leaf_function.help)


def _labels(
    table: TreeTable, rows: list[int], leaf_function: LeafFunction, results: list[Any], name: str, title: str
) -> Column:
    known: dict[str, int] = {"": 0}
    codes = np.zeros(len(table), np.int32)
    texts = ("" if x is None else str.__str__(x) if isinstance(x, str) else value_text(x) for x in results)
    codes[rows] = [known.setdefault(text, len(known)) for text in texts]
    return Column(name, title, list(known), codes, help=leaf_function.help)


def _title(function: Callable) -> str:
    name = guarded(lambda: getattr(function, "__name__", None), lambda _: None)  # a ufunc or a partial may have none
    return visible(name if type(name) is str else function_name(function), _N_TITLE)


def _name(title: str, taken: Collection[str]) -> str:
    """The title as a field name of queries, with a number if it is in use."""
    name = _NAMES.sub("_", title.lower()).strip("_.-") or "function"
    name = name if name[0].isalpha() else f"_{name}"
    names = chain([name], (f"{name}_{n}" for n in count(2)))
    return next(unique for unique in names if unique not in taken and f"{unique}.text" not in taken)
