"""The report on the origin of a NaN: the operation, its line of source, a sentence and advice."""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jaxlib
from jax.extend.core import Jaxpr, Literal

from treeviz.steps.nan_origin.advice import advice
from treeviz.steps.nan_origin.examples import OTHERS, axes_of_results
from treeviz.steps.nan_origin.nonfinite import is_inexact
from treeviz.steps.nan_origin.numbers import Numbers, first_nonfinite, nonfinite_entries, numbers_of
from treeviz.steps.nan_origin.taint import Site, Within
from treeviz.steps.tracing.backward_rules import RUNS_RULES, call_of_rule
from treeviz.steps.tracing.primitives import JITS, called_jaxpr, open_jaxpr
from treeviz.tree.safe_repr import visible
from treeviz.tree.source_lines import cell_of, is_installed


class SourceLine(NamedTuple):
    """A line of source; empty if it is not known."""

    file: str = ""
    line: int = 0
    function: str = ""

    @property
    def source(self) -> str:
        """The line itself, if it can be read."""
        return visible(linecache.getline(self.file, self.line).strip(), 200) if self.file else ""

    def __str__(self) -> str:
        if not self.file:
            return "a place that JAX does not tell"
        cell = cell_of(self.file)
        line = f"{cell}, line {self.line}" if cell else f"{visible(os.path.basename(self.file), 80)}:{self.line}"
        return f"{line} in {visible(self.function, 80)}"


@dataclass(frozen=True)
class NanOrigin:
    """The operation that produced the first NaN or Inf of a step.

        origin = inspector.locate_nan()
        print(origin)                                   # a sentence, the line of source, and advice
        origin.primitive, origin.file, origin.line      # "div", "model.py", 31

    Attributes:
      primitive: The name of the JAX primitive: "div". Empty if an argument of the step had the NaN.
      direction: "forward", "backward", or "input".
      file, line, function, source: The line of source: the innermost frame outside JAX.
      called_from: The innermost frame outside installed libraries, if that differs: "train.py:31 in update", or
        "Cell In[3], line 31 in update" in a notebook. For a line of a backward rule, that of the call of its function.
      iterations: Those of the enclosing loops, the outermost first: ("scan", 7).
      inputs, outputs: Shapes, dtypes and ranges of its floating-point operands and results.
      became: The operation in which an infinity became NaN: "sub at model.py:31 in loss".
      reaches_outputs: Whether the NaN or Inf reaches a result of the step.
      argument: The argument of the step, and the path of the leaf: "params['w']".
      text: What happened, in a sentence.
      advice: What to try.
      step: The number of the step, if it is one of a run: the first bad one if its call is a loop over several.
      device: Inside a `shard_map`, the first device on which it arose, along the axes of the mesh: ("data", 3).
        Inputs and outputs are those there. Empty outside, and for what all devices compute alike.
      index: That of the first NaN or Inf in the result; empty for a scalar.
      examples: The entries of arguments that this value belongs to, as an example of the batch: ("batch['x'][17]",); of
        an argument with NaN or Inf the entries that have some, unless all do.
        The first axis of these arguments is an axis of the result. Empty where that is not known for certain, or where
        it is computed of other entries as well, as of another array that was shuffled.
    """

    primitive: str
    direction: str
    file: str
    line: int
    function: str
    source: str
    called_from: str
    iterations: tuple[tuple[str, int], ...]
    inputs: tuple[Numbers, ...]
    outputs: tuple[Numbers, ...]
    became: str
    reaches_outputs: bool
    argument: str
    text: str
    advice: str
    step: int | None = None
    device: tuple[tuple[str, int], ...] = ()
    index: tuple[int, ...] = ()
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        source = f"\n    {self.source}" if self.source else ""
        step = "" if self.step is None else f" That was in step {self.step:,}."
        return f"{self.text}{step}{source}\n{self.advice}"


