"""A step with a planted fault, and the operation, file and line that are named for it."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections import namedtuple
from pathlib import Path

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from several_devices import first_devices
from watched import with_numbers

from treeviz.steps.nan_origin.locate import CannotLocateNan, locate_nan, locate_nan_in
from treeviz.steps.tracing.jax_private import transposes

pytestmark = pytest.mark.gpu

HERE = Path(__file__).name


def line_of(function, part: str) -> int:
    """The line in this file on which `part` stands, in `function`."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [first + i for i, line in enumerate(lines) if part in line]
    return found


def step_of(loss):
    """An update of the documentation's kind, whose gradients never leave it."""

    def update(w, x):
        value, grads = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * grads, value

    return jax.jit(update)


def log_loss(w, x):
    p = x * w
    return -jnp.mean(jnp.log(p))


def normed_loss(w, x):
    y = w * x
    return jnp.sum(y / jnp.max(y))


def trap_loss(w, x):
    y = w * x
    return jnp.sum(jnp.where(y > 0, jnp.sqrt(y), 0.0))


def exp_loss(w, x):
    e = jnp.exp(w * x)
    return jnp.sum(e / jnp.sum(e))


def scan_loss(w, x):
    def body(total, entry):
        total = total + jnp.log(entry) * w[0]
        return total, total

    return lax.scan(body, jnp.zeros((), w.dtype), x)[0]


@jax.custom_vjp
def scaled(x):
    return x * 2


def backward_of_scaled(x, g):
    nothing = x - x
    return (jax.jit(lambda g: g / nothing)(g),)


scaled.defvjp(lambda x: (x * 2, x), backward_of_scaled)


def custom_loss(w, x):
    def layer(y, _):
        return scaled(y), None

    return jnp.sum(lax.scan(layer, w * x, length=2)[0])


def attention(q, mask):
    def loss(q):
        scores = jnp.where(mask, q @ q.T, -jnp.inf)
        return jnp.sum(jax.nn.softmax(scores) @ q)

    return jax.value_and_grad(loss)(q)


def filled(shape, value=1.0, but=None, dtype=np.float32):
    """By NumPy: of `jnp.ones` and of `.at`, each shape is a program to compile."""
    x = np.full(shape, value, dtype)
    for place, other in (but or {}).items():
        x[place] = other
    return jax.device_put(x)


ONES = filled(4)


def test_a_log_of_zero_is_named_with_its_file_line_function_and_numbers():
    origin = locate_nan(step_of(log_loss), ONES, jnp.array([0.0, 0.5, 0.0, 0.98]))
    assert origin is not None
    assert (origin.primitive, origin.direction) == ("log", "forward")
    assert (Path(origin.file).name, origin.line) == (HERE, line_of(log_loss, "jnp.log"))
    assert origin.source == "return -jnp.mean(jnp.log(p))"
    assert origin.text == (
        f"In the forward pass, log at {HERE}:{origin.line} in log_loss produced 2 -Inf (of 4), "
        "the first at [0], which belongs to w[0] and x[0], from inputs in [0, 0.98]."
    )
    assert "jnp.log(x + eps)" in origin.advice
    (x,), (y,) = origin.inputs, origin.outputs
    assert (x.shape, x.dtype, x.least, x.greatest, x.nonfinite) == ((4,), "float32", 0.0, float(np.float32(0.98)), "")
    assert (y.n_nan, y.n_posinf, y.n_neginf, y.greatest) == (0, 0, 2, float(np.log(np.float32(0.98))))
    assert origin.reaches_outputs


def test_the_python_function_under_a_jit_and_the_jitted_one_have_the_same_origin():
    step, x = step_of(log_loss), jnp.array([0.0, 0.5, 0.2, 0.98])
    assert locate_nan(step, ONES, x) == locate_nan(inspect.unwrap(step), ONES, x)


def test_nothing_divided_by_nothing_is_named():
    origin = locate_nan(step_of(normed_loss), ONES, filled(4, 0.0))
    assert origin is not None
    assert (origin.primitive, origin.direction) == ("div", "forward")
    assert origin.line == line_of(normed_loss, "y / jnp.max(y)")
    assert origin.outputs[0].n_nan == 4
    assert "jnp.where(y == 0, 1, y)" in origin.advice


