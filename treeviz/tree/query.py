"""Find the rows of a tree that match a query, such as `layers/*/weight`, `dtype:bf16` or `nan`."""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from treeviz.tree.facts import NOTES, Column, Facts, Note
from treeviz.tree.keys import Key, index_key
from treeviz.tree.text import counted

# Parse a query such as `dtype:bf16 layers/*/w | nan` into terms, without a tree

TextTest = Callable[[str], bool]

_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?(?:[kmgt]i?)?b?"
_QUOTED_KEY = r"""\[(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\]"""  # as `keystr` writes it
_TOKEN = re.compile(
    rf"""\s+ | (?P<bar>\|) | (?P<minus>-*) (?:
      (?P<column>[a-z_][\w.-]*) (?:\s*(?P<colon>:))? \s* (?P<compare>>=|<=|>|<|=) \s* (?P<bound>{_NUMBER}) (?=[\s|]|$)
      | (?P<field>[a-z_][\w.-]*:)?
        (?: "(?P<quoted>[^"]*)" | (?P<bare>(?: {_QUOTED_KEY} | \[[^][|"]*\] | [^\s|"] )+) ) )""",
    re.VERBOSE | re.ASCII,
)
_FIELD = re.compile(r"[a-z_][\w.-]*:", re.ASCII)
_COMPARISON = re.compile(rf"(>=|<=|>|<|=|)({_NUMBER})", re.ASCII)
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})", re.ASCII)
_STEP = re.compile(
    rf"{_QUOTED_KEY}|\[(?:(?::, ?)*|<flat index )(?P<index>-?\d+)>?\]|(?P<class>\[[^][]*\])|\.", re.ASCII
)
_INTO_BOX = re.compile(r"(?<=.)\.(raw_)?value$")
_DIGITS = frozenset("0123456789")
_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_COMPARE = {"=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_COMPARE[""] = operator.eq


class Term(NamedTuple):
    """One condition, in lower case."""

    negated: bool  # select the rows that do not match
    field: str  # "dtype" in `dtype:bf16`; "" for a word
    value: str  # the word, the glob, or what follows the colon
    quoted: bool  # the value was in quotes, so that no character in it is special

    def __str__(self) -> str:
        return f'{self.field}:"{self.value}"' if self.quoted else f"{self.field}:{self.value}"


def parse(query: str) -> list[list[Term]]:
    """The alternatives of a query, each with its terms; [] for a blank one. Raises ValueError."""
    alternatives: list[list[Term]] = [[]]
    text, position = query.lower(), 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"find: a quote is not closed in {query!r}. Put the words between two quotes.")
        position = token.end()
        if token["bar"]:
            alternatives.append([])
        elif token["quoted"] or token["bare"] or token["field"] or token["column"]:
            alternatives[-1].append(_term(token))
    return [terms for terms in alternatives if terms]


def _term(token: re.Match[str]) -> Term:
    is_negated = len(token["minus"]) % 2 == 1
    if token["column"]:
        compare = token["compare"].removeprefix("=") if token["colon"] else token["compare"]
        return Term(is_negated, token["column"], compare + token["bound"], False)
    quoted = token["quoted"] is not None
    value = token["quoted"] if quoted else token["bare"]
    name = token["field"] if not value else value if not quoted and _FIELD.fullmatch(value) else None
    if name:
        raise ValueError(f'find: {name!r} needs a value. To search for the text, put it in quotes: "{name}"')
    return Term(is_negated, (token["field"] or "")[:-1], value, quoted)


def is_glob(text: str) -> bool:
    return any(c in text for c in "*?[")


def is_pasted_path(text: str) -> bool:
    """Whether the text may be a copied key path, such as `['layers'][0]`, and not only a glob."""
    return "[" in text and not any(c in text for c in "*?")


def glob_test(pattern: str) -> TextTest:
    """A case-insensitive test of a whole text: `*`, `?`, `[a-z]`, `[!a-z]`."""
    if not is_glob(pattern):
        return lambda text: text.lower() == pattern
    match = re.compile(fnmatch.translate(pattern.replace("[^", "[!"))).match
    return lambda text: match(text.lower()) is not None


