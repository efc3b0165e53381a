"""Names of measured trees: "updates of generator" belong to the same step as "grads of generator"."""

from __future__ import annotations

import re

_KINDS = ("grads", "params", "updates")


def kind_of(name: str) -> str:
    """ "grads", "params" or "updates", by the first word of a name; "" for a name that the user chose."""
    first = name.split(" ")[0]
    return first if first in _KINDS else ""


def name_of_tap(name: str) -> str:
    """The name of a tapped tree: "tap grads" where the user's is that of a gradient, of parameters or of updates."""
    return f"tap {name}" if kind_of(name) else name


def sibling_name(name: str, kind: str) -> str:
    """The name of the tree of another kind in the same step: "grads of critic" gives "params of critic".

    Micro-batches ("grads #2") share one tree of parameters and one of updates. A name that the user chose gives the
    kind itself: the step is assumed to have one such tree.
    """
    mine = kind_of(name)
    return kind + re.sub(r" #\d+(?= of | since |$)", "", name.removeprefix(mine)) if mine else kind


def section_of(name: str) -> tuple[str, str]:
    """The name of a tree without its section, and the section: "grads" and " since step 12", or "grads" and ""."""
    section = re.search(r"( since step \d+( again)*)?$", name)
    assert section is not None
    return name[: section.start()], section.group()
