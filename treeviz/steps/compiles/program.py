"""What a compiled step does with the buffers of its arguments: read from the text of its program."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax import tree_util

from treeviz.steps.compiles.traced import out_tree
from treeviz.steps.tracing.jit_options import arguments_read
from treeviz.tree.safe_repr import array_text, guarded
from treeviz.tree.sharding import describe_sharding
from treeviz.tree.walk import walk

# HloModule jit_step, input_output_alias={ {1}: (0, {}, may-alias) }, entry_computation_layout={(f32[4]{0}, …)->…
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+), \{\}, m\w+-alias\)")
_PARAMETERS = re.compile(r"entry_computation_layout=\{\((.*?)\)->")
_PARAMETER = re.compile(r"\b[a-z]\w*\[")


class Buffers(NamedTuple):
    """What becomes of the leaves of the arguments.

    Attributes:
      donated: Whether each was donated.
      read: Whether the program reads it; None if that is not known.
      reused: The path of the result that takes its buffer; "" for none; None if that is not known.
      why_not: Of those that were donated, are read, and are not reused.
    """

    donated: list[bool]
    read: list[bool | None]
    reused: list[str | None]
    why_not: list[str]


def read_buffers(
    step: Callable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result_name: Callable[[str], str] = "result{}".format,
) -> tuple[Any, Buffers]:
    """The treedef of the arguments that are not static, and what becomes of their leaves. Compiles the step.

    Args:
      result_name: Says what a result is called, given its key path.
    """
    traced: Any = step.trace(*args, **kwargs)  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # this says it by leaf
        lowered = traced.lower()
        compiled = lowered.compile()
    donated = [bool(leaf.donated) for leaf in tree_util.tree_leaves(lowered.args_info)]
    n, kept = len(donated), arguments_read(compiled)
    if len(traced.jaxpr.in_avals) != n:
        raise TypeError(
            "arguments: a leaf of the arguments has a hijax type, which is several buffers of the program, or none. "
            "Pass the arrays in it instead."
        )
    first_line = (guarded(compiled.as_text, lambda _: "") or "").partition("\n")[0]
    parameters = _parameters(first_line)
    n_tokens = parameters.count("token[")
    if kept is None and len(parameters) - n_tokens == n:
        kept = list(range(n))
    # What else precedes the arguments, in a release to come, is not guessed at.
    is_known = kept is not None and len(parameters) - n_tokens == len(kept)
    paths = [result_name(leaf.keystr) for leaf in walk(out_tree(traced)).leaves]
    reused: list[str | None] = ["" if is_known else None] * n
    for result, parameter in _ALIAS.findall(first_line) if is_known else ():
        out, leaf = int(result or 0) - n_tokens, int(parameter) - n_tokens
        if kept is not None and leaf >= 0 and out >= 0:
            reused[kept[leaf]] = paths[out] if out < len(paths) else "a result"
    read: list[bool | None] = [None if kept is None else i in set(kept) for i in range(n)]
    jaxpr = traced.jaxpr
    types = list(zip(paths, jaxpr.out_avals, _places(lambda: compiled.output_shardings, len(paths)), strict=False))
    why = [
        _why_not(aval, place, types, reused) if was_donated and is_read and not taken and is_known else ""
        for aval, place, was_donated, is_read, taken in zip(
            jaxpr.in_avals, _places(lambda: compiled.input_shardings, n), donated, read, reused, strict=True
        )
    ]
    return lowered.in_tree, Buffers(donated, read, reused, why)


def _parameters(first_line: str) -> list[str]:
    """["f32[", "token["]: how the types of the program's parameters begin."""
    found = _PARAMETERS.search(first_line)
    return _PARAMETER.findall(re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", found[1])) if found else []


def _places(shardings: Callable[[], Any], n: int) -> list[Any]:
    """The shardings of arguments or results; None where this release of JAX does not tell."""
    found = guarded(lambda: tree_util.tree_leaves(shardings(), is_leaf=lambda x: x is None), lambda _: [])
    return found if len(found) == n else [None] * n


def _why_not(aval: Any, place: Any, results: Sequence[tuple[str, Any, Any]], reused: Sequence[str | None]) -> str:
    """Why no result took the buffer of a leaf."""
    alike = {path: its for path, other, its in results if (other.shape, other.dtype) == (aval.shape, aval.dtype)}
    what = array_text(aval) or str(aval)
    if not alike:
        same_shape = [f"{path} is {array_text(other)}" for path, other, _ in results if other.shape == aval.shape]
        return f"no result is {what}{f', {same_shape[0]}' if same_shape else ''}"
    free = [path for path in alike if path not in reused]
    if free:
        return f"{free[0]} is {what}, too, but {_lies(place, alike[free[0]])}"
    if len(alike) == 1:
        return f"the one result that is {what}, {next(iter(alike))}, takes another buffer"
    return f"the {len(alike):,} results that are {what} take other buffers"


def _lies(mine: Any, other: Any) -> str:
    """ "lies as P(), and this as P('d')"."""
    found = [each and describe_sharding(each) for each in (other, mine)]
    is_elsewhere = len({each and each.devices for each in found}) > 1
    texts = [each and (f"{each.text} on {each.devices}" if is_elsewhere else each.text) for each in found]
    if None in texts or texts[0] == texts[1]:
        return "lies, or is laid out, in another way"
    return f"lies as {texts[0]}, and this as {texts[1]}"
