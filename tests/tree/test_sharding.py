"""Where arrays lie, on the eight devices that the tests have."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hostile_objects import EVIL_TEXTS
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import treeviz
from treeviz.tree.facts import Sharding

pytestmark = [
    pytest.mark.oldest_jax,
    pytest.mark.skipif(len(jax.devices()) < 8, reason="needs eight devices"),
]
X = np.ones((8, 16), np.float32)


def mesh(**axes: int) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes))


def lying(sharding, x=X) -> Sharding:
    found = treeviz.walk(jax.device_put(x, sharding))[0].facts.sharding
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("spec", "text", "shard_shape"),
    [
        (P("data", None), "P('data', None)", (2, 16)),
        (P("data", "model"), "P('data', 'model')", (2, 8)),
        (P(("data", "model")), "P(('data', 'model'))", (1, 16)),
        (P(None, "model"), "P(None, 'model')", (8, 8)),
    ],
)
def test_a_spec_is_shown_with_its_mesh_and_what_each_device_holds(spec, text, shard_shape):
    sharding = NamedSharding(mesh(data=4, model=2), spec)
    found = lying(sharding)
    assert (found.text, found.devices) == (text, "cpu:0–7 (data=4, model=2)")
    assert (found.n_devices, found.shard_shape) == (8, shard_shape) == (8, sharding.shard_shape(X.shape))
    assert (found.replicated, found.committed, found.addressable) == (False, True, True)


def test_an_array_that_every_device_holds_is_replicated():
    found = lying(NamedSharding(mesh(data=8), P()))
    assert (found.text, found.replicated, found.shard_shape) == ("P()", True, (8, 16))


def test_one_device_is_named_and_is_not_replication():
    found = lying(jax.devices()[3])
    assert (found.text, found.n_devices, found.replicated, found.committed) == ("cpu:3", 1, False, True)


def test_uncommitted_arrays_are_told_from_committed_ones():
    found = treeviz.walk(jnp.ones(3))[0].facts.sharding
    assert found is not None and found.committed is False
    assert treeviz.walk(jnp.ones(3))[0]["sharding"] == "cpu:0 · not committed"


def test_bytes_per_device_are_those_of_the_shards():
    m = mesh(data=8)
    tree = {
        "rows": jax.device_put(X, NamedSharding(m, P("data"))),
        "all": jax.device_put(X, NamedSharding(m, P())),
        "one": jax.device_put(X, jax.devices()[0]),
    }
    table = treeviz.walk(tree)
    for row in table.leaves:
        shards = tree[row.label].addressable_shards
        assert row["device_bytes"] == shards[0].data.nbytes
        assert row["devices"] == len(shards)
    assert table[0]["device_bytes"] == X.nbytes // 8 + X.nbytes + X.nbytes


def test_the_sharding_of_an_abstract_array_is_shown():
    leaf = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh(data=8), P(None, "data")))
    found = treeviz.walk(leaf)[0].facts.sharding
    assert found is not None
    assert (found.text, found.shard_shape, found.committed) == ("P(None, 'data')", (8, 2), None)


def test_a_sharding_over_an_abstract_mesh_is_shown_without_devices():
    abstract = NamedSharding(mesh(data=8).abstract_mesh, P(None, "data"))
    table = treeviz.walk(jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=abstract))
    assert table[0]["sharding"] == "P(None, 'data') · an abstract mesh (data=8)"
    assert table[0]["device_bytes"] == 8 * 16 * 4 / 8


def test_names_of_axes_are_made_printable():
    evil = EVIL_TEXTS["control"] + EVIL_TEXTS["bidi"] + EVIL_TEXTS["script"]
    found = lying(NamedSharding(Mesh(np.array(jax.devices()), (evil,)), P(evil)))
    assert found.text.isprintable() and found.devices.isprintable()


def test_equal_shardings_share_their_facts():
    tree = [jax.device_put(X, NamedSharding(mesh(data=8), P("data"))) for _ in range(5)]
    assert len({row.facts for row in treeviz.walk(tree).leaves}) == 1


def test_a_sharded_tree_shows_its_shardings_without_being_asked():
    tree = {"w": jax.device_put(X, NamedSharding(mesh(data=8), P("data")))}
    view = treeviz.render(tree)
    assert [column.name for column in view.columns] == ["elements", "bytes", "leaves", "device_bytes", "sharding"]
    narrow = view.text(width=60).splitlines()[2]
    assert "bytes/device" in narrow and "elements" not in narrow, "a narrow terminal keeps what fills the devices"
    assert "P('data') · cpu:0–7 (data=8)" in view.text()


def test_looking_at_a_sharded_array_gathers_nothing():
    x = jax.device_put(X, NamedSharding(mesh(data=8), P("data")))
    treeviz.render({"x": x}).html()
    assert x._npy_value is None
    assert all(shard.data._npy_value is None for shard in x.addressable_shards)


def test_arrays_that_take_turns_on_two_devices_are_each_told_where_they_lie():
    devices = jax.devices()
    tree = [jax.device_put(np.ones(2), devices[i % 3 % 2]) for i in range(9)]
    assert len({id(each.sharding) for each in tree}) > 1
    told = [row.facts.sharding.device_ids for row in treeviz.walk(tree).leaves]
    assert told == [tuple(device.id for device in each.devices()) for each in tree]
