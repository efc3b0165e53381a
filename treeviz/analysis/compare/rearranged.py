"""One matcher of what was rearranged, not changed: renamed, moved, inserted, or layers against one stack of them.

A hypothesis is a function `(Trees, rows) -> {row: Hint}`: of two trees, and the rows of differences without a hint, it
tells what some of these come from, and nothing where several explanations fit. `HYPOTHESES` lists them, the surest
first. These rows are those of both trees side by side, as in `Aligned`; all others are rows of one tree.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import islice, takewhile
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.aligned import MAPPINGS, NONE, Side
from treeviz.analysis.compare.difference import Differences, Hint, with_hint
from treeviz.analysis.compare.tree_diff import Found, subtree_text, transpose_code, transposing
from treeviz.analysis.stats.arrays import host_view, lies_on_host
from treeviz.tree.runtime import collector_paused, computed_once
from treeviz.tree.stored import Stored
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.text import guarded

_ALONE = ("missing", "extra")
_STRUCTURAL = (*_ALONE, "type", "none", "leaf")
_KINDS = (*_STRUCTURAL, "length", "static", "shape")  # that something rearranged may lead to
_MOST_CHILDREN = 500  # of a node that are compared with each other
_MOST_ELEMENTS = 2_000  # of all lists, in which those are looked for that moved
_MOST_PLACES = 3  # that a hint names
_LEAST = 2  # leaves of a subtree that is taken for another one by its structure alone, and arrays found by their names
_MOST_ARRAYS = 20_000
_MOST_LINES = 60  # of code
_DEEPEST = 64  # levels: no name holds a longer path
_WORDS = re.compile(r"[./_\-]+|(?<=[a-zA-Z])(?=\d)")  # "layers_0", "layers0" and "layers/0" are alike
_SEPARATORS = re.compile(r"[^./]([./])[^./]")
_ALIKE = dict.fromkeys(("kernel", "scale", "embedding", "embeddings", "w", "gamma"), "weight") | {
    "b": "bias",
    "beta": "bias",
}
_OF_ALL = ("weight", "bias")  # the last words of many names, which tell nothing of what an array is for
_COPIES = {"ema", "shadow", "average", "avg", "opt", "optimizer", "mu", "nu", "momentum", "target"}
_THERE = ("other", "first")  # what the tree across is called
_ODD = np.uint64(0x9E3779B97F4A7C15)


@collector_paused()
def with_hints(left: Side, right: Side, found: Found, *, values: bool = True) -> Found:
    """The differences with what they may come from.

    Args:
      values: The first values of arrays in host memory may tell elements of a list from each other.
    """
    if set(_KINDS).isdisjoint(found.kinds):
        return found
    trees, hints = Trees(left, right, found, values), dict[int, Hint]()
    for hypothesis in HYPOTHESES:
        rows = [at for at in trees.kinds if at not in hints]
        if not rows:
            break
        more = {at: hint for at, hint in hypothesis(trees, rows).items() if hint.text}
        if any(hint.code for hint in more.values()):  # converts as much as the code of those before, or more
            hints |= {at: Hint(hints[at].text, more[at].code) for at in more.keys() & hints.keys()}
        hints |= {at: hint for at, hint in more.items() if at not in hints}
    differences, told = Differences(), set[int]()
    for at, kind, each in zip(found.rows, found.kinds, found.differences, strict=True):
        is_told = at in hints and kind in _KINDS and at not in told and (kind != "type" or not each.hint)
        differences.append(with_hint(each, hints[at]) if is_told else each)
        if is_told:
            told.add(at)
    return found._replace(differences=differences)


class Trees:
    """What hypotheses ask of two trees. Each attribute in the plural has one of the first tree and one of the other.

    Attributes:
      kinds: Of the aligned rows with differences, the kind of the first.
      at: int[n]: the aligned row of each row; -1 below the right one of two nodes that are not compared inside.
      counterparts: int[n]: of each row the one across, or -1.
      are_alone: bool[n]: rows without a counterpart, or with one that is another thing.
      names: int[n]: the same number for the same segment of a path; of an index one below zero.
      n_leaves: int[n + 1]: how many come before each row.
    """

    def __init__(self, left: Side, right: Side, found: Found, values: bool) -> None:
        self.sides, self.tables, self.values = (left, right), (left.table, right.table), values
        self.found, self.aligned = found, found.aligned
        self.own = found.aligned.left, found.aligned.right
        pairs = zip(reversed(found.rows), reversed(found.kinds), strict=True)
        self.kinds = dict(reversed([(at, kind) for at, kind in pairs if kind in _KINDS]))
        apart = [at for at, kind in self.kinds.items() if kind in _STRUCTURAL]
        self.at, self.counterparts, self.are_alone, self.names = [], [], [], []
        segments: dict[str, int] = {}
        for table, own, across in zip(self.tables, self.own, reversed(self.own), strict=True):
            rows = np.flatnonzero(own != NONE)
            at, match = np.full(len(table), NONE), np.full(len(table), NONE)
            at[own[rows]], match[own[rows]] = rows, across[rows]
            is_alone = match == NONE
            is_alone[own[apart][own[apart] != NONE]] = True
            of_key = np.array([segments.setdefault(key.segment, len(segments)) for key in table.keys])
            self.at.append(at)
            self.counterparts.append(match)
            self.are_alone.append(is_alone)
            self.names.append(np.where(table.key_codes == 0, ~table.position.astype(np.int64), of_key[table.key_codes]))
        self.segments = [*segments]
        self.n_leaves = [np.append(0, np.cumsum(table.is_leaf)) for table in self.tables]

    def pair(self, at: int) -> tuple[int, int]:
        return int(self.own[0][at]), int(self.own[1][at])

    def count(self, side: int, rows: Any) -> Any:
        """How many leaves one or several subtrees have."""
        return self.n_leaves[side][self.tables[side].end[rows]] - self.n_leaves[side][rows]

    @computed_once
    def prints(self) -> list[np.ndarray]:
        """uint64[n] of each tree: a fingerprint of each subtree, its own key aside.

        Equal for equal types, keys, shapes and dtypes: a hash of its rows, of which each knows its number of children.
        """
        known = self._fact_codes
        prints = []
        for table, names in zip(self.tables, self.names, strict=True):
            own = np.array([known[_plain(facts)] for facts in table.facts])[table.fact_codes]
            n_children = np.bincount(table.parent[1:], minlength=len(table))
            inside = _mixed(_mixed(own) + _mixed(names) * _ODD + n_children.astype(np.uint64))
            power, back = (
                np.cumprod(np.full(len(table), each, np.uint64)) for each in (_ODD, pow(int(_ODD), -1, 1 << 64))
            )
            sums = np.append(np.uint64(0), np.cumsum(inside * power))
            prints.append(_mixed(own) + (sums[table.end] - sums[1:]) * back)
        return prints

    @computed_once
    def _fact_codes(self) -> dict[Any, int]:
        facts = (_plain(facts) for table in self.tables for facts in table.facts)
        return {each: code for code, each in enumerate(dict.fromkeys(facts))}

    def transposed(self, side: int, rows: np.ndarray) -> np.ndarray:
        """The fingerprints that the transposes of arrays have; 0 of other rows."""
        table = self.tables[side]
        codes = [
            self._fact_codes.get(_plain(f._replace(shape=f.shape[::-1])), -1)
            if f.is_leaf and f.shape and f.shape != f.shape[::-1]
            else -1
            for f in table.facts
        ]
        prints = _mixed(np.array(codes))
        prints[np.array(codes) < 0] = 0
        return prints[table.fact_codes[rows]]

    def marks(self, side: int, rows: Sequence[int], values: bool) -> list[Any]:
        """What tells elements of lists from each other: their structure, and the first values that are quickly read."""
        return [(int(self.prints[side][row]), values and _first_values(self.sides[side], row)) for row in rows]

    @computed_once
    def have_moved(self) -> list[np.ndarray]:
        """bool[n] of each tree: leaves and nodes of one name and structure that each tree has once, and elsewhere."""
        words = [words_of(segment)[0] for segment in self.segments]
        tells = np.array([not (word.isdecimal() or word in _OF_ALL) for word in words])
        rows = [
            np.flatnonzero(alone & (names >= 0) & tells[np.maximum(names, 0)])
            for alone, names in zip(self.are_alone, self.names, strict=True)
        ]
        keys = [
            _mixed(prints[of] + _mixed(names[of]))
            for prints, names, of in zip(self.prints, self.names, rows, strict=True)
        ]
        moved = []
        for table, of, once in zip(self.tables, rows, _joined(*keys)[:2], strict=True):
            moved.append(np.zeros(len(table), bool))
            moved[-1][of[once]] = True
        return moved


def _plain(facts: Any) -> Any:
    return (facts.shape, facts.dtype, "" if facts.shape else facts.type) if facts.is_leaf else facts.type


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """uint64[n]: numbers that look random, equal for equal ones (splitmix64)."""
    x = numbers.astype(np.uint64) + _ODD
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _joined(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[tuple[list[int], list[int]]]]:
    """Where keys stand that each side has once, in one order; and where each other key does that both have."""
    _, of = np.unique(np.concatenate([left, right]), return_inverse=True)
    groups = of[: len(left)], of[len(left) :]
    n_left, n_right = (np.bincount(group, minlength=int(of.max(initial=0)) + 1) for group in groups)
    orders = [np.argsort(group, kind="stable") for group in groups]
    once = [order[((n_left == 1) & (n_right == 1))[group[order]]] for order, group in zip(orders, groups, strict=True)]
    several = np.flatnonzero((n_left > 0) & (n_right > 0) & (n_left + n_right > 2))
    ends = np.cumsum(n_left), np.cumsum(n_right)
    rest = [
        tuple(
            order[end[i] - n[i] : end[i]].tolist()
            for order, end, n in zip(orders, ends, (n_left, n_right), strict=True)
        )
        for i in several.tolist()
    ]
    return once[0], once[1], rest


# Elements of a list that stand in other places of the same list, and those that are new or gone.


def elements(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """Layers that moved by one, that were swapped, inserted or removed.

    Of those that moved, the first difference in each tells where it is now.
    """
    told, hints, n_left, end = np.array(sorted(rows)), dict[int, Hint](), _MOST_ELEMENTS, 0
    for at in _lists(trees, told):
        pair = trees.pair(at)
        lists = [table.children(row) for table, row in zip(trees.tables, pair, strict=True)]
        n = len(lists[0])
        if at < end or max(map(len, lists)) > _MOST_CHILDREN:
            continue
        if n != len(lists[1]):
            mine, other = (trees.marks(side, of, trees.values) for side, of in enumerate(lists))
            hints |= {at: Hint(_inserted(mine, other))} if trees.kinds.get(at) == "length" else {}
            continue
        n_left -= n
        if n_left < 0:
            break
        for is_sure in (True, False):
            mine, other = (trees.marks(side, of, is_sure and trees.values) for side, of in enumerate(lists))
            places = _places(mine, other, [_has_arrays(trees.tables[0], row) for row in lists[0]], is_sure)
            if places:
                code = _moving_code(places, trees.tables[0][pair[0]].expression, type(trees.sides[0].nodes[pair[0]]), n)
                hints |= _told(places, children_of(trees.aligned.end, at), trees, told, is_sure, code)
                end = int(trees.aligned.end[at])  # what is in an element is compared with what is in another one
                break
    return hints


def _lists(trees: Trees, told: np.ndarray) -> list[int]:
    """The aligned rows of lists in or of which something differs."""
    at = np.flatnonzero((trees.own[0] != NONE) & (trees.own[1] != NONE))
    for table, own in zip(trees.tables, trees.own, strict=True):
        rows = own[at]
        at = at[(table.end[rows] > rows + 1) & (np.append(table.key_codes, 1)[rows + 1] == 0)]  # an index
    return at[np.searchsorted(told, trees.aligned.end[at]) > np.searchsorted(told, at)].tolist()


def _first_values(side: Side, row: int) -> tuple[Any, ...]:
    """The first values of the first leaves of a subtree, as far as they are quickly read."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and lies_on_host(leaf) and len(leaf.sharding.device_set) == 1:
            leaf = host_view(leaf)
        return (
            leaf.flat[:8].tobytes() if type(leaf) is np.ndarray else leaf if type(leaf) in (int, float, str) else None
        )

    rows = islice(filter(side.table.is_leaf.__getitem__, range(row, int(side.table.end[row]))), 16)
    return tuple(guarded(lambda leaf=side.nodes[each]: of(leaf), lambda _: None) for each in rows)


