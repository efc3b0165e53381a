"""Each set of primitives means what it says with this JAX, and every part of the tracing goes by the same sets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from watched import same_bytes, watch

from treeviz.steps.nan_origin.locate import Replay, Value
from treeviz.steps.tracing import primitives
from treeviz.steps.tracing.domains import argument_order, match_new_params
from treeviz.steps.tracing.primitives import sow, sums_of_sown
from treeviz.steps.tracing.reap import Reducers, reap

pytestmark = pytest.mark.oldest_jax

x = jnp.arange(1.0, 5.0)


@jax.custom_jvp
def with_jvp_rule(x):
    return x * 2


@jax.custom_vjp
def with_vjp_rule(x):
    return x * 2


with_jvp_rule.defjvp(lambda x, t: (x[0] * 2, t[0] * 2))
with_vjp_rule.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 2,))

IDENTITY = {
    "copy": lambda x: x.copy(),
    "device_put": lambda x: jax.device_put(x, jax.devices()[0]),
    "optimization_barrier": lax.optimization_barrier,
    "sharding_constraint": lambda x: lax.with_sharding_constraint(
        x, jax.sharding.SingleDeviceSharding(jax.devices()[0])
    ),
}
CASTS = {
    "convert_element_type": lambda x: x.astype(jnp.bfloat16),
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 7),
}
RESHAPES = {
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x, (1, 4)),
    "reshape": lambda x: x.reshape(2, 2),
    "rev": lambda x: x[::-1],
    "squeeze": lambda x: lax.squeeze(lax.expand_dims(x, (0,)), (0,)),
    "transpose": lambda x: x.reshape(2, 2).T,
}
CALLS = {
    "JITS": jax.jit(lambda x: x * 2),
    "REMATS": jax.checkpoint(lambda x: x * 2),
    "CUSTOM_DERIVATIVES": with_jvp_rule,
    "CUSTOM_DERIVATIVES of vjp": with_vjp_rule,
}
if jax.__version_info__ >= (0, 11):
    CALLS["CALLS of what was traced before"] = lambda x: jax.jit(lambda x: x * 2).trace(x)(x)


def names_in(function, *arguments):
    return [eqn.primitive.name for eqn in jax.make_jaxpr(function)(*arguments).eqns]


@pytest.mark.optimized
@pytest.mark.parametrize("name", IDENTITY)
def test_an_identity_keeps_every_bit(name):
    assert set(names_in(IDENTITY[name], x)) <= primitives.IDENTITY
    assert np.array(jax.jit(IDENTITY[name])(x)).tobytes() == np.array(x).tobytes()


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_has_the_derivative_of_the_identity(name):
    assert set(names_in(CASTS[name], x)) <= primitives.CASTS
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(CASTS[name](x).astype(jnp.float32)))(x), 1.0)


@pytest.mark.parametrize("name", RESHAPES)
def test_a_reshape_adds_no_number(name):
    assert primitives.RESHAPES & set(names_in(RESHAPES[name], x))
    assert set(np.array(RESHAPES[name](x)).ravel()) == set(np.array(x))


@pytest.mark.parametrize("function", [jnp.tanh, jnp.exp, jnp.log, jnp.sqrt, lax.logistic, lambda x: x**3])
def test_the_derivative_of_what_is_elementwise_is_so_too(function):
    names = set(names_in(lambda x: jax.vjp(function, x)[1](x)[0], x))
    assert names <= primitives.ELEMENTWISE | primitives.RESHAPES


@pytest.mark.parametrize("function", [jnp.exp, jnp.exp2, jnp.expm1, jnp.log, jnp.log2, jnp.log1p, jnp.sqrt])
def test_an_infinity_keeps_its_sign(function):
    names = set(names_in(function, x)) - {"div"}  # before jax 0.11, log2 divides by log 2
    assert names <= primitives.KEEPS_SIGN_OF_INFINITY
    assert function(np.inf) == np.inf and function(-np.inf) != np.inf


@pytest.mark.parametrize("name", CALLS)
def test_a_call_runs_one_jaxpr_on_its_operands(name):
    (eqn,) = jax.make_jaxpr(CALLS[name])(x).eqns
    assert eqn.primitive.name in getattr(primitives, name.split(" ")[0]) <= primitives.CALLS
    ((inner, operands),) = primitives.programs(eqn, [x])
    np.testing.assert_array_equal(
        jax.core.eval_jaxpr(primitives.open_jaxpr(inner), primitives.consts_of(inner), *operands)[0], x * 2
    )


def test_loops_and_branches_are_taken_apart():
    y = jnp.float32(3)
    (scan,) = jax.make_jaxpr(lambda x: lax.scan(lambda c, x: (c * y + x, x), 0.0, x))(x).eqns
    (parts,) = [primitives.scan_parts(scan, scan.invars)]
    ((_, operands),) = primitives.programs(scan, scan.invars)
    assert operands == [*parts.consts, *parts.carry, *parts.xs] and len(parts.carry) == 1
    loop = jax.make_jaxpr(lambda x: lax.while_loop(lambda s: s < x[0], lambda s: s + x[1], y))(x).eqns[-1]
    parts = primitives.while_parts(loop, loop.invars)
    (_, of_condition), (_, of_body) = primitives.programs(loop, loop.invars)
    assert of_condition == [*parts.cond_consts, *parts.carry] and of_body == [*parts.body_consts, *parts.carry]
    cond = jax.make_jaxpr(lambda x: lax.cond(x[0] > 1, jnp.sin, jnp.cos, x))(x).eqns[-1]
    assert [operands for _, operands in primitives.programs(cond, cond.invars)] == [cond.invars[1:]] * 2


def test_a_value_is_freed_after_its_last_use_and_an_unused_one_at_once():
    program = jax.make_jaxpr(lambda x: (jnp.sin(x), jnp.cos(jnp.exp(x)))[1])(x).jaxpr
    freed = primitives.last_uses(program)
    by_number = {n: {str(v) for v in variables} for n, variables in freed.items()}
    names = [eqn.primitive.name for eqn in program.eqns]
    sin, exp, cos = (names.index(name) for name in ("sin", "exp", "cos"))
    assert str(program.eqns[sin].outvars[0]) in by_number[sin]
    assert {str(program.invars[0])} <= by_number[exp] and str(program.eqns[exp].outvars[0]) in by_number[cos]
    assert not any(str(program.outvars[0]) in variables for variables in by_number.values())


SAME_LEAF = {**IDENTITY, **CASTS, "a call": jax.checkpoint(lambda x: x), "tap": lambda x: sow("tap", x, name="t")}


@pytest.mark.parametrize("name", SAME_LEAF)
def test_a_gradient_belongs_to_the_argument_that_was_moved_or_cast_before(name):
    def step(_, params):
        moved = SAME_LEAF[name](params)
        return sow("grads", moved * 2, [moved])

    _, reaped, _ = reap(jax.make_jaxpr(step)(x, x), [x, x], Reducers(lambda _, values: jnp.sum(values[0])))
    assert [r.origins for r in reaped if r.sown.kind == "grads"] == [(1,)]


@pytest.mark.parametrize("name", ["optimization_barrier", *CASTS])
def test_a_sum_over_devices_is_found_behind_a_cast_or_a_barrier(name):
    def step(x):
        gradient = sow("grads", x * 2)
        return lax.psum(SAME_LEAF[name](gradient), "devices")

    program = jax.make_jaxpr(step, axis_env=[("devices", 4)])(x)
    (((variable, axes),),) = sums_of_sown(program.jaxpr, {"devices": 4}).values()
    assert [variable] == program.jaxpr.outvars and axes == {"devices"}


@pytest.mark.parametrize("name", [*SAME_LEAF, *RESHAPES])
def test_moving_an_argument_is_no_use_of_it(name):
    move = {**SAME_LEAF, **RESHAPES}[name]

    def step(first, second):
        moved = move(first)
        return jnp.sum(jnp.sin(second)), jnp.sum(jnp.cos(moved))

    assert argument_order(jax.make_jaxpr(step)(x, x))[0] == 1


@pytest.mark.parametrize("name", [*IDENTITY, *RESHAPES])
def test_moving_a_constant_nan_is_not_where_it_began(name):
    move = {**IDENTITY, **RESHAPES}[name]

    def step(x):
        return jnp.sum(x) + move(jnp.full((4,), jnp.nan))

    replay = Replay(1000)
    (taint,) = replay.run(jax.make_jaxpr(step)(x), [Value(x)])
    assert taint.origin is not None
    assert taint.origin.eqn.primitive.name == "add"


def test_a_factor_is_known_behind_a_barrier():
    def step(params, gradient):
        decay, gradient = lax.optimization_barrier((0.999, gradient))
        return params * decay - gradient

    paths = [("[0]",), ("[1]",)]
    assert match_new_params(jax.make_jaxpr(step)(x, x), [0], paths, [("other",)]) == [0]


@pytest.mark.parametrize("is_in_loss", [True, False])
def test_a_step_with_what_jax_lowers_before_it_compiles_is_measured(is_in_loss, seen):
    """As `custom_root`, which is a hijax primitive since jax 0.11."""

    def root(a):
        def newton(f, x):
            return lax.fori_loop(0, 20, lambda _, x: x - f(x) / jax.grad(f)(x), x)

        return lax.custom_root(lambda x: x**2 - a, 1.0, newton, lambda g, y: y / g(1.0))

    def loss(w):
        return (w**2).sum() * (root(1.0 + (w**2).sum()) if is_in_loss else 1.0)

    @jax.jit
    def step(w):
        return w - 0.1 * jax.grad(loss)(w) * (1.0 if is_in_loss else root(4.0))

    w = jnp.arange(1.0, 4.0) / 4
    watched = watch(step, seen)
    out = watched(w)
    assert watched.trouble == "" and same_bytes(out, step(w))
    seen.check(jax.grad(loss)(w))
