"""What `%config TreeViz` sets: how trees are displayed by default."""

from __future__ import annotations

from traitlets import Bool, Int
from traitlets.config import Configurable


class TreeViz(Configurable):
    """How treeviz displays trees by default: see `treeviz.render`."""

    stats = Bool(False, help="Read the values of arrays: min, max, mean, NaN, a histogram …").tag(config=True)
    values = Bool(False, help="Draw the values of arrays in the details of the rows.").tag(config=True)
    check = Bool(False, help="Show what is wrong as badges.").tag(config=True)
    depth = Int(None, allow_none=True, help="How many levels are open at first; None: as many as fit.").tag(config=True)
    whole = Bool(False, help="Walk, read and send all of a tree, however large.").tag(config=True)

    def options(self) -> dict:
        return {name: getattr(self, name) for name in self.class_own_traits(config=True)}
