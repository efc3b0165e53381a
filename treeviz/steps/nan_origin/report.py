"""The report on the origin of a NaN: the operation, its source line, the batch entries, a sentence and advice."""

from __future__ import annotations

import itertools
import linecache
import operator
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.extend.core import Literal

from treeviz.steps.nan_origin.replay import (
    Numbers,
    Site,
    Within,
    first_nonfinite,
    is_inexact,
    nonfinite_entries,
    numbers_of,
)
from treeviz.steps.tracing.backward_rules import RUNS_RULES, call_of_rule
from treeviz.steps.tracing.dataflow import Domain, Followed, followed_inside
from treeviz.steps.tracing.primitives import (
    CALLS,
    COND,
    ELEMENTWISE,
    IDENTITY,
    JITS,
    SCAN,
    SHARD_MAP,
    WHILE,
    called_jaxpr,
    open_jaxpr,
)
from treeviz.tree.runtime import cell_of, is_installed
from treeviz.tree.text import visible

# The entries of the arguments, such as examples of a batch, that a value of the program belongs to.

# For each axis of a value, the arguments whose first axis it follows: index i depends on entry i of them. `OTHERS`
# among them: it also depends on unknown entries, as of a shuffled batch. Empty: all indices depend on the same entries.
Axes = tuple[frozenset[int], ...]

OTHERS = -1
_NONE: frozenset[int] = frozenset()
_OTHERS = frozenset([OTHERS])
_SAME_AXES = ELEMENTWISE | frozenset(
    [
        *("exp2", "expm1", "log1p", "logistic", "pow", "erf", "erf_inv", "erfc", "sin", "cos", "tan", "clamp", "rem"),
        *("sinh", "cosh", "asin", "acos", "atan", "atan2", "cbrt", "floor", "ceil", "round", "is_finite", "lgamma"),
    ]
)


def axes_of_results(eqn: Any, within: Within) -> Sequence[Axes]:
    followed = _followed(within, eqn)
    if eqn.primitive.name in _Entries.enters:
        return followed_inside(followed.domain, eqn, [followed.read(x) for x in eqn.invars]).results
    return followed.domain.results(eqn, [followed.read(x) for x in eqn.invars])


def _followed(within: Within, until: Any) -> Followed[Axes]:
    """The enclosing jaxpr followed up to an equation, with the axes of its values."""
    domain, jaxpr = _Entries(), within.jaxpr
    if within.outer is None:
        ranks = (getattr(v.aval, "ndim", 0) for v in jaxpr.invars)
        axes = [(frozenset([i]), *(_OTHERS,) * (rank - 1))[:rank] for i, rank in enumerate(ranks)]
        return Followed(domain, jaxpr, axes).to(until)
    if within.eqn.primitive.name == SHARD_MAP:  # an index on a device is not an index of the whole array
        return Followed(domain, jaxpr, [_uniform(v) for v in jaxpr.invars]).to(until)
    outer = _followed(within.outer, within.eqn)
    inner = followed_inside(domain, within.eqn, [outer.read(x) for x in within.eqn.invars])
    return next(program for program in inner.programs if program.jaxpr is jaxpr)


def _uniform(atom: Any, axis: frozenset[int] = _OTHERS) -> Axes:
    return (axis,) * len(getattr(atom.aval, "shape", ()))


