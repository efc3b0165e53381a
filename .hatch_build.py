"""Minify the front end for a wheel: a fifth of each page. A checkout, and an editable install, serve the sources."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def packed(text: str) -> bytes:
    """A script, minified and deflated."""
    import minify
    from zopfli.zlib import compress

    # One word for all declarations deflates better.
    text = re.sub(r"\bconst (?=[\w{[])", "let ", text)
    minified = minify.string("application/javascript", text)
    return compress(minified.encode(), numiterations=15)[2:-4]  # without what zlib puts around it


class Minify(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        bundle = runpy.run_path(str(Path(self.root, "treeviz", "views", "html", "bundle.py")))
        self.folder = TemporaryDirectory()
        for name in bundle["BUNDLES"]:
            place = bundle["packed_file"](name)
            file = Path(self.folder.name, place.name)
            try:
                file.write_bytes(packed(bundle["readable"](name)))
            except ImportError as error:  # there is no wheel of it for this machine: see `requires` in pyproject.toml
                self.app.display_warning(f"the front end is not minified, and pages are a third larger: {error}")
                return
            build_data["force_include"][str(file)] = place.relative_to(self.root).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self.folder.cleanup()
