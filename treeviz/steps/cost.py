"""What a step costs, by row of its arguments: operations, bytes, what is kept for the backward pass, collectives."""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax import tree_util
from jax.extend import core

from treeviz.analysis.facts import common_mesh, fact_columns, size_columns
from treeviz.steps.compiles.forecast import inner_name
from treeviz.steps.compiles.step_arguments import SownStep, path_text, sown_step
from treeviz.steps.tracing.backward_rules import frames_of
from treeviz.steps.tracing.dataflow import Followed
from treeviz.steps.tracing.payers import (
    Known,
    Level,
    Levels,
    Payers,
    Spec,
    gradient_payers,
    is_fusible,
    real,
    scopes_of,
    spec_axes,
    spread_back,
    work_of,
)
from treeviz.steps.tracing.primitives import (
    COND,
    DEVICE_SUMS,
    GATHERS,
    SCAN,
    SHARD_MAP,
    WHILE,
    open_jaxpr,
    programs,
    sow_p,
)
from treeviz.tree.describers import Description, describes
from treeviz.tree.facts import Column, Note
from treeviz.tree.table import TreeTable, same_rows
from treeviz.tree.text import aval_text, bytes_text, count_text, guarded
from treeviz.tree.walk import scan
from treeviz.views.text.terminal import wrapped
from treeviz.views.tree_view import TreeView
from treeviz.views.view import View

_COLLECTIVES = DEVICE_SUMS | GATHERS | {"pmax", "pmin", "ppermute", "all_to_all", "reduce_scatter", "psum_scatter"}
_SLICES = frozenset(["gather", "dynamic_slice", "slice"])  # of an operand, they read what they return
_UPDATES = frozenset(["dynamic_update_slice", "scatter", "scatter-add"])  # they read and write what they change
_MOST_RESIDUALS = 5
_TOLERANCE = 0.05  # a larger difference from what XLA counts is explained
# %all-reduce.1 = (f32[8,4]{1,0}, f32[4]{0}) all-reduce(…), …, metadata={op_name="jit(step)/dot_general" …}
_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
_COLLECTIVE = re.compile(rf"= (\(?[^=]*?\)?) ({_KINDS})(?:-start)?\((.*)")
_ARRAY = re.compile(r"\b([a-z]+)(\d+)?\w*\[([\d,]*)\]")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TRANSFORMED = re.compile(r"(?:(?:transpose|jvp|vmap)\()+([^()]*)\)*")
_ADDED = re.compile(
    r"jit\(.*\)|while|body|cond|checkpoint|rematted_computation|eval_jaxpr|closed_call|remat|branch_\d+_fun"
)


class Residual(NamedTuple):
    """A value of the forward pass that the backward pass reads.

    Attributes:
      path: The key path of the parameter that the step read last before it computed the value; or the scope.
      type: "bfloat16[8,4096,4096]".
      bytes: On one device: an estimate under a mesh, since the compiler decides how values are divided.
      made: The operation: "dot_general".
      line: The source line: "model.py:31 in attention".
      is_kept: False: `jax.checkpoint` computes it a second time instead.
    """

    path: str
    type: str
    bytes: float
    made: str
    line: str
    is_kept: bool = True


