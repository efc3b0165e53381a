"""The operation in which something stopped being finite: where it is written, in words, and what to try."""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.extend.core import Jaxpr, Literal

from treeviz.analysis.nonfinite import is_inexact
from treeviz.analysis.notebook_cells import cell_of
from treeviz.analysis.replay import Site, Within
from treeviz.tree.quote import visible


class Numbers(NamedTuple):
    """What is in an array.

    Attributes:
      least, greatest: Of what is finite, of magnitudes if the array is complex; None if nothing is.
    """

    shape: tuple[int, ...]
    dtype: str
    least: float | None
    greatest: float | None
    n_nan: int
    n_posinf: int
    n_neginf: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def nonfinite(self) -> str:
        """ "3 -Inf and 1 NaN", or empty."""
        counts = ((self.n_nan, "NaN"), (self.n_posinf, "+Inf"), (self.n_neginf, "-Inf"))
        return " and ".join(f"{n:,} {what}" for n, what in counts if n)

    @property
    def range(self) -> str:
        text = (
            "nothing finite"
            if self.least is None or self.greatest is None
            else f"[{self.least + 0.0:.4g}, {self.greatest + 0.0:.4g}]"
        )
        return f"{text} with {self.nonfinite}" if self.nonfinite else text


class Place(NamedTuple):
    """A line of source. Empty where nobody knows."""

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
class Culprit:
    """The operation that gave the first value that is not finite.

    Attributes:
      primitive: JAX's name of it: "div". Empty if an argument of the step is to blame.
      direction: "forward", "backward", or "input".
      file, line, function, source: Where it is written: the innermost frame outside JAX.
      called_from: The innermost frame outside installed libraries, where that is another: "train.py:31 in update", or
        "Cell In[3], line 31 in update" in a notebook.
      iterations: Of the loops around it, the outermost first: ("scan", 7).
      inputs, outputs: Its operands and results, as far as they are floating point.
      became: The operation in which an infinity turned into NaN: "sub at model.py:31 in loss".
      reaches_outputs: False: it was dropped or selected away before the end of the step.
      argument: The argument of the step, and the path of the leaf: "params['w']".
      text: What happened, for people.
      advice: What to try.
      step: The number of the step, if it is one of a run.
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

    def __str__(self) -> str:
        source = f"\n    {self.source}" if self.source else ""
        step = "" if self.step is None else f" That was in step {self.step:,}."
        return f"{self.text}{step}{source}\n{self.advice}"


def input_culprit(name: str, numbers: Numbers, others: int = 0, became: Site | None = None) -> Culprit:
    """An argument that was not finite before anything was computed."""
    text = f"input: {name} has {numbers.nonfinite} of {numbers.size:,} before the step begins"
    if others:
        text += f", and {others:,} more of its arguments are not finite"
    became_text = _operation(became) if became else ""
    if became_text:
        text += f"; {became_text} made NaN of it"
    advice = "Look at the step before, which gave it, or at what loads the data."
    return Culprit(
        "", "input", "", 0, "", "", "", (), (numbers,), (), became_text, True, name, f"{text}.", advice
    )  # fmt: skip


def operation_culprit(
    site: Site, became: Site | None, inputs: Sequence[Any], outputs: Sequence[Any], reaches_outputs: bool
) -> Culprit:
    """What `site` is, in words. Empty inputs and outputs: its numbers are not known."""
    from treeviz.analysis.advice import advice

    assert site.within is not None
    name = site.eqn.primitive.name
    place, called_from = place_of(site)
    direction = "backward" if is_backward(site) or is_for_backward(site) else "forward"
    ins, outs = [[numbers_of(x) for x in xs if is_inexact(x)] for xs in (inputs, outputs)]
    factor = " of the derivative" if direction == "backward" and not is_backward(site) else ""
    text = f"{direction}: {name}{factor} at {place}"
    if called_from:
        text += f" (from {called_from})"
    if site.within.iterations:
        text += ", in " + ", ".join(f"iteration {k} of {loop}" for loop, k in site.within.iterations) + ","
    bad = next((x for x in outs if x.nonfinite), None)
    text += f" gave {bad.nonfinite} of {bad.size:,}" if bad else " gave values that are not finite"
    if ins:
        text += " from inputs in " + " and ".join(x.range for x in ins[:4]) + (" …" if len(ins) > 4 else "")
    became_text = _operation(became) if became else ""
    if became_text:
        text += f"; {became_text} made NaN of it"
    if not reaches_outputs:
        text += "; it reaches no result of the step"
    return Culprit(
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
    )


def _operation(site: Site) -> str:
    backward = "the backward pass of " if is_backward(site) else ""
    return f"{backward}{site.eqn.primitive.name} at {place_of(site)[0]}"


def numbers_of(x: Any) -> Numbers:
    x = jnp.asarray(x)
    least, greatest, *counts = [y.item() for y in jax.device_get(_numbers(x))] if x.size else (np.inf, -np.inf, 0, 0, 0)
    known = least <= greatest
    return Numbers(x.shape, str(x.dtype), least if known else None, greatest if known else None, *map(int, counts))


@jax.jit
def _numbers(x: jax.Array):
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        real = jnp.where(jnp.isfinite(x), jnp.abs(x), jnp.where(jnp.isnan(x), jnp.nan, jnp.inf))
    else:
        real = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
    finite = jnp.isfinite(real)
    least, greatest = (
        reduce(real, where=finite, initial=start) for reduce, start in ((jnp.min, np.inf), (jnp.max, -np.inf))
    )
    return least, greatest, *(jnp.sum(found) for found in (jnp.isnan(real), real == np.inf, real == -np.inf))


# Where it is written

_JAX = tuple(os.path.dirname(str(module.__file__)) + os.sep for module in (jax, jaxlib))
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def place_of(site: Site) -> tuple[Place, str]:
    """The innermost frame outside JAX, and the innermost one outside all libraries if that is another."""
    eqn, within = site.eqn, site.within
    chain = [(eqn, within)]
    while within is not None and within.eqn is not None:
        chain.append((within.eqn, within.outer))
        within = within.outer
    # JAX keeps what it traced of its own jitted functions, with the frames of whoever called them first.
    kept = [i for i, (outer, _) in enumerate(chain[1:], 1) if _is_of_jax(outer)]
    for eqn, _ in chain[max(kept, default=0) :]:
        frames = _frames(eqn)
        if frames:
            own = next((f for f in frames if not any(part in f.file for part in _INSTALLED)), frames[0])
            return frames[0], str(own) if own != frames[0] else ""
    return Place(), ""


def _is_of_jax(eqn: Any) -> bool:
    """Whether this is a call of a function that JAX has jitted."""
    if eqn.primitive.name not in ("jit", "pjit"):
        return False
    inner = eqn.params["jaxpr"].jaxpr
    told = getattr(getattr(inner, "debug_info", None), "func_src_info", None)
    if told is not None:
        return any(folder in told for folder in _JAX)
    # jax 0.4 does not tell, but the frames of what is inside do
    tracebacks = (inner_eqn.source_info.traceback for inner_eqn in inner.eqns)
    frames = (frame for traceback in tracebacks if traceback for frame in traceback.frames)
    files = (f.file_name for f in frames if f.function_name.rpartition(".")[2] == eqn.params["name"])
    return next(files, "").startswith(_JAX)


def _frames(eqn: Any) -> list[Place]:
    """Frames that are not JAX's, ours, or of the standard library, the innermost first."""
    traceback = eqn.source_info.traceback
    found = []
    for frame in traceback.frames if traceback is not None else ():
        file = frame.file_name
        standard = file.startswith(_STANDARD) and not any(part in file for part in _INSTALLED)
        if not file.startswith((*_JAX, _HERE)) and not standard and not file.startswith("<frozen"):
            found.append(Place(file, frame.line_num, frame.function_name.rpartition(".")[2]))
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
    """Whether the backward pass alone uses its results: factors of derivatives are computed beside the forward pass."""
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
        return False  # something else was computed from it, even if nobody wants that
    if not places:
        return used
    if within.eqn is None or within.outer is None:
        return False
    return _is_for_backward([within.eqn.outvars[i] for i in places], within.outer)
