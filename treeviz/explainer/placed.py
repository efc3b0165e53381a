"""What does not fit where a call lays specs over trees: `vmap`, `pmap`, `shard_map`, shardings and placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax import tree_util

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import Differences
from treeviz.analysis.compare.map_mismatch import map_mismatches
from treeviz.analysis.overlay.axes import InAxes, OutAxes
from treeviz.analysis.overlay.overlaid import Use, overlaid
from treeviz.analysis.overlay.shardings import Shardings
from treeviz.explainer.frames import Answer, Call, Calls
from treeviz.explainer.leaves import is_of_jax, leaves_of, remedy, what
from treeviz.overlaid import lay_over
from treeviz.prepare import scanned
from treeviz.steps.compiles.jit_type import is_committed
from treeviz.tree.safe_repr import value_text
from treeviz.tree.sharding import describe_sharding
from treeviz.tree.walk import walk


class _Name(NamedTuple):
    """The key of a child that is called something of its own: "kwargs"."""

    text: str

    def __str__(self) -> str:
        return self.text


@tree_util.register_pytree_with_keys_class
class _Named:
    """A node of children with such keys."""

    def __init__(self, names: Iterable[str], children: Iterable[Any]) -> None:
        self._names, self._children = tuple(names), tuple(children)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        return [*zip(map(_Name, self._names), self._children, strict=True)], self._names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Iterable[Any]) -> _Named:
        return cls(names, children)


class _AxesOfEach(InAxes):
    """For arguments that are not in a tuple."""

    align = OutAxes.align


def _misfits(use: Use, names: Sequence[str], specs: Iterable[Any], trees: Iterable[Any]) -> Differences:
    """What does not fit where trees that have names have a spec each."""
    side = Side(*scanned(_Named(names, trees), None, "tree"))
    return overlaid(_Named(names, specs), side, use, None).differences


def of_vmap(calls: Calls) -> Answer:
    of = calls[0].variables
    args, kwargs, in_axes = of["args"], of["kwargs"], of["in_axes"]
    found = lay_over(in_axes, args, use="in_axes").differences
    if not found and kwargs:  # these are mapped along their first axis
        names = [*(f"[{i}]" for i in range(len(args))), "kwargs"]
        specs = [*(in_axes if type(in_axes) in (tuple, list) else [in_axes] * len(args)), 0]
        misfits = _misfits(_AxesOfEach(), names, specs, [*args, kwargs])
        found = Differences(each for each in misfits if each.kind in ("size", "axis"))
    return "in_axes does not fit the arguments", found


def of_vmapped(calls: Calls) -> Answer:
    """Of `vmap`: what the function returned."""
    of = calls[0].variables
    outs = of["outs"]
    out_tree = next(call.variables["out_tree"] for call in calls if call.function == "vmap_f")
    names = paths(out_tree())
    if not all(map(is_of_jax, outs)):
        return "vmap returns arrays and numbers alone", [
            f"result{path}: {what(leaf)}: {remedy(leaf)}"
            for path, leaf in zip(names, outs, strict=True)
            if not is_of_jax(leaf)
        ]
    avals = [jax.ShapeDtypeStruct(out.shape, out.dtype) if hasattr(out, "shape") else out for out in outs]
    return "out_axes does not fit the result", _misfits(OutAxes(), names, of["out_dim_dests"], avals)


def of_prefix(calls: Calls) -> Answer:
    """Of `out_axes`, `in_shardings`, `out_shardings` and `device_put`."""
    of = calls[0].variables
    if of.get("name") == "vmap in_axes":  # `of_vmap` knows more
        return "", ()
    return _no_prefix(of.get("name") or of.get("what") or "the prefix", of["axis_tree"], of["dummy_tree"])


def of_broadcast(calls: Calls) -> Answer:
    """Of `jax.tree.broadcast`, and of `shard_map` and `pmap`, which use it."""
    of = next(call.variables for call in calls if call.function == "broadcast_prefix")
    name = "out_specs" if any(map(_is_shard_map, calls)) else "the prefix"
    if any("infer_params" in call.variables for call in calls):
        name = "out_axes"
    return _no_prefix(name, of["prefix_tree"], of["full_tree"])


def _no_prefix(name: str, prefix: Any, tree: Any) -> Answer:
    found = map_mismatches(prefix, tree, is_leaf=lambda node: node is None)
    words = {"missing": "in the prefix, and not in the tree", "extra": "in the tree, and not in the prefix"}
    return f"{name} is no prefix of the tree", [
        f"{each.path or 'the root'}: {words[each.kind]}" if each.kind in words else each for each in found
    ]


def of_shardings(calls: Calls) -> Answer:
    """Of `in_shardings`, one for each argument, and `out_shardings`."""
    specs = calls[0].variables["shardings"]
    if not str(calls[0].variables["what"]).endswith("in_shardings"):
        return of_prefix(calls)
    specs = _as_given(specs)
    of = next(call.variables for call in calls if call.function == "_infer_params")
    args, static = of["args"], getattr(of["ji"], "static_argnums", ())
    args = tuple(arg for i, arg in enumerate(args) if i not in {each % len(args) for each in static})
    title = "in_shardings does not fit the arguments"
    if type(specs) is not tuple:
        found = lay_over((specs,), args, use="shardings").differences
        hint = "" if found else ": put it into a tuple, in_shardings=(…,)"
        return title, [f"the root: it has one spec for each argument, and is no tuple{hint}"]
    return title, _each_argument(specs, args, "shardings")


def _as_given(specs: Any) -> Any:
    """With None again, where JAX has put a marker into dicts, lists and tuples."""
    if type(specs) is dict:
        return {key: _as_given(spec) for key, spec in specs.items()}
    if type(specs) in (list, tuple):
        return type(specs)(map(_as_given, specs))
    return None if type(specs).__name__ == "UnspecifiedValue" else specs


def _each_argument(specs: tuple, args: tuple, use: str, mesh: Any = None) -> list[Any]:
    """What does not fit of specs for the arguments of a call, of which there may be too few, or too many."""
    names = [f"[{i}]" for i in range(max(len(specs), len(args)))]
    more = [f"{name}: {value_text(spec, 60)}: a spec for no argument" for name, spec in zip(names, specs, strict=False)]
    lacking = [
        f"{name}{path}: {what(leaf)}: no spec"
        for name, arg in zip(names[len(specs) :], args[len(specs) :], strict=True)
        for path, leaf in leaves_of(arg)
    ]
    n = min(len(specs), len(args))
    return [*lay_over(specs[:n], args[:n], use=use, mesh=mesh).differences, *more[len(args) :], *lacking]


def of_divided(calls: Calls) -> Answer:
    """Of shardings that do not divide their arrays: of `jit`, `device_put` and `with_sharding_constraint`."""
    of = calls[0].variables
    around = next((call for call in calls if call.function in ("device_put", "with_sharding_constraint")), calls[0])
    names, specs, avals = of.get("names") or (), of["shardings"], of["flat_avals"]
    if "x" in around.variables:
        names = [path or "the array" for path, _ in leaves_of(around.variables["x"])]
    if around.function == "device_put":
        specs, avals = around.variables["device_flat"], around.variables["x_avals"]
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    specs = [spec if isinstance(spec, jax.sharding.Sharding) else None for spec in specs]
    return "shardings do not fit the arrays", _misfits(Shardings(), [*map(str, names)], specs, avals)


def _is_shard_map(call: Call) -> bool:
    return call.function == "wrapped" and {"in_specs", "mesh", "args"} <= call.variables.keys()


def of_wrapped(calls: Calls) -> Answer:
    """Of `shard_map` and `pmap`, whose own trees are flat by the time that something fails."""
    of = calls[0].variables
    if _is_shard_map(calls[0]):
        return _of_arguments("shard_map", "in_specs", of["in_specs"], of["args"], of["mesh"])
    infer = of["infer_params"]
    around = dict(zip(infer.__code__.co_freevars, infer.__closure__, strict=True))
    if of["kwargs"] or around["static_broadcasted_tuple"].cell_contents:
        return "", ()
    in_axes, args = around["in_axes"].cell_contents, of["args"]
    title, found = _of_arguments("pmap", "in_axes", in_axes, args)
    if found:
        return title, found
    n = len(around["devices"].cell_contents or jax.local_devices())
    return _too_many(args, in_axes, n)


def _too_many(args: Sequence[Any], in_axes: Any, n: int) -> Answer:
    """The leaves whose axis is longer than there are devices."""
    if type(in_axes) is not int:
        return "", ()
    return f"pmap maps an axis over {n:,} {'device' if n == 1 else 'devices'}", [
        f"[{i}]{path}: {what(leaf)}: axis {in_axes} has {leaf.shape[in_axes]:,}"
        for i, arg in enumerate(args)
        for path, leaf in leaves_of(arg)
        if leaf.shape[in_axes] > n
    ]


def _of_arguments(function: str, name: str, specs: Any, args: Any, mesh: Any = None) -> Answer:
    no_arrays = [(path, leaf) for path, leaf in leaves_of(args) if not is_of_jax(leaf)]
    if no_arrays:
        return f"{function} takes arrays and numbers alone", [
            f"{path}: {what(leaf)}: {remedy(leaf)}" for path, leaf in no_arrays
        ]
    title, use = f"{name} does not fit the arguments", "shardings" if name == "in_specs" else name
    if type(specs) is tuple and len(specs) != len(args):
        return title, _each_argument(specs, args, use, mesh)
    return title, lay_over(specs, args, use=use, mesh=mesh).differences


def of_out_specs(calls: Calls) -> Answer:
    """Of `shard_map`: specs that do not fit what the function returns."""
    of, around = calls[0].variables, next(filter(_is_shard_map, calls)).variables
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in of["avals"]]
    names = [path or "the result" for path in paths(around["out_tree"])]
    return "out_specs does not fit the result", _misfits(Shardings(around["mesh"]), names, of["specs"], avals)


def of_devices(calls: Calls) -> Answer:
    """Of `jit`: the arrays that lie on other devices than most."""
    of = next(call.variables for call in calls if {"args", "kwargs", "args_flat"} <= call.variables.keys())
    trees = {f"argument {i}": arg for i, arg in enumerate(of["args"])} | of["kwargs"]
    placed = [
        (f"{name}{path}", leaf, place.device_ids)
        for name, tree in trees.items()
        for path, leaf in leaves_of(tree)
        if is_committed(leaf) and (place := describe_sharding(leaf.sharding)) is not None
    ]
    counts = Counter(devices for _, _, devices in placed).most_common()
    if len(counts) < 2:
        return "", ()
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    return "the arrays are committed to different devices", [
        f"{path}: {what(leaf)}, on {_device_text(devices)}" for path, leaf, devices in placed if devices != usual
    ] + ([] if usual is None else [f"the other {counts[0][1]:,} on {_device_text(usual)}"])


def _device_text(devices: Sequence[int]) -> str:
    return f"{'device' if len(devices) == 1 else 'devices'} {', '.join(map(str, devices))}"


def paths(treedef: Any) -> list[str]:
    """The key paths of its leaves."""
    return [leaf.keystr for leaf in walk(treedef).leaves]
