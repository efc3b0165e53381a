"""A run of lognormal grads norms, for the tests of findings: they bend the numbers of some steps and leaves."""

import numpy as np

from treeviz.steps.findings.find import findings
from treeviz.steps.findings.finding import Finding
from treeviz.steps.measure import MeasuredTree
from treeviz.steps.recording.history import History

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