class Collective(NamedTuple):
    """An operation that moves arrays between devices.

    Attributes:
      name: "psum", or in a compiled program "all-reduce".
      path: The key path of the leaf that it moves or whose gradient it sums; or the scope; "" if unknown.
      axes: The axes of the mesh; () if a compiled program does not name them.
      bytes: The operand or result, whichever is larger, on one device, of all its runs in a step.
      is_compiled: The compiler has added it; else the program of the step contains it.
    """

    name: str
    path: str
    axes: tuple[str, ...]
    bytes: float
    is_compiled: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class StepCost(TreeView):
    """The arguments of a step with what each leaf costs; see `treeviz.cost`.

        view = tv.cost(update, params, x, y)
        view.totals["flops"], view.totals["peak"]
        [(kept.bytes, kept.path, kept.line) for kept in view.residuals if kept.is_kept]

    Attributes:
      totals: Of the whole step: "flops", "forward", "backward", "update", "recomputed", "transcendentals"; on one
        device "moved", "kept", "dropped", "communicated", "arguments" and "peak" bytes, which are estimates.
      n_devices: The devices of the mesh.
      memory: Bytes of memory of a device; None if unknown.
      residuals: What the backward pass keeps or computes again, the largest first.
      collectives: What moves between devices, the largest first.
      compiled: With `compile=True`, what XLA says of one device: "flops", "bytes accessed", "transcendentals", "peak",
        "arguments", "results", "temporaries"; else empty.
      notes: Sentences on what is not counted, and on differences from what XLA counts.
    """

    totals: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    n_devices: int = field(default=1, kw_only=True)
    memory: float | None = field(default=None, kw_only=True)
    residuals: Sequence[Residual] = field(default=(), kw_only=True)
    collectives: Sequence[Collective] = field(default=(), kw_only=True)
    compiled: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    notes: Sequence[str] = field(default=(), kw_only=True)

    @property
    def brief(self) -> View:
        """Without the findings of the page, which are listed below the rows of a text."""
        notes = self.table.notes.items()
        plain = {row: tuple([note for note in of if not note.sign]) for row, of in notes}
        return TreeView(same_rows(self.table, notes=plain), self.columns, depth=self.depth)

    def text(self, *, width: int | None = None, **options: Any) -> str:
        """The table as aligned text, and below it the largest residuals, the collectives and notes."""
        return "\n".join([super().text(width=width, **options), *self._below(width)])

    def lines(self, width: int | None = None) -> Iterator[str]:
        yield from super().lines(width)
        yield from self._below(width)

    def _first_rows(self, *, color: bool) -> str:
        return "\n".join([super()._first_rows(color=color), *self._below(None)])

    def _below(self, width: int | None) -> list[str]:
        same: dict[tuple, list[Residual]] = defaultdict(list)  # of several layers, for example
        for r in self.residuals:
            same[r.is_kept, r.type, r.made, r.line].append(r)
        lines: list[str] = []
        for title, is_kept in (
            ("kept for the backward pass", True),
            ("computed again by jax.checkpoint, not kept", False),
        ):
            found = [of for key, of in same.items() if key[0] == is_kept]
            found.sort(key=lambda of: -sum(r.bytes for r in of))
            lines += [f"{title}, the largest first:"] if found else []
            lines += [f"  {_residual_text(of)}" for of in found[:_MOST_RESIDUALS]]
        of_kind: dict[tuple, list[Collective]] = defaultdict(list)
        for c in self.collectives:
            of_kind[c.is_compiled, c.name, c.axes].append(c)
        for found in of_kind.values():
            lines.append(_collective_text(found) + (f", most for {found[0].path}" if found[0].path else ""))
        return [part for line in (*lines, *self.notes) for part in wrapped(line, width, "    ")]

    def json(self) -> str:
        """The JSON of a view with `cost`: {totals, n_devices, memory, residuals, collectives, compiled, notes}."""
        cost = {
            "totals": dict(self.totals),
            "n_devices": self.n_devices,
            "memory": self.memory,
            "residuals": [r._asdict() for r in self.residuals],
            "collectives": [c._asdict() for c in self.collectives],
            "compiled": dict(self.compiled),
            "notes": [*self.notes],
        }
        return f'{super().json()[:-1]},\n"cost": {json.dumps(cost)}}}'


def _residual_text(same: Sequence[Residual]) -> str:
    first, n = same[0], len(same)
    size = bytes_text(sum(r.bytes for r in same)) + (f": {n:,} ×" if n > 1 else "")
    more = f" and {n - 1:,} more" if len({r.path for r in same}) > 1 else ""
    return " · ".join(filter(None, (f"{size} {first.type}", first.made, f"{first.path}{more}", first.line)))


def _collective_text(same: Sequence[Collective]) -> str:
    over = f" over {', '.join(same[0].axes)}" if same[0].axes else ""
    by = "added by the compiler" if same[0].is_compiled else "in the program"
    return f"{same[0].name} ×{len(same):,}{over}: {bytes_text(sum(c.bytes for c in same))} per device, {by}"


# The rows below the arguments: operations that read no leaf, by scope.


class _Scope:
    """Stands for the operations of a scope that read no leaf."""


@describes(_Scope)
def _scope(leaf: _Scope) -> Description:
    return Description("placeholder", type="scope")


NO_LEAF = "no leaf"  # the row above the scopes
_BY_COMPILER = "added by the compiler"  # collectives that are known to belong to no leaf and no scope
_ITSELF = "(itself)"  # of a scope with others in it

Payer = int | tuple[str, ...]  # the number of an argument, or the names of the scopes


def _scope_rows(scopes: Sequence[tuple[str, ...]]) -> tuple[Any, list[tuple[str, ...]]]:
    """The scopes as a tree, and the scope of each of its leaves."""
    inner: dict[str, list[tuple[str, ...]]] = {}
    for names in scopes:
        inner.setdefault(names[0] if names else _ITSELF, []).append(names[1:])
    node, order = OrderedDict(), []
    for name, below in inner.items():
        if below == [()]:
            node[name], names = _Scope(), [()]
        else:
            node[name], names = _scope_rows(below)
        order += [(name, *rest) if name != _ITSELF else () for rest in names]
    return node, order


# Follow the program and add up what its equations cost.