def test_the_derivative_that_where_hides_in_the_forward_pass_is_named_in_the_backward_pass():
    origin = locate_nan(step_of(trap_loss), ONES, jnp.array([0.0, 1.0, 2.0, 3.0]))
    assert origin is not None
    assert (origin.direction, origin.line) == ("backward", line_of(trap_loss, "jnp.sqrt"))
    assert origin.function == "trap_loss"
    assert origin.outputs[0].n_posinf == 1
    assert "turned it into NaN" in origin.text
    assert "jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)" in origin.advice


def test_an_exp_that_overflows_in_float16_is_named_and_not_the_division_that_makes_nan_of_it():
    origin = locate_nan(step_of(exp_loss), filled(3, dtype=jnp.float16), jnp.array([1, 20, 3], jnp.float16))
    assert origin is not None
    assert (origin.primitive, origin.direction) == ("exp", "forward")
    assert origin.line == line_of(exp_loss, "jnp.exp")
    assert origin.became == f"div at {HERE}:{line_of(exp_loss, 'e / jnp.sum')} in exp_loss"
    assert f"overflows above {math.log(65504):.4g}" in origin.advice
    assert origin.advice.endswith("or compute it in float32.")
    origin = locate_nan(step_of(exp_loss), filled(3), jnp.array([1.0, 200, 3]))
    assert origin is not None and origin.advice.endswith("or clip the argument.")


def test_the_end_of_the_domain_of_arccos_is_named_and_not_what_its_derivative_is_made_of():
    def loss(params, x):
        return jnp.mean(jnp.arccos(jnp.clip(params * x, -1, 1)))

    origin = locate_nan(jax.grad(loss), filled(3), jnp.array([0.5, 2.0, 0.1]))
    assert origin is not None and origin.direction == "backward"
    assert origin.advice.startswith("The derivative of arccos and arcsin is infinite at -1 and 1")


def test_the_iteration_of_a_scan_is_told():
    origin = locate_nan(step_of(scan_loss), ONES, filled(12, 1.0, {7: -1.0, 9: -1.0}))
    assert origin is not None
    assert (origin.primitive, origin.iterations) == ("log", (("scan", 7),))
    assert origin.line == line_of(scan_loss, "jnp.log")
    assert "in iteration 7 of scan, produced 1 NaN (of 1) from inputs in [-1, -1]" in origin.text


def test_a_scan_from_behind_and_the_iteration_of_a_loop_inside_another():
    def step(x):
        def outer(total, row):
            def inner(total, entry):
                return total + jnp.sqrt(entry), None

            return lax.scan(inner, total, row, reverse=True)[0], None

        return lax.scan(outer, 0.0, x)[0]

    origin = locate_nan(step, filled((3, 5), 1.0, {(1, 4): -1.0, (1, 2): -1.0}))
    assert origin is not None
    assert (origin.primitive, origin.iterations) == ("sqrt", (("scan", 1), ("scan", 4)))


def test_the_iteration_of_a_while_loop_is_told():
    def step(x):
        return lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, s[1] / (4.0 - s[0])), (0, x))

    origin = locate_nan(step, filled(2))
    assert origin is not None
    assert (origin.primitive, origin.iterations, origin.outputs[0].n_posinf) == ("div", (("while", 4),), 2)


def test_the_backward_pass_inside_a_scan_is_told_as_such():
    def step(w, x):
        def loss(w):
            # As in MaxText, the body also returns a number that is no array.
            return lax.scan(lambda c, entry: (c + jnp.sum(jnp.sqrt(w * entry)), {"moe_loss": 0.0}), 0.0, x)[0]

        return jax.grad(loss)(w)

    origin = locate_nan(step, jnp.array([1.0, 0.0]), filled(3))
    assert origin is not None
    assert (origin.direction, origin.line) == ("backward", line_of(step, "jnp.sqrt"))


def test_the_line_of_a_backward_rule_of_a_custom_vjp_is_named_and_where_the_function_is_used():
    step = step_of(custom_loss)
    step(ONES, ONES)  # JAX has its trace, without these lines
    origin = locate_nan(step, ONES, ONES)
    assert origin is not None
    assert (origin.primitive, origin.direction, origin.iterations) == ("div", "backward", (("scan", 1),))
    assert (Path(origin.file).name, origin.line) == (HERE, line_of(backward_of_scaled, "g / nothing"))
    assert origin.called_from == f"{HERE}:{line_of(custom_loss, 'scaled(')} in layer"
    rules = [rule for table in transposes() for p, rule in table.items() if p.name == "custom_lin"]
    assert [rule.__module__ for rule in rules] == ["jax._src.interpreters.ad"]  # JAX is left as it was


