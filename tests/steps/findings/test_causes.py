"""Findings of one cause are one, the cause first; healthy models have none. Each model is small, and watched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from norm_runs import Run
from trained_models import apply, attention, batch, dense, findings, mlp, normal, stack, watched


def test_the_key_bias_of_attention_is_information_and_no_other_leaf_is_named():
    params = {f"layer{i}": {name: dense(i, 4, 4) for name in "kovq"} for i in range(2)}

    def loss(params, x, y):
        x = x.reshape(4, 4, 4)
        for layer in params.values():
            x = attention(layer, x)
        return jnp.mean((x.sum((1, 2)) - y[:4, 0]) ** 2)

    (found,) = findings(loss, params)
    assert (found.kind, found.severity, found.leaf) == ("redundant", "info", 0)
    assert "['layer0']['k']['b'], ['layer1']['k']['b'] is zero but for rounding errors" in found.sentence


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


def test_fourteen_sigmoid_layers_vanish_with_depth_at_the_end_that_has_no_gradient():
    (found,) = findings(mlp(jax.nn.sigmoid), stack(14))
    assert (found.kind, found.severity) == ("vanishing", "warning") and found.path.startswith("['l0']")
    assert found.sentence.startswith("grads vanish with depth: from ['l13']") and len(found.leaves) == 28
    assert 3 < dict(found.numbers)["factor"] ** (1 / 13) < 6


def test_a_nan_of_the_forward_pass_is_one_finding_of_the_whole_tree():
    def loss(params, x, y):
        return mlp(jax.nn.relu)(params, x, jnp.log(y))

    def bad_at_20(step):
        x, y = batch(step)
        return x, np.where(step == 20, -1, np.abs(y) + 0.1)

    (found,) = findings(loss, stack(4), bad_at_20)
    assert (found.kind, found.path, found.leaf, found.first) == ("nonfinite", "", -1, 20)
    assert found.sentence == "10 of 10 leaves of grads were NaN or infinite at step 20."
    assert "in the forward pass, the loss or its derivative, or the batch" in found.advice


def test_a_nan_of_the_backward_pass_is_blamed_on_the_leaf_that_it_met_first():
    def loss(params, x, y):
        for i in range(4):
            x = jnp.tanh(apply(params[f"l{i}"], x))
            if i == 1:
                x = jnp.sqrt(jnp.abs(x * y[:, :1]))
        return jnp.mean(apply(params["out"], x) ** 2)

    (found,) = findings(loss, stack(4), lambda step: (batch(step)[0], np.full((8, 1), step != 20, np.float32)))
    assert (found.kind, found.path, found.first) == ("nonfinite", "['l1']['b']", 20)
    assert "10 of 10 leaves are affected in total" in found.sentence


def test_a_run_that_diverges_to_infinity_says_so():
    found = findings(mlp(jax.nn.gelu), stack(3), rate=30.0)[0]
    assert found.kind == "nonfinite" and " The training diverged: the norm had grown " in found.sentence


@pytest.mark.parametrize("is_rate", [True, False])
def test_gradients_that_jump_after_an_update_that_is_far_too_large_are_blamed_on_the_learning_rate(is_rate):
    run = Run()
    run.grads[200] *= 1000
    run.updates[199 if is_rate else 200] *= 1000
    (found,) = run.findings()
    assert (found.kind, found.first) == (("ratio", 199) if is_rate else ("spike", 200))
    assert found.advice.startswith("Look at that step's batch") is not is_rate


@pytest.mark.parametrize("n_bad", [1, 100])
def test_zeros_from_shortly_before_a_nan_that_lasts_are_of_its_cause(n_bad):
    run = Run()
    run.bad[200 : 200 + n_bad, 3:] = 5
    run.grads[190:, :3], run.grads[204:, 20:] = 0, 0
    kinds = [each.kind for each in run.findings()]
    assert kinds == (["nonfinite"] if n_bad > 1 else ["nonfinite", "dead", "dead"])
    run.grads[100:, :3] = 0
    assert [each.kind for each in run.findings()] == ["nonfinite", "dead"] + ["dead"] * (n_bad == 1)


@pytest.mark.parametrize("cause", ["rate", "batch", "neither"])
@pytest.mark.parametrize("step", [1, 200])
def test_a_nan_after_updates_that_are_far_too_large_is_blamed_on_the_learning_rate(cause, step):
    run = Run()
    run.bad[step:] = 5
    if cause != "neither":
        run.updates[step - 1] = run.params[step - 1] * 0.8
    if cause == "batch":
        run.grads[step - 1] *= 1000
    found = run.findings()[0]
    is_rate = cause == "rate" or (cause == "batch" and step == 1)  # there are no gradients to compare with
    assert (found.kind, found.first) == ("nonfinite", step)
    start = f"The learning rate is too high: the updates of step {step - 1} were 0.8 times the norm of the parameters"
    assert found.sentence.startswith(start) == is_rate == found.advice.startswith("Lower the learning rate")
    run.updates[:] = run.params * 1e-3
    run.updates[0] = run.params[0]  # long before
    assert step == 1 or not run.findings()[0].sentence.startswith("The learning rate")


def test_one_bad_batch_is_one_finding_with_its_leaves_the_worst_first():
    def bad_at_30(step):
        x, y = batch(step)
        return x * (300 if step == 30 else 1), y

    inspector = watched(mlp(jax.nn.gelu), stack(4), bad_at_30, rate=1e-5)
    (found,) = inspector.findings
    norms = inspector.history.values("grads").latest
    times = norms[30] / np.exp(np.median(np.log(norms[22:30]), axis=0))
    assert (found.kind, found.path, found.first, found.until) == ("spike", "", 30, 30)
    assert len(found.leaves) == np.sum(times > 10) and found.leaves[0] == np.argmax(times)
    assert f"; {len(found.leaves)} of 10 leaves jumped, " in found.sentence
    assert f" most: {float(f'{times.max():.3g}'):,.0f}×." in found.sentence
