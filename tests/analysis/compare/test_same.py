"""Is what was restored, ported or renamed the same as what is there? Many cases are public threads that asked it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
from sample_nodes import AdamState, Layer, Point

import treeviz as tv
from treeviz.analysis.compare import rearranged

pytestmark = pytest.mark.oldest_jax


class Empty(NamedTuple):
    pass


def differences(left: Any, right: Any, **options: Any) -> list[str]:
    return [str(each) for each in tv.diff(left, right, **options).differences]


def f32(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7


# The same tree in containers of other kinds


def saved(tree: Any, *, lists: bool = False, box: bool = False) -> Any:
    """What flax.serialization or Orbax without a target makes of a tree."""
    if isinstance(tree, np.ndarray):
        return {"value": tree.copy()} if box else tree.copy()
    if hasattr(tree, "_fields"):
        items = tree._asdict() or None
        return items and {name: saved(child, lists=lists, box=box) for name, child in items.items()}
    if isinstance(tree, list | tuple):
        children = [saved(child, lists=lists, box=box) for child in tree]
        return children if lists else {str(i): child for i, child in enumerate(children)}
    return {name: saved(child, lists=lists, box=box) for name, child in tree.items()}


PARAMS = {"w": f32(2, 3), "layers": [{"b": f32(i + 1)} for i in range(11)]}
STATE = (
    AdamState(np.int32([3]), jax.tree.map(lambda x: 3 * x, PARAMS), jax.tree.map(np.square, PARAMS)),
    Empty(),
    {"clip": Empty()},
)
CONTAINERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "flax#1432, named tuples as dicts": lambda: (STATE, saved(STATE)),
    "Orbax without a target": lambda: (STATE, saved(STATE, lists=True)),
    "Orbax of variables": lambda: (STATE, saved(STATE, box=True)),
    "a tuple for a named tuple": lambda: (Point(PARAMS, f32(2)), (saved(PARAMS, lists=True), f32(2))),
    "a class with fields": lambda: (Layer("n", PARAMS, [f32(2)]), {"w": saved(PARAMS), "b": [f32(2)], "cache": None}),
    "keys that JSON made texts": lambda: ((f32(2), {"a": f32(3)}), {0: f32(2), 1: {"a": f32(3)}}),
}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("is_back", [False, True])
def test_containers_of_other_kinds_are_compared_by_field_and_position(name, is_back):
    pair = CONTAINERS[name]()
    leaves, treedef = jax.tree.flatten(pair[1])
    for changed in [None, *range(0, len(leaves), 5)]:
        new = [leaf + leaf.dtype.type(i == changed) for i, leaf in enumerate(leaves)]
        left, right = (treedef.unflatten(new), pair[0]) if is_back else (pair[0], treedef.unflatten(new))
        found = tv.diff(left, right).differences
        assert [each.kind for each in found] == ["type"] + ["value"] * (changed is not None), found
        if changed is not None:
            named = {row.keystr: leaf for row, leaf in zip(tv.walk(left).leaves, jax.tree.leaves(left), strict=True)}
            np.testing.assert_array_equal(named[found[1].path], (new if is_back else leaves)[changed])


def test_containers_that_differ_are_said_once_with_those_inside():
    (found,) = tv.diff(STATE, saved(STATE, lists=True)).differences
    assert str(found) == (
        "the root: type: tuple · 25 leaves → list · 25 leaves (also inside: 2 Empty → None, 1 AdamState → dict)"
    )


def test_what_has_no_name_in_common_is_not_compared_inside():
    """A list of two layers is no module of two arrays, and a dict has no order."""
    layers = [{"w": f32(2), "b": f32(2)}] * 2
    for left, right in (
        (layers, Layer("n", f32(2, 2), f32(2, 2))),
        ((f32(2), f32(2)), {"x": f32(2), "y": f32(2)}),
        (Point(f32(2), f32(2)), AdamState(f32(2), f32(2), f32(2))),
        (Point(f32(2), f32(2)), Layer("n", f32(2), f32(2))),
    ):
        assert [each.kind for each in tv.diff(left, right, values=False).differences] == ["type"]


def test_live_states_of_libraries_are_compared_with_what_they_save():
    """flax#1432 and flax#4423: as optax, Flax and NNX make them, and as they come back."""
    optax, nnx = pytest.importorskip("optax"), pytest.importorskip("flax.nnx")
    to_state_dict, freeze = (
        getattr(pytest.importorskip(f"flax.{module}"), name)
        for module, name in (("serialization", "to_state_dict"), ("core", "freeze"))
    )
    live = optax.adam(1e-3).init({"w": np.ones(3, np.float32)})
    raw = to_state_dict(live)
    raw["0"]["mu"]["w"] += 1
    assert differences(live, raw)[1:] == ["[0].mu['w']: value: 0 → 1 (at [0]; 3 of 3 differ)"]
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    values = jax.tree.map(np.asarray, nnx.to_pure_dict(state))
    changed = values | {"bias": values["bias"] + np.float32([0, 2, 0])}
    for mine in (*[model] * (len(jax.tree.leaves(model)) == 2), state, freeze(values)):  # a leaf in older versions
        assert [each.kind for each in tv.diff(mine, values).differences] == ["type"]
        for other in (changed, {name: {"value": x} for name, x in changed.items()}):
            found = tv.diff(mine, other).differences
            assert [each.kind for each in found] == ["type", "value"] and "bias" in found[1].path, found


