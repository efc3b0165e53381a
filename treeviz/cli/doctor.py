"""`treeviz doctor`: the versions and the environment that a bug report needs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from treeviz.cli.output import DIFFERENT, SAME, print_text
from treeviz.tree.tested_jax import TESTED_JAX, TESTED_PYTHON, newer_than_tested, tested_range
from treeviz.tree.text import guarded

_NEEDED = ("jax", "jaxlib", "numpy", "treescope", "anywidget", "ipywidgets")
_OTHERS = ("flax", "equinox", "optax", "orbax-checkpoint", "safetensors", "gguf", "torch", "matplotlib")
_OTHERS += ("jupyterlab", "ipython")


def add(commands: Any) -> argparse.ArgumentParser:
    about = "versions and environment, for a bug report"
    return commands.add_parser("doctor", help=about, description=f"Print {about}; status 1 if something is wrong.")


def run(options: argparse.Namespace) -> int:
    del options
    others = [name for name in _distributions() if name != "jax-treeviz"]
    problems = [f"{name} also provides the import name treeviz: pip uninstall {name}" for name in others]
    problems += [f"{name} is not installed" for name in _NEEDED if not _version(name)]
    lines = [f"{name:<14}{value}" for name, value in _facts().items()]
    print_text("\n".join([*lines, *(f"problem: {text}" for text in problems), *(f"note: {text}" for text in _notes())]))
    return DIFFERENT if problems else SAME


def _facts() -> dict[str, str]:
    import platform

    import treeviz
    from treeviz.views.html.bundle import BUNDLES, packed_file

    facts = {"treeviz": f"{treeviz.__version__} in {Path(treeviz.__file__).parent}"}
    facts["installed by"] = ", ".join(_distributions()) or "no distribution: it is imported from a folder"
    facts["python"] = f"{platform.python_version()} on {platform.platform()}"
    facts |= {name: _version(name) or "not installed" for name in _NEEDED}
    facts["tested with"] = f"jax {', '.join(TESTED_JAX)}; Python {', '.join(TESTED_PYTHON)}"
    facts["others"] = ", ".join(f"{name} {version}" for name in _OTHERS if (version := _version(name))) or "none"
    # Whether pages carry the front end as it is minified for a release.
    is_minified = all(packed_file(bundle).exists() for bundle in BUNDLES)
    checkout = "as in a checkout: pages are a third larger than those of a release"
    facts["front end"] = "minified" if is_minified else checkout
    facts["shell"] = _shell()
    return facts


def _notes() -> list[str]:
    """Facts that may explain a problem. They are not problems themselves, so the status stays 0."""
    version = _version("jax")
    notes = []
    if newer_than_tested(version):
        notes.append(f"jax {version} is newer than any that treeviz was tested with ({tested_range()})")
    if _version("treescope") and (problem := _treescope_problem()):
        notes.append(f"{problem}. Only pictures of values need it: treeviz draws arrays itself")
    return notes


def _treescope_problem() -> str:
    def trouble() -> str:
        from treeviz.integrations.treescope import trouble

        return trouble()

    return guarded(trouble, lambda _: "")  # it fails without JAX, which is not a problem of treescope


def _distributions() -> list[str]:
    """The installed distributions that have a top-level package treeviz."""
    from importlib import metadata

    return sorted(set(metadata.packages_distributions().get("treeviz", [])))


def _version(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _shell() -> str:
    from treeviz.views.view import shell_of_notebook

    if shell_of_notebook() is not None:
        return "a Jupyter kernel"
    terminal = f"terminal {os.environ.get('TERM') or 'without TERM'}, {sys.stdout.encoding}" if sys.stdout else "none"
    colab = ", Colab" if "google.colab" in sys.modules else ""
    return terminal + colab + (", over ssh" if os.environ.get("SSH_CONNECTION") else "")
