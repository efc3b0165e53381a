"""What the tests of `watch` share: a recorder, the norms of gradients that were computed apart, and a small model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treeviz import integrations
from treeviz.steps.measure import Measurement
from treeviz.steps.statistics import unpack
from treeviz.steps.tracing import instrumented
from treeviz.steps.tracing.watch import watch as watch_jitted


def watch(step, record, **settings):
    """As an inspector does it: how the steps of libraries are taken apart is known by then."""
    integrations.load()
    return watch_jitted(step, record, **settings)


class Recorder:
    """Keeps what `watch` tells."""

    def __init__(self):
        self.measurements: list[Measurement] = []
        self.steps: list[int] = []

    def __call__(self, measurement: Measurement, step: int):
        self.measurements.append(measurement)
        self.steps.append(step)

    def norms(self, name="grads", at=-1) -> np.ndarray:
        measurement = self.measurements[at]
        return unpack(np.array(measurement.packed[name]), measurement.statistics)["norm"]

    def all_norms(self, at=-1) -> dict[str, np.ndarray]:
        return {name: self.norms(name, at) for name in self.names(at)}

    def names(self, at=-1) -> list[str]:
        return [source.name for source in self.measurements[at].sources]

    def paths(self, name="grads", at=-1) -> tuple[str, ...]:
        return {source.name: source.paths for source in self.measurements[at].sources}[name]

    def check(self, gradients, name="grads", at=-1, rtol=2e-5):
        """The norms are those of a tree of gradients that was computed apart."""
        np.testing.assert_allclose(self.norms(name, at), true_norms(gradients), rtol=rtol)


def true_norms(tree) -> np.ndarray:
    return np.array([np.linalg.norm(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])


def beside(function: Callable, monkeypatch: Any) -> None:
    """Let a watched step return `(what it returns, what the function returns)`, which one program computes.

    What both compute is compiled once: that says that nothing but measuring is added, not that XLA rounds alike.
    """
    measured = instrumented._measured

    def both(step, args, kwargs, *how):
        out, measurement = measured(step, args, kwargs, *how)
        return (out, function(*args, **kwargs)), measurement

    monkeypatch.setattr(instrumented, "_measured", both)


def numbers_in(x) -> np.ndarray:
    """The numbers of a leaf, or those in a typed PRNG key."""
    is_key = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.array(jax.random.key_data(x) if is_key else x)


def same_bytes(left, right) -> bool:
    left, right = ([*map(numbers_in, jax.tree.leaves(tree))] for tree in (left, right))
    return len(left) == len(right) and all(
        a.tobytes() == b.tobytes() and a.dtype == b.dtype for a, b in zip(left, right, strict=True)
    )


# The multilayer perceptron of JAX's documentation, "Working with pytrees".


def init_mlp_params(layer_widths):
    params = []
    for n_in, n_out in itertools.pairwise(layer_widths):
        rng = np.random.default_rng(n_in)
        weights = (rng.normal(size=(n_in, n_out)) * np.sqrt(2 / n_in)).astype(np.float32)
        params.append({"weights": weights, "biases": np.ones(n_out)})
    return jax.device_put(params)  # of `jnp.ones`, each shape is a program to compile


def forward(params, x):
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["weights"] + layer["biases"][None])
    return x @ last["weights"] + last["biases"][None]


def loss_fn(params, x, y):
    return jnp.mean((forward(params, x) - y) ** 2)


LEARNING_RATE = 0.01


def update_mlp(params, x, y):
    grads = jax.grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)


def mlp_data(n=16):
    x = np.linspace(-1, 1, n, dtype=np.float32)[:, None]
    return jax.device_put((x, x**2))


def copies(tree):
    """By NumPy, on a CPU and where it has the dtype: of `x.copy()`, each shape is a program to compile."""

    def copied(x):
        if not isinstance(x, jax.Array):
            return x
        if jax.default_backend() != "cpu" or jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
            return x.copy()
        return jax.device_put(np.array(x), x.sharding if x.committed else None)

    return jax.tree.map(copied, tree)


def with_numbers(tree):
    """A tree of shapes with random numbers: of those of JAX, each shape is a program to compile."""
    rng = np.random.default_rng(0)
    is_shape = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    fill = lambda x: rng.normal(size=x.shape).astype(x.dtype) / 2 if is_shape(x) else x
    return jax.tree.map(lambda x: jax.device_put(fill(x)) if is_shape(x) else x, tree, is_leaf=is_shape)


def started(init: Callable, *params: Any) -> Any:
    """What `init` of an optimizer gives: by NumPy, where it only fills and copies, as nearly all do."""
    program, shapes = jax.make_jaxpr(init, return_shape=True)(*params)
    try:
        leaves = by_numpy(program.jaxpr, [*program.consts, *jax.tree.leaves(params)])
    except NotImplementedError:
        return jax.jit(init)(*params)
    return jax.device_put(jax.tree.unflatten(jax.tree.structure(shapes), leaves))


def by_numpy(jaxpr: Any, arguments: list) -> list:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), arguments, strict=True))
    read = lambda atom: atom.val if hasattr(atom, "val") else values[atom]
    for eqn in jaxpr.eqns:
        name, given = eqn.primitive.name, [read(atom) for atom in eqn.invars]
        if name in ("jit", "pjit"):
            inner = eqn.params["jaxpr"]
            results = by_numpy(inner.jaxpr, [*inner.consts, *given])
        elif name in ("broadcast_in_dim", "convert_element_type", "copy", "empty") and len(given) < 2:
            results = [np.full(eqn.outvars[0].aval.shape, given[0] if given else 0, eqn.outvars[0].aval.dtype)]
        else:
            raise NotImplementedError(name)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def on_devices(function: Callable, axis: str, in_specs: Any, out_specs: Any) -> Callable:
    """A `shard_map` over two devices, or over the only one, without checks of what all devices have in common."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[: min(2, jax.device_count())]), (axis,))
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    from jax.experimental.shard_map import shard_map  # jax before 0.7

    return shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False)
