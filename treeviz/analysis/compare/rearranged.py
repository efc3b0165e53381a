"""One matcher of what was rearranged, not changed: renamed, moved, inserted, or layers against one stack of them.

A hypothesis is a function `(Trees, rows) -> {row: Hint}`. It gets the rows of differences without a hint and explains
some of them; it returns nothing if several explanations fit. `HYPOTHESES` lists them, the surest first. These rows are
aligned rows of both trees, as in `Aligned`; all other rows are rows of one tree.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import chain, combinations, islice, product, takewhile
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.aligned import MAPPINGS, NONE, Side
from treeviz.analysis.compare.difference import Difference, Differences, Hint, with_hint
from treeviz.analysis.compare.tree_diff import UNKNOWN, Found, subtree_text, transpose_code, transposing
from treeviz.analysis.compare.values import FLOATS, Gaps, Match, Part, Values, gap_texts
from treeviz.analysis.stats import host_view, lies_on_host
from treeviz.tree.runtime import computed_once, gc_paused
from treeviz.tree.stored import Stored
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.text import guarded, is_any

_ALONE = ("missing", "extra")
_STRUCTURAL = (*_ALONE, "type", "none", "leaf")
_KINDS = (*_STRUCTURAL, "length", "static", "shape")  # kinds of differences that a rearrangement may cause
_OF_ARRAYS = ("value", "NaN", "shape")
_MOST_CHILDREN = 500  # children of a node that are compared with each other
_MOST_ELEMENTS = 2_000  # of all lists that are searched for moved elements
_MOST_PLACES = 3  # that a hint names
_LEAST = 2  # leaves of a subtree that is matched by structure alone, and arrays matched by their names
_MOST_ARRAYS = 20_000
_MOST_PAIRS = 10_000  # of arrays that are compared by their names
_MOST_JOINED = 12  # arrays of like names, some of which may have been joined
_LIKE = 0.5  # share of values that two arrays have in common
_MOST_LINES = 60  # of code
_DEEPEST = 64  # levels: no name holds a longer path
_WORDS = re.compile(r"[./_\-]+|(?<=[a-zA-Z])(?=\d)")  # "layers_0", "layers0" and "layers/0" have the same words
_NUMBER = re.compile(r"\d+")
_SEPARATORS = re.compile(r"[^./]([./])[^./]")
_SYNONYMS = dict.fromkeys(("kernel", "scale", "embedding", "embeddings", "w", "gamma"), "weight") | {
    "b": "bias",
    "beta": "bias",
}
_OF_ALL = ("weight", "bias")  # last words of many names, which do not identify an array
_COPIES = {"ema", "shadow", "average", "avg", "opt", "optimizer", "mu", "nu", "momentum", "target"}
_THERE = ("other", "first")  # the name of the opposite tree
_ODD = np.uint64(0x9E3779B97F4A7C15)


@gc_paused()
def with_hints(
    left: Side,
    right: Side,
    found: Found,
    *,
    values: bool = True,
    rtol: float = 0.0,
    atol: float = 0.0,
    mapping: Mapping | Callable[[str], Any] | None = None,
    only_values: bool = False,
) -> Found:
    """The differences with hints about their causes, and those in values under other names; see `treeviz.diff`."""
    if set(_KINDS).isdisjoint(found.kinds) and not only_values:
        return found
    trees, hints = Trees(left, right, found, values), dict[int, Hint]()
    for hypothesis in HYPOTHESES:
        rows = [at for at in trees.kinds if at not in hints]
        if not rows:
            break
        new = {at: hint for at, hint in hypothesis(trees, rows).items() if hint.text}
        if any(hint.code for hint in new.values()):  # it converts as much as the code of earlier hints, or more
            hints |= {at: Hint(hints[at].text, new[at].code) for at in new.keys() & hints.keys()}
        hints |= {at: hint for at, hint in new.items() if at not in hints}
    differences, hinted = Differences(), set[int]()
    for at, kind, difference in zip(found.rows, found.kinds, found.differences, strict=True):
        gets_hint = at in hints and kind in _KINDS and at not in hinted and (kind != "type" or not difference.hint)
        differences.append(with_hint(difference, hints[at]) if gets_hint else difference)
        if gets_hint:
            hinted.add(at)
    found = found._replace(differences=differences)
    if not values:
        return found
    pairs = None
    if only_values:  # arrays that have a counterpart with other values are matched again
        both = {trees.pair(at): at for at, kind in zip(found.rows, found.kinds, strict=True) if kind in _OF_ARRAYS}
        pairs = [
            pair
            for pair in both
            if all(t.facts[t.fact_codes[row]].shape is not None for t, row in zip(trees.tables, pair, strict=True))
        ]
        for alone, own in zip(trees.are_alone, zip(*pairs, strict=True), strict=False):
            alone[[*own]] = True
    dtypes = {FLOATS[it.dtype] for table in trees.tables for it in table.facts if it.dtype in FLOATS}
    arrays = Values((left.nodes, right.nodes), dtypes)
    matches = same_values(trees, arrays, [] if mapping is None else given_matches(trees, arrays, mapping), pairs)
    mapped = [gap for match in matches for gap in arrays.compare(match, rtol, atol)]
    return _with_mapped(trees, found._replace(mapped=mapped, matches=matches), only_values)


def _with_mapped(trees: Trees, found: Found, only_values: bool) -> Found:
    """The differences, or with `only_values` none, and those of arrays that have other names in the other tree."""
    rows, unknown, gaps = [*zip(found.rows, found.kinds, found.differences, strict=True)], {**found.not_compared}, {}
    rows = [it for it in rows if it[1] == "error" or not only_values]
    mapped, paths = found.mapped, [table.keystrs() for table in trees.tables]
    for row, other, gap, text in mapped:
        at = int(trees.at[0][row])
        place = f"is {paths[1](other)} in the other{', ' * bool(text)}{text}"
        if isinstance(gap, str):
            unknown[at] = gap
        elif gap is not None:
            for kind, a, b, hint in gap_texts(gap):
                hint = "; ".join(filter(None, (hint, place)))
                rows.append((at, kind, Difference(paths[0](row), kind, a, b, hint, found.tree)))
            gap.at = gap.nan_at = ()  # in another layout
            if at in gaps:  # another layer of a stack
                gaps[at].take(gap)
            gaps.setdefault(at, gap)
    for side, kind in enumerate(("missing", "extra") if only_values else ()):
        table, known = trees.tables[side], {gap[side] for gap in mapped}
        for row in np.flatnonzero(trees.are_alone[side] & _is_array(table)).tolist():
            at = int(max(trees.at[side][row], trees.at[side][table.parent[row]], 0))
            if (kind_of_leaf := table.facts[table.fact_codes[row]].kind) in UNKNOWN:
                unknown[at] = kind_of_leaf
            elif row not in known:
                text = subtree_text(table, row)
                rows.append(
                    (at, kind, Difference(paths[side](row), kind, text * (1 - side), text * side, "", found.tree))
                )
    rows.sort(key=lambda it: it[0])
    return found._replace(
        differences=Differences(it[2] for it in rows),
        kinds=[it[1] for it in rows],
        rows=[it[0] for it in rows],
        gaps=Gaps(gaps, []) if only_values else found.gaps.with_more(gaps),
        not_compared=unknown,
    )


class Trees:
    """What hypotheses need from two trees. Attributes from `at` on have one array for each tree.

    Attributes:
      kinds: The kind of the first difference in each aligned row that has one.
      at: int[n]: the aligned row of each row; -1 below the right one of two nodes that are not compared inside.
      counterparts: int[n]: the opposite row of each row, or -1.
      are_alone: bool[n]: rows without a counterpart, or with one of another structure.
      names: int[n]: equal numbers for equal segments of a path; negative for an index.
      n_leaves: int[n + 1]: how many leaves come before each row.
    """

    def __init__(self, left: Side, right: Side, found: Found, values: bool) -> None:
        self.sides, self.tables, self.values = (left, right), (left.table, right.table), values
        self.found, self.aligned = found, found.aligned
        self.own = found.aligned.left, found.aligned.right
        pairs = zip(reversed(found.rows), reversed(found.kinds), strict=True)
        self.kinds = dict(reversed([(at, kind) for at, kind in pairs if kind in _KINDS]))
        is_opened = np.zeros(len(self.own[0]), bool)  # nodes of different kinds, whose children are aligned
        is_opened[found.aligned.parent[1:][(self.own[0] != NONE)[1:] & (self.own[1] != NONE)[1:]]] = True
        self.apart = apart = [at for at, kind in self.kinds.items() if kind in _STRUCTURAL and not is_opened[at]]
        self.at, self.counterparts, self.are_alone, self.names = [], [], [], []
        segments: dict[str, int] = {}
        for table, own, across in zip(self.tables, self.own, reversed(self.own), strict=True):
            rows = np.flatnonzero(own != NONE)
            at, match = np.full(len(table), NONE), np.full(len(table), NONE)
            at[own[rows]], match[own[rows]] = rows, across[rows]
            is_alone = match == NONE
            is_alone[table.parent[np.flatnonzero(match > 0)]] = False  # a node whose only leaf is aligned with a leaf
            is_alone[own[apart][own[apart] != NONE]] = True
            key_names = np.array([segments.setdefault(key.segment, len(segments)) for key in table.keys])
            self.at.append(at)
            self.counterparts.append(match)
            self.are_alone.append(is_alone)
            self.names.append(
                np.where(table.key_codes == 0, ~table.position.astype(np.int64), key_names[table.key_codes])
            )
        self.segments = [*segments]
        self.n_leaves = [np.append(0, np.cumsum(table.is_leaf)) for table in self.tables]

    def pair(self, at: int) -> tuple[int, int]:
        return int(self.own[0][at]), int(self.own[1][at])

    def count(self, side: int, rows: Any) -> Any:
        """How many leaves one or several subtrees have."""
        return self.n_leaves[side][self.tables[side].end[rows]] - self.n_leaves[side][rows]

    @computed_once
    def prints(self) -> list[np.ndarray]:
        """uint64[n] for each tree: a fingerprint of types, keys, shapes and dtypes of each subtree, without its key."""
        known = self._fact_codes
        prints = []
        for table, names in zip(self.tables, self.names, strict=True):
            own = np.array([known[_plain(facts)] for facts in table.facts])[table.fact_codes]
            n_children = np.bincount(table.parent[1:], minlength=len(table))
            inside = _mix(_mix(own) + _mix(names) * _ODD + n_children.astype(np.uint64))
            power, back = (
                np.cumprod(np.full(len(table), factor, np.uint64)) for factor in (_ODD, pow(int(_ODD), -1, 1 << 64))
            )
            sums = np.append(np.uint64(0), np.cumsum(inside * power))
            prints.append(_mix(own) + (sums[table.end] - sums[1:]) * back)
        return prints

    @computed_once
    def _fact_codes(self) -> dict[Any, int]:
        facts = (_plain(facts) for table in self.tables for facts in table.facts)
        return {plain: code for code, plain in enumerate(dict.fromkeys(facts))}

    def transposed(self, side: int, rows: np.ndarray) -> np.ndarray:
        """The fingerprints of the transposes of arrays; 0 for other rows."""
        table = self.tables[side]
        plains = [
            _plain(f._replace(shape=f.shape[::-1])) if f.is_leaf and f.shape and f.shape != f.shape[::-1] else ()
            for f in table.facts
        ]
        codes = np.array([self._fact_codes.get(plain, -1) for plain in plains])
        prints = np.where(codes < 0, np.uint64(0), _mix(codes))
        return prints[table.fact_codes[rows]]

    def marks(self, side: int, rows: Sequence[int], values: bool) -> list[Any]:
        """What distinguishes elements of lists: their structure, and the first values if these are quick to read."""
        return [(int(self.prints[side][row]), values and _first_values(self.sides[side], row)) for row in rows]

    @computed_once
    def have_moved(self) -> list[np.ndarray]:
        """bool[n] for each tree: the rows that moved: each tree has their name and structure once, elsewhere."""
        words = [words_of(segment)[0] for segment in self.segments]
        identifies = np.array([not (word.isdecimal() or word in _OF_ALL) for word in words])
        rows, keys, moved = [], [], [np.zeros(len(table), bool) for table in self.tables]
        for alone, names, prints in zip(self.are_alone, self.names, self.prints, strict=True):
            rows.append(chosen := np.flatnonzero(alone & (names >= 0) & identifies[np.maximum(names, 0)]))
            keys.append(_mix(prints[chosen] + _mix(names[chosen])))
        for own, chosen, once in zip(moved, rows, _match_keys(*keys)[:2], strict=True):
            own[chosen[once]] = True
        return moved


def _plain(facts: Any) -> Any:
    return (facts.shape, facts.dtype, "" if facts.shape else facts.type) if facts.is_leaf else facts.type


def _mix(numbers: np.ndarray) -> np.ndarray:
    """uint64[n]: numbers that look random, equal for equal ones (splitmix64)."""
    x = numbers.astype(np.uint64) + _ODD
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _match_keys(
    left: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[tuple[list[int], list[int]]]]:
    """The indices of keys that each side has once, in one order; and the indices of each other key that both have."""
    _, codes = np.unique(np.concatenate([left, right]), return_inverse=True)
    groups = codes[: len(left)], codes[len(left) :]
    n_left, n_right = (np.bincount(group, minlength=int(codes.max(initial=0)) + 1) for group in groups)
    orders = [np.argsort(group, kind="stable") for group in groups]
    once = [order[((n_left == 1) & (n_right == 1))[group[order]]] for order, group in zip(orders, groups, strict=True)]
    several = np.flatnonzero((n_left > 0) & (n_right > 0) & (n_left + n_right > 2))
    ends = np.cumsum(n_left), np.cumsum(n_right)
    both = [*zip(orders, ends, (n_left, n_right), strict=True)]
    rest = [tuple(order[end[i] - n[i] : end[i]].tolist() for order, end, n in both) for i in several.tolist()]
    return once[0], once[1], rest


# Elements of a list that moved inside the list, and those that were inserted or removed


def elements(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """Layers that were shifted, swapped, inserted or removed: the first difference in each says where it is."""
    differing, hints, n_left, end = np.array(sorted(rows)), dict[int, Hint](), _MOST_ELEMENTS, 0
    both = np.flatnonzero((trees.own[0] != NONE) & (trees.own[1] != NONE))
    for table, own in zip(trees.tables, trees.own, strict=True):
        first = own[both] + 1
        both = both[(table.end[own[both]] > first) & (np.append(table.key_codes, 1)[first] == 0)]  # an index: a list
    for at in both[np.searchsorted(differing, trees.aligned.end[both]) > np.searchsorted(differing, both)].tolist():
        pair = trees.pair(at)
        lists = [table.children(row) for table, row in zip(trees.tables, pair, strict=True)]
        n = len(lists[0])
        if at < end or max(map(len, lists)) > _MOST_CHILDREN:
            continue
        if n != len(lists[1]):
            left, right = (trees.marks(side, children, trees.values) for side, children in enumerate(lists))
            hints |= {at: Hint(_inserted(left, right))} if trees.kinds.get(at) == "length" else {}
            continue
        n_left -= n
        if n_left < 0:
            break
        for is_sure in (True, False):
            left, right = (trees.marks(side, children, is_sure and trees.values) for side, children in enumerate(lists))
            places = _places(left, right, [_has_arrays(trees.tables[0], row) for row in lists[0]], is_sure)
            if places:
                code = _moving_code(places, trees.tables[0][pair[0]].expression, type(trees.sides[0].nodes[pair[0]]), n)
                hints |= _moved_hints(places, children_of(trees.aligned.end, at), trees, differing, is_sure, code)
                end = int(trees.aligned.end[at])  # inside, different elements are compared with each other
                break
    return hints


def _first_values(side: Side, row: int) -> tuple[Any, ...]:
    """The first values of the first leaves of a subtree, if they are quick to read."""

    def first_values(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and lies_on_host(leaf) and len(leaf.sharding.device_set) == 1:
            leaf = host_view(leaf)
        if type(leaf) is np.ndarray:
            return leaf.flat[:8].tobytes()
        return leaf if is_any(type(leaf), (int, float, str)) else None

    rows = islice(filter(side.table.is_leaf.__getitem__, range(row, int(side.table.end[row]))), 16)
    return tuple(guarded(lambda leaf=side.nodes[row]: first_values(leaf), lambda _: None) for row in rows)


def _has_arrays(table: TreeTable, row: int) -> bool:
    """Whether a subtree has arrays: many elements without arrays are identical."""
    return any(table.facts[code].shape for code in np.unique(table.fact_codes[row : table.end[row]]).tolist())


def _inserted(left: list[Any], right: list[Any]) -> str:
    n = min(len(left), len(right))
    if left[:n] == right[:n]:
        return ""
    changes = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    changes = [change for change in changes if change[0] != "equal"]
    kinds = {kind for kind, *_ in changes}
    if len(changes) > _MOST_PLACES or kinds not in ({"insert"}, {"delete"}):
        return ""
    is_new = kinds == {"insert"}
    places = [change[3:] if is_new else change[1:3] for change in changes]
    text = ", ".join(f"[{start}]" if end == start + 1 else f"[{start}:{end}]" for start, end in places)
    return f"{'inserted' if is_new else 'removed'} at {text}?"


def _places(left: list[Any], right: list[Any], have_arrays: list[bool], is_sure: bool) -> dict[int, int]:
    """Where elements moved: all of them in a rotation, or those with exactly one equal element elsewhere."""
    n, differ = len(left), [i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
    if not differ or not (is_sure or any(have_arrays[i] for i in differ)):
        return {}
    for k in sorted(range(1, n), key=lambda k: min(k, n - k)):
        if left[0] == right[k] and left == right[k:] + right[:k]:
            return {i: (i + k) % n for i in range(n)}
    n_left, n_right = Counter(left[i] for i in differ), Counter(right[i] for i in differ)
    at: dict[Any, list[int]] = {}
    for i in reversed(differ):
        at.setdefault(right[i], []).append(i)
    if n_left == n_right:  # a permutation
        return {i: at[left[i]].pop() for i in differ}
    unique = (i for i in differ if have_arrays[i] and n_left[left[i]] == n_right[left[i]] == 1)
    return {i: at[left[i]][0] for i in unique}


def _moved_hints(
    places: dict[int, int], children: list[int], trees: Trees, differing: np.ndarray, is_sure: bool, code: str
) -> dict[int, Hint]:
    come_from, hints = {to: i for i, to in places.items()}, {}
    first = np.append(differing, NONE)[np.searchsorted(differing, children)].tolist()  # the next difference
    for i, to in sorted(places.items()):
        if NONE != (at := first[i]) < trees.aligned.end[children[i]]:
            place = "" if at == children[i] else f"[{i}]"
            text = f"{place} moved to [{to}]".lstrip()
            text += f", and [{come_from[i]}] to {place or 'here'}" if i in come_from else ""
            hints[at], code = Hint(text + "?" * (not is_sure), code), ""
    return hints


def _moving_code(places: dict[int, int], node: str, cls: type, n: int) -> str:
    if (cls is not list and cls is not tuple) or sorted(places) != sorted(places.values()):
        return ""
    order = [*({i: i for i in range(n)} | {to: i for i, to in places.items()}).values()]
    start = order[0]
    if order == [*range(start, n), *range(start)]:
        return f"{node}[{start}:] + {node}[:{start}]"
    return f"type({node})({node}[i] for i in {order})"


# Layers in one tree, and one stack of them in the other


def stacked(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """A list or dict of layers in one tree; in the other, one node whose arrays have one more axis."""
    hints, parents = {}, trees.tables[0].parent
    for at in rows:
        (left, right), hint = trees.pair(at), None
        if trees.kinds[at] in _STRUCTURAL and NONE not in (left, right):
            hint = _as_stack(trees, 0, left, right) or _as_stack(trees, 1, right, left)
        if not hint and left > 0 and parents[left] == left - 1 and trees.kinds[at] in _STRUCTURAL:
            hint = _as_stack(trees, 0, left - 1, int(trees.counterparts[0][left - 1]), is_list=False)
        hints.update({at: hint} if hint else {})
    return hints


def _as_stack(trees: Trees, side: int, row: int, stack: int, *, is_list: bool = True) -> Hint | None:
    """The hint that a node of the other tree is a stack of the children of a node, if it is."""
    table, layers = trees.tables[side], trees.tables[side].children(row)
    n, prints = len(layers), trees.prints[side]
    if stack == NONE or n < 2 or len({*prints[layers].tolist()}) > 1:
        return None
    axes = _axes_of_stack(trees.tables[1 - side], stack, table, layers[0], n)
    if not axes:
        return None
    axis, node = min(axes), trees.tables[0][stack if side else row].expression
    along = f" along axis {axis}" if axis else ""
    made = f"jax.tree.map(lambda *xs: jnp.stack(xs{f', axis={axis}' if axis else ''}), *"
    text = f"{n} layers in the {_THERE[1 - side]}, and one stack of {n} such layers{along} in the {_THERE[side]}"
    if side == 1:
        code = f"[jax.tree.map(lambda x: x[{':, ' * axis}i], {node}) for i in range({n})]"
        return Hint(f"{text}, as made by {made}layers)", code)
    if is_list:
        return Hint(f"{text}, as made by {made}layers)", f"{made}{node})")
    names = [table.key(layer).segment for layer in layers]
    start = names[0].rstrip("0123456789")
    is_numbered = set(names) == {f"{start}{i}" for i in range(n)} and is_any(type(trees.sides[0].nodes[row]), MAPPINGS)
    return Hint(text, f"{made}({node}[{start!r} + str(i)] for i in range({n})))" if is_numbered else "")


def _axes_of_stack(stacks: TreeTable, stack: int, table: TreeTable, layer: int, n: int) -> set[int]:
    """The axes along which a subtree may be a stack: its structure is a layer's, its arrays have one more axis."""
    size, axes = int(table.end[layer]) - layer, set[int]()
    for i in range(size if int(stacks.end[stack]) - stack == size else 0):
        whole, one = (t.facts[t.fact_codes[row + i]] for t, row in ((stacks, stack), (table, layer)))
        if whole.is_leaf != one.is_leaf or (i and stacks.key(stack + i).segment != table.key(layer + i).segment):
            return set()
        if one.is_leaf:
            are_alike = one.shape is not None and whole.shape is not None and one.dtype == whole.dtype
            fitting = {*_axes_of_layers(whole.shape, n, one.shape)} if are_alike else set()  # type: ignore[arg-type]
            if not (axes := axes & fitting if axes else fitting):
                break
    return axes


