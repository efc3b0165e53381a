"""Findings of one cause are one, the cause first; healthy models have none. Each model is small, and watched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treeviz as tv
from treeviz.steps.findings.finding import Finding

N_STEPS = 40


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32) / np.sqrt(shape[0])


def dense(i: int, n_in: int, n_out: int) -> dict:
    return {"b": normal(n_out, seed=i) * 0.1, "w": normal(n_in, n_out, seed=i)}


def apply(layer: dict, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"].reshape((1,) * (x.ndim - 1) + (-1,))


def stack(n: int, size: int = 8) -> dict:
    return {**{f"l{i}": dense(i, size, size) for i in range(n)}, "out": dense(n, size, 1)}


def mlp(activation):
    def loss(params, x, y):
        for i in range(len(params) - 1):
            x = activation(apply(params[f"l{i}"], x))
        return jnp.mean((apply(params["out"], x) - y) ** 2)

    return loss


def batch(step: int) -> tuple:
    x = normal(8, 8, seed=1000 + step) * 3
    return x, np.tanh(x[:, :1])


def watched(loss, params, batch=batch, n_steps: int = N_STEPS, rate: float = 1e-2, **how) -> tv.GradientInspector:
    """The inspector of a run of plain gradient descent."""
    inspector = tv.GradientInspector(**how)

    @jax.jit
    def update(params, *batch):
        grads = jax.grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - jnp.asarray(rate, p.dtype) * g, params, grads)

    step = inspector.watch(update)
    for i in range(n_steps):
        params = step(params, *batch(i))
    return inspector


def findings(*run, **how) -> list[Finding]:
    return watched(*run, **how).findings


def attention(params, x):
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    q, k, v = (apply(params[name], x) for name in "qkv")
    return x + apply(params["o"], jax.nn.softmax(q @ k.transpose(0, 2, 1)) @ v)


def test_the_key_bias_of_attention_is_information_and_no_other_leaf_is_named():
    params = {f"layer{i}": {name: dense(i, 4, 4) for name in "kovq"} for i in range(2)}

    def loss(params, x, y):
        x = x.reshape(4, 4, 4)
        for layer in params.values():
            x = attention(layer, x)
        return jnp.mean((x.sum((1, 2)) - y[:4, 0]) ** 2)

    (found,) = findings(loss, params)
    assert (found.kind, found.severity, found.leaf) == ("redundant", "info", 0)
    assert "['layer0']['k']['b'], ['layer1']['k']['b'] is rounding error" in found.sentence


def test_the_bias_before_a_batch_normalisation_is_information():
    params = {f"conv{i}": {"bias": normal(6), "kernel": normal(3, 3, 6, 6, seed=i)} for i in range(2)}

    def loss(params, x, y):
        x = (x.reshape(-1, 1) * np.arange(1, 7, dtype=np.float32)[None]).reshape(4, 4, 4, 6)
        for layer in params.values():
            how = {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
            x = jax.lax.conv_general_dilated(x, layer["kernel"], (1, 1), **how) + layer["bias"][None, None, None]
            x = x - x.mean((0, 1, 2), keepdims=True)
            x = jnp.tanh(x * jax.lax.rsqrt((x * x).mean((0, 1, 2), keepdims=True) + 1e-5))
        return jnp.mean((x.sum((1, 2, 3)) - y[:4, 0]) ** 2)

    (found,) = findings(loss, params)
    assert (found.kind, found.severity, found.leaves) == ("redundant", "info", (0, 2))


def test_nothing_is_said_of_an_actor_beside_a_critic_whose_returns_are_large():
    sizes = [(8, 16), (16, 16), (16, 16), (16, 2), (8, 16), (16, 16), (16, 16), (16, 1)]
    params = {f"Dense_{i}": dense(i, *shape) for i, shape in enumerate(sizes)}

    def loss(params, x, y):
        actor, critic = (list(params.values())[at : at + 4] for at in (0, 4))
        heads = []
        for layers in (actor, critic):
            hidden = x
            for layer in layers[:3]:
                hidden = jnp.tanh(apply(layer, hidden))
            heads.append(apply(layers[3], hidden))
        policy = -jnp.mean(jax.nn.log_softmax(0.1 * heads[0])[:, 0] * (y[:, 0] - y.mean()))
        return policy + jnp.mean((heads[1] - 300 - 100 * y) ** 2)

    inspector = watched(loss, params, rate=1e-6)
    norms = dict(zip(inspector.history.sources["grads"].paths, inspector.history.last()[1]["norm"], strict=True))
    assert norms["['Dense_5']['w']"] > 1000 * norms["['Dense_1']['w']"]
    assert inspector.findings == []


def test_the_states_of_equinox_are_not_called_dead():
    eqx = pytest.importorskip("equinox")
    model = (eqx.nn.BatchNorm(8, axis_name="batch", mode="batch"), eqx.nn.Linear(8, 1, key=jax.random.key(0)))
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss(arrays, x, y):
        norm, linear = eqx.combine(arrays, rest)
        state = eqx.nn.State((norm, linear))
        x, _ = jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)
        return jnp.mean((jax.vmap(linear)(x) - y) ** 2)

    inspector = watched(loss, arrays)
    assert any("state_index.init" in path for path in inspector.history.sources["grads"].paths)
    assert inspector.findings == []


def test_a_dead_layer_is_the_first_of_the_leaves_that_get_no_gradient_because_of_it():
    params = stack(6)
    params["l3"]["b"] = params["l3"]["b"] - 100
    (found,) = findings(mlp(jax.nn.relu), params)
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    names = [jax.tree_util.keystr(paths[leaf][0]) for leaf in found.leaves]
    assert (found.kind, found.path) == ("dead", "['l3']['w']") and names[:2] == ["['l3']['w']", "['l3']['b']"]
    assert set(names) == {f"['l{i}']['{leaf}']" for i in range(4) for leaf in "bw"} | {"['l4']['w']"}
    assert "and 8 other leaves were always zero" in found.sentence
    assert "It may be an earlier one: zeros stay zero in layers without biases" in found.advice


def test_fourteen_sigmoid_layers_vanish_with_depth_at_the_end_that_has_no_gradient():
    (found,) = findings(mlp(jax.nn.sigmoid), stack(14))
    assert (found.kind, found.severity) == ("vanishing", "warning") and found.path.startswith("['l0']")
    assert found.sentence.startswith("grads vanish with depth: from ['l13']") and len(found.leaves) == 28
    assert 3 < dict(found.numbers)["factor"] ** (1 / 13) < 6


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut behind l3", "zeros from l1 or later"])
def test_a_layer_with_a_bias_is_named_only_where_those_behind_it_have_none_and_give_zeros(is_cut):
    params = stack(4)
    for name in ("l0", "l2", "l3"):
        params[name]["b"][:] = 0
    if not is_cut:
        params["l1"]["b"][:] = -100

    def loss(params, x, y):
        for i in range(4):
            x = jax.nn.relu(apply(params[f"l{i}"], x))
        return jnp.mean((apply(params["out"], jax.lax.stop_gradient(x) if is_cut else x) - y) ** 2)

    (found,) = (found for found in findings(loss, params, updates=True) if found.kind == "dead")
    assert (found.path, found.severity) == (("['l3']['w']", "info") if is_cut else ("['l1']['w']", "warning"))
    assert ("this one, or a later one" in found.advice) is not is_cut
    assert ("does not depend on ['l3']['w'], ['l3']['b']" in found.sentence) is is_cut


def test_what_the_step_does_not_use_is_information_and_hides_no_dead_layer(tmp_path):
    params = {**stack(4), "l1_norm": {"scale": np.ones(8, np.float32)}, "pooler": dense(9, 8, 8)}
    params["l2"]["b"] = params["l2"]["b"] - 100

    def loss(params, x, y):
        for i in range(4):
            x = jax.nn.relu(apply(params[f"l{i}"], x))
        return jnp.mean((apply(params["out"], x) - y) ** 2) + 0.0 * params["l1_norm"]["scale"].sum()

    inspector = watched(loss, params)
    inspector.save(tmp_path / "run.treeviz")
    for run in (inspector, tv.GradientInspector.load(tmp_path / "run.treeviz")):
        dead, unused = run.findings
        assert (dead.kind, dead.severity, dead.path, len(dead.leaves)) == ("dead", "warning", "['l2']['w']", 7)
        assert (unused.kind, unused.severity, unused.first) == ("dead", "info", 0)
        paths = run.history.sources["grads"].paths
        assert {paths[leaf] for leaf in unused.leaves} == {"['l1_norm']['scale']", "['pooler']['b']", "['pooler']['w']"}


@pytest.mark.parametrize("is_dead_behind", [False, True])
def test_a_leaf_without_gradients_in_a_layer_that_learns_is_information_and_hides_no_dead_layer(is_dead_behind):
    params = {**stack(2), "l0": {**dense(0, 8, 8), "square": np.zeros((8, 8), np.float32)}}
    if is_dead_behind:
        params["l1"]["b"][:] = -100

    def loss(params, x, y):
        x = jnp.tanh(apply(params["l0"], x) + (x @ params["l0"]["square"]) ** 2)
        return jnp.mean((apply(params["out"], jax.nn.relu(apply(params["l1"], x))) - y) ** 2)

    (found,) = findings(loss, params)
    if is_dead_behind:
        assert (found.path, found.severity, len(found.leaves)) == ("['l1']['w']", "warning", 6)
    else:
        assert (found.kind, found.path, found.severity) == ("dead", "['l0']['square']", "info")
        assert found.sentence == "grads['l0']['square'] was always zero, and others of its layer are not: 40 steps."
        assert found.advice.startswith("It cuts off nothing: all other leaves have gradients. ")


def test_weights_that_are_multiplied_with_zeros_are_a_warning():
    (found,) = findings(mlp(jnp.tanh), stack(3), lambda step: (0 * batch(step)[0], batch(step)[1]))
    assert (found.kind, found.path, found.severity, found.leaves) == ("dead", "['l0']['w']", "warning", (1,))
    assert found.advice.startswith(
        "Other leaves of its layer have gradients, so what it is multiplied with may be zero"
    )


@pytest.mark.parametrize(("scale", "kind"), [(0, "dead"), (1e-6, "redundant")])
def test_blocks_of_a_weight_that_the_data_do_not_feed_are_information(scale, kind):
    blocks = {"w[0,0] 4x0e,4x0e": 1, "w[1,1] 4x1o,4x1o": 1, "w[2,2] 4x1e,4x1e": scale, "w[3,3] 4x2e,4x2e": scale}
    params = {f"l{i}": {name: normal(4, 4, seed=i) for name in blocks} for i in range(3)}

    def loss(params, x, y, scales):
        parts = [x[:, :4] * scale for scale in scales]
        for layer in params.values():
            parts = [part @ w for part, w in zip(parts, layer.values(), strict=True)]
        return jnp.mean((sum(part.sum(1) for part in parts) - y[:, 0]) ** 2)

    def scaled(step):
        return *batch(step), np.float32([*blocks.values()])

    (found,) = findings(loss, params, scaled)
    assert (found.kind, found.severity, len(found.leaves)) == (kind, "info", 6)
    params["l1"] = jax.tree.map(np.zeros_like, params["l1"])  # so that l0 and l2 have no gradient at all
    first = findings(loss, params, scaled, rate=0.0)[0]
    assert (first.kind, first.severity) == ("dead", "warning") and {*range(4), *range(8, 12)} <= {*first.leaves}


@pytest.mark.parametrize("scale", [1, 1e-4])
def test_float16_that_has_nothing_below_its_smallest_number_underflows_and_is_not_dead(scale):
    params = jax.tree.map(lambda x: (x * 0.7).astype(np.float16), stack(6))
    loss = mlp(jax.nn.sigmoid)

    def in_float16(params, x, y):
        return loss(params, x.astype(jnp.float16), y.astype(jnp.float16)) * jnp.float16(scale)

    found = findings(in_float16, params)
    assert "dead" not in {finding.kind for finding in found}
    assert [finding.kind for finding in found if "underflow" in finding.kind] == ["underflow"] * (scale < 1)


def test_a_nan_of_the_forward_pass_is_one_finding_of_the_whole_tree():
    def loss(params, x, y):
        return mlp(jax.nn.relu)(params, x, jnp.log(y))

    def bad_at_20(step):
        x, y = batch(step)
        return x, np.where(step == 20, -1, np.abs(y) + 0.1)

    (found,) = findings(loss, stack(4), bad_at_20)
    assert (found.kind, found.path, found.leaf, found.first) == ("nonfinite", "", -1, 20)
    assert found.sentence == "10 of 10 leaves of grads were NaN or infinite at step 20."
    assert "in the forward pass, in the loss or its derivative, or in the batch" in found.advice


def test_a_nan_of_the_backward_pass_is_blamed_on_the_leaf_that_it_met_first():
    def loss(params, x, y):
        for i in range(4):
            x = jnp.tanh(apply(params[f"l{i}"], x))
            if i == 1:
                x = jnp.sqrt(jnp.abs(x * y[:, :1]))
        return jnp.mean(apply(params["out"], x) ** 2)

    (found,) = findings(loss, stack(4), lambda step: (batch(step)[0], np.full((8, 1), step != 20, np.float32)))
    assert (found.kind, found.path, found.first) == ("nonfinite", "['l1']['b']", 20)
    assert "10 of 10 leaves were struck in all" in found.sentence


def test_a_run_that_diverges_to_infinity_says_so():
    found = findings(mlp(jax.nn.gelu), stack(3), rate=30.0)[0]
    assert found.kind == "nonfinite" and " The training diverged: the norm had grown " in found.sentence


def test_one_bad_batch_is_one_finding_with_its_leaves_the_worst_first():
    def bad_at_30(step):
        x, y = batch(step)
        return x * (300 if step == 30 else 1), y

    inspector = watched(mlp(jax.nn.gelu), stack(4), bad_at_30, rate=1e-5)
    (found,) = inspector.findings
    norms = inspector.history.values("grads").latest
    times = norms[30] / np.median(norms[:20], axis=0)
    assert (found.kind, found.path, found.first, found.until) == ("spike", "", 30, 30)
    assert len(found.leaves) == np.sum(times > 10) and found.leaves[0] == np.argmax(times)
    assert f"; {len(found.leaves)} of 10 leaves jumped, " in found.sentence
    assert f" most: {float(f'{times.max():.3g}'):,.0f}×." in found.sentence


def test_nothing_is_said_of_gradients_in_a_branch_that_is_seldom_or_never_taken():
    def loss(params, x, y):
        return mlp(jax.nn.tanh)(params, x, y)

    @jax.jit
    def update(params, is_taken, x, y):
        def change(params):
            return jax.tree.map(lambda p, g: p - 1e-2 * g, params, jax.grad(loss)(params, x, y))

        return jax.lax.cond(is_taken, change, lambda params: params, params)

    for taken in ([], [0], [0, 30]):
        params, inspector = stack(2), tv.GradientInspector()
        step = inspector.watch(update)
        for i in range(90):
            params = step(params, i in taken, *batch(i))
        assert [found for found in inspector.findings if found.kind == "dead"] == []