def contains_test(word: str, quoted: bool) -> TextTest:
    """A case-insensitive test whether a text contains the word. Unless quoted, a number is whole: 3 is not in w32."""
    before, after = ("(?<![0-9])" if word[0] in _DIGITS else "", "(?![0-9])" if word[-1] in _DIGITS else "")
    if quoted or not (before or after):
        return lambda text: word in text.lower()
    search = re.compile(before + re.escape(word) + after).search
    return lambda text: search(text.lower()) is not None


def path_patterns(path: str, name: str, is_key: Callable[[str], bool]) -> list[tuple[list[str], bool]]:
    """What a glob or key path may mean: the globs of its keys, and whether it starts at the root.

    `layers/*/w` is read as written. `layers[3].w` and `layers.3.w` are also read as steps, and a printed path,
    `['layers'][3]['w']`, only as steps; with the name of the tree before them, they start at the root.

    Args:
      is_key: Whether a key of the tree is printed like this, such as "[None]", which else is a set of letters.
    """

    is_literal = False

    def step(match: re.Match[str]) -> str:
        nonlocal is_literal
        if match["class"] and not is_key(match["class"]):
            return match["class"]
        is_literal |= match[0] != "." and match["index"] is None
        quoted = match[1] or match[2] or ""
        key = re.sub(r"\\(['\"\\])", r"\1", quoted) or match["index"] or (match["class"] or "")[1:-1]
        return "/" + re.sub(r"[*?[]", r"[\g<0>]", key) + "/"

    path, from_root = path.removesuffix("/"), path.startswith("/")
    written, in_steps = path.split("/")[from_root:], _STEP.sub(step, path)
    steps = [key for key in in_steps.split("/") if key]
    if path.endswith("]*") and steps[-1] == "*":  # all that is printed with this path before it
        steps[-1] = "**"
    if in_steps == path or not steps:
        return [(written, from_root)]
    patterns = [(steps, from_root)]
    if not is_literal:
        patterns.append((written, from_root))
    if len(steps) > 1 and steps[0] == name:
        patterns.append((steps[1:], True))
    return patterns


def number_test(term: Term) -> Callable:
    """A test of an array of numbers: `>1M`, `<=3`, `=2`, `2` or `1k..2k`; raises ValueError."""
    if comparison := _COMPARISON.fullmatch(term.value):
        compare, bound = _COMPARE[comparison[1]], _number(comparison[2])
        return lambda values: compare(values, bound)
    if both := _RANGE.fullmatch(term.value):
        low, high = _number(both[1]), _number(both[2])
        return lambda values: (values >= low) & (values <= high)
    examples = ", ".join(f"{term.field}:{value}" for value in (">1M", "<=0.5", "1k..2k"))
    raise ValueError(
        f"find: cannot parse {term}. Write {examples} or {term.field}:42; the units are k M G T Ki Mi Gi Ti."
    )


def _number(text: str) -> float:
    text = text.removesuffix("b")
    digits = text.rstrip("kmgti")
    return float(digits) * _SCALES.get(text[len(digits) :], 1.0)


def shape_test(term: Term) -> Callable[[tuple[int, ...]], bool]:
    """A test of a shape: `*,768`, `...,>64`, `3,4` or `()`; raises ValueError."""
    value = term.value[1:-1] if term.value[:1] == "(" and term.value[-1:] == ")" else term.value
    dims = value.removesuffix(",").split(",") if value else []
    tests = []
    for dim in dims:
        comparison = _COMPARISON.fullmatch(dim)
        if dim not in ("*", "...") and not comparison:
            raise ValueError(
                f"find: cannot parse the dimension {dim!r} of {term}. "
                "Write numbers, >64, <=8, * for one dimension and ... for any number of them: shape:...,>64,768"
            )
        tests.append(number_test(Term(False, "shape", dim, False)) if comparison else dim)
    return lambda shape: _fits(shape, tests)


