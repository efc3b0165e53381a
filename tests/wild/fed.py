"""What is measured and said of random programs, beside NumPy: python tests/wild/fed.py N SEED

Each program is a stack of random blocks under jit, checkpoint, cond, vmap and scan, whose parameters are trained,
stopped, left out of the update or only decay. It runs alone, in a scan, for each example, and on eight devices. Changed
by hand, it also returns its gradients and the values that meet its parameters; NumPy measures these in float64.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if __name__ == "__main__":
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} --xla_llvm_disable_expensive_passes=true"}

    sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from watched import beside

import treeviz as tv

N_FEATURES, N_TIMES, N_EXAMPLES = 6, 3, 16
RATE, DECAY = 0.01, 0.1
MODES = ("alone", "in a scan", "of each example", "sharded", "in shard_map")
WRAPS = ("jit", "checkpoint", "cond", "vmap", "scan")
ACTIVATIONS = (jnp.tanh, jax.nn.relu, jax.nn.gelu, lambda x: x)
FATES = ("trained",) * 5 + ("decayed", "stopped", "held", "decays")


@jax.custom_vjp
def product(x, w):
    return x @ w


product.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, jnp.einsum("...i,...j->ij", r[0], g)))

KINDS: dict[str, Callable] = {
    "dense": lambda x, w: x @ w,
    "custom_vjp": product,
    "einsum": lambda x, w: jnp.einsum("...i,io->...o", x, w),
    "moved": lambda x, w: x @ w.T.reshape(w.shape).T,
    "derived": lambda x, w: x @ (w * 2),
    "convolution": lambda x, w: lax.conv_general_dilated(
        x, w[None], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    ),
    "embedding": lambda x, w: w[x],
}


class Block(NamedTuple):
    kind: str
    wraps: tuple[str, ...]  # the innermost first
    activation: Callable
    fates: dict[str, str]  # of its parameters: "w", perhaps a bias "b" and a scale "s"

    def __str__(self) -> str:
        return " ".join([self.kind, *self.wraps, *[f"{leaf}:{fate}" for leaf, fate in self.fates.items()]])


def drawn(rng: np.random.Generator) -> tuple[list[Block], list[dict]]:
    """The blocks of a random program, and their parameters."""
    blocks, params = [], []
    for _ in range(rng.integers(1, 3)):
        wraps = tuple(rng.permutation(WRAPS)[: rng.integers(3)].tolist())
        n_layers = (int(rng.integers(2, 4)),) if "scan" in wraps else ()
        layer = {"w": rng.normal(size=(*n_layers, N_FEATURES, N_FEATURES)) * 0.4}
        if rng.random() < 0.7:
            layer["b"] = rng.normal(size=(*n_layers, N_FEATURES))
            layer["b"][..., rng.integers(N_FEATURES)] -= 100 * (rng.random() < 0.5)  # dead, after a relu
        if rng.random() < 0.4:
            layer["s"] = rng.normal(size=(*n_layers, N_FEATURES)) + 2
        kind = str(rng.choice([*KINDS]))
        fates = {leaf: str(rng.choice(FATES)) for leaf in layer}
        blocks.append(Block(kind, wraps, ACTIVATIONS[rng.integers(len(ACTIVATIONS))], fates))
        params.append({leaf: x.astype(np.float32) for leaf, x in layer.items()})
    return blocks, params


def applied(block: Block, layer: dict, x):
    """The result, and what goes into each parameter and comes out."""
    stopped = {leaf: lax.stop_gradient(p) if block.fates[leaf] == "stopped" else p for leaf, p in layer.items()}
    x = jnp.argmax(x, -1) if block.kind == "embedding" else x
    seen = [(x, KINDS[block.kind](x, stopped["w"]))]
    for leaf in [*block.fates][1:]:
        y, p = seen[-1][1], stopped[leaf][None, None]
        seen.append((y, y + p if leaf == "b" else y * p))
    return block.activation(seen[-1][1]), seen


def wrapped(block: Block) -> Callable:
    """The block under its transformations."""
    function, axis = partial(applied, block), 0
    for wrap in block.wraps:
        if wrap == "cond":
            function = in_a_branch(function)
        elif wrap == "vmap":
            function = of_each(function, axis)
        elif wrap == "scan":
            function, axis = in_layers(function), 1
        else:
            function = getattr(jax, wrap)(function)
    return function


def in_a_branch(function: Callable) -> Callable:
    def doubled(p, x):
        return jax.tree.map(lambda y: 2 * y, function(p, x))

    return lambda p, x: lax.cond(jnp.sum(x) > 1e9, doubled, function, p, x)


def of_each(function: Callable, axis: int) -> Callable:
    """For each example, which is at this axis of what is seen."""

    def one(p, x):
        y, seen = function(p, x[None])
        return y[0], jax.tree.map(lambda x: jnp.squeeze(x, axis), seen)

    return jax.vmap(one, (None, 0), (0, axis))


def in_layers(function: Callable) -> Callable:
    return lambda p, x: lax.scan(lambda x, p: function(p, x), x, p)


def loss(blocks: list[Block], params: list[dict], x):
    seen = []
    for block, layer in zip(blocks, params, strict=True):
        x, of_block = wrapped(block)(layer, x)
        seen.append(of_block)
    return jnp.mean(x**2), seen


def descended(blocks: list[Block], params: list[dict], grads: list[dict]) -> list[dict]:
    rules = {
        "trained": lambda p, g: p - RATE * g,
        "decayed": lambda p, g: p - RATE * (g + DECAY * p),
        "decays": lambda p, g: p - RATE * (DECAY * p),
        "held": lambda p, g: p,
    }
    rules["stopped"] = rules["trained"]
    pairs = zip(blocks, params, grads, strict=True)
    return [{leaf: rules[b.fates[leaf]](p[leaf], g[leaf]) for leaf in p} for b, p, g in pairs]


def shard_mapped(function: Callable, mesh: Mesh, out_specs: Any) -> Callable:
    specs = {"mesh": mesh, "in_specs": (P(), P("devices")), "out_specs": out_specs}
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, check_vma=False, **specs)
    from jax.experimental.shard_map import shard_map  # jax before 0.7

    return shard_map(function, check_rep=False, **specs)


def steps_of(blocks: list[Block], mode: str, mesh: Mesh) -> tuple[Callable, Callable]:
    """The step, and the step that also returns its gradients and what is seen."""
    axes = [1 if "scan" in block.wraps else 0 for block in blocks]  # of the examples, in what is seen

    def gradients(params, x):
        return jax.grad(partial(loss, blocks), has_aux=True)(params, x)

    def of_example(params, x):
        grads, seen = gradients(params, x[None])
        pairs = zip(axes, seen, strict=True)
        return grads, [jax.tree.map(partial(jnp.squeeze, axis=axis), of_block) for axis, of_block in pairs]

    def on_device(params, x):
        grads, seen = gradients(params, x)
        return jax.tree.map(lambda g: lax.pmean(g, "devices"), grads), seen

    specs = [P(None, "devices") if axis else P("devices") for axis in axes]
    by_hand = {
        "of each example": jax.vmap(of_example, (None, 0), (0, axes)),
        "in shard_map": shard_mapped(on_device, mesh, (P(), specs)),
    }.get(mode, gradients)

    def update(params, x):
        grads, seen = by_hand(params, x)
        mean = jax.tree.map(lambda g: jnp.mean(g, 0), grads) if mode == "of each example" else grads
        return descended(blocks, params, mean), (grads, seen)

    def epoch(params, x):
        return lax.scan(update, params, jnp.stack([x, x[::-1] / 2]))

    both = epoch if mode == "in a scan" else update
    return jax.jit(lambda params, x: both(params, x)[0]), jax.jit(both)


def numbers_of(x) -> dict[str, float]:
    x = np.asarray(x, np.float64)
    return {"rms": np.sqrt(np.mean(x**2)), "max_abs": np.max(np.abs(x)), "zero_share": np.mean(x == 0)}


def parts(x, mode: str) -> list[np.ndarray]:
    """What is counted apart: what each device has in a `shard_map`, of which the counts are joined without a look."""
    return np.split(np.asarray(x), jax.device_count() if mode == "in shard_map" else 1)


def truth(blocks: list[Block], grads: list[dict], seen: list, mode: str) -> Iterator[tuple[str, str, dict[str, float]]]:
    """The tree and the path of all that is measured, and its numbers."""
    for i, block in enumerate(blocks):
        for leaf, values in zip(block.fates, seen[i], strict=True):
            layers = range(len(values[0])) if "scan" in block.wraps else [None]
            for k in layers:
                path = f"[{i}]['{leaf}']" + ("" if k is None else f"[{k}]")
                x, y = values if k is None else (values[0][k], values[1][k])
                yield "outputs", path, numbers_of(y)
                if x.dtype == np.int32:
                    yield "inputs", path, {"rows_read": max(len(np.unique(part)) for part in parts(x, mode))}
                elif leaf != "w":
                    yield "inputs", path, {"rms": numbers_of(x)["rms"]}
                else:
                    rows = [part.reshape(-1, N_FEATURES) for part in parts(x, mode)]
                    dead = min((part == 0).all(0).sum() for part in rows)
                    constant = min((part == part[:1]).all(0).sum() for part in rows)
                    yield "inputs", path, {**numbers_of(x), "dead": dead, "constant": constant}
                g = np.asarray(grads[i][leaf], np.float64)
                g = g if k is None else np.take(g, k, axis=int(mode == "of each example"))
                yield "grads", path, {"norm": np.linalg.norm(g), "max_abs": np.max(np.abs(g))}


def differences(seed: int) -> tuple[str, int, list[str]]:
    """What the program is, how many numbers were compared, and those that differ."""
    rng = np.random.default_rng(seed)
    blocks, params = drawn(rng)
    mode = str(rng.choice(MODES))
    x = rng.normal(size=(N_EXAMPLES, N_TIMES, N_FEATURES)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    if mode in ("sharded", "in shard_map"):
        params = jax.device_put(params, NamedSharding(mesh, P()))
        x = jax.device_put(x, NamedSharding(mesh, P("devices")))
    step, by_hand = steps_of(blocks, mode, mesh)
    inspector = tv.GradientInspector(activations=True, heavy_every=1, updates=False)
    with pytest.MonkeyPatch.context() as patch:
        beside(by_hand, patch)  # one program to compile, and no rounding that differs
        new, (expected, (grads, seen)) = jax.device_get(inspector.watch(step)(params, x))
    if mode == "in a scan":
        grads, seen = jax.tree.map(lambda x: x[-1], (grads, seen))
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(expected), strict=True)  # which one program may round apart
    wrong = [] if all(np.allclose(*pair, rtol=1e-5, atol=1e-7) for pair in pairs) else ["other results"]
    n, history = 0, inspector.history
    for tree, path, numbers in truth(blocks, grads, seen, mode):
        places = [(source, source.paths.index(path)) for source in history.sources.values() if path in source.paths]
        source, leaf = next((s, i) for s, i in places if s.name.split(" (")[0] == tree and s.has_number[i])
        for statistic, number in numbers.items():
            n += 1
            measured = history.values(source.name, statistic, leaf).latest[-1]
            if not np.allclose(np.asarray(measured, np.float64), number, rtol=2e-5, atol=1e-7):
                wrong.append(f"{source.name} {path} {statistic}: {measured} is {number}")
    view = tv.trained(step, params, x)
    return f"{mode}: {'; '.join(map(str, blocks))}", n, wrong + wrong_of_trained(view, blocks)


def wrong_of_trained(view: Any, blocks: list[Block]) -> list[str]:
    """Where `tv.trained` says something else of a parameter than was drawn."""
    wrong = []
    reasons = {"stopped": "stop_gradient", "held": "zero update", "decays": "no gradient is in its update"}
    for i, block in enumerate(blocks):
        is_cut_off = "embedding" in [after.kind for after in blocks[i + 1 :]]  # whose rows have no derivative
        for leaf, fate in block.fates.items():
            path = f"params[{i}]['{leaf}']"
            said = "trained" if path in view.trained else view.untrained[path]
            is_right = said != "trained" if is_cut_off else said.startswith(reasons.get(fate, "trained"))
            wrong += [] if is_right else [f"{path}, {fate}, is said to be: {said}"]
    return wrong


def main(n: int, first: int = 0) -> None:
    n_numbers = n_wrong = 0
    for seed in range(first, first + n):
        try:
            program, numbers, wrong = differences(seed)
        except Exception:
            program, numbers, wrong = "", 0, [traceback.format_exc(limit=-4)]
        n_numbers, n_wrong = n_numbers + numbers, n_wrong + bool(wrong)
        if wrong:
            print(seed, program, *wrong[:6], sep="\n    ", flush=True)
        if seed % 25 == 24:
            jax.clear_caches()
    print(f"{n} programs, {n_numbers:,} numbers, {n_wrong} programs with a difference; jax {jax.__version__}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
