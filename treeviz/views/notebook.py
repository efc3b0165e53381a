"""Whether this process is a notebook, IPython in a terminal, or neither. Never imports IPython."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from treeviz.tree.source_lines import ipython_shell


def shell_of_notebook() -> Any | None:
    """The IPython shell if it runs in a kernel, so that outputs appear below a cell; else None."""
    shell = ipython_shell()
    return shell if getattr(shell, "kernel", None) is not None else None


def shows_html() -> bool:
    """Whether HTML is displayed; IPython in a terminal shows only text."""
    formatter = getattr(ipython_shell(), "display_formatter", None)
    return "text/html" in getattr(formatter, "active_types", ["text/html"])


def publish(
    data: Mapping[str, Any], metadata: Mapping[str, Any], *, display_id: str | None = None, update: bool = False
) -> None:
    """Send a MIME bundle to the running cell; with `update`, to the output that has this `display_id`."""
    shell = ipython_shell()
    if shell is not None:
        transient = {"display_id": display_id} if display_id else {}
        shell.display_pub.publish(data=dict(data), metadata=dict(metadata), transient=transient, update=update)


def outputs_share_a_page() -> bool:
    """Whether a script in one output can access the others; in Colab each output is a separate frame."""
    return "google.colab" not in sys.modules
