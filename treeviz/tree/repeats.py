"""Repeats: runs of siblings that are alike, as the layers of a model, which views show as one row.

The rule, for every view; `tests/fold_cases.json` has examples of it:

- Two siblings are *alike* if their keys differ in numbers only, and their subtrees in nothing. Keys: both are indices
  of a list or tuple, or both labels have a digit and are equal once every run of the digits 0 to 9 is written as one 0
  (`h_7` and `h_11`, not `query` and `value`). Subtrees: as many rows, and row by row the same depth and the same facts
  (`fact_codes`: type, shape, dtype, sharding …) but for the numbers in static fields and in the texts of nodes and of
  variables, such as the number of a layer (`alike_facts`), and below the first row the same key (`key_codes`).
  Columns, notes and series do not matter.
- A *run* is a sequence of siblings, each alike the one before it.
- A member of a run *stands out* if a wrong row, one with a finding or an error, is in its subtree; or one with NaN,
  unless all members have one or the other. Of more than `MOST_OUT` such members the first ones stand out, in the order
  of the wrong rows, worst first, and then of those with NaN. These keep rows of their own.
- The other members are *folded* if they are `LEAST` or more: one row stands for them, the first, and the rows inside
  it for those of all. Runs inside a folded row, or inside a member that stands out, are folded in the same way.
- The row is called after the least and the greatest of its keys, in the order of their numbers: `[0…79] ×80`,
  `h_0…h_11 ×12`. Of the second, if it is longer than 12 characters, only what differs: `transformer_0…11 ×12`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from os.path import commonprefix
from string import digits
from typing import NamedTuple

import numpy as np

from treeviz.tree.facts import Facts
from treeviz.tree.table import TreeTable

LEAST = 3  # members of a folded run
MOST_OUT = 3  # members that stand out of a run
_AT_ONCE = 1 << 20  # rows that are compared
_LONG = 12  # characters of a key whose start is not repeated
_NUMBER = re.compile("[0-9]+")
_FACT_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?")
_NAMED = ("node", "module", "variable")  # kinds whose text is no value


class Run(NamedTuple):
    """Siblings that are folded into one row.

    Attributes:
      rows: int[k]: the rows of the siblings, in order; the first stands for all.
      label: "[0…79] ×80".
    """

    rows: np.ndarray
    label: str


class Repeats(NamedTuple):
    """The rows that are shown where runs are folded.

    Attributes:
      rows: int[n_shown]: their numbers, in order.
      place: int[n_rows]: of each row of the table, the index into `rows` of the one that stands for it.
      runs: The folded runs, by index into `rows`.
    """

    rows: np.ndarray
    place: np.ndarray
    runs: dict[int, Run]


def fold(table: TreeTable, wrong: Sequence[int] = (), nan: Sequence[int] = ()) -> Repeats:
    """Fold the runs of a table. Takes O(n log n) time for n rows, whatever the depth.

    Args:
      wrong: The rows with a finding or an error, worst first.
      nan: The rows with NaN or infinities.
    """
    runs = list(_runs(table))
    if wrong or nan:
        runs = [rows for rows in _folded_members(table, runs, wrong, nan) if len(rows) >= LEAST]
    stands_for = _stands_for(table, runs)
    shown = np.flatnonzero(stands_for == np.arange(len(table)))
    place = np.searchsorted(shown, stands_for)
    visible = [rows for rows in runs if stands_for[rows[0]] == rows[0]]
    return Repeats(shown, place, {int(place[rows[0]]): Run(rows, _label(table, rows)) for rows in visible})


def alike_facts(facts: Sequence[Facts]) -> np.ndarray:
    """int[n_facts]: of each the first one that is alike."""
    known: dict[Facts, int] = {}
    codes = np.arange(len(facts))
    for code, each in enumerate(facts):
        if each.static or (each.text and each.kind in _NAMED):
            texts = [_FACT_NUMBER.sub("0", text) for text in _texts(each)]
            codes[code] = known.setdefault(_with_texts(each, texts), code)
    return codes


def merged_facts(alike: Sequence[Facts]) -> Facts:
    """The first of facts that are alike, with the range of each number in which they differ: "layer=0…11"."""
    return _with_texts(alike[0], [_in_ranges(texts) for texts in zip(*map(_texts, alike), strict=True)])


def _texts(facts: Facts) -> list[str]:
    """What facts may differ in and be alike."""
    return [facts.text if facts.kind in _NAMED else "", *(value for _, value in facts.static)]


def _with_texts(facts: Facts, texts: Sequence[str]) -> Facts:
    static = tuple([(name, text) for (name, _), text in zip(facts.static, texts[1:], strict=True)])
    return facts._replace(text=texts[0] if facts.kind in _NAMED else facts.text, static=static)


def _in_ranges(texts: Sequence[str]) -> str:
    """ "layer 0…11" of "layer 0", "layer 1" … "layer 11"."""
    numbers = zip(*map(_FACT_NUMBER.findall, texts), strict=True)
    ends = iter([(str(min(each, key=float)), str(max(each, key=float))) for each in numbers])
    return _FACT_NUMBER.sub(lambda _: "…".join(dict.fromkeys(next(ends))), texts[0])


def _stands_for(table: TreeTable, runs: Sequence[np.ndarray]) -> np.ndarray:
    """int[n_rows]: the row that is shown in place of each."""
    stands_for = np.arange(len(table))
    if not runs:
        return stands_for
    member = np.concatenate([rows[1:] for rows in runs])
    first = np.repeat([rows[0] for rows in runs], [len(rows) - 1 for rows in runs])
    inner_first = np.argsort(-table.depth[member], kind="stable")  # since an outer run replaces what an inner one says
    member, first = member[inner_first], first[inner_first]
    size = table.end[member] - member
    inside = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    stands_for[np.repeat(member, size) + inside] = np.repeat(first, size) + inside
    while not np.array_equal(further := stands_for[stands_for], stands_for):
        stands_for = further
    return stands_for


def _folded_members(
    table: TreeTable, runs: Iterable[np.ndarray], wrong: Sequence[int], nan: Sequence[int]
) -> Iterator[np.ndarray]:
    """Of each run the rows that do not stand out."""
    ranked = np.array([*wrong, *nan], int)
    ranks = np.full(len(table), len(ranked))
    ranks[ranked[::-1]] = np.arange(len(ranked))[::-1]
    n_before = np.append(0, np.cumsum(ranks < len(ranked)))  # ranked rows
    for rows in runs:
        start, stop = rows[0], table.end[rows[-1]]
        if n_before[stop] > n_before[start]:
            rows = np.delete(rows, _standing_out(ranks[start:stop], len(rows), len(wrong), len(ranked)))
        yield rows


def _standing_out(ranks: np.ndarray, n_members: int, n_wrong: int, n_all: int) -> np.ndarray:
    """int[k]: which members of a run stand out, from the ranks of its rows: below `n_wrong` they are wrong, below
    `n_all` they have NaN.
    """
    best = ranks.reshape(n_members, -1).min(axis=1)
    worst_first = np.argsort(best, kind="stable")[:MOST_OUT]
    return worst_first[best[worst_first] < (n_wrong if best.max() < n_all else n_all)]


def _runs(table: TreeTable) -> Iterator[np.ndarray]:
    """The rows of the members of each run of `LEAST` or more siblings."""
    alike = like_the_next(table)
    alike = alike[np.argsort(table.parent[alike], kind="stable")]
    following = table.end[alike]
    starts = np.flatnonzero(np.append(-1, following[:-1]) != alike)
    stops = np.append(starts[1:], len(alike))
    is_long = stops - starts + 1 >= LEAST
    for start, stop in zip(starts[is_long].tolist(), stops[is_long].tolist(), strict=True):
        yield np.append(alike[start:stop], following[stop - 1])


def like_the_next(table: TreeTable) -> np.ndarray:
    """int[k]: the rows that have a next sibling which is alike."""
    end, keys, depth = table.end, table.key_codes, table.depth
    facts = alike_facts(table.facts)[table.fact_codes]
    pattern = _patterns(table)[keys]
    row = np.arange(1, len(table))
    row = row[(end[row] < end[table.parent[row]]) & (pattern[row] >= 0)]
    following = end[row].astype(np.int64)
    size = following - row
    fit = (end[following] - following == size) & (facts[following] == facts[row]) & (pattern[following] == pattern[row])
    row, size = row[fit], size[fit]
    found = np.zeros(len(row), bool)
    done, before = 0, np.append(0, np.cumsum(size))
    while done < len(row):
        upto = max(done + 1, int(np.searchsorted(before, before[done] + _AT_ONCE, side="right")) - 1)
        some, sizes = row[done:upto], size[done:upto]
        which = np.repeat(np.arange(len(some)), sizes)
        inside = np.arange(len(which)) - np.repeat(before[done:upto] - before[done], sizes)
        one = some[which] + inside
        other = one + sizes[which]
        differs = (depth[one] != depth[other]) | (facts[one] != facts[other])
        differs |= (keys[one] != keys[other]) & (inside > 0)
        found[done:upto] = np.bincount(which[differs], minlength=len(some)) == 0
        done = upto
    return row[found]


def _patterns(table: TreeTable) -> np.ndarray:
    """int[n_keys]: equal for keys that differ in numbers only; -1 for one without a number."""
    known: dict[str, int] = {}
    patterns = [0]  # of the indices of lists and tuples
    for key in table.keys[1:]:
        has_number = _NUMBER.search(key.label)
        patterns.append(known.setdefault(_NUMBER.sub("0", key.label), 1 + len(known)) if has_number else -1)
    return np.array(patterns)


def _label(table: TreeTable, rows: np.ndarray) -> str:
    """ "[0…79] ×80", "h_0…h_11 ×12"."""
    if not table.key_codes[rows[0]]:
        first, last = table.key(int(rows[0])).label, table.key(int(rows[-1])).label
    else:
        labels = [table.key(row).label for row in rows.tolist()]
        labels.sort(key=lambda label: [(len(number), number) for number in _numbers(label)])
        first, last = labels[0], labels[-1]
    same = commonprefix([first, last]).rstrip(digits)  # noqa: RUF071 (characters are meant)
    if first[0] == "[" and first[-1] == "]":
        names = f"{first[:-1]}…{last[len(same) :]}"
    else:
        names = f"{first}…{last.removeprefix('.') if len(last) <= _LONG else last[len(same) :]}"
    return f"{names} ×{len(rows):,}"


def _numbers(label: str) -> list[str]:
    return [number.lstrip("0") for number in _NUMBER.findall(label)]
