"""Find the rows of a tree that match a query: `layers/*/weight`, `dtype:bf16`, `nan`, …"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from treeviz.tree.column import Column
from treeviz.tree.facts import Facts, Note
from treeviz.tree.keys import Key, index_key
from treeviz.tree.kinds import NOTES
from treeviz.tree.query.fields import ALIASES, ROW_FIELDS, VALUE_STATISTICS
from treeviz.tree.query.parse import (
    Term,
    TextTest,
    contains_test,
    glob_test,
    is_glob,
    is_pasted_path,
    number_test,
    parse,
    path_pattern,
    shape_test,
)

_DTYPES = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex"}
_DTYPE_CLASSES = {
    "float": re.compile(r"b?float(?!0$)"),  # float0 is the tangent of an integer
    "int": re.compile(r"u?int\d"),
    "complex": re.compile("complex"),
    "bool": re.compile("bool"),
    "f8": re.compile("float8"),
}
_INDEX = re.compile(r"\[(\d+)\]")
_FLAG_COLUMNS = {"nan": ("nan",), "inf": ("inf", "posinf", "neginf")}
_IS: dict[str, Callable[[Facts], bool]] = {
    "leaf": lambda facts: facts.is_leaf,
    "node": lambda facts: not facts.is_leaf,
    "opaque": lambda facts: facts.kind == "opaque",
    "static": lambda facts: bool(facts.static),
    "weak": lambda facts: facts.weak,
    "replicated": lambda facts: facts.sharding is not None and facts.sharding.replicated,
    "error": lambda facts: facts.kind in ("error", "cycle"),
}
_IS_NOTE = {"error": ("error", "cycle"), "cut": ("more",), **{kind: (kind,) for kind in NOTES if kind != "error"}}


class Table(Protocol):
    """The part of `treeviz.TreeTable` that a search reads."""

    @property
    def name(self) -> str: ...
    @property
    def depth(self) -> np.ndarray: ...
    @property
    def end(self) -> np.ndarray: ...
    @property
    def position(self) -> np.ndarray: ...
    @property
    def key_codes(self) -> np.ndarray: ...
    @property
    def keys(self) -> tuple[Key, ...]: ...
    @property
    def fact_codes(self) -> np.ndarray: ...
    @property
    def facts(self) -> tuple[Facts, ...]: ...
    @property
    def notes(self) -> Mapping[int, tuple[Note, ...]]: ...
    @property
    def columns(self) -> Mapping[str, Column]: ...
    def rolled(self, column: Column) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def __getitem__(self, row: int) -> Any: ...


def find(table: Table, query: str) -> list[Any]:
    """The rows that match the query, in the tree's order; none for a blank query.

    Case does not matter. Terms separated by spaces must all match, `|` separates alternatives, and `-`
    before a term negates it:

        attn            the word is in the row's key path (so: everything in attn), type, dtype, shape,
                        value or static fields. In quotes it is taken literally: "nan", "(3, 4)"
        layers/*/w      a glob on the end of the key path: * ? [a-z] within a key, ** any number of
                        keys, a leading / ties it to the root; w[3] is also w/3
        key: kind: type: dtype: sharding:      dtype:bf16, dtype:float, kind:opaque, kind:leaf, key:w*
        shape:*,768     * one dimension, ... any number, also >64 and <=8; shape:() is a scalar
        bytes:>1M       any column of numbers, rolled up: > >= < <= = or 1k..2k; k M G T, Ki Mi Gi Ti
        nan  inf        a NaN or an infinity in the row or below it (with value statistics)
        is:leaf         also node, shared, error, cycle, cut, hides, opaque, static, weak, replicated, …

    Raises:
      ValueError: An unknown field or flag, an invalid number, an unclosed quote.
    """
    return [table[row] for row in np.flatnonzero(matches(table, query)).tolist()]


def matches(table: Table, query: str) -> np.ndarray:
    """bool[n_rows]: the rows that match the query."""
    matched = np.zeros(len(table), dtype=bool)
    for terms in parse(query):
        rows = np.ones(len(table), dtype=bool)
        for term in terms:
            rows &= _rows(table, term) ^ term.negated
        matched |= rows
    return matched


def _rows(table: Table, term: Term) -> np.ndarray:
    value = term.value
    if not term.field:
        if not term.quoted and value in _FLAG_COLUMNS and (columns := _present(table, _FLAG_COLUMNS[value])):
            return np.any([table.rolled(column) > 0 for column in columns], axis=0)
        glob = None
        if not term.quoted and (is_glob(value) or "/" in value):
            glob = on_path(table, value)
            if not is_pasted_path(value):
                return glob
            glob |= on_path(table, _INDEX.sub(r"/\1", value))
        found = _in_path(table, value) | _by_facts(table, lambda facts: value in _own_text(facts))
        return found if glob is None else found | glob
    match term.field:
        case "key":
            test = _text_test(term, contains_test)
            return _by_key(table, lambda key: test(key.segment), test(table.name))
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
    if term.value not in _IS and term.value not in _IS_NOTE:
        raise ValueError(
            f"find: there is no {term}. There are: {', '.join(f'is:{name}' for name in sorted({*_IS, *_IS_NOTE}))}."
        )
    noted = _IS_NOTE.get(term.value, ())
    rows = _by_facts(table, _IS.get(term.value, lambda _: False))
    rows[[row for row, notes in table.notes.items() if any(note.kind in noted for note in notes)]] = True
    return rows


# Numbers


def _present(table: Table, names: Iterable[str]) -> list[Column]:
    return [table.columns[name] for name in names if name in table.columns]


def _numbers(table: Table, term: Term) -> np.ndarray:
    name = ALIASES.get(term.field, term.field)
    if name == "depth":
        return table.depth
    columns = {name.lower(): c for name, c in table.columns.items() if c.format in ("count", "bytes", "number")}
    if name in columns:
        return table.rolled(columns[name])
    if name in VALUE_STATISTICS:
        raise ValueError(f"find: {term} needs value statistics: render(tree, stats=True)")
    raise ValueError(
        f"find: there is no field {term.field!r}. There are: {', '.join([*ROW_FIELDS, *columns])}. "
        f'To search for the text itself, put it in quotes: "{term.field}:{term.value}"'
    )


# Key paths. Parents precede their children, so the state of a path is known at its children.


def _by_key(table: Table, test: Callable[[Key], bool], root: bool) -> np.ndarray:
    """Whether the row's own key passes; each distinct key is tested once."""
    rows = np.fromiter((test(key) for key in table.keys), dtype=bool, count=len(table.keys))[table.key_codes]
    indexed = np.flatnonzero(table.key_codes == 0)
    positions, inverse = np.unique(table.position[indexed], return_inverse=True)
    rows[indexed] = np.array([test(index_key(position)) for position in positions.tolist()], dtype=bool)[inverse]
    rows[0] = root
    return rows


def _in_path(table: Table, word: str) -> np.ndarray:
    """The rows whose key path contains the word: in one key, or across keys as joined by keystr or slashes."""
    name = table.name.lower()

    def in_key(key: Key) -> bool:
        return word in key.label.lower() or word in key.keystr.lower() or word in key.segment.lower()

    found = _by_key(table, in_key, word in name)
    if len(word) > 1 and not found[0]:
        _add_spanning(table, word, found)
    hits = np.flatnonzero(found).tolist()
    covered = 0
    for row in hits:
        if row >= covered:
            covered = int(table.end[row])
            found[row:covered] = True
    return found


def _add_spanning(table: Table, word: str, found: np.ndarray) -> None:
    """Mark the rows where the word starts in one key and ends in a later one."""
    n_kept = len(word) - 1
    keys = [(key.keystr.lower(), "/" + key.segment.lower()) for key in table.keys]
    tails = [(table.name.lower()[-n_kept:],) * 2]
    depths, codes, positions = table.depth.tolist(), table.key_codes.tolist(), table.position.tolist()
    ends, own = table.end.tolist(), found.tolist()
    row = 1
    while row < len(depths):
        if own[row]:
            row = ends[row]
            continue
        depth, code = depths[row], codes[row]
        keystr, segment = keys[code] if code else (f"[{positions[row]}]", f"/{positions[row]}")
        before = tails[depth - 1]
        keystr, segment = before[0] + keystr, before[1] + segment
        if word in keystr or word in segment:
            found[row] = True
            row = ends[row]
            continue
        row += 1
        if ends[row - 1] > row:
            del tails[depth:]
            tails.append((keystr[-n_kept:], segment[-n_kept:]))


def on_path(table: Table, glob: str) -> np.ndarray:
    """bool[n_rows]: the rows whose key path ends with a match of a glob, such as `layers/*/w`."""
    return _on_path(table, *path_pattern(glob.lower()))


def _on_path(table: Table, pattern: list[str], from_root: bool) -> np.ndarray:
    """The rows whose path ends with a match of the pattern, segment by segment.

    Bit i of a row's state: the first i segments of the pattern match a path that ends at that row.
    """
    tests = [(1 << i, glob_test(segment)) for i, segment in enumerate(pattern) if segment != "**"]
    stay = sum(1 << i for i, segment in enumerate(pattern) if segment == "**")
    start, accept = _closed(1, stay), 1 << len(pattern)
    again = 0 if from_root else start
    moves_of: dict[int, list[int]] = {}  # by key code, and by minus the position for an index
    states = [start]  # of the previous row and of its ancestors
    found = [bool(start & accept)]
    rows = zip(table.depth.tolist(), table.key_codes.tolist(), table.position.tolist(), strict=True)
    next(rows)
    for depth, code, position in rows:
        moves = moves_of.get(code or -position)
        if moves is None:
            text = table.keys[code].segment if code else str(position)
            moves = moves_of[code or -position] = [
                sum(bit for bit, test in tests if test(segment)) for segment in text.split("/")
            ]
        state = states[depth - 1]
        for move in moves:
            state = (state & move) << 1 | state & stay | again
            if stay:
                state = _closed(state, stay)
        found.append(state & accept != 0)
        del states[depth:]
        states.append(state)
    return np.array(found)


def _closed(state: int, stay: int) -> int:
    """The state that also skips every `**` it has reached."""
    while (more := state | (state & stay) << 1) != state:
        state = more
    return state
