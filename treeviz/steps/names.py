"""Names of measured trees: "updates of generator" belong to the same step as "grads of generator"."""

from __future__ import annotations

import re

_BESIDE = ("params", "updates", "received")  # measured together with gradients
_KINDS = ("grads", *_BESIDE)
RESULT_KINDS = ("loss", "scalar", "parameter", "other")
"""Of the results of a step: "scalar" stands for the loss where that is not known."""


def kind_of(name: str) -> str:
    """ "grads", "params", "updates" or "received", by the first word of a name; "" for a name that the user chose."""
    first = name.split(" ")[0]
    return first if first in _KINDS else ""


def is_beside(name: str) -> bool:
    """Whether a tree goes with a tree of gradients: parameters, updates, and what the optimizer receives."""
    return kind_of(name) in _BESIDE


def name_of_tap(name: str) -> str:
    """The name of a tapped tree: "tap grads" where the user's is that of a gradient, of parameters or of updates."""
    return f"tap {name}" if kind_of(name) or result_kind(name) else name


def name_of_result(kind: str) -> str:
    """The name of the results of a kind: "loss result"."""
    return f"{kind} result"


def result_kind(name: str) -> str:
    """The kind of the results that a tree holds, one of `RESULT_KINDS`, or "unchanged"; "" for any other tree."""
    kind, _, rest = name.partition(" ")
    return kind if kind in (*RESULT_KINDS, "unchanged") and rest.split(" ")[0] == "result" else ""


def sibling_name(name: str, kind: str) -> str:
    """The name of the tree of another kind in the same step: "grads of critic" gives "params of critic".

    Micro-batches ("grads #2") share one tree of parameters and one of updates. A name that the user chose gives the
    kind itself: the step is assumed to have one such tree.
    """
    mine = kind_of(name)
    return kind + re.sub(r" #\d+(?= of | since |$)", "", name.removeprefix(mine)) if mine else kind


def title_of(name: str) -> str:
    """What a column of a tree is called: "grads of critic since step 9" are "grads", as the headline says of what."""
    name = section_of(name)[0]
    return name.split(" of ")[0] if kind_of(name) else name


def natural(text: str) -> list[tuple[int, str]]:
    """A sort key in which "layer 2" comes before "layer 10"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text)]


def section_of(name: str) -> tuple[str, str]:
    """The name of a tree without its section, and the section: "grads" and " since step 12", or "grads" and ""."""
    section = re.search(r"( since step \d+( again)*)?$", name)
    assert section is not None
    return name[: section.start()], section.group()
