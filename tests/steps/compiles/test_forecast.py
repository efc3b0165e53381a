"""What a forecast says is compared with what happens: how often two calls trace and compile."""

from __future__ import annotations

import subprocess
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import pythons
from jax import monitoring, tree_util

import treeviz as tv

pytestmark = pytest.mark.oldest_jax

_compiled: list[str] = []
monitoring.register_event_duration_secs_listener(
    lambda event, duration_secs, **_: _compiled.append(event) if "backend_compile" in event else None
)


class State(NamedTuple):
    w: Any
    m: Any = None


@partial(tree_util.register_dataclass, data_fields=["w"], meta_fields=["kind"])
@dataclass
class Tagged:
    w: Any
    kind: str = "old"


def second_call(step, state, x) -> tuple[bool, bool]:
    """Whether it traces, and whether it compiles."""
    traces = []

    @jax.jit
    def counted(state, x):
        traces.append(1)
        return step(state, x)

    new = jax.block_until_ready(counted(state, x))
    n_traces, n_compiled = len(traces), len(_compiled)
    counted(new, x)
    return len(traces) > n_traces, len(_compiled) > n_compiled


def _keep(state, x):
    return jax.tree.map(lambda leaf: leaf * x[0], state)


ONE = np.ones(2, np.float32)
TWO, LOW, W = jax.device_put([np.ones(2), np.ones(2, jnp.bfloat16), np.ones(3)])
CASES: dict[str, tuple[Any, Any, Any, list[str]]] = {
    "nothing changes": (_keep, {"w": W}, ONE, []),
    "a float becomes an array": (_keep, {"time": 0.0}, ONE, ["state['time']: weak type"]),
    "a weak array becomes another": (_keep, State(jnp.asarray(1.0)), ONE, ["state.w: weak type"]),
    "an int is counted up": (lambda s, x: {"step": s["step"] + 1}, {"step": 0}, ONE, []),
    "a bool is inverted": (lambda s, x: {"on": ~s["on"]}, {"on": np.True_}, ONE, []),
    "a bool becomes weak": (
        lambda s, x: {"t": s["t"] + 1, "done": s["t"] > 3},
        {"t": 0, "done": False},
        ONE,
        ["state['done']: weak type: not weakly typed → weakly typed (return it with a dtype: .astype"],
    ),
    "float64 of NumPy": (_keep, {"w": np.ones(3)}, ONE, []),
    "bfloat16 times float32": (_keep, {"w": LOW}, ONE, ["state['w']: dtype"]),
    "None becomes an array": (lambda s, x: State(s.w, s.w + 1), State(TWO), ONE, ["state.m: none"]),
    "an array becomes a tree": (lambda s, x: State(s.w, {"a": s.m}), State(ONE, ONE), ONE, ["state.m: leaf"]),
    "an array grows": (lambda s, x: {"w": jnp.concatenate([s["w"], x])}, {"w": ONE}, ONE, ["state['w']: shape"]),
    "a tuple becomes a list": (lambda s, x: {"a": list(s["a"])}, {"a": (ONE,)}, ONE, ["state['a']: type"]),
    "a key is added": (lambda s, x: {**s, "b": x}, {"a": ONE}, ONE, ["state['b']: only in the other"]),
    "a static field changes": (lambda s, x: Tagged(s.w, "new"), Tagged(ONE), ONE, ["state: static: kind = 'old'"]),
    "what is read is committed": (_keep, {"w": W}, "committed", ["state['w']: sharding: not committed"]),
    "a part of the state is committed": (
        _keep,
        {"w": jax.device_put(ONE, jax.devices()[0]), "step": 0.0, **dict.fromkeys("abcdef", ONE)},
        ONE,
        ["state['step']: weak type", "state: sharding: not committed → committed (7 of 8 leaves, since `state` has"],
    ),
    "what is not read stays as it is": (
        lambda s, x: {"w": s["w"] * jax.jit(lambda x, b: x[0])(x, s["b"]), "b": (s["b"] + 1, jnp.zeros(2))[1]},
        {"w": jax.device_put(ONE, jax.devices()[0]), "b": ONE},
        ONE,
        [],
    ),
    "what is not read is committed": (lambda s, x: {"w": s["w"] + 1}, {"w": W}, "committed", []),
}


