"""Partial sums that NumPy adds up give what the numbers themselves give."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import watched
from watched import watch

from treeviz.steps.measure import Joined, numbers_of
from treeviz.steps.reduce import added_up, measured, numbers_as_they_are, partial_sums
from treeviz.steps.statistics import LIGHT, unpack
from treeviz.steps.tracing.instrumented import instrumented
from treeviz.steps.tracing.jitted import jit_options

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < (0, 7, 2), reason="XLA takes no sum of float64 without x64 before"
)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def leaves() -> list[np.ndarray]:
    long = normal(300, 40)
    some_bad = long.copy()
    some_bad[3, 4], some_bad[5], some_bad[6, 0] = np.nan, np.inf, -np.inf
    mixed = np.concatenate([normal(40) * np.float32(1e-25), normal(40), normal(40) * np.float32(1e25)])
    all_bad, zeros = np.full(9, np.inf, np.float32), np.zeros(7, np.float32)
    few = [normal(1), normal(), normal(128) * np.float32(1e-30), zeros, all_bad, mixed, normal(33).astype(jnp.bfloat16)]
    longer = [np.tile(some_bad, (n, 1)) for n in (3, 6)]
    return [long, long * np.float32(1e30), few[0], *longer, normal(40_009), *few]


def results() -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    new = [normal(1), normal(4096), normal(200), normal(4000), normal(33), normal(5)]
    old: list[np.ndarray | None] = [x.copy() for x in new]
    new[1][7] += 1
    new[2][3], new[2][4] = np.nan, -np.inf
    new[3][:] = old[3][:] = np.nan  # type: ignore[index]
    new[4][:] = -new[4]
    new[5][0], old[5] = np.inf, None
    return new, old


def check(packed, counts, new, old):
    """Against NumPy in float64, of the leaves and these results."""
    assert packed is not None and counts is not None
    numbers = unpack(packed, LIGHT)
    for i, leaf in enumerate(x.astype(np.float64) for x in leaves()):
        finite = leaf[np.isfinite(leaf)]
        np.testing.assert_allclose(numbers["norm"][..., i], np.linalg.norm(finite), rtol=1e-6)
        np.testing.assert_array_equal(numbers["max_abs"][..., i], abs(finite).max(initial=0))
        np.testing.assert_array_equal(numbers["nonfinite"][..., i], leaf.size - finite.size)
    for i, (x, before) in enumerate(zip(new, old, strict=True)):
        n_bad, n_nan = (~np.isfinite(x)).sum(), np.isnan(x).sum()
        is_new = before is not None and (n_bad > 0 or (x.view(np.uint32) != before.view(np.uint32)).any())
        np.testing.assert_array_equal(counts[..., i], (n_bad << 16) + n_nan + (int(is_new) << 31))
    return numbers


def reduced(leaves, new=(), old=(), n_layers=()):
    """The sums, the words and the rows; results are floats."""
    rows = None

    @jax.jit
    def arrays(leaves, new, old):
        nonlocal rows
        sums, words, rows = partial_sums(leaves, new, old, n_layers)
        return jnp.concatenate(sums), jnp.concatenate(words)

    sums, words = arrays(leaves, *jax.tree.map(lambda x: x.view(np.uint32), (new, old)))
    assert rows is not None
    return np.asarray(sums), np.asarray(words), rows


def test_numbers_as_they_are_give_what_partial_sums_give():
    (new, old), rows = results(), None

    @jax.jit
    def words(leaves, new, old):
        nonlocal rows
        _, (bits,), rows = numbers_as_they_are(leaves, new, old)
        return bits

    found = np.asarray(words(leaves(), *jax.tree.map(lambda x: x.view(np.uint32), (new, old))))
    assert rows is not None and found.dtype == np.uint32
    assert found.shape == (sum(rows.n_rows) + sum(rows.of_old),)
    for batch in (found, np.stack([found, found])):
        check(*measured(batch, rows), new, old)


@pytest.mark.optimized
def test_a_step_of_few_numbers_gets_no_kernel_that_reduces_and_they_leave_as_one_array(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    for n, n_reduces in ((10, 0), (1000, 1), (4000, 1)):
        params = {"w": normal(n), "b": normal(n)}
        step = jax.jit(lambda p: jax.tree.map(lambda p, g: p - g, p, jax.grad(lambda p: p["w"] @ p["b"])(p)))
        instrumented_step = instrumented(step.__wrapped__, jit_options(step), LIGHT)
        texts = [f.lower(params).compile().as_text() for f in (step, instrumented_step)]
        assert [text.count(" reduce(") for text in texts] == [0, n_reduces]
        recorder = watched.Recorder()
        after = watch(step, recorder)(params)
        recorder.check({"b": params["w"], "w": params["b"]})
        assert len(recorder.measurements[0].arrays) == 1 + n_reduces
        assert watched.same_bytes(after, step(params))


def test_partial_sums_give_the_numbers_of_leaves_and_the_counts_of_results():
    new, old = results()
    sums, found, rows = reduced(leaves(), new, old)
    assert sums.dtype == np.float64 and found.shape == (2 * sum(rows.n_rows),)
    assert rows.of_long == (1, 64, 1)  # a prime number of elements is one row, too
    for batch in ((sums, found), (np.stack([sums, sums]), np.stack([found, found]))):
        check(*added_up(*batch, rows), new, old)


@pytest.mark.parametrize(
    ("n_leaves", "n_new", "n_old"), [(0, 1, 0), (0, 1, 1), (0, 3, 2), (1, 0, 0), (1, 1, 0), (3, 1, 1), (3, 3, 2)]
)
def test_leaves_and_results_are_told_apart_whatever_there_is_of_them(n_leaves, n_new, n_old):
    many = [normal(n + 1, 31) for n in range(n_leaves)]
    new = [normal(40 * n + 33) for n in range(n_new)]
    old = [x + 1 if i < n_old else None for i, x in enumerate(new)]
    for x in (*many[-1:], *new[-1:]):
        x.reshape(-1)[-2:] = np.nan, np.inf
    packed, counts = added_up(*reduced(many, new, old))
    if n_leaves:
        finite = [x[np.isfinite(x)] for x in many]
        numbers = unpack(packed, LIGHT)
        np.testing.assert_allclose(numbers["norm"], list(map(np.linalg.norm, finite)), rtol=1e-6)
        np.testing.assert_array_equal(numbers["max_abs"], [abs(x).max() for x in finite])
        np.testing.assert_array_equal(numbers["nonfinite"], [0] * (n_leaves - 1) + [2])
    if n_new:
        bad = [0] * (n_new - 1) + [(2 << 16) + 1]
        np.testing.assert_array_equal(counts, [n + ((i < n_old) << 31) for i, n in enumerate(bad)])


def test_partial_sums_give_the_numbers_of_each_layer_of_a_long_leaf():
    stacks = [normal(3, 64, 400), normal(300), normal(126, 8, 64), normal(40, 2048), normal(40_009)]
    stacks[0][1, 2, 3], stacks[2][7], stacks[2][125, 0, :5], stacks[3][39] = np.nan, np.inf, -np.inf, 0
    stacks[2][8:20] *= np.float32(1e30)
    n_layers = [3, 1, 126, 40, 1]
    sums, words, rows = reduced(stacks, n_layers=n_layers)
    found, counts = added_up(sums, words, rows)
    assert counts is None and rows.of_long == (*(64,) * 3, *(1,) * 126, *(1,) * 40, 1)
    layers = [layer for x, n in zip(stacks, n_layers, strict=True) for layer in x.reshape(n, -1).astype(np.float64)]
    numbers = unpack(found, LIGHT)
    finite = [layer[np.isfinite(layer)] for layer in layers]
    np.testing.assert_allclose(numbers["norm"], [np.linalg.norm(x) for x in finite], rtol=1e-6)
    np.testing.assert_array_equal(numbers["max_abs"], [abs(x).max(initial=0) for x in finite])
    np.testing.assert_array_equal(numbers["nonfinite"], [x.size - y.size for x, y in zip(layers, finite, strict=True)])


@pytest.mark.optimized
@pytest.mark.parametrize(("has_results", "compares"), [(True, True), (True, False), (False, False)])
def test_the_kernel_of_small_leaves_wakes_no_other_thread(has_results, compares):
    def words(leaves, new, old):
        sums, found, _ = partial_sums(leaves, new, old)
        return jnp.concatenate(sums), jnp.concatenate(found)

    few = [normal(784, 32), normal(32), normal(32, 32), normal(32), normal(32, 10), normal(10)]
    bits = [x.view(np.uint32).reshape(-1) for x in few[1:]] if has_results else []
    before = bits if compares else [None] * len(bits)
    program = jax.jit(words).lower(few, bits, before).compile().as_text()
    assert program.count(" reduce(") == 1
    assert 'outer_dimension_partitions":["' not in program


def update(params, x):
    def loss(params):
        y, _ = jax.lax.scan(lambda x, w: (jnp.tanh(w * x), None), x, params["layers"])
        return jnp.sum(y + params["bias"]) + jnp.sum(params["long"] ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def test_layers_and_long_leaves_are_measured_beside_partial_sums(monkeypatch):
    params = {"bias": normal(3), "layers": normal(4, 3), "long": normal(1 << 15)}
    measured = []
    for n_devices in (8, 1):
        monkeypatch.setattr(jax, "device_count", lambda n=n_devices: n)
        recorder = watched.Recorder()
        watch(jax.jit(update), recorder)(params, jnp.ones(3))
        measured += recorder.measurements
    several, one = measured
    assert isinstance(one, Joined) and all(one.layout.rows[:4]) and one.layout.has_words[0]
    assert not isinstance(several, Joined) and len(one.sources[0].paths) == 6
    for statistic, values in numbers_of(several)["grads"].items():
        np.testing.assert_allclose(numbers_of(one)["grads"][statistic], values, rtol=1e-6)
    np.testing.assert_array_equal(one.counts, several.counts)


@pytest.mark.optimized
def test_one_kernel_measures_all_layers_of_a_leaf(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)

    def step(params, x):
        y = lambda params: jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)[0])
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(y)(params))

    args = normal(126, 32, 32), jnp.ones(32)
    n_kernels = []
    for program in (jax.jit(step), instrumented(step, jit_options(jax.jit(step)), LIGHT)):
        text = program.lower(*args).compile().as_text()
        n_kernels.append(text[text.index("ENTRY") :].count(" fusion("))
    assert n_kernels[1] == n_kernels[0] + 1  # which measures; to join its numbers is to copy them


def test_rows_are_made_where_they_are_added_up():  # else XLA moves each reshape there, which it takes several turns for
    new, old = results()
    bits, before = ([x if x is None else x.view(np.uint32) for x in xs] for xs in (new, old))
    program = jax.make_jaxpr(lambda *x: partial_sums(x, bits, before)[:2])(normal(300), normal(20))
    added = [eqn for eqn in program.eqns if eqn.primitive.name == "reduce"]
    operands = {id(x) for eqn in added for x in eqn.invars}
    in_rows = {id(x) for eqn in program.eqns for x in eqn.outvars if x.aval.ndim == 2}
    assert in_rows and in_rows <= operands
