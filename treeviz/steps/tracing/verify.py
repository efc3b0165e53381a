"""Compare the results of a step with those of its watched twin, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treeviz.analysis.stats.host import lies_on_host
from treeviz.steps.measure import paths_in
from treeviz.steps.tracing.jitted import JittedStep

_MOST_RUNS = 5
_ARRAYS = (jax.Array, np.ndarray)


@dataclass(frozen=True)
class Difference:
    """A leaf of a step's results that differs in its watched twin.

    Attributes:
      path: The key path of the leaf.
      n_different: How many of its elements differ in their bytes.
      size: How many elements it has.
      max_difference: The largest absolute difference; NaN where shapes or dtypes differ, or nothing is comparable.
    """

    path: str
    n_different: int
    size: int
    max_difference: float

    def __str__(self) -> str:
        return f"{self.path}: {self.n_different} of {self.size} elements differ, by {self.max_difference:.3g} at most"


@dataclass(frozen=True)
class Verification:
    """Whether a watched step returns the same bytes as the step itself. Truthy if so.

        if not inspector.verify(update, params, x, y):
            update = inspector.watch(update, exact=True)

    Attributes:
      n_leaves: How many leaves were compared.
      differences: The leaves that differ, in the first run in which any does.
      n_runs: How many runs were compared; with differences, the last of them is where they are.
      n_unsteady: How many leaves differ when the step itself is run twice.
    """

    n_leaves: int
    differences: tuple[Difference, ...]
    n_runs: int = 1
    n_unsteady: int = 0

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if not self.differences:
            return f"The same bytes in all {self.n_leaves} leaves" + f" of {self.n_runs} runs" * (self.n_runs > 1) + "."
        run = f" in run {self.n_runs}" * (self.n_runs > 1)
        lines = [
            f"{len(self.differences)} of {self.n_leaves} leaves differ{run}:",
            *(f"  {d}" for d in self.differences),
        ]
        return "\n".join([*lines, self.remedy])

    @property
    def remedy(self) -> str:
        """What to do if leaves differ."""
        if not self.n_unsteady:
            return "watch(step, exact=True) runs the untouched step, and measures in a second one."
        return (
            f"The step does not repeat itself: run twice, unwatched, it differs in {self.n_unsteady} leaves. "
            "So this need not come from watching, and exact=True does not help. On a GPU, the environment variable "
            "XLA_FLAGS=--xla_gpu_deterministic_ops=true does."
        )

    __repr__ = __str__


class TwinFailed(Exception):
    """The watched twin raised an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def verify(jitted: JittedStep, twin: Callable, args: tuple, kwargs: dict[str, Any]) -> Verification:
    """Compare a step with its twin on copies of these arguments, and on those that follow from them.

    Raises:
      TwinFailed: The twin raised.
    """
    found = Verification(0, ())
    for n_runs in range(1, _MOST_RUNS + 1):
        expected = _results(jitted, args, kwargs)
        ours = jitted.copied((args, kwargs), copy_array)
        try:
            out, _ = twin(*ours[0], **ours[1])
        except Exception as error:
            raise TwinFailed(error) from error
        found = compare(expected, (out, ours) if jitted.changes_arguments else out)
        if not found:
            n_unsteady = len(compare(expected, _results(jitted, args, kwargs)).differences)
            return replace(found, n_runs=n_runs, n_unsteady=n_unsteady)
        found = replace(found, n_runs=n_runs)
        following = _next_arguments(jitted, args, kwargs, expected)
        if following is None:
            break
        args, kwargs = following
    return found