@pytest.mark.parametrize("case", CASES)
def test_a_forecast_says_what_the_second_call_does(case):
    step, state, x, expected = CASES[case]
    if isinstance(x, str):
        x = jax.device_put(jnp.ones(2), jax.devices()[0])

    def named(state, x):
        return step(state, x)

    found = tv.forecast(named, state, x)
    assert (found.retraces, found.recompiles) == second_call(step, state, x)
    assert [str(each)[: len(start)] for each, start in zip(found, expected, strict=True)] == expected


def test_a_forecast_is_a_sentence_and_a_line_for_each_leaf():
    def step(state, x):
        return x.sum(), {**state, "time": state["time"] + x.sum()}

    assert str(tv.forecast(jax.jit(step), {"time": 0.0, "q": ONE}, ONE)) == (
        "The second call of `step` traces and compiles again, because `state` (result[1]) changes type between "
        "input and output:\nstate['time']: weak type: weakly typed → not weakly typed (start from an array with a "
        "dtype, as jnp.float32(0), not from a Python number)"
    )
    assert str(tv.forecast(step, {"time": np.float32(0), "q": ONE}, ONE)) == (
        "The second call of `step` does not trace again: `state` (result[1]) keeps its type. "
        "`x` has no counterpart in the result: assumed not to change."
    )


def test_every_argument_that_has_a_counterpart_in_the_result_is_compared():
    def step(params, optimizer_state, x, batch):
        return params - x.mean(), {"lr": jnp.float32(0.9) * optimizer_state["lr"]}, {"loss": batch["y"].sum()}

    (found,) = tv.forecast(step, ONE, {"lr": 1.0}, ONE, {"y": ONE})
    assert (found.path, found.kind) == ("optimizer_state['lr']", "weak type")
    kept = tv.forecast(step, ONE, {"lr": np.float32(1)}, ONE, {"y": ONE})
    assert "`optimizer_state` (result[1]) keep their types. `x` and `batch` have no counterpart" in str(kept)
    assert not tv.forecast(step, ONE, {"lr": 1.0}, ONE, {"y": ONE}, state_arg=0), "only this one"


def test_the_first_call_uses_the_trace_of_the_forecast():
    traces = []
    step = jax.jit(lambda state, x: traces.append(x) or state + x)
    assert not tv.forecast(step, ONE, ONE) and len(traces) == 1
    step(ONE, ONE)
    assert len(traces) == 1


def test_several_states_are_found_in_the_result_by_their_structure_and_shapes():
    def step(params, moments, x):
        return {"params": params, "moments": State(moments.w * jnp.float32(1), params), "loss": x.sum()}

    params = {"w": ONE}
    found = tv.forecast(step, params, State(jnp.bfloat16(1), params), ONE, state_arg=(0, "moments"))
    assert [(each.path, each.kind) for each in found] == [("moments.w", "dtype")]
    assert "`params` (result['params']) and `moments` (result['moments']) change type between input and output" in str(
        found
    )


def test_where_the_state_is_not_certain_the_error_says_what_to_pass():
    def step(w, x):
        return {"new": w, "old": w * 1.0}, x

    with pytest.raises(ValueError, match=r"where in the result is the new `w`, float32\[3\]\?.*out=0 is dict"):
        tv.forecast(step, np.ones(3, np.float32), ONE)
    assert not tv.forecast(step, np.ones(3, np.float32), ONE, out=(0, "new"))
    with pytest.raises(ValueError, match=r"out=\(0, 'now'\): result\[0\] is dict · 2 leaves, and has \['new', 'old'\]"):
        tv.forecast(step, ONE, ONE, out=(0, "now"))
    with pytest.raises(ValueError, match="state_arg=2: the call has no such argument, but w, x"):
        tv.forecast(step, ONE, ONE, state_arg=2)
    with pytest.raises(ValueError, match=r"The result is float32\[2\]: out=\(\) is all of it. Pass out=…"):
        tv.forecast(lambda state: state["w"], {"w": ONE, "b": ONE})
    (found,) = tv.forecast(lambda state: state["w"], {"w": ONE, "b": ONE}, out=())
    assert (found.path, found.kind, found.right) == ("state", "leaf", "float32[2]")
    of_a_library: Any = lambda w, x: w
    of_a_library.lower = None
    with pytest.raises(TypeError, match="`<lambda>` is jitted by a library other than JAX"):
        tv.forecast(of_a_library, ONE, ONE)


