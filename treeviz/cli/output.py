"""What a command reads and writes: files, folders, Python objects; standard output, pages, the summary of a CI job."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treeviz.integrations.fsspec import RunCopy
    from treeviz.views.tree_view import TreeView
    from treeviz.views.view import Content

# A progress bar, shown if reading takes longer than a second.

DELAY_S = 1.0  # until the bar appears
_bars: list[Any] = []  # the bar of the running command, and a line about what it does
_expected: list[Any] = []  # trees not yet in the bar's total


def say(text: str) -> None:
    """Show what the command does until it prints something; nothing if standard error is not a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        write = partial(print, end="", file=sys.stderr, flush=True)
        write(text)
        _bars.append(SimpleNamespace(close=lambda: write(f"\r{' ' * len(text)}\r")))


@contextmanager
def reading() -> Iterator[None]:
    from treeviz.integrations.tqdm import bytes_bar
    from treeviz.tree.stored import on_fetch, on_read

    bar = bytes_bar(DELAY_S)
    if bar is not None:
        _bars.append(bar)
        on_read.append(_advance)
        on_fetch.append(_fetched)
    try:
        yield
    finally:
        end()


def _fetched(n_bytes: int) -> None:
    """Count the bytes of headers at an address, until values are read."""
    if _bars:
        _bars[-1].total += n_bytes
        _bars[-1].update(n_bytes)


def _advance(n_bytes: int) -> None:
    import jax

    from treeviz.tree.stored import Stored, on_fetch

    if _fetched in on_fetch:
        on_fetch.remove(_fetched)
    while _expected:
        leaves = jax.tree.leaves(_expected.pop())
        _bars[-1].total += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Stored))
    _bars[-1].update(n_bytes)


def end() -> None:
    """Remove the bar, before anything is printed, also to standard error."""
    from treeviz.tree.stored import on_fetch, on_read

    _expected.clear()
    for report, reports in ((_advance, on_read), (_fetched, on_fetch)):
        if report in reports:
            reports.remove(report)
    while _bars:
        _bars.pop().close()


def add_source(parser: argparse.ArgumentParser, name: str, extra_format: str = "", **options: Any) -> None:
    """Declare the arguments for the files; `extra_format` is one that this command reads, too."""
    from treeviz.reader import READERS

    objects = "or a Python object, package.module:name; also at s3://, gs://, …"
    texts = ", ".join(READERS), "an Orbax or .safetensors folder", extra_format, objects
    formats = "; ".join(filter(None, texts))
    parser.add_argument(name, metavar="FILE", help=formats, **options)
    parser.add_argument("--like", metavar="MODULE:NAME", help="for .eqx: the model, or a function that returns it")
    parser.add_argument("--follow-links", action="store_true", help="follow links that lead out of a folder")


def load(source: str, options: argparse.Namespace) -> Any:
    """The tree in a file. Reads only headers until values are needed."""
    from treeviz.reader import from_python, is_in_python, read

    has_other_files = len(getattr(options, "files", ())) > 1  # only .eqx files need --like then
    like = None if has_other_files and not source.lower().endswith(".eqx") else options.like
    is_python = is_in_python(source)
    with working_directory() if like is not None or is_python else nullcontext():
        like = None if like is None else from_python(like)
        tree = from_python(source) if is_python else None
    tree = tree if is_python else read(source, like=like, follow_links=options.follow_links)
    if _bars:  # the stored leaves of a tree come into the bar's total once the first bytes are read
        _expected.append(tree)
    return tree


@contextmanager
def working_directory() -> Iterator[None]:
    """The working directory is on the path of imports; only here, since a library must never come from there."""
    importlib.import_module("jax.numpy")  # the installed one, which a module may import first
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:  # the module may have changed the list
            sys.path.remove(here)


def run_at(file: str) -> Path | RunCopy:
    """A recorded run: a file, or a copy of one at an address."""
    from treeviz.reader import path_of

    if isinstance(path := path_of(file), Path):
        return path
    from treeviz.integrations.fsspec import RunCopy

    return RunCopy(path)


