"""Site: the runs and checkpoints that `treeviz serve` shows."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from treeviz.cli.output import one_line
from treeviz.inspector.served import ServedRun, ServedTree, TwoServedRuns
from treeviz.inspector.views import newest_scalars
from treeviz.reader import READERS, identifier, is_checkpoint, read
from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Thresholds
from treeviz.steps.recording.history import main_source
from treeviz.steps.recording.history_file import journal_of, load
from treeviz.views.tree_view import TreeView

RUN = ".treeviz"
MOST_ITEMS, _MOST_LEVELS = 10_000, 6
_SHARE = 0.05  # of the time that a run is read for the list, while it is written


class Site:
    """The runs and checkpoints below some paths and at addresses; none of them is written to.

    An item has a key: its name, after the names of the folders between it and the path that was given.
    """

    def __init__(self, paths: Sequence[Any]) -> None:
        self._paths = paths
        # By key: of which content, what, and when to read it again at the earliest.
        self._facts: dict[str, tuple[tuple[float, int], dict[str, Any], float]] = {}
        self._searching: threading.Thread | None = None
        self._opened: WeakValueDictionary[str, ServedRun] = WeakValueDictionary()
        self._loading = threading.Lock()  # one run at a time, since a large one takes memory and a processor

    def _found(self) -> Iterator[tuple[str, Any, bool]]:
        """The key and the path of each item, and whether it is a run."""
        for path in self._paths:
            if not isinstance(path, Path):  # at an address: the copy of a run, or a checkpoint
                local = getattr(path, "path", None)
                yield path.name if local is None else local.name, path, local is not None
                continue
            if not path.is_dir() or is_checkpoint(path):
                yield path.absolute().name, path, path.suffix == RUN
                continue
            start = f"{path.absolute().name}/" if len(self._paths) > 1 else ""
            for folder, folders, files in os.walk(path):  # follows no links
                here = Path(folder)
                level = len(here.relative_to(path).parts)
                kept = [name for name in sorted(folders) if not name.startswith(".") and not (here / name).is_symlink()]
                checkpoints = [name for name in kept if is_checkpoint(here / name)]
                folders[:] = [name for name in kept if name not in checkpoints] if level < _MOST_LEVELS else []
                items = [name for name in sorted(files) if name[:1] != "." and name.lower().endswith((RUN, *READERS))]
                for item in (here / name for name in (*items, *checkpoints)):
                    if not item.is_symlink():
                        yield start + item.relative_to(path).as_posix(), item, item.suffix == RUN

    def _by_key(self) -> dict[str, tuple[Any, bool]]:
        found: dict[str, tuple[Any, bool]] = {}
        for key, path, is_run in self._found():
            while key in found:
                key += "'"  # two paths with one name
            found[key] = path, is_run
            if len(found) == MOST_ITEMS:
                break
        return found

    def items(self) -> list[dict[str, Any]]:
        """What the list shows, the newest first. Findings and losses are read in the background."""
        listed: list[dict[str, Any]] = []
        for key, (path, is_run) in self._by_key().items():
            written, n_bytes = _content_of(path)
            known, facts, again = self._facts.get(key, ((), {}, 0.0))
            item = {"key": key, "kind": "run" if is_run else "checkpoint", "written": written, "bytes": n_bytes}
            is_old = is_run and known != (written, n_bytes) and time.monotonic() >= again
            listed.append({**item, **facts, "isOld": is_old})
        listed.sort(key=lambda item: -item["written"])
        if any(item["isOld"] for item in listed) and (self._searching is None or not self._searching.is_alive()):
            self._searching = threading.Thread(target=self._search, args=(listed,), daemon=True, name="treeviz list")
            self._searching.start()
        return listed

    def _search(self, listed: list[dict[str, Any]]) -> None:
        paths = self._by_key()
        for item in listed:
            if item["isOld"] and (key := item["key"]) in paths:
                began = time.monotonic()
                with self._loading:
                    facts = _facts_of(paths[key][0], self._opened.get(key))
                ended = time.monotonic()
                self._facts[key] = (item["written"], item["bytes"]), facts, ended + (ended - began) / _SHARE

    def open(self, key: str | tuple[str, str], publish: Any) -> Any:
        """Open a run, a checkpoint or two runs; raises KeyError if there is none, or what reading raises."""
        paths = self._by_key()
        if isinstance(key, tuple):
            with self._loading:
                names = (key[0].removesuffix(RUN), key[1].removesuffix(RUN))
                return TwoServedRuns([paths[each][0] for each in key], names, publish)
        path, is_run = paths[key]
        if not is_run:
            from treeviz.explorer import Explored
            from treeviz.prepare import prepare

            def make_view(tree: Any, trees: Any) -> tuple[TreeView, list[Any]]:
                prepared = prepare(tree, name=identifier(path))
                return TreeView(prepared.table, prepared.columns), prepared.nodes

            return ServedTree(Explored(read(path), make_view, trees={}, keep=True, by_page=True))
        with self._loading:
            run = self._opened[key] = ServedRun(path, publish)
            run.content()  # it is kept
        return run


def _content_of(path: Any) -> tuple[float, int]:
    """When an item was last written, in seconds since 1970, and its bytes; of a folder, and at an address, 0."""
    written, n_bytes = 0.0, 0
    if not isinstance(path, Path):
        if not hasattr(path, "path"):
            return written, n_bytes
        with contextlib.suppress(OSError, ValueError):
            path.update()
        path = path.path
    for part in (path, journal_of(path)) if path.suffix == RUN else (path,):
        with contextlib.suppress(OSError):
            status = part.stat()
            written, n_bytes = max(written, status.st_mtime), n_bytes + (0 if part.is_dir() else status.st_size)
    return written, n_bytes


def _facts_of(path: Any, opened: ServedRun | None) -> dict[str, Any]:
    """What the list says of a run, which a page may have opened; what is wrong with its file as a finding."""
    try:
        # A page goes on with a later run of the same name.
        is_as_shown = opened is not None and opened.path == getattr(path, "path", path)
        with opened.read() if opened and is_as_shown else contextlib.nullcontext(load(path)) as history:
            if not history:
                return {"steps": 0}
            found = findings(history, thresholds=Thresholds())
            source = main_source(history)
            recorded = history.tracks[source, history.statistics(source)[0]].entry_steps()
            numbering = history.numbering(source)
            return {
                "name": history.name,
                "steps": int(recorded[2].sum()),
                "step": numbering.text(numbering.position(recorded[1, -1], recorded[4, -1])),
                "scalars": newest_scalars(history),
                "findings": [[finding.severity, finding.sentence] for finding in found[:3]],
                "nFindings": len(found),
            }
    except Exception as error:  # a file of another program, or one that is being written
        text = one_line(error).removeprefix(f"load: {path} is ")  # its name is beside it
        return {"findings": [["error", text]], "nFindings": 1}
