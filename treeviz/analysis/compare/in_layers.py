"""Which layers differ, where one array holds all layers of a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from treeviz.analysis.compare.aligned import Side
from treeviz.analysis.compare.difference import Differences
from treeviz.analysis.compare.in_files import compare_stored_layers
from treeviz.analysis.compare.tree_diff import Found
from treeviz.analysis.compare.values import CannotCompare, compare_arrays
from treeviz.analysis.stats.host import host_view, lies_on_host
from treeviz.tree.layers import Stacked, stacks_in
from treeviz.tree.stored import Stored

_MOST_NAMED = 6


def with_layers(left: Side, right: Side, found: Found, stacked: Stacked, *, rtol: float, atol: float) -> Found:
    """The same differences, of which those of values in a stack say in which layers: "layers 3, 5 of 12".

    Raises:
      NoStack: A glob matches no array of the left tree.
    """
    axes, told, layers = stacks_in(left.table, stacked), Differences(), {}
    for at, difference in zip(found.rows, found.differences, strict=True):
        mine, other = int(found.aligned.left[at]), int(found.aligned.right[at])
        if difference.kind in ("value", "NaN") and at in found.gaps and mine in axes:
            if at not in layers:
                layers[at] = _layers(left.nodes[mine], right.nodes[other], axes[mine], rtol, atol)
            if layers[at]:
                where, *more = difference.hint.split("; ")
                text = _text(layers[at], left.nodes[mine].shape[axes[mine]])
                difference = replace(difference, hint="; ".join([f"{where}, {text}", *more]))
        told.append(difference)
    return found._replace(differences=told, layers=layers)


def _layers(left: Any, right: Any, axis: int, rtol: float, atol: float) -> list[int]:
    """The layers that differ; none where they cannot be compared one by one."""
    n = left.shape[axis]
    try:
        if Stored in (type(left), type(right)):
            gaps = compare_stored_layers(left, right, axis, rtol=rtol, atol=atol)
        else:
            left, right = _view(left), _view(right)
            layers = ([_layer(each, axis, i) for each in (left, right)] for i in range(n))
            gaps = [compare_arrays(*pair, rtol=rtol, atol=atol) for pair in layers]
    except CannotCompare:
        return []
    return [i for i, gap in enumerate(gaps) if gap.n_outside or gap.n_nan]


def _text(differ: list[int], n: int) -> str:
    if len(differ) == n:
        return f"all {n} layers"
    more = f" and {len(differ) - _MOST_NAMED} more" if len(differ) > _MOST_NAMED else ""
    return f"layer{'s' * (len(differ) > 1)} {', '.join(map(str, differ[:_MOST_NAMED]))}{more} of {n}"


def _view(array: Any) -> Any:
    """The array, in host memory as one of NumPy, of which a layer is no copy."""
    is_near = isinstance(array, jax.Array) and len(array.sharding.device_set) == 1 and lies_on_host(array)
    return host_view(array) if is_near else array


def _layer(array: Any, axis: int, i: int) -> Any:
    if not isinstance(array, jax.Array):
        return array[(*(slice(None),) * axis, i)]

    from treeviz.analysis.stats.device import undisturbed

    with undisturbed():  # its index is transferred to the devices
        return array[(*(slice(None),) * axis, i)]
