"""Which array of one tree is which of another, where the nodes that hold them have other names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.difference import Hint
from treeviz.analysis.compare.fingerprints import axes_of_layers
from treeviz.analysis.compare.leaf_facts import transpose_code, transposing
from treeviz.analysis.compare.python_entries import entries, with_index
from treeviz.analysis.compare.tree_diff import Found
from treeviz.tree.stored import Stored
from treeviz.tree.table import TreeTable

STRUCTURAL = ("missing", "extra", "type", "none", "leaf")
_LEAST = 2  # arrays that are found again
_MOST_ARRAYS = 20_000
_MOST_LINES = 60  # of the code
_DEEPEST = 64
_WORDS = re.compile(r"[./_\-]+|(?<=[a-zA-Z])(?=\d)")  # "layers_0", "layers0" and "layers/0" are alike
_ALIKE = dict.fromkeys(("kernel", "scale", "embedding", "embeddings", "w", "gamma"), "weight") | {
    "b": "bias",
    "beta": "bias",
}
_COPIES = {"ema", "shadow", "average", "avg", "opt", "optimizer", "mu", "nu", "momentum", "target"}


class _Array(NamedTuple):
    """An array, or several that would be one if they were stacked.

    Attributes:
      rows: Of the array, or of each of the layers.
      words: Those of its path; for layers without their number.
      shape: For layers that of their stack.
      axis: Which one is that of the layers, of those and of a stack.
    """

    rows: tuple[int, ...]
    words: tuple[str, ...]
    shape: tuple[int, ...]
    axis: int = 0

    @property
    def of_layer(self) -> tuple[int, ...]:
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]


class _Pair(NamedTuple):
    """An array of the other tree, and what it is in the first."""

    mine: _Array
    other: _Array

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Those of both; of layers and their stack that of one layer."""
        if len(self.mine.rows) > 1 or len(self.other.rows) > 1:
            return self.mine.of_layer, self.other.of_layer
        return self.mine.shape, self.other.shape

    @property
    def axes(self) -> list[int]:
        """Those that may be the axis of the layers in their stack; none if these are no layers."""
        layers, stack = (self.mine, self.other) if len(self.mine.rows) > 1 else (self.other, self.mine)
        n, layer = len(layers.rows), layers.of_layer
        either = (layer, layer[::-1])
        return sorted({k for each in either for k in axes_of_layers(stack.shape, n, each)}) if n > 1 else []

    @property
    def axis(self) -> int:
        return self.mine.axis or self.other.axis

    def along(self, axis: int) -> _Pair:
        """The same layers, in a stack along an axis."""
        if len(self.mine.rows) > 1:
            return _Pair(self.mine, self.other._replace(axis=axis))
        return _Pair(self.mine._replace(axis=axis), self.other)


def mapped_hints(left: Side, right: Side, found: Found) -> dict[int, Hint]:
    """Where the arrays below each difference of structure stand in the other tree, by aligned row.

    The first of the hints has the code that converts the whole tree, if every array of the other is found.
    """
    tables, places = (left.table, right.table), (found.aligned.left, found.aligned.right)
    told = [at for at, each in zip(found.rows, found.differences, strict=True) if each.kind in STRUCTURAL]
    at_of: list[dict[int, int]] = [{}, {}]  # rows of arrays, and where they are told
    for of, table, rows in zip(at_of, tables, (of_side[told] for of_side in places), strict=True):
        arrays = np.flatnonzero(_is_array(table))
        is_own = rows != NONE
        first, end = (np.searchsorted(arrays, each[rows[is_own]]) for each in (np.arange(len(table)), table.end))
        inside = arrays[_ranges(first, end)].tolist()
        of.update(zip(inside, np.repeat(np.array(told)[is_own], end - first).tolist(), strict=True))
    if not all(_LEAST <= len(rows) <= _MOST_ARRAYS for rows in at_of):
        return {}
    pairs = _pairs(*map(_arrays, tables, _that_may_pair(tables, [[*rows] for rows in at_of])))
    if len(pairs) < _LEAST:
        return {}
    turned = _turned(tables, pairs)
    hints: dict[int, Hint] = {}
    for side, (rows, its, there) in enumerate(zip(at_of, reversed(tables), ("other", "first"), strict=True)):
        found_at: dict[int, list[tuple[_Pair, int]]] = defaultdict(list)
        for pair in pairs:
            for row in pair[side].rows:
                found_at[rows[row]].append((pair, row))
        n_at = Counter(rows.values())
        for at, inside in found_at.items():
            n = n_at[at]
            elsewhere = [each for each in inside if not _is_one_place(tables, each[0])]
            if not elsewhere:
                some = f"its {n:,} arrays" if len(inside) == n else f"{len(inside):,} of {n:,} arrays"
                hints.setdefault(at, Hint(f"{some} stand at the same paths in the {there}" if n > 1 else ""))
                continue
            pair, row = min(elsewhere, key=lambda each: each[1])
            place, shown = its[pair[1 - side].rows[0]].keystr, tables[side][row].keystr
            how = _how(pair, side) + ", transposed" * (turned.get(pair) is True)
            if n == 1:
                text = f"stands at {place} in the {there}{how}?"
            else:
                some = f"its {n:,} arrays stand" if len(elsewhere) == n else f"{len(elsewhere):,} of {n:,} arrays stand"
                text = f"{some} elsewhere in the {there}: {shown} is {place}{how}?"
            hints.setdefault(at, Hint(text))
    first = min(hints)
    hints[first] = hints[first]._replace(code=_code(left, right, found, pairs, turned))
    return hints


