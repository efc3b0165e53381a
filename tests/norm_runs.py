"""A run of lognormal grads norms, for the tests of findings: they bend the numbers of some steps and leaves."""

import numpy as np

from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Finding
from treeviz.steps.measure import MeasuredTree
from treeviz.steps.recording.history import History
from treeviz.steps.statistics import STATISTICS

N_STEPS = 300


def source(name: str, paths: dict[str, int], dtype: str = "float32") -> MeasuredTree:
    n = len(paths)
    return MeasuredTree(name, tuple(paths), tuple(paths.values()), (dtype,) * n, (True,) * n)


def mlp() -> dict[str, int]:
    return {f"['layers'][{i}]['{leaf}']": size for i in range(12) for leaf, size in (("b", 128), ("w", 16384))}


def transformer() -> dict[str, int]:
    layer = {
        "attn.qkv": 49152,
        "attn.out": 16384,
        "mlp.up": 65536,
        "mlp.down": 65536,
        "ln1.scale": 128,
        "ln2.scale": 128,
    }
    blocks = {f".blocks[{i}].{leaf}": size for i in range(12) for leaf, size in layer.items()}
    return {".embed": 1_000_000, ".pos": 32768, **blocks, ".head": 1_000_000}


class Run:
    """A run with lognormal grads norms; a test bends the numbers of some steps and leaves."""

    def __init__(self, paths=None, *, seed=0, dtype="float32", n_steps=N_STEPS):
        rng = np.random.default_rng(seed)
        paths = paths or mlp()
        n = len(paths)
        sizes = np.array(list(paths.values()))
        self.sources = [source(name, paths, dtype) for name in ("grads", "params", "updates")]
        self.paths = list(paths)
        decay = 1 / np.sqrt(1 + np.arange(n_steps) / 20)[:, None]
        level = 10 ** rng.normal(0, 0.4, n) * np.sqrt(sizes) * 1e-4
        self.grads = level * decay * np.exp(rng.normal(0, 0.4, (n_steps, n)) + rng.normal(0, 0.3, (n_steps, 1)))
        self.bad = np.zeros((n_steps, n), np.int64)
        self.params = np.sqrt(sizes) * 0.02 * (1 + 1e-3 * np.arange(n_steps)[:, None]) * np.ones(n)
        self.updates = self.params * 1e-3 * np.exp(rng.normal(0, 0.3, (n_steps, n)))
        self.histogram = None

    def history(self, **how) -> History:
        history = History(self.sources, **how)
        for step in range(len(self.grads)):
            grads = {"norm": self.grads[step], "nonfinite": self.bad[step]}
            if self.histogram is not None and step % 50 == 0:
                grads["histogram"] = self.histogram
            numbers = {"grads": grads, "params": {"norm": self.params[step]}, "updates": {"norm": self.updates[step]}}
            history.append(step, numbers)
        return history

    def findings(self, **how) -> list[Finding]:
        return findings(self.history(), **how)


class ActivationRun:
    """A run of an embedding and layers of 64 ReLU units with their inputs and outputs; a test bends these numbers."""

    N_UNITS, N_LAYERS = 64, 6
    LISTED = 10  # every so many steps, the first dead units are listed; 0: never

    def __init__(self, *, seed=0, n_steps=100, n_examples=32):
        self.rng, self.n_steps = np.random.default_rng(seed), n_steps
        self.paths = ["['embed']", *[f"['l{i}']['{key}']" for i in range(self.N_LAYERS) for key in "bw"]]
        self.forward = ["['embed']", *[f"['l{i}']['{key}']" for i in range(self.N_LAYERS) for key in "wb"]]
        self.at = {path: leaf for leaf, path in enumerate(self.paths)}
        shape = n_steps, len(self.paths)
        self.is_weight = np.array(["'w'" in path for path in self.paths])
        self.levels = {role: np.exp(self.rng.normal(0, 0.1, shape)) for role in ("inputs", "outputs")}
        self.bad = {role: np.zeros(shape, np.int64) for role in ("grads", "inputs", "outputs")}
        self.largest = np.full(shape, 4.0)
        # Each unit is zero for half of the examples, and for all of them by chance alone.
        self.is_dead = self.rng.random((*shape, self.N_UNITS)) < 0.5**n_examples
        self.constant = np.full(shape, self.N_UNITS if n_examples == 1 else 0)
        self.dead_in_other_use: np.ndarray | None = None  # counts, of each leaf
        self.rows_read, self.unread = self.rng.integers(300, 400, n_steps), np.arange(600)
        self.grads = np.exp(self.rng.normal(0, 0.1, shape))

    def history(self) -> History:
        n = len(self.paths)
        grads = source("grads", dict.fromkeys(self.paths, 1000))
        features = [1000, *[self.N_UNITS if is_weight else 1 for is_weight in self.is_weight[1:]]]
        inputs = source("inputs", dict(zip(self.paths, features, strict=True)))
        history = History([grads, inputs, inputs._replace(name="outputs", sizes=(1,) * n)])
        if self.dead_in_other_use is not None:
            history.add_sources([inputs._replace(name="inputs #2")], 1 << 20)
        history.forward["grads"] = tuple(self.forward)
        for step in range(self.n_steps):
            numbers = {"grads": {"norm": self.grads[step], "nonfinite": self.bad["grads"][step]}}
            for role, levels in self.levels.items():
                numbers[role] = {"rms": levels[step], "nonfinite": self.bad[role][step]}
            inputs = numbers["inputs"]
            inputs["rms"] = np.where(self.at["['embed']"] == np.arange(n), np.nan, inputs["rms"])
            inputs["dead"] = np.where(self.is_weight, self.is_dead[step].sum(axis=1), -1)
            if self.dead_in_other_use is not None:
                numbers["inputs #2"] = {"rms": inputs["rms"], "dead": self.dead_in_other_use}
            if self.LISTED and step % self.LISTED == 0:
                inputs["max_abs"] = self.largest[step]
                constant = np.maximum(self.constant[step], inputs["dead"])
                inputs["constant"] = np.where(self.is_weight, constant, -1)
                if self.dead_in_other_use is not None:
                    numbers["inputs #2"]["constant"] = self.dead_in_other_use
                inputs["rows_read"] = np.where(np.arange(n) == 0, self.rows_read[step], -1)
                n_listed = STATISTICS["dead_at"].n_bins
                inputs["unread_at"] = np.full((n, n_listed), -1)
                inputs["unread_at"][0] = np.sort(self.rng.permutation(self.unread)[:n_listed]) + 1
                listed = [(np.flatnonzero(dead) + 1)[:n_listed].tolist() for dead in self.is_dead[step]]
                inputs["dead_at"] = np.array([units + [0] * (n_listed - len(units)) for units in listed])
            history.append(step, numbers)
        return history

    def findings(self, **how) -> list[Finding]:
        return findings(self.history(), **how)
