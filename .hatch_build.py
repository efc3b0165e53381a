"""Minify the front end for a wheel: a fifth of each page. A checkout, and an editable install, serve the sources."""

from __future__ import annotations

import re
import runpy
from itertools import product
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Properties of the front end that get short names. A minifier leaves them as they are, since it does not know that only
# the front end uses them. They are in no text of it: tests/views/html/test_bundle.py reads this list.
OURS = """
hits isFlat isNumber factCodes nChildren isHidden keyCodes isFolding unfolded wordIndex openTo emit setStatus
layOut nHits observer hasChildren detailPlace showBlanks paintHead nPrinted rowAt openFiltered styleBefore
showDetail seriesView maxDepth isStale lastTop nLeaves nFacts isOpen nSeen goTo filtered placeAmong isLikeNext
showCount isNarrow setFlat setOpen rankOf isBad reveal pool hidesBlanks isInserted membersOf outlierOf
keyColumn hasRuns nextHit urgency edition settle reservedWidth selectMatches setFiltering labelLength
nameInFile moreDetail setFolding openFirst isOfFacts hitNumber standsFor searchBox folds widths header sorting
ends term runs filtering asked onArrow fold fact field expression place measured quoted rollup words choose
maxLevels draw spec outlier isLog heatMap bucketAt stride stepsText isRelative valueAt hasNotes nInSight
warmUp isSlim addsUp sortBy nMore panels isApart isSum growing
"""
CONSTANT = re.compile(r"\bconst ([A-Z][A-Z_]+) = ([\d.e_]+);\n?")
OUR_STYLE = re.compile(r"--(?!jp-|vscode-)[a-z][a-z-]*")  # custom properties that are not the host's


def shortened(text: str) -> str:
    """The script with short names of what is only ours, and with numbers in place of their names."""
    numbers = dict(CONSTANT.findall(text))
    styles = sorted(set(OUR_STYLE.findall(text)), key=lambda name: (-text.count(name), name))
    codes = dict(zip(styles, [*ascii_lowercase, *map("".join, product(ascii_lowercase, repeat=2))], strict=False))
    text = OUR_STYLE.sub(lambda name: f"--{codes[name[0]]}", CONSTANT.sub("", text))
    short = [*ascii_uppercase, *map("".join, product(ascii_lowercase, ascii_uppercase))]
    words = dict(zip(OURS.split(), short, strict=False)) | numbers
    text = re.sub(r"\b[A-Za-z]\w+", lambda name: words.get(name[0], name[0]), text)
    # One word for all declarations deflates better.
    return re.sub(r"\bconst (?=[\w{[])", "let ", text)


def packed(text: str, shortens: bool = True) -> bytes:
    """A script, minified and deflated."""
    import minify
    from zopfli.zlib import compress

    minified = minify.string("application/javascript", shortened(text) if shortens else text)
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
                file.write_bytes(packed(bundle["readable"](name), shortens=name != "site"))
            except ImportError as error:  # there is no wheel of it for this machine: see `requires` in pyproject.toml
                self.app.display_warning(f"the front end is not minified, and pages are a third larger: {error}")
                return
            build_data["force_include"][str(file)] = place.relative_to(self.root).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self.folder.cleanup()
