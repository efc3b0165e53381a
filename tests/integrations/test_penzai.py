"""What users of penzai see."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import outline, row_at, text_of, walk_and_compare

import treeviz as tv

pz = pytest.importorskip("penzai.pz", reason="needs penzai")


def test_a_struct_without_fields_shows_no_static_data():
    @pz.pytree_dataclass
    class Empty(pz.Struct):
        pass

    table = walk_and_compare([Empty(), pz.nn.Identity()])
    assert [(row.kind, row.facts.static) for row in table if row.depth] == [("node", ()), ("module", ())]


def named():
    return pz.nx.wrap(jnp.ones((2, 3, 4))).tag("batch", "seq", "features")


def test_a_named_array_is_one_row_with_its_axes():
    tree = {"a": named(), "b": named().untag("seq"), "c": pz.nx.wrap(jnp.ones(3))}
    table = walk_and_compare(tree)
    assert outline(table) == [
        "t dict dict",
        "  a array NamedArray",
        "  b array NamedArrayView",
        "  c array NamedArray",
    ]
    assert [row.facts.axes for row in table.leaves] == [("batch", "seq", "features"), ("batch", "", "features"), ()]
    assert row_at(table, "['a'].data_array").expression == "t['a'].data_array"
    view = tv.render(tree)
    assert "├─ a  NamedArray float32[batch 2, seq 3, features 4] " in view.text()
    assert "├─ b  NamedArrayView float32[batch 2, 3, features 4] " in view.text()
    assert [row.path for row in view.find("axis:seq")] == [row.path for row in view.find("seq")] == ["a"]
    assert json.loads(view.json())["rows"][2]["axes"] == ["batch", "", "features"]
    assert "axes=(batch, seq, features)" in text_of(named()), "a node has no shape"


def test_an_unbound_parameter_is_a_leaf_with_its_label_and_the_shape_of_its_value():
    tree = [
        pz.Parameter(value=named(), label="w"),
        pz.StateVariable(value=jnp.ones(2), label="count"),
        pz.StateVariable(value={"a": jnp.ones(2)}, label="cache"),
    ]
    table = walk_and_compare(tree)
    facts = [(row.kind, row.type, row.shape, row.dtype, row.facts.bytes, row.facts.text) for row in table.leaves]
    assert facts == [
        ("variable", "Parameter", (2, 3, 4), "float32", 96, "label='w'"),
        ("variable", "StateVariable", (2,), "float32", 8, "label='count'"),
        ("variable", "StateVariable", None, "", 0, "label='cache' value={'a': float32[2]}"),
    ]
    assert table.notes == {}
    assert table.headline[:4] == ("3 leaves", "Parameter 24", "StateVariable 2", "104 B")


def test_a_parameter_has_the_statistics_of_its_array_and_a_variable_without_one_says_why_it_has_none():
    values = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    tree = [
        pz.Parameter(value=pz.nx.wrap(jnp.asarray(values)).tag("a", "b"), label="w"),
        pz.StateVariable(value=jnp.array([1.0, jnp.nan]), label="count"),
        pz.StateVariable(value={"a": jnp.ones(2)}, label="cache"),
        pz.StateVariable(value=jax.random.key(0), label="key"),
    ]
    view = tv.render(tree, stats=True)
    table = view.table
    assert [table[1][name] for name in ("min", "max", "mean", "std", "zeros")] == [
        *(pytest.approx(float(each), rel=1e-6) for each in (0, 5, values.mean(), values.std())),
        1,
    ]
    assert [row.keystr for row in view.find("nan")] == ["[1]"]
    assert [row.facts.elements for row in table.leaves] == [6, 2, 0, 0]
    assert table[0]["nan"] == 1 and table.headline[-2:] == ("NaN in 1 leaf", "no Inf")
    assert {row: [note.text for note in notes] for row, notes in table.notes.items() if row > 2} == {
        3: ["a variable whose value is no array: it is not read"],
        4: ["PRNG key (no statistics)"],
    }
    (found,) = [each for each in tv.check(tree, values=True) if each.code == "T140"]
    assert (found.path, found.sentence, found.fix) == ("[1]", "1 NaN among 2 values", "")


def test_the_same_parameter_in_two_places_is_shared():
    parameter = pz.Parameter(value=named(), label="w")
    table = walk_and_compare([parameter, parameter])
    assert table.headline[0] == "2 leaves (1 unique)"


def test_a_variable_that_labels_itself_shows_no_address():
    (row,) = walk_and_compare([pz.StateVariable(value=jnp.ones(2))]).leaves
    assert row.facts.text.startswith("label=<penzai.")


def test_a_bound_value_shows_its_label():
    value = pz.ParameterValue(value=jnp.ones(3), label="w")
    (row,) = walk_and_compare([value]).leaves
    assert (row.kind, row.type, row.facts.text, row.facts.static) == ("array", "ParameterValue", "label='w'", ())
    (row,) = walk_and_compare([pz.ParameterValue(value=named(), label="w")]).leaves
    assert (row.type, row.facts.text, row.facts.axes) == ("ParameterValue", "label='w'", ("batch", "seq", "features"))
    assert (row.label, row.expression) == ("[0]", "t[0].value.data_array")


def test_layers_are_modules_whose_static_fields_are_named():
    linear = pz.nn.Linear.from_config("mlp", jax.random.key(0), {"a": 2}, {"b": 3})
    table = walk_and_compare(pz.nn.Sequential([linear, pz.nn.Elementwise(jax.nn.relu)]))
    assert outline(table) == [
        "t module Sequential",
        "  .sublayers list list",
        "    [0] module Linear",
        "      .weights variable Parameter",
        "    [1] module Elementwise",
    ]
    assert row_at(table, ".sublayers[0]").facts.static == (("in_axis_names", "('a',)"), ("out_axis_names", "('b',)"))
    assert row_at(table, ".sublayers[1]").facts.static == (("fn", "relu"),)


def test_an_unbound_model_shows_slots_and_parameters():
    linear = pz.nn.Linear.from_config("mlp", jax.random.key(0), {"a": 2}, {"b": 3})
    table = walk_and_compare(pz.unbind_params(linear))
    slot = row_at(table, "[0].weights")
    assert (slot.type, slot.facts.static) == ("ParameterSlot", (("label", "'mlp.weights'"),))
    assert [row.type for row in table.leaves] == ["Parameter"]


def test_the_static_field_that_differs_is_named():
    pair = [{"act": pz.nn.Softmax(axis)} for axis in "ab"]
    for found in (tv.diff(*pair).differences, tv.explain_map(*pair)):
        assert [str(each) for each in found] == ["['act']: static: axes = 'a' → 'b'"]
    assert "axes = 'a'" in str(tv.stackable(pair))
