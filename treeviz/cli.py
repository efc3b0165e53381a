"""The command `treeviz`: show a demo model, or the arrays of a file."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

FOUND, NOTHING_FOUND, TROUBLE, PIPE_CLOSED = 0, 1, 2, 141  # the exit statuses of grep and of the shell

_DESCRIPTION = "See a JAX pytree: every leaf with its path, shape, dtype and size."
_EPILOG = """\
examples:
  treeviz demo                                   a model of the size of GPT-2 small, with its optimizer state
  treeviz model.safetensors                      what is in a file: only its header is read
  treeviz model.safetensors --save model.html    the same as a page that works offline
  treeviz params.npz | less                      every row, also of layers that are alike
  treeviz params.npz --find 'dtype:f16 bytes:>1M'
  treeviz params.npz --stats --stacked 'layers/*'  of each layer, where one array holds all
  treeviz check params.npz --values              what is wrong with it; see treeviz check --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status: 0; 1 if --find found nothing, or `check` an error; 2 on an error."""
    _open_closed_descriptors()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        # A file may be called check, as in `treeviz check --stats`.
        if len(arguments) > 1 and arguments[0] == "check" and not arguments[1].startswith(_OPTIONS_OF_FILES):
            status = _check(_check_parser().parse_args(arguments[1:]))
        else:
            status = _run(_parser().parse_args(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, ImportError, MemoryError) as error:
        _drop_output()
        return _trouble(error)


def _open_closed_descriptors() -> None:
    """After `>&-` the next file would become standard output or error, where libraries write into it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _drop_output() -> None:
    """Drop what cannot be written: a closed pipe, a full disk.

    Python would report the error again when it flushes at exit: https://docs.python.org/3/library/signal.html
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(_one_line(message))


def _parser() -> argparse.ArgumentParser:
    from treeviz import __version__
    from treeviz.reader import READERS

    parser = _Parser(
        "treeviz", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", metavar="demo|FILE", help=f"demo, or a file: {', '.join(READERS)}, or a folder of .safetensors"
    )
    parser.add_argument("--save", metavar="OUT", type=Path, help="write it to OUT: .html, .txt, .json, .svg or .png")
    parser.add_argument("--find", metavar="QUERY", help="list the rows that match, as in the page's search box")
    parser.add_argument("--depth", metavar="N", type=_depth, help="show N levels")
    parser.add_argument("--stats", action="store_true", help="read the values: mean, std, zeros, NaN, a histogram …")
    parser.add_argument(
        "--stacked",
        metavar="GLOB",
        action="append",
        default=[],
        help="by their paths, arrays that hold all layers along their first axis: a row for each layer; repeatable",
    )
    parser.add_argument("--whole", action="store_true", help="walk and read all of it, however long that takes")
    parser.add_argument("--version", action="version", version=f"treeviz {__version__}")
    return parser


_OPTIONS_OF_FILES = ("--save", "--find", "--depth", "--stats", "--stacked", "--whole")


def _check_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "treeviz check", description="Say what is wrong with the tree in a file; status 1 if there is an error."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", metavar="FILE", nargs="?", help="a file, as for treeviz")
    what.add_argument("--explain", metavar="CODE", help="say what a rule looks for, as T101")
    parser.add_argument(
        "--for", dest="for_", choices=("any", "jit", "grad", "state"), default="any", help="its purpose"
    )
    parser.add_argument("--values", action="store_true", help="read the values: NaN, infinities, zeros")
    parser.add_argument("--ignore", metavar="CODE", action="append", default=[], help="leave a rule out; repeatable")
    return parser


def _check(options: argparse.Namespace) -> int:
    from treeviz.checker import check_tree, explain
    from treeviz.reader import identifier, read

    if options.explain:
        _print(explain(options.explain))
        return FOUND
    tree, ignore = read(options.file), options.ignore
    found = check_tree(
        tree, name=identifier(options.file), for_=options.for_, values=options.values, roundtrip=False, ignore=ignore
    )
    _print(str(found))
    return NOTHING_FOUND if any(each.level == "error" for each in found) else FOUND


def _depth(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of levels, from 0 on, and not {text!r}")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    from treeviz.tree.query.find import needs_values, unread

    # What is not looked at would not be found.
    options.stats |= options.find is not None and needs_values(options.find)
    tree, name, save = _demo(options.save) if options.what == "demo" else _file(options)
    whole = options.whole or options.find is not None
    view = _view(tree, name, options, whole)
    saved = view.save(save) if save else None
    if options.find is None:
        is_short = options.what == "demo" or (sys.stdout is not None and sys.stdout.isatty())
        _print(str(view) if is_short else view.text(fold=False))
        status = FOUND
    else:
        rows = view.find(options.find)
        for row in rows:
            _print(f"{row.expression}  {_what(row)}")
        n_unread = int(unread(view.table).sum()) if needs_values(options.find) else 0
        but = f"; the values of {n_unread:,} {'leaf' if n_unread == 1 else 'leaves'} were not read" if n_unread else ""
        _print_error(f"{len(rows):,} of {len(view.table):,} rows match{but}")
        status = FOUND if rows else NOTHING_FOUND
    if saved:
        (_print if options.find is None else _print_error)(f"Wrote {_one_line(saved)}")
    return status


def _view(tree, name: str, options: argparse.Namespace, whole: bool):
    from treeviz.api import render
    from treeviz.tree.layers import NoStack

    stacked = options.stacked
    try:
        return render(tree, name=name, stats=options.stats, depth=options.depth, stacked=stacked, whole=whole)
    except NoStack as error:
        find = f"treeviz {shlex.quote(options.what)} --find {shlex.quote(error.glob)}"
        raise ValueError(
            f"--stacked {error.glob!r}: no array with axes has a key path that ends like this. {find} lists what has, "
            "and a glob may also name a node above the arrays."
        ) from None


def _demo(save: Path | None):
    from treeviz import demo_model

    if not demo_model.has_optax():
        _print(
            "optax is not installed: the optimizer state stands in named tuples of the same names as its own. "
            "(pip install optax)\n"
        )
    return demo_model.train_state(), "state", save or Path("treeviz-demo.html")


def _file(options: argparse.Namespace):
    from treeviz.reader import identifier, read

    return read(options.what), identifier(options.what), options.save


def _what(row) -> str:
    from treeviz.tree.safe_repr import aval_text

    facts = row.facts
    return facts.type if facts.shape is None else aval_text(facts.shape, facts.dtype)


def _print(text: str) -> None:
    """Print text; escape characters that the terminal's encoding lacks."""
    if sys.stdout is None:
        raise OSError("standard output is closed")
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _print_error(text: str) -> None:
    if sys.stderr is not None:  # else print() would take standard output
        print(text, file=sys.stderr)


def _one_line(text: object) -> str:
    """A file's name, an argument or a message, without what a terminal would obey."""
    from treeviz.tree.safe_repr import visible

    return visible(str(text), 2000)


def _trouble(error: Exception) -> int:
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        text = str(error) or type(error).__name__
    _print_error(f"treeviz: {_one_line(text)}")
    return TROUBLE
