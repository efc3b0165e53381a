"""The arguments of a compiled step as a view: which donated buffers are reused, and what flattening costs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import tree_util

from treeviz.analysis.facts import common_mesh, fact_columns
from treeviz.analysis.sizes import headline, size_columns
from treeviz.steps.compiles.arguments import argument_names, step_name
from treeviz.steps.compiles.flattening import Flattening, measure_flattening
from treeviz.steps.compiles.program import Buffers, read_buffers
from treeviz.steps.compiles.wrapped import wrapped_buffers
from treeviz.steps.tracing.jit_options import dynamic_arguments, is_jitted
from treeviz.steps.tracing.jitted import CannotWatch, JittedStep, LibraryMoved, jitted_step
from treeviz.tree.column import Column
from treeviz.tree.describers import load_libraries
from treeviz.tree.facts import Note
from treeviz.tree.numbers import bytes_text
from treeviz.tree.table import TreeTable
from treeviz.tree.walk import scan
from treeviz.views.tree_view import TreeView

_DEAR_US = 100  # of flattening a call, from which on it is worth a note
_CURE = (
    "register dataclasses with jax.tree_util.register_dataclass, which is flattened in C++, keep what does not change "
    "out of the arguments, or pass jax.tree.leaves(tree) and unflatten it in the step"
)


class StepArguments(TreeView):
    """The arguments of a compiled step, and what becomes of the buffer of each leaf.

    Attributes:
      reused: By the path of each donated leaf that the program reuses, the path of the result in its buffer.
      in_vain: By the path of each donated leaf that it reads, but does not reuse, why not.
      never_read: The paths of leaves that the program does not read; JAX does not pass them on, nor donates them.
      flattening: What it costs at each call; None if the arguments cannot be flattened.
    """

    reused: dict[str, str]
    in_vain: dict[str, str]
    never_read: list[str]
    flattening: Flattening | None


def step_arguments(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepArguments:
    """See `CompileWatch.arguments`."""
    is_plain = is_jitted(step)
    positions, names = dynamic_arguments(step, args, kwargs) if is_plain else (range(len(args)), kwargs)
    positional = argument_names(step, len(args))
    trees = OrderedDict((positional[i], args[i]) for i in positions)
    trees.update((name, kwargs[name]) for name in names)
    table, nodes = scan(trees, name="args")
    rows = np.flatnonzero(table.is_leaf)
    inside = None if is_plain else _inside(step)
    if inside is None:
        in_tree, buffers = read_buffers(step, args, kwargs)
        passed = (tuple(args[i] for i in positions), {name: kwargs[name] for name in names})
        if tree_util.tree_structure(passed) != in_tree:
            raise TypeError(
                f"arguments: it is not known which arguments of `{step_name(step)}` are static in this release of JAX."
            )
        at = [*range(len(rows))]
    else:
        leaves, paths = [nodes[row] for row in rows], [_path(table, row) for row in rows.tolist()]
        at, buffers = wrapped_buffers(inside, args, kwargs, leaves, paths)
    # The graph of an NNX module is not flattened as JAX does.
    flattening = measure_flattening(table, nodes) if inside is None or not inside.changes_arguments else None
    table = table.with_columns(*fact_columns(table, common_mesh(table)), *size_columns(table))
    return _view(table, [*zip(rows.tolist(), at, strict=True)], buffers, flattening)


def _inside(step: Callable) -> JittedStep:
    load_libraries()
    try:
        return jitted_step(step)
    except (CannotWatch, LibraryMoved) as error:
        raise TypeError(
            f"arguments: `{step_name(step)}` is not what jax.jit gave, and it is not known what its library passes on: "
            "pass the function to jax.jit itself."
        ) from error


def _view(
    table: TreeTable, rows: Sequence[tuple[int, int | None]], buffers: Buffers, flattening: Flattening | None
) -> StepArguments:
    texts, notes = [""] * len(table), {}
    reused, in_vain, never_read = {}, {}, []
    n_bytes = dict.fromkeys(("donated", "reused"), 0)
    for row, i in rows:
        if i is None:
            texts[row] = "static"
            continue
        path, size = _path(table, row), table[row].facts.bytes
        if buffers.read[i] is False:
            never_read.append(path)
            texts[row] = "never read, not donated" if buffers.donated[i] else "never read"
            continue
        n_bytes["donated"] += size * buffers.donated[i]
        if buffers.reused[i]:
            reused[path] = buffers.reused[i] or ""
            texts[row] = f"→ {reused[path]}"
            n_bytes["reused"] += size
        elif buffers.why_not[i]:
            in_vain[path], texts[row] = buffers.why_not[i], "donated in vain"
            notes[row] = (Note("warning", in_vain[path]),)
        elif buffers.donated[i]:
            texts[row] = "donated; not known if reused"
    column = Column("buffer", "buffer", texts, help="The result that reuses the donated buffer, or why there is none")
    if flattening is not None and flattening.us >= _DEAR_US and flattening.classes:
        notes[0] = (Note("info", f"flattening is dear: {_CURE}"),)
    table = table.with_columns(column).with_notes(notes)
    told = [f"{bytes_text(n_bytes['reused'])} of {bytes_text(n_bytes['donated'])} donated are reused"]
    told = told if n_bytes["donated"] else ["nothing is donated"]
    told += [f"{len(in_vain):,} donated in vain"] if in_vain else []
    told += [f"{len(never_read):,} never read"] if never_read else []
    told += [flattening.text] if flattening is not None else []
    view = StepArguments(table.with_headline(*told, *headline(table)), table.chosen(["buffer", "bytes"]))
    found = {"reused": reused, "in_vain": in_vain, "never_read": never_read, "flattening": flattening}
    for name, value in found.items():
        object.__setattr__(view, name, value)
    return view


def _path(table: TreeTable, row: int) -> str:
    """ "state['w']", as in the code of the step."""
    first, *rest = table.path(row)
    return first.segment + "".join(key.keystr for key in rest)
