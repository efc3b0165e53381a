"""Runs the Python of each page when the site is built, and puts what it shows below it: real views, real errors.

    ```python           runs; what it prints and the value of its last line stand below, as in a notebook
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

DOCS = Path(__file__).resolve().parent
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["COLUMNS"] = "100"  # of text views
# Eight devices. XLA compiles in a third of the time: what the programs of the pages cost does not matter.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 "
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

BLOCK = re.compile(r"^```python ?(raises|hidden|static|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = re.compile(r'<script type="text/treeviz">.*?</script><script type="module">.*?</script>', re.DOTALL)
MOST_LINES = 8  # of an error

views: dict[str, list[str]] = {}  # of each page


def on_config(config: Any) -> None:
    """Show the treeviz of this clone. MkDocs takes back what a hook does to the path when it is loaded."""
    sys.path.insert(0, str(DOCS.parent))
    gc.disable()  # a build is short


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
        return "" if how == "hidden" else "\n\n".join([written, *outputs(printed.getvalue(), value, shown)])

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


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Put in the views, and once, at the end, the script that brings them to life."""
    scripts: dict[str, None] = {}

    def put_in(place: re.Match[str]) -> str:
        view = views[page.file.src_uri][int(place[1])]
        scripts.update(dict.fromkeys(SCRIPTS.findall(view)))
        return f'<div class="view">{SCRIPTS.sub("", view)}</div>'

    output = re.sub(r'<div class="view" data-view="(\d+)"></div>', put_in, output)
    return output.replace("</body>", f"{''.join(scripts)}</body>")