def test_a_division_in_the_update_is_forward():
    def update(w, state, x):
        grads = jax.grad(lambda w: jnp.sum(w * x))(w)
        state = 0.9 * state + 0.1 * grads**2
        return w - 0.1 * grads / jnp.sqrt(state), state

    origin = locate_nan(update, ONES, filled(4, 0.0), jnp.array([0.0, 1, 1, 1]))
    assert origin is not None
    assert (origin.primitive, origin.direction) == ("div", "forward")
    assert origin.line == line_of(update, "/ jnp.sqrt(state)")


def test_the_taken_branch_a_checkpoint_and_a_jitted_function_are_looked_into():
    @jax.jit
    def inner(x):
        return jnp.log(x)

    @jax.checkpoint
    def layer(x):
        return lax.cond(jnp.sum(x) > 0, inner, jnp.sin, x)

    def step(x):
        return jax.grad(lambda x: jnp.sum(layer(x)))(x)

    origin = locate_nan(step, jnp.array([1.0, 0.0]))
    assert origin is not None
    assert (origin.primitive, origin.function) == ("log", "inner")
    assert locate_nan(step, jnp.array([-1.0, 0.0])) is None


def test_functions_of_jax_that_were_traced_elsewhere_are_placed_where_they_are_used():
    jnp.linalg.norm(ONES).block_until_ready()
    jax.jit(lambda x: jnp.var(x) + jax.nn.logsumexp(x))(ONES)

    def step(x):
        return jnp.linalg.norm(x)

    origin = locate_nan(jax.grad(step), filled(4, 0.0))
    assert origin is not None
    assert (origin.direction, origin.line) == ("backward", line_of(step, "norm"))
    assert "sqrt" in origin.advice


def test_an_argument_that_is_not_finite_is_named_by_its_key_path():
    def step(params, batch):
        return params["w"] * batch["x"][1]

    x = filled(4)
    bad = filled(4, 1.0, {2: jnp.nan})
    origin = locate_nan(step, {"w": x}, {"x": [x, bad]})
    assert origin is not None
    assert (origin.direction, origin.argument) == ("input", "batch['x'][1]")
    assert origin.text == "Input batch['x'][1] has 1 NaN (of 4) before the step begins, the first at [2]."
    origin = locate_nan(step, {"w": x}, batch={"x": [x, bad]})
    assert origin is not None and origin.argument == "batch['x'][1]"
    origin = locate_nan(step, {"w": filled(4, 1.0, {0: jnp.inf})}, {"x": [x, x]})
    assert origin is not None
    assert (origin.argument, origin.inputs[0].n_posinf) == ("params['w']", 1)
    variable = namedtuple("Variable", "value")  # as JAX sees one of NNX
    origin = locate_nan(lambda params: params["w"].value * 2, {"w": variable(bad)})
    assert origin is not None and origin.argument == "params['w']"


def test_a_nan_of_an_argument_that_a_mask_replaces_is_not_the_origin():
    def step(w, labels):
        known = ~jnp.isnan(labels)
        return jnp.sum(jnp.where(known, (w - jnp.where(known, labels, 0)) ** 2, 0) / jnp.sum(w))

    labels = jnp.array([1.0, jnp.nan])
    origin = locate_nan(step, filled(2, 0.0), labels)
    assert origin is not None and (origin.primitive, origin.direction) == ("div", "forward")
    origin = locate_nan(lambda w, labels: jnp.sum(w * labels), filled(2, 0.0), labels)
    assert origin is not None and origin.argument == "labels"


@pytest.mark.parametrize("bad", [4, -7])
def test_an_index_out_of_range_is_named_with_the_size(bad):
    def step(logits, labels):
        return jnp.mean(jnp.take_along_axis(logits, labels[:, None], 1))

    origin = locate_nan(step, np.ones((3, 4), np.float32), np.array([1, bad, 0]))
    assert origin is not None and origin.primitive == "gather"
    index = bad if bad > 0 else bad + 4  # as JAX has made it of a negative one
    assert origin.text.endswith(
        "produced 1 NaN (of 3), the first at [1, 0], which belongs to labels[1]: "
        f"index {index} is out of range for axis 1 of size 4."
    )


