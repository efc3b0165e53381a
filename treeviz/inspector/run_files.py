"""The formats of files that hold a whole run, by their suffixes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from treeviz.steps.recording.exchange import from_json_lines, to_json_lines
from treeviz.steps.recording.history import History
from treeviz.steps.recording.history_file import load
from treeviz.tree.safe_repr import error_text, visible


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
      ValueError: It holds no run, or is damaged.
      ImportError: It is Parquet, and pyarrow is not installed.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        return load(path)
    path.stat()
    try:
        if path.suffix == ".parquet":
            from treeviz.integrations.pyarrow import from_parquet

            return from_parquet(path)
        with open(path, encoding="utf-8") as lines:
            return from_json_lines(lines)
    except (OSError, ImportError):
        raise
    except Exception as error:  # json, pyarrow and NumPy raise nearly anything
        raise ValueError(
            f"load: {visible(str(path), 1000)} holds no run that can be read: {error_text(error)}"
        ) from error
