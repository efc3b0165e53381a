"""Compare trees: `diff`, `assert_same` and `explain_map`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from treeviz.analysis.compare.aligned import NONE, Side
from treeviz.analysis.compare.difference import MEANINGS, Difference, Differences
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.analysis.compare.merged import (
    Merged,
    count_kinds,
    headline,
    merged,
    merged_with_all,
    same_trees,
    same_values,
)
from treeviz.analysis.compare.rearranged import mapping_of, with_hints
from treeviz.analysis.compare.tree_diff import Found, find_differences, with_layers
from treeviz.analysis.compare.values import ValueDifference
from treeviz.explorer import DiffView, Leaves
from treeviz.prepare import scanned
from treeviz.tree.facts import Column
from treeviz.tree.layers import Stacked
from treeviz.tree.runtime import computed_once, gc_paused
from treeviz.tree.table import TreeTable
from treeviz.tree.text import counted
from treeviz.views.text.terminal import wrapped
from treeviz.views.view import View

_FEW = 500  # rows that are all initially open
_MOST_LINES = 40  # differences in the message of an AssertionError
_LONG = 30  # characters of a hint that a line of the table may cut
_MOST_HINTS = 10
_WITHOUT_VALUES = ("shape only", "tracer", "placeholder", "float0")  # leaves without values to compare


class TreeDiff(DiffView):
    """The differences between trees: a list, and a view of them.

        diff = treeviz.diff({"w": jnp.ones(3)}, {"w": jnp.ones(4)})
        print(diff)
        [difference.path for difference in diff.differences if difference.kind == "shape"]  # ["['w']"]

    Attributes:
      not_compared: Why the values of some leaves were not compared, by key path: "shape only", "deleted" …
      mapping: The names of arrays of the first tree, and the other names that they have in the second one; it may be
        passed as `mapping`.
    """

    not_compared: dict[str, str]
    mapping: dict[Any, Any]
    _brief: View
    _found: Sequence[Sequence[Difference]]
    _gaps: Mapping[int, ValueDifference]
    _rows: np.ndarray

    def __init__(
        self,
        tables: Merged,
        found: Sequence[Found],
        not_compared: dict[str, str],
        sides: Sequence[Side],
        *,
        values: bool,
    ) -> None:
        kinds = count_kinds(found)
        lines = headline(kinds, tables.n_same, tables.n_unknown, values=values)
        lines += (same_trees(found) if values else ()) + same_values(sides[0], found[0])
        is_cut = tables.n_same and tables.is_cut
        whole = tables.whole.with_headline(*lines, *(["in this page only counted"] if is_cut else []))
        names = ["layers", "delta", "differ"] if len(found) == 1 else [f"tree{i}" for i in range(1, len(found) + 1)]
        both = [] if len(found) > 1 else ["left", "right"]
        super().__init__(whole, _chosen(whole, [*both, *names]), diff=_for_page(tables, found, kinds))
        brief = tables.brief.with_headline(*lines)
        depth = int(brief.depth.max()) + 1 if len(brief) <= _FEW else None
        object.__setattr__(self, "_brief", View(brief, _chosen(brief, names), depth=depth))
        object.__setattr__(self, "_gaps", found[0].gaps if len(found) == 1 else {})
        object.__setattr__(self, "_rows", tables.rows)
        object.__setattr__(self, "leaves", _leaves(tables, found, sides))
        object.__setattr__(self, "_found", [pair.differences for pair in found])
        object.__setattr__(self, "not_compared", not_compared)
        object.__setattr__(self, "mapping", mapping_of((sides[0].table, sides[1].table), found[0].matches))

    @computed_once
    def differences(self) -> Differences:
        """Every `Difference`, in row order; empty if the trees are the same."""
        return Differences(chain.from_iterable(self._found))

    @property
    def brief(self) -> View:
        return self._brief

    def place(self, row: int) -> tuple[int, ...]:
        gap = self._gaps.get(int(self._rows[row]))
        return gap.at or gap.nan_at if gap else ()

    def text(self, *, width: int | None = None, **options: Any) -> str:
        """The table as aligned text, and below it hints that a line may have cut: moved subtrees, conversions."""
        shown = super().text(width=width, **options)
        return "\n".join([shown, *long_hints(self.differences, width, shown)])

    def lines(self, width: int | None = None) -> Iterator[str]:
        yield from super().lines(width)
        yield from long_hints(self.differences, width)

    def json(self) -> str:
        """The JSON of a view with `differences`, [{path, kind, left, …, code}, …], and `not_compared`."""
        names = ("path", "kind", "left", "right", "hint", "tree", "code")
        rows = json.dumps([{name: getattr(difference, name) for name in names} for difference in self.differences])
        added = f',\n"differences": {rows},\n"not_compared": {json.dumps(self.not_compared)}}}'
        return super().json()[:-1] + added


def long_hints(differences: Differences, width: int | None = None, shown: str = "") -> list[str]:
    """The first hints that a line of the table may have cut, unless `shown` has them, and those of conversions."""
    whole = "".join(shown.split())
    # Rows and columns already show which values differ, and how many.
    others = (difference for difference in differences if difference.kind != "value" or difference.is_transpose)
    long = (difference for difference in others if len(difference.hint) > _LONG)
    hints = islice((item for item in long if not whole or "".join(item.note.split()) not in whole), _MOST_HINTS)
    codes = [difference.code for difference in differences if difference.code]
    more = [f"  … {len(codes) - _MOST_HINTS:,} more"] if len(codes) > _MOST_HINTS else []
    converts = ["to convert the first:", *(f"  {code}" for code in codes[:_MOST_HINTS]), *more] if codes else []
    lines = [wrapped(f"{difference.path or 'the root'}: {difference.hint}", width) for difference in hints]
    return [*chain.from_iterable(lines), *converts]


def diff(
    *trees: Any,
    is_leaf: Callable[[Any], bool] | None = None,
    values: bool = True,
    rtol: float = 0.0,
    atol: float = 0.0,
    stacked: Stacked = (),
    like: str | None = None,
    mapping: Mapping[Any, Any] | Callable[[str], Any] | None = None,
) -> TreeDiff:
    """Show every difference between two trees: structure, static fields, shapes, dtypes, sharding, values.

        diff = tv.diff(params, new_params)
        print(diff)                       # in a notebook, it displays itself
        [difference.path for difference in diff.differences if difference.kind == "value"]
        diff.find("is:differs b")

    Children are aligned by key, list elements by index. A node of another type is one difference; but a list and a
    tuple, two kinds of dict, and two classes of one name are also compared inside. Equal rows are counted and left out.
    Siblings that differ in the same way, such as layers, collapse into one row; one that differs in another way keeps
    its own. The differences hold texts and numbers, not arrays.

    A row has one difference of each kind: an array of another dtype with other values has two. A subtree that only one
    tree has is one difference. The column *differ* counts elements: those outside the tolerance, and NaN that only one
    tree has, in arrays of the same shape. NaN is the greatest difference, and a weak type the least.

    Without values, takes as long as walks of both trees. With values, arrays in host memory are read in place, in
    chunks; arrays on an accelerator are reduced there by one program per pair of shapes and dtypes, and some of these
    take magnitudes below 1.2e-38 for zero. NaN equals NaN. Integers are compared without rounding, and functions by
    identity.

    Args:
      *trees: Two or more trees; all others are compared with the first.
      is_leaf: As in `jax.tree.leaves`.
      values: Compare the values of arrays.
      rtol, atol: Two numbers are equal if |left - right| <= atol + rtol * |right|, also integers and bools. Infinities
        and PRNG keys are equal only to themselves.
      stacked: As in `treeviz.render`, globs of arrays of the first tree that hold all layers of a model, "layers/*":
        differences in their values then name the layers, and `find('layers:"3"')` finds the differences in one layer.
      like: "values": only values of arrays count, whatever their names, containers, layouts, order and dtypes. An array
        whose values no array of the other tree has is "missing" or "extra".
      mapping: The names of arrays in the other tree, for those that are not found: `{"layers.*.attn.q_proj.weight":
        "layers/*/attn/query/kernel"}`, a function from one name to the other, or the `mapping` of a result. Without its
        "*" the other name is a stack of the layers; a tuple of names is joined in one array.

    Raises:
      TypeError: There are fewer than two trees, or `stacked` is not a glob.
      ValueError: No array matches `stacked` or a name in `mapping`, `like` is another word, or there are more than
        20,000 arrays for it.
    """
    if like not in (None, "values") or (not values and (like or mapping)):
        raise ValueError(f'diff: like={like!r}, values={values}: pass like="values", and not values=False')
    if len(trees) < 2:
        raise TypeError(f"diff: pass two or more trees, got {len(trees)}: diff(before, after)")
    first, *others = sides = [_side(tree, is_leaf) for tree in trees]
    found, tolerance = [], {"rtol": rtol, "atol": atol}
    for i, other in enumerate(others, 1):
        pair = find_differences(first, other, bars=len(others) == 1, tree=i, values=values, **tolerance)
        options = {"values": values, "mapping": mapping, "only_values": like is not None}
        pair = with_hints(first, other, pair, **tolerance, **options)
        found.append(with_layers(first, other, pair, stacked, **tolerance) if stacked else pair)
    with gc_paused():
        tables = merged(first, others[0], found[0]) if len(others) == 1 else merged_with_all(first, found)
        keystr, not_compared = first.table.keystrs(), {}
        for pair in found:
            rows = pair.aligned.left[[*pair.not_compared]].tolist()
            not_compared |= zip(map(keystr, rows), pair.not_compared.values(), strict=True)
        return TreeDiff(tables, found, not_compared, sides, values=values)


def _leaves(tables: Merged, found: Sequence[Found], sides: Sequence[Side]) -> list[Leaves]:
    """The leaves of each tree at the rows of the table (those of the first of more than two trees)."""
    tree_rows = [found[0].aligned.left[tables.rows], found[0].aligned.right[tables.rows]]
    if len(sides) > 2:
        tree_rows = [tables.rows]
        for pair in found:
            right = np.full(len(sides[0].table), NONE)
            right[pair.aligned.left[pair.aligned.left != NONE]] = pair.aligned.right[pair.aligned.left != NONE]
            tree_rows.append(right[tables.rows])
    leaves = []
    for side, side_rows in zip(sides, tree_rows, strict=True):
        rows = np.flatnonzero((side_rows != NONE) & side.table.is_leaf[side_rows])
        leaves.append(Leaves(rows, [*map(side.nodes.__getitem__, side_rows[rows].tolist())]))
    return leaves


def _chosen(table: TreeTable, names: Sequence[str]) -> tuple[Column, ...]:
    return table.chosen([name for name in names if name in table.columns])


def _for_page(tables: Merged, found: Sequence[Found], kinds: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """The data for assets/diff/diff.js: the kinds of differences, the initially open rows, magnitudes."""
    whole = tables.whole
    noted = np.zeros(len(whole), bool)
    noted[[*whole.notes]] = True
    n_inside = np.append(0, np.cumsum(noted))
    is_above = n_inside[whole.end] > n_inside[1:]
    opened = np.flatnonzero(is_above | (np.arange(len(whole)) == 0))
    n_seen = np.bincount(whole.parent[1:], minlength=len(whole))[opened].sum()
    return {
        "kinds": [(kind, n, MEANINGS[kind]) for kind, n in kinds],
        "names": Difference.names,
        "open": opened.tolist() if n_seen <= _FEW else None,
        "bars": {int(np.searchsorted(tables.rows, row)): bars for row, bars in found[0].bars.items()},
    }


def assert_same(
    left: Any,
    right: Any,
    *,
    is_leaf: Callable[[Any], bool] | None = None,
    values: bool = True,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Raise an AssertionError that names every difference between two trees; see `diff`.

        tv.assert_same(jax.tree.map(jnp.copy, params), params)
        tv.assert_same(jax.jit(jax.grad(loss))(params, batch), grads, rtol=1e-5, atol=1e-6)

    Raises:
      AssertionError: The trees differ, or values cannot be read, such as those of a deleted array. The message lists
        the first 40, one line each. Leaves that are only shapes are compared without values.
    """
    __tracebackhide__ = True  # pytest shows the call instead
    first, other = _side(left, is_leaf), _side(right, is_leaf)
    found = find_differences(first, other, values=values, rtol=rtol, atol=atol)
    found = with_hints(first, other, found, values=values, rtol=rtol, atol=atol)
    keystr, unknown = first.table.keystrs(), []
    for row, reason in found.not_compared.items():
        place = keystr(int(found.aligned.left[row])) or "the root"
        unknown += [f"{place}: not compared: {reason}"] if reason not in _WITHOUT_VALUES else []
    if found.differences or unknown:
        n_more = len(found.differences) + len(unknown) - _MOST_LINES
        lines = [*map(str, found.differences[:_MOST_LINES]), *unknown][:_MOST_LINES]
        lines += [f"… {n_more:,} more"] if n_more > 0 else []
        differ = f"the trees are not the same: {counted(len(found.differences), 'difference')}"
        summary = differ if found.differences else "it is unknown whether the trees are the same"
        raise AssertionError("\n  ".join([summary, *lines]))


def explain_map(tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Differences:
    """Explain why `jax.tree.map(f, tree, *rest, is_leaf=is_leaf)` raises: every mismatch, with its path.

        tv.explain_map({"a": [1, 2], "b": (1,)}, {"a": [1, 2, 3], "b": [1]})
        # ['a']: length: 2 children → 3 children
        # ['b']: type: tuple → list

    As in JAX, a leaf of the first tree matches any subtree of the others, and the values of leaves do not matter. JAX
    reports only one mismatch, and not always the right leaf (jax#39297). Takes about 1 µs per leaf of each tree. No
    values are read, and no user code runs except flatten functions, and `==` and `repr` of keys and static data.

    Returns:
      A list of `Difference`, which is empty exactly if `jax.tree.map` would call the function.
    """
    return map_mismatches(tree, *rest, is_leaf=is_leaf)


def _side(tree: Any, is_leaf: Callable[[Any], bool] | None) -> Side:
    return Side(*scanned(tree, is_leaf, "tree"))