@pytest.mark.parametrize(
    ("bad", "examples", "said"),
    [
        ([(3, 0), (3, 1)], (3,), "2 NaN (of 12) before the step begins, the first at [3, 0], in batch[3] only."),
        ([(1, 1), (2, 0)], (1, 2), "the first at [1, 1], in batch[1], batch[2] only."),
        ([(i, 1) for i in range(1, 6)], (1, 2, 3, 4, 5), "in batch[1], batch[2], batch[3] and 2 more only."),
        ([(i, 1) for i in range(6)], (), "before the step begins, the first at [0, 1]."),
    ],
)
def test_of_a_bad_batch_the_examples_are_named(bad, examples, said):
    batch = np.ones((6, 2), np.float32)
    batch[tuple(zip(*bad, strict=True))] = np.nan
    origin = locate_nan(lambda params, batch: (params * batch).sum(), filled(2)[None], batch)
    assert origin is not None and origin.index == bad[0]
    assert origin.examples == tuple(f"batch[{i}]" for i in examples)
    assert origin.text.endswith(said)


@pytest.mark.parametrize(
    ("loss", "x"),
    [(log_loss, [0.1, 0.5]), (trap_loss, [1.0, 2.0]), (scan_loss, [1.0, 2.0]), (exp_loss, [1.0, 20.0])],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_healthy_step_has_no_origin(loss, x):
    assert locate_nan(step_of(loss), filled(2), jnp.array(x)) is None


def test_infinities_of_an_attention_mask_are_no_origins_until_a_row_has_nothing_else():
    q = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
    mask = jax.device_put(np.tril(np.ones((4, 4), bool)))
    assert locate_nan(attention, q, mask) is None
    origin = locate_nan(attention, q, mask.at[1].set(False))
    assert origin is not None
    assert (origin.primitive, origin.line) == ("sub", line_of(attention, "jax.nn.softmax"))
    assert "mask" in origin.advice


def test_infinities_that_reach_no_result_and_constants_that_do_are_no_origins():
    def step(x, best):
        hidden = jnp.exp(jnp.log(x))  # log(0) is -Inf, and exp of that is 0 again
        return hidden, jnp.minimum(best, jnp.inf), jnp.full(3, -jnp.inf)

    assert locate_nan(step, jnp.array([0.0, 1.0]), jnp.array(jnp.inf)) is None


def test_a_nan_that_is_a_constant_is_the_origin_only_if_it_reaches_a_result():
    def step(x, ddof):
        return jnp.var(x, ddof=ddof)

    assert locate_nan(step, ONES, 1) is None
    assert locate_nan(lambda x: jnp.where(x > 0, x, jnp.nan), ONES) is None
    origin = locate_nan(lambda x: jnp.where(x > 0, x, jnp.nan), filled(4, 1.0, {1: -1.0}))
    assert origin is not None
    assert (origin.primitive, origin.outputs[0].n_nan, origin.reaches_outputs) == ("select_n", 1, True)


def test_an_equinox_step_gives_functions_too_and_has_an_origin():
    eqx = pytest.importorskip("equinox")
    model = with_numbers(eqx.filter_eval_shape(lambda: eqx.nn.MLP(4, 1, 8, 1, key=jax.random.key(0))))

    @eqx.filter_jit
    def step(model, x):
        def loss(model):
            y = jax.vmap(model)(x)
            return jnp.mean(jnp.log(y - y))

        grads = eqx.filter_grad(loss)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -g, grads))

    origin = locate_nan(step, model, filled((3, 4)))
    assert origin is not None
    assert (origin.primitive, origin.line) == ("log", line_of(inspect.unwrap(step), "jnp.log"))


def test_a_library_is_named_and_where_it_was_called_from():
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(1e-3, eps=0.0)

    def update(grads, state):
        return optimizer.update(grads, state)

    origin = locate_nan(update, filled(3, 0.0), optimizer.init(filled(3, 0.0)))
    assert origin is not None
    assert origin.primitive == "div"
    assert Path(origin.file).parts[-3] == "optax"
    assert origin.called_from == f"{HERE}:{line_of(update, 'optimizer.update')} in update"
    assert origin.called_from in origin.text