def _has_arrays(table: TreeTable, row: int) -> bool:
    """Of other elements there are many alike."""
    return any(table.facts[code].shape for code in np.unique(table.fact_codes[row : table.end[row]]).tolist())


def _inserted(mine: list[Any], other: list[Any]) -> str:
    """Which elements of a list are new or gone, unless they are the last ones."""
    n = min(len(mine), len(other))
    if mine[:n] == other[:n]:
        return ""
    changes = [each for each in SequenceMatcher(None, mine, other, autojunk=False).get_opcodes() if each[0] != "equal"]
    kinds = {kind for kind, *_ in changes}
    if len(changes) > _MOST_PLACES or kinds not in ({"insert"}, {"delete"}):
        return ""
    places = [each[3:] if kinds == {"insert"} else each[1:3] for each in changes]
    said = ", ".join(f"[{start}]" if end == start + 1 else f"[{start}:{end}]" for start, end in places)
    return f"{'inserted' if kinds == {'insert'} else 'removed'} at {said}?"


def _places(mine: list[Any], other: list[Any], have_arrays: list[bool], is_sure: bool) -> dict[int, int]:
    """Where elements went: all of them around by some places, or those that have their like in one other place."""
    n, differ = len(mine), [i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b]
    if not differ or not (is_sure or any(have_arrays[i] for i in differ)):
        return {}
    for k in sorted(range(1, n), key=lambda k: min(k, n - k)):
        if mine[0] == other[k] and mine == other[k:] + other[:k]:
            return {i: (i + k) % n for i in range(n)}
    n_mine, n_other = Counter(mine[i] for i in differ), Counter(other[i] for i in differ)
    at: dict[Any, list[int]] = {}
    for i in reversed(differ):
        at.setdefault(other[i], []).append(i)
    if n_mine == n_other:  # all are there, in another order
        return {i: at[mine[i]].pop() for i in differ}
    alone = (i for i in differ if have_arrays[i] and n_mine[mine[i]] == n_other[mine[i]] == 1)
    return {i: at[mine[i]][0] for i in alone}