class _Costs:
    """What the equations of a program cost, by who pays."""

    def __init__(self, step: SownStep) -> None:
        self.program = step.traced.jaxpr
        self.columns: dict[str, dict[Payer, float]] = defaultdict(lambda: defaultdict(float))
        self.residuals: list[tuple[Payer, Residual]] = []
        self.collectives: list[tuple[Payer, Collective]] = []
        self.unknown: Counter[str] = Counter()  # primitives that are not counted
        self.once = 0.0  # FLOPs, if the body of each loop counts once
        self.sizes: dict[str, int] = {}  # of the axes of the meshes
        # by what `_key_of` returns: how often the operations of that name run
        self.payers_of_name: dict[tuple, dict[Payer, float]] = defaultdict(dict)
        self._lines: dict[int, str] = {}
        self._seen: set[str] = set()  # primitives of which not all is counted
        arguments = self.program.jaxpr.invars
        leaves, tops = _leaves(step)
        given = [*step.shardings, *[None] * len(arguments)]
        specs = [self._spec(getattr(leaves.get(i), "sharding", None), given[i], v) for i, v in enumerate(arguments)]
        ranks = [(0, -tops[i][1], i) for i in range(len(arguments))]
        avals = [v.aval for v in arguments]
        origins = Payers(ranks, (), {}, avals, specs)
        known = [Known(i, spec=spec) for i, spec in enumerate(specs)]
        Followed(origins, self.program, known).to()
        self.differentiated = {i for of in origins.origins.values() for i in of if i is not None}
        first = next(iter(step.trees), "")
        params = self.differentiated or {i for i, (name, _) in tops.items() if name == first and _is_inexact(avals[i])}
        self.params = params
        ranks = [(i not in params, *rank) for i, rank in enumerate(ranks)]
        self._gradient_of = gradient_payers(self.program, origins.origins)
        self._domain = Payers(ranks, params, self._gradient_of, avals, specs)
        self._made: dict[tuple[int, Any], tuple[str, bool, Any]] = {}  # phase, recomputed, equation
        self._read: set[tuple[int, Any]] = set()
        self.followed = Followed(self._domain, self.program, known).to()
        self._levels = Levels(self.followed)
        self._spread = spread_back(self._levels.visits) if self.sizes else {}
        for eqn, operands, inside in self._levels.visits:
            self._visit(eqn, operands, inside)
        self.residuals.sort(key=lambda pair: -pair[1].bytes)

    @property
    def notes(self) -> list[str]:
        names = ", ".join(f"{name} ×{n}" for name, n in self.unknown.items())
        notes = [f"Not counted, since JAX does not know what they compute: {names}."] if names else []
        notes += ["A while loop counts as one turn, since the number of its turns is unknown."] * (WHILE in self._seen)
        return notes + ["Of a cond, the branch with the most FLOPs counts."] * (COND in self._seen)

    def _spec(self, own: Any, given: Any, v: Any) -> Spec:
        """How an argument is divided: as its sharding, that of `jax.jit` or its type says."""
        for sharding in (own, given, getattr(v.aval, "sharding", None)):
            spec, mesh = getattr(sharding, "spec", None), getattr(sharding, "mesh", None)
            self.sizes.update({} if mesh is None else mesh.shape)
            if spec is not None and any(spec):
                return spec_axes(spec, len(v.aval.shape))
        return ()

    def bytes_of(self, v: Any, inside: Followed[Known]) -> float:
        """The bytes of a value on one device."""
        n_bytes = _bytes(v.aval)
        if self._levels.of(inside).is_local or not self.sizes:
            return n_bytes
        spec = inside.read(v).spec
        spec = spec if any(spec) else self._spread.get((id(inside), v), ())
        return n_bytes / math.prod(self.sizes.get(axis, 1) for axes in spec for axis in axes)

    def _visit(self, eqn: Any, operands: list[Known], inside: Followed[Known]) -> None:
        level, name = self._levels.of(inside), eqn.primitive.name
        if id(eqn) not in level.live or not level.times:
            return
        phase = self._levels.phase(eqn, operands, inside)
        names, text = scopes_of(eqn, level.names)
        is_recomputed = level.is_recomputed or "rematted_computation" in text
        leaf = self._domain.payer(operands)
        if leaf not in self.params:  # the gradient of one may also be what another passes back
            leaf = self._gradient_of.get((*level.place, id(eqn)), leaf)
        payer: Payer = self._scope([eqn], names, inside) if leaf is None else leaf
        holds_programs = name in self._domain.enters
        if name == SHARD_MAP:
            self.sizes.update(eqn.params["mesh"].shape)
        if name in (WHILE, COND):
            self._seen.add(name)
        if eqn.primitive is not sow_p:
            if not level.is_fused:
                self._keep(eqn, inside, level, phase, is_recomputed)
            self._made.update(((id(inside), v), (phase, is_recomputed, eqn)) for v in eqn.outvars)
        if eqn.primitive is sow_p:
            return
        if (is_fusible(eqn) or not holds_programs) and not level.is_fused:
            self.columns["moved"][payer] += self._moved(eqn, inside, level) * level.turns
        if holds_programs:
            return
        work = work_of(eqn)
        if not work.is_known:
            self.unknown[name] += 1
        self.columns[phase][payer] += work.flops * level.times
        self.once += work.flops * level.times / max(level.loops, 1)
        self.columns["transcendentals"][payer] += work.transcendentals * level.times
        if is_recomputed:
            self.columns["recomputed"][payer] += work.flops * level.times
        self.payers_of_name[level.is_transposed or "transpose(" in text, names, name][payer] = level.turns
        if name in _COLLECTIVES and eqn.outvars:
            self._communicate(eqn, payer, inside, level)

    def _moved(self, eqn: Any, inside: Followed[Known], level: Level) -> float:
        """The bytes that an operation reads and writes."""
        written = sum(self.bytes_of(v, inside) for v in eqn.outvars if v not in level.sources)
        if not written:
            return 0.0
        if eqn.primitive.name in _SLICES:
            return 2 * written
        if eqn.primitive.name in _UPDATES:
            return 2 * self.bytes_of(eqn.invars[1 if eqn.primitive.name.startswith("dynamic") else 2], inside)
        return written + sum(self.bytes_of(x, inside) for x in real(level.sources, eqn.invars))

    def _communicate(self, eqn: Any, payer: Payer, inside: Followed[Known], level: Level) -> None:
        axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
        axes = tuple(axis for axis in (axes if isinstance(axes, tuple) else (axes,)) if isinstance(axis, str))
        if not axes:
            return
        n_bytes = level.turns * max(sum(_bytes(v.aval) for v in variables) for variables in (eqn.invars, eqn.outvars))
        self.add([(payer, Collective(eqn.primitive.name, "", axes, n_bytes))])

    def add(self, collectives: Sequence[tuple[Payer, Collective]]) -> None:
        for payer, collective in collectives:
            self.columns["communicated"][payer] += collective.bytes
        self.collectives += collectives

    def _keep(self, eqn: Any, inside: Followed[Known], level: Level, phase: str, is_recomputed: bool) -> None:
        """Count the values that the backward pass reads, when it reads the first time."""
        if phase != "backward" or is_recomputed:
            return
        for x in real(level.sources, eqn.invars):
            key = id(inside), x
            if key in self._read or key not in self._made:
                continue
            made_in, was_recomputed, maker = self._made[key]
            if not (made_in == "forward" or was_recomputed):
                continue
            self._read.add(key)
            known, is_kept = inside.read(x), made_in == "forward"
            n_bytes = self.bytes_of(x, inside) * (1 if is_kept else level.turns)
            chain = _makers(maker, x)
            names = functools.reduce(lambda names, eqn: scopes_of(eqn, names)[0], chain, level.names)
            payer: Payer = known.last[1] if known.last[1] >= 0 else self._scope(chain, names, inside)
            self.columns["kept" if is_kept else "dropped"][payer] += n_bytes
            shape, dtype = getattr(x.aval, "shape", ()), str(getattr(x.aval, "dtype", ""))
            made = chain[-1].primitive.name, self._line_of(chain)
            of = Residual("", aval_text(shape, dtype), n_bytes, *made, is_kept)
            self.residuals.append((payer, of))

    def _line(self, eqn: Any) -> str:
        """ "model.py:31 in attention"; "" if unknown."""
        traceback = eqn.source_info.traceback
        if id(traceback) not in self._lines:
            self._lines[id(traceback)] = str(next(iter(frames_of(traceback)), ""))
        return self._lines[id(traceback)]

    def _scope(self, chain: Sequence[Any], names: tuple[str, ...], inside: Followed[Known]) -> tuple[str, ...]:
        """The scopes of an operation; without one, the function that contains it.

        Args:
          chain: The operation, which may hold others; the innermost is the last.
        """
        while not names:
            line = self._line_of(chain)
            within = self._levels.within.get(id(inside))
            if line or within is None:
                return (f"{line.rpartition(' in ')[2] or chain[-1].primitive.name}()",)
            inside, *chain = within[:2]  # JAX knows no line of what it has traced for another call
        return names

    def _line_of(self, chain: Sequence[Any]) -> str:
        return next(filter(None, map(self._line, reversed(chain))), "")

    def peak(self, donated: Sequence[bool], size_of_argument: Callable[[int], float]) -> float:
        """The most bytes on one device at a time, if equations run in order and element-wise ones are fused."""
        arguments = self.program.jaxpr.invars
        sizes = {v: size_of_argument(i) for i, v in enumerate(arguments)}
        freed = {v: sizes[v] for v, its in zip(arguments, donated, strict=False) if its}
        return sum(sizes.values()) + self._peak(self.followed, freed)

    def _peak(self, inside: Followed[Known], freed: Mapping[Any, float]) -> float:
        level, jaxpr = self._levels.of(inside), inside.jaxpr
        eqns = [e for e in jaxpr.eqns if id(e) in level.live and any(v not in level.sources for v in e.outvars)]
        last = {x: n for n, e in enumerate(eqns) for x in real(level.sources, e.invars)}
        last.update((x, len(eqns)) for x in real(level.sources, jaxpr.outvars))
        ends: dict[int, list[Any]] = defaultdict(list)
        for x, n in last.items():
            ends[n].append(x)
        sizes: dict[Any, float] = dict(freed)
        now = top = 0.0
        for n, eqn in enumerate(eqns):
            outs = {v: self.bytes_of(v, inside) for v in eqn.outvars if v not in level.sources}
            programs_in = () if is_fusible(eqn) else inside.inside.get(id(eqn), ())
            inner = max((self._peak(followed, {}) for followed in programs_in), default=0.0)
            over = ends[n]
            reused = sum(sizes.get(x, 0.0) for x in over) if not inner and len(outs) == 1 else 0.0
            new = sum(outs.values())
            is_call = eqn.primitive.name not in (SCAN, WHILE)  # whose results are those of the program in it
            top = max(top, now + (max(new, inner) if is_call else new + inner) - min(reused, new) * (not inner))
            now += new - sum(sizes.pop(x, 0.0) for x in over)
            sizes.update((v, size) for v, size in outs.items() if v in last)
            now -= sum(size for v, size in outs.items() if v not in last)
        return top


