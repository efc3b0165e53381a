"""Find the rows of a tree that match a query: `layers/*/weight`, `dtype:bf16`, `nan`, …"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.facts import Facts, Note
from treeviz.tree.kinds import NOTES
from treeviz.tree.query.fields import ALIASES, ROW_FIELDS, VALUE_STATISTICS, did_you_mean
from treeviz.tree.query.parse import (
    Term,
    TextTest,
    contains_test,
    glob_test,
    is_glob,
    is_pasted_path,
    number_test,
    parse,
    shape_test,
)
from treeviz.tree.query.paths import Table, by_key, in_path, on_path

_DTYPES = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex"}
_DTYPE_CLASSES = {
    "float": re.compile(r"b?float(?!0$)"),  # float0 is the tangent of an integer
    "int": re.compile(r"u?int\d"),
    "complex": re.compile("complex"),
    "bool": re.compile("bool"),
    "f8": re.compile("float8"),
}
_INDEX = re.compile(r"\[(\d+)\]")
# Words that ask for values, and the columns that count them. Those of a watched run count NaN and infinities together.
_FLAG_COLUMNS = {"nan": ("nan",), "inf": ("inf", "posinf", "neginf"), "zeros": ("zeros",)}
_NOT_FINITE = "_nonfinite"
_NEEDS_VALUES = "needs the values, which were not read: render(tree, stats=True) reads them."
_IS: dict[str, Callable[[Facts], bool]] = {
    "leaf": lambda facts: facts.is_leaf,
    "node": lambda facts: not facts.is_leaf and facts.kind != "layer",
    "opaque": lambda facts: facts.kind == "opaque",
    "static": lambda facts: bool(facts.static),
    "weak": lambda facts: facts.weak,
    "replicated": lambda facts: facts.sharding is not None and facts.sharding.replicated,
    "error": lambda facts: facts.kind in ("error", "cycle"),
}
_IS_NOTE = {"error": ("error", "cycle"), "cut": ("more",), **{kind: (kind,) for kind in NOTES if kind != "error"}}


def find(table: Table, query: str) -> list[Any]:
    """The rows that match the query, in the tree's order; none for a blank query.

    Case does not matter. Terms separated by spaces must all match, `|` separates alternatives, and `-`
    before a term negates it:

        attn            the word is in the row's key path (so: everything in attn), type, shape, value or
                        static fields, or it is the dtype: bf16. In quotes it is taken literally: "nan", "(3, 4)"
        T101            also the code of a finding of `treeviz.check`
        layers/*/w      a glob on the end of the key path: * ? [a-z] within a key, ** any number of
                        keys, a leading / ties it to the root; w[3] is also w/3
        key: kind: type: dtype: sharding:      dtype:bf16, dtype:float, kind:opaque, kind:leaf, key:w*
        shape:*,768     * one dimension, ... any number, also >64 and <=8; shape:() is a scalar
        diff:shape      a word in any column of text; diff:"type" all between two commas, and no "dtype"
        bytes:>1M       any column of numbers, rolled up: > >= < <= = or 1k..2k; k M G T, Ki Mi Gi Ti.
                        A node does not match for what matches below it
        nan  inf  zeros         leaves with such values, which needs statistics: render(tree, stats=True)
        is:changed      what differs, in `treeviz.diff`
        is:leaf         also node, shared, error, cycle, cut, hidden, opaque, static, weak, replicated, …

    Raises:
      ValueError: An unknown field or flag, an invalid number, an unclosed quote, values that were not read.
    """
    return [table[row] for row in np.flatnonzero(matches(table, query)).tolist()]


def matches(table: Table, query: str) -> np.ndarray:
    """bool[n_rows]: the rows that match the query."""
    matched = np.zeros(len(table), dtype=bool)
    for terms in parse(query):
        rows = np.ones(len(table), dtype=bool)
        for term in terms:
            rows &= _rows(table, term) ^ term.negated
        if any(not term.negated and _rolls_up(table, term) for term in terms):
            rows &= ~_is_above(table, rows)
        matched |= rows
    return matched


def needs_values(query: str) -> bool:
    """Whether the query asks for value statistics.

    Raises:
      ValueError: As `parse`.
    """
    terms = [term for alternative in parse(query) for term in alternative]
    return any(term.field in VALUE_STATISTICS or _is_flag(term) for term in terms)


def _is_flag(term: Term) -> bool:
    return not term.field and not term.quoted and term.value in _FLAG_COLUMNS


def _rolls_up(table: Table, term: Term) -> bool:
    """Whether a node may match only for what is below it."""
    column = _columns_of_numbers(table).get(_column_name(term))
    return _is_flag(term) or (column is not None and column.rollup != "none" and term.field != "depth")


def _is_above(table: Table, rows: np.ndarray) -> np.ndarray:
    """bool[n_rows]: whether any of the rows is below."""
    counts = np.concatenate([[0], np.cumsum(rows)])
    return counts[table.end] > counts[1:]


def _rows(table: Table, term: Term) -> np.ndarray:
    value = term.value
    if not term.field:
        if _is_flag(term):
            return _flagged_by_values(table, value)
        glob = None
        if not term.quoted and (is_glob(value) or "/" in value):
            glob = on_path(table, value)
            if _INDEX.search(value):
                glob |= on_path(table, _INDEX.sub(r"/\1", value))
            if not is_pasted_path(value):
                return glob
        is_dtype = _dtype_test(value)
        own = _by_facts(table, lambda facts: value in _own_text(facts) or (not term.quoted and is_dtype(facts.dtype)))
        found = in_path(table, value) | own
        if not term.quoted:
            found[_noted(table, lambda note: note.text.lower().startswith(f"{value}:"))] = True
        return found if glob is None else found | glob
    match term.field:
        case "key":
            test = _text_test(term, contains_test)
            return by_key(table, lambda key: test(key.segment), test(table.name))
        case "kind" if value == "leaf":
            return _by_facts(table, lambda facts: facts.is_leaf)
        case "kind":
            test = _text_test(term, _equals_test)
            return _by_facts(table, lambda facts: test(facts.kind))
        case "type":
            test = _text_test(term, contains_test)
            return _by_facts(table, lambda facts: test(facts.type))
        case "dtype":
            test = _text_test(term, _dtype_test)
            return _by_facts(table, lambda facts: test(facts.dtype))
        case "sharding":
            test = _text_test(term, contains_test)
            return _by_facts(table, lambda facts: facts.sharding is not None and test(facts.sharding.text))
        case "shape":
            fits = shape_test(term)
            return _by_facts(table, lambda facts: facts.shape is not None and fits(facts.shape))
        case "is":
            return _flagged(table, term)
    labels = _columns_of_text(table).get(term.field)
    if labels is not None:
        test = _equals_test(value) if term.quoted else _text_test(term, contains_test)
        passed = [any(map(test, str(text).split(", "))) for text in labels.levels]
        return np.array(passed, bool)[slice(None) if labels.codes is None else labels.codes]
    return number_test(term)(_numbers(table, term))


# The row's own facts


def _by_facts(table: Table, test: Callable[[Facts], bool]) -> np.ndarray:
    return np.fromiter((test(facts) for facts in table.facts), dtype=bool, count=len(table.facts))[table.fact_codes]


def _own_text(facts: Facts) -> str:
    """The text in which words are searched; NUL, which no text contains, separates its parts."""
    shape = "" if facts.shape is None else str(facts.shape)
    static = [text for pair in (*facts.static, *facts.inside) for text in pair]
    return "\0".join((facts.type, facts.kind, facts.dtype, shape, facts.text, *static)).lower()


def _text_test(term: Term, otherwise: Callable[[str], TextTest]) -> TextTest:
    return glob_test(term.value) if is_glob(term.value) and not term.quoted else otherwise(term.value)


def _equals_test(value: str) -> TextTest:
    return lambda text: text.lower() == value


def _dtype_test(value: str) -> TextTest:
    if value in _DTYPE_CLASSES:
        return lambda dtype: _DTYPE_CLASSES[value].match(dtype.lower()) is not None
    short = re.fullmatch(r"(bf|[fiuc])(\d+)", value)
    return _equals_test(_DTYPES[short[1]] + short[2] if short else value)


def _flagged(table: Table, term: Term) -> np.ndarray:
    value = "differs" if term.value == "changed" and "diff" in table.columns else term.value
    if value == "changed":
        raise ValueError(
            "find: is:changed needs an explorer that was given a new tree, and its search box: widget.tree = new. "
            "treeviz.diff(old, new) compares two trees."
        )
    if value not in _IS and value not in _IS_NOTE:
        raise ValueError(f"find: no {term}. {did_you_mean(value, sorted({*_IS, *_IS_NOTE}), 'is:')}")
    noted = _IS_NOTE.get(value, ())
    rows = _by_facts(table, _IS.get(value, lambda _: False))
    rows[_noted(table, lambda note: note.kind in noted)] = True
    return rows


def _noted(table: Table, test: Callable[[Note], bool]) -> list[int]:
    return [row for row, notes in table.notes.items() if any(map(test, notes))]


# Numbers


def _flagged_by_values(table: Table, word: str) -> np.ndarray:
    """The rows that have such values."""
    columns = [table.columns[name] for name in _FLAG_COLUMNS[word] if name in table.columns]
    if not columns and word != "zeros":
        columns = [column for name, column in table.columns.items() if name.endswith(_NOT_FINITE)]
    if not columns:
        raise ValueError(f'find: {word} {_NEEDS_VALUES} To search for the text itself, put it in quotes: "{word}"')
    found = np.any([table.rolled(column) > 0 for column in columns], axis=0)
    if not found.any() and (n_unread := int(unread(table).sum())):
        raise ValueError(
            f"find: there is no {word} in what was read. "
            f"The values of {n_unread:,} {'leaf' if n_unread == 1 else 'leaves'} were not read."
        )
    return found


def unread(table: Table) -> np.ndarray:
    """bool[n_rows]: the leaves with elements that the value statistics leave out, if there are any statistics."""
    has_elements = _by_facts(table, lambda facts: facts.is_leaf and facts.elements > 0)
    return has_elements & np.isnan(table.columns["nan"].values) if "nan" in table.columns else has_elements & False


def _column_name(term: Term) -> str:
    return ALIASES.get(term.field, term.field)


def _columns_of_numbers(table: Table) -> dict[str, Column]:
    return {name.lower(): c for name, c in table.columns.items() if c.format in ("count", "bytes", "number")}


def _columns_of_text(table: Table) -> dict[str, Column]:
    return {name.lower(): c for name, c in table.columns.items() if c.format == "label" and name not in ROW_FIELDS}


def _numbers(table: Table, term: Term) -> np.ndarray:
    name, columns = _column_name(term), _columns_of_numbers(table)
    if name == "depth":
        return table.depth
    if name in columns:
        return table.rolled(columns[name])
    if name in VALUE_STATISTICS:
        raise ValueError(f"find: {term} {_NEEDS_VALUES}")
    known = [*ROW_FIELDS, *columns, *_columns_of_text(table)]
    raise ValueError(
        f"find: no column {term.field!r}. {did_you_mean(term.field, known)} "
        f'To search for the text itself, put it in quotes: "{term.field}:{term.value}"'
    )
