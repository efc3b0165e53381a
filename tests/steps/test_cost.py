"""`treeviz.cost`: counts against XLA's own, Flax' table and sums by hand; who pays; what is kept; what devices move."""

from __future__ import annotations

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.cost import Sizes, abstract_mesh, llama, matmul_flops
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treeviz as tv
from treeviz.cli import main
from treeviz.cli.output import TROUBLE
from treeviz.steps.compiles.step_arguments import sown_step
from treeviz.steps.cost import _split
from treeviz.steps.tracing.payers import flops_in, work_of
from treeviz.steps.tracing.primitives import equations


def xla_flops(traced) -> dict[str, float]:
    """What XLA counts in a program that is lowered and not compiled."""
    analysis = traced.lower().cost_analysis()
    return analysis[0] if isinstance(analysis, list) else analysis


def shapes(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "shape") else x, tree)


def leaf(view, path: str) -> dict[str, float]:
    (row,) = [row for row in view.to_records() if row["path"] == path]
    return row


def convolution(stride=1, padding="SAME", **options):
    def convolve(image, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(image, kernel, (stride, stride), padding, dimension_numbers=numbers, **options)

    return convolve


X, IMAGE, KERNEL = np.ones((8, 16), np.float32), np.ones((2, 9, 9, 6), np.float32), np.ones((3, 3, 6, 8), np.float32)
OPERATIONS = [
    (lambda x: x @ x.T, X),
    (lambda x: jnp.einsum("ij,ik->jk", x, x), X),
    (convolution(), IMAGE, KERNEL),
    (convolution(2, "VALID"), IMAGE, KERNEL),
    (convolution(rhs_dilation=(2, 2)), IMAGE, KERNEL),
    (convolution(padding=[(2, 2), (2, 2)], lhs_dilation=(2, 2)), IMAGE, KERNEL),
    (convolution(feature_group_count=3), IMAGE, np.ones((3, 3, 2, 6), np.float32)),
    (convolution(batch_group_count=2), IMAGE, KERNEL),
    (lambda x: jax.nn.softmax(x) + jnp.log1p(x) - lax.rsqrt(x) / 3, X),
    (lambda x: jnp.where(x > 0, x**7, x**-2) + jnp.square(x), X),
    (lambda x: lax.clamp(0.0, x, 1.0).astype(jnp.bfloat16) + jax.nn.sigmoid(x), X),
    (lambda x: x.sum(1) + x.max(1) + (x > 0).any(1), X),
    (lambda x: (lax.argmax(x, 1, np.int32), x.T[::-1].reshape(4, 32), jnp.concatenate([x, x])), X),
    (lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID"), X),
    (lambda x, i: (x[i], x.at[i].add(1.0), jnp.take(x, i, 0)), X, np.arange(3)),
    (lambda x: (x + 0.0, 0.0 - x, 1.0 * x, x / 1.0, 0.0 * x), X),
]


@pytest.mark.oldest_jax
def test_operations_count_as_xla_counts_them():
    for function, *args in OPERATIONS:
        traced = jax.jit(function).trace(*args)
        works = [work_of(eqn) for eqn, around in equations(traced.jaxpr) if is_counted(eqn, around)]
        theirs = xla_flops(traced)
        assert sum(work.flops for work in works) == theirs["flops"], function
        assert sum(work.transcendentals for work in works) == theirs.get("transcendentals", 0), function


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="counts are those of a newer threefry")
def test_random_numbers_count_nearly_as_xla_counts_them():
    for draw in (lambda key: jax.random.bits(key, (100,)), lambda key: jax.random.split(key, 100)):
        traced = jax.jit(draw).trace(jax.random.PRNGKey(0))
        assert flops_in(traced.jaxpr) == pytest.approx(xla_flops(traced)["flops"], rel=0.1)


def is_counted(eqn, around) -> bool:
    """Not a call, and not in the function that a reduction or a scatter applies."""
    calls = ("jit", "pjit", "custom_jvp_call")
    return eqn.primitive.name not in calls and all(outer.primitive.name in calls for outer in around)


TEN = (
    "jax_documentation_mlp",
    "flax_linen_mnist",
    "flax_resnet_with_batch_normalisation",
    "flax_language_model",
    "flax_nnx_mnist",
    "equinox_mnist",
    "haiku_mnist",
    "optax_adversarial_training",
    "nano_gpt",
    "e3nn_tetris",
)


@pytest.mark.parametrize("name", TEN)
def test_a_published_step_counts_as_xla_counts_it(name):
    pytest.importorskip("optax")
    from wild import libraries, projects, sequences
    from wild.published import PUBLISHED

    assert libraries and projects and sequences  # they register their steps
    step, state, batch, _ = PUBLISHED[name][1]()
    args = *state, *batch(0)
    with jax.numpy_rank_promotion("allow"):
        view = tv.cost(step, *args)
        theirs = xla_flops(sown_step(step, args, {}).traced)["flops"]
    assert view.totals["flops"] == pytest.approx(theirs, rel=0.02)  # JAX simplifies some before it lowers them
    by_row = sum(view.table.rolled(view.table.columns[name])[0] for name in ("forward", "backward", "update"))
    assert view.totals["flops"] == pytest.approx(by_row)


def layers(params, x):
    with jax.named_scope("first"):
        h = jnp.tanh(x @ params["a"])

    @jax.checkpoint
    def block(w, h):
        with jax.named_scope("block"):
            return jnp.tanh(h @ w) * h

    h, _ = lax.scan(lambda h, w: (jnp.sin(h @ w), None), block(params["b"], h), params["s"])
    return jnp.sum(h * h)


@jax.jit
def step(params, x):
    loss, grads = jax.value_and_grad(layers)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


PARAMS = shapes({"a": np.ones((4, 5), "f"), "b": np.ones((5, 5), "f"), "s": np.ones((3, 5, 5), "f")})
BATCH = jax.ShapeDtypeStruct((2, 4), "float32")


@pytest.mark.oldest_jax
def test_a_leaf_pays_for_what_reads_it_and_for_its_gradient():
    view = tv.cost(step, PARAMS, BATCH)
    product = 2 * 2 * 5  # FLOPs of a product of h[2, n] and w[n, 5], for each n
    of = {name: leaf(view, f"['params']['{name}']") for name in "abs"}
    assert [of[name]["forward"] for name in "abs"] == [4 * product, 5 * product, 3 * 5 * product]
    # The batch has no gradient; a checkpoint runs the product again.
    assert [of[name]["backward"] for name in "abs"] == [4 * product, 3 * 5 * product, 3 * 2 * 5 * product]
    assert [of[name]["update"] for name in "abs"] == [2 * 20, 2 * 25, 2 * 75]
    assert [of[name]["gradient"] for name in "abs"] == [4 * 20, 4 * 25, 4 * 75]
    assert of["b"]["recomputed"] == 5 * product and view.totals["transcendentals"] == 10 + 10 + 30 + 10 + 30
    scopes = {row["path"] for row in view.to_records() if row["path"].startswith("['no leaf']")}
    assert {"['no leaf']['first']", "['no leaf']['block']"} < scopes
    assert not view.compiled and not view.collectives and not view.notes
    loss = tv.cost(layers, PARAMS, BATCH)
    assert [row.keystr for row in loss.find("forward:>90") if row.is_leaf] == ["['params']['b']", "['params']['s']"]


@pytest.mark.oldest_jax
def test_what_the_backward_pass_keeps_has_its_size_and_line():
    view = tv.cost(step, PARAMS, BATCH)
    kept = {(r.type, r.made): r for r in view.residuals if r.is_kept}
    # what the checkpoint and each turn of the scan get, the derivative of sin, and what the loss squares
    assert {key: r.bytes for key, r in kept.items()} == {
        ("float32[2,5]", "tanh"): 40,
        ("float32[3,2,5]", "scan"): 120,
        ("float32[3,2,5]", "cos"): 120,
        ("float32[2,5]", "sin"): 40,
    }
    assert kept["float32[2,5]", "tanh"].path == "params['a']"
    assert re.fullmatch(r"test_cost\.py:\d+ in layers", kept["float32[2,5]", "tanh"].line)
    (dropped,) = [r for r in view.residuals if not r.is_kept]
    assert (dropped.made, dropped.bytes, dropped.path) == ("tanh", 40, "params['b']")
    assert view.totals["kept"] == 320 and view.totals["dropped"] == 40
    assert "kept for the backward pass, the largest first:" in view.text(width=80)
    found = json.loads(view.json())["cost"]
    assert found["totals"]["kept"] == 320 and len(found["residuals"]) == 5


@pytest.mark.parametrize("scanned", [True, False])
def test_a_transformer_on_a_mesh_needs_no_device(scanned):
    sizes = Sizes(2, 64, 4, 2, 128, 256, 16, 32)
    view = tv.cost(*flat(llama(sizes, abstract_mesh(data=2, fsdp=4, tensor=2), scanned)), memory=1e6)
    assert view.n_devices == 16
    # norms, softmax and the loss are the rest
    assert matmul_flops(sizes) < view.totals["forward"] < 1.15 * matmul_flops(sizes)
    n_params = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 2 * 256 * 64
    assert view.totals["arguments"] == pytest.approx(10 * n_params / 8, rel=0.05)  # and norms and tokens
    assert view.totals["optimizer"] == pytest.approx(4 * view.totals["gradient"])
    # what a layer gets: the batch is divided by 8 of the 16 devices
    by_type = {r.type: r.bytes for r in view.residuals if r.is_kept}
    bytes_of_layer = 2 * (16 // 8) * 32 * 64
    n_kept, shape = (2, "2,16,32,64") if scanned else (1, "16,32,64")
    assert by_type[f"bfloat16[{shape}]"] == n_kept * bytes_of_layer
    assert "fits" in view.table.headline[1] and view.totals["peak"] < 1e6


def test_a_mesh_may_be_given_to_jit():
    mesh = Mesh(jax.devices(), "d")
    whole, divided = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("d",)))
    jitted = jax.jit(step.__wrapped__, in_shardings=(whole, divided))
    view = tv.cost(jitted, PARAMS, jax.ShapeDtypeStruct((16, 4), "float32"))
    assert view.n_devices == 8
    assert view.totals["arguments"] == 4 * (20 + 25 + 75) + 4 * 2 * 4
    assert view.totals["kept"] == tv.cost(step, PARAMS, BATCH).totals["kept"]