def _leaves(step: SownStep) -> tuple[dict[int, Any], dict[int, tuple[str, int]]]:
    """For each argument of the program: its leaf; and the name of its tree, with the number of leaves of that."""
    table, nodes = scan(step.trees)
    rows = np.flatnonzero(table.is_leaf).tolist()
    leaves = {i: nodes[row] for row, i in zip(rows, step.order, strict=False) if i is not None}
    children = table.children(0)
    top = np.searchsorted(children, rows, side="right") - 1
    n_of_top, names = np.bincount(top, minlength=len(children)), [*step.trees]
    tops = {i: (names[t], int(n_of_top[t])) for t, i in zip(top.tolist(), step.order, strict=False) if i is not None}
    return leaves, defaultdict(lambda: ("", 0), tops)


def _is_inexact(aval: Any) -> bool:
    return guarded(lambda: jax.numpy.issubdtype(aval.dtype, np.inexact), lambda _: False)


def _bytes(aval: Any) -> float:
    """The bytes of an array; of what has no dtype as NumPy knows it, 0."""
    dtype: Any = getattr(aval, "dtype", None)
    n_bits = guarded(lambda: jax.dtypes.itemsize_bits(dtype), lambda _: 8 * getattr(dtype, "itemsize", 0))
    return getattr(aval, "size", 0) * n_bits / 8


