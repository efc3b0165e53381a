"""Findings: none on healthy runs, and each on the fault that was planted."""

import numpy as np
import pytest

from treeviz.analysis.findings import Finding, Thresholds, findings
from treeviz.analysis.gradients import Source
from treeviz.analysis.history import History

N_STEPS = 300


def source(name: str, paths: dict[str, int], dtype: str = "float32") -> Source:
    n = len(paths)
    return Source(name, tuple(paths), tuple(paths.values()), (dtype,) * n, (True,) * n)


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
    """A run with lognormal gradient norms; a test bends the numbers of some steps and leaves."""

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


def kinds(found: list[Finding]) -> set[str]:
    return {finding.kind for finding in found}


@pytest.mark.parametrize("paths", [mlp(), transformer()], ids=["mlp", "transformer"])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_said_of_a_healthy_run(paths, seed):
    assert Run(paths, seed=seed).findings() == []


@pytest.mark.parametrize("max_bytes", [20_000, 200_000])
def test_nothing_is_said_of_a_healthy_run_in_little_memory(max_bytes):
    assert findings(Run(n_steps=2000).history(max_bytes=max_bytes)) == []


def test_nothing_is_said_of_the_first_steps():
    assert Run(n_steps=10).findings() == []


def test_nothing_is_said_of_warm_up_and_decay():
    run = Run()
    steps = np.arange(N_STEPS)[:, None]
    run.updates *= np.minimum(steps / 100, 1) * (1 + np.cos(np.pi * steps / N_STEPS)) / 2
    run.grads *= np.where(steps < 30, 3.0, 1.0)
    assert run.findings() == []


def test_nothing_is_said_of_a_sparse_embedding_or_a_rare_expert():
    run = Run(transformer())
    run.grads[:, 0] *= 0.02
    rare = np.random.default_rng(1).random(N_STEPS) > 0.15
    run.grads[rare, 5] = 0
    assert run.findings() == []


def test_nothing_is_said_of_loss_scaling_and_of_a_lora_whose_first_gradients_are_zero():
    run = Run()
    run.grads *= 2.0**15
    run.grads[0, ::2] = 0
    assert run.findings() == []


def test_the_leaf_that_is_not_finite_first_in_the_backward_pass_is_named_with_those_it_spread_to():
    run = Run()
    run.bad[140, 2:18] = 7
    run.bad[141:, :] = 9
    (found,) = run.findings()
    assert (found.kind, found.source, found.first, found.until) == ("nonfinite", "grads", 140, 299)
    assert found.path == "['layers'][8]['w']"
    assert dict(found.numbers) == {"numbers": 7, "leaves at first": 16, "leaves in all": 24}
    assert found.leaves == tuple(range(24))
    assert "7 numbers that are NaN or infinite at step 140" in found.sentence


def test_layer_10_comes_after_layer_2_whatever_the_order_of_the_leaves():
    paths = {f"['layer_{i}']": 10 for i in (0, 1, 10, 11, 2, 3)}  # as a dict sorts them
    run = Run(paths)
    run.bad[50:, [2, 4]] = 1
    assert run.findings(kinds=["nonfinite"])[0].path == "['layer_10']"
    forward = ["['layer_10']", "['layer_2']"]
    assert run.findings(kinds=["nonfinite"], forward=forward)[0].path == "['layer_2']"


def test_a_nonfinite_step_is_found_after_it_went_into_a_bucket():
    run = Run(n_steps=5000)
    run.bad[7, 3] = 2
    history = run.history(max_bytes=100_000)
    assert history.values("grads", "nonfinite").n[0] > 1
    (found,) = findings(history)
    assert found.kind == "nonfinite" and found.path == "['layers'][1]['w']"
    assert found.first <= 7 <= found.until and "between steps" in found.sentence


def test_an_exploding_norm_is_found():
    run = Run()
    run.grads[250:] *= 10 ** np.linspace(0, 6, 50)[:, None]
    found = {finding.kind: finding for finding in run.findings()}
    assert 250 < found["exploding"].first < 290 and found["exploding"].until == 299