def name_of(source: str) -> str:
    """A Python identifier for the tree."""
    from treeviz.reader import identifier

    return identifier(source)


@contextmanager
def stacks_of(source: str) -> Iterator[None]:
    """Rewrites the error about a --stacked glob without arrays for users of the command."""
    from treeviz.tree.layers import NoStack

    try:
        yield
    except NoStack as error:
        find = f"treeviz {shlex.quote(source)} --find {shlex.quote(error.glob)}"
        raise ValueError(
            f"--stacked {error.glob!r}: no array with axes has a key path that ends like this. {find} lists what has, "
            "and a glob may also name a node above the arrays."
        ) from None


# The outputs: standard output, files, the browser, the summary of a CI job

SAME, DIFFERENT, TROUBLE = 0, 1, 2  # the exit statuses, as those of diff and grep
_SUFFIXES = {"html": ".html", "json": ".json", "text": ".txt", "svg": ".svg", "png": ".png", "md": ".md", "mmd": ".mmd"}
_HELP = {
    "html": "a page that works offline",
    "json": "all rows, for programs; the format: treeviz/views/schema.json",
    "text": "all rows as text",
    "svg": "a picture of the first rows",
    "png": "the same picture; needs matplotlib",
    "md": "the first rows as a Markdown table",
    "mmd": "the first rows as a Mermaid diagram",
    "width": "all rows as text, in lines of at most N characters",
}
_OUR_JSON = b'{"format": "treeviz'
_AT_ONCE = 1 << 16  # characters per write
_MOST_IN_SUMMARY = 200  # rows; GitHub accepts 1 MB


def add_outputs(parser: argparse.ArgumentParser, **overrides: str | None) -> None:
    """Declare the output options of a command, with help texts that differ for it; None if it lacks the option."""
    outputs = parser.add_argument_group("output", "OUT is a file, or - for standard output.")
    for name, content in {**_HELP, **overrides}.items():
        if content is None:
            parser.set_defaults(**{name: None})
        elif name == "width":
            outputs.add_argument("--width", metavar="N", type=number("characters"), help=content)
        else:
            outputs.add_argument(f"--{name}", metavar="OUT", help=content)
    outputs.add_argument("--open", action="store_true", help="open the page in the browser")
    outputs.add_argument("--github", action="store_true", help="print Markdown, for >> $GITHUB_STEP_SUMMARY")


def check_outputs(options: argparse.Namespace) -> None:
    """Raise a ValueError if an output would replace a file that the command reads."""
    from treeviz.reader import names_a_format

    given = [getattr(options, name, None) for name in ("what", "file", "files", "run_file", "other")]
    inputs = [Path(file) for files in given if files for file in (files if isinstance(files, list) else [files])]
    for name, suffix in _SUFFIXES.items():
        if (out := getattr(options, name, None)) in (None, "-"):
            continue
        path, why = Path(os.path.realpath(out)), ""
        is_inside = any(path.is_relative_to(os.path.realpath(file)) for file in inputs)
        if any(os.path.exists(file) and os.path.exists(path) and os.path.samefile(file, path) for file in inputs):
            why = "would overwrite an input file"
        elif names_a_format(path.name):
            why = "is named like a checkpoint, a run or a module"
        elif is_inside and path.is_file() and (path.suffix != suffix or suffix == ".json"):
            with open(path, "rb") as file:  # a part of a checkpoint, unless it is a former output
                is_ours = file.read(len(_OUR_JSON)) == _OUR_JSON
            why = "" if is_ours else "would overwrite a file in the input folder"
        if why:
            raise ValueError(f"--{name} {one_line(out)} {why}. Write --{name} tree{suffix}, for example.")


def number(unit: str) -> Callable[[str], int]:
    """Returns a parser of a non-negative integer for argparse."""

    def read(text: str) -> int:
        if not text.isdecimal():
            raise argparse.ArgumentTypeError(f"expected a number of {unit}, 0 or more, not {text!r}")
        return int(text)

    return read


