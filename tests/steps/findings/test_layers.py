"""Findings about the layers of arrays that hold all layers of a model."""

import pytest
from norm_runs import Run


def stacked_run(of: str = "layers") -> Run:
    """Twelve layers of two arrays, each of which holds all of them."""
    sizes = {"b": 128, "w": 16384}
    run = Run({f"['{of}']['{name}'][{i}]": size for name, size in sizes.items() for i in range(12)})
    stacks = tuple(f"*12,{size}" for size in sizes.values() for _ in range(12))
    shapes = tuple(str(size) for size in sizes.values() for _ in range(12))
    run.sources = [source._replace(stacks=stacks, shapes=shapes) for source in run.sources]
    return run


def test_what_is_wrong_in_a_layer_of_stacked_arrays_is_one_finding():
    run = stacked_run()
    assert run.findings() == []
    run.grads[:, [3, 15]] = 0
    (dead,) = run.findings()
    assert (dead.kind, dead.path, dead.leaves) == ("dead", "['layers']['w'][3]", (15, 3))


@pytest.mark.parametrize("of", ["layers", "experts"])
def test_layers_and_experts_are_not_counted_as_leaves(of):
    run = stacked_run(of)
    run.bad[200:] = 1
    (bad,) = (finding for finding in run.findings() if finding.kind == "nonfinite")
    assert bad.sentence == f"24 of 24 leaves and {of} of grads were NaN or infinite at step 200."
    run.sources[0] = run.sources[0]._replace(
        paths=tuple(path.replace(of, "layers", int(i < 3)) for i, path in enumerate(run.paths))
    )
    (bad,) = (finding for finding in run.findings() if finding.kind == "nonfinite")
    assert ("leaves, layers and experts of" in bad.sentence) == (of == "experts")


def test_in_each_model_of_an_ensemble_what_a_dead_layer_cuts_off_is_one_finding_with_it():
    sizes = {"['l1']['b']": 16, "['l1']['w']": 128, "['l2']['b']": 16, "['l2']['w']": 256, "['l3']['b']": 1}
    run = Run({f"{path}[{i}]": size for path, size in sizes.items() for i in range(5)})
    stacks = tuple(f"*5,{size}" for size in sizes.values() for _ in range(5))
    shapes = tuple(str(size) for size in sizes.values() for _ in range(5))
    run.sources = [source._replace(stacks=stacks, shapes=shapes) for source in run.sources]
    run.grads[:, [2, 7, 12, 17]] = 0
    for forward in (None, ["['l1']['w']", "['l1']['b']", "['l2']['w']", "['l2']['b']", "['l3']['b']"]):
        (dead,) = run.findings(forward=forward)
        assert (dead.kind, dead.path, dead.leaves) == ("dead", "['l2']['w'][2]", (17, 12, 7, 2))
