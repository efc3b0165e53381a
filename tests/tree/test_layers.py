"""An array of all layers as rows."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_samples import check_table

import treeviz
from treeviz.tree.layers import MOST_LAYERS
from treeviz.views.exports import to_json


@pytest.fixture(scope="module")
def params():
    w = jnp.arange(1.0, 25).reshape(4, 2, 3).at[2, 0, 1].set(jnp.nan)
    layers = {"attn": {"w": w}, "b": np.arange(8.0).reshape(4, 2), "n": 4}
    return {"embed": jnp.ones((5, 2)), "layers": layers, "tied": w}


@pytest.fixture(scope="module")
def view(params):
    return treeviz.render(params, stats=True, stacked=["layers/b", "layers/attn"], name="params")


def test_a_stack_opens_into_rows_that_are_no_leaves(params, view):
    table, plain = view.table, treeviz.render(params, stats=True, name="params").table
    check_table(table)
    assert [row.keystr for row in table.leaves] == [row.keystr for row in plain.leaves]
    shown = [0 if row < 0 else int(np.flatnonzero(~table.is_layer)[row]) for row in range(len(plain))]
    for name in ("leaves", "elements", "bytes", "nan", "min", "max", "mean", "std", "zeros"):
        np.testing.assert_allclose(table.rolled(table.columns[name])[shown], plain.rolled(plain.columns[name]))
    assert table.headline == plain.headline and "NaN in 2 leaves" in table.headline
    assert {row.number: row.notes for row in plain if row.notes}.keys() == {
        int(np.searchsorted(shown, row.number)) for row in table if row.notes and row.kind != "layer"
    }
    (tied,) = (note for note in table.find("tied")[0].notes if note.kind == "shared")
    assert table[tied.row].path == "layers/attn/w"


def test_each_layer_has_the_statistics_of_its_numbers(params, view):
    for path in ("layers/attn/w", "layers/b"):
        (stack,) = view.find(f"/{path}")
        array = np.asarray(params["layers"]["b"] if path.endswith("b") else params["tied"], np.float64)
        assert [row.label for row in stack.children] == ["[0]", "[1]", "[2]", "[3]"]
        for row, layer in zip(stack.children, array, strict=True):
            assert row.shape == layer.shape and row.kind == "layer" and not row.is_leaf
            truth = [np.nanmin(layer), np.nanmax(layer), np.nanmean(layer), np.isnan(layer).sum()]
            np.testing.assert_allclose([row[name] for name in ("min", "max", "mean", "nan")], truth)


def test_a_layer_is_found_by_its_index(view):
    for query in ("layers/attn/w[2]", "attn/w/2", "['attn']['w'][2]", "params['layers']['attn']['w'][2]"):
        (row,) = view.find(query)
        assert row.expression == "params['layers']['attn']['w'][2]"
    assert [row.path for row in view.find("nan kind:layer")] == ["layers/attn/w/2"]
    assert not {row.kind for row in view.find("is:node")} & {"layer", "array"}
    assert "2" not in [row.path.rpartition("/")[2] for row in view.find("kind:leaf")]


def test_layers_along_another_axis_are_named_as_python_takes_them(params):
    view = treeviz.render(params, stats=True, stacked={"attn/w": 2}, name="params")
    (row,) = view.find("attn/w[1]")
    assert row.expression == "params['layers']['attn']['w'][:, :, 1]" and row.shape == (4, 2)
    np.testing.assert_allclose(row["max"], np.nanmax(params["tied"][:, :, 1]))


def test_the_other_trees_are_measured_by_layer_too(params):
    grads = jax.tree.map(lambda x: 2 * x, params)
    view = treeviz.render(params, stats=True, stacked="layers", grads=grads)
    (row,) = view.find("layers/b[3]")
    np.testing.assert_allclose(
        [row["rms"], row["grads.rms"]], np.sqrt(np.mean(np.arange(6.0, 8) ** 2)) * np.array([1, 2])
    )


def test_a_printed_path_names_its_stack_and_no_other():
    stacks = {"experts": {"w": np.ones((2, 3))}, "router": np.ones((2, 3)), "s": {3: np.ones((2, 3)), "[ex]": 0}}
    for stacked, path in (
        ("['experts']*", "['experts']['w']"),
        ("['experts']", "['experts']['w']"),
        ("tree['experts']['w']", "['experts']['w']"),
        ("experts.w", "['experts']['w']"),
        ("['s'][3]", "['s'][3]"),
    ):
        layers = [row.keystr for row in treeviz.render(stacks, stacked=stacked).table if row.kind == "layer"]
        assert layers == [f"{path}[0]", f"{path}[1]"]


def test_a_glob_that_names_no_stack_is_an_error(params):
    for stacked in ("layer/*", {"embed": 2}, ["layers/b", "layers/n"]):
        with pytest.raises(ValueError, match="stacked='"):
            treeviz.render(params, stacked=stacked)
    with pytest.raises(TypeError, match="pass beside"):
        treeviz.render(params, stacked=params)


def test_an_array_of_too_many_layers_stays_closed_and_says_so():
    view = treeviz.render({"words": np.ones((MOST_LAYERS + 1, 2))}, stacked="words", stats=True)
    assert len(view.table) == 2 and "its layers are not shown: 65,537" in view.text()
    assert view.find("words")[0]["max"] == 1


def test_text_and_json_tell_of_layers_apart_from_leaves(view):
    assert "[2]  float32[2,3] layer" in view.text(width=100, fold=False)
    experts = treeviz.render({"experts": np.ones((3, 2))}, stacked="experts").text()
    assert "layer" not in experts and "[0…2] ×3" in experts
    assert "└─ … 3 more\n" in view.text(max_rows=10, fold=False)  # with no count of leaves
    rows = json.loads(to_json(view))["rows"]
    assert [row["leaf"] for row in rows if row["kind"] == "layer"] == [False] * 8