def input_origin(name: str, array: Any, others: int = 0, became: Site | None = None) -> NanOrigin:
    """Report an argument that has NaN or Inf before the step begins."""
    numbers, index = numbers_of(array), first_nonfinite(array)
    text = f"input: {name} has {numbers.nonfinite} of {numbers.size:,} before the step begins"
    entries = nonfinite_entries(array) if len(index) > 1 else ()
    examples = tuple(f"{name}[{i}]" for i in entries if len(entries) < len(array))
    if index:
        text += f", the first at {list(index)}"
        more = f" and {len(examples) - 3:,} more" if len(examples) > 3 else ""
        text += f", in {', '.join(examples[:3])}{more} alone" if examples else ""
    if others:
        text += f", and {others:,} more of its arguments are not finite"
    became_text = _operation(became) if became else ""
    if became_text:
        text += f"; {became_text} made NaN of it"
    advice = "Look at the step before, which gave it, or at what loads the data."
    return NanOrigin(
        "", "input", "", 0, "", "", "", (), (numbers,), (), became_text, True, name, f"{text}.", advice,
        index=index, examples=examples,
    )  # fmt: skip


def operation_origin(
    site: Site,
    became: Site | None,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    reaches_outputs: bool,
    device: tuple[tuple[str, int], ...] = (),
    names: Sequence[str] = (),
) -> NanOrigin:
    """Report an operation; without numbers if inputs and outputs are empty.

    Args:
      names: Those of the program's arguments.
    """
    assert site.within is not None
    name = site.eqn.primitive.name
    place, called_from = place_of(site)
    direction = "backward" if is_backward(site) or is_for_backward(site) else "forward"
    ins, outs = [[numbers_of(x) for x in xs if is_inexact(x)] for xs in (inputs, outputs)]
    factor = " of the derivative" if direction == "backward" and not is_backward(site) else ""
    text = f"{direction}: {name}{factor} at {place}"
    if called_from:
        text += f" (from {called_from})"
    where = [f"iteration {k} of {loop}" for loop, k in site.within.iterations]
    text += f", in {', '.join(where)}," if where else ""
    if device:
        text += f"{'' if where else ','} on the device at {', '.join(f'{axis}={k}' for axis, k in device)},"
    bad = next((x for x in outs if x.nonfinite), None)
    text += f" gave {bad.nonfinite} of {bad.size:,}" if bad else " gave values that are not finite"
    index, examples, how = _first_bad(site, outputs, names)
    if index:
        text += f", the first at {list(index)}"
        text += f", {how} {' and '.join(examples[:3])}" if examples else ""
        text += "," if ins else ""
    if ins:
        text += " from inputs in " + " and ".join(x.range for x in ins[:4]) + (" …" if len(ins) > 4 else "")
    became_text = _operation(became) if became else ""
    if became_text:
        text += f"; {became_text} made NaN of it"
    if not reaches_outputs:
        text += "; it reaches no result of the step"
    return NanOrigin(
        name,
        direction,
        place.file,
        place.line,
        place.function,
        place.source,
        called_from,
        site.within.iterations,
        tuple(ins),
        tuple(outs),
        became_text,
        reaches_outputs,
        "",
        f"{text}.",
        advice(name, direction, place.source, ins, outs),
        device=device,
        index=index,
        examples=examples if how == _BELONGS else (),
    )


_BELONGS, _BESIDE = "which belongs to", "which depends, among others, on"


def _first_bad(
    site: Site, outputs: Sequence[Any], names: Sequence[str]
) -> tuple[tuple[int, ...], tuple[str, ...], str]:
    """The index of the first non-finite value among the results, the entries of arguments it belongs to, and how."""
    assert site.within is not None
    for n, x in enumerate(outputs):
        if not is_inexact(x) or not numbers_of(x).nonfinite:
            continue
        index = first_nonfinite(x)
        try:
            axes = axes_of_results(site.eqn, site.within)[n] if index else ()
        except Exception:  # the parameters of an operation differ in this JAX
            axes = ()
        known = next(((i, of) for i, of in zip(index, axes, strict=False) if of - {OTHERS}), None)
        if known is None or len(axes) != len(index):
            return index, (), ""
        examples = tuple(f"{names[of]}[{known[0]}]" for of in sorted(known[1] - {OTHERS}))
        return index, examples, _BESIDE if OTHERS in known[1] else _BELONGS
    return (), (), ""


def _operation(site: Site) -> str:
    backward = "the backward pass of " if is_backward(site) else ""
    return f"{backward}{site.eqn.primitive.name} at {place_of(site)[0]}"


