"""Servers on loopback that a test starts: what they write lands in one folder, and they end with their test."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pythons
from compiling import PLAIN_FLAGS

PATIENCE_S = 180  # for a server, a kernel, a notebook: the machine may be slow, and busy

GOODBYE_S = 15  # for a server to end in good order: one whose kernel is only just starting may wait for ever

# `python -m MODULE`. A test run that is killed leaves no server behind (Linux: PR_SET_PDEATHSIG is 1). Not by
# `preexec_fn`, since that forks, of which JAX warns. What is hidden takes two seconds to import: tests/fast_imports.py.
RUN_MODULE = """
import ctypes, runpy, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
sys.modules["rfc3987_syntax"] = None
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

_PLACES = {
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    "IPYTHONDIR": "ipython",
    "XDG_CONFIG_HOME": "config",
    "XDG_STATE_HOME": "state",
}
_NOT_INHERITED = ("JUPYTER", "IPYTHON", "MARIMO")


def environment_in(folder: Path) -> dict[str, str]:
    """This process's environment, but for what would lead a Jupyter elsewhere than into the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    ours_first = {"JUPYTER_PREFER_ENV_PATH": "0"}  # what a test puts in the folder goes before what the environment has
    places = {name: str(folder / place) for name, place in _PLACES.items()}
    return kept | places | ours_first | {"XLA_FLAGS": PLAIN_FLAGS}


class Server:
    """A module of Python's that serves on loopback, as a context.

    Args:
      arguments: Of the module; "{port}" and "{token}" stand for those of this server.
      ready: What is there as soon as the server is, below its address.
    """

    def __init__(self, folder: Path, module: str, arguments: Sequence[str], *, ready: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._module, self._ready = folder, module, ready
        self.token = secrets.token_hex(8)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._arguments = [argument.format(port=self.port, token=self.token) for argument in arguments]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self):
        log = self._folder / "server.log"
        if not (self._folder / "data" / "kernels").exists():  # kernels.py may have put one there
            pythons.put_kernel(self._folder / "data")
        command = [sys.executable, "-c", RUN_MODULE, self._module, *self._arguments]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=environment_in(self._folder), stdout=output, stderr=subprocess.STDOUT, cwd=self._folder
            )
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self.fetch(self._ready)
                return self
            except OSError:
                time.sleep(0.2)
        self._process.kill()
        self._process.wait()
        raise RuntimeError(f"{self._module} did not start:\n{log.read_text(errors='replace')[-3000:]}")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fetch(self, path: str, method: str = "GET", timeout_s: float = 60) -> bytes:
        request = urllib.request.Request(
            self.address + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.read()
