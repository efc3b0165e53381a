"""Gradients that a step computes and throws away, as where each of several losses is differentiated by all networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from treeviz.steps.tracing.primitives import inner_jaxprs, open_jaxpr
from treeviz.steps.tracing.received import Received
from treeviz.steps.tracing.sow import Sown, sow_p
from treeviz.steps.tracing.sown import holds_sown, sown_in

_GRADIENTS = ("grads", "cotangents")


def without_unused(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program without the tags of gradients that it throws away, which XLA need not compute then.

    Nothing uses them, and their parameters have other gradients that are used: a parameter that has none may be frozen,
    or forgotten, which shall be told. A tree of which a part is left keeps its rows; the others have no number.
    """
    n_sown = Counter(sown for sown, _ in sown_in(program))
    dead = {sown: places for sown, places in _unused(program.jaxpr).items() if n_sown[sown] == 1}
    return ClosedJaxpr(_rewritten(program.jaxpr, dead), program.consts) if dead else program


def idle(jaxpr: Jaxpr, kept: Set[Any] = frozenset()) -> set[int]:
    """The numbers of equations on which neither results nor what is sown depend, as a loss that is not returned.

    Args:
      kept: Variables that are read besides.
    """
    used = {x for x in (*jaxpr.outvars, *kept) if not isinstance(x, Literal)}
    found: set[int] = set()
    for n in range(len(jaxpr.eqns) - 1, -1, -1):
        eqn = jaxpr.eqns[n]
        is_tag = eqn.primitive is sow_p and eqn.params["sown"].kind == "loss"
        if used.isdisjoint(eqn.outvars) and not eqn.effects and (is_tag or not holds_sown(eqn)):
            found.add(n)
        else:
            used.update(x for x in eqn.invars if not isinstance(x, Literal))
    return found


def read_later(summed, again, received: Iterable[Received]) -> set[Any]:
    """The variables that are read after their last use in the jaxpr: sums, and the operands of repeated equations."""
    needed = {v for sums in summed.values() for v, _ in sums}
    needed |= {v for what in received for v in what.reads}
    repeated = (eqn for chains in again.values() for chain in chains for eqn in chain.values())
    return needed | {v for eqn in repeated for v in eqn.invars if not isinstance(v, Literal)}


def _unused(jaxpr: Jaxpr) -> dict[Sown, set[int]]:
    """The numbers of the sown gradients that are thrown away, in a jaxpr and in those inside it.

    Of those inside, all results count as used.
    """
    used = {x for x in jaxpr.outvars if not isinstance(x, Literal)}
    dead: dict[Sown, set[int]] = {}
    unused_of, trained = [], set()  # what has a gradient that is used
    for eqn in reversed(jaxpr.eqns):
        for inner in inner_jaxprs(eqn):
            dead.update(_unused(open_jaxpr(inner)))
        if eqn.primitive is sow_p and eqn.params["sown"].kind in _GRADIENTS:
            n, unused = eqn.params["n"], {i for i, v in enumerate(eqn.outvars) if v not in used}
            unused_of.append((eqn, unused))
            trained.update(x for i, x in enumerate(eqn.invars[n:]) if i not in unused and not isinstance(x, Literal))
            used.update(x for i, x in enumerate(eqn.invars) if i not in unused and not isinstance(x, Literal))
        elif eqn.effects or holds_sown(eqn) or any(v in used for v in eqn.outvars):
            used.update(x for x in eqn.invars if not isinstance(x, Literal))
    for eqn, unused in unused_of:
        params = dict(enumerate(eqn.invars[eqn.params["n"] :]))
        away = {i for i in unused if i in params and not isinstance(params[i], Literal) and params[i] in trained}
        if away:
            dead[eqn.params["sown"]] = away
    return dead


def _rewritten(jaxpr: Jaxpr, dead: Mapping[Sown, set[int]]) -> Jaxpr:
    eqns, same = [], {}
    for eqn in jaxpr.eqns:
        if any(not isinstance(x, Literal) and x in same for x in eqn.invars):
            eqn = eqn.replace(invars=[x if isinstance(x, Literal) else same.get(x, x) for x in eqn.invars])
        if eqn.primitive is sow_p and eqn.params["sown"] in dead:
            places = dead[eqn.params["sown"]]
            same.update((eqn.outvars[i], eqn.invars[i]) for i in places)
            if len(places) < eqn.params["n"]:
                eqns.append(_without(eqn, places))
            continue
        if any(sown in dead for inner in inner_jaxprs(eqn) for sown, _ in sown_in(inner)):
            eqn = eqn.replace(params={name: _inside(value, dead) for name, value in eqn.params.items()})
        eqns.append(eqn)
    return jaxpr.replace(eqns=eqns)


def _inside(value: Any, dead: Mapping[Sown, set[int]]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_inside(each, dead) for each in value)
    if isinstance(value, ClosedJaxpr):
        return ClosedJaxpr(_rewritten(value.jaxpr, dead), value.consts)
    return _rewritten(value, dead) if isinstance(value, Jaxpr) else value


def _without(eqn: Any, places: set[int]) -> Any:
    """The equation that sows, without these values and what they are the gradients of."""
    n, sown = eqn.params["n"], eqn.params["sown"]
    kept = [i for i in range(len(eqn.invars)) if i % n not in places]
    numbers = iter(range(n))
    has_number = tuple(has and next(numbers) not in places for has in sown.source.has_number)
    params = {
        **eqn.params,
        "n": n - len(places),
        "sown": replace(sown, source=sown.source._replace(has_number=has_number)),
        "batched": tuple(tuple(dims[i] for i in kept) for dims in eqn.params["batched"]),
    }
    outvars = [v for i, v in enumerate(eqn.outvars) if i not in places]
    return eqn.replace(invars=[eqn.invars[i] for i in kept], outvars=outvars, params=params)
