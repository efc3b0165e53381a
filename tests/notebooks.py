"""Notebooks that are executed with a kernel of their own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import pythons
from compiling import PLAIN_FLAGS

HOUSE = Path(__file__).parents[1]
WIDGET = "application/vnd.jupyter.widget-view+json"


def environment() -> dict[str, str]:
    """That of a user: one CPU device, where the tests have eight."""
    return {**os.environ, "XLA_FLAGS": PLAIN_FLAGS, "PYTHONPATH": str(HOUSE), "PYTHONIOENCODING": "utf-8"}


def read(path: Path):
    return pytest.importorskip("nbformat").read(path, as_version=4)


def execute(notebook, folder: Path):
    nbclient = pytest.importorskip("nbclient")
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    with pytest.MonkeyPatch.context() as patch:
        pythons.put_kernel(folder / "jupyter")
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
        return client.execute(env=environment())


def executed(path: Path, tmp_path_factory: pytest.TempPathFactory):
    """A notebook with its outputs. Of all processes of a test run the first one that asks executes it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    done = shared / path.name
    with done.with_suffix(".lock").open("w") as lock:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            notebook = execute(read(path), tmp_path_factory.mktemp("notebook"))
            done.write_text(pytest.importorskip("nbformat").writes(notebook), "utf-8")
    return read(done)


def check_views(notebook) -> None:
    """No cell failed, and every view is there as a page and as text, also those beside widgets."""
    views = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            assert output.output_type != "error"
            if WIDGET in output.get("data", {}):
                assert output.data["text/html"] == ""  # where no widget can be, the page that comes next stands alone
            elif "text/html" in output.get("data", {}):
                views += 1
                assert "data-treeviz" in output.data["text/html"]
                assert re.search(
                    r" leaves( ·|\n)| differences?: | parameters are trained| FLOPs: ", output.data["text/plain"]
                )
                assert "\x1b" not in output.data["text/plain"]
    assert views