def test_of_a_bad_batch_the_example_is_named_where_it_is_known_for_certain():
    def step(params, batch):
        def layer(h, w):
            return jnp.tanh(h @ w), None

        def loss(params):
            h = lax.scan(layer, params["table"][batch["tokens"]], params["layers"])[0]  # (batch, time, features)
            logits = jax.vmap(lambda h: h.mean(0) @ params["head"])(h)
            return jnp.mean(jnp.log(logits - batch["least"][:, None]))

        return jax.grad(loss)(params)

    params = {"table": filled((7, 4)), "layers": filled((2, 4, 4)), "head": filled((4, 3))}
    batch = {"tokens": filled((20, 5), dtype=np.int32), "least": filled(20, 0.0, {17: 9.0})}
    origin = locate_nan(step, params, batch)
    assert origin is not None
    assert (origin.primitive, origin.index) == ("log", (17, 0))
    assert origin.examples == ("batch['least'][17]", "batch['tokens'][17]")
    assert "3 NaN (of 60), the first at [17, 0], which belongs to batch['least'][17] and batch['tok" in origin.text
    mixed = locate_nan(lambda x: jnp.log(jnp.sort(x, axis=0)), filled((4, 2), 1.0, {(2, 1): -1.0}))
    assert mixed is not None
    assert (mixed.index, mixed.examples) == ((0, 1), ())


@jax.custom_vjp
def summed(x, scale):
    return jnp.sum(x * scale)


summed.defvjp(lambda x, scale: (summed(x, scale), (x, scale)), lambda kept, g: (g * jnp.log(kept[0]), jnp.zeros(())))


def test_a_rule_of_ones_own_that_makes_a_nan_is_told_in_the_words_of_any_other_operation():
    origin = locate_nan(jax.grad(lambda x: summed(x, 1.0)), filled(4, 1.0, {2: -1.0}))
    assert origin is not None
    assert (origin.primitive, origin.index, origin.examples) == ("log", (2,), ("x[2]",))
    assert "not known" not in origin.text


def test_an_example_is_not_blamed_for_what_a_shuffled_one_may_have_done():
    def shuffled(x, y, key):
        noise = jax.random.uniform(key, x.shape)  # of no entry
        return jnp.log(x[jax.random.permutation(key, len(x))] + noise - y[:, None])

    origin = locate_nan(shuffled, filled((8, 2), 1.0, {(3, 0): -9.0}), filled(8, 0.0), jax.random.key(0))
    assert origin is not None and origin.examples == ()
    row = origin.index[0]
    assert f", which depends, among others, on y[{row}]," in origin.text

    def straight(x, y, key):
        return jnp.log(x + jax.random.uniform(key, x.shape) - y[:, None])

    origin = locate_nan(straight, filled((8, 2), 1.0, {(3, 0): -9.0}), filled(8, 0.0), jax.random.key(0))
    assert origin is not None and origin.examples == ("x[3]", "y[3]")


def test_a_nan_that_is_dropped_on_the_way_is_told_as_such():
    def step(w, x):
        grads = jax.grad(lambda w: jnp.sum(w / x))(w)
        grads = grads * 0
        return jnp.where(jnp.all(jnp.isfinite(grads)), w - grads, w)

    origin = locate_nan(step, ONES, filled(4, 0.0))
    assert origin is not None
    assert origin.primitive == "div"
    assert not origin.reaches_outputs
    assert "it does not reach any result of the step" in origin.text


def test_complex_bfloat16_and_float8_are_looked_at_and_integers_and_keys_are_not():
    def step(x, y, key, n):
        return jnp.log(x), (y / 0).astype(jnp.float32), jax.random.split(key), n // 2

    x = filled(2, dtype=jnp.complex64)
    origin = locate_nan(step, x, filled(2, dtype=jnp.bfloat16), jax.random.key(0), np.arange(3))
    assert origin is not None
    assert (origin.primitive, origin.outputs[0].n_posinf) == ("div", 2)
    small = filled(2, dtype=jnp.float8_e4m3fn)
    origin = locate_nan(lambda x: (x.astype(jnp.float32) * 1e6).astype(jnp.float8_e5m2), small)
    assert origin is not None and origin.primitive == "convert_element_type"


def test_static_arguments_and_functions_as_leaves_are_left_as_they_are():
    @functools.partial(jax.jit, static_argnums=1, static_argnames="activation")
    def step(x, n, activation):
        return activation(x) / n

    assert locate_nan(step, ONES, 2, activation=jnp.tanh) is None
    origin = locate_nan(functools.partial(step, n=0, activation=jnp.tanh), ONES)
    assert origin is not None and origin.primitive == "div"


