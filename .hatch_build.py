"""Minify the front end for a wheel: a fifth of each page. A checkout, and an editable install, serve the sources."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Properties of the front end that get short names in code, not in texts. A minifier leaves them as they are, since it
# does not know that only the front end uses them: tests/views/html/test_bundle.py compares them with what Python sends.
OURS = """
above active addsUp anchor ask asked banner below bucketAt changed choose chosen column copier copy depth
descending detailed detailPlace draw edition element emit ends expression fact factCodes field filtered filtering fit
fold folds format found goTo grid growing hasChildren hasNotes hasRuns header heatMap help hidesBlanks hitNumber hits
index isApart isBad isFlat isFolding isHidden isInserted isLikeNext isLog isNarrow isNumber isOfFacts isOpen isRelative
isSlim isStale isSum kept keyCodes keyColumn keystr labelLength labels lastTop layOut layout level maxDepth maxLevels
measured membersOf moreDetail most nameInFile nChildren negated nextHit nFacts nHits nInSight nLeaves nMore nPrinted
nSeen observer onArrow opened openFiltered openFirst openTo order outlier outlierOf paint paintHead panels parent place
placeAmong pool quoted rankOf reserved reservedWidth resize reveal rollup root rowAt runs savePage search searchBox
segment selectMatches seriesView setFiltering setFlat setFolding setOpen setStatus settle showBlanks showCount
showDetail shown sortBy sorting spec standsFor stepsText stride styleBefore template term tree unfold unfolded update
urgency valueAt view visible warmUp widths wordIndex words
"""
CONSTANT = re.compile(r"\bconst ([A-Z][A-Z_]+) = ([\d.e_]+);\n?")
OUR_STYLE = re.compile(r"--(?!jp-|vscode-)[a-z][a-z-]*")  # custom properties that are not the host's
KEYWORDS = ("as", "do", "if", "in", "is", "of")
LETTERS = "etnsoiarcldumfpgvbhjkwyxz"  # the most frequent ones of a minified script first
# A text, a regular expression, or part of the code of a script.
PIECE = re.compile(
    r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
    r"""|(?:(?<=[=(,:!&|?;{}>\n])|(?<=return))\s*/(?![/*])(?:[^/\\[\n]|\\.|\[(?:[^]\\\n]|\\.)*])+/\w*"""
    r"""|\b[A-Za-z]\w+|.""",
    re.DOTALL,
)
TEMPLATE = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*(`|\$\{)", re.DOTALL)


def shortened(text: str) -> str:
    """The script with short names of what is only ours, and with numbers in place of their names."""
    numbers = dict(CONSTANT.findall(text))
    styles = sorted(set(OUR_STYLE.findall(text)), key=lambda name: (-text.count(name), name))
    codes = dict(zip(styles, [*ascii_lowercase, *map("".join, product(ascii_lowercase, repeat=2))], strict=False))
    text = OUR_STYLE.sub(lambda name: f"--{codes[name[0]]}", CONSTANT.sub("", text))
    counts = Counter(re.findall(r"\w+", text))
    ours = sorted(OURS.split(), key=lambda word: -counts[word])
    free = (name for name in map("".join, product(LETTERS, LETTERS)) if name not in {*counts, *KEYWORDS})
    text = "".join(in_code(text, dict(zip(ours, free, strict=False)) | numbers))
    # One word for all declarations deflates better.
    return re.sub(r"\bconst (?=[\w{[])", "let ", text)


def in_code(text: str, words: dict[str, str]) -> Iterator[str]:
    """The pieces of a script with other words in its code, not in its texts."""
    at, braces = 0, [0]  # that are open in the code, and in each template's expression around this place
    while at < len(text):
        piece = PIECE.match(text, at)[0]
        at += len(piece)
        braces[-1] += {"{": 1, "}": -1}.get(piece, 0)
        yield words.get(piece, piece)
        if piece == "`" or braces[-1] < 0:
            if piece == "}":
                braces.pop()
            literal = TEMPLATE.match(text, at)
            at = literal.end()
            yield literal[0]
            if literal[1] == "${":
                braces.append(0)


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