def flat(pair):
    return pair[0], *pair[1]


def shard_map(function, mesh, in_specs, out_specs):
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    from jax.experimental.shard_map import shard_map

    return shard_map(function, mesh, in_specs, out_specs, check_rep=False)


@pytest.mark.oldest_jax
def test_collectives_belong_to_the_leaf_that_asks_for_them():
    mesh, spec = Mesh(jax.devices(), "d"), PartitionSpec

    def loss(params, x):
        w = lax.all_gather(params["sharded"], "d", tiled=True)
        return jnp.sum(jnp.tanh(x @ w) @ params["whole"])

    def of_device(params, x):
        grads = jax.grad(loss)(params, x)
        return {"sharded": grads["sharded"], "whole": lax.pmean(grads["whole"], "d")}

    specs = {"sharded": spec("d"), "whole": spec()}
    step = shard_map(of_device, mesh, (specs, spec("d")), specs)
    params = {"sharded": jnp.ones((16, 4)), "whole": jnp.ones((4, 3))}
    view = tv.cost(step, params, jnp.ones((8, 16)))
    found = [(c.name, c.path, c.axes, c.bytes) for c in view.collectives]
    assert ("all_gather", "params['sharded']", ("d",), 4 * 16 * 4) in found
    assert [c for c in found if "whole" in c[1]] == [(found[-1][0], "params['whole']", ("d",), 4 * 4 * 3)]
    assert {path for _, path, *_ in found} == {"params['sharded']", "params['whole']"}
    # each of eight devices multiplies [1, 16] by [16, 4]
    assert leaf(view, "['params']['sharded']")["forward"] == 8 * 2 * 16 * 4
    assert view.totals["communicated"] == sum(c.bytes for c in view.collectives)