def test_options_that_stop_at_nan_do_not_stop_a_locate_nan_and_stay_as_they_are():
    x = jnp.array([0.0, 0.5, 0.2, 0.98])
    with jax.debug_nans(True), jax.debug_infs(True), jax.disable_jit(), jax.transfer_guard("disallow"):
        origin = locate_nan(step_of(log_loss), ONES, x)
        with pytest.raises(FloatingPointError):
            jnp.log(x)
    assert origin is not None and origin.primitive == "log"


def test_float64_is_looked_at_as_it_is():
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else vars(jax.experimental)["enable_x64"]  # jax < 0.8
    with enable_x64(True):
        origin = locate_nan(lambda x: jnp.exp(x), jnp.array([700.0, 710.0]))
    assert origin is not None
    assert (origin.outputs[0].dtype, origin.outputs[0].n_posinf) == ("float64", 1)


def test_arguments_are_not_donated_and_deleted_ones_are_refused():
    step = jax.jit(lambda w, x: w / x, donate_argnums=0)
    w = filled(4)
    assert locate_nan(step, w, filled(4, 0.0)) is not None
    assert not w.is_deleted()
    w.delete()
    with pytest.raises(CannotLocateNan, match="locate_nan: w was deleted, likely donated to the step"):
        locate_nan(step, w, ONES)


def test_a_locate_nan_within_a_trace_is_refused():
    with pytest.raises(CannotLocateNan, match="locate_nan: x is a tracer"):
        jax.jit(lambda x: locate_nan(lambda x: x / 0, x))(ONES)


def test_a_locate_nan_is_bounded():
    with pytest.raises(CannotLocateNan, match="after 3 equations the step was not over"):
        locate_nan_in(step_of(log_loss), (ONES, ONES), max_equations=3)


def test_sharded_arguments_stay_sharded():
    mesh = jax.sharding.Mesh(first_devices(8), ("data",))
    x = jax.device_put(
        np.arange(16, dtype=np.float32), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    )
    origin = locate_nan(step_of(log_loss), filled(()), x)
    assert origin is not None
    assert (origin.primitive, origin.outputs[0].n_neginf) == ("log", 1)


shard_map = getattr(jax, "shard_map", None) or importlib.import_module("jax.experimental.shard_map").shard_map


def sharded_loss(w, x):
    mesh = jax.sharding.Mesh(first_devices(8).reshape(4, 2), ("data", "model"))

    def body(w, x):
        w = lax.all_gather(w, "data", tiled=True)
        p = lax.psum(x @ w, "model")

        def layer(total, row):
            return total + jnp.log(row), None

        return lax.pmean(jnp.sum(lax.scan(layer, 0 * p[0], p)[0]), "data")

    specs = P(("model", "data")), P("data", "model")
    return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w, x)


def test_inside_a_shard_map_the_operation_its_line_and_its_device_are_named():
    step, x = step_of(sharded_loss), filled((8, 8), 1.0, {(5, 6): -9.0})
    origin = locate_nan(step, filled((8, 3)), x)
    assert origin is not None
    assert (origin.primitive, origin.line) == ("log", line_of(sharded_loss, "jnp.log"))
    assert (origin.device[0], origin.iterations) == (("data", 2), (("scan", 1),))
    assert "in iteration 1 of scan, on the device at data=2" in origin.text
    assert "produced 3 NaN (of 3), the first at [0], from inputs in [-2, -2]" in origin.text
    assert origin.inputs[0].shape == (3,)
    assert locate_nan(step, filled((8, 3)), filled((8, 8))) is None


def test_a_branch_that_only_some_devices_take_is_one_operation():
    mesh = jax.sharding.Mesh(first_devices(8), ("data",))

    def step(x):
        def body(x):
            return lax.cond(lax.axis_index("data") > 3, lambda x: jnp.log(x), lambda x: 1 * x, x)

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    origin = locate_nan(step, filled(16, 1.0, {13: -1.0}))
    assert origin is not None
    assert (origin.primitive, origin.device, origin.outputs[0].shape) == ("cond", (("data", 6),), (2,))
    assert "cond ran as a whole" in origin.advice


def test_ctrl_c_is_not_swallowed():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        locate_nan(interrupted, ONES)
