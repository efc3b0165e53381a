"""The calls inside JAX that led to an error, with their variables."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from treeviz.tree.safe_repr import guarded

_MOST = 1_000  # frames
_STDLIB = os.path.dirname(os.__file__)
_LIBRARIES = re.compile(  # what restores trees, and what updates them
    r"/(?:(flax)/(?:serialization|struct|core/frozen_dict|nnx/(?:graph|pytree|object|module|helpers)\w*)"
    r"|(orbax)/checkpoint/.*|(equinox)/_(?:serialisation|tree)|(optax)/.*)\.py"
)
# These call functions of the user's, which know a part of a tree, or choose one.
_AROUND_CODE = {("flax", "from_state_dict"), ("equinox", "tree_at")}


class Call(NamedTuple):
    """A call of a function inside JAX, or inside a library around it.

    Attributes:
      function: Its name: "tree_map".
      variables: Those of the call, by name.
      error: What it raised.
      library: "optax"; "" is JAX.
    """

    function: str
    variables: dict[str, Any]
    error: BaseException
    library: str = ""


Calls = Sequence[Call]  # that which failed, and those around it
Answer = tuple[str, Sequence[Any]]  # a title, and a line for each leaf


def calls_in_jax(error: BaseException) -> list[Call]:
    """The calls inside JAX that raised, and in libraries, innermost first; also of the errors that led to it.

    Of those around code of the user's that raised, or that called into JAX again, only some of libraries.
    """
    found: list[Call] = []
    for each in _chain(error):
        is_within = True
        for frame in reversed(frames_of(each)):
            library = "" if is_of_jax(frame) else _library(frame)
            name = frame.f_code.co_name
            if library is not None and (is_within or (library, name) in _AROUND_CODE):
                variables = guarded(lambda frame=frame: dict(frame.f_locals), lambda _: {})
                found.append(Call(name, variables, each, library))
            elif library is None and not is_of_python(frame):
                is_within = False
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [other for other in (each.__context__, each.__cause__) if other is not None]


def frames_of(error: BaseException) -> list[types.FrameType]:
    """The frames of a traceback, from the outermost."""
    frames, trace = [], error.__traceback__
    while trace is not None and len(frames) < _MOST:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def without_hidden(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without the calls that JAX marks as its own, as JAX leaves them out by default."""
    kept = []
    while trace is not None:
        if not is_of_jax(trace.tb_frame):
            kept.append(trace)
        trace = trace.tb_next
    below = None
    for each in reversed(kept):
        below = types.TracebackType(below, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return below


def is_of_jax(frame: types.FrameType) -> bool:
    return "/jax/_src/" in frame.f_code.co_filename.replace("\\", "/")


def _library(frame: types.FrameType) -> str | None:
    match = _LIBRARIES.search(frame.f_code.co_filename.replace("\\", "/"))
    return match[match.lastindex or 0] if match else None


def is_of_python(frame: types.FrameType) -> bool:
    """Whether it is of the standard library, as `contextlib` or `asyncio`, by which JAX and Orbax call themselves."""
    path = frame.f_code.co_filename
    return path.startswith(_STDLIB) and "-packages" not in path