def test_what_the_compiler_counts_stands_beside_and_is_explained():
    mesh = Mesh(jax.devices(), "d")
    whole, divided = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("d",)))
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), PARAMS)
    x = jax.ShapeDtypeStruct((16, 4), "float32", sharding=divided)
    view = tv.cost(step, params, x, compile=True)
    assert view.compiled["arguments"] == view.totals["arguments"] == 4 * (20 + 25 + 75) + 4 * 2 * 4
    assert all(c.is_compiled and c.name == "all-reduce" for c in view.collectives)
    # of the bodies of loops in all turns; the fourth is of the loss
    assert [(c.path, c.bytes) for c in view.collectives[:3]] == [
        ("params['s']", 300),
        ("params['b']", 100),
        ("params['a']", 80),
    ]
    assert leaf(view, "['params']['s']")["communicated"] == 300 and view.totals["communicated"] == 484
    found = {view.table[row].keystr: [note.text for note in notes] for row, notes in view.table.notes.items()}
    assert found["['params']['a']"][-1] == "all-reduce ×1: 80 B per device, added by the compiler"
    assert found[""] == [*view.notes]
    abstract = jax.ShapeDtypeStruct((16, 4), "float32", sharding=NamedSharding(abstract_mesh(d=8), PartitionSpec("d")))
    with pytest.raises(ValueError, match="compile=True needs devices"):
        tv.cost(step, PARAMS, abstract, compile=True)
    flops = next(note for note in view.notes if "FLOPs" in note)
    assert flops.startswith("XLA counts ") and "XLA counts the body of a loop once" in flops
    assert "all-reduce" in view.text() and "added by the compiler" in view.text()


