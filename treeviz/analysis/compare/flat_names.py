"""Names that hold whole paths, "layers.0.w", against nested nodes: as in a file of another library."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.difference import Hint
from treeviz.analysis.compare.nodes import MAPPINGS
from treeviz.analysis.compare.tree_diff import Found, subtree_text
from treeviz.tree.table import TreeTable

_SEPARATORS = (".", "/")
_LEAST = 2  # names that are found again
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
    if len(names) < _LEAST:
        return None
    below = _leaves(nested, nested.children(roots[1]))
    leaves = [leaf for leaf in below if _shape(nested, leaf.row) is not None]
    match = _by_words(flat, names, leaves) if leaves else _Match("", {})
    if len(match.of_name) < _LEAST:
        return None
    n, (row, leaf) = len(match.of_name), next(iter(match.of_name.items()))
    place = nested[leaf.row].keystr
    text = f"{n:,} of {len(leaves):,} leaves have flat names: {flat[row].keystr} is {place}"
    return Hint(text, _code(flat, nested, match, roots, leaves, is_left=is_left))


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
    if len(names) < _LEAST:
        return {}
    leaves = [*_leaves(nested, [*tops])]
    match = _by_words(flat, [*names], leaves)
    of_name = match.of_name
    if len(of_name) < _LEAST:
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
    hints[first] = hints[first]._replace(code=_code(flat, nested, match, roots, leaves, is_left=is_left))
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
            if len({leaf.row for leaf in alone.values()}) == len(alone) >= _LEAST:
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


def _code(
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
