"""`watch` beyond one process: two that share their arrays, and two that run one after the other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import pythons
from compiling import PLAIN_FLAGS, quick_environment

from treeviz import GradientInspector
from treeviz.steps.tracing import watch as processes

pytestmark = pytest.mark.oldest_jax

TIMEOUT_S = 150
TWO_HOSTS = """
import json, os, sys, warnings
rank, port, case = int(sys.argv[1]), sys.argv[2], sys.argv[3]
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")  # what newer releases take by themselves
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank, initialization_timeout=120)
import jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from treeviz.steps.tracing import watch as processes
from treeviz.steps.tracing import watch as watching
from treeviz.steps.statistics import ACTIVATIONS, unpack, unpack_activations

mesh = Mesh(np.array(jax.devices()), ("data",))
def put(x, spec=P("data")):
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])
rng = np.random.default_rng(0)
w, x, y = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 4), (16, 8), (16, 4)))

@jax.jit
def step(params, x, y):
    grads = jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["w"]) - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)

def told(key):
    from jax._src import distributed
    return distributed.global_state.client.blocking_key_value_get(key, 100_000)

seen, before = [], ""
others_come = case in ("both", "differs")
processes.GRACE_S = 100.0 if others_come or rank == 1 else 0.0
processes.JOIN_S = 100.0
settings = {"every": 2} if case == "differs" and rank == 1 else {"activations": case == "both"}
params, batch = {"w": put(w)}, (put(x), put(y))  # fully sharded
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run, number = step, 0
    if rank == 1 and case == "late":
        told("treeviz/__main__.step/0/decision")
    if rank == 1 and case == "joins":
        told("called")
    if rank == 0 or case not in ("alone", "ends"):
        run = watching.watch(step, lambda m, n: seen.append((n, m)), **settings)
    if rank == 0 and case == "late":  # the other waits for this decision, and this one for no call of the other
        params_of_first = run(params, *batch)
        processes.JOIN_S, number = 0.0, 1
        run._consensus._settled.wait()
        params = params_of_first
    while number < 3:
        params = run(params, *batch)
        if rank == 0 and case == "joins" and number == 0:
            from jax._src import distributed
            distributed.global_state.client.key_value_set("called", "")
        jax.block_until_ready(params)
        number += 1
        if rank == 0 and case == "alone" and number == 2:
            before, processes.JOIN_S = (run.trouble, run.notes), 0.0
            run._consensus._settled.wait()
    jax.block_until_ready(params)
norms = [unpack(np.array(m.packed["grads"].addressable_data(0)), m.statistics)["norm"].tolist() for _, m in seen]
def of_activations(m, source):
    packed = np.array(m.packed[source.name].addressable_data(0))
    return unpack_activations(packed, m.statistics_of(source.name), source)["norm"].tolist()
