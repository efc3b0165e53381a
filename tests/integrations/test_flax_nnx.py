"""What users of Flax NNX see."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from agreement import outline, row_at, text_of, walk_and_compare

import treeviz

nnx = pytest.importorskip("flax.nnx", reason="needs Flax NNX")


class Block(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(2, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.tied = nnx.Linear(2, 3, use_bias=False, rngs=rngs)
        self.tied.kernel = self.first.kernel
        self.act = jax.nn.relu
        self.name = "block"


def block():
    return Block(nnx.Rngs(0))


def test_a_module_shows_its_variables_with_their_kind_each_in_one_row():
    table = walk_and_compare(block())
    assert outline(table) == [
        "t module Block",
        "  .drop module Dropout",
        "    .rngs module RngStream",
        "      .count array RngCount",
        "      .key key RngKey",
        "  .first module Linear",
        "    .bias array Param",
        "    .kernel array Param",
        "  .norm module BatchNorm",
        "    .bias array Param",
        "    .mean array BatchStat",
        "    .scale array Param",
        "    .var array BatchStat",
        "  .tied module Linear",
        "    .bias none NoneType",
        "    .kernel array Param",
    ]


def test_static_attributes_are_named_with_their_values_and_what_is_private_is_hidden():
    table = walk_and_compare(block())
    assert dict(table[0].facts.static) == {"act": "relu", "name": "'block'"}
    static = row_at(table, ".first").facts.static
    assert static[:3] == (("in_features", "2"), ("out_features", "3"), ("use_bias", "True"))
    assert ("dtype", "None") in static
    assert "_pytree__" not in treeviz.render(block()).text()


def test_functions_that_are_defaults_of_the_constructor_are_left_out_and_others_are_shown():
    rngs, dot = nnx.Rngs(0), partial(jax.lax.dot_general, precision="highest")
    plain, own = (
        dict(walk_and_compare(nnx.Linear(2, 3, rngs=rngs, **how))[0].facts.static) for how in ({}, {"dot_general": dot})
    )
    assert not {"dot_general", "promote_dtype"} & set(plain)
    assert own["dot_general"] == "partial(dot_general, …)" and set(own) == {*plain, "dot_general"}


def test_the_tags_of_random_streams_are_shown():
    assert row_at(walk_and_compare(block()), ".drop.rngs.key.value").facts.text == "'default'"


def test_a_tied_variable_counts_twice_for_jax_and_once_for_nnx():
    model = block()
    table = walk_and_compare(model)
    n_jax, n_nnx = len(jax.tree.leaves(model)), len(jax.tree.leaves(nnx.split(model)[1]))
    assert table.headline[0] == f"{n_jax} leaves ({n_nnx} unique)"
    again, first = row_at(table, ".tied.kernel.value"), row_at(table, ".first.kernel.value")
    assert [(note.kind, note.row) for note in again.notes] == [("shared", first.number)]
    assert "shared with .first.kernel" in text_of(model)


def test_expressions_lead_to_the_array_itself_and_to_modules():
    model = block()
    table = walk_and_compare(model)
    kernel = row_at(table, ".first.kernel.value")
    assert kernel.expression == "t.first.kernel.get_raw_value()"
    assert eval(kernel.expression, {"t": model}) is model.first.kernel.get_raw_value()
    assert eval(row_at(table, ".first").expression, {"t": model}) is model.first


def test_sharding_metadata_is_in_the_text_and_other_metadata_is_named():
    parameter = nnx.Param(jnp.ones((2, 2)), out_sharding=(None, "tp"), eager_sharding=False, group="slow")
    (row,) = walk_and_compare([parameter]).leaves
    assert row.facts.text == "sharding=(None, 'tp')"
    assert row.facts.static == (("group", "'slow'"),)
    assert text_of([parameter]).splitlines()[-1] == "└─ [0]  Param float32[2,2]  sharding=(None, 'tp')  group='slow'"


@pytest.mark.parametrize("kind", ["Param", "BatchStat", "Cache", "Intermediate", "Variable"])
def test_every_kind_of_variable_is_named(kind):
    assert [row.type for row in walk_and_compare([getattr(nnx, kind)(jnp.ones(2))]).leaves] == [kind]


def test_a_kind_of_ones_own_is_named_and_inherits_the_look():
    class LoRA(nnx.Param):
        pass

    (row,) = walk_and_compare({"a": LoRA(jnp.ones(2))}).leaves
    assert (row.kind, row.type, row.keystr) == ("array", "LoRA", "['a'].value")


def test_a_variable_of_a_tree_or_of_nothing_is_a_node():
    table = walk_and_compare([nnx.Variable({"a": jnp.ones(2)}), nnx.Param(None), nnx.Param(0.5)])
    assert outline(table)[1:] == [
        "  [0] node Variable",
        "    .value dict dict",
        "      a array jax.Array",
        "  [1] node Param",
        "    .value none NoneType",
        "  [2] scalar Param",
    ]


def test_a_state_is_a_dict_of_variables_whose_paths_can_be_pasted():
    state = nnx.state(block(), nnx.Param)
    table = walk_and_compare(state)
    assert (table[0].kind, table[0].type, table[0].facts.static) == ("dict", "State", ())
    assert row_at(table, "['first']['kernel'].value").expression == "t['first']['kernel'].get_raw_value()"
    # `t['first']` is a State around the dict that stands in the tree.
    assert row_at(table, "['first']").expression == "treeviz.child(t, 0)"


def test_a_graph_definition_is_static_and_says_how_large_it_is():
    graph, state = nnx.split(block())
    (row,) = walk_and_compare(graph)
    assert row.kind == "static" and row.facts.leaves == 0
    assert row.facts.text.endswith(f"{len(jax.tree.leaves(state))} leaves")


def test_an_optimizer_shows_its_step_and_its_state_in_rows_of_variables():
    optax = pytest.importorskip("optax", reason="needs optax")
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    table = walk_and_compare(nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param))
    assert (table[0].kind, table[0].type) == ("module", "Optimizer")
    assert {"tx", "wrt"} <= dict(table[0].facts.static).keys()
    assert {row.type for row in table.leaves} == {"OptState", "OptArray", "OptVariable"}
    assert row_at(table, ".opt_state[0].mu['kernel'].value").shape == (2, 3)


def test_lists_and_dicts_of_modules_can_be_indexed():
    tree = nnx.List([nnx.Param(jnp.ones(1)), nnx.Dict(a=nnx.Param(jnp.ones(2)))])
    table = walk_and_compare(tree)
    assert [row.kind for row in table] == ["list", "array", "dict", "array"]
    assert [row.expression for row in table.leaves] == ["t[0].get_raw_value()", "t[1].a.get_raw_value()"]


def test_the_functions_in_a_list_of_modules_are_named():
    layers = row_at(walk_and_compare(nnx.Sequential(nnx.Linear(1, 2, rngs=nnx.Rngs(0)), nnx.relu)), ".layers")
    assert (layers.kind, layers.facts.static) == ("list", (("[1]", "relu"),))


def test_a_flat_state_is_named_by_its_paths():
    table = walk_and_compare(nnx.to_flat_state(nnx.state(block(), nnx.BatchStat)))
    assert [row.label for row in table] == ["t", "norm/mean", "norm/var"]
    assert [row.path for row in table.find("norm/var")] == ["norm/var"]


def test_a_module_that_contains_itself_is_a_cycle_and_no_crash():
    class Ring(nnx.Module):
        def __init__(self):
            self.weight = nnx.Param(jnp.ones(2))
            self.ring = self

    table = treeviz.walk(Ring(), name="t")
    assert outline(table) == ["t module Ring", "  .ring cycle Ring", "  .weight array Param"]
    assert "cycle to t" in text_of(Ring())


def test_inside_jit_and_grad_variables_are_shown_without_a_value_or_a_complaint():
    seen = []

    @nnx.jit
    def step(model, x):
        seen.append(treeviz.render(model).text())

        def loss(x):
            seen.append(treeviz.render(model).text())  # another trace than that of the variables
            return model(x).sum()

        return jax.grad(loss)(x)

    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    step(model, jnp.ones(2))
    assert len(seen) == 2
    assert all("Param float32[2,3] tracer" in text for text in seen)
    jax.jit(lambda x: treeviz.walk(model) and x)(1.0)


def test_a_variable_in_a_reference_is_shown_as_one():
    (row,) = walk_and_compare([nnx.Param(jnp.ones(2), ref=True)]).leaves
    assert (row.kind, row.type, row.shape) == ("ref", "Param", (2,))


def test_a_variable_of_the_new_kind_is_a_leaf_with_its_shape():
    (row,) = walk_and_compare(nnx.Param(jnp.ones(2), hijax=True))
    assert (row.kind, row.type, row.shape, row.dtype, row.facts.bytes, row.notes) == (
        "variable",
        "Param",
        (2,),
        "float32",
        8,
        (),
    )


def test_an_object_that_is_no_pytree_says_so():
    class Plain(nnx.Object):
        def __init__(self):
            self.weight = nnx.Param(jnp.ones(2))

    (row,) = walk_and_compare(Plain())
    assert (row.kind, row.facts.text) == ("opaque", "an NNX object that is not a pytree: nnx.split gives its arrays")
    assert row.notes == ()


def test_specs_in_the_form_of_a_module_reach_the_arrays_in_its_variables():
    model = block()
    specs = jax.tree.map(lambda x: -1 if x.ndim else None, model)
    overlay = treeviz.overlay((specs,), (model,))
    assert overlay.differences == []
    assert [row["in_axes"] for row in overlay.find("kernel")] == ["-1", "-1"]
    wrong = treeviz.overlay((specs.norm,), (model,)).differences
    assert [(each.path, each.kind, each.left, each.right) for each in wrong] == [("[0]", "type", "BatchNorm", "Block")]
    boxes = {"w": nnx.Param(jnp.ones(2)), "b": nnx.Param(jnp.ones(2))}
    wrong = treeviz.overlay(({"w": nnx.Param(0), "c": nnx.BatchStat(0)},), (boxes,)).differences
    assert [(each.path, each.kind) for each in wrong] == [("[0]['c']", "missing"), ("[0]['b']", "extra")]
    wrong = treeviz.overlay(({"w": nnx.Param(0), "b": nnx.BatchStat(0)},), (boxes,)).differences
    assert [(each.path, each.kind, each.left) for each in wrong] == [("[0]['b']", "type", "BatchStat")]