def _fits(shape: Sequence[int], tests: list) -> bool:
    """Tracks the set of tests that may come next, so the time is never exponential."""
    ends = {0}
    for dim in (*shape, None):  # and the end
        for i, test in enumerate(tests):
            ends |= {i + 1} if i in ends and test == "..." else set()
        if dim is None:
            break
        dim = dim if isinstance(dim, int) else math.nan  # symbolic: any size
        open_ends = [(i, tests[i]) for i in ends if i < len(tests)]
        ends = {i if test == "..." else i + 1 for i, test in open_ends if test in ("...", "*") or test(dim)}
    return len(tests) in ends


# The reserved field names of queries, and suggestions for unknown ones

ROW_FIELDS = ("key", "kind", "type", "dtype", "sharding", "shape", "is", "depth")
ALIASES = {"params": "elements", "parameters": "elements", "nbytes": "bytes", "dead": "inputs_dead"}
_MOST_NAMES = 10_000  # keys, for suggestions
_NEAR = {"size": ("bytes", "elements"), "memory": ("bytes",), "count": ("elements",)}  # what others call a column
# The columns of `analysis.stats.value_statistics`, computed on request.
VALUE_STATISTICS = ("min", "max", "mean", "std", "rms", "zeros", "nan", "inf", "posinf", "neginf", "histogram")


def did_you_mean(name: str, known: Sequence[str], prefix: str = "") -> str:
    """ "Did you mean bytes?", or all known names if none is similar; `prefix`, such as "is:", precedes each."""
    parts = [known_name for known_name in known if name in re.split("[._]", known_name)]
    near = parts[:3] or [*_NEAR.get(name, ())] or get_close_matches(name, known, n=1)
    if near:
        return f"Did you mean {' or '.join(prefix + known_name for known_name in near)}?"
    return f"There are: {', '.join(prefix + known_name for known_name in known)}."


# Search key paths: one key, a word across keys, a glob on the end of a path


class Table(Protocol):
    """The part of `treeviz.TreeTable` that a search reads, whose module imports this one."""

    name: Final[str]
    depth: Final[np.ndarray]
    end: Final[np.ndarray]
    position: Final[np.ndarray]
    key_codes: Final[np.ndarray]
    keys: Final[tuple[Key, ...]]
    fact_codes: Final[np.ndarray]
    facts: Final[tuple[Facts, ...]]
    notes: Final[Mapping[int, tuple[Note, ...]]]

    @property
    def columns(self) -> Mapping[str, Column]: ...
    def rolled(self, column: Column) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def __getitem__(self, row: int) -> Any: ...


def by_key(table: Table, test: Callable[[Key], bool], root: bool) -> np.ndarray:
    """Whether the row's own key passes; each distinct key is tested once."""
    rows = np.fromiter(map(test, table.keys), bool, len(table.keys))[table.key_codes]
    indexed = np.flatnonzero(table.key_codes == 0)
    positions, inverse = np.unique(table.position[indexed], return_inverse=True)
    rows[indexed] = np.array([test(index_key(position)) for position in positions.tolist()], dtype=bool)[inverse]
    rows[0] = root
    return rows


def in_path(table: Table, word: str, quoted: bool = False) -> np.ndarray:
    """The rows whose key path contains the word: in one key, or across keys as joined by keystr, slashes or dots."""
    has_word = contains_test(word, quoted)
    found = by_key(table, lambda key: any(map(has_word, (key.label, key.keystr, key.segment))), has_word(table.name))
    firsts = {key.keystr[:1].lower() for key in table.keys} | {"["}
    joins: list[Callable[[Key], str]] = [lambda key: key.keystr] if any(c in firsts for c in word) else []
    joins += [lambda key, c=c: c + key.segment.replace("/", c) for c in "/." if c in word]
    for text_of in joins if not found[0] else ():
        _add_spanning(table, has_word, len(word), text_of, found)
    covered = 0
    for row in np.flatnonzero(found).tolist():
        if row >= covered:
            covered = int(table.end[row])
            found[row:covered] = True
    return found


