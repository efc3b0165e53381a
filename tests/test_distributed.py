"""Two processes that share arrays: each looks alone, and neither waits for the other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
import pythons
from compiling import PLAIN_FLAGS

TIMEOUT_S = 120
PROGRAM = """
import json, os, sys, time
rank, port, flag = int(sys.argv[1]), sys.argv[2], sys.argv[3]
import jax
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank, initialization_timeout=120)
import jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import treeviz

mesh = Mesh(np.array(jax.devices()), ("data",))
x = np.arange(32, dtype=np.float32).reshape(8, 4)
def put(spec):
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])
tree = {"rows": put(P("data")), "all": put(P()), "mine": jnp.ones(3), "numpy": np.ones(2)}

def wait_for(other):
    while not os.path.exists(flag + other):
        time.sleep(0.1)

# Process 1 does nothing at all until process 0 has looked, and process 0 nothing while process 1 looks.
if rank == 1:
    wait_for("0")
try:
    view = treeviz.render(tree, stats=True)
    step = jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2))
    cost = treeviz.cost(step, np.ones((4, 4), np.float32), tree["rows"], compile=True)
    lengths = [len(text) for text in (view.text(), view.html(), view._repr_html_(), repr(view))]
    row = {row.label: row for row in view.table.leaves}
    where = {name: row[name].facts.sharding for name in ("rows", "all")}
    print("FOUND", json.dumps({
        "devices": len(jax.devices()),
        "views": min(lengths) > 0,
        "sharding": {name: [s.shard_shape, s.n_devices, s.replicated, s.addressable] for name, s in where.items()},
        "text": {name: row[name]["sharding"] for name in where},
        "device_bytes": {name: int(row[name]["device_bytes"]) for name in where},
        "notes": {name: [note.text for note in row[name].notes] for name in where},
        "mean": {name: float(row[name]["mean"]) for name in ("mine", "numpy")},
        "is_scanned": {name: bool(row[name]["mean"] == row[name]["mean"]) for name in where},
        "cost": [dict(cost.totals), dict(cost.compiled), cost.n_devices, [c.bytes for c in cost.collectives]],
        "host copies": [shard.data._npy_value is not None for shard in tree["rows"].addressable_shards],
    }), flush=True)
except BaseException:
    import traceback
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
finally:
    open(flag + str(rank), "w").close()
wait_for("1")
jax.distributed.shutdown()
"""


@pytest.mark.oldest_jax
def test_each_of_two_processes_shows_arrays_that_lie_in_both_without_the_other(tmp_path):
    first, second = two_processes(tmp_path)
    assert first == second
    assert first["devices"] == 4 and first["views"] and first["host copies"] == [False, False]
    assert first["sharding"] == {"rows": [[2, 4], 4, False, False], "all": [[8, 4], 4, True, False]}
    assert first["device_bytes"] == {"rows": 32, "all": 128}
    assert first["text"]["rows"].endswith("partly in another process")
    # nothing may run on these, or both processes would have to run it
    assert not first["is_scanned"]["rows"] and first["notes"]["rows"]
    assert first["mean"] == {"mine": 1.0, "numpy": 1.0}
    totals, compiled, n_devices, collectives = first["cost"]
    assert totals["flops"] > 2 * (2 * 8 * 4 * 4) and n_devices == 4  # x @ w, x.T @ g and what is element-wise
    assert compiled["flops"] < totals["flops"] / 2, "of one device"
    assert totals["arguments"] == 64 + 32 and collectives == [64.0], "the gradient is summed over all devices"


def two_processes(tmp_path: Path) -> list[dict]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {PLAIN_FLAGS}",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    command = [*pythons.command("jax"), "-c", PROGRAM]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(port), str(tmp_path / "looked")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.partition("FOUND ")[2].splitlines()[0]) for output, _ in outputs]