def _makers(eqn: Any, v: Any) -> list[Any]:
    """The equation that computes a value, and those inside it, the innermost last."""
    chain = [eqn]
    while inner := [open_jaxpr(program) for program, _ in programs(eqn, eqn.invars)]:
        if len(inner[-1].outvars) != len(eqn.outvars):
            break
        v = inner[-1].outvars[list[Any](eqn.outvars).index(v)]
        makers = [e for e in inner[-1].eqns if not isinstance(v, core.Literal) and v in e.outvars]
        if not makers:
            break
        eqn = makers[0]
        chain.append(eqn)
    return chain


# What XLA says of the compiled program.


def _compiled(traced: Any) -> tuple[dict[str, float], str]:
    """XLA's numbers of the compiled program, on one device, and its text."""
    compiled = traced.lower().compile()
    analysis: Any = guarded(compiled.cost_analysis, lambda _: None) or {}
    analysis = analysis[0] if isinstance(analysis, list) else analysis  # until jax 0.4.36 or so
    found = {name: float(analysis[name]) for name in ("flops", "bytes accessed", "transcendentals") if name in analysis}
    memory: Any = guarded(compiled.memory_analysis, lambda _: None)
    if memory is not None:
        of = {name: float(getattr(memory, f"{name}_size_in_bytes")) for name in ("argument", "output", "temp", "alias")}
        found.update(arguments=of["argument"], results=of["output"], temporaries=of["temp"])
        found["peak"] = of["argument"] + of["output"] + of["temp"] - of["alias"]
    return found, guarded(compiled.as_text, lambda _: "") or ""


def _added_collectives(
    text: str, payers_of_name: Mapping[tuple, Mapping[Payer, float]]
) -> list[tuple[Payer, Collective]]:
    """The collectives in the text of a compiled program that are not in the program of the step.

    Who pays is known if one leaf has operations of that name, in a loop or outside of all.
    """
    found: list[tuple[Payer, Collective]] = []
    for match in filter(None, map(_COLLECTIVE.search, text.splitlines())):
        # The compiler joins several into one: (f32[5,4], f32[]) …, op_name="jit(step)/(dot_general:jvp()/reduce_sum)"
        arrays, names = _ARRAY.findall(match[1]), (_OP_NAME.findall(match[3]) or [""])[0]
        parts = _split(names)
        groups = [[array] for array in arrays] if len(parts) == len(arrays) else [arrays]
        operands = _bytes_of(_ARRAY.findall(match[3].partition(")")[0]))
        for name, group in zip(parts, groups, strict=False):
            is_backward, *key = _key_of(name)
            # Until jax 0.6, an equation inside a loop does not know that it is of a backward pass.
            payers = payers_of_name.get((is_backward, *key)) or payers_of_name.get((False, *key), {})
            is_in_loop = "while" in re.split("[/()]", name)
            payers = {payer: n for payer, n in payers.items() if (n > 1) == is_in_loop} or payers
            leaves = [payer for payer in payers if isinstance(payer, int)] or [*payers]
            payer = leaves[0] if len(leaves) == 1 else key[0] or (_BY_COMPILER,)
            turns = max(payers.values(), default=1.0) if is_in_loop else 1.0
            n_bytes = turns * max(_bytes_of(group), operands if len(groups) == 1 else 0)
            if key[1] not in _COLLECTIVES:
                found.append((payer, Collective(match[2], "", (), n_bytes, True)))
    return found


