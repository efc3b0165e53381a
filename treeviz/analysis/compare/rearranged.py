"""Structure that was rearranged, not changed: renamed, moved, inserted, or layers against one stack of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence, Set
from difflib import SequenceMatcher
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.analysis.compare.aligned import MAPPINGS, NONE, Side
from treeviz.analysis.compare.difference import Difference, Differences, Hint, with_hint
from treeviz.analysis.compare.tree_diff import Found, subtree_text, transpose_code, transposing
from treeviz.analysis.stats.arrays import host_view, lies_on_host
from treeviz.tree.keys import Key
from treeviz.tree.runtime import collector_paused, computed_once
from treeviz.tree.stored import Stored
from treeviz.tree.table import TreeTable, children_of
from treeviz.tree.text import guarded

# What tells whether subtrees are alike: a fingerprint of each, first values, and layers against a stack of them.


def axes_of_stack(stack: TreeTable, row: int, table: TreeTable, layers: list[int]) -> list[int]:
    """Along which axes a subtree may be a stack of layers: it has their structure, and in each array one axis more."""
    n = len(layers)
    size = int(table.end[layers[0]]) - layers[0] if n > 1 else 0
    if int(stack.end[row]) - row != size or any(int(table.end[each]) - each != size for each in layers):
        return []
    axes: set[int] | None = None
    for i in range(size):
        facts = stack.facts[stack.fact_codes[row + i]]
        key = stack.key(row + i).segment if i else ""
        for each in layers:
            one = table.facts[table.fact_codes[each + i]]
            if (i and table.key(each + i).segment != key) or one.is_leaf != facts.is_leaf:
                return []
            if one.is_leaf:
                if one.shape is None or facts.shape is None or one.dtype != facts.dtype:
                    return []
                fitting = {*axes_of_layers(facts.shape, n, one.shape)}
                axes = fitting if axes is None else axes & fitting
    return sorted(axes or ())


def axes_of_layers(stack: tuple[int, ...], n: int, layer: tuple[int, ...]) -> list[int]:
    """Along which axes an array of a shape may be a stack of so many of another shape."""
    return [k for k in range(len(stack)) if stack[k] == n and stack[:k] + stack[k + 1 :] == layer]


def axis_of_stack(stack: Side, row: int, side: Side, layers: list[int]) -> int | None:
    """The axis along which a subtree is a stack of layers, the first of those that fit its values; None if it is none.

    Where values are not quickly read, shapes alone tell it.
    """
    axes = axes_of_stack(stack.table, row, side.table, layers)
    if len(axes) > 1:
        leaf = int(np.argmax(stack.table.is_leaf[row:]))
        whole, one = _on_host(stack.nodes[row + leaf]), _on_host(side.nodes[layers[0] + leaf])
        if whole is not None and one is not None:
            axes = [k for k in axes if guarded(lambda k=k: _has_layer(whole, k, one), lambda _: False)] or axes
    return axes[0] if axes else None


def _has_layer(whole: np.ndarray, axis: int, layer: np.ndarray) -> bool:
    return np.array_equal(np.take(whole, 0, axis), layer)


def _on_host(leaf: Any) -> np.ndarray | None:
    """A view of an array that is quickly read, or None."""
    if isinstance(leaf, jax.Array):
        is_near = lies_on_host(leaf) and len(leaf.sharding.device_set) == 1
        return guarded(lambda: host_view(leaf), lambda _: None) if is_near else None
    return leaf if type(leaf) is np.ndarray else None


def add_fingerprints(table: TreeTable, row: int, known: dict[Any, int], codes: dict[int, int]) -> None:
    """Add a code of each row of a subtree, its own key aside: equal for equal types, keys, shapes and dtypes.

    Args:
      known: The codes of all tables.
      codes: Those of this table, by row.
    """
    for at in range(int(table.end[row]) - 1, row - 1, -1):
        f = table.facts[table.fact_codes[at]]
        own = ((f.shape, f.dtype, "" if f.shape else f.type),) if f.is_leaf else (f.type,)
        below = [(table.key(child).segment, codes[child]) for child in table.children(at)]
        codes[at] = known.setdefault((*own, *below), len(known))


def first_values(side: Side, row: int) -> tuple[Any, ...]:
    """The first values of the first leaves of a subtree, as far as they are quickly read."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and lies_on_host(leaf) and len(leaf.sharding.device_set) == 1:
            leaf = host_view(leaf)
        return (
            leaf.flat[:8].tobytes() if type(leaf) is np.ndarray else leaf if type(leaf) in (int, float, str) else None
        )

    rows = islice(filter(side.table.is_leaf.__getitem__, range(row, int(side.table.end[row]))), 16)
    return tuple(guarded(lambda leaf=side.nodes[each]: of(leaf), lambda _: None) for each in rows)


# The rows of a tree without a counterpart in the other one, and which of them are in the same situation.