def test_names_that_the_compiler_joins_are_taken_apart():
    assert _split("jit(step)/net/(transpose(jvp(a))/dot:(b:c)/add)") == [
        "jit(step)/net/transpose(jvp(a))/dot",
        "jit(step)/net/(b:c)/add",
    ]
    assert _split("jit(step)/mlp/(a/dot:b/(dot:sum))") == [
        f"jit(step)/mlp/{name}" for name in ("a/dot", "b/dot", "b/sum")
    ]
    assert _split("jit(step)/jvp(a)/dot") == ["jit(step)/jvp(a)/dot"]


def test_a_note_says_what_is_not_counted():
    def loss(w, x):
        h = lax.cond(x.sum() > 0, lambda h: h @ w, lambda h: h, x)
        h = lax.while_loop(lambda h: h.sum() < 9, lambda h: h @ w, h)
        return jax.pure_callback(lambda h: np.float32(0), jax.ShapeDtypeStruct((), "float32"), h)

    view = tv.cost(loss, jax.ShapeDtypeStruct((4, 4), "float32"), jax.ShapeDtypeStruct((2, 4), "float32"))
    assert leaf(view, "['w']")["forward"] == 2 * (2 * 2 * 4 * 4)
    assert [note.partition(",")[0] for note in view.notes] == [
        "Not counted",
        "A while loop counts as one turn",
        "Of a cond",
    ]
    assert "pure_callback ×1" in view.notes[0]