class _Entries(Domain[Axes]):
    """Follows along which axes of a value the entries of arguments are."""

    enters = CALLS | {COND, SCAN, WHILE}

    def unknown(self, atom: Any) -> Axes:
        return _uniform(atom)

    def constant(self, value: Any) -> Axes:
        return (_NONE,) * np.ndim(value)

    def entry(self, xs: Axes) -> Axes:
        return xs[1:]

    def stacked(self, y: Axes) -> Axes:
        return (_OTHERS, *y)

    def join(self, values: Sequence[Axes], atom: Any) -> Axes:
        axes = values[0]
        for other in values[1:]:
            pairs = zip(axes, other, strict=True)
            axes = tuple(x | y if x == y or not (x and y) else (x & y) | _OTHERS for x, y in pairs)
        return axes

    def results(self, eqn: Any, operands: Sequence[Axes]) -> list[Axes]:
        name = eqn.primitive.name
        unknown = [_uniform(v, _OTHERS if any(map(any, operands)) else _NONE) for v in eqn.outvars]
        if len(unknown) == 1 and name in _RULES:
            return [_RULES[name](eqn, operands)]
        if len(unknown) == 1 and name.startswith("reduce_") and "axes" in eqn.params:
            return [tuple(axis for i, axis in enumerate(operands[0]) if i not in eqn.params["axes"])]
        if name in IDENTITY:
            return list(operands[: len(unknown)])
        if name in ("slice", "dynamic_slice", "split"):  # an axis of unchanged length is whole
            before, *shapes = (v.aval.shape for v in (eqn.invars[0], *eqn.outvars))
            return [_kept_axes(map(operator.eq, before, shape), operands[0]) for shape in shapes]
        if name not in _SAME_AXES:
            return unknown
        same_rank = ([x for x in operands if len(x) == len(old)] for old in unknown)
        joined = (tuple(_NONE.union(*axes) for axes in zip(*xs, strict=True)) for xs in same_rank)
        return [new or old for new, old in zip(joined, unknown, strict=True)]


# Rules: (equation, axes of its operands) -> axes of its result


def _broadcast(eqn: Any, operands: Sequence[Axes]) -> Axes:
    axes = [_NONE] * len(eqn.params["shape"])
    shape = eqn.invars[0].aval.shape
    for i, target in enumerate(eqn.params["broadcast_dimensions"]):
        axes[target] = operands[0][i] if shape[i] == eqn.params["shape"][target] else _NONE
    return tuple(axes)


def _kept_axes(kept: Iterable[bool], axes: Axes) -> Axes:
    return tuple(axis if keep or not axis else _OTHERS for keep, axis in zip(kept, axes, strict=True))


def _windows(eqn: Any, operands: Sequence[Axes]) -> Axes:
    """Keeps an axis whose windows have one element, such as the batch axis in pooling."""
    p = eqn.params
    lengths = zip(p["window_dimensions"], p["window_strides"], p["base_dilation"], p["padding"], strict=True)
    return _kept_axes([(*ones, *padding) == (1, 1, 1, 0, 0) for *ones, padding in lengths], operands[0])


def _reshape(eqn: Any, operands: Sequence[Axes]) -> Axes:
    """Keeps the leading axes whose sizes do not change."""
    shapes = [v.aval.shape for v in (eqn.invars[0], eqn.outvars[0])]
    kept = len([*itertools.takewhile(lambda sizes: sizes[0] == sizes[1], zip(*shapes, strict=False))])
    return (*operands[0][:kept], *(_OTHERS if any(operands[0]) else _NONE,) * (len(shapes[1]) - kept))


def _dot_general(eqn: Any, operands: Sequence[Axes]) -> Axes:
    contracting, batch = eqn.params["dimension_numbers"]
    left, right = operands
    result = [left[i] | right[j] for i, j in zip(*batch, strict=True)]
    for axes, contracted, shared in zip(operands, contracting, batch, strict=True):
        result += [axis for i, axis in enumerate(axes) if i not in (*contracted, *shared)]
    return tuple(result)


def _conv(eqn: Any, operands: Sequence[Axes]) -> Axes:
    numbers, axes = eqn.params["dimension_numbers"], [_OTHERS] * len(eqn.outvars[0].aval.shape)
    if eqn.params["batch_group_count"] == 1:
        axes[numbers.out_spec[0]] = operands[0][numbers.lhs_spec[0]]
    return tuple(axes)


def _gather(eqn: Any, operands: Sequence[Axes]) -> Axes:
    """The gathered rows, as of an embedding table, have the axes of their indices."""
    axes, offset_dims = [_OTHERS] * len(eqn.outvars[0].aval.shape), eqn.params["dimension_numbers"].offset_dims
    for i, axis in zip((i for i in range(len(axes)) if i not in offset_dims), operands[1][:-1], strict=True):
        axes[i] = axis or _OTHERS
    return tuple(axes)


