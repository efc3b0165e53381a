"""Runs the Python of each page when the site is built, and puts what it shows below it: real views, real errors.

    ```python           runs; what it prints and the value of its last line stand below, as in a notebook
    ```python first     the same, with what it shows above the code
    ```python raises    has to raise; below stands what JAX says
    ```python hidden    runs unseen
    ```python static    is only shown

The blocks of a page share their variables, as the cells of a notebook do. One that fails or warns fails the build.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import io
import os
import re
import shutil
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).resolve().parent
API = DOCS / "api.md"
STYLE = DOCS.parent / "treeviz" / "views" / "html" / "assets" / "tree" / "tree.css"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["COLUMNS"] = "100"  # of text views
# Eight devices. XLA compiles in a third of the time: what the programs of the pages cost does not matter.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 "
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

BLOCK = re.compile(r"^```python ?(raises|hidden|static|first|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = re.compile(r"<script type=text/treeviz>.*?</script><script type=module>.*?</script>", re.DOTALL)
MOST_LINES = 8  # of an error

CALL = re.compile(r"(?<!<b>)(?<!\">)<code>((?:tv|treeviz)\.)?(\w+)(?:\([^<]*\))?</code>")
TOKENS = re.compile(
    r"^\.treeviz(\.dark)? \{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)  # the first two rules of the style of views

views: dict[str, list[str]] = {}  # of each page


def on_config(config: Any) -> None:
    """Show the treeviz of this clone. MkDocs takes back what a hook does to the path when it is loaded."""
    sys.path.insert(0, str(DOCS.parent))
    gc.disable()  # a build is short


def on_files(files: Any, config: Any) -> Any:
    """Give the site the colors and fonts of the views, from the same file."""
    light, dark = (
        "\n".join(re.findall(r"^  (?:--|color-scheme).*", rule, re.MULTILINE))
        for _, rule in TOKENS.findall(STYLE.read_text("utf-8"))[:2]
    )
    rules = f':root, [data-md-color-scheme="default"] {{\n{light}\n}}\n[data-md-color-scheme="slate"] {{\n{dark}\n}}\n'
    files.append(File.generated(config, "tokens.css", content=rules))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace each block of Python by its code and what it shows."""
    shown = views[page.file.src_uri] = []
    scope: dict[str, Any] = {"__name__": "__main__"}

    def replaced(block: re.Match[str]) -> str:
        how, code = block.groups()
        written = f"```python\n{code}```"
        if how == "static":
            return written
        with written_by(io.StringIO()) as printed, warnings.catch_warnings():
            warnings.simplefilter("error")
            # treescope 0.1.10 looks up every name of NumPy, and numpy 2.5 deprecates one of them.
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="treescope")
            try:
                value = run(code, scope)
            except Exception as error:
                if how != "raises":
                    raise RuntimeError(f"{page.file.src_uri}: {code}") from error
                return f"{written}\n\n{said_by_jax(error)}"
        if how == "raises":
            raise RuntimeError(f"{page.file.src_uri}: this should raise: {code}")
        if how == "hidden":
            return ""
        below = outputs(printed.getvalue(), value, shown)
        return "\n\n".join([*below, written] if how == "first" else [written, *below])

    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        for kept in DOCS.glob("gallery/*.treeviz"):
            shutil.copy(kept, folder)
        os.chdir(folder)
        try:
            return BLOCK.sub(replaced, markdown)
        finally:
            os.chdir(before)


@contextlib.contextmanager
def written_by(file: io.StringIO) -> Iterator[io.StringIO]:
    """What is printed, and logged: as below the cell of a notebook."""
    with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield file


def run(code: str, scope: dict[str, Any]) -> Any:
    """Run the code, and return the value of its last line if that is an expression."""
    tree = ast.parse(code)
    if not tree.body or not isinstance(last := tree.body[-1], ast.Expr):
        exec(compile(tree, "cell.py", "exec"), scope)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell.py", "exec"), scope)
    return eval(compile(ast.Expression(last.value), "cell.py", "eval"), scope)


def outputs(printed: str, value: Any, shown: list[str]) -> list[str]:
    """What stands below the code. A view is put in when the page is whole: Markdown and the search leave it alone."""
    found = [text_block(printed.rstrip())] if printed else []
    if hasattr(value, "_repr_mimebundle_"):
        shown.append(value._repr_mimebundle_(include=["text/html"])["text/html"])
        found.append(f'<div class="view" data-view="{len(shown) - 1}"></div>')
    elif value is not None:
        found.append(text_block(repr(value)))
    return found


def said_by_jax(error: Exception) -> str:
    lines = f"{type(error).__name__}: {error}".splitlines()
    lines = [*lines[:MOST_LINES], "…"] if len(lines) > MOST_LINES else lines
    return f'!!! failure "JAX says"\n\n{textwrap.indent(text_block(chr(10).join(lines)), "    ")}'


def text_block(text: str) -> str:
    """Lines that are longer than those of a view are wrapped."""
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, 100, drop_whitespace=False) or [""]]
    return "\n".join(["```text", *lines, "```"])


def with_links(output: str, page: Any) -> str:
    """Link the public names to the reference. There, `walk` is `tv.walk`, unless a parameter has that name."""
    in_reference = page.file.src_uri == "api.md"
    names = set(re.findall(r"^::: treeviz\.(\w+)", API.read_text("utf-8"), re.MULTILINE))
    bare = names - set(re.findall(r"<b><code>(\w+)", output)) if in_reference else set()
    place = "" if in_reference else f"{'../' * page.file.src_uri.count('/')}api.html"

    def linked(call: re.Match[str]) -> str:
        return (
            f'<a href="{place}#treeviz.{call[2]}">{call[0]}</a>' if call[2] in (names if call[1] else bare) else call[0]
        )

    return CALL.sub(linked, output)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Put in the views, and once, at the end, the script that brings them to life."""
    scripts: dict[str, None] = {}

    def put_in(place: re.Match[str]) -> str:
        view = views[page.file.src_uri][int(place[1])]
        scripts.update(dict.fromkeys(SCRIPTS.findall(view)))
        return f'<div class="view">{SCRIPTS.sub("", view)}</div>'

    output = with_links(output, page)
    output = re.sub(r'<div class="view" data-view="(\d+)"></div>', put_in, output)
    return output.replace("</body>", f"{''.join(scripts)}</body>")