# Source lines

_JAX = tuple(os.path.dirname(str(module.__file__)) + os.sep for module in (jax, jaxlib))
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep


def place_of(site: Site) -> tuple[SourceLine, str]:
    """The innermost frame outside JAX, and the innermost one outside all libraries if that differs.

    The latter is for a backward rule that of the call it belongs to.
    """
    eqn, within = site.eqn, site.within
    chain = [(eqn, within)]
    while within is not None and within.eqn is not None:
        chain.append((within.eqn, within.outer))
        within = within.outer
    calls = next((_frames(call) for outer, _ in chain if (call := call_of_rule(outer)) is not None), [])
    # JAX caches the traces of its own jitted functions, with the frames of their first caller.
    kept = [i for i, (outer, _) in enumerate(chain[1:], 1) if _is_of_jax(outer)]
    for eqn, _ in chain[max(kept, default=0) :]:
        frames = _frames(eqn.source_info.traceback) + calls
        if frames:
            own = next((f for f in calls or frames if not is_installed(f.file)), frames[0])
            return frames[0], str(own) if own != frames[0] else ""
    return SourceLine(), ""


def _is_of_jax(eqn: Any) -> bool:
    """Whether this is a call of a function that JAX has jitted."""
    if eqn.primitive.name not in JITS:
        return False
    inner = open_jaxpr(called_jaxpr(eqn))
    function_source = getattr(getattr(inner, "debug_info", None), "func_src_info", None)
    if function_source is not None:
        return any(folder in function_source for folder in _JAX)
    # jax 0.4 has no func_src_info; the frames of the equations inside show it
    tracebacks = (inner_eqn.source_info.traceback for inner_eqn in inner.eqns)
    frames = (frame for traceback in tracebacks if traceback for frame in traceback.frames)
    files = (f.file_name for f in frames if f.function_name.rpartition(".")[2] == eqn.params["name"])
    return next(files, "").startswith(_JAX)


def _frames(traceback: Any) -> list[SourceLine]:
    """Frames outside JAX, treeviz and the standard library, the innermost first; in a backward rule, its own."""
    found = []
    for frame in traceback.frames if traceback is not None else ():
        file = frame.file_name
        if file == RUNS_RULES:
            break
        standard = file.startswith(_STANDARD) and not is_installed(file)
        if not file.startswith((*_JAX, _HERE)) and not standard and not file.startswith("<frozen"):
            found.append(SourceLine(file, frame.line_num, frame.function_name.rpartition(".")[2]))
    return found


# Forward or backward


def is_backward(site: Site) -> bool:
    eqn, within = site.eqn, site.within
    while not _is_transposed(eqn):
        if within is None or within.eqn is None:
            return False
        eqn, within = within.eqn, within.outer
    return True


def _is_transposed(eqn: Any) -> bool:
    return any(getattr(part, "name", "") == "transpose" for part in eqn.source_info.name_stack.stack)


def is_for_backward(site: Site) -> bool:
    """Whether only the backward pass uses its results: JAX computes factors of derivatives in the forward pass."""
    return site.within is not None and _is_for_backward(site.eqn.outvars, site.within)


def _is_for_backward(variables: Sequence[Any], within: Within) -> bool:
    reached, used = set(variables), False
    forward_uses = dict.fromkeys(variables, 0)
    for eqn in within.jaxpr.eqns:
        inputs = [v for v in eqn.invars if not isinstance(v, Literal) and v in reached]
        if not inputs:
            continue
        used = used or _is_transposed(eqn)
        for v in inputs:
            forward_uses[v] += 1
        if not _is_transposed(eqn):
            reached.update(eqn.outvars)
            forward_uses.update(dict.fromkeys(eqn.outvars, 0))
    results: Jaxpr = within.jaxpr
    places = [i for i, v in enumerate(results.outvars) if not isinstance(v, Literal) and v in reached]
    leaving = {results.outvars[i] for i in places}
    if any(not n and v not in leaving for v, n in forward_uses.items()):
        return False  # another value is computed from it, even if unused
    if not places:
        return used
    if within.eqn is None or within.outer is None:
        return False
    return _is_for_backward([within.eqn.outvars[i] for i in places], within.outer)