def _is_one_place(tables: tuple[TreeTable, TreeTable], pair: _Pair) -> bool:
    mine, other = (table[each.rows[0]].keystr for table, each in zip(tables, pair, strict=True))
    return mine == other


def _ranges(first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The numbers from each first one to its end, one range after the other."""
    n = end - first
    before = np.cumsum(n) - n
    return np.repeat(first - before, n) + np.arange(n.sum())


def _how(pair: _Pair, side: int) -> str:
    n, along = len(pair[1 - side].rows), f" along axis {pair.axis}" if pair.axis else ""
    if n > 1:
        return f" of {n} layers{along and f', stacked{along}'}"
    return f", as a layer of a stack{along}" if len(pair[side].rows) > 1 else ""


def _is_array(table: TreeTable) -> np.ndarray:
    """bool[n]: the rows of leaves with a shape."""
    return np.array([facts.is_leaf and facts.shape is not None for facts in table.facts])[table.fact_codes]


def _that_may_pair(tables: tuple[TreeTable, TreeTable], rows: Sequence[list[int]]) -> Sequence[list[int]]:
    """Of the rows of arrays those whose last word an array of the other tree has; all, if a number may be left out."""
    codes = [table.key_codes[of] for table, of in zip(tables, rows, strict=True)]
    last = [
        {code: words_of(table.keys[code].segment)[-1] if code else "0" for code in np.unique(of).tolist()}
        for table, of in zip(tables, codes, strict=True)
    ]
    if any(word.isdecimal() for words in last for word in words.values()):
        return rows
    common = {*last[0].values()} & {*last[1].values()}
    may_pair = [{code for code, word in words.items() if word in common} for words in last]
    return [
        [row for row, code in zip(of, own.tolist(), strict=True) if code in known]
        for of, own, known in zip(rows, codes, may_pair, strict=True)
    ]


def _arrays(table: TreeTable, rows: Sequence[int] | dict[int, int]) -> list[_Array]:
    arrays = []
    for row in rows:
        if table.depth[row] <= _DEEPEST:
            words = words_of(".".join(key.segment for key in table.path(row)))
            arrays.append(_Array((row,), words, table.facts[table.fact_codes[row]].shape or ()))
    return arrays


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, the last of which is the same for all that are called alike: kernel and weight."""
    *above, last = _WORDS.sub(".", name).lower().split(".")
    return (*above, _ALIKE.get(last, last))


def _pairs(left: list[_Array], right: list[_Array]) -> list[_Pair]:
    """Arrays that are each other's by the ends of their paths and by their shapes; then stacks and their layers."""
    pairs = _by_ends(left, right)
    for side in (0, 1):
        done = {row for pair in pairs for each in pair for row in (each.rows if each is pair[side] else ())}
        theirs = {row for pair in pairs for row in pair[1 - side].rows}
        layers = [each for each in (left, right)[side] if each.rows[0] not in done]
        stacks = [each for each in (right, left)[side] if each.rows[0] not in theirs]
        sides = (_stacks(layers), stacks) if side == 0 else (stacks, _stacks(layers))
        pairs += _by_ends(*sides)
    of_all = [{*axes} for pair in pairs if (axes := pair.axes)]  # most stacks have the layers of all arrays along one
    common = set.intersection(*of_all) if of_all else set[int]()
    return [pair.along(min(common or axes)) if (axes := pair.axes) else pair for pair in pairs]


def _stacks(arrays: list[_Array]) -> list[_Array]:
    """What the arrays of layers would be as stacks: those whose words differ by one number alone."""
    groups: dict[tuple, dict[int, int]] = defaultdict(dict)
    for each in arrays:
        for i, word in enumerate(each.words):
            if word.isdecimal() and len(word) < 6:
                groups[i, each.words[:i] + each.words[i + 1 :], each.shape][int(word)] = each.rows[0]
    return [
        _Array(tuple(rows[i] for i in range(len(rows))), words, (len(rows), *shape))
        for (_, words, shape), rows in groups.items()
        if len(rows) > 1 and rows.keys() == set(range(len(rows)))
    ]


def _by_ends(left: list[_Array], right: list[_Array]) -> list[_Pair]:
    """Pairs that have as many last words in common as make them the only two, and shapes that go together."""
    pairs: list[_Pair] = []
    for n_words in range(max((len(each.words) for each in (*left, *right)), default=0), 0, -1):
        ends: list[dict[tuple[str, ...], list[_Array]]] = []
        for arrays in (left, right):
            of_end: dict[tuple[str, ...], list[_Array]] = defaultdict(list)
            for each in arrays:
                if len(each.words) >= n_words:
                    of_end[each.words[-n_words:]].append(each)
            ends.append(of_end)
        for end, mine in ends[0].items():
            if all(word.isdecimal() for word in end):
                continue
            one, another = _alone(mine), _alone(ends[1].get(end, []))
            if one and another and len(one.shape) == len(another.shape):
                pair = _Pair(one, another)
                is_of_layers = len(one.rows) > 1 or len(another.rows) > 1
                if pair.axes or (not is_of_layers and another.shape in (one.shape, one.shape[::-1])):
                    pairs.append(pair)
        taken = [{pair[side].rows for pair in pairs} for side in (0, 1)]
        left = [each for each in left if each.rows not in taken[0]]
        right = [each for each in right if each.rows not in taken[1]]
    return pairs


def _alone(arrays: list[_Array]) -> _Array | None:
    """The one array, or the one that is no average, and no state of an optimizer."""
    if len(arrays) > 1:
        arrays = [each for each in arrays if _COPIES.isdisjoint(each.words)]
    return arrays[0] if len(arrays) == 1 else None


def _turned(tables: tuple[TreeTable, TreeTable], pairs: Sequence[_Pair]) -> dict[_Pair, bool | None]:
    """Whether the array of each pair is transposed; of a square one what holds for all others of its names, or None."""

    def names(pair: _Pair) -> tuple[str, ...]:
        return tuple([_last(table, each.rows[0]) for table, each in zip(tables, pair, strict=True)])

    of_names: dict[tuple[str, ...], set[bool]] = defaultdict(set)
    for pair in pairs:
        mine, its = pair.shapes
        if mine != mine[::-1]:
            of_names[names(pair)].add(mine != its)
    turned: dict[_Pair, bool | None] = {}
    for pair in pairs:
        (mine, its), of_others = pair.shapes, of_names[names(pair)]
        is_told = len(mine) < 2 or mine != mine[::-1] or not of_others
        turned[pair] = mine != its if is_told else max(of_others) if len(of_others) == 1 else None
    return turned


def _last(table: TreeTable, row: int) -> str:
    """The last word of a path: "weight"."""
    return re.split(r"[./]", table.key(row).segment)[-1]


def _code(left: Side, right: Side, found: Found, pairs: Sequence[_Pair], turned: dict[_Pair, bool | None]) -> str:
    """Python that makes the other tree of the arrays of the first, if all are known."""
    np_ = "np" if any(type(node) is Stored for node in left.nodes) else "jnp"  # JAX takes no arrays that are in files
    sources: dict[int, str] = {}  # by the row of the other tree
    apart = np.zeros(len(found.aligned.left), bool)
    for at, each in zip(found.rows, found.differences, strict=True):
        if each.kind in STRUCTURAL:
            apart[at : found.aligned.end[at]] = True
    shapes = [[facts.shape for facts in side.table.facts] for side in (left, right)]
    of_others: dict[int, set[tuple[int, ...]]] = defaultdict(set)  # orders of axes, by the number of these
    for pair in pairs:
        order = transposing(*pair.shapes)
        if turned[pair] and order:
            of_others[len(order)].add(order)
    for mine, other in zip(found.aligned.left[~apart].tolist(), found.aligned.right[~apart].tolist(), strict=True):
        codes = left.table.fact_codes[mine], right.table.fact_codes[other]
        if right.table.is_leaf[other] and shapes[0][codes[0]] == shapes[1][codes[1]]:
            sources[other] = left.table[mine].expression
    for pair in pairs:
        rows, others = [left.table[row].expression for row in pair.mine.rows], [*pair.other.rows]
        if turned[pair] is None:
            return ""
        order = transposing(*pair.shapes) or transposing(*pair.shapes, of_others[len(pair.shapes[0])])
        if turned[pair] and order is None:
            return ""
        form = transpose_code("{}", order, np_) if turned[pair] and order else "{}"
        if len(rows) > 1:
            of_layer = with_index(rows)
            along = f", axis={pair.axis}" if pair.axis else ""
            stack = f"{np_}.stack([{form.format(of_layer)} for i in range({len(rows)})]{along})"
            sources[others[0]] = stack if of_layer else ""
        elif len(others) > 1:
            sources |= {row: form.format(f"{rows[0]}[{':, ' * pair.axis}{i}]") for i, row in enumerate(others)}
        else:
            sources[others[0]] = form.format(rows[0])
    wanted = np.flatnonzero(_is_array(right.table)).tolist()
    keys = {row: right.table[row].keystr for row in wanted}
    if not all(map(sources.get, wanted)) or any(re.search(r"[\"\\{}]", key) for key in keys.values()):
        return ""
    lines = entries([(f'"{keys[row]}"', sources[row]) for row in wanted])
    if len(lines) > _MOST_LINES:
        return ""
    inside = ",\n    ".join(lines)
    return (
        f"jax.tree_util.tree_map_with_path(lambda path, x, of={{\n    {inside},\n}}: "
        "of.get(jax.tree_util.keystr(path), x), other)"
    )
