"""Shardings, masks and labels laid over a tree: what each leaf gets, what a device holds, and what does not fit."""

from __future__ import annotations

import random
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sample_nodes import Layer

import treeviz as tv
from treeviz.analysis.facts import shape_text

pytestmark = pytest.mark.oldest_jax


def abstract_mesh(**sizes: int) -> Any:
    try:
        return AbstractMesh(tuple(sizes.values()), tuple(sizes))
    except TypeError:  # before jax 0.5
        return AbstractMesh(tuple(sizes.items()))  # type: ignore[call-arg]


MESH = abstract_mesh(data=4, model=2)
PARAMS = {
    "embed": jax.ShapeDtypeStruct((50_257, 768), jnp.float32),
    "layers": [{"w": jax.ShapeDtypeStruct((768, 3072), jnp.float32), "b": jax.ShapeDtypeStruct((3072,), jnp.float32)}]
    * 2,
}


def mismatches(prefix: Any, tree: Any, use: Any, **options: Any) -> list[str]:
    return [str(each) for each in tv.overlay(prefix, tree, use=use, **options).differences]


def test_every_leaf_that_a_plan_does_not_fit_is_told():
    plan = {"embed": P("model"), "layers": [{"w": P("data", "model"), "b": P("data", None)}, P("dat")]}
    assert mismatches(plan, PARAMS, "shardings", mesh=MESH) == [
        "['embed']: size: axis 0 has 50,257 (not divisible by 2 of 'model')",
        "['layers'][0]['b']: axis: P('data', None) → float32[3072] (it has 1 axis)",
        "['layers'][1]['b']: axis: the mesh axis 'dat' (the mesh has 'data', 'model')",
        "['layers'][1]['w']: axis: the mesh axis 'dat' (the mesh has 'data', 'model')",
    ]
    assert mismatches("data", jnp.ones(4), "shardings", mesh=MESH) == [
        "the root: spec: str 'data' → a PartitionSpec, a Sharding or None (did you mean P('data')?)"
    ]


def test_a_plan_tells_what_a_device_holds_and_what_could_be_split():
    plan = {"embed": P(None, "data"), "layers": [P("data"), None]}
    view = tv.overlay(plan, PARAMS, use="shardings", mesh=MESH)
    told = {row.keystr: (row["shardings"], row["shard"], row["planned_bytes"]) for row in view.table.leaves}
    assert told["['embed']"] == ("P(None, 'data')", "(50257, 192)", 50_257 * 192 * 4)
    assert told["['layers'][0]['w']"] == ("P('data') ← ['layers'][0]", "(192, 3072)", 192 * 3072 * 4)
    assert told["['layers'][1]['w']"][:2] == ("None ← ['layers'][1]", "")
    assert "mesh data=4, model=2 · 41.0 MB on each device, without 2 leaves" in view.text()

    view = tv.overlay(P(), PARAMS, use="shardings", mesh=MESH)
    assert "5 leaves replicated: 173.3 MB on each" in view.text()
    assert [row.notes[-1].text for row in view.find("embed | layers[0]/w")] == [
        "the same 154.4 MB on every device: 'data' could split axis 1, 'model' could split axis 1",
        "the same 9.4 MB on every device: 'data' could split axis 0 or 1, 'model' could split axis 0 or 1",
    ]


def test_a_narrow_terminal_shortens_where_a_spec_comes_from_and_keeps_the_specs():
    layer = {"MultiHeadDotProductAttention_0": {"kernel": jax.ShapeDtypeStruct((64, 4, 16), jnp.float32)}}
    plan = {"block_0": P(None, "model"), "block_1": {"MultiHeadDotProductAttention_0": P("data")}}
    view = tv.overlay(plan, dict.fromkeys(plan, layer), use="shardings", mesh=MESH)
    assert "└ P('data') ← ['block_1']['MultiHead" in view.text(width=170)
    text = view.text(width=100)
    assert "└ P('data') ← [" in text and "(16, 4, 16)" in text and max(map(len, text.splitlines())) <= 100
    assert text.count("P('data')") == 2 and text.count("P(None, 'model')") == 3