def _split(op_names: str) -> list[str]:
    """The names that the compiler has joined: "step/a/(b:c)" are "step/a/b" and "step/a/c"."""
    match = re.fullmatch(r"((?:.*?/)?)\((.*)\)", op_names)
    if match is None:
        return [op_names]
    parts, depth = [""], 0
    for char in match[2]:
        depth += (char == "(") - (char == ")")
        if char == ":" and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [match[1] + name for part in parts for name in _split(part)]


def _key_of(op_name: str) -> tuple:
    """Whether an operation of a compiled program is of a backward pass, its scopes and its primitive."""
    *parts, primitive = op_name.split("/")
    scopes = [_TRANSFORMED.sub(r"\1", part).rstrip(")") for part in parts if not _ADDED.fullmatch(part)]
    scopes = [scope for scope in scopes if scope and not _ADDED.fullmatch(scope)]
    return "transpose(" in op_name, tuple(scopes), primitive


def _bytes_of(arrays: Sequence[tuple[str, str, str]]) -> float:
    """The bytes of arrays as XLA writes them: "f32[8,4]"."""
    total = 0.0
    for kind, bits, shape in arrays:
        n_bits = 8 if kind == "pred" else int(bits or 0)
        total += n_bits / 8 * math.prod(int(size) for size in shape.split(",") if size)
    return total


_DIFFERS = {  # by what XLA counts: its unit, and why that differs from a count of the program
    "flops": ("FLOPs", "removes and simplifies operations, and repeats those that it fuses into several others"),
    "bytes accessed": ("moved", "decides what to fuse"),
    "peak": ("at the peak", "orders operations and assigns buffers itself"),
}


def _compared(costs: _Costs, totals: Mapping[str, float], n_devices: int, compiled: Mapping[str, float]) -> list[str]:
    """What XLA counts beside each total, and in words why it differs."""
    ours = {"flops": totals["flops"] / n_devices, "bytes accessed": totals["moved"], "peak": totals["peak"]}
    notes = []
    for name, (unit, reason) in _DIFFERS.items():
        mine, theirs, write = ours[name], compiled.get(name), count_text if name == "flops" else bytes_text
        if theirs is None:
            continue
        once, reasons = mine * costs.once / max(totals["flops"], 1) if name == "flops" else mine, []
        if not math.isclose(mine, theirs, rel_tol=_TOLERANCE):
            if not math.isclose(costs.once, totals["flops"]) and name != "peak":
                makes = f", which makes {write(once)}" if name == "flops" else ""
                reasons.append(f"counts the body of a loop once{makes}")
            if name == "flops" and n_devices > 1 and theirs > once:
                reasons.append("runs on every device what is not divided, such as the update of whole parameters")
            if not reasons or not math.isclose(once, theirs, rel_tol=_TOLERANCE):
                reasons.append(reason)
        why = f": XLA {', and '.join(reasons)}" if reasons else ""
        notes.append(f"XLA counts {write(theirs)} {unit}, treeviz {write(mine)}{why}.")
    return notes


# The view


def cost(step: Callable, *args: Any, compile: bool = False, memory: float | None = None, **kwargs: Any) -> StepCost:
    """Show what a step costs, by row of its arguments: operations, bytes, what the backward pass keeps, collectives.

        params = {"w": jax.ShapeDtypeStruct((512, 512), "float32")}
        x = jax.ShapeDtypeStruct((64, 512), "float32")
        step = jax.grad(lambda params, x: jnp.sum(jnp.tanh(x @ params["w"]) ** 2))
        view = tv.cost(step, params, x)
        print(view)
        view.totals["forward"], view.totals["kept"]
        view.find("backward:>1M")                      # the rows; the language of the page's search box

    The step is traced; nothing is compiled or run, and no array is read. Its arguments may be abstract, also with
    shardings on an `AbstractMesh`, so that a large model on many devices needs neither. Takes about as long as two
    traces: 2 s for Llama 3 70B, if it scans over its layers, else 10 s.

    Who pays. An operation counts in the row of the leaf that it reads (`x @ w` in that of `w`), and in the backward
    pass also in that of the leaf whose gradient it computes (`x.T @ g`). If it reads several, the leaf with a gradient
    pays. All others, such as activation functions, attention scores and the loss, count below "no leaf", by
    `jax.named_scope` (modules of Linen and Equinox set it), or without one by the function that contains them.

    FLOPs are those of all devices together, counted as XLA's `HloCostAnalysis` does, which `flax.linen.tabulate` shows,
    too: 2 for a multiply-add, 1 for each element of other results, none for moves and casts of shape; `exp`, `tanh` and
    the like are transcendentals, a column of their own. The body of a scan counts once per turn, that of a while loop
    once, of a `cond` the branch with the most. "forward" is what the loss needs, "backward" what only gradients need,
    also what `jax.checkpoint` computes again, "update" what needs gradients.

    Bytes are of one device, and all but those of arguments are estimates, since the compiler decides what is fused,
    how values are divided and when they are freed. "moved": what operations read and write, if chains of element-wise
    ones are fused. "kept": values of the forward pass that the backward pass reads, in the row of the parameter that
    was read last before they were computed; "dropped": those that `jax.checkpoint` computes again instead. The peak
    assumes that operations run in order. How values are divided follows from the shardings of the arguments,
    constraints, and explicit meshes.

    Args:
      step: A function, the result of `jax.jit`, `equinox.filter_jit` or `nnx.jit`, or a bound method or
        `functools.partial` of it. With gradients or without.
      *args, **kwargs: Its arguments; may be trees of `jax.ShapeDtypeStruct`.
      compile: Also compile the step for the devices of its arguments. XLA's own totals are shown, too, each
        difference of more than 5 % is explained, and the collectives that the compiler adds are listed.
      memory: Bytes of memory of a device, to see whether the step fits; by default that of the first device, if its
        backend reports it.

    Returns:
      A view of the arguments, with `.totals`, `.residuals`, `.collectives`, `.compiled` and `.notes`.

    Raises:
      ValueError: `compile` with an `AbstractMesh`, which has no devices.
      TypeError: JAX cannot trace the step. Other exceptions are the step's own, or with `compile` those of XLA.
    """
    shardings = [getattr(leaf, "sharding", None) for leaf in tree_util.tree_leaves((args, kwargs))]
    if compile and "AbstractMesh" in [type(getattr(sharding, "mesh", None)).__name__ for sharding in shardings]:
        raise ValueError(
            "cost: compile=True needs devices, and these arguments are sharded over an AbstractMesh. Leave it out, "
            "or use jax.make_mesh; on a CPU, jax.config.update('jax_num_cpu_devices', 8) makes 8 devices."
        )
    traced = sown_step(step, args, kwargs)
    costs = _Costs(traced)
    compiled, text = _compiled(traced.traced) if compile else ({}, "")
    costs.add(_added_collectives(text, costs.payers_of_name))
    return _view(step, traced, costs, compiled, memory)


