"""What comparing and checking trees costs, as a multiple of other things: python tests/benchmarks/analyses.py

Structure and metadata are compared with treeviz's own walks, of which goals are multiples, and with
`jax.tree_util.tree_flatten_with_path` of both trees,
values with `chex.assert_trees_all_close`, `equinox.tree_equal`, `jax.tree.map` and `numpy.array_equal`. A figure is the
least CPU time of several rounds, in which all take turns. "peak" is what Python and NumPy allocate beyond the trees.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from trees import abstract, real_gpt2

import treeviz as tv

ROUNDS = 7
ANALYSES = ("diff, no values", "explain_map", "stackable", "check", "overlay of a spec each")
PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "NumPy arrays, the same": lambda: (numpy(1), numpy(1)),
    "NumPy arrays, all differ": lambda: (numpy(1), numpy(2)),
    "JAX arrays, the same": lambda: (jax.device_put(numpy(1)), jax.device_put(numpy(1))),
    "JAX arrays, all differ": lambda: (jax.device_put(numpy(1)), jax.device_put(numpy(2))),
    "Python numbers, all differ": lambda: (layers(20_000, lambda *_: 1.0), layers(20_000, lambda *_: 2.0)),
    "a layer less": lambda: (numpy(1), numpy(1)[:10_000] + numpy(1)[10_001:]),
    "a key renamed in each layer": lambda: (numpy(1), [renamed(layer) for layer in numpy(1)]),
}
GOALS = {
    **{f"{name}, seconds": 1.0 for name in (*ANALYSES, *PAIRS)},  # of 100,000 leaves
    "diff, no values": 4.0,
    "explain_map": 2.0,
    "check ÷ walk": 3.0,
    "overlay of a spec each": 3.0,
    "diff ÷ chex": 1.5,
    "diff ÷ array_equal": 1.3,
}


def cpu_times(calls: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """The least CPU seconds of each call; all take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - began)
    return best


@functools.partial(jax.tree_util.register_dataclass, data_fields=["a", "b", "c", "d", "e"], meta_fields=["name"])
@dataclass
class Block:
    a: Any
    b: Any
    c: Any
    d: Any
    e: Any
    name: str


def layers(n: int, leaf: Callable[..., Any]) -> Any:
    return [
        {"attn": {"q": leaf(4, 4), "k": leaf(4, 4)}, "mlp": (leaf(4, 8), leaf(8)), "norm": leaf(4)} for _ in range(n)
    ]


