"""A real JupyterLab on loopback, or a Notebook, and what a person does in it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from browser.server import GOODBYE_S, Server
from browser.server import PATIENCE_S as PATIENCE_S

# What Lab says of itself: of a session that begins while its notebook is being closed (`Disposed`, or that there is no
# `kernel`, for which no script of ours asks), of its list of files while one is replaced, and, as anywidget does, of
# every widget, also one that does nothing, that is closed before its module has come.
NOT_OURS = re.compile(
    r"favicon|ResizeObserver loop|was preloaded|/lsp/status|Failed to initialize model"
    r"|^page error: (Disposed|Cannot read properties of null \(reading 'kernel'\))$"
    r"|/api/contents\?content=1&hash=0&|Directory not found: \"\""
)
SETTINGS = {
    # neither the news nor the update check finds a network, and both cover the page
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    # cells that are not on the screen stay in the document
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
    "@jupyterlab/apputils-extension/themes": {"adaptive-theme": False},
}


class Lab(Server):
    """A JupyterLab server, which also serves Notebook below `notebooks` and Voilà below `voila`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "notebooks"
        self.root.mkdir(parents=True)
        arguments = [
            "--no-browser",
            "--allow-root",
            "--expose-app-in-browser",
            "--JupyterNotebookApp.expose_app_in_browser=True",
            "--ServerApp.port={port}",
            "--ServerApp.port_retries=0",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.root_dir={self.root}",
            "--IdentityProvider.token={token}",
            "--LabApp.extension_manager=readonly",
            "--ServerApp.terminals_enabled=False",
        ]
        super().__init__(folder, "jupyterlab", arguments, ready="api/status")

    def __enter__(self) -> Lab:
        for name, settings in SETTINGS.items():
            file = self._folder / "settings" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(settings))
        file = self._folder / "config" / "labconfig" / "page_config.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"buildAvailable": False, "buildCheck": False}))  # else each page asks npm
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self.end_kernels()
        super().__exit__(*error)

    def end_kernels(self) -> None:
        for kernel in self._kernels():
            self.fetch(f"api/kernels/{kernel['id']}", "DELETE", GOODBYE_S)

    def _kernels(self) -> list[dict]:
        """All kernels. The server cannot list them while it starts one: that has no time of its last activity yet."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._ask("kernels")
            except HTTPError as error:
                if error.code != 500 or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def url(self, notebook: str, pages: str = "lab/tree") -> str:
        return f"{self.address}{pages}/{notebook}?token={self.token}&reset"

    def _ask(self, what: str, method: str = "GET") -> Any:
        body = self.fetch(f"api/{what}", method)
        return json.loads(body) if body else None


def write_notebook(lab: Lab, name: str, *cells: str) -> None:
    """Put a notebook with these cells into the folder of the server."""
    import nbformat

    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(notebook, lab.root / name)


def copy_untrusted(lab: Lab, name: str) -> str:
    """The name of a copy that nobody trusts: what stands in it has not been signed."""
    import nbformat

    notebook = nbformat.read(lab.root / name, as_version=4)
    notebook.metadata["is_copy"] = True
    nbformat.write(notebook, lab.root / f"untrusted-{name}")
    return f"untrusted-{name}"


def open_notebook(page: Any, lab: Lab, notebook: str, pages: str = "lab/tree") -> None:
    """Open it in a new page, or in the Lab that the page already shows: that takes a fifth of the time."""
    if page.url.startswith(lab.address):
        # What the command returns stays in the page: to hand a whole notebook over takes two seconds.
        page.evaluate(
            """async (path) => {
                await window.jupyterapp.commands.execute('docmanager:open', { path, factory: 'Notebook' });
            }""",
            notebook,
        )
    else:
        page.goto(lab.url(notebook, pages))
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=1000 * PATIENCE_S)


def close_notebooks(page: Any) -> None:
    """Their kernels go on."""
    page.evaluate("() => [...window.jupyterapp.shell.widgets('main')].forEach((widget) => widget.dispose())")
    page.wait_for_selector(".jp-Notebook", state="detached")


def run_all_cells(page: Any) -> None:
    """Run the notebook that is open, and wait until its last cell has run, or one has failed."""
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.context.sessionContext.session?.kernel?.status === 'idle'",
        timeout=1000 * PATIENCE_S,
    )
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(
        """() => {
          const notebook = window.jupyterapp.shell.currentWidget;
          const cells = notebook.content.widgets
            .filter(c => c.model.type === 'code' && c.model.sharedModel.source.trim());
          const has_failed = cells.some(c => c.model.outputs.toJSON().some(output => output.output_type === 'error'));
          return notebook.context.sessionContext.session.kernel.status === 'idle'
            && (has_failed
              || cells.every(c => c.model.executionCount != null && c.model.executionState !== 'running'));
        }""",
        timeout=1000 * PATIENCE_S,
    )


def save(page: Any) -> None:
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")


def errors_in_cells(page: Any) -> list[str]:
    selectors = [f'[data-mime-type="application/vnd.jupyter.{kind}"]' for kind in ("error", "stderr")]
    return page.evaluate("s => [...document.querySelectorAll(s)].map(e => e.innerText)", ", ".join(selectors))


def n_cells(page: Any) -> int:
    return page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets.length")


def set_theme(page: Any, theme: str) -> None:
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    light = "false" if "Dark" in theme else "true"
    page.wait_for_function("light => document.body.dataset.jpThemeLight === light", arg=light)