_HELP: dict[str, tuple[Literal["count", "bytes"], str]] = {
    "forward": ("count", "FLOPs of the forward pass, on all devices"),
    "backward": ("count", "FLOPs that only gradients need, on all devices"),
    "kept": ("bytes", "Values kept for the backward pass, on one device; an estimate"),
    "communicated": (
        "bytes",
        "Bytes that collectives carry, on one device; with compile=True also those of the compiler",
    ),
    "device_bytes": ("bytes", "Bytes of the argument on one device"),
    "moved": ("bytes", "Bytes read and written on one device, if element-wise operations are fused; an estimate"),
    "update": ("count", "FLOPs that need gradients, on all devices"),
    "optimizer": ("bytes", "Bytes of optimizer state for this leaf, on one device"),
    "gradient": ("bytes", "Bytes of the gradient on one device; an estimate"),
    "dropped": ("bytes", "Values that jax.checkpoint computes again instead of keeping them; an estimate"),
    "recomputed": ("count", "FLOPs that jax.checkpoint runs a second time, on all devices; part of backward"),
    "transcendentals": ("count", "Elements of exp, log, tanh and the like, on all devices"),
}
_TITLES, _HIDDEN = {"device_bytes": "bytes/device"}, ("transcendentals",)


def _view(step: Any, traced: SownStep, costs: _Costs, compiled: dict[str, float], memory: float | None) -> StepCost:
    pairs = [pair for name in _HELP for pair in costs.columns[name].items()]
    scopes = dict.fromkeys(payer for payer, value in pairs if value and isinstance(payer, tuple))
    node, of_rows = _scope_rows([*scopes])
    trees = OrderedDict(traced.trees)
    trees.update({NO_LEAF: node} if scopes else {})
    table, _ = scan(trees, name=inner_name(step))
    rows = np.flatnonzero(table.is_leaf).tolist()
    n_own = len(rows) - len(of_rows)
    row_of: dict[Payer, int] = {i: row for row, i in zip(rows, traced.order, strict=False) if i is not None}
    row_of.update(zip(of_rows, rows[n_own:], strict=True))
    device: dict[Payer, float] = {
        i: costs.bytes_of(v, costs.followed) for i, v in enumerate(costs.program.jaxpr.invars)
    }
    costs.columns["device_bytes"].update(device)
    costs.columns["gradient"].update((i, device[i]) for i in costs.differentiated)
    for i, param in _states(table, row_of, costs).items():
        costs.columns["optimizer"][param] += device[i]
    sums = {name: float(sum(costs.columns[name].values())) for name in _HELP}
    donated = [bool(leaf.donated) for leaf in tree_util.tree_leaves(traced.traced.args_info)]
    totals = {"flops": sums["forward"] + sums["backward"] + sums["update"], **sums}
    totals["arguments"] = totals.pop("device_bytes")
    totals["peak"] = costs.peak(donated, device.__getitem__)
    n_devices = math.prod(costs.sizes.values())
    if memory is None and n_devices <= jax.local_device_count():
        stats: Any = guarded(lambda: jax.local_devices()[0].memory_stats(), lambda _: None) or {}
        memory = stats.get("bytes_limit")
    path = {payer: "/".join(payer) if isinstance(payer, tuple) else path_text(table, row_of[payer]) for payer in row_of}
    residuals = [r._replace(path=path.get(payer, "")) for payer, r in costs.residuals]
    path[_BY_COMPILER,] = ""
    costs.collectives.sort(key=lambda pair: -pair[1].bytes)
    collectives = [c._replace(path=path.get(payer, "")) for payer, c in costs.collectives]
    notes = costs.notes + (_compared(costs, totals, n_devices, compiled) if compiled else [])
    columns = [
        Column(name, _TITLES.get(name, name), _values(table, row_of, costs.columns[name]), None, format, "sum", help)
        for name, (format, help) in _HELP.items()
        if sums[name]
    ]  # fmt: skip
    badges: dict[int, list[Note]] = defaultdict(list)

    def find(row: int, sign: str, text: str) -> None:
        badges[row].append(Note("info", text, severity="info", sign=sign))

    kept = [(payer, r) for payer, r in costs.residuals if r.is_kept and payer in row_of]
    for payer, r in kept[:_MOST_RESIDUALS]:
        text = " · ".join(filter(None, (r.type, r.made, r.line)))
        find(row_of[payer], bytes_text(r.bytes), f"keeps {bytes_text(r.bytes)}: {text}")
    moved: dict[tuple, list[Collective]] = defaultdict(list)
    for payer, c in costs.collectives:
        moved[row_of.get(payer, 0), c.is_compiled, c.name, c.axes].append(c)
    for (row, *_), same in moved.items():
        find(row, bytes_text(sum(c.bytes for c in same)), _collective_text(same))
    for note in notes:
        find(0, "note", note)
    mesh = common_mesh(table)
    # Numbers need the room of what rows say of static fields and of arrays without values.
    facts = [f._replace(static=(), is_as_all=f.kind in ("shape only", "placeholder", "numpy")) for f in table.facts]
    # The dicts that hold the arguments and the scopes are ours.
    codes, ours = table.fact_codes.copy(), {0: "step"} | {row: "scopes" for row in table.children(0)[-1:] if scopes}
    for row, type_ in ours.items():
        facts.append(facts[codes[row]]._replace(type=type_))
        codes[row] = len(facts) - 1
    table = (
        same_rows(table, facts=tuple(facts), fact_codes=codes)
        .with_columns(*fact_columns(table, mesh), *size_columns(table), *columns)
        .with_notes({row: tuple(of) for row, of in badges.items()})
    )
    table = table.with_headline(*_headline(totals, n_devices, memory))
    shown = table.chosen([c.name for c in columns if c.name not in _HIDDEN])
    found = {"residuals": residuals, "collectives": collectives, "compiled": compiled, "notes": notes}
    return StepCost(table, shown, totals=totals, n_devices=n_devices, memory=memory, **found)


