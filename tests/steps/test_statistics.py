"""The layers of stacked arrays as entries of a measured tree."""

import jax
import numpy as np
import pytest

from treeviz.steps.measure import measure, numbers_of, source_of
from treeviz.steps.reduce import reduce_leaves
from treeviz.steps.statistics import HISTOGRAM, in_layers, layer_by_layer, openable, reported_axes, unpack, wholes

TREE = {"embed": np.ones((9, 2)), "layers": {"b": np.ones((3, 2)), "w": np.ones((3, 4, 2)), "k": np.ones(3, int)}}
SOURCE = source_of(TREE, "grads")
OPEN = in_layers(SOURCE, (None, 0, None, 1))


def test_layers_are_named_as_python_takes_them():
    w = tuple(f"['layers']['w'][:, {i}]" for i in range(4))
    b = tuple(f"['layers']['b'][{i}]" for i in range(3))
    assert OPEN.paths == ("['embed']", *b, "['layers']['k']", *w)
    assert OPEN.sizes == (18, 2, 2, 2, 3, 6, 6, 6, 6)
    assert OPEN.shapes[1] == "2" and OPEN.shapes[-1] == "3,2" and set(OPEN.stacks) == {"", "*3,2", "3,*4,2"}


def test_the_leaves_are_known_from_their_layers():
    assert [(whole.path, whole.shape, whole.size, whole.n) for whole in wholes(OPEN)] == [
        ("['embed']", (9, 2), 18, 1),
        ("['layers']['b']", (3, 2), 6, 3),
        ("['layers']['k']", (3,), 3, 1),
        ("['layers']['w']", (3, 4, 2), 24, 4),
    ]
    assert [whole.path for whole in wholes(SOURCE)] == list(SOURCE.paths)


@pytest.mark.parametrize("stacks", [("*4,2",), ("*2,2",), ("*9999,2",), ("3,2",)])
def test_layers_that_do_not_belong_together_are_an_error(stacks):
    with pytest.raises(ValueError):
        list(wholes(OPEN._replace(stacks=("", *stacks * 3, *OPEN.stacks[4:]))))


def test_stacks_are_used_layer_by_layer():
    both = in_layers(SOURCE, (None, 0, None, 0))
    order = layer_by_layer(["['embed']", "['layers']['w']", "['layers']['b']", "unknown"], both)
    wb = [f"['layers']['{name}'][{i}]" for i in range(3) for name in "wb"]
    assert order == ("['embed']", *wb)


def test_globs_tell_the_axes_of_leaves():
    assert reported_axes(SOURCE, "layers/*") == ((None, 0, 0, 0), [])
    assert reported_axes(SOURCE, {"layers": 0, "w": 1, "nowhere": 0, "embed": 2}) == (
        (None, 0, 0, 1),
        ["nowhere", "embed"],
    )


def test_of_many_layers_it_is_said_why_they_are_measured_as_one_array():
    shapes = [(n, 1) for n in (1024, 1025, 65536, 65536, 65537)]
    source = source_of([jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes], "grads")
    axes, notes = openable(source, (None, 0, 0, 0, None), (0,) * 5)
    assert axes == (0, 0, 0, None, None)  # 131,072 in all
    assert [note.partition(": ")[0] for note in notes] == ["[3]", "[4]"]
    assert notes[0] == "[3]: its layers are measured as one array: 65,536 are more than there is room for."
    ((), (note,)) = openable(source, (None,) * 5, (None, 0, None, None, None))
    assert note.endswith("1,025 are more than 1,024; stacked= with its path measures each.")


@pytest.mark.oldest_jax
def test_measure_takes_the_globs_of_stacked_arrays():
    rng = np.random.default_rng(1)
    grads, last = ({"out": rng.normal(size=3), "layers": {"w": rng.normal(size=(4, 2, 3))}} for _ in range(2))
    numbers = numbers_of(measure(grads=grads, last_grads=last, stacked="layers/*"))["grads"]
    layers, others = ([*tree["layers"]["w"], tree["out"]] for tree in (grads, last))
    np.testing.assert_allclose(numbers["norm"], [np.linalg.norm(x) for x in layers], rtol=1e-6)
    cosine = [np.sum(x * y) / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(layers, others, strict=True)]
    np.testing.assert_allclose(numbers["cosine"], cosine, rtol=1e-5)
    with pytest.raises(ValueError, match="stacked='out/w'"):
        measure(grads=grads, stacked=["out/w", "layers"])


@pytest.mark.oldest_jax
def test_each_layer_is_measured_as_an_array_of_its_own():
    rng = np.random.default_rng(0)
    leaves = [
        rng.normal(size=shape).astype(np.float32) for shape in ((3, 5), (6,), (2, 33_000), (4, 3, 2), (2, 200, 180))
    ]
    leaves[0][1] = [0, np.inf, np.nan, -np.inf, 2]
    leaves[3] *= 1e-30
    axes = (0, 0, 0, 1, 0)
    packed = jax.jit(lambda xs: reduce_leaves([*xs, None], HISTOGRAM, (*axes, None)))(leaves)
    found = unpack(np.asarray(packed), HISTOGRAM)
    layers = [layer for x, axis in zip(leaves, axes, strict=True) for layer in np.moveaxis(x, axis, 0)]
    assert np.isnan(found["norm"][-1]) and len(packed) == len(layers) + 1
    for i, layer in enumerate(layers):
        finite = layer[np.isfinite(layer)].astype(np.float64)
        truth = np.linalg.norm(finite), np.abs(finite).max(), finite.mean()
        np.testing.assert_allclose(
            [found[name][i] for name in ("norm", "max_abs", "mean")], truth, 2e-6, 1e-5 * truth[1]
        )
        counts = [found[name][i] for name in ("nonfinite", "zeros", "nan", "posinf", "neginf")]
        assert counts == [
            layer.size - finite.size,
            np.sum(layer == 0),
            np.isnan(layer).sum(),
            *(np.sum(layer == s * np.inf) for s in (1, -1)),
        ]
        assert found["histogram"][i].sum() == np.count_nonzero(finite)
