# PYTHON_ARGCOMPLETE_OK
"""The command `treeviz`. Each subcommand is a module with `add`, which declares its options, and `run`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from treeviz.cli import check, cost, demo, diff, doctor, grads, serve, show
from treeviz.cli.output import (
    TROUBLE,
    check_outputs,
    drop_output,
    one_line,
    open_closed_descriptors,
    print_error,
    reading,
)
from treeviz.tree.runtime import import_jax_later

PIPE_CLOSED, INTERRUPTED = 141, 130  # the exit statuses of the shell
_COMMANDS = (show, diff, check, grads, cost, serve, demo, doctor)
_DESCRIPTION = "Inspect, diff and check JAX pytrees in files, recorded runs and training steps."
_EPILOG = """\
examples:
  treeviz model.safetensors                  what is in a file; no value is read
  treeviz params.npz --find 'bytes:>100M'    the rows that match
  treeviz params.npz --html params.html      a page that works offline
  treeviz diff base.npz tuned.safetensors    every difference
  treeviz diff run/100 gs://bucket/run/200   one of them in a bucket
  treeviz check params.npz --values          problems, also in its values
  treeviz grads run.treeviz --open           the gradients of a recorded run
  treeviz serve runs/                        all runs of a folder in a browser
  treeviz cost train:step_and_arguments      what a training step costs

`treeviz FILE` is `treeviz show FILE`; a file with the name of a command is
./check. The status is 0; 1 for a difference, an error that check found, or no
match; 2 for a failure. Completion in a shell: pip install "jax-treeviz[cli]",
then eval "$(register-python-argcomplete treeviz)".
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0; 1 for a difference, an error or no match; 2 for trouble."""
    open_closed_descriptors()
    import_jax_later()
    try:
        options = _parsed(list(sys.argv[1:] if arguments is None else arguments))
        check_outputs(options)
        with reading():
            status = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        drop_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, ValueError, ImportError, MemoryError) as error:
        drop_output()
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
        print_error(f"treeviz: {one_line(text)}")
        return TROUBLE
    except Exception:  # a fault of treeviz or of the user's class. Python's own status, 1, would be a difference
        drop_output()
        traceback.print_exc()
        return TROUBLE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))


def _parsed(arguments: list[str]) -> argparse.Namespace:
    from treeviz import __version__
    from treeviz.integrations.argcomplete import complete

    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = _Parser("treeviz", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=keep_lines)
    parser.add_argument("--version", action="version", version=f"treeviz {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(commands).set_defaults(run=command.run)
    complete(parser, commands)
    if arguments and arguments[0] not in {*commands.choices, "-h", "--help", "--version"}:
        near = get_close_matches(arguments[0], commands.choices, n=1)
        if near and arguments[0].isalpha() and not os.path.exists(arguments[0]):
            parser.error(f"there is no command and no file {arguments[0]!r}; did you mean {near[0]}?")
        arguments = ["show", *arguments]
    return parser.parse_args(arguments)
