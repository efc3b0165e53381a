"""Whatever the program around it does, looking works, and looking changes nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import pythons
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sample_nodes import Layer, Node, Raises
from sample_trees import SAMPLES, leaf_kinds, shared

import treeviz

pytestmark = pytest.mark.oldest_jax


def arrays() -> dict[str, Any]:
    """Arrays of many kinds, with NaNs, infinities and denormals in them, and some on eight devices."""
    mesh = Mesh(np.array(jax.devices()), ("d",))
    bad = np.array([np.nan, np.inf, -np.inf, 1e-40, 3e38, 0, -0.0, 1], np.float32)
    return {
        "bad": jnp.asarray(bad),
        "numpy": bad.astype(np.float64),
        "half": jnp.full((8,), 60_000, jnp.float16),
        "bf16": jnp.asarray(bad, jnp.bfloat16),
        "int": jnp.array([-128], jnp.int8),
        "bool": jnp.ones(3, bool),
        "complex": jnp.asarray(bad + 1j),
        "empty": jnp.zeros((0, 3)),
        "sharded": jax.device_put(bad, NamedSharding(mesh, P("d"))),
        "replicated": jax.device_put(bad, NamedSharding(mesh, P())),
        "layer": Layer("n", jnp.ones((2, 3))),
    }


def everything(tree: Any) -> list[str]:
    views = [treeviz.render(tree), treeviz.render(tree, stats=True)]
    return [show for view in views for show in (repr(view), view.text(), view.html(), view._repr_html_())]


CONDITIONS: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    "np.errstate(all='raise')": lambda: np.errstate(all="raise"),
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "disable_jit": jax.disable_jit,
    "enable_x64": lambda: jax.experimental.enable_x64() if not hasattr(jax, "enable_x64") else jax.enable_x64(True),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "rank promotion raises": lambda: jax.numpy_rank_promotion("raise"),
    "transfer_guard disallow": lambda: jax.transfer_guard("disallow"),
    "transfer_guard disallow_explicit": lambda: jax.transfer_guard("disallow_explicit"),
    "checking_leaks": jax.checking_leaks,
    "warnings are errors": lambda: warnings.catch_warnings(action="error"),
    "printing options": lambda: np.printoptions(threshold=0, precision=1),
    "default device": lambda: jax.default_device(jax.devices()[-1]),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_everything_comes_out_the_same_whatever_is_switched_on_around_it(condition):
    tree = arrays()
    expected = everything(tree)
    with CONDITIONS[condition]():
        assert everything(tree) == expected


@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_kind_of_leaf_can_be_shown_whatever_is_switched_on_around_it(condition):
    tree = leaf_kinds()
    expected = treeviz.render(tree).html()
    with CONDITIONS[condition]():
        assert treeviz.render(tree).html() == expected


def test_eight_threads_can_look_at_once():
    trees = [arrays(), leaf_kinds(), shared(), SAMPLES["registered nodes"](), SAMPLES["evil keys"]()] * 2
    expected = [treeviz.render(tree, stats=True).html() for tree in trees]
    start = threading.Barrier(8)

    def look(_):
        start.wait()
        return [treeviz.render(tree, stats=True).html() for tree in trees]

    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(look, range(8)))


def test_a_dict_that_another_thread_changes_can_be_shown():
    tree: dict[Any, Any] = {"d": {str(i): [i] for i in range(500)}, "l": list(range(500))}
    done = threading.Event()

    def change():
        chance = random.Random(0)
        while not done.is_set():
            tree["d"][str(chance.randrange(1000))] = [1]
            tree["d"].pop(str(chance.randrange(1000)), None)
            tree["l"].append(1)
            del tree["l"][100:200]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(30):
            table = treeviz.walk(tree)
            assert not any(row.kind == "error" for row in table)
    finally:
        done.set()
        thread.join()


def state_of_the_process() -> list[Any]:
    python = [sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.displayhook, sys.excepthook, sys.gettrace()]
    around = [warnings.filters[:], random.getstate(), dict(os.environ), os.getcwd(), threading.active_count()]
    signals = [signal.getsignal(number) for number in signal.valid_signals()]
    numpy = [np.get_printoptions(), np.geterr(), repr(np.random.get_state())]
    return [*python, *around, signals, *numpy, dict(jax.config.values)]


def test_looking_leaves_the_process_as_it_was(tmp_path):
    for name in ("every kind of leaf", "functions", "opaque objects", "evil keys", "a flatten that raises"):
        view = treeviz.render(SAMPLES[name](), stats=True)
        view.html(), repr(view)
    before = state_of_the_process()
    for make in (arrays, *SAMPLES.values()):
        tree = make()
        before_each = state_of_the_process()
        repr(treeviz.render(tree, stats=True))
        assert state_of_the_process() == before_each
    assert state_of_the_process()[:5] == before[:5]


@pytest.mark.parametrize("stats", [False, True])
def test_a_donation_still_happens_after_a_look(stats):
    step = jax.jit(lambda tree: jax.tree_util.tree_map(lambda x: x + 1, tree), donate_argnums=0)
    mesh = Mesh(np.array(jax.devices()), ("d",))
    tree = {"w": jnp.ones((64, 64)), "s": jax.device_put(jnp.ones(64), NamedSharding(mesh, P("d")))}
    view = treeviz.render(tree, stats=stats)
    html = view.html()
    step(tree)
    assert all(leaf.is_deleted() for leaf in tree.values())
    assert view.html() == html


@pytest.mark.parametrize("stats", [False, True])
def test_no_host_copy_stays_on_an_array(stats):
    tree = arrays()
    treeviz.render(tree, stats=stats).html()
    leaves = [leaf for leaf in jax.tree_util.tree_leaves(tree) if isinstance(leaf, jax.Array)]
    pieces = [shard.data for leaf in leaves for shard in leaf.addressable_shards]
    assert all(leaf._npy_value is None for leaf in (*leaves, *pieces))


@pytest.mark.parametrize("stats", [False, True])
def test_a_view_keeps_nothing_alive(stats):
    tree = {**arrays(), "key": jax.random.key(0), "opaque": SAMPLES["opaque objects"]()["special"]}
    watched = [weakref.ref(leaf) for leaf in jax.tree_util.tree_leaves(tree) if not isinstance(leaf, (int, float))]
    view = treeviz.render(tree, stats=stats)
    shown = view.html(), repr(view), view._repr_html_()
    others = [] if stats else [look({name: tree[name] for name in arrays()}) for look in WITHOUT_VALUES.values()]
    del tree
    gc.collect()
    assert [ref() for ref in watched if ref() is not None] == []
    assert (view.html(), repr(view), view._repr_html_()) == shown and (others or stats)


def test_a_view_is_a_snapshot():
    tree: dict[str, Any] = {"w": jnp.ones(3), "n": np.ones(3), "list": [1, 2], "layer": Layer("old", 1.0)}
    view = treeviz.render(tree, stats=True)
    fresh = treeviz.render(tree, stats=True)
    shown = everything_of(view)
    tree["w"].delete()
    tree["n"][:] = np.nan
    tree["list"].append(3)
    tree["layer"].name = "new"
    tree["more"] = 1.0
    assert everything_of(view) == shown
    assert everything_of(fresh) == shown  # which had shown nothing before


def everything_of(view: treeviz.TreeView) -> list[str]:
    return [repr(view), view.text(), view.html(), view._repr_html_()]


def test_many_looks_leave_nothing_behind():
    tree = arrays()

    def look():
        treeviz.render(tree, stats=True).html()
        gc.collect()
        return len(gc.get_objects()), len(jax.live_arrays())

    gc.freeze()  # what was there before need not be walked nine times
    try:
        for _ in range(3):
            look()
        before = look()
        for _ in range(5):
            after = look()
    finally:
        gc.unfreeze()
    assert after[1] <= before[1]
    assert abs(after[0] - before[0]) < 50


# -- inside transformations


def shard_mapped(f: Callable) -> Callable:
    mesh = Mesh(np.array(jax.devices()), ("d",))
    if hasattr(jax, "shard_map"):
        return jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    from jax.experimental.shard_map import shard_map

    return shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))


TRANSFORMATIONS: dict[str, Callable[[Callable], Callable]] = {
    "jit": jax.jit,
    "vmap": jax.vmap,
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](x),
    "scan": lambda f: lambda x: jax.lax.scan(lambda carry, y: (carry, f(y)), 0.0, x),
    "cond": lambda f: lambda x: jax.lax.cond(x.sum() > 0, f, f, x),
    "checkpoint": jax.checkpoint,
    "shard_map": shard_mapped,
    "jit of vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(lambda x: f(x).sum()))),
    "jacobian": jax.jacobian,
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("stats", [False, True])
def test_looking_inside_a_transformation_changes_and_leaks_nothing(name, stats):
    seen = []

    def step(look, x):
        if look:
            seen.append(treeviz.render({"x": x, "const": np.ones(2)}, stats=stats))
        return jnp.sin(x) * 2

    x = jnp.ones((8, 4))
    transform = TRANSFORMATIONS[name]
    plain = jax.make_jaxpr(transform(partial(step, False)))(x)
    with jax.checking_leaks():
        looked = jax.make_jaxpr(transform(partial(step, True)))(x)
    assert str(looked) == str(plain)
    assert seen
    assert all("tracer" in view.text() and len(list(view.table.leaves)) == 2 for view in seen)


def test_looking_inside_jit_is_no_reason_to_trace_again():
    n_traces = 0

    @jax.jit
    def step(x):
        nonlocal n_traces
        n_traces += 1
        treeviz.render({"x": x}, stats=True).html()
        return x + 1

    x = jnp.ones(3)
    for _ in range(3):
        treeviz.render({"x": x}, stats=True)
        x = step(x)
    assert n_traces == 1


WITHOUT_VALUES: dict[str, Callable[[dict], Any]] = {
    "render": lambda tree: treeviz.render(tree).html(),
    "other trees": lambda tree: treeviz.render(tree, others=dict(tree)).json(),
    "check": lambda tree: [treeviz.check(tree, for_=use) for use in ("any", "jit", "grad", "state")],
    "diff": lambda tree: treeviz.diff(tree, {**tree, "more": 1}, values=False).html(),
    "explain_map": lambda tree: treeviz.explain_map(tree, {**tree, "more": 1}),
    "stackable": lambda tree: treeviz.stackable([tree, {**tree, "more": 1}]),
    "overlay": lambda tree: [
        treeviz.overlay((0,), (tree,)).text(),
        treeviz.overlay(P("d"), tree, use="shardings", mesh=tree["sharded"].sharding.mesh).text(),
        treeviz.overlay(True, tree, use="mask").text(),
    ],
    "forecast": lambda tree: treeviz.forecast(lambda tree: tree, {name: tree[name] for name in ("bad", "sharded")}),
}


@pytest.mark.parametrize("look", WITHOUT_VALUES)
def test_a_look_without_statistics_compiles_nothing_and_asks_for_no_value(look, monkeypatch):
    tree = arrays()

    def refuse(*_args, **_kwargs):
        raise AssertionError("a value was asked for, or compiled")

    array_type = type(tree["bad"])
    for name in ("__array__", "__float__", "__int__", "__bool__", "__repr__", "__iter__", "__getitem__", "__len__"):
        if hasattr(array_type, name):
            monkeypatch.setattr(array_type, name, refuse)
    monkeypatch.setattr(array_type, "block_until_ready", refuse)
    monkeypatch.setattr(jax, "device_get", refuse)
    monkeypatch.setattr("jax._src.compiler.compile_or_get_cached", refuse)
    assert repr(WITHOUT_VALUES[look](tree))


# -- what exhausts the interpreter, in an interpreter of its own


def in_a_fresh_python(program: str) -> str:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [*pythons.command("jax"), "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("tree", ["Node", "cyclic", "deep(20_000, Node)", "deep(200_000)", "raises"])
def test_the_interpreter_is_well_after_a_tree_that_jax_itself_does_not_survive(tree):
    program = f"""
import treeviz
from sample_nodes import Node, Raises
from sample_trees import deep, cyclic_list

def make(name):
    if name == "Node":
        node = Node()
        node.child = [node, 1.0]
        return node
    if name == "cyclic":
        return cyclic_list()
    if name == "raises":
        return [Raises(RecursionError("deep")), Raises(MemoryError())]
    return eval(name)

view = treeviz.render(make({tree!r}))
shown = len(repr(view)) > 0 and len(view._repr_html_()) > 0
def recurse(n):
    return n if n == 0 else recurse(n - 1)
print(shown, recurse(800), len(view.table))
import os; sys = __import__("sys"); sys.stdout.flush(); os._exit(0)  # not to wait for the deep tree's end
"""
    shown, depth, n_rows = in_a_fresh_python(program).split()
    assert (shown, depth) == ("True", "0")
    assert int(n_rows) >= 3


def test_a_node_that_interrupts_stops_the_look():
    with pytest.raises(KeyboardInterrupt):
        treeviz.render({"a": 1.0, "b": [Node(Raises(KeyboardInterrupt()))]}, stats=True)
