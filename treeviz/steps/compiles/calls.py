"""What a call looks like to `jax.jit`, and how two calls differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from treeviz.analysis.compare.difference import Difference, Differences
from treeviz.steps.compiles.arguments import called_inside, named_arguments
from treeviz.steps.compiles.compare import CompareLeaves, Part, compare_types
from treeviz.steps.compiles.jit_type import JitType, compare_leaves, compare_places, compare_values, jit_type
from treeviz.steps.tracing.jit_options import dynamic_arguments, is_jitted
from treeviz.steps.tracing.jitted import jitted_step
from treeviz.tree.describers import load_libraries
from treeviz.tree.safe_repr import guarded, value_text


class Argument(NamedTuple):
    """An argument of a call.

    Attributes:
      how: "by position" or "by keyword".
      is_traced: Whether it is known that the program takes its Python numbers, too, whatever their values.
    """

    how: str
    type: JitType
    is_traced: bool = False


class Call(NamedTuple):
    """What a call looks like to `jax.jit`; it keeps no array alive.

    Attributes:
      arguments: By name.
      settings: JAX's options in the thread that called, and its abstract mesh.
    """

    arguments: dict[str, Argument]
    settings: dict[str, Any]


def describe_call(step: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, dict[str, Any]]:
    """A call, and its arguments by name."""
    named = named_arguments(step, args, kwargs)
    traced, static_numbers = guarded(lambda: _traced(step, args, kwargs), lambda _: (frozenset(), False))
    arguments = {
        name: Argument(
            "by position" if i < len(args) else "by keyword",
            jit_type(value, static_numbers),
            (i, name)[i >= len(args)] in traced,
        )
        for i, (name, value) in enumerate(named.items())
    }
    return Call(arguments, _settings()), named


def _traced(step: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[frozenset[int | str], bool]:
    """The positions and names of the arguments that `jax.jit` was not told are static; and whether all numbers are."""
    n = len(args)
    step, args, kwargs = called_inside(step, args, kwargs)
    if not is_jitted(step):
        load_libraries()
        found = jitted_step(step)
        if not found.same_arguments:
            return frozenset(), found.static_numbers
        step = found.jitted
    positions, names = dynamic_arguments(step, args, kwargs)
    return frozenset([*(i + n - len(args) for i in positions), *names]), False


def _settings() -> dict[str, Any]:
    settings = {name: getattr(jax.config, name, None) for name in guarded(lambda: [*jax.config.values], lambda _: [])}
    if hasattr(jax.sharding, "get_abstract_mesh"):  # not in jax 0.4.36
        settings["the mesh"] = jax.sharding.get_abstract_mesh()
    return settings


class Gap(NamedTuple):
    """How a call differs from an earlier one.

    Attributes:
      types: In structure, types, and how arguments are passed.
      values: In the values of Python objects, of which only static arguments matter.
      settings: In JAX's options.
      places: In where arrays lie.
    """

    types: Differences
    values: Differences
    settings: Differences
    places: Differences

    @property
    def size(self) -> tuple[int, int]:
        return len(self.types), len(self.values) + len(self.settings) + len(self.places)

    def why(self, is_traced: bool) -> Differences:
        """The first reason for which the earlier program does not do."""
        # On several devices, where an array lies is part of its type since jax 0.7 or so.
        reasons = self if is_traced else (self.places, self.settings)
        return next(filter(None, reasons), Differences())


def compare_calls(earlier: Call, call: Call, named: dict[str, Any]) -> Gap:
    """Compare two calls; `named` are the arguments of the later one."""
    types, values, places = (
        _compare(earlier, call, named, leaves) for leaves in (compare_leaves, compare_values, compare_places)
    )
    return Gap(types, values, _compare_settings(earlier, call), places)


def _compare(earlier: Call, call: Call, named: dict[str, Any], leaves: CompareLeaves) -> Differences:
    found = Differences()
    for name, argument in call.arguments.items():
        before = earlier.arguments.get(name)
        if before is None:
            found.append(Difference(name, "extra", "", Part(*argument.type).text))
            continue
        if before.how != argument.how:
            found.append(Difference(name, "argument", before.how, argument.how, "pass it in one way"))
        if leaves is compare_values and argument.is_traced:
            continue
        differ = compare_types(named[name], before.type, argument.type, is_right=True, leaves=leaves)
        found += [Difference(f"{name}{path}", kind, *words) for path, (kind, *words) in differ]  # type: ignore[arg-type]
    gone = earlier.arguments.keys() - call.arguments.keys()
    found += [Difference(name, "missing", Part(*earlier.arguments[name].type).text, "") for name in sorted(gone)]
    return found


def _compare_settings(earlier: Call, call: Call) -> Differences:
    a, b = earlier.settings, call.settings
    differ = [name for name in b if guarded(lambda name=name: bool(a.get(name) != b[name]), lambda _: False)]
    return Differences(
        Difference(name, "setting", value_text(a.get(name), 60), value_text(b[name], 60)) for name in differ
    )
