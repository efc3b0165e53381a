"""The formats of files that hold a whole run, by their suffixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from treeviz.steps.recording.exchange import from_json_lines, to_json_lines
from treeviz.steps.recording.history import History
from treeviz.steps.recording.history_file import load
from treeviz.tree.files.entries import mode_of
from treeviz.tree.safe_repr import error_text, visible

_LONGEST_LINE = 50_000_000  # characters: of the histograms of some 50,000 leaves


def outputs(history: Callable[[], History]) -> dict[str, Callable[[], str | bytes]]:
    """What other programs read, by suffix, for `treeviz.views.save.write`."""
    return {
        ".jsonl": lambda: "".join(f"{line}\n" for line in to_json_lines(history())),
        ".parquet": lambda: _parquet(history()),
    }


def _parquet(history: History) -> bytes:
    from treeviz.integrations.pyarrow import to_parquet

    return to_parquet(history)


def load_run(path: Path) -> History:
    """The run in a file.

    Raises:
      OSError: There is no such file, or it may not be read.
      ValueError: It holds no run, is damaged, or is no file.
      ImportError: It is Parquet, and pyarrow is not installed.
    """
    mode_of(path)
    if path.suffix not in (".jsonl", ".parquet"):
        return load(path)
    try:
        if path.suffix == ".parquet":
            from treeviz.integrations.pyarrow import from_parquet

            return from_parquet(path)
        with open(path, encoding="utf-8") as lines:
            return from_json_lines(_bounded(lines))
    except (OSError, ImportError):
        raise
    except Exception as error:  # json, pyarrow and NumPy raise nearly anything
        raise ValueError(
            f"load: {visible(str(path), 1000)} holds no run that can be read: {error_text(error)}"
        ) from error


def _bounded(file: TextIO) -> Iterator[str]:
    """The lines of a file."""
    while line := file.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"it has a line of more than {_LONGEST_LINE:,} characters")
        yield line