def _axes_of_layers(stack: tuple[int, ...], n: int, layer: tuple[int, ...]) -> list[int]:
    """The axes along which an array may be a stack of `n` layers, by their shapes."""
    return [k for k in range(len(stack)) if stack[k] == n and stack[:k] + stack[k + 1 :] == layer]


# Renamed siblings and moved subtrees, found by their fingerprints


def renamed(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """Renamed children of one parent: the only two of one structure, or with names that end in the same way.

    A single array must have a similar name; it may be transposed.
    """
    wanted, hints, texts = {at for at in rows if trees.kinds[at] in _ALONE}, dict[int, Hint](), dict[Any, Any]()
    nodes = trees.sides[0].nodes
    for left, right, is_turned in _siblings(trees) if wanted else ():
        arrays = (*trees.at, trees.tables[0].parent, *trees.names)
        columns = [array[own].tolist() for array, own in zip(arrays, (left, right, left, left, right), strict=True)]
        columns += [left.tolist(), right.tolist(), (trees.count(0, left) >= _LEAST).tolist()]
        for at, other_at, parent, *names, left_row, right_row, is_large in zip(*columns, strict=True):
            pair, is_dict = (left_row, right_row), is_any(type(nodes[parent]), MAPPINGS)
            key = (*names, is_large, is_dict)
            if key not in texts:
                texts[key] = _renamed_texts(trees, pair, is_turned, is_dict, is_large)
            if texts[key] and at in wanted:
                code = partial(_renaming, trees.tables, pair, is_turned) if is_dict else ""
                hints[at] = Hint(texts[key][0], code)
            if texts[key] and other_at in wanted:
                hints[other_at] = texts[key][1]
        texts = {}
    return hints


def _siblings(trees: Trees) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Pairs of rows that may be one child under two names, and whether one is the transpose of the other."""
    rows, parents = [], []
    for side, table in enumerate(trees.tables):
        match = trees.counterparts[0][table.parent] if side == 0 else table.parent
        own = np.flatnonzero(trees.are_alone[side] & (table.parent >= 0) & (match != NONE))
        rows.append(own)
        parents.append(_mix(match[own]))
    for is_turned in (False, True):
        prints = [trees.transposed(0, rows[0]) if is_turned else trees.prints[0][rows[0]], trees.prints[1][rows[1]]]
        left, right, several = _match_keys(*(_mix(p + a) for p, a in zip(prints, parents, strict=True)))
        pairs = np.column_stack([rows[0][left], rows[1][right]])
        groups = [group for group in several if max(map(len, group)) <= _MOST_CHILDREN] if not is_turned else []
        in_groups = ([own[[*indices]].tolist() for own, indices in zip(rows, group, strict=True)] for group in groups)
        named = [pair for group in in_groups for pair in _matched_by_ends(trees, *group)]
        pairs = np.concatenate([pairs, np.array(named, np.int64).reshape(-1, 2)])
        left, right = pairs[trees.count(0, pairs[:, 0]) > 0].T
        is_free = ~(trees.have_moved[0][left] | trees.have_moved[1][right])
        yield left[is_free], right[is_free], is_turned
        for side in (0, 1):
            is_left = ~np.isin(rows[side], pairs[:, side])
            rows[side], parents[side] = rows[side][is_left], parents[side][is_left]


def _matched_by_ends(trees: Trees, left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """The pairs of siblings in which one name ends with the other."""
    names = [[trees.tables[side].key(row).segment for row in rows] for side, rows in enumerate((left, right))]
    others = [*zip(right, names[1], strict=True)]
    candidates = [[row for row, other in others if _ends_match(name, other)] for name in names[0]]
    n_times = Counter(chain.from_iterable(candidates))
    matches = zip(left, candidates, strict=True)
    return [(row, rows[0]) for row, rows in matches if len(rows) == 1 and n_times[rows[0]] == 1]


def _renamed_texts(
    trees: Trees, rows: tuple[int, int], is_turned: bool, is_dict: bool, is_large: bool
) -> tuple[str, Hint] | None:
    left, right = (table.key(row) for table, row in zip(trees.tables, rows, strict=True))
    words = [words_of(key.segment) for key in (left, right)]
    one, other = ("".join(word for word in own if word not in _OF_ALL) for own in words)
    may_match = one and other and (_ends_match(one, other) or one.startswith(other) or other.startswith(one))
    if not is_large and not (may_match if one and other else words[0][-1] == words[1][-1]):
        return None  # names of different arrays, unlike "kernel" and "weight"
    are_indices = all(key.keystr == f"[{key.segment}]" for key in (left, right))
    verb, suffix = "moved" if are_indices and not is_dict else "renamed", ", and transposed" * is_turned
    return f"{verb} to {right.keystr}{suffix}?", Hint(f"{verb} from {left.keystr}{suffix}?")


def _ends_match(left: str, right: str) -> bool:
    return left.endswith(right) or right.endswith(left)


def _renaming(tables: tuple[TreeTable, TreeTable], rows: tuple[int, int], is_turned: bool) -> str:
    node = tables[0][int(tables[0].parent[rows[0]])].expression
    old, new = (table.key(row).keystr for table, row in zip(tables, rows, strict=True))
    popped = f"{node}.pop({old[1:-1]})"
    if is_turned:
        order = transposing(tables[0][rows[0]].shape or (), tables[1][rows[1]].shape or ())
        popped = transpose_code(popped, order) if order else ""
    return f"{node}{new} = {popped}" if popped else ""


def elsewhere(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """The only other place of a subtree that has several leaves, or a unique name or structure."""
    hints, rows = dict[int, Hint](), sorted({*rows} & {*trees.apart})
    for side in (1, 0):  # the hint of the first tree wins
        own, orders = trees.own[side][rows], []
        for alone, prints in zip(trees.are_alone, trees.prints, strict=True):
            rows_alone = np.flatnonzero(alone)
            orders.append(rows_alone[np.argsort(prints[rows_alone], kind="stable")])
        known = [prints[order] for prints, order in zip(trees.prints, orders, strict=True)]
        first, end = (np.searchsorted(known[1 - side], trees.prints[side][own], way) for way in ("left", "right"))
        for i in np.flatnonzero((own > 0) & (end > first) & (end <= first + 2)).tolist():
            at, row = rows[i], int(own[i])
            places = [row for row in orders[1 - side][first[i] : end[i]].tolist() if trees.pair(at)[1 - side] != row]
            if len(places) == 1 and _is_special(trees, side, row, places[0], known):
                hints[at] = Hint(
                    f"the same structure is at {trees.tables[1 - side][places[0]].keystr} in the {_THERE[side]}"
                )
    return hints


def _is_special(trees: Trees, side: int, row: int, place: int, known: list[np.ndarray]) -> bool:
    """Whether an equal subtree elsewhere is not a coincidence."""
    if trees.have_moved[side][row] or trees.count(side, row) >= _LEAST:
        return True
    above = trees.counterparts[side][trees.tables[side].parent[row]], trees.tables[1 - side].parent[place]
    if trees.tables[side].is_leaf[row] or above[0] == above[1] or not trees.count(side, row):
        return False
    fingerprint = trees.prints[side][row]
    return all(np.diff(np.searchsorted(prints, [fingerprint, fingerprint + np.uint64(1)]))[0] == 1 for prints in known)


# Arrays of both trees, matched by the words of their paths, in nodes or in names that hold whole paths


class _Array(NamedTuple):
    """An array, or layers of one shape."""

    rows: tuple[int, ...]  # of the array, or of each layer
    words: tuple[str, ...]  # of its path; for layers without their number
    shape: tuple[int, ...]
    depth: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class _Pair(NamedTuple):
    """An array of the first tree and its counterpart in the other."""

    arrays: tuple[_Array, _Array]
    axes: tuple[int, ...]  # along which one may be a stack of the other's layers; empty without layers
    shapes: tuple[tuple[int, ...], tuple[int, ...]]  # of both; for layers and their stack those of one layer
    is_sure: bool = False  # the name of one is the path of the other

    @property
    def axis(self) -> int:
        return self.axes[0] if self.axes else 0


def same_words(trees: Trees, rows: list[int]) -> dict[int, Hint]:
    """Arrays whose paths end with the same words, also as layers of a stack or transposed. The first hint has code that
    converts the whole tree if every array is found.
    """
    tables, owners = trees.tables, []
    for table, own in zip(tables, trees.own, strict=True):  # for each row the last difference around it
        owner = np.full(len(table), NONE)
        for at in trees.apart:
            if own[at] != NONE:
                owner[own[at] : table.end[own[at]]] = at
        owners.append(np.where(_is_array(table), owner, NONE))
    inside = [np.flatnonzero(owner != NONE) for owner in owners]
    keys = [trees.names[side][rows] for side, rows in enumerate(inside)]
    last = {
        name: words_of(trees.segments[name])[-1] if name >= 0 else "0"
        for name in np.unique(np.concatenate(keys)).tolist()
    }
    if not any(map(str.isdecimal, last.values())):  # else a number may be left out, as of layers
        common = set.intersection(*({last[name] for name in np.unique(rows).tolist()} for rows in keys))
        may_pair = [name for name, word in last.items() if word in common]
        inside = [rows[np.isin(own, may_pair)] for rows, own in zip(inside, keys, strict=True)]
    if not all(_LEAST <= len(rows) <= _MOST_ARRAYS for rows in inside):
        return {}
    pairs = _pairs(*(_arrays(table, rows.tolist()) for table, rows in zip(tables, inside, strict=True)))
    if len(pairs) < _LEAST:
        return {}
    turned, hints = _turned(tables, pairs), dict[int, Hint]()
    for side, (owner, across) in enumerate(zip(owners, reversed(tables), strict=True)):
        pairs_at: dict[int, list[tuple[int, _Pair]]] = defaultdict(list)
        for pair in pairs:
            for row in pair.arrays[side].rows:
                pairs_at[int(owner[row])].append((row, pair))
        n_at = Counter(owner[owner != NONE].tolist())
        for at, inside_it in pairs_at.items():
            hints.setdefault(at, Hint(_location_text(tables[side], across, side, n_at[at], sorted(inside_it), turned)))
    first = min(hints)
    hints[first] = hints[first]._replace(code=_by_rule(trees, pairs, turned) or _code(trees, pairs, turned))
    return hints


def _location_text(
    own: TreeTable, across: TreeTable, side: int, n: int, inside: list[tuple[int, _Pair]], turned: Any
) -> str:
    """Where the `n` arrays of one difference are in the other tree."""
    there = _THERE[side]
    places = [(own[row].keystr, across[pair.arrays[1 - side].rows[0]].keystr, pair) for row, pair in inside]
    elsewhere = [entry for entry in places if own[entry[2].arrays[side].rows[0]].keystr != entry[1]]
    if not elsewhere:
        some = f"its {n:,} arrays" if len(inside) == n else f"{len(inside):,} of {n:,} arrays"
        return f"{some} are at the same paths in the {there}" if n > 1 else ""
    shown, place, pair = elsewhere[0]
    n_layers, along = len(pair.arrays[1 - side].rows), f" along axis {pair.axis}" if pair.axis else ""
    details = f", as a layer of a stack{along}" if len(pair.arrays[side].rows) > 1 else ""
    details = f" of {n_layers} layers{along and f', stacked{along}'}" if n_layers > 1 else details
    if sorted(pair.shapes[0]) != sorted(pair.shapes[1]):
        details += f", as {subtree_text(across, pair.arrays[1 - side].rows[0])}"
    details += ", transposed" * (turned.get(pair) is True)
    if n == 1:
        return f"is at {place} in the {there}{details}{'?' * (not pair.is_sure or 'transposed' in details)}"
    some = f"its {n:,} arrays are" if len(elsewhere) == n else f"{len(elsewhere):,} of {n:,} arrays are"
    return f"{some} elsewhere in the {there}: {shown} is {place}{details}?"


def _is_array(table: TreeTable) -> np.ndarray:
    """bool[n]: the rows of leaves with a shape."""
    return np.array([facts.is_leaf and facts.shape is not None for facts in table.facts])[table.fact_codes]


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name; synonyms have the same last word: kernel and weight."""
    *above, last = _WORDS.sub(".", name).lower().split(".")
    return (*above, _SYNONYMS.get(last, last))


def _arrays(table: TreeTable, rows: Iterable[int]) -> list[_Array]:
    rows = [row for row in rows if table.depth[row] <= _DEEPEST]
    names = [".".join(key.segment for key in table.path(row)) for row in rows]
    words, own = [*map(words_of, names)], [tuple(_WORDS.sub(".", name).lower().split(".")) for name in names]
    n = Counter(words)  # a kernel next to a scale is not a synonym of it
    shapes = (table.facts[code].shape or () for code in table.fact_codes[rows].tolist())
    words = (a if n[a] == 1 else b for a, b in zip(words, own, strict=True))
    return [*map(_Array, ((row,) for row in rows), words, shapes, table.depth[rows].tolist())]


def _pairs(left: list[_Array], right: list[_Array]) -> list[_Pair]:
    """Match arrays by the ends of their paths and their shapes; then stacks and their layers."""
    pairs = _by_ends(left, right)
    for side in (0, 1):
        rest = []
        for k, arrays in enumerate((left, right)):
            taken = {row for pair in pairs for row in pair.arrays[k].rows}
            rest.append([array for array in arrays if array.rows[0] not in taken])
        rest[side] = _layers(rest[side])
        pairs += _by_ends(*rest)
    axes = [{*pair.axes} for pair in pairs if pair.axes]
    common = set.intersection(*axes) if axes else set()  # most models stack all arrays along one axis
    return [_pair(*pair.arrays, min(common or pair.axes)) or pair if pair.axes else pair for pair in pairs]


def _layers(arrays: list[_Array]) -> list[_Array]:
    """Groups of arrays whose words differ only in one number."""
    groups: dict[tuple, dict[int, int]] = defaultdict(dict)
    for array in arrays:
        for i, word in enumerate(array.words):
            if word.isdecimal() and len(word) < 6:
                groups[array.words[:i] + array.words[i + 1 :], array.shape, array.depth, i][int(word)] = array.rows[0]
    return [
        _Array(tuple(rows[i] for i in range(len(rows))), words, shape, depth)
        for (words, shape, depth, _), rows in groups.items()
        if len(rows) > 1 and rows.keys() == set(range(len(rows)))
    ]


def _by_ends(left: list[_Array], right: list[_Array]) -> list[_Pair]:
    """Pairs with enough common last words to be the only two, and with fitting shapes."""
    pairs, rest = list[_Pair](), [left, right]
    columns = [zip(*(array.words for array in arrays), strict=False) for arrays in rest]
    starts = [tuple(words[0] for words in takewhile(lambda words: len({*words}) == 1, it)) for it in columns]
    for n_words in range(max((len(array.words) for array in (*left, *right)), default=0), 0, -1):
        ends: list[dict[tuple[str, ...], list[_Array]]] = [defaultdict(list), defaultdict(list)]
        for own, arrays in zip(ends, rest, strict=True):
            for array in arrays:
                if len(array.words) >= n_words:
                    own[array.words[-n_words:]].append(array)
        for end, left_arrays in ends[0].items():
            one, another = _only_original(left_arrays), _only_original(ends[1].get(end, []))
            if one and another and not all(map(str.isdecimal, end)):
                above = [array.words[:-n_words] for array in (one, another)]
                is_whole = n_words > 1 and one.depth != another.depth and not all(above)
                is_whole &= all(words == start[: len(words)] for words, start in zip(above, starts, strict=True))
                pair = _pair(one, another, is_whole=is_whole)
                pairs += [pair] if pair else []
        for side in (0, 1):
            taken = {pair.arrays[side].rows for pair in pairs}
            rest[side] = [array for array in rest[side] if array.rows not in taken]
    return pairs


def _only_original(arrays: list[_Array]) -> _Array | None:
    """The only array, ignoring averages and optimizer states; None if there are several."""
    if len(arrays) > 1:
        arrays = [array for array in arrays if _COPIES.isdisjoint(array.words)]
    return arrays[0] if len(arrays) == 1 else None


def _pair(left: _Array, right: _Array, axis: int | None = None, *, is_whole: bool = False) -> _Pair | None:
    """The pair if the shapes fit; arrays with the same path may have any shapes."""
    layers, stack = (left, right) if len(left.rows) > 1 else (right, left)
    n, layer = len(layers.rows), layers.shape
    if n == 1:
        fits = is_whole or right.shape in (left.shape, left.shape[::-1])
        return _Pair((left, right), (), (left.shape, right.shape), is_whole) if fits else None
    axes = sorted({k for shape in (layer, layer[::-1]) for k in _axes_of_layers(stack.shape, n, shape)})
    if not axes:
        return None
    axes = axes if axis is None else [axis]
    one_of_stack = stack.shape[: axes[0]] + stack.shape[axes[0] + 1 :]
    return _Pair((left, right), tuple(axes), (layer, one_of_stack) if layers is left else (one_of_stack, layer))


def _turned(tables: tuple[TreeTable, TreeTable], pairs: Sequence[_Pair]) -> dict[_Pair, bool | None]:
    """Whether each pair is transposed; square arrays follow the others with their names, or get None."""
    by_names: dict[tuple[str, ...], set[bool]] = defaultdict(set)
    of_others: list[set[bool]] = []  # of each pair
    for pair in pairs:
        keys = (table.key(array.rows[0]) for table, array in zip(tables, pair.arrays, strict=True))
        of_others.append(by_names[tuple(re.split(r"[./]", key.segment)[-1] for key in keys)])
        left, right = pair.shapes
        if left != left[::-1] and sorted(left) == sorted(right):
            of_others[-1].add(left != right)
    turned: dict[_Pair, bool | None] = {}
    for pair, known in zip(pairs, of_others, strict=True):
        left, right = pair.shapes
        turned[pair] = max(known) if len(known) == 1 else None
        if left != right or left != left[::-1] or len(left) < 2 or not known:
            turned[pair] = sorted(left) == sorted(right) and left != right
    return turned


# Arrays of both trees with the same values, whatever their names


class _Evidence:
    """What is known of the names of both trees from arrays that were matched by their values."""

    def __init__(self, words: tuple[dict[int, tuple[str, ...]], dict[int, tuple[str, ...]]]) -> None:
        self._words, self._known = words, set[tuple[Any, Any]]()

    def add(self, left: int, right: int) -> None:
        self._known.update(self._beginnings(left, right))
        self._known.add(self._patterns(left, right)[0])

    def score(self, left: int, right: int) -> float:
        one, other = self._words[0][left], self._words[1][right]
        above = max((len(a) + len(b) for a, b in {*self._beginnings(left, right)} & self._known), default=0)
        has_same_last = words_of(".".join(one[-1:])) == words_of(".".join(other[-1:]))
        common = len({*one} & {*other}) / max(len(one), len(other))
        has_same_numbers = self._patterns(left, right)[1]
        return self.are_alike(left, right) * 100 + above + 2 * has_same_numbers + has_same_last + common

    def are_alike(self, left: int, right: int) -> bool:
        """Whether other layers have the same two names."""
        patterns, has_same_numbers = self._patterns(left, right)
        return has_same_numbers and patterns in self._known

    def _beginnings(self, *rows: int) -> Iterator[tuple[Any, ...]]:
        both = (words[row] for words, row in zip(self._words, rows, strict=True))
        return product(*([words[:n] for n in range(max(1, len(words) - 4), len(words))] for words in both))

    def _patterns(self, *rows: int) -> tuple[tuple[Any, ...], bool]:
        """Both names with "*" for numbers, and whether these are the same."""
        both = [words[row] for words, row in zip(self._words, rows, strict=True)]
        patterns = tuple([tuple("*" if word.isdecimal() else word for word in words) for words in both])
        return patterns, len({tuple(filter(str.isdecimal, words)) for words in both}) == 1


def same_values(
    trees: Trees, values: Values, given: Sequence[Match], pairs: Sequence[tuple[int, int]] | None
) -> list[Match]:
    """Arrays without a counterpart, matched by their values; then by names like those of others, and by any names.

    `pairs` are arrays with one name, matched if no others have their values; None if only other names count.
    """
    arrays = []
    for side, (alone, table) in enumerate(zip(trees.are_alone, trees.tables, strict=True)):
        can_read = np.array([facts.kind not in UNKNOWN for facts in table.facts])[table.fact_codes]
        is_given = np.zeros(len(table), bool)
        is_given[[row for match in given for part in match[side] for row in part.rows]] = True
        arrays.append(_arrays(table, np.flatnonzero(alone & _is_array(table) & can_read & ~is_given).tolist()))
    matches = [*given]
    if max(map(len, arrays)) > _MOST_ARRAYS and pairs is not None:
        raise ValueError(f'diff: like="values" finds the counterparts of at most {_MOST_ARRAYS:,} arrays')
    if max(map(len, arrays)) > _MOST_ARRAYS or not (all(arrays) or (pairs is not None and any(arrays))):
        return matches
    known = _Evidence(tuple({array.rows[0]: array.words for array in own} for own in arrays))  # type: ignore[arg-type]
    free = [{array.rows[0]: array for array in own} for own in arrays]

    def take(left: Sequence[Part], right: Sequence[Part]) -> None:
        parts = tuple(left), tuple(right)
        if all(row in own for own, several in zip(free, parts, strict=True) for part in several for row in part.rows):
            matches.append(Match(*parts))
            for pair in product(*([part.rows[0] for part in several] for several in parts)):
                known.add(*pair)
            for own, several in zip(free, parts, strict=True):
                for part in several:
                    for row in part.rows:
                        del own[row]

    def pair_up(groups: Iterable[tuple[list[int], list[int]]], least: Callable[[int, int], bool]) -> None:
        for left, right in groups:
            pairs = (
                [*product(left, right)] if len(left) * len(right) <= _MOST_PAIRS else [*zip(left, right, strict=False)]
            )
            for one, other in sorted(pairs, key=lambda pair: -known.score(*pair)):
                if one in free[0] and other in free[1] and least(one, other):
                    take([Part((one,))], [Part((other,))])

    by_values = _grouped(free, lambda side, array: (array.size, _digest(values, side, array.rows)))
    pair_up((group for group in by_values if len(group[0]) == len(group[1]) == 1), lambda *_: True)
    for sides in _joined(free, values, known):
        take(*sides)
    pair_up(by_values, lambda *_: True)
    for left, right in pairs or ():
        if {left} <= free[0].keys() and {right} <= free[1].keys() and free[0][left].size == free[1][right].size:
            take([Part((left,))], [Part((right,))])
    by_size = lambda: _grouped(free, lambda _, array: array.size)  # noqa: E731
    pair_up(by_size(), known.are_alike)
    pair_up(by_size(), lambda one, other: values.likeness(one, other) >= _LIKE)
    named = _pairs(*([*own.values()] for own in free))
    for pair in named if len(named) + len(matches) >= _LEAST else ():
        if len(pair.arrays[0].rows) == len(pair.arrays[1].rows):
            take(*([Part((row,)) for row in array.rows[:1]] for array in pair.arrays))
        else:
            take(*([Part(array.rows, pair.axis if len(array.rows) == 1 else None)] for array in pair.arrays))
    for side, own in enumerate(free):  # tied weights: what the other tree has once
        table, sizes = trees.tables[1 - side], {array.size for array in own.values()}
        others = {}
        for row in np.flatnonzero(_is_array(table)).tolist() if own else ():
            if math.prod(table[row].shape or ()) in sizes:
                others.setdefault(_digest(values, 1 - side, [row]), row)
        for row in [row for row, array in own.items() if array.shape and values.varies(side, row)]:
            if (other := others.get(_digest(values, side, [row]))) is not None:
                parts = (Part((row,)),), (Part((other,)),)
                matches.append(Match(*(parts if side == 0 else parts[::-1])))
    return matches


def array_names(table: TreeTable) -> dict[str, int]:
    """The rows of arrays by the keys of their paths, joined by dots."""
    rows = [row for row in np.flatnonzero(_is_array(table)).tolist() if table.depth[row] <= _DEEPEST]
    return {".".join(key.segment for key in table.path(row)).replace("/", "."): row for row in rows}


def given_matches(trees: Trees, values: Values, mapping: Mapping | Callable[[str], Any]) -> list[Match]:
    """The matches that a mapping of names describes; raises ValueError for a name of no array."""
    names, rules, matches = [array_names(table) for table in trees.tables], dict[Any, Any](), list[Match]()
    if isinstance(mapping, Mapping):
        rules = {key if isinstance(key, tuple) else (key,): value for key, value in mapping.items()}
    else:
        for name in names[0]:
            rules.setdefault(mapping(name), []).append(name)
        rules = {tuple(own): name for name, own in rules.items() if name is not None}
    for left, right in rules.items():
        sides = [
            [name.replace("/", ".") for name in side]
            for side in (left, right if isinstance(right, tuple | list) else [right])
        ]
        rows = [[_matching(own, pattern) for pattern in patterns] for own, patterns in zip(names, sides, strict=True)]
        for side, several in enumerate(rows):
            for pattern in [pattern for pattern, found in zip(sides[side], several, strict=True) if not found]:
                some = ", ".join([*names[side]][:3])
                raise ValueError(
                    f"diff: mapping: {pattern!r} is no array of the {_THERE[1 - side]} tree, which has {some} …"
                )
        n_stars = [max(pattern.count("*") for pattern in patterns) for patterns in sides]
        for stars in dict.fromkeys(key[: min(n_stars)] for key in rows[n_stars[1] > n_stars[0]][0]):
            parts = [
                [[row for key, row in found.items() if key[: len(stars)] == stars] for found in several]
                for several in rows
            ]
            if not all(map(all, parts)) or len({len(own) for several in parts for own in several} | {1}) > 2:
                raise ValueError(
                    f"diff: mapping: {left!r} and {right!r} do not name the same layers: {', '.join(stars)}"
                )
            if not isinstance(mapping, Mapping):  # several of one new name are its layers
                parts = [[[*chain.from_iterable(several)]] for several in parts]
            of_layers = ((side, own) for side, several in enumerate(parts) for own in several if len(own) > 1)
            layers = next(of_layers, (0, [0]))
            matches.append(Match(*(tuple(_part(values, side, own, *layers) for own in parts[side]) for side in (0, 1))))
    return matches


def _part(values: Values, side: int, rows: list[int], side_of_layers: int, layers: list[int]) -> Part:
    """A part with the axis along which it has most of some layers, if it is one array."""
    shape = values.node(side, rows[0]).shape
    axes = [axis for axis, size in enumerate(shape) if size == len(layers) > len(rows)]
    if not axes:
        return Part(tuple(rows))
    wanted = {*(_digest(values, side_of_layers, layers) or ())}
    return Part(tuple(rows), max(axes, key=lambda axis: len(wanted & {*(_digest(values, side, rows, axis) or ())})))


def mapping_of(tables: tuple[TreeTable, TreeTable], matches: Sequence[Match]) -> dict[Any, Any]:
    """The names of matches, with "*" for the number of a layer where all arrays of that name match."""
    names = [{row: name for name, row in array_names(table).items()} for table in tables] if matches else []
    groups = defaultdict(list)
    for match in matches:
        pair: list[list[str]] = []  # with "*" for the number in which the layers of one array differ
        for own, parts in zip(names, match, strict=True):
            ends = [[re.split(r"(\d+)", own.get(part.rows[i], "")) for i in (0, -1)] for part in parts]
            pair.append(["".join("*" if a != b else a for a, b in zip(*both, strict=False)) for both in ends])
        layers = {number[0] if (number := _NUMBER.search(name)) else "" for side in pair for name in side}
        stars = [tuple(_NUMBER.sub("*", name, count=1) for name in side) for side in pair]
        groups[tuple(stars if len(layers) == 1 else map(tuple, pair))].append(tuple(map(tuple, pair)))
    n_left = Counter(_NUMBER.sub("*", name, count=1) for name in names[0].values()) if names else Counter()
    found = {}
    for stars, members in groups.items():
        is_whole = len(members) > 1 and all(n_left[name] == len(members) for name in stars[0])
        for left, right in [stars] if is_whole else members:
            found[left if len(left) > 1 else left[0]] = right if len(right) > 1 else right[0]
    return found


def _matching(names: dict[str, int], pattern: str) -> dict[tuple[str, ...], int]:
    """The rows whose names match, by what stands for each "*", numbers in their order."""
    expression = re.compile("(.*?)".join(map(re.escape, pattern.split("*"))).replace("(.*?)", "([^.]*)"))
    found = {match.groups(): row for name, row in names.items() if (match := expression.fullmatch(name))}
    return dict(sorted(found.items(), key=lambda it: [(len(star) * star.isdecimal(), star) for star in it[0]]))


def _digest(values: Values, side: int, rows: Sequence[int], axis: int | None = None) -> tuple[int, ...] | None:
    digests = [values.digests(side, row, axis) for row in rows]
    return None if any(it is None for it in digests) else tuple(np.concatenate(digests).tolist())  # type: ignore[arg-type]


def _grouped(free: list[dict[int, _Array]], key_of: Callable[[int, _Array], Any]) -> list[tuple[list[int], list[int]]]:
    groups: dict[Any, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, own in enumerate(free):
        for row, array in own.items():
            groups[key_of(side, array)][side].append(row)
    return [
        group
        for key, group in groups.items()
        if all(group) and key is not None and (type(key) is not tuple or None not in key)
    ]


def _joined(free: list[dict[int, _Array]], values: Values, known: _Evidence) -> Iterator[tuple[list[Part], list[Part]]]:
    """Stacks of layers, and arrays that join others, the surest first."""
    layers = [_layers([*own.values()]) for own in free]
    sizes = {len(group.rows) for side in layers for group in side}
    found = []
    for side in (0, 1):
        parts = []  # (part, its words, the size of a layer, the digest of each layer)
        for array in (*free[side].values(), *layers[side]):
            size = array.size
            axes = [k for k, n in enumerate(array.shape) if n in sizes and len(array.rows) == 1]
            for axis in (None, *axes):
                digests = _digest(values, side, array.rows, axis)
                if digests and size:
                    size_of_layer = size // (len(digests) if axis is not None else 1)
                    parts.append((Part(array.rows, axis), array.words, size_of_layer, digests))
        found.append(parts)
    candidates = []
    for side in (0, 1):
        sizes_here = {(len(digests), size) for _, _, size, digests in found[side]}
        sums: dict[Any, list[tuple[Part, ...]]] = defaultdict(list)  # by the layer, its size and digest
        for several in _together(found[1 - side]):
            size, n = sum(it[2] for it in several), len(several[0][3])
            if (n, size) in sizes_here and n * len(several) > 1:
                for i, column in enumerate(zip(*(it[3] for it in several), strict=True)):
                    sums[i, n, size, sum(column) % 2**64].append(tuple(it[0] for it in several))
        for part, _, size, digests in found[side]:
            known_sums = [sums.get((i, len(digests), size, digest), []) for i, digest in enumerate(digests)]
            votes = Counter(chain.from_iterable(it for it in known_sums if len(it) <= _MOST_JOINED))
            for several, n in votes.items():
                if 2 * n >= len(digests) and not all(it.axis is not None for it in (part, *several)):
                    pair = ([part], [*several]) if side == 0 else ([*several], [part])
                    score = max(known.score(one.rows[0], other.rows[0]) for one in pair[0] for other in pair[1])
                    candidates.append((n / len(digests), score, pair))
    for _, _, pair in sorted(candidates, key=lambda it: (-it[0], -it[1])):
        yield pair
    for side in (0, 1):  # of parts that are joined once, at least one must be the same
        by_size = defaultdict(list)
        for row, array in free[side].items():
            by_size[array.size].append(row)
        for several in _together([it for it in found[1 - side] if len(it[3]) == 1 and it[0].rows[0] in free[1 - side]]):
            rows, size = [it[0].rows[0] for it in several], sum(it[2] for it in several)
            for row in by_size.get(size, [])[:_MOST_JOINED] if len(rows) > 1 else ():
                if row in free[side] and values.has_parts(side, row, rows):
                    parts = [Part((row,))], [it[0] for it in several]
                    yield parts if side == 0 else parts[::-1]


def _together(parts: list[Any]) -> Iterator[tuple[Any, ...]]:
    """Each part, and those with like names that may have been joined: query, key and value."""
    yield from ((part,) for part in parts)
    groups: dict[Any, dict[int, Any]] = defaultdict(dict)
    for i, part in enumerate(parts):
        for n in (1, 2, 3):
            groups[part[1][:-n], words_of(".".join(part[1][-1:])), len(part[3]), part[0].axis][i] = part
    seen = set[tuple[int, ...]]()
    for group in groups.values():
        for n in (2, 3) if len(group) <= _MOST_JOINED else ():
            for chosen in combinations(group, n):
                if chosen not in seen:
                    seen.add(chosen)
                    yield tuple(parts[i] for i in chosen)


# The code that converts the first tree


def _by_rule(trees: Trees, pairs: Sequence[_Pair], turned: dict[_Pair, bool | None]) -> str:
    """Python that converts the first tree, if the names of one tree are exactly the paths of the other."""
    for flat, (names, nested) in enumerate((trees.tables, trees.tables[::-1])):
        rows = {pair.arrays[flat].rows[0]: pair.arrays[1 - flat].rows[0] for pair in pairs}
        first = next(iter(rows))
        name, above = names.key(first).segment, int(names.parent[first])
        root, match = int(trees.counterparts[flat][above]), _SEPARATORS.search(name)
        if not match or root == NONE or any(turned.values()) or len({*rows.values()}) < len(pairs):
            continue
        separator, depth = match[1], int(nested.depth[root])
        paths = {own: separator.join(key.segment for key in nested.path(row)[depth:]) for own, row in rows.items()}
        prefix, arrays = name.removesuffix(paths[first]), np.flatnonzero(_is_array(nested)[root : nested.end[root]])
        places = [(above, prefix + path) for path in paths.values()]
        fits = places == [(int(names.parent[own]), names.key(own).segment) for own in paths]
        if not fits or {*rows.values()} != {*(root + arrays).tolist()}:
            continue
        key = f"{prefix!r} + " * bool(prefix) + f"jax.tree_util.keystr(path, simple=True, separator={separator!r})"
        are_all, source = trees.count(1 - flat, root) == len(rows), names[above].expression
        target = nested[root].expression
        if flat == 0:
            taken = f"{source}[{key}]" if are_all else f"{source}.get({key}, x)"
            return f"jax.tree_util.tree_map_with_path(lambda path, x: {taken}, other{target.removeprefix(nested.name)})"
        some = "" if are_all else " if hasattr(x, 'shape')"
        return f"{{{key}: x for path, x in jax.tree_util.tree_leaves_with_path({target}){some}}}"
    return ""


def _code(trees: Trees, pairs: Sequence[_Pair], turned: dict[_Pair, bool | None]) -> str:
    """Python that makes the other tree from the arrays of the first, if all are known."""
    left, right = trees.tables
    # JAX does not accept arrays in files.
    np_ = "np" if any(type(node) is Stored for node in trees.sides[0].nodes) else "jnp"
    sources: dict[int, str] = {}  # by the row of the other tree
    apart = np.zeros(len(trees.own[0]), bool)
    for at in trees.apart:
        apart[at : trees.aligned.end[at]] = True
    for left_row, right_row in zip(*(own[~apart].tolist() for own in trees.own), strict=True):
        if right.is_leaf[right_row] and left[left_row].shape == right[right_row].shape:
            sources[right_row] = left[left_row].expression
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
    if len(lines) > _MOST_LINES:
        return ""
    of = "{" + "".join(f"\n    {line}," for line in lines) + "\n}"
    get = "of.get(jax.tree_util.keystr(path), x)"
    return f"jax.tree_util.tree_map_with_path(lambda path, x, of={of}: {get}, other)"


def _entries(pairs: list[tuple[str, str]]) -> list[str]:
    """Entries of a dict; those that differ only in a number, from 0 on, become one line."""
    groups: dict[tuple[str, str], dict[int, tuple[str, str]]] = defaultdict(dict)  # by what is around a number
    groups_of: dict[tuple[str, str], list[dict]] = {pair: [] for pair in pairs}
    for pair, own in groups_of.items():
        for n in re.finditer(r"\d{1,6}", pair[0]):
            own.append(groups[pair[0][: n.start()], pair[0][n.end() :]])
            own[-1][int(n[0])] = pair
    lines, done = [], set[tuple[str, str]]()
    for pair, own in groups_of.items():
        for group in sorted(own, key=len, reverse=True):
            if pair in done or len(group) < 2 or group.keys() != set(range(len(group))):
                continue
            members = [group[i] for i in range(len(group))]
            key, source = map(_with_index, zip(*members, strict=True))
            if key and source and done.isdisjoint(members):
                lines.append(f"**{{{key}: {source} for i in range({len(members)})}}")
                done.update(members)
        if pair not in done:
            lines.append(f"{pair[0]}: {pair[1]}")
    return lines


def _with_index(texts: Sequence[str]) -> str:
    """The Python of texts that differ only in an index, with `i` for it; "" for other texts."""
    parts, numbers = [re.split(r"(\d+)", text) for text in texts], tuple(map(str, range(len(texts))))
    columns = [*zip(*parts, strict=False)]
    if {*map(len, parts)} != {len(columns)} or any(len({*column}) > 1 and column != numbers for column in columns):
        return ""
    common = ["\0" if len({*column}) > 1 else column[0] for column in columns]
    text = re.sub(r"\[((?::, )*)\0\]", r"[\1i]", "".join(common)) if texts[0][:1] != '"' else "".join(common)
    text = re.sub(r"""(["'])((?:(?!\1).)*\0(?:(?!\1).)*)\1""", lambda quoted: f"f{quoted[0]}", text)
    return "" if re.search(r"[\w)]\0", re.sub(r"f([\"']).*?\1", "", text)) else text.replace("\0", "{i}")


# Each hypothesis gets the rows that those before it did not explain.

Hypothesis = Callable[[Trees, list[int]], dict[int, Hint]]
HYPOTHESES: tuple[Hypothesis, ...] = (elements, stacked, renamed, elsewhere, same_words)
