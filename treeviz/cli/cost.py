"""`treeviz cost package.module:function`: what a training step costs."""

from __future__ import annotations

import argparse
import re
from typing import Any

from treeviz.cli.output import add_outputs, one_line, working_directory
from treeviz.cli.show import add_rows, shown, with_run_options

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def add(commands: Any) -> argparse.ArgumentParser:
    about = "Show what a step costs, by row of its arguments: FLOPs, bytes, what the backward pass keeps, collectives."
    parser = commands.add_parser("cost", help="what a training step costs", description=about)
    made = "package.module:function, which returns (step, arguments); the arguments are a tuple, and may be abstract"
    parser.add_argument("function", metavar="FUNCTION", help=made)
    compiled = "also compile the step, and compare with what XLA counts"
    parser.add_argument("--compile", action="store_true", help=compiled)
    memory = "memory of a device, for example 80GB: does it fit?"
    parser.add_argument("--memory", metavar="BYTES", type=_bytes, help=memory)
    add_rows(parser)
    add_outputs(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    from treeviz.reader import named_object

    with working_directory():
        made = named_object(options.function)()
    if not (isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0]) and isinstance(made[1], tuple)):
        text = "return a tuple of the step and a tuple of its arguments: return step, (params, batch)"
        raise ValueError(f"cost: {one_line(options.function)} must {text}")
    from treeviz.steps.cost import cost

    step, args, kwargs = (*made, {})[:3]
    view = cost(step, *args, compile=options.compile, memory=options.memory, **kwargs)
    return shown(with_run_options(view, options), options)


def _bytes(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)\s*([kMGT]i?|)B?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a number of bytes, such as 80GB, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]
