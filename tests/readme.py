"""What README.md shows of itself: its code, and the text that each block of code prints.

python tests/readme.py            runs the code from top to bottom, and fails where a text differs
python tests/readme.py --update   writes the texts anew
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def as_it_runs(readme: str, scope: dict[str, Any]) -> str:
    """README with the texts that its code prints, run from top to bottom.

    Args:
      scope: Has all variables in the end.
    """
    printed = ""

    def run(block: re.Match[str]) -> str:
        nonlocal printed
        if block[1] == "text":
            return f"```text\n{printed.rstrip()}\n```"
        with contextlib.redirect_stdout(io.StringIO()) as file:
            exec(compile(block[2], "README.md", "exec"), scope)
        printed = file.getvalue()
        return block[0]

    with mock.patch.dict(os.environ, {"COLUMNS": "100"}):  # of a text
        return BLOCK.sub(run, readme)


def main() -> None:
    readme = README.read_text("utf-8")
    runs = as_it_runs(readme, {})
    if "--update" in sys.argv:
        README.write_text(runs, "utf-8")
    elif readme != runs:
        import difflib

        sys.exit("\n".join(difflib.unified_diff(readme.split("\n"), runs.split("\n"), "README.md", "as it runs", n=1)))


if __name__ == "__main__":
    main()
