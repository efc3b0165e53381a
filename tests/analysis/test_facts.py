"""What each device holds of every subtree, against the shards themselves, on the eight devices that the tests have."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import treeviz
from treeviz.analysis import facts as rolling
from treeviz.analysis.facts import bytes_by_device, device_columns
from treeviz.tree.facts import DeviceIds
from treeviz.tree.table import TreeTable
from treeviz.tree.walk import scan

pytestmark = [
    pytest.mark.oldest_jax,
    pytest.mark.skipif(len(jax.devices()) < 8, reason="needs eight devices"),
]
X = np.ones((8, 16), np.float32)  # 512 B
ABSTRACT = jax.ShapeDtypeStruct((2,), jnp.int8)
KINDS = [memory.kind for memory in jax.devices()[0].addressable_memories()]
needs_pinned_host = pytest.mark.skipif("pinned_host" not in KINDS, reason="this JAX has no pinned_host on CPU")


def on(first: int, n: int, spec: P, **options) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[first : first + n]), ("x",)), spec, **options)


def put(sharding, x: Any = X) -> jax.Array:
    return jax.device_put(x, sharding)


def placement(tree) -> tuple:
    """The root's devices, bytes on the fullest of them, and bytes on the host; and what the headline says of them."""
    table = treeviz.walk(tree)
    size = table.headline.index(next(part for part in table.headline if "%" in part or part.endswith(" B")))
    values = [float(table[0][name]) for name in ("devices", "device_bytes", "host_bytes")]
    return (*values, [part for part in table.headline[size + 1 :] if "%" not in part])


def test_arrays_on_four_devices_are_not_all_on_each():
    tree = [put(jax.devices()[i], np.ones(250, np.float32)) for i in range(4)]
    assert placement(tree) == (4, 1000, 0, ["1.0 kB on each of 4 devices"])


def test_the_parts_of_keys_are_counted():
    tree = {"keys": put(on(0, 4, P("x")), jax.random.split(jax.random.key(0), 8))}
    assert placement(tree) == (4, 16, 0, ["16 B on each of 4 devices"])


def test_host_memory_is_counted_apart():
    tree = {"sharded": put(on(0, 4, P("x")), X[:, :4]), "host": np.ones(1000), "scalar": np.float64(1)}
    assert placement(tree) == (4, 32, 8008, ["32 B on each of 4 devices", "8.0 kB in host memory"])


def deleted_key() -> jax.Array:
    key = jax.random.key(0)
    key.delete()
    return key


def test_an_array_that_is_deleted_holds_nothing():
    tree = [put(on(0, 4, P("x"))), put(on(0, 4, P("x")))]
    tree[0].delete()
    assert placement(tree)[:2] == (4, 128)
    table = treeviz.walk({"arrays": tree, "key": deleted_key()})
    assert [row["bytes"] for row in table] == [512, 512, 0, 512, 0]
    assert "512 B" in table.headline


def test_stages_of_a_pipeline_name_the_fullest_and_the_emptiest_device():
    tree = {"0": [put(on(0, 2, P())), put(on(0, 2, P("x")))], "1": put(on(2, 2, P("x"))), "all": put(on(0, 4, P()))}
    table = treeviz.walk(tree)
    assert {row.path: row["device_bytes"] for row in table} == {
        "": 512 + 256 + 512,
        "0": 512 + 256,
        "0/0": 512,
        "0/1": 256,
        "1": 256,
        "all": 512,
    }
    fullest, emptiest = "1.3 kB on the fullest of 4 devices, cpu:0–1", "768 B on the emptiest, cpu:2–3"
    assert placement(tree)[-1] == [fullest, emptiest]
    assert table[0]["spread"] == "768 B on cpu:2–3, 1.3 kB on cpu:0–1"
    assert [row["spread"] for row in table][1:] == [""] * 5  # even
    assert bytes_by_device(table, 0) == [("cpu:0–1", "1.3 kB"), ("cpu:2–3", "768 B")]
    assert bytes_by_device(table, 2) == []


def test_equally_full_devices_are_all_counted():
    tree = [put(jax.devices()[i]) for i in (0, 1, 5)] + [put(jax.devices()[7], X[:1])]
    assert treeviz.walk(tree)[0]["spread"] == "64 B on cpu:7, 512 B on cpu:0 and 2 more"


@needs_pinned_host
def test_memories_are_named_and_counted_apart():
    tree = {
        "params": put(on(0, 4, P("x"))),
        "offloaded": [put(on(0, 4, P("x"), memory_kind="pinned_host")), put(on(0, 4, P(), memory_kind="pinned_host"))],
        "other": put(on(0, 4, P("x"), memory_kind="unpinned_host")),
    }
    table = treeviz.walk(tree)
    assert [table[0][name] for name in ("device_bytes", "pinned_host.bytes", "unpinned_host.bytes", "host_bytes")] == [
        128,
        128 + 512,
        128,
        0,
    ]
    assert table.headline[-4:] == (
        "128 B on each of 4 devices",
        "640 B in pinned_host on each of 4 devices",
        "128 B in unpinned_host on each of 4 devices",
        "mesh 4 (x) on cpu:0–3",
    )
    assert [row.facts.sharding.memory for row in table.leaves] == ["pinned_host", "pinned_host", "unpinned_host", ""]
    names = [column.name for column in treeviz.render(tree).columns]
    assert names[3:] == ["device_bytes", "pinned_host.bytes", "unpinned_host.bytes", "sharding"]
    assert "P('x') · pinned_host" in treeviz.render(tree).text()