@pytest.mark.oldest_jax
def test_a_layer_that_is_jitted_once_is_paid_by_each_of_its_leaves():
    layer = jax.jit(lambda w, x: jnp.tanh(x @ w))

    def loss(layers, x, n_layers):
        for i in range(n_layers):  # a Python number is static in a function that is not jitted
            x = layer(layers[i], x)
        return x.sum()

    view = tv.cost(jax.grad(loss), [jax.ShapeDtypeStruct((4, 4), "float32")] * 3, BATCH, 3)
    n = 2 * 2 * 4 * 4
    assert [leaf(view, f"['layers'][{i}]")["forward"] for i in range(3)] == [n] * 3
    assert [leaf(view, f"['layers'][{i}]")["backward"] for i in range(3)] == [n, 2 * n, 2 * n]


def test_a_product_that_passes_back_is_not_paid_by_what_is_added_before():
    def loss(p, x):
        return jnp.sum((x * p["scale"] + p["place"]) @ p["w"] * p["mask"])

    params = shapes({"mask": np.ones((2, 3), "f"), "place": np.ones((2, 4), "f"), "scale": np.ones((2, 4), "f")})
    params["w"] = jax.ShapeDtypeStruct((4, 3), "float32")
    view = tv.cost(jax.value_and_grad(loss), params, BATCH)
    of = {name: leaf(view, f"['p']['{name}']") for name in params}
    assert {name: row["forward"] for name, row in of.items()} == {"mask": 6, "place": 8, "scale": 8, "w": 48}
    assert of["w"]["backward"] == 2 * 48 and of["mask"]["backward"] <= 2 * 6


def test_the_gradient_of_a_bias_under_vmap_is_paid_by_the_bias():
    loss = lambda p, x: jnp.sum(jax.vmap(lambda row: p["w"] @ row + p["b"])(x) ** 2)
    params = shapes({"b": np.ones(3, "f"), "w": np.ones((3, 4), "f")})
    view = tv.cost(jax.grad(loss), params, BATCH)
    assert leaf(view, "['p']['b']")["backward"] == 3  # the sum over two examples
    assert leaf(view, "['p']['w']")["backward"] == 2 * 2 * 3 * 4


IMAGES, ROWS, WORDS = np.ones((2, 6, 6, 3), "f"), np.ones((2, 5, 8), "f"), np.ones((2, 5), "i")
# Modules of Linen, an input, and how often a loop in it runs, since Flax counts one turn.
LINEN = {
    "Dense": (lambda nn, x: nn.Dense(6)(nn.gelu(nn.Dense(5, use_bias=False)(x))), ROWS, 1),
    "Conv": (lambda nn, x: nn.Conv(4, (3, 3), strides=2)(nn.ConvTranspose(4, (2, 2))(x)), IMAGES, 1),
    "pooled": (lambda nn, x: nn.max_pool(nn.Conv(6, (3, 3), feature_group_count=3)(x), (2, 2)).mean((1, 2)), IMAGES, 1),
    "LayerNorm": (lambda nn, x: nn.LayerNorm()(nn.GroupNorm(2)(x)), ROWS, 1),
    "BatchNorm": (lambda nn, x: nn.BatchNorm(use_running_average=True)(x), ROWS, 1),
    "Embed": (lambda nn, x: nn.Embed(11, 8).attend(nn.Embed(11, 8)(x)), WORDS, 1),
    "attention": (lambda nn, x: nn.MultiHeadDotProductAttention(2)(x), ROWS, 1),
    "gated": (lambda nn, x: nn.softmax(nn.swish(nn.Dense(8)(x)) * nn.Dense(8)(x)), ROWS, 1),
    "DenseGeneral": (lambda nn, x: nn.remat(nn.DenseGeneral)((2, 3), axis=(-2, -1))(x), ROWS, 1),
    "RNN": (lambda nn, x: nn.RNN(nn.SimpleCell(4))(x), ROWS, 5),
}


