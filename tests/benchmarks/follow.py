"""What it costs a training process that others follow its run, and how late they see a step.

    python tests/benchmarks/follow.py [rounds]

In turn: a training process that keeps its run in a file; the same with `treeviz grads --follow`; the same with
`treeviz serve` and ten pages that read its events. Prints the median time of a step, the ratio to the first, the
memory and the processor of the server, and the time from a step to the event that shows it.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

N_STEPS, STEP_S, N_PAGES = 600, 0.01, 10
_TRAIN = """
import json, sys, time
import jax, jax.numpy as jnp
import treeviz as tv

params = [{"w": jnp.eye(256) * 0.9, "b": jnp.zeros(256)} for _ in range(8)]
def loss(params, x):
    for layer in params:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return jnp.mean(x**2)
@jax.jit
def update(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value
inspector = tv.GradientInspector()
update = inspector.watch(update)
inspector.keep(sys.argv[1])
x, times, ends = jnp.ones((32, 256)), [], []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    params, value = update(params, x)
    value.block_until_ready()
    times.append(time.perf_counter() - began)
    ends.append(time.time())
    time.sleep(float(sys.argv[3]))
print(json.dumps([times, ends]))
"""


def train(file: Path) -> tuple[list[float], list[float]]:
    command = [sys.executable, "-c", _TRAIN, str(file), str(N_STEPS), str(STEP_S)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def treeviz(*arguments: str) -> subprocess.Popen:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "treeviz", *arguments], stdout=pipe, stderr=pipe, text=True)


class Page(threading.Thread):
    """Reads the events of a run, and remembers when each step was seen first."""

    def __init__(self, port: int, token: str, key: str) -> None:
        super().__init__(daemon=True)
        self._port, self._cookie, self._key = port, f"treeviz-{port}={token}", key
        self.seen: dict[int, float] = {}

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("GET", f"/events/{self._key}", headers={"Cookie": self._cookie})
        response = connection.getresponse()
        for line in response:
            found = re.search(rb'"step": (\d+)', line)
            if found:
                self.seen.setdefault(int(found[1]), time.time())


def with_server(folder: Path) -> tuple[tuple[list[float], list[float]], str]:
    """The times of a training that ten pages follow, and what there is to say of the server."""
    server = treeviz("serve", str(folder), "--port", "0")
    assert server.stderr is not None
    said = server.stderr.readline()
    port, token = re.search(r":(\d+)/\?token=(\S+)", said).groups()  # type: ignore[union-attr]
    pages = [Page(int(port), token, "run.treeviz") for _ in range(N_PAGES)]
    starting = threading.Thread(target=lambda: (_until(folder / "run.treeviz"), [page.start() for page in pages]))
    starting.start()
    times = train(folder / "run.treeviz")
    time.sleep(1)
    status = Path(f"/proc/{server.pid}/status").read_text()
    memory = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1000  # type: ignore[index]
    used = sum(map(int, Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    late = [seen - times[1][step] for page in pages for step, seen in page.seen.items() if step < len(times[1])]
    server.kill()
    span = times[1][-1] - times[1][0]
    share = used / os.sysconf("SC_CLK_TCK") / span
    text = f"server: {memory} MB, {share:.2f} processors for {span:.0f} s, {len(late) // N_PAGES} events a page"
    return (
        times,
        f"{text}; a step is seen {statistics.median(late):.2f} s later at the median, {max(late):.2f} s at most",
    )


def with_follower(folder: Path) -> tuple[list[float], list[float]]:
    follower = treeviz("grads", str(folder / "run.treeviz"), "--follow")
    times = train(folder / "run.treeviz")
    follower.kill()
    return times


def _until(file: Path) -> None:
    while not file.exists():
        time.sleep(0.05)


def main(rounds: int) -> None:
    medians: dict[str, list[float]] = {"alone": [], "followed": [], "served": []}
    text = ""
    for _ in range(rounds):
        for name in medians:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder)
                if name == "served":
                    times, text = with_server(path)
                else:
                    times = train(path / "run.treeviz") if name == "alone" else with_follower(path)
            medians[name].append(statistics.median(times[0][50:]))
    alone = statistics.median(medians["alone"])
    for name, values in medians.items():
        median = statistics.median(values)
        print(f"{name:10} {1e3 * median:7.2f} ms a step   {median / alone:5.2f} of a run that nobody follows")
    print(text)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