def of_structure(n_leaves: int) -> None:
    left, right = (layers(n_leaves // 5, abstract) for _ in range(2))
    specs = jax.tree.map(lambda _: 0, left)
    flatten = lambda: [jax.tree_util.tree_flatten_with_path(tree) for tree in (left, right)]
    times = cpu_times(
        {
            "tree_flatten_with_path of both": flatten,
            "treeviz.walk of both": lambda: [tv.walk(tree) for tree in (left, right)],
            "diff, no values": lambda: tv.diff(left, right, values=False),
            "explain_map": lambda: tv.explain_map(left, right),
            "stackable": lambda: tv.stackable([left, right]),
            "check": lambda: tv.check(left),
            "overlay of one spec": lambda: tv.overlay((0,), left),
            "overlay of a spec each": lambda: tv.overlay((specs,), left),
            "jax.tree.map": lambda: jax.tree.map(lambda *_: None, left, right),
        }
    )
    floor = times["tree_flatten_with_path of both"]
    print(f"\n{n_leaves:,} abstract leaves, against tree_flatten_with_path of both trees")
    for name, seconds in times.items():
        of_walk = seconds / times["treeviz.walk of both"]
        print(
            f"  {name:32} {seconds / floor:7.2f}x  {1e6 * seconds / n_leaves:7.2f} µs a leaf  {of_walk:5.2f}x the walks"
        )
    print(goal("diff, no values", times["diff, no values"] / times["treeviz.walk of both"]))
    print(goal("explain_map", times["explain_map"] / times["treeviz.walk of both"]))
    if n_leaves == 100_000:
        for name in ANALYSES:
            print(goal(f"{name}, seconds", times[name]))
    print(goal("overlay of a spec each", 2 * times["overlay of a spec each"] / times["treeviz.walk of both"]))


def of_small_values() -> None:
    """Of 100,000 leaves in 20,000 layers."""
    print("\ndiff of 100,000 small leaves, with values, each pair in a process of its own", flush=True)
    for name in PAIRS:
        subprocess.run([sys.executable, __file__, name], check=True)


def of_pair(name: str) -> None:
    pair = PAIRS[name]()
    times = cpu_times({"walks": lambda: [tv.walk(tree) for tree in pair], "diff": lambda: tv.diff(*pair)}, 3)
    print(f"  {name:32} {times['diff']:7.2f} s  {times['diff'] / times['walks']:5.2f}x the walks")
    print(goal(f"{name}, seconds", times["diff"]))
    if name == "JAX arrays, the same":
        print_floor(times["walks"])


def numpy(x: float) -> list[Any]:
    return layers(20_000, lambda *shape: np.full(shape, x, np.float32))


def renamed(layer: dict[str, Any]) -> dict[str, Any]:
    return {"rms_norm" if key == "norm" else key: below for key, below in layer.items()}


def print_floor(walks: float) -> None:
    """What reading small JAX arrays costs without treeviz: new ones each time, since JAX keeps what was read."""
    for name, call in (
        ("the buffer of each, copied", copied),
        ("np.asarray of each, dropped", lambda *trees: [np.asarray(leaf).size for leaf in jax.tree.leaves(trees)]),
        ("np.asarray of each, kept", lambda *trees: [np.asarray(leaf) for leaf in jax.tree.leaves(trees)]),
        ("jax.tree.map(np.array_equal)", lambda *trees: jax.tree.map(np.array_equal, *trees)),
    ):
        best = float("inf")
        for _ in range(2):
            pair = [jax.device_put(layers(20_000, lambda *shape: np.ones(shape, np.float32))) for _ in "ab"]
            best = min(best, cpu_times({name: lambda call=call, pair=pair: call(*pair)}, 1)[name])
        print(f"    without treeviz: {name:30} {best:7.2f} s, with the walks {best + walks:.2f} s")


def copied(*trees: Any) -> None:
    io.BytesIO().writelines(jax.tree.leaves(trees))


def of_values() -> None:
    left = real_gpt2()
    right = jax.tree.map(jnp.copy, left)
    calls = {
        "diff": lambda: tv.diff(left, right),
        "array_equal": lambda: [np.array_equal(*pair) for pair in zip(*map(host, (left, right)), strict=True)],
        "jax.tree.map of jnp.array_equal": lambda: jax.block_until_ready(jax.tree.map(jnp.array_equal, left, right)),
    }
    if importlib.util.find_spec("chex"):
        import chex

        calls["chex.assert_trees_all_close"] = lambda: chex.assert_trees_all_close(left, right, rtol=0)
    if importlib.util.find_spec("equinox"):
        import equinox

        calls["equinox.tree_equal"] = lambda: bool(equinox.tree_equal(left, right))
    times = cpu_times(calls, 3)
    print("\nValues of GPT-2 small, 498 MB in each tree, against numpy.array_equal")
    for name, seconds in times.items():
        print(f"  {name:32} {seconds / times['array_equal']:7.2f}x")
    if "chex.assert_trees_all_close" in times:
        print(goal("diff ÷ chex", times["diff"] / times["chex.assert_trees_all_close"]))


def of_large_values() -> None:
    left = [np.ones(2**24, np.float32) for _ in range(8)]
    right = [array.copy() for array in left]
    right[5][123] = 2
    times = cpu_times(
        {
            "diff": lambda: tv.diff(left, right),
            "array_equal": lambda: [np.array_equal(*pair) for pair in zip(left, right, strict=True)],
        },
        3,
    )
    tracemalloc.start()
    tv.diff(left, right)
    peak = tracemalloc.get_traced_memory()[1] / 2**29
    tracemalloc.stop()
    ratio = times["diff"] / times["array_equal"]
    print(f"\n2 × 512 MB in 8 leaves: {ratio:.2f}x numpy.array_equal, peak {peak:.3f} of one tree beyond both")
    print(goal("diff ÷ array_equal", ratio))


def of_check() -> None:
    trees = {
        "100,000 abstract leaves": layers(20_000, abstract),
        "100,000 Python scalars, all weak": layers(20_000, lambda *shape: 1.0),
        "100,000 leaves in 20,000 dataclasses": [Block(*(1.0,) * 5, name=f"b{i}") for i in range(20_000)],
    }
    for name, tree in trees.items():
        times = cpu_times(
            {"walk": lambda tree=tree: tv.walk(tree), "check": lambda tree=tree: tv.check(tree, for_="state")}
        )
        print(f"\n{name}: check {times['check']:.2f} s, {times['check'] / times['walk']:.2f}x the walk")
        print(goal("check ÷ walk", times["check"] / times["walk"]))


def host(tree: Any) -> list[np.ndarray]:
    return [np.asarray(memoryview(leaf)) for leaf in jax.tree.leaves(tree)]


def goal(name: str, ratio: float) -> str:
    unit = " s" if name.endswith("seconds") else "x"
    done = "reached" if ratio <= GOALS[name] else "missed"
    return f"  goal: {name} at most {GOALS[name]:g}{unit}: {done} ({ratio:.2f}{unit})"


if __name__ == "__main__":
    if sys.argv[1:]:
        of_pair(sys.argv[1])
        sys.exit()
    print(f"jax {jax.__version__}")
    of_structure(10_000)
    of_structure(100_000)
    of_small_values()
    of_values()
    of_large_values()
    of_check()