@needs_pinned_host
def test_one_device_with_offloaded_arrays_shows_where_they_are():
    place = SingleDeviceSharding(jax.devices()[2], memory_kind="pinned_host")
    tree = {"here": put(jax.devices()[2]), "there": put(place)}
    assert placement(tree) == (1, 512, 0, ["512 B on cpu:2", "512 B in pinned_host on cpu:2"])
    assert "cpu:2 · pinned_host" in treeviz.render(tree).text()


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (lambda: [put(jax.devices()[3])], ["on cpu:3"]),
        (lambda: [put(jax.devices()[3]), X], ["512 B on cpu:3", "512 B in host memory"]),
        (lambda: [put(jax.devices()[3]), ABSTRACT], ["512 B on cpu:3", "2 B on no JAX device"]),
        (lambda: [X], []),
        (lambda: [ABSTRACT], ["shape only"]),
    ],
)
def test_the_headline_names_the_one_device(tree, said):
    assert placement(tree())[-1] == said


def test_an_abstract_mesh_is_counted_by_its_size():
    def abstract(n: int) -> jax.ShapeDtypeStruct:
        mesh = on(0, n, P("x")).mesh.abstract_mesh
        return jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("x")))

    assert placement([abstract(4)]) == (4, 128, 0, ["shape only", "128 B on each of 4 devices"])
    # Which of its devices the concrete array is on is not known.
    assert placement([abstract(4), put(on(0, 2, P("x")))]) == (
        2,
        256,
        0,
        ["256 B on each of 2 devices", "512 B on no JAX device"],
    )


def test_abstract_meshes_of_any_size_share_their_devices():
    def abstract(n: int, dtype) -> jax.ShapeDtypeStruct:
        mesh = on(0, 1, P()).mesh.abstract_mesh
        mesh = mesh.update(axis_sizes=(n,)) if hasattr(mesh, "update") else type(mesh)((("x", n),))
        return jax.ShapeDtypeStruct((2 * 10**9,), dtype, sharding=NamedSharding(mesh, P("x")))

    few, many = abstract(1000, jnp.float32), abstract(10**9, jnp.int8)
    assert placement([many])[:2] == (10**9, 2)
    assert placement([few, many, many])[:2] == (10**9, 8_000_000 + 2 + 2)
    assert treeviz.walk([few, many])[0]["spread"] == (
        "2 B on 999,999,000 of an abstract mesh, 8.0 MB on 1,000 of an abstract mesh"
    )


def test_an_array_that_cannot_be_split_evenly_says_so():
    leaf = jax.ShapeDtypeStruct((7, 3), jnp.float32, sharding=on(0, 4, P("x")))
    assert treeviz.walk(leaf)[0]["sharding"] == "P('x') · cpu:0–3 (x=4) · cannot be split evenly"
    assert treeviz.walk(leaf)[0]["device_bytes"] == 0


def random_tree(rng: random.Random, pool: list, depth: int = 3) -> Any:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(pool)
    return [random_tree(rng, pool, depth - 1) for _ in range(rng.randint(0, 4))]


def truth(node: Any) -> Counter[Any]:
    """Bytes on each device that holds a part of the node's arrays, each counted once."""
    held: Counter[Any] = Counter()
    for array in {id(leaf): leaf for leaf in jax.tree.leaves(node) if isinstance(leaf, jax.Array)}.values():
        for shard in array.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return held


@pytest.mark.parametrize("is_shared", [False, True])
def test_every_subtree_agrees_with_its_shards(is_shared, monkeypatch):
    rng = random.Random(int(is_shared))
    places = [jax.devices()[1], jax.devices()[6], on(0, 2, P("x")), on(2, 4, P("x")), on(0, 8, P()), on(4, 4, P())]
    pool: list[Any] = [put(place, np.ones((8, n), np.float32)) for n, place in enumerate(places, start=1)]
    pool.append(np.ones(5, np.int8))
    if is_shared:
        pool.append([pool[0], {"again": pool[3]}])
    for n_tree in range(30):
        tree = random_tree(rng, pool[:2] if n_tree < 3 else pool)
        tree = tree if is_shared else jax.tree.map(lambda leaf: leaf.copy(), tree)
        table, nodes = scan(tree)
        monkeypatch.setattr(rolling, "_LARGE", 1000 * (n_tree % 2))  # each way to find the nodes above a row
        monkeypatch.setattr(rolling, "_FEW", n_tree % 3)
        columns = {column.name: column for column in device_columns(table)[0]}
        held = [truth(node) for node in nodes]
        np.testing.assert_array_equal(np.nan_to_num(table.rolled(columns["devices"])), [len(each) for each in held])
        np.testing.assert_array_equal(
            np.nan_to_num(table.rolled(columns["device_bytes"])), [max(each.values(), default=0) for each in held]
        )
        spread = [bool(text) for text in table.rolled(columns["spread"])]
        assert spread == [len({*each.values()}) > 1 for each in held]
        host = [{id(x): x.nbytes for x in jax.tree.leaves(node) if isinstance(x, np.ndarray)} for node in nodes]
        np.testing.assert_array_equal(
            np.nan_to_num(table.rolled(columns["host_bytes"])), [sum(each.values()) for each in host]
        )


