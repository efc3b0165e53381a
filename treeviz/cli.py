"""The command `treeviz`: shows a model, or the arrays of a file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

FOUND, NOTHING_FOUND, TROUBLE, PIPE_CLOSED = 0, 1, 2, 141  # as grep, and the shell, have them

_DESCRIPTION = "See a JAX pytree: every leaf with its path, shape, dtype and size."
_EPILOG = """\
examples:
  treeviz demo                                   a model of the size of GPT-2 small, with its optimizer state
  treeviz model.safetensors                      what is in a file: only its header is read
  treeviz model.safetensors --save model.html    the same as a page that works offline
  treeviz params.npz --find 'dtype:f16 bytes:>1M'
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status: 0; 1 if --find found nothing; 2 if there was trouble."""
    try:
        status = _run(_parser().parse_args(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python would complain once more when it flushes at the end: https://docs.python.org/3/library/signal.html
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, ImportError) as error:
        return _trouble(error)


def _parser() -> argparse.ArgumentParser:
    from treeviz import __version__

    parser = argparse.ArgumentParser(
        "treeviz", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", metavar="demo|FILE", help="demo, or a .npz, .npy or .safetensors file")
    parser.add_argument("--save", metavar="OUT", type=Path, help="write it to OUT: .html, .txt, .json, .svg or .png")
    parser.add_argument("--find", metavar="QUERY", help="list the rows that match, as in the page's search box")
    parser.add_argument("--depth", metavar="N", type=_depth, help="show N levels")
    parser.add_argument("--stats", action="store_true", help="read the values: mean, std, zeros, NaN, a histogram …")
    parser.add_argument("--version", action="version", version=f"treeviz {__version__}")
    return parser


def _depth(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of levels, from 0 on, and not {text!r}")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    from treeviz.api import render

    tree, name, save = _demo(options.save) if options.what == "demo" else _file(options)
    view = render(tree, name=name, stats=options.stats, depth=options.depth)
    saved = view.save(save) if save else None
    if options.find is None:
        _print(str(view) if sys.stdout.isatty() or options.what == "demo" else view.text())
        status = FOUND
    else:
        rows = view.find(options.find)
        for row in rows:
            _print(f"{row.expression}  {_what(row)}")
        print(f"{len(rows):,} of {len(view.table):,} rows match", file=sys.stderr)
        status = FOUND if rows else NOTHING_FOUND
    if saved:
        print(f"Wrote {saved}", file=sys.stderr if options.find is not None else sys.stdout)
    return status


def _demo(save: Path | None):
    from treeviz import example

    if not example.has_optax():
        _print(
            "optax is not installed: the optimizer state stands in named tuples of the same names as its own. "
            "(pip install optax)\n"
        )
    return example.train_state(), "state", save or Path("treeviz-demo.html")


def _file(options: argparse.Namespace):
    from treeviz.tree.loading import identifier, load

    path = Path(options.what)
    return load(path, values=options.stats), identifier(path), options.save


def _what(row) -> str:
    facts = row.facts
    return facts.type if facts.shape is None else f"{facts.dtype}[{','.join(map(str, facts.shape))}]"


def _print(text: str) -> None:
    """Text may hold any character; the terminal may not have it."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _trouble(error: Exception) -> int:
    if isinstance(error, OSError) and error.filename is not None:
        print(f"treeviz: {error.filename}: {error.strerror}", file=sys.stderr)
    else:
        print(f"treeviz: {error}", file=sys.stderr)
    return TROUBLE