print("FOUND", json.dumps({
    "norms": norms,
    "activations": [of_activations(m, s) for _, m in seen for s in m.sources if s.name.startswith(ACTIVATIONS)],
    "numbers": [n for n, _ in seen],
    "notes": getattr(run, "notes", ()),
    "before the decision": before,
    "replicated": all(m.packed["grads"].is_fully_replicated for _, m in seen),
    "warned": [str(w.message) for w in caught if "watch" in str(w.message)],
}), flush=True)
jax.distributed.shutdown()
"""


def two_hosts(case: str) -> list[dict]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"--xla_force_host_platform_device_count=2 {PLAIN_FLAGS}"
    env = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS=flags)
    hosts = [
        subprocess.Popen(
            [*pythons.command("jax"), "-c", TWO_HOSTS, str(rank), str(port), case],
            env=env, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        results = [host.communicate(timeout=TIMEOUT_S) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert all(host.returncode == 0 for host in hosts), "\n".join(errors[-3000:] for _, errors in results)
    return [json.loads(out.split("FOUND", 1)[1]) | {"errors": errors} for out, errors in results]


def without_errors(host: dict) -> dict:
    return {name: each for name, each in host.items() if name != "errors"}


def true_norms() -> tuple[list[float], list[tuple[float, float]]]:
    """Of the gradients, and of what goes into the parameter and comes out."""
    rng = np.random.default_rng(0)
    w, x, y = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 4), (16, 8), (16, 4)))
    w, norms, activations = w.astype(np.float64), [], []
    for _ in range(3):
        out = np.tanh(x @ w)
        activations.append((np.linalg.norm(x), np.linalg.norm(x @ w)))
        gradient = x.T @ (2 * (out - y) / y.size * (1 - out**2))
        norms.append(np.linalg.norm(gradient))
        w = w - 0.5 * gradient
    return norms, activations


def test_two_processes_hold_the_same_numbers_of_gradients_that_lie_in_both():
    first, second = two_hosts("both")
    assert without_errors(first) == without_errors(second)
    norms, activations = true_norms()
    np.testing.assert_allclose(np.ravel(first["norms"]), norms, rtol=1e-5)
    np.testing.assert_allclose(first["activations"], activations, rtol=1e-5)
    assert first["replicated"] and first["warned"] == []


def test_the_waits_are_those_of_the_docstring_and_the_questions():
    documented = " ".join((GradientInspector.watch.__doc__ or "").split())
    assert f"the first call waits {processes.GRACE_S:g} s" in documented
    assert f"if one does not within {processes.JOIN_S:g} s" in documented
    faq = (Path(__file__).parents[3] / "docs" / "faq.md").read_text("utf-8")
    said = " ".join(faq.split())
    assert "waits at most one second for the others, once" in said and processes.GRACE_S == 1
    assert f"the processes that do not watch: {processes.JOIN_S:g} s later" in said


def test_processes_that_begin_to_watch_one_after_the_other_measure_from_the_same_step_on():
    first, second = two_hosts("joins")
    assert without_errors(first) == without_errors(second)
    np.testing.assert_allclose(np.ravel(first["norms"]), true_norms()[0][1:], rtol=1e-5)
    assert first["numbers"] == [1, 2] and first["warned"] == []
    assert "all processes watch it from step 1 on" in " ".join(first["notes"])


def test_a_process_that_watches_alone_does_not_wait_for_the_others():
    alone, other = two_hosts("alone")
    assert alone["norms"] == []
    trouble, notes = alone["before the decision"]  # when two steps had ended
    assert trouble == "" and "not measured as long as not all processes watch it" in " ".join(notes)
    assert "process 1 did not watch this step" in " ".join(alone["warned"])
    assert other["warned"] == []


def test_a_process_that_watches_alone_and_never_asks_is_told_at_its_end_that_nothing_was_measured():
    alone, other = two_hosts("ends")
    assert alone["norms"] == [] and alone["warned"] == []
    assert "no call of `step` was measured: process 1 had not watched this step" in alone["errors"]
    assert "watch:" not in other["errors"]


@pytest.mark.parametrize("case, said", [("late", "process 1 did not watch this step"), ("differs", "every=2")])
def test_what_processes_watch_otherwise_is_refused_before_it_can_hang(case, said):
    for host in two_hosts(case):
        assert host["norms"] == []
        assert said in " ".join(host["warned"])
        assert "All processes must watch it in the same way; one of them may save or show it" in " ".join(
            host["warned"]
        )


CACHED = """
import sys, json
import jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
from treeviz.steps.tracing.watch import watch
def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)
step = jax.jit(lambda w, x: w - jax.grad(loss)(w, x))
watched = watch(step, lambda *_: None)
w, x = jax.device_put(([[1.0, 2.0]], [[3.0]]))
w, x = jnp.asarray(w), jnp.asarray(x)
events.clear()
watched(w, x)
cache = "/jax/compilation_cache/"
print(json.dumps([events.count(cache + "cache_hits"), events.count(cache + "cache_misses")]))
"""


def test_a_second_process_finds_the_watched_step_in_the_persistent_cache(tmp_path):
    runs = [python(CACHED, str(tmp_path)) for _ in range(2)]
    assert [json.loads(run) for run in runs] == [[0, 1], [1, 0]]


AT_EXIT = """
import jax, jax.numpy as jnp
from treeviz.steps.tracing.watch import watch
step = jax.jit(lambda w: w - jax.grad(lambda w: jnp.sum(w**2))(w))
watched = watch(step, lambda *_: None)
import atexit
atexit.register(lambda: print("at exit", watched(jnp.ones(3))))
watched(jnp.ones(3))
"""


def test_a_watched_step_runs_at_the_exit_of_the_interpreter():
    assert python(AT_EXIT) == "at exit [-1. -1. -1.]\n"


def python(program: str, *arguments: str) -> str:
    """What a program prints in an interpreter of its own, where warnings are errors."""
    command = [*pythons.command("jax"), "-W", "error", "-c", program, *arguments]
    env = dict(quick_environment(), JAX_PLATFORMS="cpu")
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3], env=env)
    assert run.stderr == ""
    return run.stdout
