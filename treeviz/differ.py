"""Compare trees: what stands behind `diff`, `explain_map` and `assert_same`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import Differences
from treeviz.analysis.compare.merged import joined_table, merged_table
from treeviz.analysis.compare.rearranged import with_hints
from treeviz.analysis.compare.tree_diff import find_differences
from treeviz.prepare import scanned
from treeviz.tree.column import Column
from treeviz.tree.table import TreeTable
from treeviz.views.tree_view import TreeView

_FEW = 500  # rows that are all open at first
_MOST_LINES = 40  # differences in the message of an AssertionError
_LONG = 30  # characters of a hint that a line of the table may cut
_MOST_HINTS = 10


class TreeDiff(TreeView):
    """What differs between trees: a list of differences, and a view of them.

        diff = treeviz.diff({"w": jnp.ones(3)}, {"w": jnp.ones(4)})
        print(diff)
        [each.path for each in diff.differences if each.kind == "shape"]  # ["['w']"]

    Attributes:
      differences: Every `Difference`, in the order of the rows; none where the trees are the same.
      not_compared: Why the values of some leaves were not compared, by key path: "abstract", "deleted" …
    """

    differences: Differences
    not_compared: dict[str, str]

    def __init__(
        self,
        table: TreeTable,
        columns: Sequence[Column],
        differences: Differences,
        not_compared: dict[str, str],
        depth: int | None = None,
    ) -> None:
        super().__init__(table, columns, depth=depth)
        object.__setattr__(self, "differences", differences)
        object.__setattr__(self, "not_compared", not_compared)

    def text(self, **options: Any) -> str:
        """The table as aligned text, and below it what a line may have cut: where a subtree went, how to convert it."""
        return "\n".join([super().text(**options), *long_hints(self.differences)])


def long_hints(differences: Differences) -> list[str]:
    """A line for each of the first hints that a line of the table may cut."""
    hints = [each for each in differences if len(each.hint) > _LONG][:_MOST_HINTS]
    return [f"{each.path or 'the root'}: {each.hint}" for each in hints]


def tree_diff(
    trees: Sequence[Any], *, is_leaf: Callable[[Any], bool] | None, values: bool, rtol: float, atol: float
) -> TreeDiff:
    """Compare each tree with the first; see `treeviz.diff`."""
    first, *others = [_side(tree, is_leaf) for tree in trees]
    found = [
        with_hints(first, other, find_differences(first, other, values=values, rtol=rtol, atol=atol, tree=i))
        for i, other in enumerate(others, 1)
    ]
    table = merged_table(first, others[0], found[0]) if len(others) == 1 else joined_table(first, found)
    shown = ["delta", "differ"] if len(others) == 1 else [f"tree {i}" for i in range(1, len(trees))]
    not_compared = {
        first.table[row].keystr: why
        for each in found
        for row, why in zip(each.aligned.left[[*each.not_compared]].tolist(), each.not_compared.values(), strict=True)
    }
    return TreeDiff(
        table,
        table.chosen([name for name in shown if name in table.columns]),
        Differences(difference for each in found for difference in each.differences),
        not_compared,
        depth=int(table.depth.max()) + 1 if len(table) <= _FEW else None,
    )


def check_same(
    left: Any, right: Any, *, is_leaf: Callable[[Any], bool] | None, values: bool, rtol: float, atol: float
) -> None:
    """See `treeviz.assert_same`."""
    __tracebackhide__ = True  # pytest shows the call instead
    first, other = _side(left, is_leaf), _side(right, is_leaf)
    found = with_hints(first, other, find_differences(first, other, values=values, rtol=rtol, atol=atol)).differences
    if found:
        n_more = len(found) - _MOST_LINES
        lines = [str(each) for each in found[:_MOST_LINES]] + ([f"… {n_more:,} more"] if n_more > 0 else [])
        n = f"{len(found):,} {'difference' if len(found) == 1 else 'differences'}"
        raise AssertionError("\n  ".join([f"the trees are not the same: {n}", *lines]))


def _side(tree: Any, is_leaf: Callable[[Any], bool] | None) -> Side:
    return Side(*scanned(tree, is_leaf, "tree"))
