"""Libraries whose trees need little or no help."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from agreement import outline, row_at, text_of, walk_and_compare


def test_haiku_paths_are_found_by_their_parts():
    haiku = pytest.importorskip("haiku", reason="needs Haiku")
    params = haiku.transform(lambda x: haiku.nets.MLP([4, 3])(x)).init(jax.random.key(0), jnp.ones((1, 2)))
    table = walk_and_compare(params)
    assert outline(table)[:3] == ["t dict dict", "  mlp/~/linear_0 dict dict", "    b array jax.Array"]
    weight = row_at(table, "['mlp/~/linear_0']['w']")
    assert weight.expression == "t['mlp/~/linear_0']['w']"
    for query in ("linear_0/w", "mlp/~/linear_0/w", "/mlp/*/linear_0/w", "mlp/**/w -linear_1"):
        assert [row.keystr for row in table.find(query)] == [weight.keystr], query
    assert len(table.find("mlp/~/*/w")) == 2


@pytest.mark.parametrize("options", [{}, {"frozen": True, "mappable_dataclass": False}])
def test_the_field_names_of_a_chex_dataclass_are_not_static_data(options):
    chex = pytest.importorskip("chex", reason="needs chex")

    @chex.dataclass(**options)
    class State:
        x: jax.Array
        y: int

    table = walk_and_compare(State(x=jnp.ones(2), y=1))
    assert outline(table) == ["t node State", "  .x array jax.Array", "  .y scalar int"]
    assert table[0].facts.static == ()


def test_a_tree_class_is_a_module_and_what_it_froze_is_static():
    pytreeclass = pytest.importorskip("pytreeclass", reason="needs PyTreeClass")

    class Linear(pytreeclass.TreeClass):
        def __init__(self):
            self.size = pytreeclass.freeze(3)
            self.act = pytreeclass.freeze(jax.nn.relu)
            self.table = pytreeclass.freeze(jnp.ones(2))
            self.weight = jnp.ones(2)

    table = walk_and_compare(Linear())
    assert outline(table) == [
        "t module Linear",
        "  .size static frozen",
        "  .act static frozen",
        "  .table static frozen",
        "  .weight array jax.Array",
    ]
    assert [row.facts.text for row in table if row.kind == "static"] == ["#3", "#relu", "#float32[2]"]
    assert table[0].facts.static == ()
    assert "#3" in text_of(Linear())
