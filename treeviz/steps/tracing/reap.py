"""Run a traced program, and return with its results what is measured of its sown values, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from treeviz.steps.measured_tree import nothing_against
from treeviz.steps.tracing.copied_equations import adds_copies
from treeviz.steps.tracing.following import Plan
from treeviz.steps.tracing.origins import origins_of_results, passes_leaves
from treeviz.steps.tracing.param_updates import measure_params
from treeviz.steps.tracing.primitives import (
    bind,
    consts_of,
    context_of,
    inner_jaxprs,
    is_recomputed,
    last_uses,
    open_jaxpr,
)
from treeviz.steps.tracing.reap_rules import RULES, CannotReap
from treeviz.steps.tracing.reap_shard_map import Devices
from treeviz.steps.tracing.received import CLIPPED, Received, factor
from treeviz.steps.tracing.repeats import repeat, repeats
from treeviz.steps.tracing.scanned import AxesOf, layer_axes, scanned_in
from treeviz.steps.tracing.sow import Reaped, Sown, sow_p
from treeviz.steps.tracing.sown import sown_in, sums_of_sown
from treeviz.steps.tracing.unread import Unread
from treeviz.steps.tracing.unused import idle, read_later
from treeviz.steps.tracing.vmap_members import measure_members

_NO_LAYERS = "Layers of a scan are measured as one array"
_NOT_REPEATED = "Gradients are measured where they are made"

Reduce = Callable[[Sown, Sequence[Any]], Any]
Scaled = Callable[..., jax.Array]


class Reducers(NamedTuple):
    """How the values of one sown tree are measured.

    Attributes:
      now: Returns its packed rows.
      later: Instead of it, outside of loops and other programs inside: returns what stands for the packed rows.
      on_each: In a `shard_map` over all axes of its mesh, where each device has arrays of its own.
    """

    now: Reduce
    later: Reduce | None = None
    on_each: Reducers | None = None

    def inside(self) -> Reducers:
        """Those for a loop or another program inside."""
        return Reducers(self.now, None, self.on_each and self.on_each.inside())


def reap(
    program: ClosedJaxpr,
    arguments: Sequence[Any],
    reducers: Reducers,
    empty: Callable[[Any], Any] = jnp.zeros_like,
    *,
    with_params: bool = False,
    axes_of: AxesOf = lambda source, scanned, why_not: scanned,
    received: Plan | None = None,
    scaled: Scaled | None = None,
    left_out: set[str] | None = None,
    unread: Unread | None = None,
) -> tuple[list[Any], list[Reaped], list[jax.Array]]:
    """Run `program` on `arguments`, and measure its sown values.

    Traceable: under `jit` the packed rows are further results of the program, which sows nothing any more.

    Args:
      empty: Makes the packed rows of a branch that was not taken, or of a while loop without a step, from such rows or
        their shape.
      with_params: Measure also the parameters that a gradient inside a loop belongs to, and their updates, if the loop
        changes them.
      axes_of: Which leaves are measured layer by layer, and along which axis.
      received: What is measured besides as that which the optimizer receives of each gradient.
      scaled: The packed rows of numbers times a factor, from those of the numbers.
      left_out: Gets the names of higher-order primitives without a rule: what is sown inside is not measured.
      unread: Gets a note on each part of the program that cannot be read.

    Returns:
      The program's results; what was reaped; and the packed rows of each.

    Raises:
      CannotReap: A value is sown inside a higher-order primitive without a rule, and none elsewhere.
    """
    computed_once = {sown for sown, recomputed in sown_in(program) if not recomputed}
    run = Run(reducers, empty, computed_once, with_params, axes_of)
    run.received, run.scaled = {} if received is None else _measured_of(received, with_params), scaled
    run.left_out, run.unread = set() if left_out is None else left_out, unread or Unread()
    results, reaped, packed = run.jaxpr(program.jaxpr, program.consts, arguments, range(len(arguments)))
    if all(r.sown.kind == "tap" for r in reaped):
        if run.left_out:
            inside = f"inside `{min(run.left_out)}`, a primitive from which treeviz can return nothing"
            raise CannotReap(f"a gradient is made {inside}")
        if run.unread.notes:
            raise CannotReap(" ".join(run.unread.notes).rstrip("."))
    return results, reaped, packed


def _measured_of(plan: Plan, with_params: bool) -> dict[int, dict[Sown, Received]]:
    """What is received of the gradients, by jaxpr: one that is clipped alone, if updates are measured."""
    return {
        jaxpr: {sown: what for sown, what in found.items() if with_params or what.how != (CLIPPED,)}
        for jaxpr, found in plan.of.items()
    }


class Run:
    """One run of a program. The rules of `reap_rules` use it to run the jaxprs inside.

    Attributes:
      reducers: Those for this jaxpr.
      computed_once: The trees that are sown outside of recomputations, which are measured only there.
      in_recomputation: This jaxpr is run again, for a backward pass.
      devices: Those of the `shard_map` around this jaxpr, if there is one.
      received: What the optimizer receives, by the id of the jaxpr that holds it, and by what was sown.
      left_out: The primitives in which something is sown that is not measured.
      unread: What cannot be read of the program.
    """

    def __init__(
        self,
        reducers: Reducers,
        empty: Callable[[Any], Any],
        computed_once: set[Sown],
        with_params: bool,
        axes_of: AxesOf,
    ):
        self.reducers = reducers
        self.empty = empty
        self.computed_once = computed_once
        self.with_params = with_params
        self.axes_of = axes_of
        self.in_recomputation = False
        self.devices: Devices | None = None
        self.received: Mapping[int, Mapping[Sown, Received]] = {}
        self.scaled: Scaled | None = None
        self.left_out: set[str] = set()
        self.unread = Unread()

    def on(self, devices: Devices) -> Run:
        """The same run, for the jaxpr of a `shard_map`."""
        run, reducers = copy(self), self.reducers
        run.devices = devices
        run.reducers = reducers.on_each if devices.is_manual and reducers.on_each else reducers.inside()
        return run

    def inside(self) -> Run:
        """The same run, for the jaxpr of a loop or of another program."""
        run = copy(self)
        run.reducers = self.reducers.inside()
        return run

    def in_body(self, origins: Sequence[int | None]) -> Run:
        """The same run, for the body of a loop whose operands have these origins here."""
        return self if self.devices is None else self.on(self.devices.in_body(origins))

    def recomputing(self) -> Run:
        """The same run, for a jaxpr that is run again."""
        run = copy(self)
        run.in_recomputation = True
        return run

    def jaxpr(self, jaxpr: Jaxpr, consts, arguments, origins=()):
        """Run one jaxpr.

        Args:
          origins: For each argument, the number of the program argument that it is the same leaf as; or None.

        Returns:
          Its results, what was reaped in it, and the packed rows of each.
        """
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        origin: dict[Any, int | None] = dict(zip(jaxpr.invars, origins, strict=False))
        reaped: list[Reaped] = []
        packed: list[jax.Array] = []

        def read(atom):
            return atom.val if isinstance(atom, Literal) else values[atom]

        def origins_of(eqn):
            return [None if isinstance(x, Literal) else origin.get(x) for x in eqn.invars]

        attempt, sows = self.unread.attempt, any(eqn.primitive is sow_p for eqn in jaxpr.eqns)
        summed = {} if self.devices is None else sums_of_sown(jaxpr, self.devices.sizes)
        again = attempt(_NOT_REPEATED, {}, repeats, jaxpr)
        scanned = attempt(_NO_LAYERS, {}, scanned_in, jaxpr) if sows else {}
        received, copies = self.received_in(jaxpr), {}
        kept = read_later(summed, again, received.values())
        without = idle(jaxpr, kept)
        freed_after, add = last_uses(jaxpr, kept, without), adds_copies()
        for n, eqn in enumerate(jaxpr.eqns):
            if passes_leaves(eqn):
                origin.update(zip(eqn.outvars, origins_of_results(eqn, origins_of(eqn)), strict=False))
            if n in without:
                continue
            operands = [read(x) for x in eqn.invars]
            copied = add(eqn, operands) if eqn.primitive is not sow_p and self.rule(eqn) is None else None
            if copied is not None:
                results = copied
            elif n in summed:  # measured below, where the sums are known
                results = operands[: eqn.params["n"]]
            else:
                with context_of(eqn):
                    measured = repeat(again[n], eqn, read, self.is_later(eqn)) if n in again else operands
                    if eqn.primitive is sow_p and eqn.params["sown"] in received:
                        copies.update(zip(eqn.outvars, measured, strict=False))
                    results, reaped_here, packed_here = self.equation(eqn, measured, origins_of(eqn), scanned)
                results = operands[: len(results)] if n in again else results
                reaped += reaped_here
                packed += packed_here
            values.update(zip(eqn.outvars, results, strict=True))
            for variable in freed_after.get(n, ()):
                values.pop(variable, None)
        for n, sums in summed.items():
            variables, axes = zip(*sums, strict=True)
            eqn, of_devices = jaxpr.eqns[n], [read(v) for v in variables]
            _, reaped_here, packed_here = self.measure(eqn, of_devices, origins_of(eqn), scanned, axes)
            reaped += [replace(r, summed_over=frozenset.intersection(*axes)) for r in reaped_here]
            packed += packed_here
        for r, rows in self.receive(received, reaped, packed, read, copies):
            reaped.append(r)
            packed.append(rows)
        return [read(x) for x in jaxpr.outvars], reaped, packed

    def received_in(self, jaxpr: Jaxpr) -> Mapping[Sown, Received]:
        """What is measured besides of the values that are sown in a jaxpr."""
        if self.devices is not None or self.scaled is None:  # each device may receive something else
            return {}
        return self.received.get(id(jaxpr), {})

    def receive(self, received: Mapping[Sown, Received], reaped, packed, read, copies):
        """What the optimizer receives of the gradients that were reaped, and its packed rows.

        Args:
          copies: The sown values as they were measured, by variable.
        """
        found = []
        for r, rows in zip(reaped, packed, strict=True):
            if r.gradient is not None or r.tagged not in received:
                continue
            what = received[r.tagged]
            sown = replace(r.sown, kind="received", source=r.sown.source._replace(name="received"))
            axes = r.axes
            if not what.is_sown:
                axes, rows = (), self.reducers.now(sown, what.read(read, copies))
            assert self.scaled is not None
            rows = self.scaled(rows, factor=factor(what.scale, read))
            found.append((replace(r, sown=sown, axes=axes, gradient=r.sown), rows))
        return found

    def equation(self, eqn, operands, origins, scanned: Mapping[Any, int]):
        if eqn.primitive is sow_p:
            return self.measure(eqn, operands, origins, scanned)
        rule = self.rule(eqn)
        if rule is not None:
            try:
                return rule(self, eqn, operands, origins)
            except CannotReap:
                raise
            except Exception as error:
                self.unread.note(f"What jax.grad computes inside this `{eqn.primitive.name}` is not measured", error)
        return bind(eqn, operands), (), ()

    def traced(self, jaxpr: Any, origins=(), devices: Devices | None = None):
        """A function from the jaxpr's operands to its results and packed rows; and a list of what is reaped.

        The list is empty until the function is traced.

        Args:
          devices: Those of a `shard_map`, of its jaxpr.
        """
        reaped: list[Reaped] = []
        run = self.inside() if devices is None else self.on(devices)

        def function(*operands):
            results, reaped[:], packed = run.jaxpr(open_jaxpr(jaxpr), consts_of(jaxpr), operands, origins)
            return results, packed

        return function, reaped

    def rule(self, eqn) -> Callable | None:
        """How to run an equation in which something is sown; None for all others."""
        if not (jaxprs := inner_jaxprs(eqn)):
            return None
        recomputed = self.in_recomputation or is_recomputed(eqn)
        sown_inside = (pair for inner in jaxprs for pair in sown_in(inner, recomputed))
        if all(recomputed and sown in self.computed_once for sown, recomputed in sown_inside):
            return None
        rule = RULES.get(eqn.primitive.name)
        if rule is None:
            self.left_out.add(eqn.primitive.name)
        return rule

    def measure(
        self, eqn, operands, origins, scanned: Mapping[Any, int], summed: Sequence[frozenset[str]] | None = None
    ):
        """The rule for `sow`.

        Args:
          operands: The sown values; those that they are the gradients of may follow, and are not read.
          origins: The origins of all operands of the equation.
          scanned: The variables that the program scans over, and along which axis.
          summed: The axes of the mesh over which each value has been summed.
        """
        n, sown, batched = (eqn.params[name] for name in ("n", "sown", "batched"))
        values = operands[:n]
        if sown.kind == "loss" or (self.in_recomputation and sown in self.computed_once):
            return values, (), ()
        origins, shards, why_not = tuple(origins[n:]) or (None,) * n, (), nothing_against
        if self.devices is not None:
            shards, why_not = self.devices.shards(values, (None,) * n if batched else origins, summed)
            sown = replace(sown, source=self.devices.whole(sown.source, shards))
        sown = replace(sown, axes=layer_axes(eqn, sown.source, scanned, self.axes_of, why_not))
        reducers = self.reducers if self.is_later(eqn) else self.reducers.inside()
        reduce = reducers.later or reducers.now
        packed, axes = measure_members(lambda *values: reduce(sown, values), values, [b[:n] for b in batched])
        reaped = Reaped(
            sown,
            axes,
            origins=origins,
            shards=shards,
            is_differentiated=eqn.params["differentiated"],
            tagged=eqn.params["sown"],
            batched=tuple(b[n:] for b in batched),
        )
        return values, [reaped], [packed]

    def is_later(self, eqn) -> bool:
        """Whether what an equation sows is measured when the whole program has been run."""
        is_read = any(eqn.params["sown"] in received for received in self.received.values())
        return self.reducers.later is not None and not (eqn.params["batched"] or is_read)

    def in_loop(self, reaped: Sequence[Reaped], before: Mapping[int, Any], after: Mapping[int, Any]):
        """What a loop body reaps, marked if it changes there; parameters and updates; and the packed rows of these.

        Args:
          before, after: The carry into and out of a step of the loop, by the number of the body's operand.
        """
        known, params, packed = [], [], []
        for r in reaped:
            origins = [origin for origin in r.origins if origin is not None]
            has_all = len(origins) == len(r.origins)
            changes = not has_all or any(origin in before for origin in origins)
            known.append(replace(r, changes_in_loop=r.changes_in_loop or (changes and r.gradient is None)))
            is_gradient = r.gradient is None and r.sown.kind != "tap"
            # Within a `shard_map` it is unknown which parameters the devices share.
            if not (self.with_params and is_gradient and has_all) or r.changes_in_loop or self.devices is not None:
                continue
            if all(origin in before for origin in origins):
                old, new = ([carry[origin] for origin in origins] for carry in (before, after))
                for part, packed_part in measure_params(self.reducers.now, r, old, new):
                    params.append(part)
                    packed.append(packed_part)
        return known + params, packed
