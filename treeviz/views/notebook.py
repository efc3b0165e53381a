"""Where we are: in a notebook, in a terminal's IPython, or in neither. IPython is never imported for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def shell_of_notebook() -> Any | None:
    """The IPython shell if it runs in a kernel, so that what is displayed lands below a cell."""
    shell = _shell()
    return shell if getattr(shell, "kernel", None) is not None else None


def shows_html() -> bool:
    """Whether HTML is of any use here: not in a terminal's IPython, which shows text only."""
    formatter = getattr(_shell(), "display_formatter", None)
    return "text/html" in getattr(formatter, "active_types", ["text/html"])


def publish(
    data: Mapping[str, Any], metadata: Mapping[str, Any], *, display_id: str | None = None, update: bool = False
) -> None:
    """Send a bundle to the cell that runs, or, to update it, to wherever the one with this id is."""
    shell = _shell()
    if shell is not None:
        transient = {"display_id": display_id} if display_id else {}
        shell.display_pub.publish(data=dict(data), metadata=dict(metadata), transient=transient, update=update)


def outputs_share_a_page() -> bool:
    """Whether the scripts of one output see the others: not in Colab, where each is a page of its own."""
    return "google.colab" not in sys.modules


def _shell() -> Any | None:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
