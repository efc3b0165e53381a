"""argcomplete: completion of the command's arguments in bash, zsh and fish."""

from __future__ import annotations

import argparse
import os


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and end, if it asks what may come next; else do nothing.

    `eval "$(register-python-argcomplete treeviz)"` makes a shell ask: https://kislyuk.github.io/argcomplete
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
