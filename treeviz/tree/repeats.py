"""Fold repeats: views show a run of similar siblings, such as the layers of a model, as one row.

The rule for every view, with examples in `tests/fold_cases.json`:

- Two siblings are *similar* if their keys differ only in numbers, and their subtrees in nothing. Keys: both are indices
  of a list or tuple, or both labels have a digit and are equal once every run of the digits 0 to 9 is written as one 0
  (`h_7` and `h_11`, not `query` and `value`). Subtrees: as many rows, and row by row the same depth, the same facts
  (`fact_codes`: type, shape, dtype, sharding …), and below the first row the same key (`key_codes`). Numbers in static
  fields and in the texts of nodes and variables may differ, such as the number of a layer (`similar_facts`). Columns,
  notes and series do not matter.
- A *run* is a sequence of siblings, each similar to the one before it. In a diff, similar siblings are also the same in
  the same rows, and those of a sequence that differ in the same way from the other tree are a run (`Facts.differs`).
- A member of a run *stands out* if its subtree has a wrong row (one with a finding or an error), or one with NaN unless
  every member has a wrong row or NaN. At most `MOST_OUT` members stand out: the first in the order of the wrong rows,
  worst first, then of the rows with NaN. They keep rows of their own.
  Views do not pass on a wrong row that every member has in the same place with the same notes: `in_every_member`.
- The other members are *folded* if there are `LEAST` or more: the first one's rows are shown for all of them. Runs
  inside a folded row, or inside a member that stands out, are folded in the same way.
- A subtree *mirrors* an earlier one, as the moments of an optimizer the parameters, if it has `_MIRROR` rows and an
  eighth of the tree's or more, both have the same rows, with the same facts and values in columns, and no row of the
  mirror has a note, a finding or NaN. Only its first row is shown.
- A *blank* is a None with no note and no label, beside siblings that are not None. `LEAST` or more blanks are left out,
  and counted below the tree.
- The label names the smallest and the greatest key by number: `[0…79] ×80`, `h_0…h_11 ×12`. If the second one is
  longer than 12 characters, only its different end is shown: `transformer_0…11 ×12`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from os.path import commonprefix
from string import digits
from typing import NamedTuple

import numpy as np

from treeviz.tree.facts import Facts
from treeviz.tree.table import TreeTable

LEAST = 3  # members of a folded run
MOST_OUT = 3  # members of a run that stand out
_MIRROR, _MIRROR_SHARE = 6, 8  # rows of a mirror: the fewest, and as a part of the tree
_N_MIRRORS = 1_000  # rows that may be mirrors, since a chain has one on each level
_BATCH = 1 << 20  # rows that are compared at once
_LONG = 12  # longer keys are shown without their common start
_NUMBER = re.compile("[0-9]+")
_FACT_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?")
_NAMED = ("node", "module", "variable")  # kinds whose text is not a value


class Run(NamedTuple):
    """Siblings that are folded into one row."""

    rows: np.ndarray  # int[k], in order; the first one is shown
    label: str  # "[0…79] ×80"


class Repeats(NamedTuple):
    """The rows that are shown once runs are folded."""

    rows: np.ndarray  # int[n_shown]: their numbers, in order
    place: np.ndarray  # int[n_rows]: for each row of the table, the index into `rows` of the row shown in its place
    runs: dict[int, Run]  # by index into `rows`
    mirrors: dict[int, int]  # for each shown mirror, by index into `rows`, the row that it mirrors
    left_out: np.ndarray  # bool[n_rows]: the blanks, and the rows inside mirrors: no other row sums them up
    n_blank: int


def fold(
    table: TreeTable,
    wrong: Sequence[int] = (),
    nan: Sequence[int] = (),
    *,
    values: Callable[[], Sequence[np.ndarray]] = tuple,
    labeled: Callable[[], Sequence[int]] = tuple,
) -> Repeats:
    """Fold the runs of a table. Takes O(n log n) time for n rows, whatever the depth.

    Args:
      wrong: The rows with a finding or an error, worst first.
      nan: The rows with NaN or infinities.
      values: For `mirrors`.
      labeled: For `blanks`.
    """
    runs = list(_runs(table))
    if wrong or nan:
        runs = [rows for rows in _folded_members(table, runs, wrong, nan) if len(rows) >= LEAST]
    like, nones = mirrors(table, values, lambda: [*wrong, *nan]), blanks(table, labeled)
    each, left_out = np.arange(len(table)), np.zeros(len(table), bool)
    if not (runs or like or len(nones)):
        return Repeats(each, each, {}, {}, left_out, 0)
    shown_for = _shown_for(table, runs)
    for row, other in like.items():
        inside = slice(row + 1, table.end[row])
        left_out[inside], shown_for[inside] = True, np.arange(other + 1, table.end[other])
    left_out[nones], shown_for[nones] = True, table.parent[nones]
    while ((further := shown_for[shown_for]) != shown_for).any():
        shown_for = further
    shown = (shown_for == each).nonzero()[0]
    place = shown.searchsorted(shown_for)
    visible = [rows for rows in runs if shown_for[rows[0]] == rows[0]]
    return Repeats(
        shown,
        place,
        {int(place[rows[0]]): Run(rows, _label(table, rows)) for rows in visible},
        {int(place[row]): other for row, other in like.items() if shown_for[row] == row},
        left_out,
        len(nones),
    )


def blanks(table: TreeTable, labeled: Callable[[], Sequence[int]] = tuple) -> np.ndarray:
    """int[k]: the blanks.

    Args:
      labeled: Returns the rows about which a column says something.
    """
    kinds = [facts.kind == "none" for facts in table.facts]
    is_none = np.array(kinds)[table.fact_codes] if True in kinds else np.zeros(0, bool)
    rows = is_none.nonzero()[0]
    if len(rows) < LEAST:
        return rows[:0]
    has_other = np.zeros(len(table), bool)
    has_other[table.parent[1:][~is_none[1:]]] = True
    is_none[[*table.notes, *labeled()]] = False
    rows = rows[is_none[rows] & has_other[table.parent[rows]]]
    return rows if len(rows) >= LEAST else rows[:0]


def blanks_text(n: int) -> str:
    """ "4 fields are None"; "" for none."""
    return f"{n:,} fields are None" if n else ""


def mirrors(
    table: TreeTable,
    values: Callable[[], Sequence[np.ndarray]] = tuple,
    wrong: Callable[[], Sequence[int]] = tuple,
) -> dict[int, int]:
    """The rows that mirror an earlier one, and that.

    Args:
      values: Returns [n_rows] each: what columns show of the rows, which is the same in a mirror.
      wrong: Returns rows with a finding, an error or NaN: no mirror has one.
    """
    size = table.end - np.arange(len(table))
    rows = (size >= max(_MIRROR, len(table) // _MIRROR_SHARE)).nonzero()[0][:_N_MIRRORS].tolist()
    earlier, found = dict[tuple[int, int], int](), dict[int, int]()
    pairs = [(row, earlier.setdefault((int(size[row]), int(table.fact_codes[row])), row)) for row in rows]
    if len(earlier) == len(rows):
        return found
    compared = (table.fact_codes, table.key_codes, np.diff(table.depth, prepend=0), *values())
    noted = np.sort(np.array([*table.notes, *wrong()], int))
    until = 0  # the end of the last mirror
    for row, other in pairs:
        if row == other or row < until:
            continue
        insides = ((each[other + 1 : table.end[other]], each[row + 1 : table.end[row]]) for each in compared)
        first_noted, end_noted = noted.searchsorted([row, table.end[row]])
        if first_noted == end_noted and all(
            np.array_equal(*inside, equal_nan=inside[0].dtype.kind == "f") for inside in insides
        ):
            found[row], until = other, table.end[row]
    return found


def similar_facts(facts: Sequence[Facts]) -> np.ndarray:
    """int[n_facts]: for each of the facts, the index of the first similar ones."""
    known: dict[Facts, int] = {}
    codes = np.arange(len(facts))
    for code, own in enumerate(facts):
        if own.static or own.differs or (own.text and own.kind in _NAMED):
            texts = [_FACT_NUMBER.sub("0", text) for text in _texts(own)]
            codes[code] = known.setdefault(_with_texts(own, texts)._replace(differs=own.differs and ("",)), code)
    return codes


def merged_facts(similar: Sequence[Facts]) -> Facts:
    """The first of similar facts, with the range of each number that differs: "layer=0…11"."""

    def in_ranges(texts: Sequence[str]) -> str:
        numbers = zip(*map(_FACT_NUMBER.findall, texts), strict=True)
        ends = iter([(str(min(column, key=float)), str(max(column, key=float))) for column in numbers])
        return _FACT_NUMBER.sub(lambda _: "…".join(dict.fromkeys(next(ends))), texts[0])

    return _with_texts(similar[0], list(map(in_ranges, zip(*map(_texts, similar), strict=True))))


def _texts(facts: Facts) -> list[str]:
    """The texts whose numbers may differ between similar facts."""
    return [facts.text if facts.kind in _NAMED else "", *(value for _, value in facts.static)]


def _with_texts(facts: Facts, texts: Sequence[str]) -> Facts:
    static = tuple([(name, text) for (name, _), text in zip(facts.static, texts[1:], strict=True)])
    return facts._replace(text=texts[0] if facts.kind in _NAMED else facts.text, static=static)


def _shown_for(table: TreeTable, runs: Sequence[np.ndarray]) -> np.ndarray:
    """int[n_rows]: the row in place of which each is shown, which another one may hide."""
    shown_for = np.arange(len(table))
    if not runs:
        return shown_for
    member = np.concatenate([rows[1:] for rows in runs])
    first = np.repeat([rows[0] for rows in runs], [len(rows) - 1 for rows in runs])
    inner_first = (-table.depth[member]).argsort(kind="stable")  # an outer run overwrites an inner one
    member, first = member[inner_first], first[inner_first]
    size = table.end[member] - member
    inside = np.arange(size.sum()) - (size.cumsum() - size).repeat(size)
    shown_for[member.repeat(size) + inside] = first.repeat(size) + inside
    return shown_for


def _folded_members(
    table: TreeTable, runs: Iterable[np.ndarray], wrong: Sequence[int], nan: Sequence[int]
) -> Iterator[np.ndarray]:
    """The rows of each run that do not stand out."""
    ranked = np.array([*wrong, *nan], int)
    ranks = np.full(len(table), len(ranked))
    ranks[ranked[::-1]] = np.arange(len(ranked))[::-1]
    n_before = np.concatenate([[0], (ranks < len(ranked)).cumsum()])  # ranked rows
    for rows in runs:
        start, stop = rows[0], table.end[rows[-1]]
        if n_before[stop] > n_before[start]:
            best = ranks[rows[:, None] + np.arange(table.end[start] - start)].min(axis=1)
            worst_first = best.argsort(kind="stable")[:MOST_OUT]
            # A rank below the number of wrong rows is that of one, any other that of NaN.
            limit = len(wrong) if best.max() < len(ranked) else len(ranked)
            rows = np.delete(rows, worst_first[best[worst_first] < limit])
        yield rows


def _runs(table: TreeTable) -> Iterator[np.ndarray]:
    """The rows of the members of each run of `LEAST` or more siblings."""
    similar = similar_to_next(table)
    if len(similar) < LEAST - 1:
        return
    similar = similar[table.parent[similar].argsort(kind="stable")]
    following = table.end[similar]
    starts = (np.concatenate([[-1], following[:-1]]) != similar).nonzero()[0]
    stops = np.concatenate([starts[1:], [len(similar)]])
    is_long = stops - starts + 1 >= LEAST
    differs, codes = differing(table.facts), table.fact_codes
    for start, stop in zip(starts[is_long].tolist(), stops[is_long].tolist(), strict=True):
        rows = np.concatenate([similar[start:stop], following[stop - 1 : stop]])
        if not any(differs):
            yield rows
            continue
        ways = np.array(differs)[codes[rows[0] : table.end[rows[-1]]]].reshape(len(rows), -1)
        group = np.unique(ways, axis=0, return_inverse=True)[1].ravel()
        yield from (rows[group == each] for each in (np.bincount(group) >= LEAST).nonzero()[0])


def in_every_member(table: TreeTable, rows: Sequence[int]) -> set[int]:
    """Those of the rows that are in a run, and have the same notes in each member of every run in which they are."""
    noted = np.array(sorted(rows), np.int64)
    common, alone = set[int](), set[int]()
    for members in _runs(table) if len(rows) >= LEAST else ():
        inside = noted[noted.searchsorted(members[0]) : noted.searchsorted(table.end[members[-1]])]
        starts = members[members.searchsorted(inside, "right") - 1]
        inside, starts = inside[inside < table.end[starts]], starts[inside < table.end[starts]]
        members_of: dict[tuple, list[int]] = {}
        for row, start in zip(inside.tolist(), starts.tolist(), strict=True):
            members_of.setdefault((row - start, table.notes.get(row)), []).append(row)
        for found in members_of.values():
            (common if len(found) == len(members) else alone).update(found)
    return common - alone


def differing(facts: Sequence[Facts]) -> list[int]:
    """Numbers, equal for facts that differ in the same way from other trees; 0 for those that are the same."""
    known = {(): 0}
    return [known.setdefault(each.differs, len(known)) for each in facts]


def similar_to_next(table: TreeTable) -> np.ndarray:
    """int[k]: the rows whose next sibling is similar, computed once for all tables with the same rows."""
    computed = vars(table)
    if "_similar_to_next" in computed:
        return computed["_similar_to_next"]
    known = {"": -1}
    patterns = [known.setdefault(_pattern(key.label), len(known)) for key in table.keys[1:]]
    pattern = np.array([0, *patterns])[table.key_codes]  # 0: the indices of lists and tuples
    end = table.end
    row = ((end < end[table.parent]) & (pattern >= 0)).nonzero()[0]
    if not len(row):
        return computed.setdefault("_similar_to_next", row)
    following, facts = end[row].astype(np.int64), similar_facts(table.facts)[table.fact_codes]
    size = following - row
    fit = (end[following] - following == size) & (facts[following] == facts[row]) & (pattern[following] == pattern[row])
    row, size = row[fit], size[fit]
    # One number below 2**62 for what must be equal: there are at most 2**21 facts and keys, and 2**18 levels.
    codes = (table.depth.astype(np.int64) * len(table.facts) + facts) * len(table.keys) + table.key_codes
    is_similar = np.zeros(len(row), bool)
    start, offsets = 0, np.concatenate([[0], size.cumsum()])
    while start < len(row):
        stop = max(start + 1, int(offsets.searchsorted(offsets[start] + _BATCH, side="right")) - 1)
        sizes, first = size[start:stop], offsets[start:stop] - offsets[start]
        left = np.arange(offsets[stop] - offsets[start]) + (row[start:stop] - first).repeat(sizes)
        differs = codes[left] != codes[left + sizes.repeat(sizes)]
        differs[first] = False  # the keys of the siblings themselves
        is_similar[start:stop] = ~np.logical_or.reduceat(differs, first)
        start = stop
    computed["_similar_to_next"] = row[is_similar]
    return row[is_similar]


@lru_cache(maxsize=4096)  # the trees of one process have few distinct names
def _pattern(label: str) -> str:
    """The label with 0 for each number; "" if it has none."""
    return _NUMBER.sub("0", label) if _NUMBER.search(label) else ""


def _label(table: TreeTable, rows: np.ndarray) -> str:
    """ "[0…79] ×80", "h_0…h_11 ×12"."""
    codes = table.key_codes[rows].tolist()
    if not codes[0]:
        first, last = (f"[{table.position[row]}]" for row in (rows[0], rows[-1]))
    else:
        labels = [table.keys[code].label for code in codes]
        labels.sort(key=lambda label: [(len(n), n) for n in [n.lstrip("0") for n in _NUMBER.findall(label)]])
        first, last = labels[0], labels[-1]
    same = commonprefix([first, last]).rstrip(digits)  # noqa: RUF071 (characters are meant)
    if first[0] == "[" and first[-1] == "]":
        names = f"{first[:-1]}…{last[len(same) :]}"
    else:
        names = f"{first}…{last.removeprefix('.') if len(last) <= _LONG else last[len(same) :]}"
    return f"{names} ×{len(rows):,}"