def test_a_vanishing_leaf_is_found_and_named():
    run = Run()
    run.grads[:, 1] *= 1e-8
    found = {finding.kind: finding for finding in run.findings()}
    assert found["vanishing"].path == run.paths[1]


@pytest.mark.parametrize(("since", "says"), [(0, "always"), (100, "from step 100 on")])
def test_a_dead_leaf_is_found_with_its_first_step(since, says):
    run = Run()
    run.grads[since:, 5] = 0
    (found,) = run.findings()
    assert (found.kind, found.path, found.first) == ("dead", run.paths[5], since)
    assert says in found.sentence


def test_gradients_that_are_all_zero_are_one_finding():
    run = Run()
    run.grads[:] = 0
    (found,) = run.findings()
    assert (found.kind, found.path) == ("dead", "")


def test_a_leaf_that_is_all_nan_is_not_dead():
    run = Run()
    run.grads[:, 5], run.bad[:, 5] = 0, 128
    assert kinds(run.findings()) == {"nonfinite"}


def test_a_frozen_leaf_is_found():
    run = Run()
    run.updates[:, 4] = 0
    (found,) = run.findings()
    assert (found.kind, found.source, found.path) == ("frozen", "updates", run.paths[4])


def test_a_spike_is_found_in_the_leaf_and_in_the_tree():
    run = Run()
    run.grads[200, 7] *= 500
    run.grads[220] *= 100
    found = [finding for finding in run.findings() if finding.kind == "spike"]
    assert [f.path for f in found if f.path in ("", run.paths[7])]
    assert any(f.first == 200 for f in found)
    assert any(f.path == "" and f.until == 220 for f in found)
    assert kinds(run.findings()) == {"spike"}


def test_layers_of_one_kind_that_differ_by_orders_of_magnitude_are_found():
    run = Run()
    run.grads *= (10 ** (-np.arange(24) // 2 * 0.4))[None]
    found = [finding for finding in run.findings() if finding.kind == "imbalance"]
    assert {"['layers'][0]['w']", "['layers'][0]['b']"} & {finding.path for finding in found}


@pytest.mark.parametrize(("factor", "advice"), [(1e3, "Lower"), (1e-4, "Raise")])
def test_an_update_ratio_far_from_a_thousandth_is_found(factor, advice):
    run = Run()
    run.updates *= factor
    (found,) = run.findings()
    assert (found.kind, found.path) == ("ratio", "") and advice in found.advice


def test_float16_gradients_near_their_smallest_numbers_are_found():
    run = Run(dtype="float16")
    run.histogram = np.zeros((24, 64), np.int64)
    run.histogram[:, 30] = 90  # 2**-10
    run.histogram[3, 20] = 10  # 2**-20, below 2**-14
    (found,) = run.findings()
    assert (found.kind, found.path) == ("underflow", run.paths[3])
    assert dict(found.numbers) == {"part": 0.1}


def test_updates_that_bfloat16_parameters_cannot_take_are_found():
    run = Run(dtype="bfloat16")
    run.updates *= 0.1
    assert kinds(run.findings()) == {"underflow"}


def test_gradients_that_are_always_clipped_are_found():
    run = Run()
    run.grads /= np.sqrt((run.grads**2).sum(axis=1, keepdims=True))
    (found,) = run.findings()
    assert found.kind == "clipping" and dict(found.numbers)["norm"] == pytest.approx(1)


def test_thresholds_are_arguments():
    run = Run()
    assert kinds(run.findings(thresholds=Thresholds(ratio_high=1e-4))) == {"ratio"}


def test_every_finding_says_what_to_try():
    run = Run()
    run.bad[140:, 2:18] = 7
    run.grads[:, 5] = 0
    for finding in run.findings():
        assert finding.sentence.endswith(".") and finding.advice.endswith(".")
        assert finding.first <= finding.until