def _add_spanning(
    table: Table, has_word: TextTest, n_kept: int, text_of: Callable[[Key], str], found: np.ndarray
) -> None:
    """Mark the rows where the word starts in one key and ends in a later one, as they are joined by these texts."""
    texts, tails = list(map(text_of, table.keys)), [table.name[-n_kept:]]
    depths, codes, positions = table.depth.tolist(), table.key_codes.tolist(), table.position.tolist()
    ends, is_found = table.end.tolist(), found.tolist()
    row = 1
    while row < len(depths):
        if is_found[row]:
            row = ends[row]
            continue
        depth, code = depths[row], codes[row]
        path = tails[depth - 1] + (texts[code] if code else text_of(index_key(positions[row])))
        if has_word(path):
            found[row] = True
            row = ends[row]
            continue
        row += 1
        if ends[row - 1] > row:
            del tails[depth:]
            tails.append(path[-n_kept:])


def on_path(table: Table, glob: str) -> np.ndarray:
    """bool[n_rows]: the rows whose key path ends with a match of a glob, such as `layers/*/w`, or of a printed path."""

    def is_key(text: str) -> bool:
        return any(key.keystr.lower() == text for key in table.keys)

    patterns = path_patterns(glob.lower(), table.name.lower(), is_key)
    return np.any([_on_path(table, *pattern) for pattern in patterns], axis=0)


def _on_path(table: Table, pattern: list[str], from_root: bool) -> np.ndarray:
    """The rows whose path ends with a match of the pattern, segment by segment.

    Bit i of a row's state: the first i segments of the pattern match a path that ends at that row.
    """
    tests = [(1 << i, glob_test(segment)) for i, segment in enumerate(pattern) if segment != "**"]
    stay = sum(1 << i for i, segment in enumerate(pattern) if segment == "**")
    start, accept = _closed(1, stay), 1 << len(pattern)
    restart = 0 if from_root else start
    moves_of: dict[int, list[int]] = {}  # by key code, and by minus the position for an index
    # NNX prints the value of a variable, which is its row.
    into_box = sum(1 << i for i, segment in enumerate(pattern) if segment in ("value", "raw_value"))
    boxes = {code for code, key in enumerate(table.keys) if _INTO_BOX.search(key.keystr)} if into_box else ()
    chains = {code for code, key in enumerate(table.keys) if len(key.steps) > 1 and "/" in key.segment}
    states = [start]  # of the previous row and of its ancestors
    found = [bool(start & accept)]
    rows = zip(table.depth.tolist(), table.key_codes.tolist(), table.position.tolist(), strict=True)
    next(rows)
    for depth, code, position in rows:
        moves = moves_of.get(code or -position)
        if moves is None:
            segments = (table.keys[code].segment if code else str(position)).split("/")
            moves = moves_of[code or -position] = [sum(bit for bit, test in tests if test(s)) for s in segments]
        state, passed = states[depth - 1], 0
        for move in moves:
            state = (state & move) << 1 | state & stay | restart
            if stay:
                state = _closed(state, stay)
            passed |= state if code in chains else 0  # a node and its only child are one row
        if code in boxes:
            state |= _closed((state & into_box) << 1, stay)
        found.append((state | passed) & accept != 0)
        del states[depth:]
        states.append(state)
    return np.array(found)


def _closed(state: int, stay: int) -> int:
    """The state that also skips every `**` it has reached."""
    while (wider := state | (state & stay) << 1) != state:
        state = wider
    return state