_RULES: dict[str, Callable[[Any, Sequence[Axes]], Axes]] = {
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _conv,
    "dot_general": _dot_general,
    "gather": _gather,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _windows),
    "reshape": _reshape,
    "squeeze": lambda eqn, xs: tuple(x for i, x in enumerate(xs[0]) if i not in eqn.params["dimensions"]),
    "transpose": lambda eqn, xs: tuple(xs[0][i] for i in eqn.params["permutation"]),
}

# Advice for an operation that produced NaN or Inf.

_WHERE_ADVICE = (
    "A branch that jnp.where does not take is differentiated all the same, and 0 * Inf is NaN: make its argument safe "
    "first, e.g. jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)."
)
_BY_PRIMITIVE = {
    "log": "Keep the argument above 0: jnp.log(x + eps), or for probabilities jax.nn.log_softmax.",
    "log1p": "Keep the argument above -1: jnp.log1p(jnp.maximum(x, -1 + eps)).",
    "sqrt": "Keep the argument at 0 or above: jnp.sqrt(jnp.maximum(x, 0)), and above 0 if it is differentiated.",
    "rsqrt": "Keep the argument above 0: jax.lax.rsqrt(x + eps).",
    "pow": "A fractional power of a negative base is NaN, a negative power of 0 is Inf: jnp.maximum(x, eps) ** p.",
    "acos": "Keep the argument within [-1, 1]: jnp.clip(x, -1 + eps, 1 - eps).",
    "asin": "Keep the argument within [-1, 1]: jnp.clip(x, -1 + eps, 1 - eps).",
    "atanh": "Keep the argument within (-1, 1): jnp.clip(x, -1 + eps, 1 - eps).",
    "acosh": "Keep the argument at 1 or above: jnp.maximum(x, 1).",
    "erf_inv": "Keep the argument within (-1, 1): jnp.clip(x, -1 + eps, 1 - eps).",
    "cholesky": "The matrix is not positive definite: add jitter to its diagonal, a + eps * jnp.eye(n).",
    "triangular_solve": "The matrix is singular: add jitter to its diagonal, a + eps * jnp.eye(n).",
    "eigh": "Equal eigenvalues have no derivative: add jitter to the diagonal.",
    "svd": "Equal singular values have no derivative: add jitter, or stop the gradient there.",
    "select_n": "A NaN constant was put there, by jnp.where or by a function that marks invalid arguments with NaN.",
    "integer_pow": "A negative power of 0 is infinite, and a large one too large: bound the base.",
}
_BY_PRIMITIVE["log2"] = _BY_PRIMITIVE["log"]
_WHOLE = ("shard_map", "cond", "xla_pmap", "pallas_call", "scan", "while", "custom_partitioning", "custom_linear_solve")
_GROWS = ("exp", "exp2", "expm1", "sinh", "cosh")
_SUMS = (
    *("dot_general", "conv_general_dilated", "reduce_sum", "cumsum", "mul", "add", "sub", "square", "integer_pow"),
    *("add_any", "convert_element_type", "reduce_prod", "scatter-add"),
)


