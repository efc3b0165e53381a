"""Other versions of ipykernel than the installed one, named in TREEVIZ_IPYKERNELS: "6.30 7.1"."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

INSTALLED = "installed"
IPYKERNELS = (INSTALLED, *os.environ.get("TREEVIZ_IPYKERNELS", "").split())


def use_ipykernel(version: str, folder: Path) -> None:
    """The servers in this folder start notebooks with the newest ipykernel of that version, and all else as installed.

    Needs pip, and the network or a mirror of PyPI.
    """
    if version == INSTALLED:
        return
    packages = folder / "packages"
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), f"ipykernel=={version}.*"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    kernel = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": f"Python with ipykernel {version}",
        "language": "python",
        "env": {"PYTHONPATH": os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))},
    }
    # By this name it is found before the installed one.
    spec = folder / "data" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps(kernel))