@pytest.mark.parametrize("name", LINEN)
def test_flax_counts_the_same(name):
    linen = pytest.importorskip("flax.linen")
    if name == "RNN" and not hasattr(jax.api_util, "debug_info"):
        pytest.skip("no release of Flax scans with jax before 0.4.38 or so")
    function, x, turns = LINEN[name]

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            return function(linen, x)

    model, key = Model(), jax.random.key(0)
    view = tv.cost(model.apply, jax.eval_shape(model.init, key, x), x)
    table = model.tabulate(key, x, compute_flops=True, console_kwargs={"width": 400, "color_system": None})
    (theirs,) = re.findall(r"│ +│ Model +│[^│]*│[^│]*│ ([\d,]+) +│", table)
    assert view.totals["flops"] == pytest.approx(turns * int(theirs.replace(",", "")), rel=0.01)
    scopes = {row["path"].split("']['")[-1].removesuffix("']") for row in view.to_records()}
    assert name not in ("LayerNorm", "attention") or any(scope.endswith("_0") for scope in scopes)


def recurrent(p, x):
    return lax.scan(lambda h, x: (jnp.tanh(h @ p["h"] + x @ p["x"]), h), jnp.zeros((2, 4)), x)


def heads(p, x):
    q, k = (jnp.einsum("bnd,dhk->bhnk", x, p[name]) for name in "qk")
    return jnp.einsum("bhnm,bmd->bhnd", jax.nn.relu(jnp.einsum("bhnk,bhmk->bhnm", q, k)), x)


# By hand: products of b=2 examples, n=5 places, d=8 features; h=3 heads of k=4.
BY_HAND = [
    (lambda p, x: jax.vmap(lambda x: p["w"] @ x + p["b"])(x), {"w": (3, 8), "b": (3,)}, (2, 8), 2 * (2 * 3 * 8 + 3)),
    (recurrent, {"h": (4, 4), "x": (8, 4)}, (5, 2, 8), 5 * (2 * 2 * 4 * (4 + 8) + 2 * 4)),
    (heads, {"q": (8, 3, 4), "k": (8, 3, 4)}, (2, 5, 8), 2 * 2 * 3 * 5 * 4 * (8 + 8 + 5) + 2 * 3 * 25 * (1 + 2 * 8)),
    (lambda p, x: convolution(padding="VALID")(x, p["w"]), {"w": (3, 3, 2, 4)}, (2, 6, 6, 2), 2 * 2 * 16 * 4 * 9 * 2),
]


@pytest.mark.oldest_jax
@pytest.mark.parametrize(("function", "params", "x", "flops"), BY_HAND)
def test_flops_are_those_counted_by_hand(function, params, x, flops):
    array = lambda shape: jax.ShapeDtypeStruct(shape, "float32")
    view = tv.cost(function, {name: array(shape) for name, shape in params.items()}, array(x))
    assert view.totals["flops"] == flops


def test_the_command_shows_what_a_function_returns(tmp_path, monkeypatch, capsys):
    code = """
import jax, jax.numpy as jnp
def made():
    step = jax.grad(lambda w, x: jnp.sum((x @ w) ** 2))
    return step, (jax.ShapeDtypeStruct((4, 3), "float32"), jax.ShapeDtypeStruct((2, 4), "float32"))
def wrong():
    return made()[0]
"""
    (tmp_path / "cost_of_a_step.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert main(["cost", "cost_of_a_step:made", "--memory", "80GB", "--html", "cost.html"]) == 0
    printed = capsys.readouterr()
    assert "of 80.0 GB: fits" in printed.out and printed.err == "Wrote cost.html\n"
    assert main(["cost", "cost_of_a_step:made", "--find", "backward:>10", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["totals"]["forward"] == 2 * 2 * 3 * 4
    assert main(["cost", "cost_of_a_step:wrong"]) == TROUBLE
    assert "return step, (params, batch)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["cost", "cost_of_a_step:made", "--memory", "many"])