def advice(name: str, direction: str, source: str, inputs: Sequence[Numbers], outputs: Sequence[Numbers]) -> str:
    """What to try, chosen by the primitive, its direction, source line, operands and results."""
    bad = next((x for x in outputs if x.nonfinite), None)
    infinite_inputs = any(x.n_posinf or x.n_neginf for x in inputs)
    if name in _WHOLE:
        return f"{name} ran as a whole: call locate_nan on the function inside it for more detail."
    if bad and bad.n_nan and infinite_inputs:
        return (
            "Intended infinities met: Inf - Inf and 0 * Inf are NaN. Has a row of a mask nothing but "
            "-Inf? Mask with a large finite number: jnp.finfo(x.dtype).min."
        )
    if direction == "backward":
        if "where" in source:
            return _WHERE_ADVICE
        if re.search(r"\ba(rc)?(cos|sin)\b", source):
            return (
                "The derivative of arccos and arcsin is infinite at -1 and 1: keep the argument between them, "
                "jnp.clip(x, -1 + 1e-6, 1 - 1e-6)."
            )
        if "sqrt" in source or "norm" in source:
            return (
                "The derivative of a square root, and so of a norm, is infinite at 0: jnp.sqrt(jnp.sum(x * x) + eps)."
            )
    if name in _GROWS and bad:
        limit = float(np.log(float(jnp.finfo(bad.dtype).max)))
        wider = ", or compute it in float32" * (jnp.finfo(bad.dtype).bits < 32)
        return (
            f"{name} of {bad.dtype} overflows above {limit:.4g}: subtract the maximum first (jax.nn.softmax, "
            f"jax.nn.logsumexp), or clip the argument{wider}."
        )
    if name in ("div", "rem"):
        if re.search(r"norm|\bstd\b|\bvar\b", source):
            return "The divisor is a norm or deviation of 0: write x / (norm + eps), or jnp.where(norm > 0, norm, 1)."
        return "Keep the divisor away from 0: x / (y + eps), or x / jnp.where(y == 0, 1, y)."
    if name in _BY_PRIMITIVE:
        extra = f" {_WHERE_ADVICE}" if "where" in source and name != "select_n" else ""
        return _BY_PRIMITIVE[name] + extra
    if name in _SUMS and bad and not bad.n_nan:
        largest = float(jnp.finfo(bad.dtype).max)
        return (
            f"The result is above {largest:.4g}, the largest {bad.dtype}: lower the learning rate or clip the "
            "gradients if values grew over the steps, or compute this in a wider dtype."
        )
    return "Bound the inputs of this line, and inspect how they became so large or small: jax.debug.print, treeviz.tap."


class SourceLine(NamedTuple):
    """A source line; empty if unknown."""

    file: str = ""
    line: int = 0
    function: str = ""

    @property
    def source(self) -> str:
        return visible(linecache.getline(self.file, self.line).strip(), 200) if self.file else ""

    def __str__(self) -> str:
        if not self.file:
            return "an unknown place"
        cell = cell_of(self.file)
        line = f"{cell}, line {self.line}" if cell else f"{visible(os.path.basename(self.file), 80)}:{self.line}"
        return f"{line} in {visible(self.function, 80)}"


