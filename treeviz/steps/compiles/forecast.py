"""Tell before the first step whether the second one traces or compiles again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import tree_util

from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.steps.compiles.arguments import named_arguments, step_name
from treeviz.steps.compiles.compare import Part, compare_types
from treeviz.steps.compiles.jit_type import JitType, is_committed
from treeviz.steps.compiles.new_state import Place, find_state, given_state
from treeviz.steps.compiles.traced import TracedStep, trace_step

_COMMITTED = "committed"
_MOST_PATHS = 5  # of leaves that become committed


class Forecast(Differences):
    """What of a step's state comes out otherwise than it went in; `print` says what follows from that.

    Attributes:
      retraces: Whether types or structure differ, so that the second call traces again. Arrays on several devices may
        have it traced again, too, where they become committed.
      recompiles: Whether it compiles again.
    """

    def __init__(self, differences: Iterable[Difference], name: str, states: str) -> None:
        super().__init__(differences)
        self._name, self._states = name, states
        self.recompiles = bool(self)
        self.retraces = any(each.right != _COMMITTED for each in self)

    def __repr__(self) -> str:
        again = "traces and compiles" if self.retraces else "compiles"
        verb, it = ("come", "they") if "` (" in self._states.partition(" and `")[2] else ("comes", "it")
        if not self:
            return f"The second call of `{self._name}` does not trace again: {self._states} {verb} out as {it} went in."
        why = f"since {self._states} {verb} out otherwise than {it} went in"
        return f"The second call of `{self._name}` {again} again, {why}:\n{super().__repr__()}"

    __str__ = __repr__


def forecast(
    step: Callable,
    *args: Any,
    state_arg: int | str | Sequence[int | str] = 0,
    out: Any = None,
    **kwargs: Any,
) -> Forecast:
    """Tell whether the second call of a step traces and compiles again, and which leaf of its state is to blame.

        print(tv.forecast(update, params, x, y))
        assert not tv.forecast(update, params, x, y)

    A loop hands the new state to the next call. If a leaf then has another dtype or weak type, is an array where it
    was None, or has become committed to a device, JAX compiles a second time. The step is traced once, which its first
    call then need not do; nothing is compiled or run, and no node of the user's is unflattened. Other arguments are
    taken to stay as they are. Shardings that the compiler chooses are not known before it runs, and not compared.

    Args:
      step: A function, or what `jax.jit` or `equinox.filter_jit` gave, or a bound method or `functools.partial` of one.
      *args, **kwargs: The arguments of its first call; trees of `jax.ShapeDtypeStruct` will do.
      state_arg: Which argument is the state, by position or name. Several, as `(0, 1)` for `params, opt_state`:
        only what is named is compared.
      out: Where the new state stands in the result: an index, a key or the name of a field; a tuple of them for a
        nested one, and `()` if it is the result. For several states, one each. None: found by structure.

    Returns:
      A list of `Difference`, from the state that goes in to the one that comes out; it is empty exactly if the second
      call neither traces nor compiles again. `print` shows a sentence.

    Raises:
      ValueError: There is no such argument, or it is not certain where in the result the new state stands.
      TypeError: JAX cannot trace the step, or another library jitted it; of `nnx.jit` it says which lines convert it.
        Other exceptions are the step's own.
    """
    names = named_arguments(step, args, kwargs)
    several = isinstance(state_arg, tuple | list)
    chosen = [_name_of(each, names, len(args)) for each in (state_arg if several else [state_arg])]  # type: ignore[union-attr]
    outs = list(out) if several and out is not None else [out] * len(chosen)
    if len(outs) != len(chosen):
        raise ValueError(f"forecast: {len(chosen)} states, but out={out!r} names {len(outs)}.")
    traced = trace_step(step, args, kwargs)
    found: list[Difference] = []
    places: list[str] = []
    for name, where in zip(chosen, outs, strict=True):
        mine = traced.arguments[name]
        place = _place_of(name, Part(*mine), traced.result, where, several)
        places.append(f"`{name}` ({place.text})")
        differ = compare_types(names[name], mine, JitType(*place.part))
        found += [Difference(f"{name}{path}", *_with_advice(*finding)) for path, finding in differ]
        found += _become_committed(name, names, traced)
    return Forecast(found, step_name(step), " and ".join(places))


def _name_of(which: int | str, names: dict[str, Any], n_positional: int) -> str:
    if which in names:
        return str(which)
    if isinstance(which, int) and -n_positional <= which < n_positional:
        return list(names)[:n_positional][which]
    raise ValueError(f"forecast: state_arg={which!r}: the call has no such argument, but {', '.join(names) or 'none'}.")


def _place_of(name: str, state: Part, result: Part, out: Any, several: bool) -> Place:
    if out is not None:
        return given_state(result, out)
    place = find_state(state, result)
    if place is not None:
        return place
    below = [*Place((), result).children()]
    parts = [f"out={child.keys[0]!r} is {child.part.text}" for child in below[:10]]
    raise ValueError(
        f"forecast: where in the result is the new `{name}`, {state.text}? The result is {result.text}"
        + f": {'; '.join(['out=() is all of it', *parts])}. Pass out=…{' for each state' if several else ''}."
    )


def _with_advice(kind: str, left: str, right: str, hint: str) -> tuple[str, str, str, str]:
    if not hint:
        hint = {
            "static": "" if " = " in left else "what is no array is part of the program: make it one",
            "weak type": "return it with a dtype: .astype(old.dtype)"
            if left.startswith("not")
            else "start from an array with a dtype, as jnp.float32(0), not from a Python number",
            "dtype": "cast what the step returns: .astype(old.dtype)",
            "none": "start from what it becomes, as zeros" if left == "None" else "",
        }.get(kind, "")
    return kind, left, right, hint


def _become_committed(name: str, names: dict[str, Any], traced: TracedStep) -> list[Difference]:
    """What a program returns is committed to its device once any array that it reads is."""
    if not traced.reads_committed:
        return []
    mine = tree_util.tree_flatten_with_path(names[name])[0]
    paths = [
        tree_util.keystr(path)
        for (path, leaf), known in zip(mine, traced.arguments[name].leaves, strict=True)
        if known.aval is not None and not is_committed(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct)
    ]
    by = next(key for key, value in names.items() if any(map(is_committed, tree_util.tree_leaves(value))))
    hint = f"since `{by}` has a committed array; commit these, too, with jax.device_put"
    if len(paths) > _MOST_PATHS:
        hint = f"{len(paths):,} of {len(mine):,} leaves, {hint}"
        paths = [""]
    return [Difference(name + path, "sharding", "not committed", _COMMITTED, hint) for path in paths]