def _values(table: TreeTable, row_of: Mapping[Payer, int], of_payer: Mapping[Payer, float]) -> np.ndarray:
    values = np.full(len(table), np.nan)
    for payer, value in of_payer.items():
        if payer in row_of and value:
            values[row_of[payer]] = np.nansum([values[row_of[payer]], value])
    return values


def _states(table: TreeTable, row_of: Mapping[Payer, int], costs: _Costs) -> dict[int, int]:
    """The parameter for each argument that is optimizer state: of its shape, not read before, with the likest path."""
    keys = {i: [*map(str, table.path(row))] for i, row in row_of.items() if isinstance(i, int)}
    avals = [v.aval for v in costs.program.jaxpr.invars]
    by_shape: dict[Any, list[int]] = defaultdict(list)
    for i in sorted(costs.params):
        by_shape[getattr(avals[i], "shape", None)].append(i)
    found = {}
    for i in keys.keys() - costs.params:
        if not _is_inexact(avals[i]) or costs.columns["forward"].get(i):
            continue
        n_same = {
            p: next(
                (n for n, (a, b) in enumerate(zip(keys[i][::-1], keys[p][::-1], strict=False)) if a != b),
                len(keys[p]) - 1,
            )
            for p in by_shape[getattr(avals[i], "shape", None)]
            if p in keys
        }
        best = max(n_same, key=n_same.__getitem__, default=None)
        if best is not None and n_same[best]:
            found[i] = best
    return found


def _headline(totals: Mapping[str, float], n_devices: int, memory: float | None) -> list[str]:
    phases = [f"{count_text(totals[name])} {name}" for name in ("forward", "backward", "update") if totals[name]]
    headline = [f"{count_text(totals['flops'])} FLOPs" + (f": {', '.join(phases)}" if len(phases) > 1 else "")]
    peak = f"estimated peak {bytes_text(totals['peak'])}{' per device' * (n_devices > 1)}"
    if memory:
        peak += f" of {bytes_text(memory)}: {'fits' if totals['peak'] <= memory else 'does not fit'}"
    headline.append(peak)  # before what a narrow page cuts
    if totals["kept"]:
        headline.append(f"{bytes_text(totals['kept'])} kept for the backward pass")
    if totals["recomputed"]:
        headline.append(f"{count_text(totals['recomputed'])} recomputed")
    if n_devices > 1:
        per_device = f"{count_text(totals['flops'] / n_devices)} on each of {n_devices:,} devices"
        headline.append(f"{per_device}, if evenly divided")
    return headline
