"""`treeviz serve RUNS…`: runs and checkpoints in a browser, also over ssh."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import secrets
import sys
import threading
from pathlib import Path
from typing import Any

from treeviz.cli.output import SAME, number, print_error, run_at

PORT = 8710
_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def add(commands: Any) -> argparse.ArgumentParser:
    about = (
        "Serve runs and checkpoints to a browser on this machine: a list, the live page of each run, two runs side by "
        "side. It listens on 127.0.0.1 only; from another machine: ssh -L 8710:127.0.0.1:8710 HOST."
    )
    parser = commands.add_parser("serve", help="runs and checkpoints in a browser", description=about)
    what = "runs (.treeviz) and checkpoints, also at s3://, gs://, …, or folders; by default the working directory"
    parser.add_argument("paths", metavar="PATH", nargs="*", default=["."], help=what)
    parser.add_argument("--port", metavar="N", type=number("port"), help=f"by default {PORT}, or the next free one")
    parser.add_argument("--open", action="store_true", help="open the list in the browser")
    # Of inspector.serve(): end with the process that holds the other end of standard input.
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    return parser


def run(options: argparse.Namespace) -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the accelerator is the training's
    from treeviz.cli.site import RUN, Site
    from treeviz.integrations import not_installed
    from treeviz.reader import path_of

    try:
        from treeviz.integrations.starlette import serve
    except ImportError as error:
        raise not_installed(error, "serve") from error

    paths = [run_at(path) if path.endswith(RUN) else path_of(path) for path in options.paths]
    for path in paths:
        if isinstance(path, Path) and not path.exists() and path.suffix != RUN:  # a run may begin later
            raise FileNotFoundError(2, os.strerror(2), str(path))
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc: large arrays go back when they are freed
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 18)
    if options.until_eof:
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(SAME)), daemon=True).start()
    serve(Site(paths), options.port, secrets.token_urlsafe(24), opens=options.open, say=print_error)
    return SAME
