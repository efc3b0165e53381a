"""Parse a query such as `dtype:bf16 layers/*/w | nan` into terms, without a tree.

    query       = alternatives separated by |; one must match
    alternative = terms separated by spaces; all must match
    term        = -term | "quoted words" | word | glob | field:value

The search box of the page reads the same language; `tests/query_cases.json` tests both.
"""

from __future__ import annotations

import fnmatch
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

TextTest = Callable[[str], bool]

_TOKEN = re.compile(
    r'\s+ | (?P<bar>\|) | (?P<minus>-*) (?P<field>[a-z_][\w.-]*:)? (?: "(?P<quoted>[^"]*)" | (?P<bare>[^\s|"]+) )',
    re.VERBOSE | re.ASCII,
)
_FIELD = re.compile(r"[a-z_][\w.-]*:", re.ASCII)
_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?(?:[kmgt]i?)?"
_COMPARISON = re.compile(rf"(>=|<=|>|<|=|)({_NUMBER})", re.ASCII)
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})", re.ASCII)
_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_COMPARE = {
    "": operator.eq,
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Term(NamedTuple):
    """One condition, in lower case.

    Attributes:
      negated: Select the rows that do not match.
      field: "dtype" in `dtype:bf16`; "" for a word.
      value: The word, the glob, or what follows the colon.
      quoted: The value was in quotes, so that no character in it is special.
    """

    negated: bool
    field: str
    value: str
    quoted: bool

    def __str__(self) -> str:
        return f'{self.field}:"{self.value}"' if self.quoted else f"{self.field}:{self.value}"


def parse(query: str) -> list[list[Term]]:
    """The alternatives of a query, each with its terms; [] for a blank query.

    Raises:
      ValueError: A quote that is not closed, a field without a value.
    """
    alternatives: list[list[Term]] = [[]]
    text, position = query.lower(), 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"find: a quote is not closed in {query!r}. Put the words between two quotes.")
        position = token.end()
        if token["bar"]:
            alternatives.append([])
        elif token["quoted"] or token["bare"] or token["field"]:
            alternatives[-1].append(_term(token))
    return [terms for terms in alternatives if terms]


def _term(token: re.Match[str]) -> Term:
    quoted = token["quoted"] is not None
    value = token["quoted"] if quoted else token["bare"]
    nothing_for = token["field"] if not value else value if not quoted and _FIELD.fullmatch(value) else None
    if nothing_for:
        raise ValueError(
            f'find: {nothing_for!r} needs a value. To search for the text, put it in quotes: "{nothing_for}"'
        )
    return Term(len(token["minus"]) % 2 == 1, (token["field"] or "")[:-1], value, quoted)


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


def contains_test(value: str) -> TextTest:
    return lambda text: value in text.lower()


def path_pattern(glob: str) -> tuple[list[str], bool]:
    """A glob's segments, and whether it starts at the root. A trailing slash is ignored."""
    segments = glob.removesuffix("/").split("/")
    return (segments[1:], True) if glob.startswith("/") else (segments, False)


def number_test(term: Term) -> Callable:
    """A test of an array of numbers: `>1M`, `<=3`, `=2`, `2` or `1k..2k`.

    Raises:
      ValueError: The number is invalid.
    """
    if comparison := _COMPARISON.fullmatch(term.value):
        compare, bound = _COMPARE[comparison[1]], _number(comparison[2])
        return lambda values: compare(values, bound)
    if both := _RANGE.fullmatch(term.value):
        low, high = _number(both[1]), _number(both[2])
        return lambda values: (values >= low) & (values <= high)
    field = term.field
    raise ValueError(
        f"find: {term} is not a number that can be read. "
        f"Write {field}:>1M, {field}:<=0.5, {field}:1k..2k or {field}:42; the units are k M G T Ki Mi Gi Ti."
    )


def _number(text: str) -> float:
    digits = text.rstrip("kmgti")
    return float(digits) * _SCALES.get(text[len(digits) :], 1.0)


def shape_test(term: Term) -> Callable[[tuple[int, ...]], bool]:
    """A test of a shape: `*,768`, `...,>64`, `3,4` or `()`.

    Raises:
      ValueError: A dimension that is neither a number, a comparison, `*` nor `...`.
    """
    value = term.value[1:-1] if term.value[:1] == "(" and term.value[-1:] == ")" else term.value
    dims = value.removesuffix(",").split(",") if value else []
    tests = []
    for dim in dims:
        comparison = _COMPARISON.fullmatch(dim)
        if dim not in ("*", "...") and not comparison:
            raise ValueError(
                f"find: {term} has a dimension that cannot be read, {dim!r}. "
                "Write numbers, >64, <=8, * for one dimension and ... for any number of them: shape:...,>64,768"
            )
        tests.append(number_test(Term(False, "shape", dim, False)) if comparison else dim)
    return lambda shape: _fits(shape, tests)


def _fits(shape: Sequence[int], tests: list) -> bool:
    """Tracks the set of tests that may come next, so the time is never exponential."""
    ends = _skip({0}, tests)
    for dim in shape:
        dim = dim if isinstance(dim, int) else math.nan  # symbolic: any size
        stay = {i for i in ends if i < len(tests) and tests[i] == "..."}
        step = {i + 1 for i in ends if i < len(tests) and tests[i] != "..." and (tests[i] == "*" or tests[i](dim))}
        ends = _skip(stay | step, tests)
    return len(tests) in ends


def _skip(ends: set[int], tests: list) -> set[int]:
    for i, test in enumerate(tests):
        if i in ends and test == "...":
            ends.add(i + 1)
    return ends