def with_places(table: TreeTable, places: list[tuple[str, DeviceIds]]) -> TreeTable:
    """The table, each of whose facts lies on other devices."""
    facts = [
        each
        if each.sharding is None
        else each._replace(sharding=each.sharding._replace(platform=platform, device_ids=ids, n_devices=len(ids)))
        for each, (platform, ids) in zip(table.facts, places, strict=True)
    ]
    return replace(table, facts=tuple(facts))


def test_the_cpu_beside_an_accelerator_is_host_memory():
    table = scan([put(jax.devices()[0]), put(jax.devices()[1], X[:4]), np.ones(3, np.int8)])[0]
    places = [("", DeviceIds()), ("cuda", DeviceIds((0,))), ("cpu", DeviceIds((0,))), ("", DeviceIds())]
    columns, said = device_columns(with_places(table, places))
    values = {column.name: with_places(table, places).rolled(column)[0] for column in columns}
    assert (values["devices"], values["device_bytes"], values["host_bytes"]) == (1, 512, 256 + 3)
    assert said == ("512 B on cuda:0", "259 B in host memory")


def test_thousands_of_devices_cost_no_memory_in_each_row():
    mesh = DeviceIds(range(4096))
    table = scan([put(on(0, 8, P("x")), np.ones((8, n), np.int8)) for n in range(1, 301)])[0]
    table = with_places(table, [("tpu", mesh)] * len(table.facts))
    table = table.with_columns(*device_columns(table)[0])
    assert {id(each.sharding.device_ids) for each in table.facts if each.sharding} == {id(mesh)}
    assert table.rolled(table.columns["device_bytes"])[0] == sum(range(1, 301))
    view = treeviz.views.tree_view.TreeView(table, list(table.columns.values()))
    document = json.loads(view.json())
    assert document["device_sets"] == [list(range(4096))]
    assert {row["sharding"]["device_set"] for row in document["rows"][1:]} == {0}
    assert len(view.json()) < 300_000 and len(view.packed) < 10_000


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([0, 1], "cpu:0–1 (x=2)"),
        ([2, 3], "cpu:2–3 (x=2)"),
        ([1, 0], "cpu:1,0 (x=2)"),
        ([0, 1, 3, 2], "cpu:0–1,3,2 (x=4)"),
        ([0, 2, 4, 6, 1, 3, 5, 7], "cpu:0,2,4,6,… 4 more (x=8)"),
    ],
)
def test_devices_are_named_in_the_order_of_the_mesh(ids, text):
    mesh = Mesh(np.array(jax.devices())[ids], ("x",))
    tree = {"w": put(NamedSharding(mesh, P("x")))}
    table = treeviz.walk(tree)
    assert table[1]["sharding"] == f"P('x') · {text}"
    document = json.loads(treeviz.render(tree).json())
    where = document["rows"][1]["sharding"]
    assert document["device_sets"][where["device_set"]] == ids
    assert (where["platform"], where["memory"], where["devices"]) == ("cpu", "", text)


def test_a_sharding_is_cut_only_where_the_width_is_limited():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("replica", "data", "model"))
    tree = {"w": put(NamedSharding(mesh, P(("replica", "data"), "model")))}
    text = "P(('replica', 'data'), 'model') · cpu:0–7 (replica=2, data=2, model=2)"
    view = treeviz.render(tree)
    assert text in view.text()
    lines = view.text(width=80).splitlines()
    assert text not in lines[-1] and "P(('replica', '" in lines[-1] and all(len(line) <= 80 for line in lines)


def test_variables_of_several_classes_are_counted_apart():
    nnx = pytest.importorskip("flax.nnx")
    state = {"w": nnx.Param(np.ones((2, 3))), "mean": nnx.BatchStat(np.ones(3)), "key": jax.random.key(0)}
    assert treeviz.walk(state).headline[1:4] == ("Param 6", "BatchStat 3", "1 key")
    assert treeviz.walk({**state, "plain": np.ones(3)}).headline[1:3] == ("12 elements", "1 key")


def test_keys_have_bytes_and_no_elements():
    assert treeviz.walk(jax.random.split(jax.random.key(0), 8)).headline[:2] == ("1 leaf", "8 keys")