_DTYPES = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex"}
_DTYPE_CLASSES = {
    "float": re.compile(r"b?float(?!0$)"),  # float0 is the tangent of an integer
    "int": re.compile(r"u?int\d"),
    "complex": re.compile("complex"),
    "bool": re.compile("bool"),
    "f8": re.compile("float8"),
}
# `64x128`, `64,128`, `(64,128)`, `f32[64,128]`: dimensions in a row, or a whole shape in brackets
_SHAPE = re.compile(
    r"((?:bf|[fiuc]|bfloat|float|u?int|complex)\d\w*|bool)?(\[|\(|)(\d+(?:[x×,]\d+)*|),?(\]|\)|)", re.ASCII
)
# Words that select rows by values, and the columns that count them. A watched run counts NaN and infinities together.
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
                        static fields, or it is the dtype: bf16. A number is a whole one: 3 is not in w32.
                        In quotes it is taken literally: "nan", "(3, 4)"
        ['layers'][3]   a key path as printed; also layers.3, a file's own name of a tensor
        64x128          a shape; also 64,128 in a row of dimensions, and f32[64,128]
        T101            also the code of a finding of `treeviz.check`
        layers/*/w      a glob on the end of the key path: * ? [a-z] within a key, ** any number of
                        keys, a leading / ties it to the root; w[3] and w.3 are also w/3
        key: kind: type: dtype: sharding:      dtype:bf16, dtype:float, kind:opaque, kind:leaf, key:w*
        shape:*,768     * one dimension, ... any number, also >64 and <=8; shape:() is a scalar
        axis:batch      arrays with an axis of this name: of named arrays
        diff:shape      a word in any column of text; diff:"type" all between two commas, and no "dtype"
        bytes:>1M       any column of numbers, rolled up: > >= < <= = or 1k..2k; k M G T, Ki Mi Gi Ti.
                        Also bytes > 1M. A node does not match for what matches below it
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
            n_before = np.concatenate([[0], np.cumsum(rows)])
            rows &= n_before[table.end] == n_before[1:]  # none of the rows is below
        matched |= rows
    return matched


def needs_values(query: str) -> bool:
    """Whether the query asks for value statistics; raises ValueError."""
    return any(term.field in VALUE_STATISTICS or _is_flag(term) for terms in parse(query) for term in terms)


def nearest(table: Table, query: str) -> str:
    """The query with a word that finds nothing replaced by the nearest key, dtype or type; "" if there is none."""
    facts = [text for known in table.facts for text in (known.dtype, known.type)]
    names = {text.lower() for text in (*facts, *(key.segment for key in table.keys[1:_MOST_NAMES]))}
    for term in [term for terms in parse(query) for term in terms if term.field in ("", "key", "type", "dtype")]:
        for word in re.split(r"[^\w-]+", "" if _rows(table, term).any() else term.value):
            near = get_close_matches(word, names, n=1) if not any(word in name for name in names) else []
            if near:
                return query.lower().replace(word, near[0], 1)
    return ""


def compared_columns(table: Table, query: str) -> list[Column]:
    """The columns of numbers that the query compares, each once."""
    names, columns = [_column_name(term) for terms in parse(query) for term in terms], _columns_of_numbers(table)
    return [columns[name] for name in dict.fromkeys(names) if name in columns]


def _is_flag(term: Term) -> bool:
    return not term.field and not term.quoted and term.value in _FLAG_COLUMNS


def _rolls_up(table: Table, term: Term) -> bool:
    """Whether a node may match only because of a row below it."""
    column = _columns_of_numbers(table).get(_column_name(term))
    return _is_flag(term) or (column is not None and column.rollup != "none" and term.field != "depth")


def _rows(table: Table, term: Term) -> np.ndarray:
    value = term.value
    name, known = _column_name(term), (*ROW_FIELDS, *VALUE_STATISTICS)
    is_field = name in known or name in _columns_of_numbers(table) or name in _columns_of_text(table)
    if not term.field or (value[0] == "=" and not is_field):  # static fields are printed as `n=3`
        return _rows_of_word(table, term._replace(field="", value=f"{term.field}{value}"))
    glob = glob_test(value) if is_glob(value) and not term.quoted else None
    contains, equals = glob or contains_test(value, term.quoted), glob or _equals_test(value)
    is_dtype = glob or _dtype_test(value)
    match term.field:
        case "key":
            return by_key(table, lambda key: contains(key.segment) or key.keystr.lower() == value, contains(table.name))
        case "kind" if value == "leaf":
            return _by_facts(table, lambda facts: facts.is_leaf)
        case "kind":
            return _by_facts(table, lambda facts: equals(facts.kind))
        case "type":
            return _by_facts(table, lambda facts: contains(facts.type))
        case "dtype":
            return _by_facts(table, lambda facts: is_dtype(facts.dtype))
        case "sharding":
            return _by_facts(table, lambda facts: facts.sharding is not None and contains(facts.sharding.text))
        case "shape":
            fits = shape_test(term)
            return _by_facts(table, lambda facts: facts.shape is not None and fits(facts.shape))
        case "is":
            return _flagged(table, term)
    labels = _columns_of_text(table).get(term.field)
    if labels is not None:
        tests = [equals if term.quoted else contains]
        if term.field.endswith(".dtype"):
            tests.append(lambda text: is_dtype(text.split(" ")[0].removeprefix("~")))
        passed = [any(test(part) for part in str(text).split(", ") for test in tests) for text in labels.levels]
        return np.array(passed, bool)[slice(None) if labels.codes is None else labels.codes]
    numbers = _numbers(table, term)  # which says first whether there is such a column
    return number_test(term)(numbers)


def _rows_of_word(table: Table, term: Term) -> np.ndarray:
    value = term.value
    if _is_flag(term):
        return _flagged_by_values(table, value)
    fits = None if term.quoted else _shape_in(value)
    glob = None
    if not term.quoted and fits is None and (is_glob(value) or "/" in value):
        glob = on_path(table, value)
        if not is_pasted_path(value):
            return glob
    has_word, is_dtype = contains_test(value, term.quoted), _dtype_test(value)

    def is_own(facts: Facts) -> bool:
        shape = "" if facts.shape is None else str(facts.shape)
        static = [*facts.axes, *("=".join(pair) for pair in (*facts.static, *facts.inside))]
        text = "\0".join((facts.type, facts.kind, facts.dtype, shape, facts.text, *static))  # no text contains NUL
        is_same = has_word(text) or (not term.quoted and is_dtype(facts.dtype))
        return is_same or (fits is not None and fits(facts))

    found = in_path(table, value, term.quoted) | _by_facts(table, is_own)
    if not term.quoted:
        found[_noted(table, lambda note: note.text.lower().startswith(f"{value}:"))] = True
    return found if glob is None else found | glob


def _shape_in(word: str) -> Callable[[Facts], bool] | None:
    """The test of a word that is a shape, such as `64x128`, `(64,128)` or `f32[64,128]`."""
    match = _SHAPE.fullmatch(word)
    if match is None:
        return None
    dtype, opening, dims, closing = match.groups()
    if bool(opening) != bool(closing) or (not opening if dtype else dims.isdecimal() or not dims):
        return None
    wanted, is_dtype = re.sub("[x×]", ",", dims), _dtype_test(dtype or "")

    def fits(facts: Facts) -> bool:
        own = None if facts.shape is None else ",".join(map(str, facts.shape))
        if own is None or (dtype and not is_dtype(facts.dtype)):
            return False
        return own == wanted if opening else f",{wanted}," in f",{own},"

    return fits


def _by_facts(table: Table, test: Callable[[Facts], bool]) -> np.ndarray:
    return np.fromiter((test(facts) for facts in table.facts), dtype=bool, count=len(table.facts))[table.fact_codes]


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


def _flagged_by_values(table: Table, word: str) -> np.ndarray:
    own = [column for name, column in table.columns.items() if name in _FLAG_COLUMNS[word]]
    of_run = [column for name, column in table.columns.items() if name.endswith(_NOT_FINITE) and word != "zeros"]
    if not (columns := own or of_run):
        raise ValueError(f'find: {word} {_NEEDS_VALUES} To search for the text itself, put it in quotes: "{word}"')
    found = np.any([table.rolled(column) > 0 for column in columns], axis=0)
    if not found.any() and (n_unread := int(unread(table).sum())):
        leaves = counted(n_unread, "leaf", "leaves")
        raise ValueError(f"find: there is no {word} in what was read. The values of {leaves} were not read.")
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
    texts = [*_columns_of_text(table)]
    is_number = _COMPARISON.fullmatch(term.value) or _RANGE.fullmatch(term.value)
    known = [*ROW_FIELDS, *columns, *texts] if is_number else [*texts, *ROW_FIELDS, *columns]
    raise ValueError(
        f"find: no column {term.field!r}. {did_you_mean(term.field, known)} "
        f'To search for the text itself, put it in quotes: "{term.field}:{term.value}"'
    )
