"""argcomplete: completion of the command's arguments in bash, zsh and fish."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

_FIRST = re.compile(r"\s*\S+\s+(?=([^\s-]\S*)\s)")  # the text before a complete first argument that is not an option


def complete(parser: argparse.ArgumentParser, commands: Any) -> None:
    """If the shell requests completions, print them and exit; else do nothing.

    `eval "$(register-python-argcomplete treeviz)"` enables the requests: https://kislyuk.github.io/argcomplete
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        commands.completer = argcomplete.FilesCompleter()
        line = os.environ.get("COMP_LINE", "")
        first = _FIRST.match(line)
        if first and first[1] not in commands.choices:  # `treeviz FILE` is `treeviz show FILE`
            os.environ["COMP_LINE"] = f"{first[0]}show {line[first.end() :]}"
            os.environ["COMP_POINT"] = str(int(os.environ.get("COMP_POINT", len(line))) + len("show "))
        argcomplete.autocomplete(parser)
