"""Lay a prefix over a tree: what stands behind `overlay`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import Differences
from treeviz.analysis.overlay.axes import InAxes, OutAxes
from treeviz.analysis.overlay.masks import Labels, Mask
from treeviz.analysis.overlay.overlaid import Overlaid, Use, overlaid
from treeviz.analysis.overlay.shardings import Shardings
from treeviz.differ import long_hints
from treeviz.prepare import scanned
from treeviz.views.tree_view import TreeView


class TreeOverlay(TreeView):
    """The leaves of a tree with the spec that a prefix gives to each of them, and what does not fit.

        x, params = jnp.ones((8, 3)), {"w": jnp.ones((3, 4))}
        view = treeviz.overlay((0, {"w": 1}), (x, params))
        print(view)
        view.differences            # [1]['w']: size: axis 1 has 4 ([0] has 8)

    Attributes:
      differences: Every mismatch as a `Difference`, in the order of the rows; none if the prefix fits.
    """

    differences: Differences

    def __init__(self, found: Overlaid) -> None:
        super().__init__(found.table, found.table.chosen(found.shown))
        object.__setattr__(self, "differences", found.differences)

    def text(self, *, width: int | None = None, **options: Any) -> str:
        """The table as aligned text, and below it what a line may have cut: what was meant in place of a mismatch."""
        shown = super().text(width=width, **options)
        return "\n".join([shown, *long_hints(self.differences, width, shown)])


_USES: dict[str, Callable[[Any], Use]] = {
    "in_axes": lambda _: InAxes(),
    "out_axes": lambda _: OutAxes(),
    "shardings": Shardings,
    "mask": lambda _: Mask(),
    "labels": lambda _: Labels(),
}


def lay_over(
    prefix: Any, tree: Any, *, use: str, mesh: Any = None, is_leaf: Callable[[Any], bool] | None = None
) -> TreeOverlay:
    """See `treeviz.overlay`."""
    if use not in _USES:
        raise ValueError(f"overlay: there is no use {use!r}; there are {', '.join(map(repr, _USES))}")
    if mesh is not None and use != "shardings":
        raise ValueError(f"overlay: mesh= is for use='shardings', and not for {use!r}")
    if use == "in_axes" and type(tree) is not tuple:
        tree = (tree,)
    side = Side(*scanned(tree, None, "args" if use == "in_axes" else "tree"))
    return TreeOverlay(overlaid(prefix, side, _USES[use](mesh), is_leaf))
