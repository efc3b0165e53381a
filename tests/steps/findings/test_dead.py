"""Which leaves without gradients are told, the cause first, and which are no fault: of small models under watch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trained_models import N_STEPS, apply, attention, batch, dense, findings, mlp, normal, stack, watched

import treeviz as tv


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
    assert (
        "The cause may be an earlier one: a layer without a bias, or with a bias of zero, passes zeros on"
        in found.advice
    )


def before_zero_biases() -> dict:
    params = stack(5)
    for name in ("l0", "l2", "l3", "l4"):
        params[name]["b"][:] = 0
    params["l1"]["b"][:] = -100
    return params


@pytest.mark.parametrize("n_steps", [20, 55])
def test_a_dead_layer_before_others_whose_biases_are_zero_is_named_from_the_first_finding_on(n_steps):
    first = findings(mlp(jax.nn.relu), before_zero_biases(), batch, n_steps)[0]
    assert (first.kind, first.severity, first.path) == ("dead", "error", "['l1']['w']")
    assert "tv.tap" in first.advice and "the cause is this layer or a later one" in first.advice


def test_a_loop_is_told_of_a_dead_layer_before_others_whose_biases_are_zero_and_of_no_other():
    told = []
    inspector = watched(mlp(jax.nn.relu), before_zero_biases(), on_finding=told.append)
    inspector.flush()
    assert [(found.kind, found.path) for found in told] == [("dead", "['l1']['w']")]
    with pytest.raises(tv.StopTraining, match="l1"):
        watched(mlp(jax.nn.relu), before_zero_biases(), raise_on="dead").flush()


def test_a_softmax_that_is_saturated_in_nearly_all_steps_is_a_possibility():
    params = {f"layer{i}": {name: dense(i, 4, 4) for name in "kovq"} for i in range(2)}

    def loss(params, x, y, sharp):
        x = x.reshape(4, 4, 4)
        for layer in params.values():
            x = attention({**layer, "q": jax.tree.map(lambda w: w * sharp, layer["q"])}, x)
        return jnp.mean((x.sum((1, 2)) - y[:4, 0]) ** 2)

    found = findings(loss, params, lambda step: (*batch(step), np.float32(1e6 if step % 15 else 1)))
    (told,) = (each for each in found if each.kind == "dead")
    assert told.severity == "info" and "A softmax or a sigmoid may be saturated" in told.advice
    assert len(told.leaves) == 8 and "and 7 other leaves were zero in 37 of 40 steps." in told.sentence
    always = findings(loss, params, lambda step: (*batch(step), np.float32(1e6)))[0]
    assert (always.kind, always.severity) == (
        "dead",
        "warning",
    ) and "softmax behind it that is saturated" in always.advice


@pytest.mark.parametrize(("sharp", "path"), [(400, ""), (1000, "['layer1']['k']['w']")])
def test_a_softmax_that_is_nearly_saturated_vanishes_with_its_query_and_key_or_is_not_told(sharp, path):
    params = {f"layer{i}": {name: dense(i, 4, 4) for name in "kovq"} for i in range(3)}

    def loss(params, x, y, sharp):  # an argument, so that it is compiled once
        x = x.reshape(4, 4, 4)
        for i, layer in enumerate(params.values()):
            x = attention({**layer, "q": jax.tree.map(lambda w: w * (sharp if i == 1 else 1), layer["q"])}, x)
        return jnp.mean((x.sum((1, 2)) - y[:4, 0]) ** 2)

    found = findings(loss, params, lambda step: (*batch(step), np.float32(sharp)))
    told = [each for each in found if each.severity != "info"]
    assert [(found.kind, found.path, len(found.leaves)) for found in told] == ([("vanishing", path, 4)] if path else [])


@pytest.mark.parametrize("bias", [5, 10, 20])
def test_the_layer_in_front_of_a_sigmoid_that_is_nearly_saturated_is_named_first_and_no_mask_is_blamed(bias):
    params = stack(4)
    params["l2"]["b"][:] = bias
    told = [found for found in findings(mlp(jax.nn.sigmoid), params) if found.severity != "info"]
    kind = "dead" if bias == 20 else "vanishing"
    assert [(found.kind, found.path, len(found.leaves)) for found in told] == (
        [(kind, "['l2']['w']", 6)] if bias > 5 else []
    )
    assert all("sigmoid" in found.advice and "did not change" in found.sentence for found in told if bias < 20)


@pytest.mark.parametrize("members", ["joined", "each"])
def test_a_dead_member_of_an_ensemble_is_told_whether_members_are_joined_or_not(members):
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *(stack(2) for _ in range(5)))

    def run(params):
        inspector = tv.GradientInspector(members=members)

        def one(params, x, y):
            grads = jax.grad(mlp(jax.nn.relu))(params, x, y)
            return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads)

        step = inspector.watch(jax.jit(jax.vmap(one, (0, None, None))))
        for i in range(N_STEPS):
            params = step(params, *batch(i))
        return [found for found in inspector.findings if found.severity != "info"]

    assert run(params) == []
    params["l1"]["b"][3] -= 100
    (found,) = run(params)
    assert (found.kind, found.path) == ("dead", "['l1']['w']" if members == "joined" else "['l1']['w'][3]")
    assert members == "each" or "were zero in at least one member of the ensemble: 40 steps." in found.sentence


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
    assert (found.path, found.severity) == ("['l3']['w']" if is_cut else "['l1']['w']", "error")
    assert ("this layer or a later one" in found.advice) is not is_cut
    if is_cut:  # as by a forgotten stop_gradient
        reason = "the loss does not depend on ['l0…3']['w'] ×4, ['l0…3']['b'] ×4, or only where it has no derivative."
        assert found.sentence == f"8 of 10 leaves of grads are zero in all 40 steps: {reason}"
        assert "between ['l3']['w'] and ['out']['w'] for stop_gradient" in found.advice


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
        assert (dead.kind, dead.severity, dead.path, len(dead.leaves)) == ("dead", "error", "['l2']['w']", 7)
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
        assert (found.path, found.severity, len(found.leaves)) == ("['l1']['w']", "error", 6)
    else:
        assert (found.kind, found.path, found.severity) == ("dead", "['l0']['square']", "info")
        assert found.sentence == "grads['l0']['square'] was zero in all 40 steps, unlike others in the same layer."
        assert found.advice.startswith("All other leaves have gradients. ")


def test_weights_that_are_multiplied_with_zeros_are_a_warning():
    (found,) = findings(mlp(jnp.tanh), stack(3), lambda step: (0 * batch(step)[0], batch(step)[1]))
    assert (found.kind, found.path, found.severity, found.leaves) == ("dead", "['l0']['w']", "warning", (1,))
    assert found.advice.startswith("Other leaves of its layer have gradients, so its input may be zero")


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
    assert (first.kind, first.severity) == ("dead", "error") and {*range(4), *range(8, 12)} <= {*first.leaves}


@pytest.mark.parametrize("scale", [1, 1e-4])
def test_float16_that_has_nothing_below_its_smallest_number_underflows_and_is_not_dead(scale):
    params = jax.tree.map(lambda x: (x * 0.7).astype(np.float16), stack(6))
    loss = mlp(jax.nn.sigmoid)

    def in_float16(params, x, y, scale):
        return loss(params, x.astype(jnp.float16), y.astype(jnp.float16)) * scale

    found = findings(in_float16, params, lambda step: (*batch(step), np.float16(scale)))
    assert "dead" not in {finding.kind for finding in found}
    assert [finding.kind for finding in found if "underflow" in finding.kind] == ["underflow"] * (scale < 1)


@pytest.mark.parametrize("of_last", [1.0, 1e-3], ids=["all lose digits", "the last is zero"])
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_gradients_of_float32_that_were_cast_to_float16_underflow_where_they_lose_their_digits(scale, of_last):
    def in_float16(params, x, y, scale, of_last):
        cast = jax.tree.map(lambda x: x.astype(jnp.float16).astype(x.dtype), params)
        hidden = jnp.tanh(apply(cast["l0"], x))
        return scale * (jnp.mean(hidden) + of_last * jnp.mean(apply(cast["out"], hidden)))

    factors = np.float32(scale), np.float32(of_last)
    told = findings(in_float16, stack(1), lambda step: (*batch(step), *factors))
    found = [each.kind for each in told if each.severity != "info"]
    assert found[:1] == ["underflow"] * (scale < 1) and "dead" not in found


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


@pytest.mark.parametrize("is_cut", [True, False])
def test_gradients_that_are_all_zero_are_blamed_on_what_cuts_them_off_only_where_the_step_shows_it(is_cut):
    def loss(params, x, y):
        x = jax.nn.relu(apply(params["l0"], x) - 1000)
        return jnp.mean((jnp.round(x) if is_cut else x).sum(axis=1) * y[:, 0])

    (found,) = findings(loss, stack(1))
    assert (found.kind, found.path, found.severity) == ("dead", "", "error")
    assert ("stop_gradient" in found.advice) is is_cut
    assert ("a ReLU far below zero" in found.advice) is not is_cut


def test_what_is_rounded_without_a_gradient_of_its_own_is_not_told_to_be_unused():
    def loss(params, x, y):
        return jnp.mean((apply(params["out"], jnp.round(apply(params["l0"], x))) - y) ** 2)

    (found,) = findings(loss, stack(1))
    assert (found.kind, found.severity) == ("dead", "info")
    assert found.sentence.endswith("or only where it has no derivative.") and "a rounding" in found.advice


def experts(names):
    """A loss with a router of experts of these names, of which `chosen` are."""

    def loss(params, x, y, chosen):
        x = jnp.tanh(apply(params["first"], x))
        scores = jnp.where(chosen, apply(params["moe"]["a_router"], x), -jnp.inf)
        each = jnp.stack([jax.nn.relu(apply(params["moe"][name]["up"], x)) for name in names], axis=-1)
        return jnp.mean((apply(params["out"], (jax.nn.softmax(scores)[:, None] * each).sum(-1)) - y) ** 2)

    moe = {name: {"up": dense(i, 8, 8)} for i, name in enumerate(names)}
    return loss, {"first": dense(8, 8, 8), "moe": {"a_router": dense(9, 8, len(names)), **moe}, "out": dense(7, 8, 1)}


@pytest.mark.parametrize(("since", "idle"), [(0, [0]), (0, [1, 2]), (60, [2])])
def test_experts_that_the_router_does_not_choose_are_told_as_such(idle, since):
    loss, params = experts([f"expert_{i}" for i in range(4)])

    def of_step(step):
        return *batch(step), np.array([step < since or i not in idle for i in range(4)])

    (found,) = (each for each in findings(loss, params, of_step, 170) if each.kind == "dead")
    assert (found.severity, len(found.leaves), found.first) == ("warning", 2 * len(idle), since)
    for i in idle:
        assert f"['moe']['expert_{i}']" in found.sentence and f"expert_{i}" not in found.advice
    assert found.advice.startswith("['moe']['expert_") and "The router may never choose this expert" in found.advice


def test_a_dead_layer_of_a_chain_is_no_expert_also_beside_another_network():
    def loss(params, x, y):
        other = jnp.mean((apply(params["z"]["l9"], x) - y) ** 2)
        x = apply(params["a"]["l1"], jax.nn.relu(apply(params["a"]["l0"], x)))
        return other + jnp.mean((apply(params["a"]["l2"], jax.nn.sigmoid(x + 200)) - y) ** 2)

    params = {"a": {"l0": dense(0, 8, 8), "l1": dense(1, 8, 8), "l2": dense(2, 8, 1)}, "z": {"l9": dense(3, 8, 1)}}
    dead = [
        found for found in findings(loss, params, rate=1e-4) if found.kind == "dead" and found.severity == "warning"
    ]
    assert all("router" not in found.advice for found in dead)


@pytest.mark.parametrize("has_bias_after", [True, False])
def test_gradients_that_are_all_zero_are_lost_behind_the_last_bias(has_bias_after):
    def loss(params, x, y):
        x = jax.nn.relu(apply(params["l0"], x) - 1000)
        x = jax.nn.relu(apply(params["l1"], x) - 1000) if has_bias_after else x @ params["l1"]["w"]
        return jnp.mean((x.sum(axis=1) - y[:, 0]) ** 2)

    params = {"l0": dense(0, 8, 8), "l1": dense(1, 8, 8)}
    if not has_bias_after:
        del params["l1"]["b"]
    (found,) = findings(loss, params)
    assert found.path == "" and found.advice.startswith(
        f"The last bias in use, grads['l{int(has_bias_after)}']['b'], gets no gradient either."
    )
    assert ("it may be any of them" in found.advice) is not has_bias_after