RERUN = [NamedTuple("State", [("w", Any), ("b", Any)]) for _ in range(2)]


@pytest.mark.parametrize(
    ("state", "new"),
    [
        ({"w": ONE, "b": 2 * ONE}, OrderedDict),
        ([ONE, 2 * ONE], tuple),
        (RERUN[0](ONE, ONE), lambda state: RERUN[1](*state)),
        (RERUN[0](ONE, ONE), lambda state: state._asdict()),
        (None, lambda _: ONE),
    ],
    ids=["another dict", "a tuple for a list", "a class that was made again", "a dict for a class", "None"],
)
def test_a_state_that_comes_out_as_another_class_is_told_alone_or_beside_a_loss(state, new):
    (found,) = tv.forecast(lambda state: new(state), state)
    assert (found.path, found.kind) == ("state", "none" if state is None else "type")
    if state is not None:
        (found,) = tv.forecast(lambda state: (new(state), ONE.sum()), state)
        assert (found.path, found.kind) == ("state", "type")


def test_several_results_are_not_taken_for_a_state_in_another_class():
    for state in ({"w": ONE, "b": ONE}, RERUN[0](ONE, ONE)):
        with pytest.raises(ValueError, match=r"where in the result is the new `state`.*out=\(\) is all of it; out=0"):
            tv.forecast(lambda state: (ONE, ONE), state)


def test_static_arguments_donation_and_shapes_without_arrays_are_understood():
    @partial(jax.jit, static_argnames="n", donate_argnums=1)
    def step(n, state):
        return jax.tree.map(lambda leaf: leaf * n, state)

    committed = jax.device_put(jnp.ones(2), jax.devices()[0])
    (found,) = tv.forecast(jax.jit(lambda n, s, x: s * x * n, static_argnums=0), 3, ONE, committed, state_arg=1)
    assert (found.path, found.right) == ("s", "committed")
    shapes = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
    assert not tv.forecast(step, 2, shapes, state_arg=1)
    assert not tv.forecast(step, n=2, state=shapes, state_arg="state")


@pytest.mark.skipif(jax.__version_info__ < (0, 9), reason="JAX itself unflattens when it traces")
def test_a_class_that_checks_its_arguments_is_not_unflattened_with_anything_else():
    @tree_util.register_pytree_node_class
    class Checked:
        def __init__(self, w):
            assert w.ndim == 1
            _ = w + 1  # not a ShapeDtypeStruct
            self.w = w

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    assert not tv.forecast(lambda s: Checked(s.w + 1), Checked(jnp.ones(3)))


def test_published_loops_are_told_apart_from_those_that_compile_twice():
    optax = pytest.importorskip("optax")
    train_state = pytest.importorskip("flax.training.train_state")
    params = {"w": jnp.ones((2, 2)), "b": None}
    optimizer = optax.adamw(1e-3)

    def loss(params, x):
        return jnp.sum((x @ params["w"]) ** 2)

    def step(params, opt_state, x):  # optax's README
        grads = jax.grad(loss)(params, x)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    assert not tv.forecast(step, params, optimizer.init(params), ONE, state_arg=(0, 1))

    def train_step(state, x):  # Flax's: `state.step` is 0, a Python int
        value, grads = jax.value_and_grad(loss)(state.params, x)
        return state.apply_gradients(grads=grads), value

    state = train_state.TrainState.create(apply_fn=None, params=params, tx=optimizer)
    assert not tv.forecast(train_step, state, ONE)


def second_filtered_call(step, state, x) -> bool:
    """Whether the second call of a function that `equinox.filter_jit` jitted traces."""
    eqx = pytest.importorskip("equinox")
    traces = []

    @eqx.filter_jit
    def counted(state, x):
        traces.append(1)
        return step(state, x)

    counted(counted(state, x), x)
    return len(traces) > 1


FILTERED: dict[str, tuple[Any, Any, list[str]]] = {
    "arrays alone, and a function": (lambda s, x: {**s, "w": s["w"] * x}, {"w": ONE, "f": jnp.sin}, []),
    "a float becomes an array": (
        lambda s, x: {"t": s["t"] + x},
        {"t": 0.0},
        ["state['t']: static: float 0.0 → float32[2]"],
    ),
    "an int is counted up": (lambda s, x: {"n": s["n"] + 1}, {"n": 3}, ["state['n']: static: int 3 → int 4"]),
    "a float stays": (lambda s, x: {"lr": s["lr"], "w": s["w"] * x}, {"lr": 0.1, "w": ONE}, []),
    "a dtype drifts": (lambda s, x: s * x, LOW, ["state: dtype: bfloat16 → float32"]),
}