@dataclass(frozen=True)
class NanOrigin:
    """The operation that produced the first NaN or Inf of a step.

        origin = inspector.locate_nan()
        print(origin)                                   # a sentence, the source line, and advice
        origin.primitive, origin.file, origin.line      # "div", "model.py", 31

    Attributes:
      primitive: The name of the JAX primitive: "div". Empty if an argument of the step contains the NaN.
      direction: "forward", "backward", or "input".
      file, line, function, source: The source line: the innermost frame outside JAX.
      called_from: The innermost frame outside installed libraries, if different: "train.py:31 in update", or
        "Cell In[3], line 31 in update" in a notebook. For a backward rule, the frame that calls its function.
      iterations: The iterations of the enclosing loops, the outermost first: ("scan", 7).
      inputs, outputs: Shapes, dtypes and ranges of its floating-point operands and results.
      became: The operation in which an infinity became NaN: "sub at model.py:31 in loss".
      reaches_outputs: Whether the NaN or Inf reaches a result of the step.
      argument: The argument of the step, and the path of the leaf: "params['w']".
      text: What happened, in a sentence.
      advice: What to try.
      step: The number of the step in a run.
      device: Inside a `shard_map`, the first device with the NaN or Inf, along the axes of the mesh: ("data", 3).
        Inputs and outputs are those on it. Empty outside, and for values that are equal on all devices.
      index: The index of the first NaN or Inf in the result; empty for a scalar.
      examples: The entries of arguments, such as examples of the batch, that the value depends on: ("batch['x'][17]",).
        Empty if unknown, or if it also depends on others, as in a shuffled batch. For an argument with NaN or Inf, the
        entries that contain some, unless all do.
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


def input_origin(name: str, array: Any, n_others: int = 0, became: Site | None = None) -> NanOrigin:
    """Report an argument that contains NaN or Inf before the step begins."""
    numbers, index = numbers_of(array), first_nonfinite(array)
    text = f"Input {name} has {numbers.nonfinite} (of {numbers.size:,}) before the step begins"
    entries = nonfinite_entries(array) if len(index) > 1 else ()
    examples = tuple(f"{name}[{i}]" for i in entries if len(entries) < len(array))
    if index:
        text += f", the first at {list(index)}"
        rest = f" and {len(examples) - 3:,} more" if len(examples) > 3 else ""
        text += f", in {', '.join(examples[:3])}{rest} only" if examples else ""
    if n_others:
        text += f", and {n_others:,} more of its arguments are not finite"
    became_text = _operation(became)
    text += f"; {became_text} turned it into NaN" if became else ""
    advice = "Check the previous step, which returned it, or the data loading."
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
    """Report an operation, without ranges if there are no inputs and outputs; `names` are those of the arguments."""
    assert site.within is not None
    name = site.eqn.primitive.name
    place, called_from = place_of(site)
    direction = "backward" if is_backward(site) or is_for_backward(site) else "forward"
    ins, outs = [[numbers_of(x) for x in xs if is_inexact(x)] for xs in (inputs, outputs)]
    text = f"In the {direction} pass, {name} at {place}"
    if called_from:
        text += f" (from {called_from})"
    iterations = [f"iteration {k} of {loop}" for loop, k in site.within.iterations]
    text += f", in {', '.join(iterations)}," if iterations else ""
    if device:
        text += f"{'' if iterations else ','} on the device at {', '.join(f'{axis}={k}' for axis, k in device)},"
    bad = next((x for x in outs if x.nonfinite), None)
    text += f" produced {bad.nonfinite} (of {bad.size:,})" if bad else " produced non-finite values"
    index, examples, relation = _first_nonfinite_entry(site, outputs, names)
    if index:
        text += f", the first at {list(index)}"
        text += f", {relation} {' and '.join(examples[:3])}" if examples else ""
        text += "," if ins else ""
    bad_index = _bad_index(site.eqn, inputs)
    if bad_index:
        text = f"{text.removesuffix(',')}: {bad_index}"
    elif ins:
        text += " from inputs in " + " and ".join(x.range for x in ins[:4]) + (" …" if len(ins) > 4 else "")
    became_text = _operation(became)
    text += f"; {became_text} turned it into NaN" if became else ""
    text += "" if reaches_outputs else "; it does not reach any result of the step"
    return NanOrigin(
        name, direction, *place, place.source, called_from, site.within.iterations, tuple(ins), tuple(outs),
        became_text, reaches_outputs, "", f"{text}.",
        _INDEX_ADVICE if bad_index else advice(name, direction, place.source, ins, outs),
        device=device, index=index, examples=examples if relation == _BELONGS else (),
    )  # fmt: skip


_INDEX_ADVICE = (
    "JAX reads NaN there. Check what computes the index, such as labels, ids or positions, and the size of the array."
)


def _bad_index(eqn: Any, inputs: Sequence[Any]) -> str:
    """Names the first index of a gather that is out of range; "" if there is none."""
    if eqn.primitive.name != "gather" or len(inputs) != 2:
        return ""
    shape, starts = inputs[0].shape, np.asarray(inputs[1])
    for column, axis in enumerate(eqn.params["dimension_numbers"].start_index_map):
        indices, n_valid = starts[..., column], shape[axis] - eqn.params["slice_sizes"][axis] + 1
        if (bad := indices[(indices < 0) | (indices >= n_valid)]).size:
            return f"index {bad.flat[0]} is out of range for axis {axis} of size {shape[axis]}"
    return ""


_BELONGS, _DEPENDS = "which belongs to", "which depends, among others, on"


def _first_nonfinite_entry(
    site: Site, outputs: Sequence[Any], names: Sequence[str]
) -> tuple[tuple[int, ...], tuple[str, ...], str]:
    """The index of the first non-finite result, the entries of arguments that it depends on, and the relation."""
    assert site.within is not None
    for n, x in enumerate(outputs):
        if not is_inexact(x) or not numbers_of(x).nonfinite:
            continue
        index = first_nonfinite(x)
        try:
            axes = axes_of_results(site.eqn, site.within)[n] if index else ()
        except Exception:  # the parameters of an operation differ in this JAX
            axes = ()
        known = next(((i, argument) for i, argument in zip(index, axes, strict=False) if argument - {OTHERS}), None)
        if known is None or len(axes) != len(index):
            return index, (), ""
        examples = tuple(f"{names[argument]}[{known[0]}]" for argument in sorted(known[1] - {OTHERS}))
        return index, examples, _DEPENDS if OTHERS in known[1] else _BELONGS
    return (), (), ""


def _operation(site: Site | None) -> str:
    if site is None:
        return ""
    backward = "the backward pass of " if is_backward(site) else ""
    return f"{backward}{site.eqn.primitive.name} at {place_of(site)[0]}"


# Source lines

_JAX = tuple(os.path.dirname(str(module.__file__)) + os.sep for module in (jax, jaxlib))
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep


def place_of(site: Site) -> tuple[SourceLine, str]:
    """The innermost frame outside JAX; and that outside all libraries, or that calls a backward rule, if it differs."""
    chain = [*_chain(site)]
    calls = next((frames_of(call) for eqn in chain if (call := call_of_rule(eqn)) is not None), [])
    # JAX caches the traces of its own jitted functions, with the frames of their first caller.
    jax_jits = [i for i, eqn in enumerate(chain) if i and is_jax_jit(eqn)]
    for eqn in chain[max(jax_jits, default=0) :]:
        frames = frames_of(eqn.source_info.traceback) + calls
        if frames:
            own_frame = next((f for f in calls or frames if not is_installed(f.file)), frames[0])
            return frames[0], str(own_frame) if own_frame != frames[0] else ""
    return SourceLine(), ""


def _chain(site: Site) -> Iterator[Any]:
    """The equation of a site, and those that hold it, the innermost first."""
    yield site.eqn
    within = site.within
    while within is not None and within.eqn is not None:
        yield within.eqn
        within = within.outer


def is_jax_jit(eqn: Any) -> bool:
    """Whether the equation calls a function that JAX itself has jitted."""
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


def frames_of(traceback: Any) -> list[SourceLine]:
    """Frames outside JAX, treeviz and the standard library, the innermost first; in a backward rule, only its own."""
    lines = []
    for frame in traceback.frames if traceback is not None else ():
        file = frame.file_name
        if file == RUNS_RULES:
            break
        standard = file.startswith(_STANDARD) and not is_installed(file)
        if not file.startswith((*_JAX, _HERE)) and not standard and not file.startswith("<frozen"):
            lines.append(SourceLine(file, frame.line_num, frame.function_name.rpartition(".")[2]))
    return lines


# Forward or backward


def is_backward(site: Site) -> bool:
    return any(map(_is_transposed, _chain(site)))


def _is_transposed(eqn: Any) -> bool:
    return any(getattr(part, "name", "") == "transpose" for part in eqn.source_info.name_stack.stack)


def is_for_backward(site: Site) -> bool:
    """Whether only the backward pass uses the results: JAX computes factors of derivatives in the forward pass."""
    variables, within = site.eqn.outvars, site.within
    while within is not None:
        reached, used, is_used = {*variables}, set(), False
        for eqn in within.jaxpr.eqns:
            inputs = {v for v in eqn.invars if not isinstance(v, Literal) and v in reached}
            used |= inputs
            is_used |= bool(inputs) and _is_transposed(eqn)
            if inputs and not _is_transposed(eqn):
                reached.update(eqn.outvars)
        outvars = within.jaxpr.outvars
        positions = [i for i, v in enumerate(outvars) if not isinstance(v, Literal) and v in reached]
        if reached - used - {outvars[i] for i in positions}:
            return False  # another value is computed from it, even if unused
        if not positions:
            return is_used
        variables = [within.eqn.outvars[i] for i in positions] if within.eqn is not None else []
        within = within.outer
    return False
