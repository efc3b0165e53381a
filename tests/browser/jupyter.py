"""A real JupyterLab on loopback, with everything it writes in one folder, and what a person does in it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

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


# A test run that is killed leaves no server behind (Linux: PR_SET_PDEATHSIG is 1). Not by `preexec_fn`, since that
# forks, of which JAX warns.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


PATIENCE_S = 180  # for a server, a kernel, a notebook: the machine may be slow, and busy


class Lab:
    """A JupyterLab server. Two with different folders do not trust each other's notebooks."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "notebooks"
        self.root.mkdir(parents=True)
        self._folder = folder
        self._token = secrets.token_hex(8)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def __enter__(self) -> Lab:
        folder = self._folder
        for name, settings in SETTINGS.items():
            file = folder / "settings" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(settings))
        places = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "IPYTHON", "XLA_FLAGS"))}
        environment |= {name: str(folder / place) for name, place in places.items()}
        command = [
            sys.executable,
            "-c",
            DIE_WITH_PARENT,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            "--expose-app-in-browser",
        ]
        command += [f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1"]
        command += [f"--ServerApp.root_dir={self.root}", f"--IdentityProvider.token={self._token}"]
        command += ["--LabApp.extension_manager=readonly", "--ServerApp.terminals_enabled=False"]
        self._log = (folder / "server.log").open("wb")
        self._server = subprocess.Popen(command, env=environment, stdout=self._log, stderr=subprocess.STDOUT)
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self._server.poll() is not None:
                break
            with contextlib.suppress(OSError):
                self._ask("status")
                return self
            time.sleep(0.2)
        raise RuntimeError("JupyterLab did not start:\n" + (folder / "server.log").read_text()[-3000:])

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            for kernel in self._ask("kernels"):
                self._ask(f"kernels/{kernel['id']}", "DELETE")
        self._server.send_signal(signal.SIGTERM)
        try:
            self._server.wait(60)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._log.close()

    def url(self, notebook: str) -> str:
        return f"http://127.0.0.1:{self.port}/lab/tree/{notebook}?token={self._token}&reset"

    def _ask(self, what: str, method: str = "GET") -> Any:
        url = f"http://127.0.0.1:{self.port}/api/{what}"
        request = urllib.request.Request(url, method=method, headers={"Authorization": f"token {self._token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read()
        return json.loads(body) if body else None


def open_notebook(page: Any, lab: Lab, notebook: str) -> None:
    page.goto(lab.url(notebook))
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=1000 * PATIENCE_S)


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
