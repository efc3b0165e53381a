"""What users of Flax Linen and of `flax.struct` see."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from agreement import outline, row_at, text_of, walk_and_compare

import treeviz

flax = pytest.importorskip("flax", reason="needs Flax")
nn = pytest.importorskip("flax.linen", reason="needs Flax Linen")

KEY = jax.random.key(0)
INIT = nn.initializers.lecun_normal()


def test_an_array_in_a_static_field_of_a_struct_gets_a_badge_with_its_bytes():
    @flax.struct.dataclass
    class State:
        w: jax.Array
        table: object = flax.struct.field(pytree_node=False)

    table = walk_and_compare([State(jnp.ones(2), jnp.ones((3, 4))), State(jnp.ones(2), "none")])
    noted = [note for row in table for note in row.notes if note.kind == "hidden"]
    assert [(note.text[:21], note.details) for note in noted] == [
        ("1 hidden array (48 B)", ((".table", "float32[3,4]"),))
    ]


def dense(box=None):
    return nn.Dense(3, kernel_init=INIT if box is None else box(INIT, (None, "tp")))


def variables(box=None):
    return dense(box).init(KEY, jnp.ones((1, 4)))


@pytest.mark.parametrize(
    "box, type_", [("with_partitioning", "Partitioned"), ("with_logical_partitioning", "LogicallyPartitioned")]
)
def test_a_partitioned_array_is_one_row_with_the_names_of_its_axes(box, type_):
    tree = variables(getattr(nn, box))
    table = walk_and_compare(tree)
    assert outline(table) == [
        "t dict dict",
        "  params dict dict",
        "    bias array jax.Array",
        f"    kernel array {type_}",
    ]
    kernel = row_at(table, "['params']['kernel'].value")
    assert (kernel.shape, kernel.dtype, kernel.facts.text, kernel.facts.static) == (
        (4, 3),
        "float32",
        "names=(None, 'tp')",
        (),
    )
    assert kernel.expression == "t['params']['kernel'].value"
    assert kernel.path == "params/kernel"
    assert text_of(tree).splitlines()[-1] == f"   └─ kernel  {type_} float32[4,3]  names=(None, 'tp')"


def test_a_partitioned_array_keeps_its_mesh_and_its_rules():
    mesh = jax.make_mesh((1,), ("tp",), devices=jax.devices()[:1])
    partitioned = nn.Partitioned(jnp.ones(3), names=("tp",), mesh=mesh)
    ((name, value),) = walk_and_compare([partitioned])[1].facts.static
    assert name == "mesh" and "tp" in value
    logical = nn.LogicallyPartitioned(jnp.ones(3), names=("mlp",), rules=(("mlp", "tp"),))
    assert walk_and_compare([logical])[1].facts.static == (("rules", "(('mlp', 'tp'),)"),)


def test_a_box_of_ones_own_is_one_row_too():
    class Unit(flax.struct.PyTreeNode, nn.meta.AxisMetadata):
        value: jax.Array
        unit: str = flax.struct.field(pytree_node=False)

        def unbox(self):
            return self.value

        def replace_boxed(self, val):
            return self.replace(value=val)

        def add_axis(self, index, params):
            return self

        def remove_axis(self, index, params):
            return self

    (row,) = walk_and_compare({"x": Unit(jnp.ones(3), "m")}).leaves
    assert (row.type, row.shape, row.facts.text, row.facts.static) == ("Unit", (3,), "", (("unit", "'m'"),))


def test_a_box_shows_an_abstract_array_and_an_empty_box_stays_a_node():
    (_, row) = walk_and_compare(jax.eval_shape(lambda: variables(nn.with_partitioning)["params"])).leaves
    assert (row.kind, row.type, row.facts.text) == ("shape only", "Partitioned", "names=(None, 'tp')")
    table = walk_and_compare(nn.Partitioned(None, names=()))
    assert outline(table) == ["t node Partitioned", "  .value none NoneType"]


def test_the_same_box_in_two_places_is_shared():
    box = nn.Partitioned(jnp.ones(3), names=("tp",))
    table = walk_and_compare([box, box])
    assert "2 leaves (1 unique)" in table.headline
    assert [note.kind for note in table[2].notes] == ["shared"]


def test_a_frozen_dict_is_a_dict_whose_paths_can_be_pasted():
    tree = flax.core.freeze({"b": {"w": jnp.ones(2)}, "a": jnp.ones(3)})
    table = walk_and_compare(tree)
    assert outline(table) == ["t dict FrozenDict", "  a array jax.Array", "  b dict dict", "    w array jax.Array"]
    assert row_at(table, "['b']['w']").expression == "t['b']['w']"
    # `t['b']` is a FrozenDict around the dict that stands in the tree.
    assert row_at(table, "['b']").expression == "treeviz.child(t, 1)"
    assert table[0].facts.static == ()


def test_a_linen_module_is_a_leaf_that_is_explained_and_not_accused():
    module = dense()
    bound = module.bind(variables())
    for leaf, text in [
        (module, "a Linen module: its arrays are what init() returns"),
        (bound, "a Linen module, bound to variables"),
    ]:
        (row,) = walk_and_compare([leaf]).leaves
        assert (row.kind, row.type, row.facts.text) == ("opaque", "Dense", text)
        assert row.notes == ()
        static = dict(row.facts.static)
        assert static["features"] == "3" and static["use_bias"] == "True" and "parent" not in static


def test_a_linen_module_with_an_array_in_a_field_hides_it():
    class Lookup(nn.Module):
        table: jax.Array

    (row,) = walk_and_compare([Lookup(jnp.ones(3))]).leaves
    (note,) = row.notes
    assert note.kind == "hidden" and (".table", "float32[3]") in note.details


def test_looking_at_a_linen_module_does_not_set_it_up():
    class Lazy(nn.Module):
        def setup(self):
            raise AssertionError("setup ran")

    treeviz.render(Lazy().bind({}))


def test_a_train_state_names_its_static_fields():
    optax = pytest.importorskip("optax", reason="needs optax")
    train_state = pytest.importorskip("flax.training.train_state", reason="needs Flax")
    module = dense()
    state = train_state.TrainState.create(apply_fn=module.apply, params=variables()["params"], tx=optax.sgd(0.1))
    table = walk_and_compare(state)
    static = dict(table[0].facts.static)
    assert list(static) == ["apply_fn", "tx"]
    assert static["apply_fn"] == "Dense.apply"
    assert static["tx"].startswith("GradientTransformation")
    assert row_at(table, ".step").kind == "scalar"


def test_a_struct_dataclass_tells_children_from_static_fields():
    @flax.struct.dataclass
    class Config:
        w: jax.Array
        depth: int = flax.struct.field(pytree_node=False)

    (root, child) = walk_and_compare(Config(jnp.ones(2), 3))
    assert root.facts.static == (("depth", "3"),)
    assert child.expression == "t.w"