@pytest.mark.parametrize("case", FILTERED)
def test_leaves_that_are_no_arrays_are_static_for_a_step_of_equinox(case):
    eqx = pytest.importorskip("equinox")
    step, state, expected = FILTERED[case]

    @eqx.filter_jit
    def named(state, x):
        return step(state, x)

    found = tv.forecast(named, state, jnp.asarray(ONE))
    assert found.retraces == second_filtered_call(step, state, jnp.asarray(ONE)) == bool(expected)
    assert [str(each).partition(" (")[0] for each in found] == expected


def test_a_step_of_equinox_is_known_to_a_process_that_has_shown_no_tree():
    pytest.importorskip("equinox")
    program = (
        "import equinox, jax.numpy as jnp, treeviz\n"
        "step = equinox.filter_jit(lambda state: {'t': jnp.ones(2)})\n"
        "print([each.kind for each in treeviz.forecast(step, {'t': 0.0})])"
    )
    done = subprocess.run([*pythons.command("jax"), "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "['static']\n", done.stderr


def test_of_a_step_of_nnx_the_lines_are_told_that_convert_it():
    nnx = pytest.importorskip("flax.nnx")

    class Clock(nnx.Module):
        def __init__(self):
            self.t, self.n = nnx.Variable(jnp.asarray(0.0)), nnx.Variable(jnp.int32(0))

    @nnx.jit
    def step(clock, x):
        clock.t[...] += x
        clock.n[...] += 1

    with pytest.raises(TypeError, match=r"`step` is made by nnx\.jit, and changes its arguments in place") as raised:
        tv.forecast(step, Clock(), jnp.float32(1))
    lines = [line.removeprefix("    ") for line in str(raised.value).splitlines()[1:]]
    lines[-1] = f"found = {lines[-1]}"
    scope = {"nnx": nnx, "tv": tv, "step": step, "clock": Clock(), "x": jnp.float32(1)}
    exec("\n".join(lines), scope)
    assert [(each.path.startswith("state[0]['t']"), each.kind) for each in scope["found"]] == [(True, "weak type")]


def registered(name: str) -> Any:
    cls = make_dataclass(name, ["w", "n"])
    return jax.tree_util.register_dataclass(cls, data_fields=["w", "n"], meta_fields=[])


MAKES: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda w, n: {"w": w, "n": n},
    "list": lambda w, n: [w, n],
    "OrderedDict": lambda w, n: OrderedDict(w=w, n=n),
    "Named": namedtuple("Named", "w n"),
    "Data": registered("Data"),
    "Other": registered("Other"),
}


@pytest.mark.parametrize("after", MAKES)
@pytest.mark.parametrize("before", MAKES)
def test_a_state_of_another_class_at_its_root_is_found_and_told_as_jit_sees_it(before, after):
    x, traced = jnp.ones(3), []
    state = MAKES[before](x, jnp.int32(0))
    for beside in (False, True):

        def step(state: Any, y: jax.Array, beside: bool = beside) -> Any:
            traced.append(state)
            new = MAKES[after](y * 2, jnp.int32(1))
            return (new, y.sum()) if beside else new

        traced.clear()
        jitted = jax.jit(step)
        out = jitted(state, x)
        jitted(out[0] if beside else out, x)
        n_traced = len(traced)
        found = tv.forecast(step, state, x)
        assert found.retraces == (before != after)
        # To jaxlib the last two are equal, so its cache finds the one for the other where hashes happen to collide.
        assert found.retraces == (n_traced == 2) or {before, after} == {"Data", "Other"}
        assert not found or {(each.path, each.kind) for each in found} <= {("state", "type"), ("state", "static")}


def test_a_list_whose_only_node_becomes_another_class_is_found():
    data, other = MAKES["Data"], MAKES["Other"]
    (found,) = tv.forecast(lambda state: [other(state[0].w, state[0].n)], [data(jnp.ones(2), jnp.ones(3))])
    assert (found.path, found.kind) == ("state[0]", "type")
