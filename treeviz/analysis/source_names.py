"""What a source's name says: "updates of generator" are the updates beside "grads of generator"."""

from __future__ import annotations

import re

_KINDS = ("grads", "params", "updates")


def kind_of(name: str) -> str:
    """ "grads", "params" or "updates"; "" of what somebody else named."""
    first = name.split(" ")[0]
    return first if first in _KINDS else ""


def beside(name: str, kind: str) -> str:
    """The name of the "params" or "updates" beside a source; those of micro-batches are beside "grads #2" as well.

    What somebody else named is taken for the only tree of its kind.
    """
    mine = kind_of(name)
    return kind + re.sub(r" #\d+(?= of |$)", "", name.removeprefix(mine)) if mine else kind