def printed(view: TreeView, options: argparse.Namespace) -> str | Iterable[str]:
    """A view as text for standard output: the first rows in a terminal, else all rows."""
    return str(view) if is_terminal() and options.width is None else view.lines(options.width)


def deliver(
    view: TreeView,
    options: argparse.Namespace,
    make_text: Callable[[], str | Iterable[str]],
    summary: Callable[[], str] | None = None,
) -> None:
    """Write the requested outputs; unless one is standard output, also print a text, or a `summary` for a job."""
    from treeviz.views.view import open_page, write

    makers: dict[str, Callable[[], Content]] = view.outputs()
    makers[".txt"] = lambda: (f"{line}\n" for line in view.lines(options.width))
    wanted = {name: out for name in _SUFFIXES if (out := getattr(options, name)) is not None}
    for name, out in wanted.items():
        make = makers[_SUFFIXES[name]]
        if out == "-":
            _write(make())
        else:
            write(Path(out), {Path(out).suffix.lower(): make})
    if options.open:
        open_page(view.table.name, view.html)
    try:
        if options.github and summary is not None:
            print_text(summary())
        elif options.github:
            print_text(markdown_text(view.title, view.text(max_rows=_MOST_IN_SUMMARY, width=options.width)))
        elif "-" not in wanted.values():
            text = make_text()
            if isinstance(text, str):
                print_text(text)
            else:
                _write(f"{line}\n" for line in text)
        if {*wanted.values()} - {"-"}:  # then the names of the files are below the text
            sys.stdout.flush()
    finally:
        for out in wanted.values():
            if out != "-":
                print_error(f"Wrote {one_line(out)}")


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def print_text(text: str) -> None:
    """Print text; escape characters that the terminal's encoding lacks."""
    _write(text)
    _write("\n")


def print_error(text: str) -> None:
    end()
    if sys.stderr is not None:  # else print() would write to standard output
        print(text, file=sys.stderr)


def one_line(text: object) -> str:
    """A file name, an argument or a message, without control characters."""
    from treeviz.tree.text import visible

    return visible(str(text), 2000)


def markdown_list(title: str, lines: Sequence[str]) -> str:
    """Markdown: a title and a block of the first lines."""
    rest = [f"… {len(lines) - _MOST_IN_SUMMARY:,} more"] if len(lines) > _MOST_IN_SUMMARY else []
    return markdown_text(title, "\n".join([*lines[:_MOST_IN_SUMMARY], *rest]))


def markdown_text(title: str, text: str) -> str:
    """Markdown: a title and a block of text, in a fence that is longer than any inside."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"### {_plain(title)}\n\n{fence}text\n{text}\n{fence}"


def markdown_table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Markdown: a title and a table whose first column is formatted as code."""
    head = list(head)
    lines = [f"### {_plain(title)}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for n, (first, *others) in enumerate(rows):
        if n == _MOST_IN_SUMMARY:
            lines += ["", "More rows are left out."]
            break
        lines.append(f"| {' | '.join([_code(first), *map(_plain, others)])} |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """The text on one line, with Markdown characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", one_line(text))


def _code(text: str) -> str:
    """The text as code. In a table on GitHub, "|" must be written as `\\|`, also in code."""
    text = one_line(text).replace("|", "\\|") or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " * (text.startswith("`") or text.endswith("`"))
    return f"{fence}{space}{text}{space}{fence}"


def _write(content: Content) -> None:
    end()
    if sys.stdout is None:
        raise OSError("standard output is closed")
    if isinstance(content, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    encoding, parts = sys.stdout.encoding or "utf-8", content
    if isinstance(content, str):  # JSON may have 10 MB or more
        parts = (content[i : i + _AT_ONCE] for i in range(0, len(content), _AT_ONCE))
    for part in parts:
        sys.stdout.write(part.encode(encoding, "backslashreplace").decode(encoding))


def open_closed_descriptors() -> None:
    """Open closed descriptors: after `>&-`, the next opened file would become standard output or error."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def drop_output() -> None:
    """Discard unwritten output after a closed pipe or on a full disk.

    Python would raise the error again when it flushes at exit: https://docs.python.org/3/library/signal.html
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
