"""What users of Equinox see."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agreement import outline, row_at, text_of, walk_and_compare

import treeviz

eqx = pytest.importorskip("equinox", reason="needs Equinox")

KEY = jax.random.key(0)


def mlp():
    return eqx.nn.MLP(2, 3, 4, 1, key=KEY)


class Affine(eqx.Module):
    weight: jax.Array
    name: str = eqx.field(static=True)
    shape: tuple = eqx.field(static=True, default=(2, 3))

    def apply(self, x):
        return self.weight @ x


def test_a_module_without_fields_shows_no_static_data():
    table = walk_and_compare([eqx.nn.Identity(), eqx.nn.Lambda(jax.nn.relu)])
    assert [row.facts.static for row in table if row.kind == "module"] == [(), ()]


def test_an_array_in_a_static_field_gets_a_badge_with_its_bytes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Equinox warns as well, where the module is made
        affine = Affine(jnp.ones((2, 3)), "a", (np.arange(3),))  # type: ignore[arg-type]
    (note,) = walk_and_compare(affine)[0].notes
    assert (note.kind, note.details) == ("hidden", ((".shape[0]", "int64[3]"),))
    assert note.text.startswith("1 hidden array (24 B) in static data")


def test_a_module_shows_its_layers_its_static_fields_with_values_and_its_functions():
    table = walk_and_compare(mlp())
    assert outline(table) == [
        "t module MLP",
        "  .layers tuple tuple",
        "    [0] module Linear",
        "      .weight array jax.Array",
        "      .bias array jax.Array",
        "    [1] module Linear",
        "      .weight array jax.Array",
        "      .bias array jax.Array",
        "  .activation function function",
        "  .final_activation function function",
    ]
    linear = row_at(table, ".layers[0]")
    assert linear.facts.static == (("in_features", "2"), ("out_features", "4"), ("use_bias", "True"))
    assert row_at(table, ".activation").facts.text.startswith("relu ")
    assert table.headline[:2] == ("6 leaves", "27 elements")


def test_static_fields_of_a_users_own_module_are_named():
    row = walk_and_compare(Affine(jnp.ones((2, 3)), "first"))[0]
    assert row.facts.static == (("name", "'first'"), ("shape", "(2, 3)"))


def test_a_field_that_is_not_set_yet_is_shown_as_not_set():
    seen = []

    class Half(eqx.Module):
        done: int = eqx.field(static=True)
        missing: int = eqx.field(static=True)

        def __init__(self):
            self.done = 1
            seen.append(treeviz.walk(self))
            self.missing = 2

    Half()
    assert dict(seen[0][0].facts.static) == {"done": "1", "missing": "(not set)"}


def test_state_is_named_by_the_layers_it_belongs_to():
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="batch")
    table = walk_and_compare(state)
    assert outline(table) == [
        "t node State",
        "  BatchNorm.batch_counter array jax.Array",
        "  BatchNorm.batch_state_index tuple tuple",
        "    [0] array jax.Array",
        "    [1] array jax.Array",
    ]
    assert table[0].facts.static == ()
    assert table.find("batch_counter")[0].shape == ()

    table = walk_and_compare(model)
    index = row_at(table, ".batch_counter")
    assert (index.kind, index.facts.text, list(index.children)) == (
        "static",
        "of the state 'BatchNorm.batch_counter'",
        [],
    )
    assert row_at(table, ".axis_name").kind == "string"
    assert row_at(table, ".inference").kind == "scalar"


def test_state_that_has_no_name_yet_shows_its_initial_value_and_no_address():
    table = walk_and_compare(eqx.nn.BatchNorm(3, axis_name="batch", mode="batch"))
    index = row_at(table, ".batch_counter")
    assert index.facts.text == "not named yet: see eqx.nn.make_with_state"
    assert [row.label for row in index.children] == [".init"]


def test_an_old_state_is_an_error_in_its_own_row():
    index = eqx.nn.StateIndex(jnp.array(0))
    old = eqx.nn.State(index)
    new = old.set(index, jnp.array(1))
    table = treeviz.walk({"new": new, "old": old, "other": 1.0})
    assert [row.kind for row in table] == ["dict", "node", "array", "error", "scalar"]
    assert "Attempted to use old state" in table[3].notes[0].text


def tied(get):
    embedding = eqx.nn.Embedding(4, 3, key=KEY)
    linear = eqx.nn.Linear(3, 4, use_bias=False, key=KEY)
    return eqx.nn.Shared((embedding, linear), where=lambda pair: pair[1].weight, get=get)


def test_a_tied_weight_says_where_it_is_taken_from():
    row = row_at(walk_and_compare(tied(lambda pair: pair[0].weight)), ".pytree[1].weight")
    assert (row.kind, row.type, row.facts.text) == ("opaque", "SharedNode", "stands for pytree[0].weight")
    assert row.notes == ()


@pytest.mark.parametrize(
    "get",
    [
        lambda pair: jnp.asarray(pair[0].weight) * 1.0,
        lambda pair: jnp.transpose(pair[0].weight).T + 0,
        lambda pair: next(layer.weight for layer in pair),
    ],
)
def test_a_weight_that_is_tied_by_a_computation_names_the_function_and_computes_nothing(get):
    model = tied(get)
    before = len(jax.live_arrays())
    row = row_at(walk_and_compare(model), ".pytree[1].weight")
    assert row.facts.text.startswith("stands for what <lambda> ")
    assert "test_equinox.py:" in row.facts.text
    assert len(jax.live_arrays()) <= before


def test_several_tied_nodes_each_say_their_source():
    layers = [eqx.nn.Linear(2, 2, key=KEY) for _ in range(2)]
    model = eqx.nn.Shared(layers, where=lambda m: (m[1].weight, m[1].bias), get=lambda m: (m[0].weight, m[0].bias))
    table = walk_and_compare(model)
    texts = [row.facts.text for row in table if row.type == "SharedNode"]
    assert texts == ["stands for pytree[0].weight", "stands for pytree[0].bias"]


def test_bound_methods_and_wrapped_functions_are_functions_with_what_they_captured():
    model = Affine(jnp.ones((2, 3)), "first")
    table = walk_and_compare(
        {"bound": model.apply, "jit": eqx.filter_jit(model.apply), "vmap": eqx.filter_vmap(jnp.sin)}
    )
    bound = row_at(table, "['bound']")
    assert (bound.kind, bound.type) == ("closure", "BoundMethod")
    assert bound.facts.text.startswith("Affine.apply  integrations/test_equinox.py:")
    assert row_at(table, "['bound'].__self__.weight").shape == (2, 3)
    assert {row_at(table, f"['{name}']").kind for name in ("jit", "vmap")} == {"closure"}
    assert walk_and_compare(eqx.Partial(jnp.add, jnp.ones(2)))[0].kind == "closure"


def test_a_plain_bound_method_names_the_module_that_it_carries():
    (row,) = walk_and_compare(mlp().__call__).leaves
    assert row.kind == "function"
    assert row.facts.text.startswith("MLP.__call__ ")
    assert row.facts.static[0] == ("self", "<equinox.nn._mlp.MLP>")


def test_a_module_reads_well_as_text():
    text = text_of(Affine(jnp.ones((2, 3)), "first"))
    assert text.splitlines()[-2:] == [
        "t           Affine        name='first', shape=(2, 3)",
        "└─ .weight  float32[2,3]",
    ]


def test_the_compilations_of_a_jitted_method_are_watched_and_foretold():
    class Agent(eqx.Module):
        rate: jax.Array

        @eqx.filter_jit
        def update(self, state, x):
            return {"time": state["time"] + self.rate * x.sum()}

    agent, state = Agent(jnp.ones(())), {"time": 0.0}
    (found,) = treeviz.forecast(agent.update, state, jnp.ones(2))
    assert (found.path, found.left) == ("state['time']", "float 0.0")
    update = treeviz.watch_compiles(agent.update)
    update(state, jnp.ones(2))
    update(state, jnp.ones(3))
    assert [str(each) for compiled in update.compiles for each in compiled.differences] == ["x: shape: (2,) → (3,)"]


def test_an_item_of_an_enumeration_shows_its_name():
    class Results(eqx.Enumeration):
        successful = ""
        diverged = "the solver diverged"

    batch = jax.tree.map(lambda x: np.array([0, 1], x.dtype), Results.successful)
    on_device = jax.tree.map(jnp.asarray, Results.diverged)
    table = walk_and_compare([Results.successful, on_device, batch, jax.eval_shape(lambda: Results.diverged)])
    assert outline(table)[1] == "  [0] numpy Results"
    assert [row.facts.text for row in table.leaves] == ["successful", "diverged", "", ""]
