"""Measure parameters and their updates beside a step, without a wait of the loop.

In host memory a thread does so by NumPy, which compiles nothing; elsewhere a small program, which a thread compiles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from treeviz.steps.joined import Joined, Layout, joined
from treeviz.steps.measure import Measurement
from treeviz.steps.measured_tree import MeasuredTree, in_layers, with_dtypes
from treeviz.steps.names import sibling_name
from treeviz.steps.on_host import reduce_on_host, whole
from treeviz.steps.reduce import reduce_leaves
from treeviz.steps.statistics import LIGHT, n_words
from treeviz.steps.tracing.attribution import Attribution
from treeviz.steps.tracing.compile_ahead import options_of_thread
from treeviz.steps.tracing.param_updates import differences
from treeviz.tree.forks import computed_once
from treeviz.tree.safe_repr import error_text


class _Part(NamedTuple):
    """A tree that is measured: the parameters at some places, or their updates."""

    source: MeasuredTree
    is_update: bool
    gradient: Attribution
    at: slice

    def leaves(self, values: Sequence[Any]) -> list[Any]:
        """The values of its leaves; None for those without numbers."""
        left = iter(values)
        return [next(left) if has else None for has in self.gradient.source.has_number]


class Beside:
    """Measures "params" and "updates".

    Attributes:
      why_not: Why the program could not be compiled.

    Args:
      gradients: Of the parameters, which come in this order.
      params: Of them the dtypes are kept.
    """

    def __init__(self, gradients: Sequence[Attribution], params: Sequence[jax.Array]) -> None:
        parts: dict[str, _Part] = {}
        first = 0
        for gradient in gradients:
            at = slice(first, first := first + sum(gradient.source.has_number))
            source = in_layers(with_dtypes(gradient.source, params[at]), gradient.layers)
            for kind in ("params", "updates"):
                name = sibling_name(source.name, kind)
                parts.setdefault(name, _Part(source._replace(name=name), kind == "updates", gradient, at))
        self._parts = [*parts.values()]
        self.why_not = ""
        self._compiled: Callable[..., Measurement] | None = None
        self._thread: threading.Thread | None = None

    @computed_once
    def _layout(self) -> Layout:
        sources = tuple(part.source for part in self._parts)
        return Layout(sources, LIGHT, (), tuple((len(source.paths), n_words(LIGHT)) for source in sources))

    def on_host(self, old: Sequence[jax.Array], new: Sequence[jax.Array], on_lost: Callable[[], None]) -> Measurement:
        """Measure what is in host memory, or will be.

        Args:
          on_lost: Called if it cannot be read, as what another function has been given to keep.
        """

        def rows() -> np.ndarray:
            jax.block_until_ready((old, new))
            before, after = ([whole(x) for x in arrays] for arrays in (old, new))
            pairs = [*zip(after, before, strict=True)], [(x,) for x in before]
            reduced = [
                reduce_on_host(part.leaves(pairs[not part.is_update][part.at]), part.gradient.layers)
                for part in self._parts
            ]
            return np.concatenate([each.reshape(-1) for each in reduced])

        return Joined([_InThread(rows, on_lost)], self._layout)

    def on_device(self, old: Sequence[jax.Array], new: Sequence[jax.Array]) -> Measurement | None:
        """Measure by the program; None while it is compiled."""
        if self._compiled is not None:
            try:
                return self._compiled(old, new)
            except (TypeError, ValueError):  # they are sharded in another way
                self._compiled = None
        self.compile(old, new)
        return None

    def compile(self, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Begin to compile the program for such arrays, which may have been donated."""
        if self._thread is not None and self._thread.is_alive():
            return
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), (old, new))
        options = options_of_thread()

        def compile_() -> None:
            try:
                if options_of_thread() == options:
                    self._compiled = jax.jit(self._measure).lower(*like).compile()
                else:
                    self.why_not = "JAX has options in the thread of the loop alone"
            except Exception as error:
                self.why_not = error_text(error)

        # Python waits for this thread at its end: XLA must not be at work then.
        self._thread = threading.Thread(target=compile_, name="treeviz compilation")
        self._thread.start()

    def _measure(self, old: Sequence[jax.Array], new: Sequence[jax.Array]) -> Measurement:
        packed, sources = {}, []
        for part in self._parts:
            values = differences(new[part.at], old[part.at]) if part.is_update else old[part.at]
            if values is not None:
                packed[part.source.name] = reduce_leaves(part.leaves(values), LIGHT, part.gradient.layers)
                sources.append(part.source)
        return joined(Measurement(packed, sources))


class _InThread:
    """The words that a thread computes, as an array that is ready when it has."""

    def __init__(self, compute: Callable[[], np.ndarray], on_lost: Callable[[], None]) -> None:
        self._words: np.ndarray | None = None

        def run() -> None:
            try:
                self._words = compute()
            except Exception:
                on_lost()

        self._thread = threading.Thread(target=run, name="treeviz look")
        self._thread.start()

    def is_ready(self) -> bool:
        return not self._thread.is_alive()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._thread.join()
        if self._words is None:
            raise RuntimeError("the arrays were deleted, or their step failed")
        return self._words

    @property
    def shape(self) -> tuple[int, ...]:
        return self.__array__().shape

    def __getitem__(self, at: Any) -> np.ndarray:
        return self.__array__()[at]
