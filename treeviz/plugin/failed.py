"""What is said where treeviz fails to display something, so that it stays as it was."""

from __future__ import annotations

import sys

from treeviz.tree.safe_repr import error_text


def tell(what: str, error: Exception) -> None:
    """One line on standard error."""
    print(f"treeviz: {what}, since it failed with {error_text(error)}", file=sys.stderr)
