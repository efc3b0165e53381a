"""What is measured of sown values comes out of every higher-order primitive, next to results that stay the same."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from treeviz.steps.tracing import reap as reaping
from treeviz.steps.tracing.primitives import bind, sow, sown_in
from treeviz.steps.tracing.reap import CannotReap, Reducers, reap

pytestmark = pytest.mark.oldest_jax

x = jnp.arange(1.0, 5.0)


def sown(value, name="m", origin=()):
    return sow("grads", value, origin, name)


def total(_, values):
    return sum(jnp.sum(v) for v in values)


def run(function, *arguments):
    """The results, what was found, and the packed, of a function under jit."""
    program = jax.make_jaxpr(function)(*arguments)

    def reaped(*arguments):
        results, found[:], packed = reap(program, arguments, Reducers(total))
        return results, packed

    found = []
    leaves = jax.tree.leaves(arguments)
    results, packed = jax.jit(reaped)(*leaves)
    assert "treeviz" not in jax.jit(reaped).lower(*leaves).as_text()
    for mine, yours in zip(results, jax.tree.leaves(jax.jit(function)(*arguments)), strict=True):
        np.testing.assert_array_equal(mine, yours)
    return results, found, [np.array(w) for w in packed]


@jax.custom_vjp
def with_rule(x):
    return sown(x * 2)


with_rule.defvjp(lambda x: (with_rule(x), None), lambda _, g: (g,))


@jax.custom_jvp
def with_jvp_rule(x):
    return sown(x * 2)


with_jvp_rule.defjvp(lambda x, t: (with_jvp_rule(*x), t[0]))

ONCE = {
    "plain": lambda x: sown(x * 2),
    "jit": jax.jit(lambda x: sown(x * 2) + 1),
    "jit in jit": jax.jit(lambda x: jax.jit(lambda x: sown(x * 2) + 1)(x) + 1),
    "checkpoint": jax.checkpoint(lambda x: sown(x * 2) + jnp.asarray(np.arange(4.0, dtype=np.float32))),
    "custom_vjp": with_rule,
    "custom_jvp": with_jvp_rule,
    "cond": lambda x: lax.cond(x[0] > 0, lambda x: sown(x * 2), lambda x: x, x),
    "switch": lambda x: lax.switch(2, [lambda x: x, lambda x: x + 1, lambda x: sown(x * 2)], x),
    "while": lambda x: lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, sown(s[1] * 2)), (0, x))[1],
}


@pytest.mark.parametrize("name", ONCE)
def test_a_sown_value_is_measured_where_it_stands(name):
    _, found, packed = run(ONCE[name], x)
    assert [f.axes for f in found] == [()]
    np.testing.assert_array_equal(packed, [20.0])


def test_a_scan_stacks_and_a_nested_one_stacks_again():
    def step(c, x):
        return c + 1, sown(c * x)

    _, found, packed = run(lambda x: lax.scan(step, 0.0, x), x)
    np.testing.assert_array_equal(packed[0], np.arange(4) * np.arange(1.0, 5.0))
    assert [a[:2] for a in found[0].axes] == [("step", 4)]
    nested = lambda x: lax.scan(lambda c, _: lax.scan(step, c, x), 0.0, None, length=2)
    _, found, packed = run(nested, x)
    np.testing.assert_array_equal(packed[0], np.arange(8).reshape(2, 4) * np.arange(1.0, 5.0))
    assert [a[:2] for a in found[0].axes] == [("step", 2), ("step", 4)]


def test_a_branch_with_several_sown_values_leaves_zeros_for_the_others():
    def function(i, x):
        return lax.switch(i, [lambda x: sown(sown(x) * 2), lambda x: x, lambda x: sown(x * 5)], x)

    for i, expected in enumerate([[10, 20, 0], [0, 0, 0], [0, 0, 50]]):
        np.testing.assert_array_equal(run(function, i, x)[2], expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_every_member_of_a_vmap_is_measured(axis):
    stacked = jnp.moveaxis(jnp.arange(24.0).reshape(2, 3, 4), 0, axis)
    _, found, packed = run(jax.vmap(lambda x: sown(x * 2), axis), stacked)
    np.testing.assert_array_equal(packed[0], [2 * np.arange(12).sum(), 2 * np.arange(12, 24).sum()])
    assert [a[:2] for a in found[0].axes] == [("member", 2)]


def test_vmaps_in_one_another_have_the_outermost_axis_first():
    stacked = jnp.arange(24.0).reshape(2, 3, 4)
    _, found, packed = run(jax.vmap(jax.vmap(lambda x: sown(x * 2), in_axes=1), in_axes=2), jnp.moveaxis(stacked, 0, 2))
    outer_first = np.moveaxis(np.array(stacked), 0, 2)  # [3, 4, 2]
    expected = [[2 * outer_first[:, j, i].sum() for j in range(4)] for i in range(2)]
    np.testing.assert_array_equal(packed[0], expected)
    assert [a[:2] for a in found[0].axes] == [("member", 2), ("member", 4)]


def test_each_member_of_a_vmap_has_its_own_last_step_of_a_while_loop():
    def of_member(n, x):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, sown(s[1] * 2)), (0, x))

    function = jax.vmap(of_member)
    n, stacked = jnp.array([1, 3, 2]), jnp.arange(12.0).reshape(3, 4)
    results, found, packed = run(function, n, stacked)
    expected = 2.0 ** np.array(n)[:, None] * np.array(stacked)
    np.testing.assert_array_equal(results[1], expected)
    np.testing.assert_array_equal(packed[0], expected.sum(1))
    assert [a[:2] for a in found[0].axes] == [("member", 3)]
    both = np.stack([expected, expected + 2.0 ** np.array(n)[:, None]]).sum(2)
    for axis, counts in ((None, n), (0, jnp.stack([n, n]))):
        _, found, packed = run(jax.vmap(function, (axis, 0)), counts, jnp.stack([stacked, stacked + 1]))
        np.testing.assert_array_equal(packed[0], both)
        assert [a[:2] for a in found[0].axes] == [("member", 2), ("member", 3)]


def test_a_while_loop_of_which_it_is_unknown_which_members_go_on_has_no_number():
    def of_member(n, x):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, sown(s[1] * 2)), (0, x))

    nested = jax.vmap(jax.vmap(of_member), in_axes=(None, 0))
    _, _, packed = run(nested, jnp.array([1, 3]), jnp.ones((2, 2, 4)))
    np.testing.assert_array_equal(packed[0], np.zeros((2, 2)))


def test_the_way_of_an_argument_is_followed():
    def function(a, b, c):
        @jax.jit
        def inner(b, a):
            low = a.astype(jnp.bfloat16)
            return sown((low, b + 1), origin=(low, b))

        def body(carry, c):
            return carry, inner(c, carry)[0]

        return lax.scan(body, a, jnp.stack([b, c])), sown(b, origin=(b,)), sown(c * 2, origin=(c * 2,))

    _, found, _ = run(function, x, x + 1, x + 2)
    assert sorted([f.origins for f in found], key=str) == [(0, None), (1,), (None,)]


def test_a_leaf_that_a_jitted_function_casts_is_the_same_leaf():
    cast = jax.jit(lambda a: a.astype(jnp.bfloat16))
    _, found, _ = run(lambda a: sown((low := cast(a),), origin=(low,)), x)
    assert [f.origins for f in found] == [(0,)]


def test_what_a_checkpoint_computes_again_is_measured_once():
    function = jax.grad(lambda x: jnp.sum(jnp.sin(jax.checkpoint(lambda x: sown(jnp.sin(x)) ** 2)(x))))
    program = jax.make_jaxpr(function)(x)
    assert [again for _, again in sown_in(program)] == [False, True]
    _, _, packed = run(function, x)
    np.testing.assert_allclose(packed, [np.sin(np.array(x)).sum()], rtol=1e-6)


def test_sowing_does_not_change_derivatives():
    f = lambda x: jnp.sum(sown(jnp.sin(x)) ** 2)
    g = lambda x: jnp.sum(jnp.sin(x) ** 2)
    np.testing.assert_array_equal(jax.grad(f)(x), jax.grad(g)(x))
    np.testing.assert_array_equal(jax.hessian(f)(x), jax.hessian(g)(x))
    np.testing.assert_array_equal(jax.jvp(f, (x,), (x,))[1], jax.jvp(g, (x,), (x,))[1])


def test_an_unknown_operation_is_refused_by_name():
    def solve(x):
        return lax.custom_linear_solve(lambda v: 2 * v, x, lambda matvec, b: sown(b / 2))

    with pytest.raises(CannotReap, match="inside `custom_linear_solve`"):
        run(solve, x)


def test_what_an_unknown_operation_holds_is_left_out_where_something_else_is_measured():
    def solve(x):
        return lax.custom_linear_solve(lambda v: sown(2 * v), sown(x), lambda matvec, b: matvec(b) / 4)

    program, left_out = jax.make_jaxpr(solve)(x), set()
    (result,), found, packed = reap(program, [x], Reducers(total), left_out=left_out)
    np.testing.assert_array_equal(result, x / 2)
    assert (len(found), packed, left_out) == (1, [10.0], {"custom_linear_solve"})


def test_the_names_and_lines_of_the_equations_stay():
    def function(x):
        with jax.named_scope("here"):
            return sown(jnp.sin(x))

    program = jax.make_jaxpr(function)(x)
    reaped = jax.make_jaxpr(lambda x: reap(program, [x], Reducers(total))[0])(x)
    before, after = ([e for e in p.eqns if e.primitive.name == "sin"][0] for p in (program, reaped))  # noqa: RUF015
    assert str(after.source_info.name_stack) == str(before.source_info.name_stack) == "here"


def of_many_operations(x):
    with jax.named_scope("here"):
        y = jax.nn.relu(x) + jnp.asarray(np.arange(4.0, dtype=np.float32)) * jax.jit(lambda x: x[::-1] / 2)(x)
    y = lax.cond(y[0] > 0, jnp.sin, jnp.cos, y) + jax.random.normal(jax.random.key(0), (4,))
    y, _ = lax.scan(lambda y, i: (y * with_plain_rule(y) + i, None), sown(y * 2), jnp.arange(3))
    return y.astype(jnp.bfloat16), jnp.linalg.inv(jnp.outer(y, y)), lax.while_loop(lambda i: i < 3, lambda i: i + 1, 0)


@jax.custom_vjp
def with_plain_rule(x):
    return x * 2


with_plain_rule.defvjp(lambda x: (x * 2, None), lambda _, g: (g,))


def test_equations_are_copied_as_jax_would_add_them(monkeypatch):
    program, bound = jax.make_jaxpr(of_many_operations)(x), list[set[str]]()
    monkeypatch.setattr(reaping, "bind", lambda eqn, values: bound[-1].add(eqn.primitive.name) or bind(eqn, values))
    options = {"debug_info": True} if jax.__version_info__ >= (0, 5) else {}
    texts = []
    for adds in (reaping.adds_copies, lambda: lambda eqn, operands: None):
        monkeypatch.setattr(reaping, "adds_copies", adds)
        jax.clear_caches()
        bound.append(set())
        again = lambda x: reap(program, [x], Reducers(total))[0]
        equations = re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(again)(x)))
        texts.append((equations, jax.jit(again).lower(x).as_text(**options)))
    assert texts[0] == texts[1], "with their names and source lines"
    assert jax.__version_info__ < (0, 10) or bound[0] == {"add", "mul"}, "what reads a constant, or is recomputed"
    assert len(bound[1]) > 5