def _results(jitted: JittedStep, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What the step returns for copies of its arguments; and the copies, if it changes them."""
    copies = jitted.copied((args, kwargs), copy_array)
    out = jitted.step(*copies[0], **copies[1])
    return (out, copies) if jitted.changes_arguments else out


def _next_arguments(jitted: JittedStep, args: tuple, kwargs: dict[str, Any], results: Any) -> Any:
    """The arguments with results in the place of those of the same structure, and none all zero; None if unchanged."""
    is_changed = False
    if jitted.changes_arguments:
        is_changed, (args, kwargs) = True, results[1]
    else:
        left = [part for part in _parts_of_tree(results, 2) if _has_array(part)]
        following = []
        for value in (*args, *kwargs.values()):
            found = next((part for part in left if _has_array(value) and _are_alike(part, value)), None)
            left = left if found is None else [part for part in left if part is not found]
            is_changed |= found is not None
            following.append(value if found is None else found)
        args, kwargs = tuple(following[: len(args)]), dict(zip(kwargs, following[len(args) :], strict=True))

    def without_zeros(x: Any) -> Any:
        nonlocal is_changed
        if not _is_all_zero(x):
            return copy_array(x)
        is_changed = True
        numbers = np.random.default_rng(0).uniform(5e-4, 1e-3, x.shape).astype(x.dtype)
        if not isinstance(x, jax.Array):
            return numbers
        with jax.transfer_guard_host_to_device("allow"):
            return jax.device_put(numbers, x.sharding)

    following = jitted.copied((args, kwargs), without_zeros)
    return following if is_changed else None


def _parts_of_tree(tree: Any, depth: int) -> Iterator[Any]:
    yield tree
    if depth and isinstance(tree, tuple | list | dict):
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from _parts_of_tree(child, depth - 1)


def _has_array(tree: Any) -> bool:
    """Whether there is an array of several elements. A loss is no learning rate, though both are scalars."""
    return any(isinstance(x, _ARRAYS) and x.size > 1 for x in jax.tree.leaves(tree))


def _are_alike(a: Any, b: Any) -> bool:
    (left, left_tree), (right, right_tree) = jax.tree.flatten(a), jax.tree.flatten(b)
    return left_tree == right_tree and all(map(_is_alike, left, right))


def _is_alike(a: Any, b: Any) -> bool:
    return all(getattr(a, name, None) == getattr(b, name, None) for name in ("shape", "dtype"))


def _is_all_zero(x: Any) -> bool:
    is_here = isinstance(x, np.ndarray) or (isinstance(x, jax.Array) and x.is_fully_addressable)
    is_float = is_here and jnp.issubdtype(x.dtype, jnp.floating)
    return is_float and x.size > 0 and not any(part.any() for part in _parts(x))


def copy_array(x: Any) -> Any:
    if not isinstance(x, jax.Array):
        return x
    if jax.__version_info__ < (0, 10) or not lies_on_host(x):
        return x.copy()
    with jax.transfer_guard_device_to_device("allow"):
        return jax.device_put(x, may_alias=False)  # where it lies, without a compilation for each shape


def compare(expected: Any, got: Any) -> Verification:
    """Compare two trees of the same structure; arrays by the shards of this process."""
    leaves, others = jax.tree.leaves(expected), jax.tree.leaves(got)
    paths = paths_in(expected)
    differences = [
        Difference(path or "result", *found)
        for path, a, b in zip(paths, leaves, others, strict=True)
        if (found := _difference(a, b)) is not None
    ]
    return Verification(len(leaves), tuple(differences))


def _difference(a: Any, b: Any) -> tuple[int, int, float] | None:
    n = size = 0
    largest = 0.0
    for left, right in zip(_parts(a), _parts(b), strict=True):
        if left.shape != right.shape or left.dtype != right.dtype:
            return max(left.size, 1), left.size, np.nan
        size += left.size
        bytes_ = [x.reshape(-1).view(np.uint8).reshape(x.size, x.dtype.itemsize) for x in (left, right)]
        is_different = (bytes_[0] != bytes_[1]).any(axis=1)
        if not is_different.any():
            continue
        n += int(is_different.sum())
        with np.errstate(all="ignore"):
            gap = np.abs(left.astype(np.complex128) - right.astype(np.complex128))
        largest = float(np.fmax(largest, np.nanmax(gap) if not np.isnan(gap).all() else np.nan))
    return (n, size, largest) if n else None


def _parts(x: Any) -> list[np.ndarray]:
    """Copies of the shards of an array that are in this process."""
    if isinstance(x, jax.Array):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        with jax.transfer_guard_device_to_host("allow"):
            return [np.array(shard.data) for shard in x.addressable_shards]
    return [np.asarray(x)] if isinstance(x, bool | int | float | complex | np.ndarray | np.generic) else []