def test_without_a_mesh_only_ranks_are_checked_and_that_is_said():
    view = tv.overlay(P("x", "y"), [np.ones((2, 2)), np.ones(3)], use="shardings")
    assert [each.path for each in view.differences] == ["[1]"]
    assert "without a mesh= the sizes are not checked" in view.text()
    with pytest.raises(ValueError, match="mesh= is only for use='shardings'"):
        tv.overlay(0, [1], mesh=MESH)


def jax_splits(spec: P, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        sharding = NamedSharding(MESH, spec)
        sharding.check_compatible_aval(shape)  # type: ignore[attr-defined]
        return sharding.shard_shape(shape)
    except Exception:  # DuplicateSpecError is no ValueError
        return None


def test_specs_fit_and_split_exactly_as_those_of_jax():
    rng = random.Random(0)
    parts = [None, "data", "model", ("data", "model"), ("model",), "other"]
    fits = 0
    for _ in range(400):
        spec = P(*rng.choices(parts, weights=[3, 3, 3, 2, 1, 0.3], k=rng.randrange(3)))
        shape = tuple(rng.choices([1, 2, 4, 8, 6, 0], k=rng.randrange(4)))
        leaf, expected = jax.ShapeDtypeStruct(shape, jnp.float32), jax_splits(spec, shape)
        view = tv.overlay([spec], [leaf], use="shardings", mesh=MESH)
        assert (not view.differences) == (expected is not None), (spec, shape, view.differences)
        if expected is not None:
            fits += 1
            assert view.table[1]["shard"] == shape_text(expected)
    assert 100 < fits < 300


def test_shardings_of_every_make_are_taken():
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    view = tv.overlay([one, NamedSharding(MESH, P("data"))], [jnp.ones(3), jnp.ones(8)], use="shardings")
    assert not view.differences and [row["shard"] for row in view.table.leaves] == ["(3,)", "(2,)"]


def test_a_mask_may_be_a_prefix_or_a_function_of_the_tree():
    tree = {"w": jnp.ones((2, 2)), "b": jnp.ones(2), "frozen": {"w": jnp.ones(4)}}
    view = tv.overlay({"w": True, "b": False, "frozen": False}, tree, use="mask")
    assert [row["mask"] for row in view.table.leaves] == ["False", "False ← ['frozen']", "True"]
    assert "1 of 3 leaves are True, 16 B" in view.text() and view.table[0]["masked_bytes"] == 16
    assert mismatches(lambda params: jax.tree.map(lambda x: x.ndim > 1, params), tree, "mask") == []
    assert mismatches(lambda params: 1 / 0, tree, "mask") == [
        "the root: error: the function of the tree raised ZeroDivisionError: division by zero"
    ]


def test_a_mask_that_is_a_module_is_a_tree_although_it_can_be_called():
    class Model(Layer):
        def __call__(self, x: Any) -> Any:
            raise AssertionError

    jax.tree_util.register_dataclass(Model, data_fields=["w", "b"], meta_fields=["name", "units"])
    assert mismatches(Model("m", True, False), Model("m", 1.0, 2.0), "mask") == []


def test_labels_that_optax_would_call_are_told_and_true_of_numpy_is_true():
    eqx, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    model = eqx.filter(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0)), eqx.is_array)
    labels = jax.tree.map(lambda _: "a", model)
    view = tv.overlay(labels, model, use="labels")
    assert not view.differences and "optax.partition calls a callable module" in view.text()
    with pytest.raises(TypeError):
        optax.partition({"a": optax.sgd(1.0)}, labels).init(model)
    optax.partition({"a": optax.sgd(1.0)}, lambda _: labels).init(model)
    mask = jax.tree.map(lambda _: np.bool_(True), model)
    view = tv.overlay(mask, model, use="mask")
    optax.masked(optax.sgd(1.0), mask).init(model)
    assert "optax" not in view.text() and {row["mask"] for row in view.table.leaves} == {"True"}


