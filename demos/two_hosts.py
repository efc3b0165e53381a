"""Two hosts: parameters that lie half on one process and half on the other, and one view of their gradients.

    python demos/two_hosts.py

Starts a second process, and joins it over loopback with jax.distributed, as two machines of a cluster would be. Every
parameter and every batch is split over both: no process has all of any gradient. Both watch the same jitted step, and
that is all they have to do. The statistics are computed where the gradients lie, inside the step, and are the same in
both processes; each prints the norms that it holds. Process 0 also prints the view, and writes gradients.html where it
runs.

All processes must watch the same step in the same way, since the statistics of a gradient that all of them share are
computed by all of them; if one does not, `watch` says so, and the run goes on unwatched.
"""

import argparse
import faulthandler
import itertools
import os
import socket
import subprocess
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treeviz as tv

N_STEPS = 30
TIMEOUT_S = 120


def init(rng):
    widths = [32, 64, 64, 16]
    return [
        {"w": rng.normal(size=(n_in, n_out)) * np.sqrt(2 / n_in), "b": np.zeros(n_out)}
        for n_in, n_out in itertools.pairwise(widths)
    ]


def batch(rng):
    x = rng.normal(size=(64, 32))
    return x, np.sin(x[:, :16])


def loss_fn(params, x, y):
    *hidden, last = params
    for layer in hidden:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return jnp.mean((x @ last["w"] + last["b"] - y) ** 2)


@jax.jit
def update(params, x, y):
    grads = jax.grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def train(process):
    mesh = Mesh(np.array(jax.devices()), ("hosts",))

    def split(x):
        """An array whose rows are shared out among all devices. Here every process could make all of it; with real
        data each makes its own part."""
        x, sharding = np.asarray(x, np.float32), NamedSharding(mesh, PartitionSpec("hosts"))
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    inspector = tv.GradientInspector(name="mlp")
    watched = inspector.watch(update)
    rng = np.random.default_rng(0)
    params = jax.tree.map(split, init(rng))
    for _ in range(N_STEPS):
        params = watched(params, *map(split, batch(rng)))

    step, numbers = inspector.history.last("grads")
    norms = " ".join(f"{norm:.7e}" for norm in numbers["norm"])
    rows, n_rows = (w.shape[0] for w in (params[0]["w"].addressable_data(0), params[0]["w"]))
    print(f"process {process} holds {rows} of {n_rows} rows; norms of step {step}: {norms}", flush=True)
    if process == 0:
        print(inspector)
        print("\nwritten:", inspector.save("gradients.html"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--join", metavar="HOST:PORT", help="be the second process (the first one starts it)")
    address = parser.parse_args().join
    process = 1 if address else 0
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)  # a process that waits for another that is gone ends, too

    second = None
    if process == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        second = subprocess.Popen([sys.executable, __file__, "--join", address], stdout=subprocess.PIPE, text=True)
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # newer releases take it by themselves
        jax.distributed.initialize(address, num_processes=2, process_id=process, initialization_timeout=60)
        train(process)
        jax.distributed.shutdown()  # waits for the other
        if second is not None:
            said, _ = second.communicate(timeout=30)
            print(said, end="")
            assert second.returncode == 0, f"process 1 ended with {second.returncode}"
    except BaseException:
        traceback.print_exc()
        if second is not None:
            second.kill()
        os._exit(1)  # an ordinary exit waits for the other process, which may be gone


if __name__ == "__main__":
    main()