class Unmatched:
    """The rows of one tree that the other lacks, or has another thing for.

    Args:
      rows: In their order.
      prints: int[n]: their fingerprints.
    """

    def __init__(self, table: TreeTable, rows: np.ndarray, prints: np.ndarray) -> None:
        self._table = table
        parents = table.parent[rows]
        order = np.argsort(parents, kind="stable")
        self._rows, self._prints, self._parents = rows[order], prints[order], parents[order]
        codes, positions = table.key_codes[self._rows], table.position[self._rows]
        self._names = np.where(codes == 0, ~positions.astype(np.int64), codes)  # of an index, one below zero
        self._of_row = np.full(len(table), NONE)
        self._of_row[self._rows] = np.arange(len(rows))
        self._kinds = self._kinds_of_nodes()

    def _kinds_of_nodes(self) -> np.ndarray:
        """Of each row a number: the same where the unmatched rows below have the same names and fingerprints."""
        kinds = np.full(len(self._table) + 1, NONE)  # the last is of no row
        starts = np.flatnonzero(np.diff(self._parents, prepend=-2))
        pairs, known = combined(self._names, self._prints), dict[bytes, int]()
        kinds[self._parents[starts]] = [
            known.setdefault(pairs[start:end].tobytes(), len(known))
            for start, end in pairwise([*starts.tolist(), len(pairs)])
        ]
        return kinds

    def below(self, parent: int) -> list[int]:
        start, end = np.searchsorted(self._parents, [parent, parent + 1])
        return self._rows[start:end].tolist()

    def nth_below(self, parents: np.ndarray, nth: np.ndarray) -> np.ndarray:
        return self._rows[np.searchsorted(self._parents, parents) + nth]

    def first_with(self, print_: int, n: int) -> list[int]:
        """The first rows that have a fingerprint."""
        rows, prints = self._by_print
        start, end = np.searchsorted(prints, [print_, print_ + 1])
        return rows[start : min(end, start + n)].tolist()

    @computed_once
    def _by_print(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.lexsort((self._rows, self._prints))
        return self._rows[order], self._prints[order]

    def names(self) -> Counter[tuple[int, str]]:
        """How many have a fingerprint and a name."""
        counts: Counter[tuple[int, str]] = Counter()
        _, first, n = np.unique(combined(self._names, self._prints), return_index=True, return_counts=True)
        for i, count in zip(first.tolist(), n.tolist(), strict=True):
            name = int(self._names[i])
            counts[int(self._prints[i]), self._table.keys[name].segment if name > 0 else str(~name)] += count
        return counts

    def situations(self, rows: np.ndarray, above: np.ndarray, other: Unmatched) -> np.ndarray:
        """int[k]: a number for each of some of the rows: the same where all that is told of them is.

        Args:
          above: The counterparts of their parents.
        """
        at = self._of_row[rows]
        own = combined(self._names[at], self._prints[at])
        return combined(own, combined(self._kinds[self._parents[at]], other._kinds[above]))


def combined(one: np.ndarray, another: np.ndarray) -> np.ndarray:
    """A number for each pair: the same for equal ones."""
    a, b = (np.unique(each, return_inverse=True)[1].reshape(-1).astype(np.int64) for each in (one, another))
    return np.unique(a * (int(b.max(initial=0)) + 1) + b, return_inverse=True)[1].reshape(-1)


# Names that hold whole paths, "layers.0.w", against nested nodes: as in a file of another library.

_SEPARATORS = (".", "/")
_LEAST_NAMES = 2  # names that are found again
_DEEPEST = 64  # levels below a child of the common node: no name holds a longer path
_WORDS = re.compile(r"[./_\-]+|(?<=[a-zA-Z])(?=\d)")  # "layers_0", "layers0" and "layers/0" are alike


class _Leaf(NamedTuple):
    """A leaf of nested nodes.

    Attributes:
      top: The child of the common node that holds it.
    """

    row: int
    top: int
    keys: tuple[str, ...]


def flat_hints(left: Side, right: Side, found: Found) -> dict[int, Hint]:
    """Where one tree has a dict of long names, and the other one nodes: what stands where, by aligned row."""
    hints: dict[int, Hint] = {}
    tables = left.table, right.table
    places, parents = (found.aligned.left.tolist(), found.aligned.right.tolist()), found.aligned.parent.tolist()
    for flat, kind in ((0, "missing"), (1, "extra")):
        nested, sides = 1 - flat, (left, right)
        by_parent: dict[int, dict[int, int]] = {}  # rows of long names, and where they are told, by aligned parent
        tops: dict[int, dict[int, int]] = {}
        are_names = _are_names(tables[flat])
        if not any(are_names):
            continue
        for at, each in zip(found.rows, found.differences, strict=True):
            above, row = parents[at], places[flat][at]
            if each.kind == "type" and type(sides[flat].nodes[row]) in MAPPINGS:
                roots = row, places[nested][at]
                hint = _of_other_type(tables[flat], tables[nested], roots, is_left=flat == 0)
                hints.update({at: hint} if hint else {})
            elif each.kind == kind and above >= 0:
                if are_names[row]:
                    by_parent.setdefault(above, {})[row] = at
            elif each.kind in ("missing", "extra") and above >= 0:
                tops.setdefault(above, {})[places[nested][at]] = at
        for above, names in by_parent.items():
            root = places[nested][above]
            if root != NONE and above in tops:
                roots = places[flat][above], root
                hints.update(_matched(tables[flat], tables[nested], names, tops[above], roots, is_left=flat == 0))
    return hints


def _are_names(table: TreeTable) -> list[bool]:
    """Of each row, whether it is a leaf whose key holds a path."""
    is_long = np.array([False, *(bool(_separator(key.segment)) for key in table.keys[1:])])  # an index is no name
    return (table.is_leaf & is_long[table.key_codes]).tolist()


def _of_other_type(flat: TreeTable, nested: TreeTable, roots: tuple[int, int], *, is_left: bool) -> Hint | None:
    """The hint where a dict of long names stands against another node, as a model, whose children have no rows."""
    are_names = _are_names(flat)
    names = [row for row in flat.children(roots[0]) if are_names[row]]
    if len(names) < _LEAST_NAMES:
        return None
    below = _leaves(nested, nested.children(roots[1]))
    leaves = [leaf for leaf in below if _shape(nested, leaf.row) is not None]
    match = _by_words(flat, names, leaves) if leaves else _Match("", {})
    if len(match.of_name) < _LEAST_NAMES:
        return None
    n, (row, leaf) = len(match.of_name), next(iter(match.of_name.items()))
    place = nested[leaf.row].keystr
    text = f"{n:,} of {len(leaves):,} leaves have flat names: {flat[row].keystr} is {place}"
    return Hint(text, _renaming_code(flat, nested, match, roots, leaves, is_left=is_left))


def _shape(table: TreeTable, row: int) -> tuple[int, ...] | None:
    return table.facts[table.fact_codes[row]].shape


def _separator(name: str) -> str:
    return next((each for each in _SEPARATORS if each in name.strip(each)), "")


def _leaves(table: TreeTable, tops: Sequence[int]) -> Iterator[_Leaf]:
    """The leaves below the nodes among these children, but for those that are very deep."""
    for top in tops:
        keys: dict[int, tuple[str, ...]] = {top: (table.key(top).segment,)}
        deepest = int(table.depth[top]) + _DEEPEST
        for row in range(top + 1, int(table.end[top])):
            if table.depth[row] <= deepest:
                keys[row] = (*keys[int(table.parent[row])], table.key(row).segment)
                if table.is_leaf[row]:
                    yield _Leaf(row, top, keys[row])


def _matched(
    flat: TreeTable,
    nested: TreeTable,
    names: dict[int, int],
    tops: dict[int, int],
    roots: tuple[int, int],
    *,
    is_left: bool,
) -> dict[int, Hint]:
    """The hints for names and for nodes of which at least two are each other's."""
    if len(names) < _LEAST_NAMES:
        return {}
    leaves = [*_leaves(nested, [*tops])]
    match = _by_words(flat, [*names], leaves)
    of_name = match.of_name
    if len(of_name) < _LEAST_NAMES:
        return {}
    one, other = ("other", "first") if is_left else ("first", "other")
    hints = {}
    for row, leaf in of_name.items():
        what, its = (subtree_text(table, at) for table, at in ((flat, row), (nested, leaf.row)))
        shapes = _shape(flat, row), _shape(nested, leaf.row)
        is_turned = what != its and shapes[0] and shapes[0][::-1] == shapes[1]
        more = ", transposed?" if is_turned else f", as {its}" if what != its else ""
        hints[names[row]] = Hint(f"stands at {nested[leaf.row].keystr} in the {one}{more}")
    n_of, inside_of = Counter(leaf.top for leaf in leaves), defaultdict[int, dict[int, int]](dict)
    for row, leaf in of_name.items():
        inside_of[leaf.top][leaf.row] = row
    for top, at in tops.items():
        n, inside = n_of[top], inside_of[top]
        if inside:
            example = flat[next(iter(inside.values()))].keystr
            some = "" if n == 1 else f"{len(inside):,} of {n:,} leaves are " if len(inside) < n else "its leaves are "
            hints[at] = Hint(f"{some}flat in the {other}: {example}{' …' if n > 1 else ''}")
    first = min(hints)
    hints[first] = hints[first]._replace(code=_renaming_code(flat, nested, match, roots, leaves, is_left=is_left))
    return hints


class _Match(NamedTuple):
    """The leaf that each long name means, by row; and what stands before all of these names."""

    prefix: str
    of_name: dict[int, _Leaf]


def _by_words(flat: TreeTable, names: Sequence[int], leaves: Sequence[_Leaf]) -> _Match:
    """The leaf that each long name means, as far as just one does."""
    of_names = {row: _words(flat.key(row).segment) for row in names}
    of_leaves = [(leaf, _words(".".join(leaf.keys))) for leaf in leaves]
    for above in _beginnings([words for _, words in of_leaves]):  # such as "params"
        found: dict[tuple[str, ...], list[_Leaf]] = {}
        for leaf, words in of_leaves:
            found.setdefault(words[len(above) :], []).append(leaf)
        for before in _beginnings([*of_names.values()]):  # such as "model"
            of_name = {row: found.get(words[len(before) :], []) for row, words in of_names.items()}
            alone = {row: each[0] for row, each in of_name.items() if len(each) == 1}
            if len({leaf.row for leaf in alone.values()}) == len(alone) >= _LEAST_NAMES:
                row, leaf = next(iter(alone.items()))
                name = flat.key(row).segment
                return _Match(name.removesuffix(_separator(name).join(leaf.keys)), alone)
    return _Match("", {})


def _beginnings(texts: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """What all names begin with: nothing, the first word, the first two …"""
    for n in range(min(map(len, texts), default=0)):
        if any(text[:n] != texts[0][:n] for text in texts):
            return
        yield texts[0][:n]


def _words(name: str) -> tuple[str, ...]:
    return tuple(_WORDS.sub(".", name).split("."))


def _renaming_code(
    flat: TreeTable,
    nested: TreeTable,
    match: _Match,
    roots: tuple[int, int],
    leaves: Sequence[_Leaf],
    *,
    is_left: bool,
) -> str:
    """Python that converts the first tree, if the names are those of the paths of all arrays to the letter."""
    separator = _separator(flat.key(next(iter(match.of_name))).segment)
    names = {flat.key(row).segment: match.prefix + separator.join(leaf.keys) for row, leaf in match.of_name.items()}
    if any(_shape(nested, leaf.row) is None for leaf in leaves) or len(names) < len(leaves):
        return ""
    if any(name != path for name, path in names.items()):
        return ""
    key = f"jax.tree_util.keystr(path, simple=True, separator={separator!r})"
    key = f"{match.prefix!r} + {key}" if match.prefix else key
    mine, its = flat[roots[0]].expression, nested[roots[1]].expression
    n_leaves = int(nested.is_leaf[roots[1] : nested.end[roots[1]]].sum())
    if is_left:
        its = "other" + its.removeprefix(nested.name)
        found = f"{mine}[{key}]" if n_leaves == len(leaves) else f"{mine}.get({key}, x)"
        return f"jax.tree_util.tree_map_with_path(lambda path, x: {found}, {its})"
    some = "" if n_leaves == len(leaves) else " if hasattr(x, 'shape')"
    return f"{{{key}: x for path, x in jax.tree_util.tree_leaves_with_path({its}){some}}}"


# Python of a large dict in few lines: one for all entries that differ by a number.


def entries(pairs: list[tuple[str, str]]) -> list[str]:
    """Entries of a dict; of those that differ by one number, from 0 on, there is one line for all."""
    groups: dict[tuple[str, str], dict[int, tuple[str, str]]] = defaultdict(dict)  # by what is around a number
    for pair in pairs:
        for number in re.finditer(r"\d{1,6}", pair[0]):
            groups[pair[0][: number.start()], pair[0][number.end() :]][int(number[0])] = pair
    lines, done = [], set[tuple[str, str]]()
    for pair in pairs:
        around = [(pair[0][: number.start()], pair[0][number.end() :]) for number in re.finditer(r"\d{1,6}", pair[0])]
        for group in sorted([groups[each] for each in around], key=len, reverse=True):
            if pair in done or len(group) < 2 or group.keys() != set(range(len(group))):
                continue
            members = [group[i] for i in range(len(group))]
            key, source = (with_index([each[i] for each in members]) for i in (0, 1))
            if key and source and done.isdisjoint(members):
                lines.append(f"**{{{key}: {source} for i in range({len(members)})}}")
                done.update(members)
        if pair not in done:
            lines.append(f"{pair[0]}: {pair[1]}")
    return lines


def with_index(texts: list[str]) -> str:
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


# Elements of a list that stand in other places of the same list: layers moved by one, two that were swapped.

TOLD = ("missing", "extra", "type", "none", "leaf", "static", "shape")  # kinds that a move may lead to
_MOST_ELEMENTS = 500  # of a list
_MOST_OF_ALL = 2_000  # elements that are looked at


def moved_hints(left: Side, right: Side, found: Found, values: bool) -> dict[int, Hint]:
    """For the first difference in each element that moved, by aligned row, where the element is now."""
    told = np.array([at for at, each in zip(found.rows, found.differences, strict=True) if each.kind in TOLD], int)
    marks, hints, n_left, end = _Marks((left, right), values), {}, _MOST_OF_ALL, 0
    for at in _lists(left, right, found, told):
        mine, other = int(found.aligned.left[at]), int(found.aligned.right[at])
        rows = left.table.children(mine), right.table.children(other)
        n_left -= len(rows[0])
        if at < end or len(rows[0]) != len(rows[1]) or len(rows[0]) > _MOST_ELEMENTS or n_left < 0:
            continue
        alike = marks.of(rows, marks.structure)
        if set(alike[0]).isdisjoint(alike[1]):
            continue
        for is_sure in (True, False):
            marked, like = marks.of(rows, marks.whole) if is_sure else alike
            places = _places(marked, like, marks.have_arrays(rows[0]), is_sure)
            if places:
                code = _moving_code(places, left.table[mine].expression, type(left.nodes[mine]), len(rows[0]))
                hints |= _told(places, children_of(found.aligned.end, at), found, told, is_sure, code)
                end = int(found.aligned.end[at])  # what is in an element is compared with what is in another one
                break
    return hints


def _lists(left: Side, right: Side, found: Found, told: np.ndarray) -> Iterator[int]:
    """The aligned rows of the lists around differences."""
    above, lists = np.unique(found.aligned.parent[told]), set()
    while len(above) and above[-1] != NONE:
        above = above[above != NONE]
        rows = found.aligned.left[above], found.aligned.right[above]
        for at, *pair in zip(above.tolist(), *(each.tolist() for each in rows), strict=True):
            sides = zip((left.table, right.table), pair, strict=True)
            if NONE not in pair and all(t.end[row] > row + 1 and t.key_codes[row + 1] == 0 for t, row in sides):
                lists.add(at)  # the first child has an index
        above = np.unique(found.aligned.parent[above])
    yield from sorted(lists)


class _Marks:
    """What tells elements of both trees from each other."""

    def __init__(self, sides: tuple[Side, Side], values: bool) -> None:
        self._sides, self._values = sides, values
        self._keys = _common([side.table.keys for side in sides])
        self._facts = _common([side.table.facts for side in sides])
        self._of_arrays = np.array([bool(f.shape) for f in sides[0].table.facts])
        self._plain = _common([[(f.shape, f.dtype, f.shape or f.type) for f in side.table.facts] for side in sides])

    def of(self, rows: Any, mark: Any) -> list[list[Hashable]]:
        return [[mark(side, row) for row in of_side] for side, of_side in enumerate(rows)]

    def have_arrays(self, rows: list[int]) -> list[bool]:
        """Of elements of the first tree; others have their like in many places."""
        table = self._sides[0].table
        return [bool(self._of_arrays[table.fact_codes[row : table.end[row]]].any()) for row in rows]

    def whole(self, side: int, row: int) -> Hashable:
        return self.structure(side, row, self._facts), self._values and first_values(self._sides[side], row)

    def structure(self, side: int, row: int, codes: list[np.ndarray] | None = None) -> Hashable:
        table = self._sides[side].table
        rows = slice(row, int(table.end[row]))
        below = slice(row + 1, rows.stop)
        return (
            (codes or self._plain)[side][table.fact_codes[rows]].tobytes(),
            self._keys[side][table.key_codes[below]].tobytes(),
            (table.depth[rows] - table.depth[row]).tobytes(),
        )


def _common(of: list[Any]) -> list[np.ndarray]:
    """A number for each, the same for those that are equal."""
    known: dict[Hashable, int] = {}
    return [np.array([known.setdefault(each, len(known)) for each in side], np.int64) for side in of]


def _places(mine: list[Hashable], other: list[Hashable], have_arrays: list[bool], is_sure: bool) -> dict[int, int]:
    """Where elements went: all of them around by some places, or those that have their like in one other place."""
    n, differ = len(mine), [i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b]
    if not differ or not (is_sure or any(have_arrays[i] for i in differ)):
        return {}
    for k in sorted(range(1, n), key=lambda k: min(k, n - k)):
        if mine[0] == other[k] and mine == other[k:] + other[:k]:
            return {i: (i + k) % n for i in range(n)}
    n_mine, n_other = Counter(mine[i] for i in differ), Counter(other[i] for i in differ)
    at: dict[Hashable, list[int]] = {}
    for i in reversed(differ):
        at.setdefault(other[i], []).append(i)
    if n_mine == n_other:  # all are there, in another order
        return {i: at[mine[i]].pop() for i in differ}
    alone = (i for i in differ if have_arrays[i] and n_mine[mine[i]] == n_other[mine[i]] == 1)
    return {i: at[mine[i]][0] for i in alone}


def _told(
    places: dict[int, int], children: list[int], found: Found, told: np.ndarray, is_sure: bool, code: str
) -> dict[int, Hint]:
    come_from, hints = {to: i for i, to in places.items()}, {}
    for i, child in enumerate(children):
        n = int(np.searchsorted(told, child))
        if i in places and n < len(told) and told[n] < found.aligned.end[child]:
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


# Layers of one tree against one stack of them in the other, and the code that converts one into the other.


def stacked(sides: tuple[Side, Side], mine: int, other: int) -> Hint | None:
    """Whether one of two nodes is a list of layers, and the other one stack of them."""
    left, right = sides
    for name, there, (side, row), (stack, one) in (
        ("first", "other", (left, mine), (right, other)),
        ("other", "first", (right, other), (left, mine)),
    ):
        layers = side.table.children(row)
        axis = axis_of_stack(stack, one, side, layers) if len(layers) > 1 else None
        if axis is not None:
            n, node = len(layers), left.table[mine].expression
            made = f"jax.tree.map({stacking(axis)}, *"
            code = f"[jax.tree.map(lambda x: x[{':, ' * axis}i], {node}) for i in range({n})]"
            text = f"{_text(n, axis, name, there)}, as made by {made}layers)"
            return Hint(text, f"{made}{node})" if name == "first" else code)
    return None


def stacked_dict(sides: tuple[Side, Side], row: int, other: int) -> Hint | None:
    """Whether all children of a node of the first tree are layers, and the other tree has one stack of them there."""
    (left, right), layers = sides, sides[0].table.children(row)
    axis = axis_of_stack(right, other, left, layers) if other != NONE else None
    if axis is None:
        return None
    n, node = len(layers), left.table[row].expression
    names = [left.table.key(each).segment for each in layers]
    start = names[0].rstrip("0123456789")
    is_numbered = set(names) == {f"{start}{i}" for i in range(n)} and type(left.nodes[row]) in MAPPINGS
    in_order = f"*({node}[{start!r} + str(i)] for i in range({n}))"
    return Hint(_text(n, axis, "first", "other"), f"jax.tree.map({stacking(axis)}, {in_order})" if is_numbered else "")


def _text(n: int, axis: int, here: str, there: str) -> str:
    along = f" along axis {axis}" if axis else ""
    return f"{n} layers in the {here}, and one stack of {n} such layers{along} in the {there}"


def stacking(axis: int) -> str:
    """Python of a function that stacks arrays."""
    return f"lambda *xs: jnp.stack(xs{f', axis={axis}' if axis else ''})"


# Which array of one tree is which of another, where the nodes that hold them have other names.

STRUCTURAL = ("missing", "extra", "type", "none", "leaf")
_LEAST = 2  # arrays that are found again
_MOST_ARRAYS = 20_000
_MOST_LINES = 60  # of the code
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


_MOST_CHILDREN = 500  # that are searched for one that was inserted, or has nearly the same name
_MOST_PLACES = 3  # that a hint names
_ALONE = ("missing", "extra")
_ELSEWHERE = "the same structure stands at"
_BY_SHAPE = "has the shape of"
_OF_ALL = ("weight", "bias")  # the last words of many names, which tell nothing of what an array is for
_LEAST_LEAVES = 2  # of a subtree that is looked for elsewhere: a single leaf has its like in many places


@collector_paused()
def with_hints(left: Side, right: Side, found: Found, *, values: bool = True) -> Found:
    """The differences with what they may come from, where the structure of a subtree tells it.

    Args:
      values: The first values of arrays in host memory may tell which element of a list was inserted.
    """
    told = {*STRUCTURAL, "length"}.intersection(found.kinds)
    moved = moved_hints(left, right, found, values) if not set(TOLD).isdisjoint(found.kinds) else {}
    if not told:
        return _with(found, moved, moved) if moved else found
    hints = _Hints(left, right, found, values)
    pairs = [(at, each.kind) for at, each in zip(found.rows, found.differences, strict=True) if _is_told(each, told)]
    flat, said = flat_hints(left, right, found), hints.of_alone([at for at, kind in pairs if kind in _ALONE])
    said |= {at: hints.of_both(at, kind) for at, kind in pairs if kind not in _ALONE}
    said |= {at: hint for at, hint in flat.items() if at in said}
    if not any(hint.code for hint in flat.values()) and any(map(_is_open, {hint.text for hint in said.values()})):
        mapped = mapped_hints(left, right, found)
        has_code = any(hint.code for hint in mapped.values())
        for at, hint in mapped.items():
            code = hint.code if has_code else said.get(at, hint).code
            before = said.get(at, hint).text
            said[at] = Hint(hint.text if before.startswith(_BY_SHAPE) else before or hint.text, code)
    return _with(found, said | moved, moved)


def _with(found: Found, said: Mapping[int, Hint], moved: Container[int]) -> Found:
    """The differences with hints by aligned row; that an element moved says more than what is known of one leaf."""
    differences, waiting = Differences(), {*said}
    for at, each in zip(found.rows, found.differences, strict=True):
        hint = said.get(at)
        is_told = hint and hint.text and (each.kind in TOLD and at in waiting if at in moved else _is_free(each))
        differences.append(with_hint(each, hint) if is_told and hint else each)
        if is_told:
            waiting.discard(at)
    return found._replace(differences=differences)


def _is_free(each: Difference) -> bool:
    """Whether a difference has no hint yet."""
    return each.kind in _ALONE or not each.hint  # these have none, which need not be written to know it


def _is_told(each: Difference, kinds: Set[str]) -> bool:
    return each.kind in kinds and _is_free(each)


def _is_open(text: str) -> bool:
    """Whether a hint does not tell how a difference came about."""
    return not text or text.startswith((_ELSEWHERE, _BY_SHAPE))


class _Alone(NamedTuple):
    """What is told of a row without a counterpart.

    Attributes:
      nth: Which of the unmatched rows below the other parent it may be.
      more: What stands behind the code that renames it.
    """

    text: str
    nth: int | None = None
    is_turned: bool = False
    more: str = ""


def _renaming(tables: tuple[TreeTable, TreeTable], rows: tuple[int, int], is_turned: bool, more: str) -> str:
    """Python that renames a child of a dict in the first tree."""
    node = tables[0][int(tables[0].parent[rows[0]])].expression
    old, new = (table.key(row).keystr for table, row in zip(tables, rows, strict=True))
    taken = f"{node}.pop({old[1:-1]})"
    if is_turned:
        order = transposing(tables[0][rows[0]].shape or (), tables[1][rows[1]].shape or ())
        taken = transpose_code(taken, order) if order else ""
    return f"{node}{new} = {taken}{more}" if taken else ""


class _Hints:
    def __init__(self, one: Side, another: Side, found: Found, values: bool) -> None:
        self._sides, self._values = (one, another), values
        left, right = one.table, another.table
        self._left, self._right, self._aligned = left, right, found.aligned
        self._n_leaves = [np.append(0, np.cumsum(table.is_leaf)) for table in (left, right)]  # before each row
        self._known: dict[Any, int] = {}
        self._prints: tuple[dict[int, int], ...] = {}, {}  # of nodes, and what is below
        self._of_leaves: tuple[dict[int, int], ...] = {}, {}  # the fingerprints by the code of the facts
        self._siblings: dict[tuple[int, int], dict[int, list[int]]] = {}  # by side and parent: rows by fingerprint
        self._unmatched: list[Unmatched] = []
        self._matches: list[np.ndarray] = []  # of each row, its counterpart
        for side, (table, own, other) in enumerate(
            (
                (left, self._aligned.left, self._aligned.right),
                (right, self._aligned.right, self._aligned.left),
            )
        ):
            match = np.full(len(table), NONE)
            match[own[own != NONE]] = other[own != NONE]
            is_matched = match != NONE
            is_matched[self._rows_of(found, own)] = False
            rows = np.flatnonzero(~is_matched)
            self._unmatched.append(Unmatched(table, rows, self._prints_of(side, rows)))
            self._matches.append(match)
        self._named = [each.names() for each in self._unmatched]

    def _prints_of(self, side: int, rows: np.ndarray) -> np.ndarray:
        table = (self._left, self._right)[side]
        prints, is_leaf, codes = np.zeros(len(rows), np.int64), table.is_leaf[rows], table.fact_codes[rows]
        distinct, first, of = np.unique(codes[is_leaf], return_index=True, return_inverse=True)
        known = [self._print(side, row) for row in rows[is_leaf][first].tolist()]
        prints[is_leaf] = np.array(known, np.int64)[of.reshape(-1)] if len(distinct) else 0
        prints[~is_leaf] = [self._print(side, row) for row in rows[~is_leaf].tolist()]
        return prints

    def _print(self, side: int, row: int) -> int:
        """The fingerprint of a subtree."""
        known, of_leaves, table = self._prints[side], self._of_leaves[side], (self._left, self._right)[side]
        code = int(table.fact_codes[row])
        if code in of_leaves:
            return of_leaves[code]
        if row not in known:
            add_fingerprints(table, row, self._known, known)
            if table.facts[code].is_leaf:
                of_leaves[code] = known[row]
        return known[row]

    def _rows_of(self, found: Found, own: np.ndarray) -> np.ndarray:
        """The rows of one tree whose counterpart is another thing."""
        told = [at for at, each in zip(found.rows, found.differences, strict=True) if each.kind in STRUCTURAL]
        rows = own[told]
        return rows[rows != NONE]

    def of_both(self, at: int, kind: str) -> Hint:
        """Of two things in one place, of which one stands for the other."""
        mine, other = int(self._aligned.left[at]), int(self._aligned.right[at])
        if kind == "length":
            return Hint(self._inserted(mine, other))
        hint = stacked(self._sides, mine, other) or self._of_first_child(mine)
        return hint or Hint(self._elsewhere(0, mine, other) or self._elsewhere(1, other, mine))

    def of_alone(self, at: list[int]) -> dict[int, Hint]:
        """Of rows that one tree alone has, by aligned row: told once of all in the same situation."""
        hints = dict.fromkeys(at, Hint())
        for side, own in enumerate((self._aligned.left[at], self._aligned.right[at])):
            table, other = (self._left, self._right)[side], self._unmatched[1 - side]
            which = np.flatnonzero((own != NONE) & (table.parent[own] != NONE))
            rows, parents = own[which], table.parent[own[which]]
            above = self._matches[side][parents]
            alike = self._unmatched[side].situations(rows, above, other)
            _, first, of = np.unique(alike, return_index=True, return_inverse=True)
            told = [self._told(side, int(rows[i]), int(parents[i]), int(above[i])) for i in first.tolist()]
            of_each, places = of.reshape(-1).tolist(), [at[i] for i in which.tolist()]
            shared = [Hint(each.text) for each in told]
            hints.update(zip(places, map(shared.__getitem__, of_each), strict=True))
            if side == 0:
                self._add_renaming(hints, places, rows, above, [*map(told.__getitem__, of_each)])
        for i in np.flatnonzero(self._is_first_child(at)).tolist():
            stacked = self._of_first_child(int(self._aligned.left[at[i]]))
            hints[at[i]] = stacked or hints[at[i]]
        return hints

    def _add_renaming(
        self, hints: dict[int, Hint], at: list[int], rows: np.ndarray, above: np.ndarray, told: list[_Alone]
    ) -> None:
        """Add to the hints of rows that were renamed in a dict the code that does so."""
        nth = np.array([NONE if each.nth is None else each.nth for each in told], np.int64)
        renamed = np.flatnonzero(nth != NONE)
        new, tables = self._unmatched[1].nth_below(above[renamed], nth[renamed]), (self._left, self._right)
        pairs = zip(rows[renamed].tolist(), new.tolist(), strict=True)
        for i, parent, pair in zip(renamed.tolist(), self._left.parent[rows[renamed]].tolist(), pairs, strict=True):
            if type(self._sides[0].nodes[parent]) in MAPPINGS:
                text, _, is_turned, more = told[i]
                hints[at[i]] = Hint(text, partial(_renaming, tables, pair, is_turned, more))

    def _is_first_child(self, at: list[int]) -> np.ndarray:
        rows = self._aligned.left[at]
        return (rows > 0) & (self._left.parent[rows] == rows - 1)

    def _of_first_child(self, mine: int) -> Hint | None:
        """All children of a dict may be layers."""
        if mine <= 0 or self._left.parent[mine] != mine - 1:
            return None
        return stacked_dict(self._sides, mine - 1, int(self._matches[0][mine - 1]))

    def _elsewhere(self, side: int, row: int, counterpart: int) -> str:
        """Where the other tree has the same subtree without a counterpart."""
        if (self._left, self._right)[side].parent[row] < 0:
            return ""
        return self._place(side, row, self._print(side, row), counterpart)

    def _told(self, side: int, row: int, parent: int, above: int) -> _Alone:
        """What a row without a counterpart may be called in the other tree, or where it may stand there."""
        own = (self._left, self._right)[side]
        print_, n_leaves = self._print(side, row), self._count(side, row)
        if not n_leaves:
            return _Alone("")
        renamed = self._renamed(side, row, parent, print_)
        facts = own.facts[own.fact_codes[row]]
        reverse = self._known.get(((facts.shape[::-1], facts.dtype, ""),)) if facts.shape else None
        is_turned = renamed is None and reverse not in (None, print_)
        renamed = self._renamed(side, row, parent, reverse) if is_turned else renamed
        if renamed is None or self._has_moved(side, row) or self._has_moved(1 - side, renamed):
            return _Alone(self._place(side, row, print_, NONE))
        i, old, new = (
            self._unmatched[1 - side].below(above).index(renamed),
            self._key(side, row),
            self._key(1 - side, renamed),
        )
        turned = (", transposed", ", and transposed") if is_turned else ("", "")
        if n_leaves >= _LEAST_LEAVES or _are_alike(old.segment, new.segment):
            is_dict = type(self._sides[side].nodes[parent]) in MAPPINGS
            verb = "moved" if _are_indices(old, new) and not is_dict else "renamed"
            return _Alone(f"{verb} {'to' if side == 0 else 'from'} {new.keystr}{turned[1]}?", i, is_turned)
        there = "other" if side == 0 else "first"
        text = f"{_BY_SHAPE} {new.keystr} in the {there}{turned[0]}: renamed?"
        return _Alone(text, i, is_turned, "  # by its shape alone")

    def _count(self, side: int, row: int) -> int:
        before, end = self._n_leaves[side], (self._left, self._right)[side].end[row]
        return int(before[end] - before[row])

    def _place(self, side: int, row: int, print_: int, counterpart: int) -> str:
        """The text for the one other place that has a fingerprint; "" if there is none."""
        places = self._unmatched[1 - side].first_with(print_, 3)
        if len(places) > 2 or not self._is_special(side, row, print_):  # of many alike, none is asked for what it is
            return ""
        places = [each for each in places if each != counterpart]
        if len(places) != 1:
            return ""
        other, there = (self._right, "other") if side == 0 else (self._left, "first")
        return f"{_ELSEWHERE} {other[places[0]].keystr} in the {there}"

    def _is_special(self, side: int, row: int, print_: int) -> bool:
        """Whether its like elsewhere is no chance: several leaves, a node as no other one, or a leaf with its name."""
        if self._count(side, row) >= _LEAST_LEAVES or self._has_moved(side, row):
            return True
        is_node = not (self._left, self._right)[side].is_leaf[row]
        return is_node and all(len(each.first_with(print_, 2)) == 1 for each in self._unmatched)

    def _has_moved(self, side: int, row: int) -> bool:
        """Whether one of the same name stands elsewhere in the other tree, which then is no other name for it."""
        name = (self._print(side, row), self._key(side, row).segment)
        is_one = self._named[0][name] == self._named[1][name] == 1
        return is_one and words_of(name[1])[0] not in _OF_ALL and not name[1].isdecimal()

    def _renamed(self, side: int, row: int, parent: int, print_: Any) -> int | None:
        """The sibling in the other tree that has a fingerprint, and alone has it, or nearly the name of the row."""
        above = int(self._matches[side][parent])
        rivals = self._siblings_of(side, parent)[self._print(side, row)]
        siblings = self._siblings_of(1 - side, above).get(print_, [])
        if len(siblings) == len(rivals) == 1:
            return siblings[0]
        if max(len(siblings), len(rivals)) > _MOST_CHILDREN:
            return None
        own = self._key(side, row).segment
        near = [each for each in siblings if _end_alike(self._key(1 - side, each).segment, own)]
        if len(near) != 1:
            return None
        other = self._key(1 - side, near[0]).segment
        back = [each for each in rivals if _end_alike(self._key(side, each).segment, other)]
        return near[0] if len(back) == 1 else None

    def _siblings_of(self, side: int, parent: int) -> dict[int, list[int]]:
        """The unmatched rows below one, by fingerprint."""
        if (side, parent) not in self._siblings:
            of: dict[int, list[int]] = defaultdict(list)
            for row in self._unmatched[side].below(parent):
                of[self._print(side, row)].append(row)
            self._siblings[side, parent] = of
        return self._siblings[side, parent]

    def _inserted(self, mine: int, other: int) -> str:
        """Which elements of a list are new or gone, unless they are the last ones."""
        rows = self._left.children(mine), self._right.children(other)
        if max(map(len, rows)) > _MOST_CHILDREN:
            return ""
        codes = [
            [(self._print(i, row), self._values and first_values(side, row)) for row in of]
            for i, (side, of) in enumerate(zip(self._sides, rows, strict=True))
        ]
        n = min(map(len, codes))
        if codes[0][:n] == codes[1][:n]:
            return ""
        changes = [each for each in SequenceMatcher(None, *codes, autojunk=False).get_opcodes() if each[0] != "equal"]
        kinds = {kind for kind, *_ in changes}
        if len(changes) > _MOST_PLACES or kinds not in ({"insert"}, {"delete"}):
            return ""
        places = [(start, end) for _, *of_left, start, end in changes]
        if kinds == {"delete"}:
            places = [(start, end) for _, start, end, *of_right in changes]
        said = ", ".join(f"[{start}]" if end == start + 1 else f"[{start}:{end}]" for start, end in places)
        return f"{'inserted' if kinds == {'insert'} else 'removed'} at {said}?"

    def _key(self, side: int, row: int) -> Key:
        return (self._left, self._right)[side].key(row)


def _end_alike(one: str, other: str) -> bool:
    return one.endswith(other) or other.endswith(one)


def _are_alike(one: str, another: str) -> bool:
    """Whether the names, and not the shapes alone, say that one may be for the other: "kernel" for "weight"."""
    first, other = ("".join(word for word in words_of(name) if word not in _OF_ALL) for name in (one, another))
    if first and other:
        return _end_alike(first, other) or first.startswith(other) or other.startswith(first)
    return words_of(one)[-1] == words_of(another)[-1]


def _are_indices(*keys: Key) -> bool:
    return all(key.keystr == f"[{key.segment}]" for key in keys)