def test_what_is_no_mask_or_label_is_told():
    assert mismatches({"w": 1, "b": None}, {"w": 1.0, "b": 2.0}, "mask") == [
        "['b']: none: None → float 2.0",
        "['w']: spec: int 1 → True or False",
    ]
    assert mismatches({"w": "adam", "b": {1}}, {"w": 1.0, "b": 2.0}, "labels") == [
        "['b']: spec: set {1} → a hashable label"
    ]


def test_labels_are_counted_so_that_a_typo_stands_out():
    view = tv.overlay({"a": "adam", "b": "adma", "c": "adam"}, {"a": 1.0, "b": 2.0, "c": [3.0, 4.0]}, use="labels")
    assert not view.differences and "adam 3, adma 1" in view.text()


def test_a_tuple_of_names_is_one_spec_where_is_leaf_says_so():
    view = tv.overlay(
        {"w": ("embed", "mlp")}, {"w": jnp.ones((2, 2))}, use="labels", is_leaf=lambda x: isinstance(x, tuple)
    )
    assert not view.differences and view.table[1]["labels"] == "('embed', 'mlp')"


def test_at_80_columns_each_mismatch_is_told_once_in_lines_that_fit():
    kernel = {"query_projection_kernel_of_attention": jax.ShapeDtypeStruct((16, 510, 8, 512), jnp.bfloat16)}
    tree = {"params": {"decoder": {"self_attention_with_rotary_embedding": kernel}}}
    mesh = abstract_mesh(data=4, fsdp=2)
    lines = tv.overlay(P(None, ("data", "fsdp")), tree, use="shardings", mesh=mesh).text(width=80).split("\n")
    assert max(map(len, lines)) <= 80
    assert " ".join("".join(lines).split()).count("not divisible by 8") == 1
    assert any("P(None" in line for line in lines)


@pytest.mark.parametrize("width", [72, 80, 100])
def test_every_row_that_mismatches_has_a_mark_however_narrow_and_its_whole_path_below(width):
    layer = {"self_attention": {"attention_op": {"query_projection": jax.ShapeDtypeStruct((8, 4, 16), jnp.float32)}}}
    tree = {"params": {"decoder": {"transformer_blocks": {"transformer_layer_0": layer, "transformer_layer_1": layer}}}}
    plan = jax.tree.map(lambda _: P(None, "model"), tree)
    odd = plan["params"]["decoder"]["transformer_blocks"]["transformer_layer_1"]["self_attention"]["attention_op"]
    odd["query_projection"] = P("model", "data", None, "x")
    view = tv.overlay(plan, tree, use="shardings", mesh=abstract_mesh(data=2, model=4))
    lines = view.text(width=width).split("\n")
    assert max(map(len, lines)) <= width
    marked = [line for line in lines if re.search(r"(!|axis: .*)$", line) and "─" in line]
    assert ["P('model'" in line for line in marked] == [True]
    assert "".join("".join(lines).split()).count(view.differences[0].path) == 1


def test_a_sharding_that_is_for_nothing_is_told_by_its_axes():
    sharding = NamedSharding(jax.make_mesh((1,), ("data",)), P("data"))
    view = tv.overlay({"w": sharding, "bias": sharding}, {"w": jnp.ones(2), "b": jnp.ones(2)}, use="shardings")
    missing = next(each for each in view.differences if each.kind == "missing")
    assert "'data'" in missing.left and "Mesh" not in missing.left and "…" not in missing.left


@pytest.mark.parametrize(("n_right", "labels"), [(0, ["[0…5]"]), (1, ["[0…4]", "[5]"])])
def test_a_mismatch_that_every_layer_has_is_shown_once(n_right, labels):
    layers = [{"w": np.ones((2, 6)), "b": np.ones(6)}] * 6
    specs = [{"w": P(None, "data"), "b": P()}] * (6 - n_right) + [{"w": P(), "b": P()}] * n_right
    text = tv.overlay({"layers": specs}, {"layers": layers}, use="shardings", mesh=MESH).text(width=200)
    assert re.findall(r"[├└]─ (\[[0-9…]+\])", text) == labels
    assert text.count("axis 1 has 6 (not divisible by 4 of 'data')") == 1