def _told(
    places: dict[int, int], children: list[int], trees: Trees, told: np.ndarray, is_sure: bool, code: str
) -> dict[int, Hint]:
    come_from, hints = {to: i for i, to in places.items()}, {}
    for i, child in enumerate(children):
        n = int(np.searchsorted(told, child))
        if i in places and n < len(told) and told[n] < trees.aligned.end[child]:
            at = int(told[n])
            is_own = at == child
            text = f"{'' if is_own else f'[{i}] '}moved to [{places[i]}]"
            if i in come_from:
                text += f", and [{come_from[i]}] to {'here' if is_own else f'[{i}]'}"
            hints[at], code = Hint(text + "?" * (not is_sure), code), ""
    return hints


def _moving_code(places: dict[int, int], node: str, cls: type, n: int) -> str:
    """Python that puts all elements of a list into their places."""
    if (cls is not list and cls is not tuple) or sorted(places) != sorted(places.values()):
        return ""
    order = [*({i: i for i in range(n)} | {to: i for i, to in places.items()}).values()]
    at = order[0]
    if order == [*range(at, n), *range(at)]:
        return f"{node}[{at}:] + {node}[:{at}]"
    return f"type({node})({node}[i] for i in {order})"


# Layers of one tree against one stack of them in the other.


def stacked(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """A list of layers, or a dict that holds nothing else, against one node with an axis more in each array."""
    hints, parents = {}, trees.tables[0].parent
    for at in rows:
        mine, other = trees.pair(at)
        hint = None
        if trees.kinds[at] in _STRUCTURAL and NONE not in (mine, other):
            hint = _as_stack(trees, 0, mine, other) or _as_stack(trees, 1, other, mine)
        if not hint and mine > 0 and parents[mine] == mine - 1 and trees.kinds[at] in _STRUCTURAL:
            hint = _as_stack(trees, 0, mine - 1, int(trees.counterparts[0][mine - 1]), is_list=False)
        hints.update({at: hint} if hint else {})
    return hints


def _as_stack(trees: Trees, side: int, row: int, stack: int, *, is_list: bool = True) -> Hint | None:
    """Whether the children of a node are layers, of which a node of the other tree is a stack."""
    table, layers = trees.tables[side], trees.tables[side].children(row)
    n, prints = len(layers), trees.prints[side]
    if stack == NONE or n < 2 or len({*prints[layers].tolist()}) > 1:
        return None
    axes = _axes_of_stack(trees.tables[1 - side], stack, table, layers[0], n)
    if not axes:
        return None
    axis, node = min(axes), trees.tables[0][stack if side else row].expression
    made, along = f"jax.tree.map({_stacking(axis)}, *", f" along axis {axis}" if axis else ""
    text = f"{n} layers in the {_THERE[1 - side]}, and one stack of {n} such layers{along} in the {_THERE[side]}"
    if side == 1:
        code = f"[jax.tree.map(lambda x: x[{':, ' * axis}i], {node}) for i in range({n})]"
        return Hint(f"{text}, as made by {made}layers)", code)
    if is_list:
        return Hint(f"{text}, as made by {made}layers)", f"{made}{node})")
    names = [table.key(each).segment for each in layers]
    start = names[0].rstrip("0123456789")
    is_numbered = set(names) == {f"{start}{i}" for i in range(n)} and type(trees.sides[0].nodes[row]) in MAPPINGS
    return Hint(text, f"{made}({node}[{start!r} + str(i)] for i in range({n})))" if is_numbered else "")


def _axes_of_stack(stacks: TreeTable, stack: int, table: TreeTable, layer: int, n: int) -> set[int]:
    """Along which axes a subtree may be a stack: it has the structure of a layer, and in each array one axis more."""
    size, axes = int(table.end[layer]) - layer, set[int]()
    if int(stacks.end[stack]) - stack != size:
        return axes
    for i in range(size):
        whole, one = (of.facts[of.fact_codes[row + i]] for of, row in ((stacks, stack), (table, layer)))
        if whole.is_leaf != one.is_leaf or (i and stacks.key(stack + i).segment != table.key(layer + i).segment):
            return set()
        if one.is_leaf:
            if one.shape is None or whole.shape is None or one.dtype != whole.dtype:
                return set()
            fitting = {*_axes_of_layers(whole.shape, n, one.shape)}
            axes = axes & fitting if axes else fitting
            if not axes:
                return axes
    return axes


def _axes_of_layers(stack: tuple[int, ...], n: int, layer: tuple[int, ...]) -> list[int]:
    """Along which axes an array of a shape may be a stack of so many of another shape."""
    return [k for k in range(len(stack)) if stack[k] == n and stack[:k] + stack[k + 1 :] == layer]


def _stacking(axis: int) -> str:
    """Python of a function that stacks arrays."""
    return f"lambda *xs: jnp.stack(xs{f', axis={axis}' if axis else ''})"


# Siblings with another name, and subtrees that stand elsewhere, told by their fingerprints.


def renamed(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """Two of one structure below two parents in one place, the only ones, or of names that end alike.

    A single array must have a name that is alike; it may be transposed.
    """
    wanted, hints, texts = {at for at in rows if trees.kinds[at] in _ALONE}, dict[int, Hint](), dict[Any, Any]()
    nodes = trees.sides[0].nodes
    for mine, other, is_turned in _siblings(trees) if wanted else ():
        pairs = zip(mine.tolist(), other.tolist(), strict=True)
        own = [
            at[of].tolist()
            for at, of in zip(
                (*trees.at, trees.tables[0].parent, *trees.names), (mine, other, mine, mine, other), strict=True
            )
        ]
        are_large = (trees.count(0, mine) >= _LEAST).tolist()
        for pair, at, its, parent, *names, is_large in zip(pairs, *own, are_large, strict=True):
            is_dict = type(nodes[parent]) in MAPPINGS
            key = (*names, is_large, is_dict)
            if key not in texts:
                texts[key] = _renamed_texts(trees, pair, is_turned, is_dict, is_large)
            if texts[key] and at in wanted:
                code = partial(_renaming, trees.tables, pair, is_turned) if is_dict else ""
                hints[at] = Hint(texts[key][0], code)
            if texts[key] and its in wanted:
                hints[its] = texts[key][1]
        texts = {}
    return hints


def _siblings(trees: Trees) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """The rows that may be one under two names, and whether the one is the transpose of the other."""
    rows, above = [], []
    for side, table in enumerate(trees.tables):
        match = trees.counterparts[0][table.parent] if side == 0 else table.parent
        own = np.flatnonzero(trees.are_alone[side] & (table.parent >= 0) & (match != NONE))
        rows.append(own)
        above.append(_mixed(match[own]))
    for is_turned in (False, True):
        prints = [trees.transposed(0, rows[0]) if is_turned else trees.prints[0][rows[0]], trees.prints[1][rows[1]]]
        mine, other, several = _joined(*(_mixed(p + a) for p, a in zip(prints, above, strict=True)))
        pairs = np.column_stack([rows[0][mine], rows[1][other]])
        more = [
            pair
            for group in (several if not is_turned else ())
            if max(map(len, group)) <= _MOST_CHILDREN
            for pair in _named_alike(trees, *(of[[*each]].tolist() for of, each in zip(rows, group, strict=True)))
        ]
        pairs = np.concatenate([pairs, np.array(more, np.int64).reshape(-1, 2)])
        mine, other = pairs[trees.count(0, pairs[:, 0]) > 0].T
        is_free = ~(trees.have_moved[0][mine] | trees.have_moved[1][other])
        yield mine[is_free], other[is_free], is_turned
        for side in (0, 1):
            is_left = ~np.isin(rows[side], pairs[:, side])
            rows[side], above[side] = rows[side][is_left], above[side][is_left]


def _named_alike(trees: Trees, left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """Of several that may be each other's those of which the name of one ends with that of the other."""
    names = [[trees.tables[side].key(row).segment for row in rows] for side, rows in enumerate((left, right))]
    near = [[j for j, other in enumerate(names[1]) if _end_alike(name, other)] for name in names[0]]
    n_near = Counter(j for of in near for j in of)
    return [(left[i], right[of[0]]) for i, of in enumerate(near) if len(of) == 1 and n_near[of[0]] == 1]


def _renamed_texts(
    trees: Trees, rows: tuple[int, int], is_turned: bool, is_dict: bool, is_large: bool
) -> tuple[str, Hint] | None:
    mine, other = (table.key(row) for table, row in zip(trees.tables, rows, strict=True))
    if not is_large and not _are_alike(mine.segment, other.segment):
        return None
    are_indices = all(key.keystr == f"[{key.segment}]" for key in (mine, other))
    verb, turned = "moved" if are_indices and not is_dict else "renamed", ", and transposed" * is_turned
    return f"{verb} to {other.keystr}{turned}?", Hint(f"{verb} from {mine.keystr}{turned}?")


def _end_alike(one: str, other: str) -> bool:
    return one.endswith(other) or other.endswith(one)


def _are_alike(one: str, another: str) -> bool:
    """Whether the names, and not the shapes alone, say that one may be for the other: "kernel" for "weight"."""
    first, other = ("".join(word for word in words_of(name) if word not in _OF_ALL) for name in (one, another))
    if first and other:
        return _end_alike(first, other) or first.startswith(other) or other.startswith(first)
    return words_of(one)[-1] == words_of(another)[-1]


def _renaming(tables: tuple[TreeTable, TreeTable], rows: tuple[int, int], is_turned: bool) -> str:
    """Python that renames a child of a dict in the first tree."""
    node = tables[0][int(tables[0].parent[rows[0]])].expression
    old, new = (table.key(row).keystr for table, row in zip(tables, rows, strict=True))
    taken = f"{node}.pop({old[1:-1]})"
    if is_turned:
        order = transposing(tables[0][rows[0]].shape or (), tables[1][rows[1]].shape or ())
        taken = transpose_code(taken, order) if order else ""
    return f"{node}{new} = {taken}" if taken else ""


def elsewhere(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """The one other place of a subtree: of several leaves, or of a name or a structure as no other."""
    hints, rows = dict[int, Hint](), [at for at in rows if trees.kinds[at] in _STRUCTURAL]
    for side in (1, 0):  # the first tree says more
        own, alone = trees.own[side][rows], [np.flatnonzero(each) for each in trees.are_alone]
        orders = [
            each[np.argsort(prints[each], kind="stable")] for each, prints in zip(alone, trees.prints, strict=True)
        ]
        known = [prints[order] for prints, order in zip(trees.prints, orders, strict=True)]
        first, end = (np.searchsorted(known[1 - side], trees.prints[side][own], way) for way in ("left", "right"))
        for i in np.flatnonzero((own > 0) & (end > first) & (end <= first + 2)).tolist():
            at, row = rows[i], int(own[i])
            places = [row for row in orders[1 - side][first[i] : end[i]].tolist() if trees.pair(at)[1 - side] != row]
            if len(places) == 1 and _is_special(trees, side, row, places[0], known):
                hints[at] = Hint(
                    f"the same structure stands at {trees.tables[1 - side][places[0]].keystr} in the {_THERE[side]}"
                )
    return hints


def _is_special(trees: Trees, side: int, row: int, place: int, known: list[np.ndarray]) -> bool:
    """Whether its like elsewhere is no chance."""
    if trees.have_moved[side][row] or trees.count(side, row) >= _LEAST:
        return True
    above = trees.counterparts[side][trees.tables[side].parent[row]], trees.tables[1 - side].parent[place]
    if trees.tables[side].is_leaf[row] or above[0] == above[1] or not trees.count(side, row):
        return False
    mark = trees.prints[side][row]
    return all(np.diff(np.searchsorted(each, [mark, mark + np.uint64(1)]))[0] == 1 for each in known)


# Which array of one tree is which of another, by the words of their paths, in nodes or in names that hold whole paths.


class _Array(NamedTuple):
    """An array, or several of the shape that are layers.

    Attributes:
      rows: Of the array, or of each of the layers.
      words: Those of its path; for layers without their number.
    """

    rows: tuple[int, ...]
    words: tuple[str, ...]
    shape: tuple[int, ...]
    depth: int


class _Pair(NamedTuple):
    """An array of the first tree, and what it is in the other.

    Attributes:
      axes: Those along which one may be a stack of the others; none if these are no layers.
      shapes: Those of both; of layers and their stack that of one layer.
      is_sure: One has the path of the other as its name.
    """

    arrays: tuple[_Array, _Array]
    axes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    is_sure: bool = False

    @property
    def axis(self) -> int:
        return self.axes[0] if self.axes else 0


def same_words(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """Arrays whose paths end with the same words, also as layers of a stack or transposed, and where they stand.

    The first hint has the code that converts the whole tree, if every array of the other is found.
    """
    tables, owners = trees.tables, []
    for table, own in zip(tables, trees.own, strict=True):  # of each row the last difference around it
        owner = np.full(len(table), NONE)
        for at, kind in trees.kinds.items():
            if kind in _STRUCTURAL and own[at] != NONE:
                owner[own[at] : table.end[own[at]]] = at
        owners.append(np.where(_is_array(table), owner, NONE))
    inside = [np.flatnonzero(owner != NONE) for owner in owners]
    keys = [trees.names[side][each] for side, each in enumerate(inside)]
    last = {
        name: words_of(trees.segments[name])[-1] if name >= 0 else "0"
        for name in np.unique(np.concatenate(keys)).tolist()
    }
    if not any(map(str.isdecimal, last.values())):  # else a number may be left out, as of layers
        common = set.intersection(*({last[name] for name in np.unique(each).tolist()} for each in keys))
        may_pair = [name for name, word in last.items() if word in common]
        inside = [each[np.isin(own, may_pair)] for each, own in zip(inside, keys, strict=True)]
    if not all(_LEAST <= len(each) <= _MOST_ARRAYS for each in inside):
        return {}
    pairs = _pairs(*(_arrays(table, each.tolist()) for table, each in zip(tables, inside, strict=True)))
    if len(pairs) < _LEAST:
        return {}
    turned, hints = _turned(tables, pairs), dict[int, Hint]()
    for side, (owner, across) in enumerate(zip(owners, reversed(tables), strict=True)):
        found: dict[int, list[tuple[int, _Pair]]] = defaultdict(list)
        for pair in pairs:
            for row in pair.arrays[side].rows:
                found[int(owner[row])].append((row, pair))
        n_at = Counter(owner[owner != NONE].tolist())
        for at, each in found.items():
            hints.setdefault(at, Hint(_where(tables[side], across, side, n_at[at], sorted(each), turned)))
    first = min(hints)
    hints[first] = hints[first]._replace(code=_by_rule(trees, pairs, turned) or _code(trees, pairs, turned))
    return hints


def _where(own: TreeTable, across: TreeTable, side: int, n: int, inside: list[tuple[int, _Pair]], turned: Any) -> str:
    """Where the arrays of one difference stand in the other tree, of which it has so many."""
    there = _THERE[side]
    places = [(own[row].keystr, across[pair.arrays[1 - side].rows[0]].keystr, pair) for row, pair in inside]
    elsewhere = [each for each in places if own[each[2].arrays[side].rows[0]].keystr != each[1]]
    if not elsewhere:
        some = f"its {n:,} arrays" if len(inside) == n else f"{len(inside):,} of {n:,} arrays"
        return f"{some} stand at the same paths in the {there}" if n > 1 else ""
    shown, place, pair = elsewhere[0]
    n_layers, along = len(pair.arrays[1 - side].rows), f" along axis {pair.axis}" if pair.axis else ""
    how = f", as a layer of a stack{along}" if len(pair.arrays[side].rows) > 1 else ""
    how = f" of {n_layers} layers{along and f', stacked{along}'}" if n_layers > 1 else how
    if sorted(pair.shapes[0]) != sorted(pair.shapes[1]):
        how += f", as {subtree_text(across, pair.arrays[1 - side].rows[0])}"
    how += ", transposed" * (turned.get(pair) is True)
    if n == 1:
        return f"stands at {place} in the {there}{how}{'?' * (not pair.is_sure or 'transposed' in how)}"
    some = f"its {n:,} arrays stand" if len(elsewhere) == n else f"{len(elsewhere):,} of {n:,} arrays stand"
    return f"{some} elsewhere in the {there}: {shown} is {place}{how}?"


def _is_array(table: TreeTable) -> np.ndarray:
    """bool[n]: the rows of leaves with a shape."""
    return np.array([facts.is_leaf and facts.shape is not None for facts in table.facts])[table.fact_codes]


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, the last of which is the same for all that are called alike: kernel and weight."""
    *above, last = _WORDS.sub(".", name).lower().split(".")
    return (*above, _ALIKE.get(last, last))


def _arrays(table: TreeTable, rows: Iterable[int]) -> list[_Array]:
    rows = [row for row in rows if table.depth[row] <= _DEEPEST]
    names = [".".join(key.segment for key in table.path(row)) for row in rows]
    words, own = [*map(words_of, names)], [tuple(_WORDS.sub(".", name).lower().split(".")) for name in names]
    n = Counter(words)  # a kernel beside a scale is not called alike
    return [
        _Array((row,), a if n[a] == 1 else b, table.facts[table.fact_codes[row]].shape or (), int(table.depth[row]))
        for row, a, b in zip(rows, words, own, strict=True)
    ]


def _pairs(left: list[_Array], right: list[_Array]) -> list[_Pair]:
    """Arrays that are each other's by the ends of their paths and by their shapes; then stacks and their layers."""
    pairs = _by_ends(left, right)
    for side in (0, 1):
        taken = [{row for pair in pairs for row in pair.arrays[k].rows} for k in (0, 1)]
        rest = [
            [each for each in of if each.rows[0] not in done] for of, done in zip((left, right), taken, strict=True)
        ]
        rest[side] = _layers(rest[side])
        pairs += _by_ends(*rest)
    of_all = [{*pair.axes} for pair in pairs if pair.axes]
    common = set.intersection(*of_all) if of_all else set()  # most stacks have the layers of all arrays along one
    return [_pair(*pair.arrays, min(common or pair.axes)) or pair if pair.axes else pair for pair in pairs]


def _layers(arrays: list[_Array]) -> list[_Array]:
    """Those whose words differ by one number alone, together."""
    groups: dict[tuple, dict[int, int]] = defaultdict(dict)
    for each in arrays:
        for i, word in enumerate(each.words):
            if word.isdecimal() and len(word) < 6:
                groups[each.words[:i] + each.words[i + 1 :], each.shape, each.depth, i][int(word)] = each.rows[0]
    return [
        _Array(tuple(rows[i] for i in range(len(rows))), words, shape, depth)
        for (words, shape, depth, _), rows in groups.items()
        if len(rows) > 1 and rows.keys() == set(range(len(rows)))
    ]


def _by_ends(left: list[_Array], right: list[_Array]) -> list[_Pair]:
    """Pairs that have as many last words in common as make them the only two, and shapes that go together."""
    pairs: list[_Pair] = []
    columns = [zip(*(each.words for each in arrays), strict=False) for arrays in (left, right)]
    beginnings = [tuple(each[0] for each in takewhile(lambda each: len({*each}) == 1, of)) for of in columns]
    for n_words in range(max((len(each.words) for each in (*left, *right)), default=0), 0, -1):
        ends: list[dict[tuple[str, ...], list[_Array]]] = []
        for arrays in (left, right):
            ends.append(defaultdict(list))
            for each in arrays:
                if len(each.words) >= n_words:
                    ends[-1][each.words[-n_words:]].append(each)
        for end, mine in ends[0].items():
            one, another = _alone(mine), _alone(ends[1].get(end, []))
            if one and another and not all(word.isdecimal() for word in end):
                above = [each.words[:-n_words] for each in (one, another)]
                is_whole = not all(above) and all(
                    of == start[: len(of)] for of, start in zip(above, beginnings, strict=True)
                )
                pair = _pair(one, another, is_whole=is_whole and n_words > 1 and one.depth != another.depth)
                pairs += [pair] if pair else []
        taken = [{pair.arrays[side].rows for pair in pairs} for side in (0, 1)]
        left = [each for each in left if each.rows not in taken[0]]
        right = [each for each in right if each.rows not in taken[1]]
    return pairs


def _alone(arrays: list[_Array]) -> _Array | None:
    """The one array, or the one that is no average, and no state of an optimizer."""
    if len(arrays) > 1:
        arrays = [each for each in arrays if _COPIES.isdisjoint(each.words)]
    return arrays[0] if len(arrays) == 1 else None


def _pair(mine: _Array, other: _Array, axis: int | None = None, *, is_whole: bool = False) -> _Pair | None:
    """The pair, if the shapes go together; those of arrays of one path may be any."""
    layers, stack = (mine, other) if len(mine.rows) > 1 else (other, mine)
    n, layer = len(layers.rows), layers.shape
    if n == 1:
        fits = is_whole or other.shape in (mine.shape, mine.shape[::-1])
        return _Pair((mine, other), (), (mine.shape, other.shape), is_whole) if fits else None
    axes = sorted({k for each in (layer, layer[::-1]) for k in _axes_of_layers(stack.shape, n, each)})
    if not axes:
        return None
    axes = axes if axis is None else [axis]
    of_stack = stack.shape[: axes[0]] + stack.shape[axes[0] + 1 :]
    return _Pair((mine, other), tuple(axes), (layer, of_stack) if layers is mine else (of_stack, layer))


def _turned(tables: tuple[TreeTable, TreeTable], pairs: Sequence[_Pair]) -> dict[_Pair, bool | None]:
    """Whether the array of each pair is transposed; of a square one what holds for all others of its names, or None."""
    names = [
        tuple(
            re.split(r"[./]", table.key(each.rows[0]).segment)[-1]
            for table, each in zip(tables, pair.arrays, strict=True)
        )
        for pair in pairs
    ]
    of_names: dict[tuple[str, ...], set[bool]] = defaultdict(set)
    for pair, name in zip(pairs, names, strict=True):
        mine, other = pair.shapes
        if mine != mine[::-1] and sorted(mine) == sorted(other):
            of_names[name].add(mine != other)
    turned: dict[_Pair, bool | None] = {}
    for pair, name in zip(pairs, names, strict=True):
        (mine, other), of_others = pair.shapes, of_names[name]
        is_told = mine != other or mine != mine[::-1] or len(mine) < 2 or not of_others
        turned[pair] = (
            sorted(mine) == sorted(other) and mine != other
            if is_told
            else max(of_others)
            if len(of_others) == 1
            else None
        )
    return turned


# The code that converts the first tree.


def _by_rule(trees: Trees, pairs: Sequence[_Pair], turned: dict[_Pair, bool | None]) -> str:
    """Python that converts the first tree, if the names of one are the paths of the other to the letter."""
    for flat, (names, nested) in enumerate((trees.tables, trees.tables[::-1])):
        rows = {pair.arrays[flat].rows[0]: pair.arrays[1 - flat].rows[0] for pair in pairs}
        first = next(iter(rows))
        name, above = names.key(first).segment, int(names.parent[first])
        root, found = int(trees.counterparts[flat][above]), _SEPARATORS.search(name)
        if not found or root == NONE or any(turned.values()) or len({*rows.values()}) < len(pairs):
            continue
        separator, depth = found[1], int(nested.depth[root])
        paths = {own: separator.join(key.segment for key in nested.path(row)[depth:]) for own, row in rows.items()}
        prefix, arrays = (
            name.removesuffix(paths[first]),
            root + np.flatnonzero(_is_array(nested)[root : nested.end[root]]),
        )
        fits = all(
            names.parent[own] == above and names.key(own).segment == prefix + path for own, path in paths.items()
        )
        if not fits or {*rows.values()} != {*arrays.tolist()}:
            continue
        key = f"{prefix!r} + " * bool(prefix) + f"jax.tree_util.keystr(path, simple=True, separator={separator!r})"
        are_all, mine, its = trees.count(1 - flat, root) == len(rows), names[above].expression, nested[root].expression
        if flat == 0:
            taken = f"{mine}[{key}]" if are_all else f"{mine}.get({key}, x)"
            return f"jax.tree_util.tree_map_with_path(lambda path, x: {taken}, other{its.removeprefix(nested.name)})"
        some = "" if are_all else " if hasattr(x, 'shape')"
        return f"{{{key}: x for path, x in jax.tree_util.tree_leaves_with_path({its}){some}}}"
    return ""


def _code(trees: Trees, pairs: Sequence[_Pair], turned: dict[_Pair, bool | None]) -> str:
    """Python that makes the other tree of the arrays of the first, if all are known."""
    left, right = trees.tables
    np_ = "np" if any(type(node) is Stored for node in trees.sides[0].nodes) else "jnp"  # JAX takes no arrays in files
    sources: dict[int, str] = {}  # by the row of the other tree
    apart = np.zeros(len(trees.own[0]), bool)
    for at, kind in trees.kinds.items():
        if kind in _STRUCTURAL:
            apart[at : trees.aligned.end[at]] = True
    for mine, other in zip(*(own[~apart].tolist() for own in trees.own), strict=True):
        if right.is_leaf[other] and left[mine].shape == right[other].shape:
            sources[other] = left[mine].expression
    of_others: dict[int, set[tuple[int, ...]]] = defaultdict(set)  # orders of axes, by the number of these
    for pair in pairs:
        order = transposing(*pair.shapes)
        if turned[pair] and order:
            of_others[len(order)].add(order)
    for pair in pairs:
        rows, others = [left[row].expression for row in pair.arrays[0].rows], pair.arrays[1].rows
        order = transposing(*pair.shapes) or transposing(*pair.shapes, of_others[len(pair.shapes[0])])
        if turned[pair] is None or (turned[pair] and order is None) or sorted(pair.shapes[0]) != sorted(pair.shapes[1]):
            return ""
        form = transpose_code("{}", order, np_) if turned[pair] and order else "{}"
        if len(rows) > 1:
            of_layer, along = _with_index(rows), f", axis={pair.axis}" if pair.axis else ""
            stack = f"{np_}.stack([{form.format(of_layer)} for i in range({len(rows)})]{along})"
            sources[others[0]] = stack if of_layer else ""
        else:
            parts = [f"[{':, ' * pair.axis}{i}]" if len(others) > 1 else "" for i in range(len(others))]
            sources |= {row: form.format(rows[0] + part) for row, part in zip(others, parts, strict=True)}
    wanted = np.flatnonzero(_is_array(right)).tolist()
    keys = [right[row].keystr for row in wanted] if all(map(sources.get, wanted)) else ['"']
    if any(re.search(r"[\"\\{}]", key) for key in keys):
        return ""
    lines = _entries([(f'"{key}"', sources[row]) for key, row in zip(keys, wanted, strict=True)])
    inside = ",\n    ".join(lines)
    return (
        f"jax.tree_util.tree_map_with_path(lambda path, x, of={{\n    {inside},\n}}: "
        "of.get(jax.tree_util.keystr(path), x), other)"
        if len(lines) <= _MOST_LINES
        else ""
    )


def _entries(pairs: list[tuple[str, str]]) -> list[str]:
    """Entries of a dict; of those that differ by one number, from 0 on, there is one line for all."""
    groups: dict[tuple[str, str], dict[int, tuple[str, str]]] = defaultdict(dict)  # by what is around a number
    around = {
        pair: [(pair[0][: n.start()], pair[0][n.end() :]) for n in re.finditer(r"\d{1,6}", pair[0])] for pair in pairs
    }
    for pair, places in around.items():
        for before, after in places:
            groups[before, after][int(pair[0][len(before) : len(pair[0]) - len(after)])] = pair
    lines, done = [], set[tuple[str, str]]()
    for pair, places in around.items():
        for group in sorted(map(groups.__getitem__, places), key=len, reverse=True):
            if pair in done or len(group) < 2 or group.keys() != set(range(len(group))):
                continue
            members = [group[i] for i in range(len(group))]
            key, source = (_with_index([each[i] for each in members]) for i in (0, 1))
            if key and source and done.isdisjoint(members):
                lines.append(f"**{{{key}: {source} for i in range({len(members)})}}")
                done.update(members)
        if pair not in done:
            lines.append(f"{pair[0]}: {pair[1]}")
    return lines


def _with_index(texts: list[str]) -> str:
    """The Python of texts that differ by their index alone, with `i` in its place; "" of others."""
    parts = [re.split(r"(\d+)", text) for text in texts]
    if any(len(each) != len(parts[0]) for each in parts):
        return ""
    common = list(parts[0])
    for at, column in enumerate(zip(*parts, strict=True)):
        if len(set(column)) > 1:
            if column != tuple(map(str, range(len(texts)))):
                return ""
            common[at] = "\0"
    text = re.sub(r"\[((?::, )*)\0\]", r"[\1i]", "".join(common)) if texts[0][:1] != '"' else "".join(common)
    text = re.sub(r"""(["'])((?:(?!\1).)*\0(?:(?!\1).)*)\1""", lambda found: f"f{found[0]}", text)
    return "" if re.search(r"[\w)]\0", re.sub(r"f([\"']).*?\1", "", text)) else text.replace("\0", "{i}")


# What is tried, in this order: a hypothesis is asked of what those before it did not explain.

Hypothesis = Callable[[Trees, list[int]], dict[int, Hint]]
HYPOTHESES: tuple[Hypothesis, ...] = (elements, stacked, renamed, elsewhere, same_words)