# Ports of published models, by the names of their arrays in Hugging Face's checkpoints

D, N, F, V, P, LAYERS = 8, 2, 12, 11, 6, 3  # features, heads, hidden, vocabulary, positions
OF_LLAMA = """embed_tokens.weight VD; layers.*.self_attn.q_proj.weight DD; layers.*.self_attn.k_proj.weight DD
layers.*.self_attn.v_proj.weight DD; layers.*.self_attn.o_proj.weight DD; layers.*.mlp.gate_proj.weight FD
layers.*.mlp.up_proj.weight FD; layers.*.mlp.down_proj.weight DF; layers.*.input_layernorm.weight D
layers.*.post_attention_layernorm.weight D; norm.weight D; lm_head.weight VD"""
MODELS = {
    "GPT-2": """wte.weight VD; wpe.weight PD; h.*.ln_1.weight D; h.*.ln_1.bias D; h.*.attn.c_attn.weight DQ
h.*.attn.c_attn.bias Q; h.*.attn.c_proj.weight DD; h.*.attn.c_proj.bias D; h.*.ln_2.weight D; h.*.ln_2.bias D
h.*.mlp.c_fc.weight DF; h.*.mlp.c_fc.bias F; h.*.mlp.c_proj.weight FD; h.*.mlp.c_proj.bias D
ln_f.weight D; ln_f.bias D""",
    "Llama": OF_LLAMA,
    "Mistral": OF_LLAMA.replace("k_proj.weight DD", "k_proj.weight GD").replace("v_proj.weight DD", "v_proj.weight GD"),
    "BERT": """embeddings.word_embeddings.weight VD; embeddings.position_embeddings.weight PD
embeddings.token_type_embeddings.weight 2D; embeddings.LayerNorm.weight D; embeddings.LayerNorm.bias D
encoder.layer.*.attention.self.query.weight DD; encoder.layer.*.attention.self.query.bias D
encoder.layer.*.attention.self.key.weight DD; encoder.layer.*.attention.self.key.bias D
encoder.layer.*.attention.self.value.weight DD; encoder.layer.*.attention.self.value.bias D
encoder.layer.*.attention.output.dense.weight DD; encoder.layer.*.attention.output.dense.bias D
encoder.layer.*.attention.output.LayerNorm.weight D; encoder.layer.*.attention.output.LayerNorm.bias D
encoder.layer.*.intermediate.dense.weight FD; encoder.layer.*.intermediate.dense.bias F
encoder.layer.*.output.dense.weight DF; encoder.layer.*.output.dense.bias D
pooler.dense.weight DD; pooler.dense.bias D""",
    "ViT": """vit.embeddings.cls_token 11D; vit.embeddings.position_embeddings 1PD
vit.embeddings.patch_embeddings.projection.weight D344; vit.embeddings.patch_embeddings.projection.bias D
vit.encoder.layer.*.attention.attention.query.weight DD; vit.encoder.layer.*.attention.attention.query.bias D
vit.encoder.layer.*.attention.attention.key.weight DD; vit.encoder.layer.*.attention.attention.key.bias D
vit.encoder.layer.*.attention.attention.value.weight DD; vit.encoder.layer.*.attention.attention.value.bias D
vit.encoder.layer.*.attention.output.dense.weight DD; vit.encoder.layer.*.attention.output.dense.bias D
vit.encoder.layer.*.intermediate.dense.weight FD; vit.encoder.layer.*.output.dense.weight DF
vit.encoder.layer.*.layernorm_before.weight D; vit.encoder.layer.*.layernorm_before.bias D; vit.layernorm.weight D
classifier.weight 5D; classifier.bias 5""",
    "Whisper": """model.encoder.conv1.weight D73; model.encoder.conv1.bias D; model.encoder.conv2.weight DD3
model.encoder.embed_positions.weight PD; model.encoder.layers.*.self_attn.k_proj.weight DD
model.encoder.layers.*.self_attn.v_proj.weight DD; model.encoder.layers.*.self_attn.v_proj.bias D
model.encoder.layers.*.self_attn.q_proj.weight DD; model.encoder.layers.*.self_attn.q_proj.bias D
model.encoder.layers.*.self_attn.out_proj.weight DD; model.encoder.layers.*.self_attn_layer_norm.weight D
model.encoder.layers.*.fc1.weight FD; model.encoder.layers.*.fc2.weight DF
model.decoder.embed_tokens.weight VD; model.decoder.layers.*.encoder_attn.q_proj.weight DD
model.decoder.layers.*.encoder_attn.k_proj.weight DD; model.decoder.layers.*.encoder_attn.v_proj.weight DD
model.decoder.layers.*.encoder_attn.out_proj.weight DD; model.decoder.layer_norm.weight D""",
    "T5": """shared.weight VD; encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight 9N
encoder.block.*.layer.0.SelfAttention.q.weight DD; encoder.block.*.layer.0.SelfAttention.k.weight DD
encoder.block.*.layer.0.SelfAttention.v.weight DD; encoder.block.*.layer.0.SelfAttention.o.weight DD
encoder.block.*.layer.0.layer_norm.weight D; encoder.block.*.layer.1.DenseReluDense.wi.weight FD
encoder.block.*.layer.1.DenseReluDense.wo.weight DF; encoder.block.*.layer.1.layer_norm.weight D
encoder.final_layer_norm.weight D; decoder.block.*.layer.1.EncDecAttention.q.weight DD
decoder.block.*.layer.1.EncDecAttention.k.weight DD; decoder.block.*.layer.1.EncDecAttention.v.weight DD""",
}
SIZES = {"D": D, "F": F, "V": V, "P": P, "Q": 3 * D, "G": D // 2, "N": N}
OWN_NAMES = [  # of modules, as in libraries of their own
    (r"\b(c_attn)\b", "qkv"), (r"\b(q_proj|query|q)\b", "query"), (r"\b(k_proj|key|k)\b", "key"),
    (r"\b(v_proj|value|v)\b", "value"), (r"\b(o_proj|out_proj|o|output\.dense|attn\.c_proj)\b", "out"),
    (r"\b(self_attn|SelfAttention|attention\.self|attention\.attention)\b", "mha"), (r"\b(gate_proj)\b", "wi_0"),
    (r"\b(up_proj|wi|fc1|c_fc|intermediate\.dense)\b", "wi_1"), (r"\b(down_proj|fc2|mlp\.c_proj)\b", "ffw_down"),
    (r"\b(layers|block|(?<=encoder\.)layer|h)\.(\d)", r"blocks.\2"),
    (r"\b(embed_tokens|wte|word_embeddings|shared)\b", "token_embedder"),
    (r"\b(input_layernorm|ln_1|layernorm_before)\b", "pre_norm"), (r"\b(post_attention_layernorm|ln_2)\b", "post_norm"),
]  # fmt: skip


def checkpoint(model: str) -> dict[str, np.ndarray]:
    """The arrays of a model by name, as in a file."""
    rng, arrays = np.random.default_rng(0), {}
    for line in MODELS[model].replace("\n", ";").split(";"):
        name, code = line.split()
        shape = [SIZES.get(size) or int(size) for size in code]
        for i in range(LAYERS if "*" in name else 1):
            arrays[name.replace("*", str(i))] = rng.standard_normal(shape).astype(np.float32)
    return arrays


def nested(flat: dict[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in flat.items():
        *above, last = name.split(".")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = array
    return tree


def last_word(name: str, array: np.ndarray) -> str:
    is_embedding = re.search("embed|wte|wpe|shared|relative", name)
    of_kind = "embedding" if is_embedding else "kernel" if array.ndim > 1 else "scale"
    return re.sub(r"\.weight$", f".{of_kind}", name)


def as_flax(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Dense and convolution kernels with the axis of the outputs last."""
    named = {last_word(name, x): x for name, x in flat.items()}
    return {
        name: np.moveaxis(x, (0, 1), (-1, -2)).copy() if name.endswith("kernel") else x for name, x in named.items()
    }


def as_heads(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As in flax.linen.MultiHeadDotProductAttention: an axis of its own for heads."""
    arrays = {}
    for name, x in as_own(as_flax(flat)).items():
        if re.search(r"(query|key|value)\.(kernel|bias)", name):
            x = x.reshape(*x.shape[:-1], -1, D // N)
        arrays[name] = x.reshape(-1, D // N, D) if name.endswith("out.kernel") and x.shape == (D, D) else x
    return arrays


def as_own(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    named = {}
    for name, x in flat.items():
        for pattern, own in OWN_NAMES:
            name = re.sub(pattern, own, name)
        named[name] = x
    assert len(named) == len(flat)
    return named


def as_scanned(flat: dict[str, np.ndarray], axis: int = 0) -> dict[str, np.ndarray]:
    """One stack of all layers, as nn.scan, MaxText (axis 1) or Haliax make it."""
    layers: dict[str, list[np.ndarray]] = {}
    for name, x in flat.items():
        layers.setdefault(re.sub(r"(blocks)\.\d", r"\1", name), []).append(x)
    return {name: np.stack(xs, min(axis, xs[0].ndim)) if len(xs) > 1 else xs[0] for name, xs in layers.items()}


def as_fused(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Queries, keys and values joined; those that are joined already taken apart."""
    arrays: dict[str, np.ndarray] = {}
    for name, x in as_own(flat).items():
        if ".qkv." in name:
            arrays |= {name.replace("qkv", own): part for own, part in zip("qkv", np.split(x, 3, -1), strict=True)}
        elif re.search(r"\.(query|key|value)\.", name):
            joined = re.sub(r"\.(query|key|value)\.", ".qkv.", name)
            known = {
                own: flat_x
                for own, flat_x in as_own(flat).items()
                if re.sub(r"\.(query|key|value)\.", ".qkv.", own) == joined
            }
            order = sorted(
                known, key=lambda own: ["query", "key", "value"].index(re.findall("query|key|value", own)[-1])
            )
            arrays[joined] = np.concatenate([known[own] for own in order]) if len(known) > 1 else x
        else:
            arrays[name] = x
    return arrays


def as_rotated(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In bfloat16, and with queries and keys in Meta's order of rotary embeddings."""

    def convert(name: str, x: np.ndarray) -> np.ndarray:
        if re.search(r"\.(query|key)\.weight", name):
            x = x.reshape(-1, 2, D // N // 2, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)
        return x.astype(ml_dtypes.bfloat16)

    return {name: convert(name, x) for name, x in as_own(flat).items()}


def as_modules(flat: dict[str, np.ndarray]) -> Any:
    """Lists of layers and named tuples, with the axes of PyTorch, as in Equinox."""

    def build(tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        children = {name: build(child) for name, child in tree.items()}
        if all(map(str.isdecimal, children)):
            return [*children.values()]
        return NamedTuple("Module", [(name, Any) for name in children])(**children)

    return build(nested(as_own(flat)))


STYLES: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {
    "Flax of Hugging Face": lambda flat: {"params": nested(as_flax(flat))},
    "Linen with heads": lambda flat: {"params": nested(as_heads(flat))},
    "a scan over layers": lambda flat: {"params": nested(as_scanned(as_heads(flat)))},
    "MaxText": lambda flat: {"decoder": nested(as_scanned(as_own(as_flax(flat)), 1))},
    "Equinox": as_modules,
    "fused": lambda flat: nested(as_fused(flat)),
    "fused, scanned": lambda flat: nested(as_scanned(as_fused(flat))),
    "NNX in bfloat16, rotated": lambda flat: nested(as_rotated(flat)),
}


def values_that_differ(diff: Any) -> list[Any]:
    return [each for each in diff.differences if each.kind in ("value", "NaN")]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("style", STYLES)
def test_the_one_value_that_a_port_changed_is_found_and_no_other(model, style):
    flat = checkpoint(model)
    ported = STYLES[style](flat)
    same = tv.diff(flat, ported)
    assert not values_that_differ(same) and not same.not_compared, values_that_differ(same) or same.not_compared
    assert f"same values under other names: {len(flat)} of {len(flat)} arrays" in same.table.headline
    leaves, treedef = jax.tree.flatten(ported)
    paths = [row.keystr for row in tv.walk(ported).leaves]
    is_last = ([*MODELS].index(model) + [*STYLES].index(style)) % 2  # of each model and of each style
    i = len(leaves) - 1 if is_last else len(leaves) // 3
    changed = leaves[i].copy()
    changed.reshape(-1)[changed.size * 2 // 3] += 1
    (found,) = values_that_differ(tv.diff(flat, treedef.unflatten([*leaves[:i], changed, *leaves[i + 1 :]])))
    assert f"is {paths[i]} in the other" in found.hint and "; 1 of " in found.hint, (paths[i], str(found))


# What was asked in public threads


def test_flax_5110_a_target_without_a_sharding_differs_from_what_was_saved_with_one():
    sharding = jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()), "d"), jax.sharding.PartitionSpec("d")
    )
    n = len(jax.devices())
    saved_array = jax.device_put(f32(n), sharding)
    bare, whole = jax.ShapeDtypeStruct((n,), np.float32), jax.ShapeDtypeStruct((n,), np.float32, sharding=sharding)
    for left, right in ((bare, whole), (whole, bare), *[(bare, saved_array)] * (n > 1)):
        (found,) = tv.diff({"w": left}, {"w": right}).differences
        assert found.kind == "sharding" and "none" in (found.left, found.right)
        assert found.hint == "a checkpoint is restored with the sharding of the target"
    assert not tv.diff({"w": bare}, {"w": jax.device_put(f32(n))}).differences, "on one device nothing is lost"


def test_transformers_12545_and_12554_what_a_port_left_out_or_changed_is_named_and_tied_weights_are_the_same():
    """A head that is tied, a buffer that was not saved, and one array that came out otherwise."""
    flat = checkpoint("BERT")
    torch = flat | {"cls.decoder.weight": flat["embeddings.word_embeddings.weight"], "position_ids": np.arange(9)}
    flax = nested(
        as_flax(
            flat
            | {
                "encoder.layer.1.output.dense.weight": flat["encoder.layer.1.output.dense.weight"]
                .T.copy()
                .reshape(D, F)
            }
        )
    )
    found = tv.diff(torch, flax, like="values").differences
    assert [(each.path, each.kind) for each in found if each.kind != "value"] == [("['position_ids']", "missing")]
    assert [each.path for each in found if each.kind == "value"] == ["['encoder.layer.1.output.dense.weight']"]


def test_diffusers_523_and_jax_22101_convolutions_and_dicts_in_another_order_are_the_same():
    unet = {
        "conv_in.weight": f32(4, 3, 3, 2),
        "time.linear_1.weight": f32(6, 5),
        "down_blocks.0.conv.weight": f32(8, 4, 3, 3),
    }
    flax = {name.replace("weight", "kernel"): np.moveaxis(x, (0, 1), (-1, -2)) for name, x in reversed(unet.items())}
    same = tv.diff(unet, nested(flax), like="values")
    assert not same.differences and "same values under other names: 3 of 3 arrays" in same.table.headline
    swapped = {"a": f32(3), "b": f32(3) + 1}, {"a": f32(3) + 1, "b": f32(3)}
    assert len(tv.diff(*swapped).differences) == 2 and not tv.diff(*swapped, like="values").differences


def test_maxdiffusion_484_and_spd_681_a_restored_state_is_equal_or_the_largest_gap_is_named_first():
    state = {"params": PARAMS, "opt_state": STATE, "step": 3}
    back = {"params": saved(PARAMS), "opt_state": saved(STATE), "step": np.int64(3)}
    assert not tv.diff(state, back, like="values").differences
    back["params"]["w"][0, 1] += 2
    back["opt_state"]["0"]["nu"]["w"][1, 1] += 1
    del back["params"]["layers"]["3"]
    found = tv.diff(state, back, like="values")
    assert [(each.path, each.kind) for each in found.differences] == [
        ("['opt_state'][0].nu['w']", "value"),
        ("['params']['layers'][3]['b']", "missing"),
        ("['params']['w']", "value"),
    ]
    assert "largest gap: ['params']['w']" in found.table.headline[-1]


def test_a_copy_in_bfloat16_is_the_same_after_rounding_and_one_value_that_is_not_is_counted():
    x = f32(3, 5)
    (found,) = tv.diff({"w": x}, {"w": x.astype(ml_dtypes.bfloat16)}).differences
    assert str(found) == "['w']: dtype: float32 → bfloat16 (the same after rounding to bfloat16)"
    assert not tv.diff({"w": x}, {"w": x.astype(ml_dtypes.bfloat16)}, like="values").differences
    y = x.astype(ml_dtypes.bfloat16)
    y[1, 2] = 9
    assert "1 of 15 differ" in str(tv.diff({"w": x}, {"w": y}).differences[1])


@pytest.mark.parametrize("style", ["MaxText", "fused", "Linen with heads"])
def test_the_mapping_that_is_shown_can_be_given_and_written_by_hand(style):
    flat = checkpoint("Llama")
    ported = STYLES[style](flat)
    found = tv.diff(flat, ported)
    again = tv.diff(flat, ported, like="values", mapping=eval(repr(found.mapping)))
    assert not again.differences and again.mapping == found.mapping
    names = [*found.mapping]
    other = {**found.mapping, "lm_head.weight": found.mapping["embed_tokens.weight"]}
    del other["embed_tokens.weight"]
    wrong = tv.diff(flat, ported, like="values", mapping=other).differences
    assert {each.path for each in wrong} >= {"['lm_head.weight']"} and len(names) == len(found.mapping)


def test_a_mapping_is_a_function_or_patterns_and_says_which_name_is_wrong():
    left = {f"layers.{i}.attn.q_proj.weight": f32(2, 3) + i for i in range(3)}
    right = {"layers": [{"attn": {"query": {"kernel": f32(2, 3).T + i + (i == 1)}}} for i in range(3)]}
    for mapping in (
        {"layers.*.attn.q_proj.weight": "layers/*/attn/query/kernel"},
        lambda name: name.replace("q_proj.weight", "query.kernel"),
    ):
        (found,) = tv.diff(left, right, like="values", mapping=mapping).differences
        assert found.path == "['layers.1.attn.q_proj.weight']" and "6 of 6 differ" in found.hint
    stacked = {"layers": {"q": np.stack([*left.values()], 1)}}
    assert not tv.diff(left, stacked, like="values", mapping=lambda _: "layers/q").differences
    with pytest.raises(ValueError, match=r"'layers.\*.q' is no array of the first tree, which has layers.0.attn"):
        tv.diff(left, right, mapping={"layers.*.q": "layers/*/attn/query/kernel"})
    with pytest.raises(ValueError, match="like='names', values=True: pass like="):
        tv.diff(left, right, like="names")


def test_only_what_was_read_is_called_the_same():
    x, shape = f32(3, 4), jax.ShapeDtypeStruct((3, 4), np.float32)
    unread = tv.diff({"a": x, "c": f32(2)}, {"b": shape, "c": f32(2)}, like="values")
    assert [(each.path, each.kind) for each in unread.differences] == [("['a']", "missing")]
    assert [*unread.not_compared.values()] == ["shape only"]
    assert not tv.diff({"a": x, "b": x}, {"a": x}, like="values").differences, "tied"
    huge = np.broadcast_to(np.float32(1), (1 << 20, 1 << 20))
    assert tv.diff({"a": huge, "b": f32(2)}, {"c": np.ones((1 << 10, 2), np.float32), "d": f32(2)}).mapping == {
        "b": "d"
    }


def test_of_more_arrays_than_are_matched_none_is_called_missing(monkeypatch):
    monkeypatch.setattr(rearranged, "_MOST_ARRAYS", 3)
    tree = {f"w{i}": np.arange(4.0) + i for i in range(4)}
    with pytest.raises(ValueError, match="at most 3 arrays"):
        tv.diff(tree, {f"v{i}": array for i, array in enumerate(tree.values())}, like="values")
